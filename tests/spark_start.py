"""Settings of a Spark that lives for a minute: it starts with half the work.

It does without the JVM's second compiler, and finds its classes in an archive, as the JVM has them in memory: class
data sharing, JEP 350. The archive is made once for each environment, in half a minute. It compiles no code for its
queries either, which would not run often enough to be worth it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

import helenus_connector.query
from helenus_stack.files import cache_directory
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent

_JAR = Path(helenus_connector.query.__file__).with_name("helenus.jar")
"""The first on the class path of a worker's Spark: an archive is of the class path that it was made with."""
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = "-Xlog:disable"  # the JVM would say on standard output which classes it does not archive
_QUERY = """
import sys, tempfile
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
stream = spark.readStream.format("rate").load().writeStream.trigger(availableNow=True)
with tempfile.TemporaryDirectory() as checkpoint:
    stream = stream.option("checkpointLocation", checkpoint).foreachBatch(lambda frame, _: frame.collect())
    stream.start().awaitTermination()
spark.stop()
"""


def settings() -> dict[str, str]:
    """For a worker's properties file."""
    code = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    return {"spark.driver.extraJavaOptions": java_options(), **code}


@functools.cache
def java_options() -> str:
    """For each of Spark's processes."""
    jars = Path(pyspark.__file__).with_name("jars")
    path = f"{jars} {_JAR} {_JAR.stat().st_mtime_ns}"
    name = hashlib.md5(path.encode(), usedforsecurity=False).hexdigest()
    archive = cache_directory() / "java" / f"spark-{pyspark.__version__}-{name}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(archive.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists() or archive.stat().st_mtime < jars.stat().st_mtime:
            _make(archive)
    return f"{_BRIEF} -XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else _BRIEF


def _make(archive: Path) -> None:
    """Without one Spark is slower, that is all: a JVM that can't make it is no reason to fail."""
    made = archive.with_suffix(".new")
    java = f"--conf 'spark.driver.extraJavaOptions={_BRIEF} -XX:ArchiveClassesAtExit={made} {_QUIET}'"
    environment = {
        **os.environ,
        "JAVA_HOME": str(spark_java_home(Silent())),
        "PYSPARK_SUBMIT_ARGS": f"{java} --driver-class-path '{_JAR}' --conf spark.ui.enabled=false pyspark-shell",
    }
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", _QUERY], env=environment, capture_output=True, timeout=300, check=False)
    if made.exists():
        made.replace(archive)
