"""What a Python worker of Spark keeps between tasks, and when it is closed and made again: no Spark, no servers."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.query import worker_process
from helenus_connector.query.worker_process import find, forget, noted_read, reuse, session_for
from helenus_connector.state.rows import _publish_task
from helenus_schemas.errors import HelenusError, Kind


def settings(port: str = "9042") -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "cassandra.port": port}
    return ConnectorSettings.from_properties(properties, "n")


class Process:
    """A process that has kept nothing yet. `closed` names what it has closed, in order."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.connected = 0

    def connect(self, *_: object, **__: object) -> Any:
        self.connected += 1
        name = f"session {self.connected}"
        return SimpleNamespace(cluster=SimpleNamespace(shutdown=lambda: self.closed.append(name)))

    def make(self, name: str) -> Any:
        return SimpleNamespace(name=name, close=lambda: self.closed.append(name))


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process()
    for table in ("_sessions", "_failing_since", "_reused"):
        monkeypatch.setattr(worker_process, table, {})
    monkeypatch.setattr(worker_process, "connect", process.connect)
    return process


def test_another_version_closes_the_one_before(process: Process) -> None:
    first = reuse(("stage", "t"), 1, lambda: process.make("first"))
    assert reuse(("stage", "t"), 1, lambda: process.make("again")) is first
    assert (find(("stage", "t")), process.closed) == (first, [])
    assert reuse(("stage", "t"), 2, lambda: process.make("second")).name == "second"
    assert process.closed == ["first"]


def test_what_cannot_be_made_is_not_closed_twice(process: Process) -> None:
    def fail() -> object:
        raise OSError("no room")

    reuse(("stage", "t"), 1, lambda: process.make("first"))
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            reuse(("stage", "t"), 2, fail)
    assert (find(("stage", "t")), process.closed) == (None, ["first"])


def test_a_forgotten_session_takes_with_it_what_reads_by_it(process: Process) -> None:
    mine, other = settings(), settings("9999")
    former = session_for(mine)
    session_for(other)
    reuse(("stage", "t"), 1, lambda: process.make("stage"), mine)
    reuse(("key reader", "t"), 1, object, mine)
    reuse(("stage", "u"), 1, lambda: process.make("of another cluster"), other)
    reuse(("data log", "d"), 1, lambda: process.make("of no cluster"))
    forget(mine)
    assert process.closed == ["stage", "session 1"]
    assert [
        name for name in (("stage", "t"), ("key reader", "t"), ("stage", "u"), ("data log", "d")) if find(name)
    ] == [
        ("stage", "u"),
        ("data log", "d"),
    ]
    assert session_for(mine) is not former
    assert (process.connected, session_for(mine)) == (3, session_for(mine))
    forget(mine)
    forget(mine)
    assert process.closed == ["stage", "session 1", "session 3"]


def test_a_session_is_forgotten_with_what_cannot_be_closed(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """All else is closed, and the error of the read is reported, not that of closing."""
    monkeypatch.setattr(worker_process, "_RECONNECT_AFTER_S", 0.0)

    def fail() -> None:
        raise OSError("no space left")

    mine = settings()
    session_for(mine)
    reuse(("stage", "t"), 1, lambda: process.make("first"), mine)
    reuse(("stage", "u"), 1, lambda: SimpleNamespace(close=fail), mine)
    reuse(("stage", "v"), 1, lambda: process.make("last"), mine)
    with pytest.raises(HelenusError, match="no host"), noted_read(mine):
        raise HelenusError(Kind.CASSANDRA_READ, "no host is there")
    assert process.closed == ["first", "last", "session 1"]
    assert [table for table in "tuv" if find(("stage", table))] == []
    session_for(mine)
    assert process.connected == 2


def test_threads_that_ask_at_once_share_one(process: Process) -> None:
    made: list[int] = []
    start = threading.Barrier(4)

    def ask() -> None:
        start.wait()
        reuse(("stage", "t"), 1, lambda: made.append(session_for(settings()) is not None))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made, process.connected) == ([True], 1)


@pytest.mark.parametrize("is_session", [True, False])
def test_what_takes_long_to_make_keeps_only_those_who_ask_for_it_waiting(
    process: Process, monkeypatch: pytest.MonkeyPatch, is_session: bool
) -> None:
    """Such as a session to a server that does not answer, or a stage that opens large files."""
    begun, may_end, values = threading.Event(), threading.Event(), []

    def make_slowly(*_: object, **__: object) -> Any:
        begun.set()
        assert may_end.wait(60)
        return process.make("slow")

    def ask() -> None:
        values.append(session_for(settings()) if is_session else reuse(("stage", "slow"), 1, make_slowly))

    monkeypatch.setattr(worker_process, "connect", make_slowly)
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert begun.wait(60)
        others: list[Any] = []
        other = threading.Thread(target=lambda: others.append(reuse(("stage", "quick"), 1, object)), daemon=True)
        other.start()
        other.join(30)
        assert others, "it waits for another object"
        assert not values
    finally:
        may_end.set()
    for thread in threads:
        thread.join(60)
    assert [value.name for value in values] == ["slow", "slow"]
    assert values[0] is values[1]
    assert not worker_process._make_locks


def test_what_was_made_while_its_session_was_forgotten_is_made_again(process: Process) -> None:
    mine, names = settings(), ["first", "second"]

    def make() -> Any:
        session_for(mine)
        name = names.pop(0)
        if name == "first":
            other = threading.Thread(target=forget, args=(mine,))
            other.start()
            other.join(60)
        return process.make(name)

    assert reuse(("stage", "t"), 1, make, mine).name == "second"
    assert (process.connected, process.closed) == (2, ["session 1", "first"])


def test_a_session_that_reads_no_schema_any_more_is_made_again(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `state=rows`, whose tasks keep their session as long as others do."""
    seconds, outcomes = 0.0, {0: True, 10: False, 20: True, 30: False, 59: False, 61: False, 62: True}
    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: seconds))

    def read_definition(*_: object) -> tuple[int, str]:
        if not outcomes[int(seconds)]:
            raise HelenusError(Kind.CASSANDRA_READ, "no host is there")
        return 1, "the table"

    monkeypatch.setattr(_publish_task, "read_definition", read_definition)
    table = _publish_task.CurrentTable(settings())
    connected = []
    for seconds, succeeds in outcomes.items():  # noqa: B007
        with nullcontext() if succeeds else pytest.raises(HelenusError, match="no host"):
            assert table() == "the table"
        connected.append(process.connected)
    assert connected == [1, 1, 1, 1, 1, 1, 2]
    assert process.closed == ["session 1"]


def test_a_definition_is_asked_for_ahead(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that has a session, once for the next read alone."""
    requests: list[object] = []
    read_with: list[tuple[object, object]] = []

    def read_definition(_: object, __: object, known_version: object, request: object) -> tuple[int, str]:
        read_with.append((known_version, request))
        return 1, "the table"

    def request_version(session: object) -> int:
        requests.append(session)
        return len(requests)

    monkeypatch.setattr(_publish_task, "read_definition", read_definition)
    monkeypatch.setattr(_publish_task, "request_version", request_version)
    table = _publish_task.CurrentTable(settings())
    table.request()
    assert (requests, process.connected) == ([], 0)  # a process that may have nothing to do does not connect
    table()
    table.request()
    table()
    table(True)
    assert read_with == [(None, None), (1, 1), (None, None)]
    assert len(requests) == process.connected == 1
