"""The same properties files on a Spark cluster of two workers: what dies there loses nothing and mixes up no order."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attacks
import pytest
from bench import processes
from integration.counting import Counting, check_order
from integration.pipeline import Pipeline
from integration.submitted import ENVIRONMENT, pack_environment, submitted
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
        with (directory / "worker.properties").open("a") as file:  # for an executor that does not answer
            file.write(
                "spark.network.timeout=15s\nspark.network.timeoutInterval=5s\nspark.executor.heartbeatInterval=3s\n"
            )
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def in_order(pipeline: Pipeline) -> None:
    """No record of a key shows an older row than one before it."""
    records = pipeline.records(TABLE)
    check_order([(record.key["k"], record.value["n"]) for record in records if record.value is not None], KEYS)


def test_both_workers_take_part(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    with Counting(session, TABLE, KEYS):
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


@pytest.mark.long  # connector/test_handover.py has a task that goes on late
def test_an_executor_killed_in_mid_batch(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    with Counting(session, TABLE, KEYS):
        time.sleep(2)
        os.kill(spark.executors()[0], signal.SIGKILL)
        eventually(lambda: len(spark.executors()) == 2, "the executor is replaced")
    pipeline.converges(TABLE)
    in_order(pipeline)


@pytest.mark.long  # the test above kills one
def test_an_executor_that_is_stopped_and_goes_on(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    """Spark gives it up and runs its tasks elsewhere; then it goes on, with the records that it had not sent."""
    with Counting(session, TABLE, KEYS):
        time.sleep(2)
        stopped = [int(path.name) for path in processes.family(spark.executors()[0])]
        restarts = log_lines(pipeline, "query.started")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: log_lines(pipeline, "query.started") > restarts, pipeline.connector.tail)
            records = len(pipeline.records(TABLE))
            eventually(lambda: len(pipeline.records(TABLE)) > records + KEYS, pipeline.connector.tail)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):  # Spark's worker may have killed it
                    os.kill(pid, signal.SIGCONT)
        time.sleep(3)
    pipeline.converges(TABLE)
    in_order(pipeline)
    assert log_lines(pipeline, "task.failed") == 0, "no other worker has its records"


def log_lines(pipeline: Pipeline, event: str) -> int:
    return pipeline.connector.log.read_text(errors="replace").count(f"] {event} ")


@pytest.mark.long
def test_the_driver_killed_and_started_again(pipeline: Pipeline, session: Any) -> None:
    with Counting(session, TABLE, KEYS):
        time.sleep(1)
        pipeline.connector.kill()
        time.sleep(1)
        pipeline.connector.start().ready()
        time.sleep(1)
    pipeline.converges(TABLE)
    in_order(pipeline)


@pytest.mark.long
def test_spark_submit_with_the_packages_in_an_archive(
    pipeline: Pipeline, spark: SparkCluster, session: Any, directory: Path
) -> None:
    """The driver's Python processes that plan are started by the same path as those of the executors."""
    assert pipeline.connector.stop() == 0
    pipeline.connector = submitted(pipeline.connector)
    pipeline.connector.folder = folder = directory / "submits"
    folder.mkdir()
    archive = pack_environment(folder)
    (folder / "environment").symlink_to(sys.prefix)
    with (directory / "worker.properties").open("a") as file:
        file.write(f"spark.archives={archive}#environment\nspark.pyspark.python=./environment/bin/python\n")
    pipeline.connector.start(**ENVIRONMENT).ready()
    with Counting(session, TABLE, KEYS):
        eventually(lambda: len(spark.executors()) == 2, "two executors")
        time.sleep(3)
    pipeline.converges(TABLE)
    in_order(pipeline)
    for pid in spark.executors():
        seen = [processes.contents(path, "cmdline") for path in processes.family(pid)]
        assert any(command.startswith(b"./environment/bin/python") for command in seen)
