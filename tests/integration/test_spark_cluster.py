"""The same properties files on a Spark cluster of two workers: what dies there loses nothing and mixes up no order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attacks
import processes
import pytest
from integration.pipeline import Pipeline
from patience import eventually
from spark_start import java_options

from helenus_stack import spark_cluster
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

TABLE = "cluster.t"
KEYS = 40


class SparkCluster(spark_cluster.SparkCluster):
    """One that starts as fast as a test's worker."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, java_options())


@pytest.fixture(scope="module")
def spark(directory: Path) -> Iterator[SparkCluster]:
    with SparkCluster(directory / "spark") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, spark: SparkCluster, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE cluster WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute(f"CREATE TABLE {TABLE} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    try:
        pipeline.agent.start().ready()
        pipeline.connect(TABLE, tasks_max=2)
        spark.serve(directory / "worker.properties")
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


class Counting:
    """Counts up in every key, as fast as it can, while it is entered."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._insert = session.prepare(f"INSERT INTO {TABLE} (k, n) VALUES (?, ?)")

    def _run(self) -> None:
        n = time.time_ns()
        while not self._stop.wait(0.005):
            n += 1
            self._session.execute(self._insert, (n % KEYS, n))

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def in_order(pipeline: Pipeline) -> None:
    """No record of a key shows an older row than one before it."""
    latest: dict[int, int] = {}
    for record in pipeline.records(TABLE):
        assert record.value is not None
        key, n = record.key["k"], record.value["n"]
        assert n >= latest.get(key, 0), f"key {key} goes back at offset {record.offset}"
        latest[key] = n
    assert len(latest) == KEYS


def test_both_workers_take_part(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    with Counting(session):
        eventually(lambda: len(spark.executors()) == 2, "two executors")
        time.sleep(3)
    pipeline.converges(TABLE)
    in_order(pipeline)


def test_nobody_without_the_secret_gets_into_driver_or_executors(pipeline: Pipeline, spark: SparkCluster) -> None:
    """Nor does it stand on a command line."""
    assert pipeline.connector.process is not None
    eventually(lambda: len(spark.executors()) == 2, "two executors")
    members = [pipeline.connector.process.pid, *spark.executors()]
    open_listeners = [listener for pid in members for listener in attacks.listeners(pid)]
    addresses = {listener.address for listener in open_listeners if listener.port not in (0, pipeline.connector.port)}
    assert len(addresses) == 3 + 2, f"Java's, and a block manager of each executor: {open_listeners}"
    assert attacks.call_java(addresses) == []
    tries = attacks.fetch_blocks(addresses)
    assert [line for line in tries if " taken " in line or "BlockNotFound" in line] == []
    assert len({line.split()[0] for line in tries if "Expected SaslMessage" in line}) == 4, tries
    assert attacks.reach_sockets([listener.path for listener in open_listeners if listener.path]) == []
    seen = b"".join(processes.contents(path, "cmdline") for pid in members for path in processes.family(pid))
    assert b"java" in seen
    assert spark.secret.encode() not in seen


def test_an_executor_killed_in_mid_batch(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    with Counting(session):
        time.sleep(2)
        os.kill(spark.executors()[0], signal.SIGKILL)
        eventually(lambda: len(spark.executors()) == 2, "the executor is replaced")
    pipeline.converges(TABLE)
    in_order(pipeline)


@pytest.mark.long
def test_the_driver_killed_and_started_again(pipeline: Pipeline, session: Any) -> None:
    with Counting(session):
        time.sleep(1)
        pipeline.connector.kill()
        time.sleep(1)
        pipeline.connector.start().ready()
        time.sleep(1)
    pipeline.converges(TABLE)
    in_order(pipeline)
