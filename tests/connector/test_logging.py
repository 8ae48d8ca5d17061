"""Spark's Python processes report as the driver does, and hear of levels that are changed while they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = """
import sys
from pyspark import cloudpickle
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.query.source import EventsReader
from helenus_connector.query._worker_task import topic_task
from helenus_schemas.service import logs

directory = sys.argv[1]
worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": directory}, "worker")
logs.configure("warning", "json")
logs.change("helenus_connector.pipeline.stage", "DEBUG")
plan = QueryPlan(worker, {}, directory)
plan.save()
with open(f"{directory}/read", "wb") as out:
    cloudpickle.dump(EventsReader(str(plan.file), placed=True).read, out)  # otherwise the task reads
with open(f"{directory}/task", "wb") as out:
    cloudpickle.dump(topic_task(plan, {}), out)
logs.change("helenus_connector.pipeline.stage", "ERROR")
logs.change("library", "DEBUG")
QueryPlan(worker, {}, directory).save()
"""
START = {
    "planner": "from helenus_connector.query._batch_planner import BatchPlanner; "
    "BatchPlanner(f'{sys.argv[1]}/default.plan')",
    "reading": "from helenus_connector.query.batch_parts import *; "
    "list(load('read')(TaskRanges([TopicRanges((), 'fail', 0)], 1)))",
    "task": "list(load('task')(iter([])))",
}
PROCESS = """
import logging, pickle, sys, structlog
def load(name):
    return pickle.load(open(f"{{sys.argv[1]}}/{{name}}", "rb"))
{start}
log = structlog.get_logger("helenus_connector.pipeline.stage")
log.debug("stage.debug")
log.error("stage.error")
structlog.get_logger("helenus_connector.gate.gate").info("gate.info")
logging.getLogger("library").debug("a library")
"""


def run(code: str, directory: Path) -> tuple[str, list[str]]:
    """Standard output, and the events of standard error, which has JSON lines."""
    process = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True, check=True)
    return process.stdout, [json.loads(line)["event"] for line in process.stderr.splitlines()]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("driver")
    run(DRIVER, directory)
    return directory


@pytest.mark.parametrize("process", START)
def test_spark_s_processes_report_as_the_driver(driver: Path, process: str) -> None:
    # The planner reads the plan as it is now; what was handed out before the last change goes by the one before it.
    logged = ["stage.error", "a library"] if process == "planner" else ["stage.debug", "stage.error"]
    assert run(PROCESS.format(start=START[process]), driver) == ("", logged)
