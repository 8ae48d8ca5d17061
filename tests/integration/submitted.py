"""A worker that `spark-submit` starts, with the packages of this Python, or with those of an archive."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
from integration.pipeline import Command

import helenus_connector

_HELENUS = Path(helenus_connector.__file__).parent
_FILE = _HELENUS / "spark_submit/helenus_worker.py"
ENVIRONMENT = {
    "SPARK_HOME": str(Path(pyspark.__file__).parent),
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(_HELENUS / "query/python_path"),
}
"""Variables of the command: where Spark is, the driver's Python, and an earlier connection of Spark's others."""
PACKAGES = f"./environment/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
"""Where processes in whose directory the archive is unpacked as `environment` have our packages."""
_OF_JAVA = ("spark.master=", "spark.driver.extraJavaOptions=")


def submitted(own: Command, options: Sequence[str] = (), in_container: bool = False) -> Command:
    """The command that does what the worker's own does: what Java is started with goes from the file to the command.
    With a driver `in_container` it sends the files.
    """
    worker = Path(own.arguments[1])
    lines = worker.read_text().splitlines()
    of_java = [word for line in lines if line.startswith(_OF_JAVA) for word in ("--conf", line)]
    left_out = (*_OF_JAVA, "public.spark.api=")
    worker.write_text("\n".join(line for line in lines if not line.startswith(left_out)) + "\n")
    files = own.arguments[1:]
    if in_container:
        options = [*options, "--deploy-mode", "cluster", "--files", ",".join(files)]
        files = [Path(file).name for file in files]
    return Command(["spark-submit", *of_java, *options, str(_FILE), *files], own.log, own.port)


def pack_environment(folder: Path) -> Path:
    """Pack a virtual environment that finds the packages of this one, and has the connector's; returns the archive."""
    environment, archive = folder / "packed", folder / "environment.tar.gz"
    subprocess.run([sys.executable, "-m", "venv", "--symlinks", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "packages.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    (packages / _HELENUS.name).symlink_to(_HELENUS)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(environment, ".")
    return archive
