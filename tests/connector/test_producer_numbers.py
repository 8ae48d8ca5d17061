"""The number of a process's producer: no other process on its host has it, and one that was fenced takes another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector.query import worker_process
from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka.owners import Made, RecordsOwner

SETTINGS: Any = SimpleNamespace(name="c", events="events-ks.t")


class NumberedLog:
    def __init__(self, number: int) -> None:
        self.number = number
        self.made: list[Made] = []
        self.is_replaced = self.is_closed = False

    def own(self, made: Made) -> None:
        self.made.append(made)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NumberedLog]]:
    logs: list[NumberedLog] = []

    def make(_: object, __: object, number: int, ___: bool) -> NumberedLog:
        logs.append(NumberedLog(number))
        return logs[-1]

    monkeypatch.setattr(worker_process, "_reused", {})
    monkeypatch.setattr(worker_process, "owned_data_log", make)
    monkeypatch.setattr(worker_process, "use", lambda path: path)
    yield logs
    worker_process.drop(lambda _: True)


def plan(tmp_path: Path, run: str = "r1", producers: int = 4) -> Any:
    owner = RecordsOwner(f"helenus-default-{run}", producers, "me")
    return SimpleNamespace(exactly_once={}, directory=str(tmp_path), group="default", owner=owner, worker=None)


def in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    """The Log of a process that shares no variables with this one: only files."""
    with monkeypatch.context() as patch:
        patch.setattr(worker_process, "_reused", reused := {})
        return worker_process.data_log_for(plan(tmp_path, **more), SETTINGS), reused


def test_a_process_keeps_its_producer(tmp_path: Path, logs: list[NumberedLog]) -> None:
    first: Any = worker_process.data_log_for(plan(tmp_path), SETTINGS)
    assert worker_process.data_log_for(plan(tmp_path), SETTINGS) is first
    assert first.made == [("c", "events-ks.t")] * 2, "it is told before each table's records"
    later: Any = worker_process.data_log_for(plan(tmp_path, "r2"), SETTINGS)
    assert later is not first
    assert (first.is_closed, later.is_closed) == (True, False)


def test_processes_of_a_host_have_different_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [in_another_process(tmp_path, monkeypatch) for _ in range(4)]
    assert sorted(log.number for log, _ in others) == [0, 1, 2, 3]
    with pytest.raises(HelenusError, match="all 4 producers of this run are in use"):
        worker_process.data_log_for(plan(tmp_path), SETTINGS)
    # One that ended leaves its number to the next.
    log, reused = others[2]
    reused.popitem()[1].close()
    mine: Any = worker_process.data_log_for(plan(tmp_path), SETTINGS)
    assert mine.number == log.number


def test_a_producer_that_another_host_replaced(
    tmp_path: Path, logs: list[NumberedLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would fence each other for ever."""
    first: Any = worker_process.data_log_for(plan(tmp_path, producers=64), SETTINGS)
    first.is_replaced = True
    monkeypatch.setattr(worker_process.random, "randrange", lambda producers: producers - 1)
    second: Any = worker_process.data_log_for(plan(tmp_path, producers=64), SETTINGS)
    assert first.is_closed
    assert (first.number, second.number) == (0, 63)
    assert worker_process.data_log_for(plan(tmp_path, producers=64), SETTINGS) is second
