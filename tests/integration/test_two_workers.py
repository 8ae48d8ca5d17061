"""Two workers that write the same records, each with a checkpoint.dir of its own: one of them is refused by Kafka."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import processes
import pytest
from integration.counting import Counting, check_order, stored_counts
from integration.pipeline import Command, Pipeline
from patience import eventually

from helenus_stack.status import Status

pytestmark = pytest.mark.integration

TABLE = "twice.t"
NAME = "twice-t"
KEYS = 40
STOPPED_S = 20
"""A task that is stopped for so long has records in its producer that are long outdated."""
TURNS = 15
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))


@pytest.fixture(scope="module")
def pipelines(status: Status, session: Any, directory: Path) -> Iterator[tuple[Pipeline, Pipeline]]:
    session.execute("CREATE KEYSPACE twice WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute(f"CREATE TABLE {TABLE} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    both = tuple(Pipeline(status, directory / name) for name in ("first", "second"))
    try:
        both[0].agent.start().ready()
        for pipeline in both:
            pipeline.connect(TABLE, output_format="json", max_batch_size=50)
        yield both[0], both[1]
    finally:
        for pipeline in both:
            if pipeline.agent.process is not None:
                pipeline.stop()
            elif pipeline.connector.process is not None:
                pipeline.connector.stop()


def task_of(worker: Command) -> dict[str, Any]:
    """Its one task, as REST shows it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/connectors/{NAME}/status", timeout=30) as answer:
        tasks: list[dict[str, Any]] = json.load(answer)["tasks"]
    return tasks[0] if tasks else {"state": "UNASSIGNED"}


def is_refused(worker: Command) -> bool:
    task = task_of(worker)
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


def record_count(pipeline: Pipeline) -> int:
    return len(stored_counts(str(pipeline.status.bootstrap_servers), f"data-{TABLE}", "read_committed"))


def in_order(pipeline: Pipeline) -> None:
    """For a reader of what is not committed, too."""
    for isolation in ("read_committed", "read_uncommitted"):
        check_order(stored_counts(str(pipeline.status.bootstrap_servers), f"data-{TABLE}", isolation), KEYS)


def test_a_second_worker_started_by_mistake(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    """It takes over; the task of the first one fails, with one line in its log, and takes nothing back by itself."""
    first, second = (pipeline.connector for pipeline in pipelines)
    with Counting(session, TABLE, KEYS):
        first.start().ready()
        second.start().ready()
        eventually(lambda: is_refused(first), first.tail)
        time.sleep(5)
    assert is_refused(first)
    assert task_of(second)["state"] == "RUNNING"
    assert len(lines(first, "task.failed")) == 1
    assert lines(first, "task.retry") == []
    assert [line for line in lines(second, "writers.fenced") if f"process {first.process.pid}" in line]  # type: ignore[union-attr]
    eventually(lambda: second.total("helenus_connector_keys_unconfirmed") == 0, second.tail)
    in_order(pipelines[0])


def test_a_task_that_is_restarted_takes_the_records_back(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    first, second = (pipeline.connector for pipeline in pipelines)
    with Counting(session, TABLE, KEYS):
        pipelines[0].call_rest("POST", f"{NAME}/restart?includeTasks=true")
        eventually(lambda: is_refused(second), second.tail)
        time.sleep(2)
        assert task_of(first)["state"] == "RUNNING"
    eventually(lambda: first.total("helenus_connector_keys_unconfirmed") == 0, first.tail)
    in_order(pipelines[0])


def test_a_worker_that_is_stopped_and_goes_on(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    """As of a virtual machine that is moved: all its processes stop in the middle of batches."""
    first, second = (pipeline.connector for pipeline in pipelines)
    with Counting(session, TABLE, KEYS):
        time.sleep(2)
        with stopped(first):
            pipelines[1].call_rest("POST", f"{NAME}/restart?includeTasks=true")
            records = record_count(pipelines[0])
            eventually(lambda: record_count(pipelines[0]) > records + 100, second.tail)
            time.sleep(STOPPED_S)
        eventually(lambda: is_refused(first), first.tail)
        time.sleep(2)
        assert task_of(second)["state"] == "RUNNING"
    eventually(lambda: second.total("helenus_connector_keys_unconfirmed") == 0, second.tail)
    in_order(pipelines[0])


@pytest.mark.long
def test_workers_that_are_killed_and_stopped_in_turns(pipelines: tuple[Pipeline, Pipeline], session: Any) -> None:
    """As when both are started by a supervisor, and stopped by the machine below them."""
    try:
        with Counting(session, TABLE, KEYS):
            take_turns(pipelines, random.Random(SEED))
            restart_task(pipelines[0])
            eventually(lambda: is_refused(pipelines[1].connector), pipelines[1].connector.tail)
        first = pipelines[0].connector
        eventually(lambda: first.total("helenus_connector_keys_unconfirmed") == 0, first.tail)
        in_order(pipelines[0])
        rows = {row.k: row.n for row in session.execute(f"SELECT k, n FROM {TABLE}")}
        brokers = str(pipelines[0].status.bootstrap_servers)
        eventually(lambda: dict(stored_counts(brokers, f"data-{TABLE}", "read_committed")) == rows, first.tail)
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


def restart_task(pipeline: Pipeline) -> None:
    """Have the worker take the records, as soon as it answers."""

    def is_asked() -> bool:
        try:
            pipeline.call_rest("POST", f"{NAME}/restart?includeTasks=true")
        except OSError:  # it starts
            return False
        return True

    eventually(is_asked, pipeline.connector.tail)
