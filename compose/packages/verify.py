"""Checks the files of a release by using them: `python compose/packages/verify.py [DIRECTORY]`.

Each wheel is installed into a virtual environment of its own, without anything else, and its commands run; the wheel of
the agent's package with the extras of the connector too. The agent's package is unpacked, and its agent runs. Needs the
Pythons of the wheels, and dpkg-deb.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from build import EXTRAS, PREFIX, ROOT, BuildFailed, find_python

_COMPILED = "import helenus_agent.commitlog.decoder as decoder; print(decoder.__file__)"


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    try:
        verify(directory)
    except BuildFailed as failure:
        sys.exit(f"{failure}")


def verify(directory: Path) -> None:
    """Check all files of a release. Raises BuildFailed."""
    check_sums(directory)
    (parts,) = directory.glob("helenus-agent-*.cdx.json")
    (own_part,) = (part for part in json.loads(parts.read_text())["components"] if part["name"] == "helenus")
    version, packages = own_part["version"], list(directory.glob("helenus-agent_*.deb"))
    python_of_agent = re.search(r"\.py3(\d+)_", packages[0].name)
    assert python_of_agent is not None
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for wheel in sorted(directory.glob("*.whl")):
            check_wheel(wheel, version, scratch / wheel.name, with_connector=f"-cp3{python_of_agent[1]}-" in wheel.name)
        check_package(packages[0], f"3.{python_of_agent[1]}", version, scratch / "root")


def check_sums(directory: Path) -> None:
    """Check that SHA256SUMS has each file, and no other."""
    lines = [line.split() for line in (directory / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    files = {path.name: path for path in directory.iterdir() if path.name != "SHA256SUMS"}
    if wrong := sums.keys() ^ files.keys():
        raise BuildFailed(
            f"{directory} and its SHA256SUMS differ in {', '.join(sorted(wrong))}: empty it, and build again"
        )
    for name, path in files.items():
        if hashlib.sha256(path.read_bytes()).hexdigest() != sums[name]:
            raise BuildFailed(f"{path} is not what SHA256SUMS says: build again")


def check_wheel(wheel: Path, version: str, environment: Path, with_connector: bool) -> None:
    """Install a wheel as a user does, and run its commands."""
    match = re.search(r"-cp3(\d+)-", wheel.name)
    assert match is not None, wheel.name
    python = find_python(f"3.{match[1]}")
    if python is None:
        raise BuildFailed(f"{wheel.name} was not tried: its Python is not here")
    print(f"trying {wheel.name}{f'[{EXTRAS}]' if with_connector else ''} ...", flush=True)
    _run([python, "-m", "venv", str(environment)])
    requirement = f"{wheel}[{EXTRAS}]" if with_connector else str(wheel)
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    _run([f"{environment}/bin/pip", "--disable-pip-version-check", "install", "--quiet", *constraints, requirement])
    _run([f"{environment}/bin/pip", "--disable-pip-version-check", "check"])
    if not _run([f"{environment}/bin/python", "-c", _COMPILED]).strip().endswith(".so"):
        raise BuildFailed(f"{wheel.name}: the decoder is not compiled")
    check_command([f"{environment}/bin/helenus-agent"], version, ROOT / "agent/agent.properties", "cassandra.yaml")
    connector, settings = f"{environment}/bin/helenus-connector", ROOT / "connector/worker.properties"
    if with_connector:
        check_command([connector], version, settings, settings.name)
    else:
        _expect([connector, str(settings)], "only the agent is installed here")


def check_package(package: Path, python_version: str, version: str, root: Path) -> None:
    """Unpack the agent's package, and run its agent by the Python of that version that is here."""
    if not shutil.which("dpkg-deb"):
        raise BuildFailed(f"{package.name} was not tried: dpkg-deb is not here")
    print(f"trying {package.name} ...", flush=True)
    _run(["dpkg-deb", "--extract", str(package), str(root)])
    python = find_python(python_version)
    assert python is not None, "the wheel was tried by it"
    (site,) = (root / PREFIX).glob("lib/*/site-packages")
    # As its own Python does, which is the system's: with the packages beside it, and no others.
    run = f"import sys; sys.path.append({str(site)!r}); import helenus_agent.cli as cli; cli.main()"
    settings = root / "etc/helenus/agent.properties"
    check_command([python, "-I", "-S", "-c", run], version, settings, "cassandra.yaml")
    unit = (root / "usr/lib/systemd/system/helenus-agent.service").read_text()
    command = root / PREFIX / "bin/helenus-agent"
    if f"ExecStart=/{PREFIX}/bin/helenus-agent " not in unit or not os.access(command, os.X_OK):
        raise BuildFailed(f"{package.name}: the unit starts another command than the package has")
    packages = list(package.parent.glob(f"helenus-agent-*.{platform.machine()}.rpm"))
    if not packages or packages[0].stat().st_size < package.stat().st_size / 2:
        raise BuildFailed(f"{package.parent} has no .rpm beside {package.name}, or half of one")


def check_command(command: Sequence[str], version: str, settings: Path, problem: str) -> None:
    """Check that a command has the version, and says what the example of its settings lacks on this machine."""
    _expect([*command, "--version"], f"version {version}")
    _expect([*command, "validate", str(settings)], problem)


def _expect(command: Sequence[str], words: str) -> None:
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    process = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    output = process.stdout + process.stderr
    if words not in output or "Traceback" in output:
        raise BuildFailed(f"{' '.join(command)} does not say {words!r} but:\n{output.strip()[-2000:]}")


def _run(command: Sequence[str]) -> str:
    process = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if process.returncode:
        raise BuildFailed(f"this failed: {' '.join(command)}\n{(process.stdout + process.stderr).strip()[-2000:]}")
    return process.stdout


if __name__ == "__main__":
    main()
