"""The Spark session of a worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from helenus_connector.config import WorkerSettings
from helenus_schemas.errors import HelenusError, Kind

_DEFAULTS = {
    # Four attempts a task: a Python worker that dies takes one task with it, not the batch.
    "spark.master": "local[*,4]",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.minBatchesToRetain": "20",
    # Saves about 60 ms a batch against the default, on a local disk and on anything with atomic rename.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.adaptive.enabled": "false",
}
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{0}
# Failed batches are told by the worker, once and with advice.
logger.executor.name = org.apache.spark
logger.executor.level = off
"""


def session(worker: WorkerSettings, directory: Path) -> Any:
    """Start Spark with the worker's `spark.*` over our defaults. Raises HelenusError if there is no Java 17."""
    _check_java()
    # Otherwise the workers take whatever `python3` is first in PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING)
    settings = {**_DEFAULTS, **{f"spark.{key}": value for key, value in worker.spark.items()}}
    java = settings.get("spark.driver.extraJavaOptions", "")
    # When a query is stopped within foreachBatch, Spark matches the long Python error with a regular expression that
    # needs more than the default stack.
    settings["spark.driver.extraJavaOptions"] = f"-Xss8m -Dlog4j.configurationFile={logging} {java}".strip()
    from pyspark.sql import SparkSession

    # The driver's memory and Java options count only if they are there before the JVM is.
    arguments = " ".join(f"--conf {_quoted(f'{key}={value}')}" for key, value in settings.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{arguments} pyspark-shell"
    builder = SparkSession.builder.appName("helenus")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise HelenusError(Kind.CONFIG, "Spark needs Java 17 or later: set JAVA_HOME, or put java on the PATH")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
        version = int(told.split('"')[1].split(".")[0])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise HelenusError(Kind.CONFIG, f"cannot run Java: {error}", java) from None
    if version < 17:
        raise HelenusError(Kind.CONFIG, f"Spark needs Java 17 or later, this is {version}", java)
