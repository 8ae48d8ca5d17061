"""The life of a query on a real Spark: it fails, is restarted, and is stopped. No server is needed."""

from __future__ import annotations

from typing import Any

import pytest
from connector.spark_script import run_script

pytestmark = pytest.mark.integration

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.query_runner import QueryRunner
from helenus_connector.query.spark_session import start_session
from helenus_schemas.errors import Action, HelenusError, Kind

worker, run = WorkerSettings.load(sys.argv[1]), Path(sys.argv[2])
spark = start_session(worker, run)
context = spark.sparkContext

def say(**fields):
    print(json.dumps(fields), flush=True)

def until(is_met):
    deadline = time.monotonic() + 60
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.05)

class Query(QueryRunner):
    def __init__(self, name):
        super().__init__(f"query.group {name}", f"query-{name}", name, run / name)
        self.name, self.batches, self.pools, self.errors, self.faults = name, [], set(), [], {}

    def run_once(self, spark):
        query = self.begin_in_turn(self.begin)
        if query is not None:
            self.watch(query)

    def begin(self):
        rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        return self.start_stream(spark, self.name, rows, 100, self.process)

    def process(self, batch):
        self.pools.add(context.getLocalProperty("spark.scheduler.pool"))
        self.batches.append(batch.number)
        if batch.number in self.faults:
            raise self.faults.pop(batch.number)

    def note_failure(self, error):
        self.errors.append([error.kind.value, error.what])
        if error.action is not Action.RETRY:
            raise error
        self.last_error = error
        return 0.5

# Files that a killed run left half written, a batch that fails with an error of ours, and one with another.
query = Query("restarted")
(run / "restarted" / "offsets").mkdir(parents=True)
(run / "restarted" / "offsets" / ".0.5e0e.tmp").touch()
query.faults = {1: HelenusError(Kind.BROKER_UNREACHABLE, "no broker"), 3: ValueError("of batch 3")}
query.start(spark)
until(lambda: query.last_error is not None)
trouble = str(query.trouble())
until(lambda: 5 in query.batches and query.has_done_batches)
say(errors=query.errors, batches=query.batches[:8], pools=sorted(query.pools), trouble="no broker" in trouble,
    now=query.trouble(), progress=query.progress.batches_done > 0)
query.stop()
query.join()
say(failure=query.failure, active=[q.name for q in spark.streams.active])

query = Query("failed")
query.faults = {1: HelenusError(Kind.STATE, "it is damaged")}
query.start(spark)
query.join()
say(failure=query.failure.what, is_over=query.is_over, batches=query.batches)

# Spark's Java process is killed.
query = Query("killed")
query.start(spark)
until(lambda: query.has_done_batches)
os.kill(int(context._jvm.java.lang.ProcessHandle.current().pid()), signal.SIGKILL)
query.join()
say(failure=str(query.failure), reported=query.errors)
os._exit(0)
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    # Nothing of a query is on the file system that Hadoop's configuration names, as on YARN. This one is away.
    return run_script(SCRIPT, tmp_path_factory.mktemp("life"), {"spark.hadoop.fs.defaultFS": "hdfs://127.0.0.1:1"})


def test_a_query_is_restarted_where_it_failed(steps: list[dict[str, Any]]) -> None:
    assert steps[0] == {
        "errors": [["broker-unreachable", "no broker"], ["batch-failed", "ValueError: of batch 3"]],
        "batches": [0, 1, 1, 2, 3, 3, 4, 5],
        "pools": ["restarted"],
        "trouble": True,
        "now": None,
        "progress": True,
    }


def test_a_query_that_stops_leaves_no_stream(steps: list[dict[str, Any]]) -> None:
    assert steps[1] == {"failure": None, "active": []}


def test_an_error_that_is_not_transient_ends_a_query(steps: list[dict[str, Any]]) -> None:
    assert steps[2] == {"failure": "it is damaged", "is_over": True, "batches": [0, 1]}


def test_a_query_whose_spark_was_killed_ends(steps: list[dict[str, Any]]) -> None:
    assert "Spark's Java process has ended" in steps[3]["failure"]
    assert steps[3]["reported"] == []
