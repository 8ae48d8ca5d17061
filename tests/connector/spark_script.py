"""Runs a script with a worker's Spark of its own, in a process that may be killed. No server is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from connector.test_spark import LEAST
from spark_start import java_options

from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent


def run_script(script: str, directory: Path, more: Mapping[str, str] = MappingProxyType({})) -> list[dict[str, Any]]:
    """Return the JSON objects that a script prints, one a line. It gets the paths of a worker's file, which has `more`
    keys, and of a directory for the run.
    """
    (directory / "run").mkdir()
    keys = {**LEAST, "spark.master": "local[2]", "spark.driver.extraJavaOptions": java_options(), **more}
    worker = directory / "worker.properties"
    worker.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command = [sys.executable, "-c", script, str(worker), str(directory / "run")]
    java = {"JAVA_HOME": str(spark_java_home(Silent()))}
    ended = subprocess.run(
        command, env={**os.environ, **java}, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]  # others are the log
