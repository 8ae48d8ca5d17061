"""Queries start in turns, also after failures."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, PropertyMock

import pytest

from helenus_connector.query import _start_turn as start_turn
from helenus_connector.query._start_turn import start_in_turn

LIMIT_S = 60


@dataclass
class Starts:
    """Starts that begin when the test says so."""

    under_way: list[int] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    ended: dict[int, Any] = field(default_factory=dict)

    def start(self, number: int) -> threading.Thread:
        def begin() -> Any:
            self.under_way.append(number)
            if number < 0:
                raise ConnectionError("refused")
            return SimpleNamespace(isActive=True, number=number)

        def run() -> None:
            try:
                self.ended[number] = start_in_turn(begin, lambda: number in self.begun, lambda: number in self.stopped)
            except ConnectionError as error:
                self.ended[number] = error

        before = len(start_turn._turns) + len(self.ended)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        wait(lambda: len(start_turn._turns) + len(self.ended) > before or number in self.ended)
        return thread


def wait(check: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    monkeypatch.setattr(start_turn, "_POLL_S", 0.005)
    monkeypatch.setattr(start_turn, "_AT_ONCE", 2)
    monkeypatch.setattr(start_turn, "_turns", deque())
    return Starts()


def test_the_longest_waiting_starts_next(starts: Starts) -> None:
    threads = [starts.start(number) for number in range(5)]
    for number in range(5):
        start_count = min(number + 2, 5)
        wait(lambda start_count=start_count: len(starts.under_way) == start_count)
        assert starts.under_way == [*range(start_count)]
        starts.begun.add(number)
        threads[number].join(LIMIT_S)
        assert starts.ended[number].number == number
    assert not start_turn._turns


def test_one_that_fails_or_is_stopped_gives_its_turn_away(starts: Starts) -> None:
    for number in (1, 2, 3, -1, 4):
        starts.start(number)
    starts.stopped.add(3)
    wait(lambda: 3 in starts.ended)
    assert starts.ended[3] is None
    assert 3 not in starts.under_way
    starts.begun |= {1, 2}
    wait(lambda: 4 in starts.under_way and -1 in starts.ended)
    assert isinstance(starts.ended[-1], ConnectionError)
    starts.stopped.add(4)
    wait(lambda: not start_turn._turns)
    assert starts.ended[4].number == 4, "it has begun: who asked for it ends it"


def test_a_start_that_waits_for_a_server_does_not_delay_the_others(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_turn, "_LONGEST_S", 0.0)
    for number in range(5):
        starts.start(number)
    wait(lambda: len(starts.ended) == 5)
    assert starts.under_way == [*range(5)]


def test_a_query_of_which_nobody_hears_is_stopped(starts: Starts) -> None:
    """Spark starts no other stream of the same checkpoint beside it."""
    query, stopped = MagicMock(), threading.Event()
    type(query).isActive = PropertyMock(side_effect=OSError(24, "Too many open files"))
    query.stop = stopped.set
    with pytest.raises(OSError, match="Too many"):
        start_in_turn(lambda: query, lambda: False, lambda: False)
    assert stopped.is_set()
    assert not start_turn._turns
