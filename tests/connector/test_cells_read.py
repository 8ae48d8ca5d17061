"""Rows read as cells: each key's row in its place, few statements, and what comes of errors."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut, ReadFailure, ReadTimeout, Unauthorized, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown

from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.cell_reader import CellReader, ReadRow, UnreadReason
from helenus_connector.cassandra_rows.raw_rows import RowPage
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.testing.cassandra import Answer, Host, MemorySession
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

TABLE = Table(
    "ks", "t", uuid.uuid1(), (Column("p", parse("int"), "partition_key", 0), Column("v", parse("int")))
)  # fmt: skip
GIVEN = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}
NOW = struct.pack(">q", 1_700_000_000_000)


def number(value: int) -> bytes:
    return struct.pack(">i", value)


class Rows(MemorySession):
    """Every even key has a row. Reads of keys that `fails` names an error for end with it. `statements`: the keys of
    each; `most` is how many were asked for and not taken yet.
    """

    def __init__(self, fails: Callable[[Sequence[int]], Exception | None] = lambda _: None) -> None:
        super().__init__([Host(1)])
        self.fails = fails
        self.waiting = self.most = 0
        self.statements: list[list[int]] = []

    def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Answer:
        assert cql.count("?") == len(values)
        keys = [struct.unpack(">i", value[:4])[0] for value in dict.fromkeys(values)]
        self.statements.append(keys)
        if error := self.fails(keys):
            raise error
        if "DISTINCT" in cql:
            return RowPage((number(k), number(-k), struct.pack(">q", k), None, NOW) for k in keys if k % 2 == 0), None
        return RowPage((number(k), number(k), struct.pack(">q", k + 5), None, NOW) for k in keys if k % 2 == 0), None

    def execute_async(self, *args: Any, **more: Any) -> Any:
        answer = super().execute_async(*args, **more)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        wait = answer.result

        def result() -> Any:
            self.waiting -= 1
            return wait()

        answer.result = result
        return answer


def reader(session: MemorySession, table: Table = TABLE, **more: str) -> CellReader:
    properties = {name.replace("_", "."): value for name, value in more.items()}
    return CellReader(session, table, ConnectorSettings.from_properties({**GIVEN, **properties}, "test"))


def keys(count: int, scope: Scope = Scope.ROW) -> list[tuple[Key, Scope]]:
    return [((number(n),), scope) for n in range(count)]


def failing_at(failing: int, error: Exception) -> Rows:
    return Rows(lambda keys: error if failing in keys else None)


@pytest.mark.parametrize(("concurrency", "count"), [(1, 10), (4, 10), (32, 10), (4, 0)])
@pytest.mark.parametrize("group_size", [1, 100])
def test_each_key_has_its_row_or_none(concurrency: int, count: int, group_size: int) -> None:
    session = Rows()
    cells = reader(session, query_concurrency=str(concurrency), query_group_size=str(group_size))
    answers = list(cells.read(keys(count), 1))
    assert [None if n % 2 else [("v", number(n), n + 5)] for n in range(count)] == [
        None if row is None else [(c.column, c.value, c.write_time) for c in row.cells.cells]
        for row in answers
        if not isinstance(row, UnreadReason)
    ]
    assert session.most <= concurrency
    assert session.waiting == 0


def test_rows_and_static_columns_are_read_side_by_side() -> None:
    columns = (
        Column("p", parse("int"), "partition_key", 0),
        Column("s", parse("int"), "static"),
        Column("v", parse("int")),
    )
    requested = [pair for row, static in zip(keys(6), keys(6, Scope.STATIC), strict=True) for pair in (static, row)]
    values = [
        None if row is None else [(c.column, c.value) for c in row.cells.cells]
        for row in reader(Rows(), replace(TABLE, columns=columns)).read(requested, 1)
        if not isinstance(row, UnreadReason)
    ]
    expected = [([("s", number(-n))], [("v", number(n))]) if n % 2 == 0 else (None, None) for n in range(6)]
    assert values == [value for pair in expected for value in pair]


def test_small_rows_take_few_statements() -> None:
    """The first statements are of one key: rows may be large."""
    session = Rows()
    assert len(list(reader(session).read(keys(500), 1))) == 500
    assert len(session.statements) < 50
    assert sorted(key for statement in session.statements for key in statement) == list(range(500))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("Undefined column name v"), Kind.CASSANDRA_READ),
        (Unauthorized("User connector has no SELECT permission"), Kind.CASSANDRA_AUTH),
        (ConnectionShutdown("the connection is closed"), Kind.CASSANDRA_READ),
    ],
)
def test_an_error_that_no_key_is_the_cause_of(error: Exception, kind: Kind) -> None:
    """A column that is dropped meanwhile, say: then the batch is repeated with the table as it is now."""
    with pytest.raises(HelenusError) as raised:
        list(reader(Rows(lambda _: error)).read(keys(8), 1))
    assert raised.value.kind is kind


@pytest.mark.parametrize("scope", [Scope.ROW, Scope.STATIC])
@pytest.mark.parametrize("refused", [{2}, {0, 1, 2, 3, 4, 5, 6, 7}])
def test_what_is_refused_is_no_missing_row(scope: Scope, refused: set[int]) -> None:
    """A node that lags behind an ALTER refuses some statements, not others. A proof deletes what it does not find."""
    columns = (
        Column("p", parse("int"), "partition_key", 0),
        Column("s", parse("int"), "static"),
        Column("v", parse("int")),
    )
    lagging = InvalidRequest("Undefined column name s")
    session = Rows(lambda keys: lagging if refused.intersection(keys) else None)
    with pytest.raises(HelenusError, match=r"Cassandra refuses to read rows: .*Undefined column name s") as raised:
        list(reader(session, replace(TABLE, columns=columns)).read(keys(8, scope), 1))
    assert raised.value.kind is Kind.CASSANDRA_READ


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Cannot use selection function writeTime on non-frozen collection m", Kind.TABLE_UNSUPPORTED),
        ("Undefined column name v in table ks.t", Kind.CASSANDRA_READ),
    ],
)
def test_a_statement_that_is_not_prepared(message: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Cassandra 5.0 collections have no write times: that stays so. A dropped column is known with the next
    definition.
    """

    def refuse(cql: str) -> Any:
        raise InvalidRequest(message)

    session = Rows()
    monkeypatch.setattr(session, "prepare", refuse)
    table = replace(TABLE, columns=(*TABLE.columns, Column("m", parse("map<int, int>"))))
    with pytest.raises(HelenusError) as raised:
        list(reader(session, table).read(keys(2), 1))
    assert raised.value.kind is kind


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        (Unavailable("no replica", consistency=1, required_replicas=1, alive_replicas=0), True),
        (NoHostAvailable("all are down", {}), True),
        (ReadFailure("tombstones", consistency=1, required_responses=1), False),
        (ReadFailure("tombstones", consistency=1, required_responses=1, error_code_map={"a": 1, "b": 3}), False),
        (ReadFailure("not altered yet", consistency=1, required_responses=1, error_code_map={"a": 3}), True),
        (ReadTimeout("too slow", consistency=1, required_responses=1), False),
        (OperationTimedOut({}), False),
    ],
)
def test_a_key_that_can_not_be_read_leaves_the_others(error: Exception, is_away: bool) -> None:
    session = failing_at(3, error)
    answers = list(reader(session, query_group_size="1").read(keys(8), 1))
    assert isinstance(answers[3], UnreadReason)
    assert answers[3].is_away is is_away
    assert [n for n, answer in enumerate(answers) if isinstance(answer, ReadRow)] == [0, 2, 4, 6]
    assert len(session.statements) == 8, "it is not read again at once"


def test_a_replica_that_lags_behind_an_alter_is_named_as_the_cause() -> None:
    """INCOMPATIBLE_SCHEMA: no replica is down, and nothing is wrong with the key."""
    lagging = ReadFailure("not altered yet", consistency=1, required_responses=1, error_code_map={"a": 3})
    answer = list(reader(failing_at(3, lagging), query_group_size="1").read(keys(8), 1))[3]
    assert isinstance(answer, UnreadReason)
    assert "describecluster" in answer.error.advice


def test_many_keys_that_cassandra_fails_to_read_leave_the_others() -> None:
    """As of too many tombstones: however many they are, they are requested again later."""
    tombstones = ReadFailure("tombstones", consistency=1, required_responses=1)
    session = Rows(lambda keys: tombstones if any(key % 4 == 0 for key in keys) else None)
    cells = reader(session)
    cells._row_bytes = 1.0  # groups are as large as is allowed
    answers = list(cells.read(keys(200), 1))
    assert [n for n, answer in enumerate(answers) if isinstance(answer, UnreadReason)] == list(range(0, 200, 4))
    assert [n for n, answer in enumerate(answers) if isinstance(answer, ReadRow)] == list(range(2, 200, 4))


def test_rows_are_taken_from_the_budget(tmp_path: Path) -> None:
    slept: list[float] = []
    clock = [100.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    budget = ReadBudget(tmp_path / "budget", 10, lambda: clock[0], sleep)
    cells = CellReader(Rows(), TABLE, ConnectorSettings.from_properties(GIVEN, "test"), budget)
    assert len(list(cells.read(keys(100), 1))) == 100
    assert sum(slept) == pytest.approx((100 - 10) / 10, rel=0.05), "ten a second, after those of the first second"
    budget.close()
