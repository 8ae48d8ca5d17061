"""Two workers that write the same records, each with a checkpoint.dir of its own: the brokers refuse one of them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import processes
from integration.counting import Counting, check_order, stored_counts, stored_pulsar_counts
from integration.pipeline import Command, Pipeline
from patience import eventually

from helenus_sinks.pulsar.config import PulsarConfig
from helenus_stack.settings import LogName
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

KEYS = 40
STOPPED_S = 20
"""A task that is stopped for so long has records in its producer that are long outdated."""
TURNS = 15
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))


@pytest.fixture(scope="module")
def pipelines(status: Status, log: LogName, session: Any, directory: Path) -> Iterator[tuple[Pipeline, Pipeline]]:
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS twice WITH replication = {replication}")
    session.execute(f"CREATE TABLE {table_on(log)} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    both = tuple(Pipeline(status.only(log), directory / log / name) for name in ("first", "second"))
    try:
        both[0].agent.start().ready()
        for pipeline in both:
            pipeline.connect(table_on(log), output_format="json", max_batch_size=50)
        yield both[0], both[1]
    finally:
        for pipeline in both:
            if pipeline.agent.process is not None:
                pipeline.stop()
            elif pipeline.connector.process is not None:
                pipeline.connector.stop()


def table_on(log: str) -> str:
    return f"twice.{log}"


def table_of(pipeline: Pipeline) -> str:
    return table_on(pipeline.status.log)


def name_of(pipeline: Pipeline) -> str:
    return table_of(pipeline).replace(".", "-")


def task_of(pipeline: Pipeline) -> dict[str, Any]:
    """Its one task, as REST shows it."""
    url = f"http://127.0.0.1:{pipeline.connector.port}/connectors/{name_of(pipeline)}/status"
    with urllib.request.urlopen(url, timeout=30) as answer:
        tasks: list[dict[str, Any]] = json.load(answer)["tasks"]
    return tasks[0] if tasks else {"state": "UNASSIGNED"}


def is_refused(pipeline: Pipeline) -> bool:
    task = task_of(pipeline)
    return task["state"] == "FAILED" and "another worker writes these records" in task["trace"]


def lines(worker: Command, event: str) -> list[str]:
    return [line for line in worker.log.read_text(errors="replace").splitlines() if event in line]


@contextmanager
def stopped(worker: Command) -> Iterator[None]:
    """All of a worker's processes are stopped, and go on after."""
    assert worker.process is not None
    members = [int(path.name) for path in processes.family(worker.process.pid)]
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def counts(pipeline: Pipeline, isolation: str = "read_committed") -> list[tuple[int, int]]:
    topic = f"data-{table_of(pipeline)}"
    if pipeline.status.log == "kafka":
        return stored_counts(str(pipeline.status.bootstrap_servers), topic, isolation)
    return stored_pulsar_counts(PulsarConfig(str(pipeline.status.pulsar_url)), topic)


def in_order(pipeline: Pipeline) -> None:
    """For a reader of what is not committed, too."""
    for isolation in ("read_committed", "read_uncommitted"):
        check_order(counts(pipeline, isolation), KEYS)


def says_who_was_fenced(pipeline: Pipeline, former: Pipeline) -> bool:
    """Pulsar knows since when, not who."""
    assert former.connector.process is not None
    who = f"process {former.connector.process.pid}" if pipeline.status.log == "kafka" else "since 20"
    return any(who in line for line in lines(pipeline.connector, "writers.fenced"))


def test_a_second_worker_started_by_mistake(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    """It takes over; the task of the first one fails, with one line in its log, and takes nothing back by itself."""
    first, second = (pipeline.connector for pipeline in pipelines)
    with Counting(session, table_of(pipelines[0]), KEYS):
        first.start().ready()
        second.start().ready()
        eventually(lambda: is_refused(pipelines[0]), first.tail)
        time.sleep(5)
    assert is_refused(pipelines[0])
    assert task_of(pipelines[1])["state"] == "RUNNING"
    assert len(lines(first, "task.failed")) == 1
    assert lines(first, "task.retry") == []
    assert says_who_was_fenced(pipelines[1], pipelines[0])
    eventually(lambda: second.total("helenus_connector_keys_unconfirmed") == 0, second.tail)
    in_order(pipelines[0])


@pytest.mark.long  # the test above has two writers
def test_a_task_that_is_restarted_takes_the_records_back(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    first, second = (pipeline.connector for pipeline in pipelines)
    with Counting(session, table_of(pipelines[0]), KEYS):
        pipelines[0].call_rest("POST", f"{name_of(pipelines[0])}/restart?includeTasks=true")
        eventually(lambda: is_refused(pipelines[1]), second.tail)
        time.sleep(2)
        assert task_of(pipelines[0])["state"] == "RUNNING"
    eventually(lambda: first.total("helenus_connector_keys_unconfirmed") == 0, first.tail)
    in_order(pipelines[0])


def test_a_worker_that_is_stopped_and_goes_on(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    """As of a virtual machine that is moved: all its processes stop in the middle of batches."""
    first, second = (pipeline.connector for pipeline in pipelines)
    with Counting(session, table_of(pipelines[0]), KEYS):
        time.sleep(2)
        with stopped(first):
            pipelines[1].call_rest("POST", f"{name_of(pipelines[1])}/restart?includeTasks=true")
            records = len(counts(pipelines[0]))
            eventually(lambda: len(counts(pipelines[0])) > records + 100, second.tail)
            time.sleep(STOPPED_S)
        eventually(lambda: is_refused(pipelines[0]), first.tail)
        time.sleep(2)
        assert task_of(pipelines[1])["state"] == "RUNNING"
    eventually(lambda: second.total("helenus_connector_keys_unconfirmed") == 0, second.tail)
    in_order(pipelines[0])


@pytest.mark.long
def test_workers_that_are_killed_and_stopped_in_turns(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    """As when both are started by a supervisor, and stopped by the machine below them."""
    for pipeline in pipelines:
        if pipeline.connector.process is None:  # this test runs alone
            pipeline.connector.start().ready()
    try:
        with Counting(session, table_of(pipelines[0]), KEYS):
            take_turns(pipelines, random.Random(SEED))
            for pipeline in pipelines:  # a worker that still starts takes the records when it has
                eventually(partial(has_begun, pipeline), pipeline.connector.tail)
            restart_task(pipelines[0])
            eventually(lambda: is_refused(pipelines[1]), pipelines[1].connector.tail)
        first = pipelines[0].connector
        eventually(lambda: first.total("helenus_connector_keys_unconfirmed") == 0, first.tail)
        in_order(pipelines[0])
        rows = {row.k: row.n for row in session.execute(f"SELECT k, n FROM {table_of(pipelines[0])}")}
        eventually(lambda: dict(counts(pipelines[0])) == rows, first.tail)
    except AssertionError as error:
        raise AssertionError(f"HELENUS_SEED={SEED}: {error}") from error


def take_turns(pipelines: tuple[Pipeline, Pipeline], chance: random.Random) -> None:
    for _ in range(TURNS):
        pipeline, other = chance.sample(pipelines, 2)
        match chance.choice(["kill", "restart", "stop", "stop"]):
            case "kill":
                pipeline.connector.kill()
                time.sleep(chance.uniform(0, 2))
                pipeline.connector.start()
            case "restart":
                restart_task(pipeline)
            case _:
                with stopped(pipeline.connector):
                    restart_task(other)
                    time.sleep(chance.uniform(0, STOPPED_S))
        time.sleep(chance.uniform(0, 4))


def has_begun(pipeline: Pipeline) -> bool:
    """Whether a worker writes the records, or is refused."""
    try:
        return pipeline.connector.health()[0] == 200 or is_refused(pipeline)
    except OSError:  # it starts
        return False


def restart_task(pipeline: Pipeline) -> None:
    """Have the worker take the records, as soon as it answers."""

    def is_asked() -> bool:
        try:
            pipeline.call_rest("POST", f"{name_of(pipeline)}/restart?includeTasks=true")
        except OSError:  # it starts
            return False
        return True

    eventually(is_asked, pipeline.connector.tail)
