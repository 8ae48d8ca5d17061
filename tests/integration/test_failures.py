"""Failure is part of the path: what is killed, cut off or slow loses nothing, and the counters add up after it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Pipeline
from integration.workload import Workload, create
from patience import eventually

from helenus_stack.settings import LogName
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

OUTAGE_S = 5
"""On top of what it takes until the outage is noticed, and of the server's start."""
ON_KAFKA = pytest.mark.parametrize("log", ["kafka"], indirect=True)
"""Pulsar has no registry, and Cassandra's part is the same. agent/test_pulsar_same_live.py kills the agent there."""


@pytest.fixture(scope="module")
def table(log: LogName) -> str:
    return f"failures_{log}.t"


@pytest.fixture(scope="module")
def pipeline(status: Status, log: LogName, table: str, session: Any, directory: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(status.only(log), directory / log)
    create(session, *table.split("."))
    try:
        pipeline.agent.start().ready()
        pipeline.connect(table).start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@pytest.fixture
def workload(session: Any, table: str, request: pytest.FixtureRequest) -> Workload:
    return Workload(session, table, seed=sum(request.node.name.encode()), rate=30)


@contextmanager
def away(stack: Stack, server: str) -> Iterator[None]:
    """A server stops while the workload runs, and comes back before it ends."""
    time.sleep(1)
    stack.stop(server)
    try:
        yield
    finally:
        stack.start(server)
        time.sleep(1)


@pytest.mark.long  # agent/test_live.py kills it at each point
@ON_KAFKA
def test_agent_killed_in_mid_segment(pipeline: Pipeline, workload: Workload, table: str) -> None:
    """Between flush and save, under load, with a connector behind it."""
    pipeline.agent.stop()
    pipeline.agent.start(HELENUS_FAILPOINT="agent.after-flush:5")
    with workload:
        assert pipeline.agent.dies() == -signal.SIGKILL
        time.sleep(1)
        pipeline.agent.start().ready()
        time.sleep(1)
    pipeline.converges(table)


@pytest.mark.long  # above it is killed once, and in agent/test_live.py
@ON_KAFKA
def test_agent_killed_at_any_time(pipeline: Pipeline, workload: Workload, table: str) -> None:
    with workload:
        for wait in (0.3, 0.7, 1.1):
            time.sleep(wait)
            pipeline.agent.kill()
            pipeline.agent.start().ready()
    pipeline.converges(table)


def test_driver_killed_between_flush_and_commit(pipeline: Pipeline, workload: Workload, table: str) -> None:
    pipeline.connector.stop()
    pipeline.connector.start(HELENUS_FAILPOINT="connector.before-commit:4")
    with workload:
        assert pipeline.connector.dies() == -signal.SIGKILL
        assert eventually(lambda: not spark_processes(pipeline), "Spark ends with its driver")
        pipeline.connector.start().ready()
    pipeline.converges(table)


@pytest.mark.long  # test_snapshot.py kills one, too; connector/test_convergence.py kills it here
def test_python_worker_killed_between_flush_and_commit(pipeline: Pipeline, workload: Workload, tmp_path: Path) -> None:
    kill_worker(pipeline, workload, "connector.after-flush", tmp_path / "killed")


@pytest.mark.long  # connector/test_convergence.py kills it there, too
@ON_KAFKA
def test_python_worker_killed_between_mark_and_commit(pipeline: Pipeline, workload: Workload, tmp_path: Path) -> None:
    kill_worker(pipeline, workload, "connector.after-mark", tmp_path / "killed")


def kill_worker(pipeline: Pipeline, workload: Workload, point: str, killed: Path) -> None:
    pipeline.connector.stop()
    pipeline.connector.start(HELENUS_FAILPOINT=f"{point}:3@{killed}").ready()
    with workload:
        eventually(killed.exists, "a Python worker is killed")
        time.sleep(2)
    pipeline.converges(workload.table)
    assert pipeline.connector.process is not None
    assert pipeline.connector.process.poll() is None, "the driver survives its worker"


@pytest.mark.long  # sinks/test_kafka.py and sinks/test_pulsar.py stop them under a producer
def test_brokers_stopped(pipeline: Pipeline, workload: Workload, stack: Stack, log: LogName, table: str) -> None:
    with workload, away(stack, log):
        eventually(lambda: pipeline.connector.health()[0] == 503, "the connector says so")
        time.sleep(OUTAGE_S)
        assert math.isnan(pipeline.connector.total("helenus_connector_lag_events"))
    pipeline.converges(table)


@pytest.mark.long  # connector/test_registry.py has it in memory
@ON_KAFKA
def test_registry_stopped_while_the_connector_starts(
    pipeline: Pipeline, workload: Workload, stack: Stack, table: str
) -> None:
    """What it registered before it knows: the table goes on."""
    pipeline.connector.stop()
    before = len(pipeline.records(table))
    with workload, away(stack, "registry"):
        pipeline.connector.start().ready()
        assert eventually(lambda: len(pipeline.records(table)) > before, "there are records without a registry")
    pipeline.converges(table)


@pytest.mark.long  # test_schema_topic.py, and connector/test_registry.py
@ON_KAFKA
def test_registry_stopped_while_the_table_is_altered(
    pipeline: Pipeline, workload: Workload, stack: Stack, session: Any, table: str
) -> None:
    with workload, away(stack, "registry"):
        session.execute(f"ALTER TABLE {table} ADD later text")
        session.execute(f"UPDATE {table} SET later = 'x' WHERE p = 1 AND q = 'a' AND c = 1 AND d = {ID}")
        eventually(lambda: pipeline.connector.health()[0] == 503, "the connector says so")
        assert "registry" in pipeline.connector.health()[1]
    pipeline.converges(table)
    assert any(r.value and "later" in r.value for r in pipeline.records(table))


@pytest.mark.long  # the test below kills it
@ON_KAFKA
def test_cassandra_stopped(pipeline: Pipeline, workload: Workload, stack: Stack, table: str) -> None:
    with workload, away(stack, "cassandra"):
        eventually(lambda: workload.failed, "the workload meets the outage")
        time.sleep(OUTAGE_S)
    pipeline.converges(table)


@ON_KAFKA
def test_cassandra_killed(pipeline: Pipeline, workload: Workload, stack: Stack, table: str) -> None:
    """The commit log is replayed at the start: its segments come back, and the agent goes on in them."""
    with workload:
        time.sleep(1)
        stack.kill("cassandra")
        stack.start("cassandra")
        time.sleep(1)
    pipeline.converges(table)


@pytest.mark.long  # test_many_connectors.py fails a task so
def test_an_event_that_cannot_be_decoded_stops_the_connector(pipeline: Pipeline, table: str) -> None:
    """And nothing is skipped: the next start meets it again."""
    with pipeline.log() as log:
        log.append(f"events-{table}", 0, b"key", b"no event")
    assert pipeline.connector.dies() == 1
    assert pipeline.connector.start().dies() == 1
    output = pipeline.connector.tail(1)
    assert f"topic events-{table}, partition 0, offset" in output
    assert "errors.tolerance=all" in output


def test_nothing_is_left_behind(pipeline: Pipeline) -> None:
    """Neither of a connector that stopped by itself, nor of one that was stopped."""
    assert pipeline.agent.stop() == 0
    pipeline.connector.stop()  # if an earlier test has left it running
    pipeline.connector.start()
    used = eventually(lambda: directories(pipeline), "the run has a directory")
    pipeline.connector.stop()
    assert eventually(lambda: not spark_processes(pipeline), "Spark ends with its driver")
    assert not [directory for directory in used if directory.exists()]


def directories(pipeline: Pipeline) -> list[Path]:
    """The directories of the connector's run, which it holds locks in."""
    assert pipeline.connector.process
    lock_directories = []
    for link in Path(f"/proc/{pipeline.connector.process.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            file = link.readlink()
            if file.name == "lock" and file.parent.name.startswith("helenus-run-"):
                lock_directories.append(file.parent)
    return lock_directories


ID = "50554d6e-29bb-11e5-b345-feff819cdc9f"


def spark_processes(pipeline: Pipeline) -> list[str]:
    """JVMs and Python workers of this test's connectors: they carry its log's directory in their environment."""
    output = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    ours = []
    for line in output.splitlines()[1:]:
        pid, _, command = line.strip().partition(" ")
        if "SparkSubmit" not in command and "helenus_connector.daemon" not in command:
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"HELENUS_TEST={pipeline.directory}".encode() in environment and int(pid) != os.getpid():
            ours.append(line)
    return ours
