"""The source by itself, as a batch job: a query with the trigger availableNow reads what there is, once, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from integration.pipeline import write_properties
from spark_start import java_options

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import events_log
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.settings import LogName
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

SCRIPT = """
import json, sys
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.query import _spark_job as job
from helenus_connector.query._task_reader import read_parts
from helenus_connector.query.handover import start_query
from helenus_connector.query.source import EventsSource
from helenus_connector.query.spark_session import start_session

worker, directory, topic = WorkerSettings.load(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
given = {"name": "now", "keyspace": "now", "table": "t", "output.format": "json", "max.batch.size": "40"}
plan = QueryPlan(worker, {topic: worker.model.read_settings(given, "now")}, str(directory))
plan.save()
spark = start_session(worker, directory)
spark.dataSource.register(EventsSource)

def read(given):
    for parts in given:
        yield [int(event.value) for event in read_parts(worker, parts)[1][topic]]

jobs = job.SparkJobs(spark.sparkContext)

def process(batch):
    done = job.run(jobs, plan.parts_file, lambda _: read)
    print(json.dumps([number for found in done for number in found]), flush=True)

frame = spark.readStream.format("helenus-events").option("plan", str(plan.file)).load()
query = frame.writeStream.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
start_query(spark.sparkContext, query, process).awaitTermination()
spark.stop()
"""


@pytest.fixture
def worker(stack_status: Status, tmp_path: Path) -> Path:
    login = stack_status.pulsar() if stack_status.log == "pulsar" else stack_status.kafka()
    more = {"log": stack_status.log, "checkpoint.dir": tmp_path, "spark.master": "local[2]"}
    more["spark.driver.extraJavaOptions"] = java_options()
    return write_properties(tmp_path / "worker.properties", {**more, **login})


@pytest.fixture
def stack_status(status: Status, log: LogName) -> Status:
    return status.only(log)


@pytest.mark.long  # connector/test_source.py reads so without Spark
def test_a_query_with_available_now_ends(worker: Path, tmp_path: Path) -> None:
    topic = "events-now.t"
    log = events_log(WorkerSettings.load(worker))
    log.create(topic, 2, {"retention.ms": "3600000"})

    def append(first: int, last: int) -> None:
        for number in range(first, last):
            log.append(topic, number % 2, b"k", b"%d" % number)
        log.flush(30)

    append(0, 100)
    batches = run(worker, tmp_path, topic)
    assert len(batches) > 1, "a batch has its limit"
    assert sorted(number for batch in batches for number in batch) == list(range(100))
    assert [n for batch in batches for n in batch if n % 2] == list(range(1, 100, 2)), "in order within a partition"
    append(100, 130)
    log.close()
    second_run = [number for batch in run(worker, tmp_path, topic) for number in batch]
    # A start steps back in time, for what was unconfirmed when the run before it ended.
    assert sorted(set(second_run) - set(range(100))) == list(range(100, 130))


def run(worker: Path, directory: Path, topic: str) -> list[list[int]]:
    """The batches of a run, each with the numbers that its events have."""
    command = [sys.executable, "-c", SCRIPT, str(worker), str(directory), topic]
    environment = {**os.environ, "JAVA_HOME": str(spark_java_home(Silent()))}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("[")]
