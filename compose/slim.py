"""Takes out of an installation what its image does not need: `python slim.py /opt/helenus agent|connector`.

pip, tests and C headers; the demo and its servers; of Spark what no setting of a worker makes it load: machine
learning, Hive's metastore, the server of Spark Connect, the shell; and native libraries of other systems.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

# Below site-packages.
UNUSED = [
    "pip",
    "pip-*",
    "setuptools*",
    "_distutils_hack",
    "distutils-precedence.pth",
    "helenus_stack",
    "**/tests",
    "**/*.pxd",
    "**/*.pxi",
    "**/*.pyx",
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    "pyarrow/*_flight*",
    "pyarrow/*_s3*",
    "pyarrow/libarrow_python.so",  # for linkers: Python loads the one with a version, of which this is a copy
    "pyarrow/libarrow_python.so.*.*.*",
    "pyspark/examples",
    "pyspark/jars/connect-repl",
]
JARS = re.compile(
    r"(spark-(mllib|graphx|connect|repl|pipelines|hive)|breeze|spire|algebra|cats-kernel|JTransforms|JLargeArrays"
    r"|(blas|lapack|arpack|arpack_combined_all|scala-compiler)-\d"
    r"|hive-(?!storage-api)|datanucleus|derby|HikariCP|javax\.jdo|jdo-api|libfb303|libthrift|jline|opencsv|super-csv"
    r"|netty-.*-(osx|windows)-)"
)
# The agent writes to Pulsar by itself.
UNUSED_BY = {
    "agent": ["helenus_connector", "pulsar", "pulsar_client*", "_pulsar*"],
    "connector": ["helenus_agent"],
}
# How jars name systems and processors in the paths of native libraries.
_NATIVE = re.compile(r"\.(so|a|dll|dylib|jnilib)$")
_OTHER_SYSTEM = re.compile(r"(^|/)(aix|darwin|freebsd|sunos|win)/|musl|\.(a|dll|dylib|jnilib)$", re.IGNORECASE)
_PROCESSORS = {
    "x86_64": ("x86_64", "amd64", "linux64"),
    "aarch64": ("aarch64",),
    "riscv64": ("riscv64",),
}


def main(home: Path, part: str) -> None:
    """Slims the virtual environment at `home` for an `agent` or a `connector`."""
    (site,) = home.glob("lib/python3*/site-packages")
    for path in unused(site, part):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    other = "connector" if part == "agent" else "agent"
    for script in ("pip*", "helenus-stack", f"helenus-{other}", "activate*", "Activate*"):
        for path in home.glob(f"bin/{script}"):
            path.unlink()
    for jar in site.glob("pyspark/jars/*.jar"):
        without_other_systems(jar, platform.machine())


def unused(site: Path, part: str) -> Iterator[Path]:
    """Files and folders of site-packages that go."""
    for pattern in UNUSED + UNUSED_BY[part]:
        yield from list(site.glob(pattern))
    yield from (jar for jar in list(site.glob("pyspark/jars/*.jar")) if JARS.match(jar.name))


def is_foreign(name: str, machine: str) -> bool:
    """Whether an entry of a jar is a native library that no Linux on this kind of machine loads."""
    if not _NATIVE.search(name):
        return False
    own = _PROCESSORS.get(machine)
    return bool(_OTHER_SYSTEM.search(name)) or bool(own and not any(word in name for word in own))


def without_other_systems(jar: Path, machine: str) -> None:
    """Writes a jar again, without native libraries of other systems, if it has any."""
    with zipfile.ZipFile(jar) as old:
        keep = [entry for entry in old.infolist() if not is_foreign(entry.filename, machine)]
        if len(keep) == len(old.infolist()):
            return
        new = jar.with_suffix(".new")
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as out:
            for entry in keep:
                out.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED)
    new.replace(jar)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
