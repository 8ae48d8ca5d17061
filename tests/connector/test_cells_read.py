"""Rows read as cells: in order, a bounded number at once, and what comes of errors."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut, ReadFailure, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown

from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.cell_reader import CellReader, ReadRow, UnreadableKey
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

TABLE = Table(
    "ks", "t", uuid.uuid1(), (Column("p", parse("int"), "partition_key", 0), Column("v", parse("int")))
)  # fmt: skip


def number(value: int) -> bytes:
    return struct.pack(">i", value)


class Rows(MemorySession):
    """Every even key has a row. `most` is how many were asked for and not taken yet."""

    def __init__(self, error_at: int = -1, error: Exception | None = None) -> None:
        super().__init__([Host(1)])
        self.waiting = self.most = 0
        self._error_at, self._error = error_at, error

    def execute_async(self, bound: Any, *_: object, **__: object) -> Any:
        (key,) = bound.values
        self.waiting += 1
        self.most = max(self.most, self.waiting)

        def result() -> Any:
            self.waiting -= 1
            at = struct.unpack(">i", key)[0]
            if self._error is not None and at == self._error_at:
                raise self._error
            now = struct.pack(">q", 1_700_000_000_000)
            return [] if at % 2 else [(key, number(at), struct.pack(">q", at + 5), None, now)]

        return SimpleNamespace(result=result, _timer="refers to it")


def reader(session: MemorySession, concurrency: int) -> CellReader:
    given = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}
    return CellReader(
        session, TABLE, ConnectorSettings.from_properties({**given, "query.concurrency": str(concurrency)}, "test")
    )


@pytest.mark.parametrize(("concurrency", "keys"), [(1, 10), (4, 10), (32, 10), (4, 0)])
def test_each_key_has_its_row_or_none(concurrency: int, keys: int) -> None:
    session = Rows()
    asked: list[tuple[Key, Scope]] = [((number(n),), Scope.ROW) for n in range(keys)]
    found = list(reader(session, concurrency).read(asked, 1))
    values = [None if one is None else [(c.column, c.value, c.write_time) for c in one.cells.cells] for one in found]
    assert values == [None if n % 2 else [("v", number(n), n + 5)] for n in range(keys)]
    assert session.most == min(concurrency, keys)
    assert session.waiting == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("no such column"), Kind.TABLE_UNSUPPORTED),
        (ConnectionShutdown("the connection is closed"), Kind.CASSANDRA_READ),
    ],
)
def test_an_error_comes_after_the_keys_before(error: Exception, kind: Kind) -> None:
    answers = reader(Rows(3, error), 2).read([((number(n),), Scope.ROW) for n in range(8)], 1)
    assert [next(answers) is None for _ in range(3)] == [False, True, False]
    with pytest.raises(HelenusError) as raised:
        next(answers)
    assert raised.value.kind is kind


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        (Unavailable("no replica", consistency=1, required_replicas=1, alive_replicas=0), True),
        (NoHostAvailable("all are down", {}), True),
        (ReadFailure("tombstones", consistency=1, required_responses=1), False),
        (ReadTimeout("too slow", consistency=1, required_responses=1), False),
        (OperationTimedOut({}), False),
    ],
)
def test_a_key_that_can_not_be_read_leaves_the_others(error: Exception, is_away: bool) -> None:
    answers = list(reader(Rows(3, error), 2).read([((number(n),), Scope.ROW) for n in range(8)], 1))
    assert isinstance(answers[3], UnreadableKey)
    assert answers[3].is_away is is_away
    assert [n for n, answer in enumerate(answers) if isinstance(answer, ReadRow)] == [0, 2, 4, 6]


def test_rows_are_taken_from_the_budget(tmp_path: Path) -> None:
    slept: list[float] = []
    clock = [100.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    budget = ReadBudget(tmp_path / "budget", 10, lambda: clock[0], sleep)
    given = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}
    cells = CellReader(Rows(), TABLE, ConnectorSettings.from_properties(given, "test"), budget)
    assert len(list(cells.read([((number(n),), Scope.ROW) for n in range(100)], 1))) == 100
    assert sum(slept) == pytest.approx((100 - 10) / 10, rel=0.05), "ten a second, after those of the first second"
    budget.close()
