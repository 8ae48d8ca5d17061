"""A machine with far more to do than it can: all queries get going, one after the other, and go on after kill -9."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Pipeline, _end_with_parent, write_properties

from helenus_stack.status import Status

# It takes half an hour where the machine is as busy without it.
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(3600)]

BUSY = 50
"""Processes that do nothing but compute: some 25 for each core of a small machine."""
STATES = ["none"] * 6 + ["keys"] * 2 + ["rows"] * 2
TABLES = {f"busy.{state}{number}": state for number, state in enumerate(STATES)}
LIMIT_S = 1500.0


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Have this many processes compute, at the priority of all others."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command, preexec_fn=_end_with_parent) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def patiently(check: Callable[[], bool], describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < deadline, describe()
        time.sleep(5)


@pytest.fixture
def pipeline(status: Status, session: Any, tmp_path: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE busy WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
    made = Pipeline(status.only("kafka"), tmp_path)
    with Path(made.agent.arguments[1]).open("a") as file:
        file.write("cells.include.list=busy\\\\.rows.\n")
    made.connect(*TABLES)
    for table, state in TABLES.items():
        own = {"query.group": table.replace(".", "-"), "state": state}
        write_properties(tmp_path / f"{table}.properties", {**made.connector_properties(table), **own})
    try:
        made.agent.start().ready()
        yield made
    finally:
        made.stop()


def test_every_query_gets_going_and_goes_on_after_kill_9(pipeline: Pipeline, session: Any) -> None:
    def write(number: int) -> None:
        for table in TABLES:
            for c in range(3):
                session.execute(f"INSERT INTO {table} (k, c, v) VALUES (%s, %s, %s)", (number, c, f"{number}"))
            session.execute(f"DELETE FROM {table} WHERE k = %s AND c = 0", (number,))

    def all_agree() -> None:
        def differs() -> list[str]:
            return [table for table in TABLES if pipeline.differences(table)]

        patiently(lambda: not differs(), lambda: f"{differs()} converge\n{pipeline.connector.tail(80)}")

    def is_running() -> bool:
        running = pipeline.connector.total("helenus_connector_task_state", state="RUNNING")
        return running == len(TABLES)

    write(1)
    with busy(BUSY):
        pipeline.connector.start()
        all_agree()
        patiently(is_running, lambda: pipeline.connector.tail(80))
        write(2)
        pipeline.connector.kill()
        write(3)
        pipeline.connector.start()
        all_agree()
    log_text = pipeline.connector.log.read_text(errors="replace")
    assert "failed to connect back" not in log_text
