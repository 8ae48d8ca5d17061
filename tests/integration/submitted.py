"""A worker that `spark-submit` starts, with the packages of this Python, or with those of an archive."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
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
_OF_JAVA = ("spark.master=", "spark.driver.extraJavaOptions=")


def submitted(own: Command) -> Command:
    """The command that does what the worker's own does: what Java is started with goes from the file to the command."""
    worker = Path(own.arguments[1])
    lines = worker.read_text().splitlines()
    options = [word for line in lines if line.startswith(_OF_JAVA) for word in ("--conf", line)]
    left_out = (*_OF_JAVA, "public.spark.api=")
    worker.write_text("\n".join(line for line in lines if not line.startswith(left_out)) + "\n")
    return Command(["spark-submit", *options, str(_FILE), *own.arguments[1:]], own.log, own.port)


def pack_environment(folder: Path) -> Path:
    """Pack a virtual environment that finds the packages of this one; returns the archive."""
    environment, archive = folder / "packed", folder / "environment.tar.gz"
    subprocess.run([sys.executable, "-m", "venv", "--symlinks", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "packages.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(environment, ".")
    return archive
