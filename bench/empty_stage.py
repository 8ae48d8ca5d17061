"""The connector's query with an empty stage: what Spark, the source and the producer cost without our work."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.log.choice import data_log
from helenus_connector.query import _spark_job as job
from helenus_connector.query._task_reader import read_parts
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.handover import MicroBatch, start_query
from helenus_connector.query.source import EventsSource
from helenus_connector.query.spark_session import start_session
from helenus_sinks.log import Log
from helenus_stack.programs import Program

_logs: dict[str, Log] = {}


@dataclass(frozen=True)
class _Module(Program):
    """A module of the benchmarks, run as a program of its own."""

    def start(self, environment: Any) -> None:
        here = {"PYTHONPATH": str(Path(__file__).parents[1])}
        # Imported, not run as a module: Spark then sends its functions by name.
        code = "import sys; from bench.empty_stage import main; main(*sys.argv[1:])"
        command = [sys.executable, "-c", code, *map(str, self.files)]
        self.process.start(command, self.directory, self.log, {**environment, **here})


def program(directory: Path, worker: Path, events: str, target: str) -> Program:
    """The program that copies `events` to `target` through an empty stage, with the settings of a worker file."""
    log = data_log(WorkerSettings.load(worker))
    log.create(target, 4, {})
    log.close()
    return _Module("empty", directory, [worker, Path(events), Path(target)])


def append_all(worker: WorkerSettings, target: str, tasks: Iterator[TaskRanges]) -> Iterator[None]:
    """The empty stage. A function of this module, so that a worker finds its producer again in the next batch."""
    log = _logs.get("log") or _logs.setdefault("log", data_log(worker))
    for parts in tasks:
        _, events = read_parts(worker, parts)
        for event in chain.from_iterable(events.values()):
            log.append(target, event.partition, event.key, event.value)
    log.flush(10)
    yield None


def main(worker_file: str, events: str, target: str) -> None:
    worker = WorkerSettings.load(worker_file)
    keyspace, _, table = events.removeprefix("events-").partition(".")
    keys = {"name": "empty", "keyspace": keyspace, "table": table, "output.format": "json"}
    connector = worker.model.read_settings(keys, "empty")
    directory = tempfile.mkdtemp()
    plan = QueryPlan(worker, {events: connector}, directory)
    plan.save()
    spark = start_session(worker, Path(directory))
    spark.dataSource.register(EventsSource)
    stage = partial(append_all, worker, target)

    jobs = job.SparkJobs(spark.sparkContext)

    def process(_: MicroBatch) -> None:
        job.run(jobs, plan.parts_file, lambda _: stage)

    frame = spark.readStream.format("helenus-events").option("plan", str(plan.file)).load()
    checkpoint = {"checkpointLocation": f"{directory}/checkpoint"}
    start_query(spark.sparkContext, frame.writeStream.options(**checkpoint), process).awaitTermination()
