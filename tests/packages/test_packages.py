"""What `make packages` makes: wheels, and the agent's packages, which are installed, upgraded and removed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from hatch_build import MODULES

ROOT = Path(__file__).parents[2]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all files, made for this Python."""
    if not (shutil.which("go") or shutil.which("nfpm")):
        pytest.skip("neither Go nor nfpm is here, which makes .deb and .rpm")
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "-C", str(ROOT), "build/packages-venv/.ready"], check=True, capture_output=True)
    command = ["build/packages-venv/bin/python", "compose/packages/build.py", str(directory)]
    options = ["--python", VERSION, "--agent-python", VERSION]
    process = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return directory


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which dpkg installs as into a machine's /, without packages so far."""
    if not shutil.which("dpkg") or os.geteuid():
        pytest.skip("dpkg installs as root alone")
    root = tmp_path_factory.mktemp("system")
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    return root


def dpkg(root: Path, *arguments: str) -> None:
    # The directory has no Python of Debian's, on which the package depends, and no shell for its scripts.
    options = ["--force-depends", "--force-script-chrootless", "--force-confold"]
    process = subprocess.run(["dpkg", f"--root={root}", *options, *arguments], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_wheel_is_compiled_and_for_many_systems(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    assert "manylinux" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if name.endswith(".so")]) == len(MODULES)
    lines = (release / "SHA256SUMS").read_text().splitlines()
    assert f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}" in lines
    assert {line.split()[1] for line in lines} == {path.name for path in release.iterdir()} - {"SHA256SUMS"}


def test_files_are_tried_as_by_a_release(release: Path) -> None:
    """Each wheel in an environment of its own, with the extras of the connector, and the agent's package unpacked."""
    command = ["build/packages-venv/bin/python", "compose/packages/verify.py", str(release)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_files_have_the_commits_time_and_no_path_of_this_machine(release: Path, tmp_path: Path) -> None:
    """What makes the same commit give the same bytes: a second build would take minutes."""
    command = ["git", "log", "-1", "--format=%ct"]
    seconds = int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    time_of_zip = time.gmtime(seconds // 2 * 2)[:6]
    (wheel,), (package,) = release.glob("*.whl"), release.glob("*.deb")
    assert {entry.date_time for entry in zipfile.ZipFile(wheel).infolist()} == {time_of_zip}
    subprocess.run(["dpkg-deb", "-x", str(package), str(tmp_path)], check=True)
    (site,) = tmp_path.glob("opt/helenus/lib/*/site-packages")
    assert {path.stat().st_mtime for path in site.rglob("*") if path.is_file()} == {seconds}
    paths = [str(release).encode(), str(Path.home()).encode() + b"/", sys.base_prefix.encode() + b"/lib"]
    ours = [
        path for package in ("agent", "connector", "schemas", "sinks") for path in site.glob(f"helenus_{package}/**/*")
    ]
    ours += site.glob("helenus-*.dist-info/*")
    assert any(path.suffix == ".so" for path in ours)
    named = [path for path in ours if path.is_file() and any(part in path.read_bytes() for part in paths)]
    assert named == []


def test_list_of_parts_names_what_is_packed(release: Path, tmp_path: Path) -> None:
    (package,) = release.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(tmp_path)], check=True)
    (site,) = tmp_path.glob("opt/helenus/lib/*/site-packages")
    packed = {path.name.split("-")[0].replace("_", "-").lower() for path in site.glob("*.dist-info")}
    (parts,) = release.glob("helenus-agent-*.cdx.json")
    listed = {part["name"].replace("_", "-").lower() for part in json.loads(parts.read_text())["components"]}
    assert packed == listed
    assert {"helenus", "confluent-kafka", "pulsar-client"} <= listed
    (of_worker,) = set(release.glob("*.cdx.json")) - {parts}
    listed = {part["name"].lower() for part in json.loads(of_worker.read_text())["components"]}
    assert {"helenus", "pyspark", "confluent-kafka", "fastavro", "pulsar-client", "opentelemetry-sdk"} <= listed


def test_agent_is_installed_upgraded_and_removed(release: Path, system: Path) -> None:
    (package,) = release.glob("*.deb")
    dpkg(system, "--install", str(package))
    prefix, properties = system / "opt/helenus", system / "etc/helenus/agent.properties"
    python = prefix / "bin/python"
    if not python.exists():  # the system's Python is not here: these tests'
        python.unlink()
        python.symlink_to(os.path.realpath(sys.executable))
        own_home = f"home = {Path(os.path.realpath(sys.executable)).parent}"
        (prefix / "pyvenv.cfg").write_text((prefix / "pyvenv.cfg").read_text().replace("home = /usr/bin", own_home))
    settings = {"PATH": os.environ["PATH"]}
    check = [str(python), str(prefix / "bin/helenus-agent"), "validate", str(properties)]
    process = subprocess.run(check, env=settings, capture_output=True, text=True)
    output = process.stdout + process.stderr
    assert "cassandra.yaml" in output, "the example names a node that is not here"
    assert "Traceback" not in output
    code = "import pulsar, confluent_kafka, helenus_agent.commitlog.decoder as d; print(d.__file__)"
    imported = subprocess.run([str(python), "-c", code], env=settings, capture_output=True, text=True, check=True)
    assert imported.stdout.strip().endswith(".so")
    assert imported.stdout.startswith(str(prefix.resolve()))
    assert (properties.stat().st_mode & 0o777) == 0o640, "it may hold passwords"
    unit = (system / "usr/lib/systemd/system/helenus-agent.service").read_text()
    assert f"ExecStart=/{(prefix / 'bin/helenus-agent').relative_to(system)} /etc/helenus/agent.properties" in unit
    # An upgrade leaves an operator's settings, a removal too; only a purge takes them.
    properties.write_text("# mine\n")
    dpkg(system, "--install", str(package))
    assert properties.read_text() == "# mine\n"
    dpkg(system, "--remove", "helenus-agent")
    assert not prefix.exists()
    assert properties.read_text() == "# mine\n"
    dpkg(system, "--purge", "helenus-agent")
    assert not properties.exists()


def test_packages_for_both_families_hold_the_same_files(release: Path) -> None:
    deb, rpm = next(release.glob("*.deb")), next(release.glob("*.rpm"))
    listing = subprocess.run(["dpkg-deb", "-c", str(deb)], check=True, capture_output=True, text=True).stdout
    of_deb = {line.split()[5].removeprefix(".") for line in listing.splitlines() if not line.startswith("d")}
    code = (
        "import rpmfile, sys\n"
        "with rpmfile.open(sys.argv[1]) as package:\n"
        "    print(*(member.name for member in package.getmembers()), sep='\\n')\n"
    )
    python = str(ROOT / "build/packages-venv/bin/python")
    of_rpm = set(
        subprocess.run([python, "-c", code, str(rpm)], check=True, capture_output=True, text=True).stdout.split()
    )
    assert {name for name in of_rpm if name in of_deb} == of_deb
