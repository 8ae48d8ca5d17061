"""The definition that rows are read by, while some nodes do not know of an ALTER yet."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut

from helenus_connector.cassandra_rows import table_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.testing.cassandra import MemorySession
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind

SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}, "test"
)


class Node:
    """A node with one version of the schema, `altered` being when the table and when a type was."""

    def __init__(self, version: int, columns: str, altered: tuple[int, int] = (0, 0)) -> None:
        self.is_up = True
        self.hangs = False
        self.asked = 0
        self.now(version, columns, altered)

    def now(self, version: int, columns: str, altered: tuple[int, int] = (0, 0)) -> None:
        self.version, self.altered = version, altered
        made = (Column(name, parse("int")) for name in columns)
        self.table = Table("ks", "t", uuid.UUID(int=1), (Column("k", parse("int"), "partition_key", 0), *made))

    def answer(self, cql: str) -> Any:
        self.asked += 1
        if self.hangs:
            raise OperationTimedOut
        if "system.local" in cql:
            row = SimpleNamespace(schema_version=self.version)
        else:
            row = SimpleNamespace(at=self.altered["types" in cql])
        if "types" in cql:
            return [row]
        return SimpleNamespace(one=lambda: row, response_future=SimpleNamespace(coordinator_host=self))


class Nodes(MemorySession):
    """Asks `first` where no other node is named."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__([*nodes])
        self.first = nodes[0]

    def execute(self, cql: Any, args: object = None, host: Node | None = None) -> Any:
        return (host or self.first).answer(getattr(cql, "query_string", cql))

    def execute_async(self, cql: Any, timeout: float = 10, host: Node | None = None) -> Any:
        return SimpleNamespace(result=lambda: self.execute(cql, host=host))


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(node: Any, keyspace: str, name: str) -> dict[object, Table]:
        table = node.execute("system.local").response_future.coordinator_host.table
        return {table.id: table} if table else {}

    monkeypatch.setattr(table_definition, "read_tables", read)


def read(session: Nodes, known_definition: object = None) -> tuple[object, str] | None:
    definition = table_definition.read_definition(session, SETTINGS, known_definition)
    return definition and (definition[0], "".join(c.name for c in definition[1].values))


def test_an_unchanged_table_takes_one_query() -> None:
    nodes = Node(1, "v"), Node(1, "v")
    assert read(Nodes(*nodes)) == (1, "v")
    before = [node.asked for node in nodes]
    assert read(Nodes(*nodes), 1) is None
    assert [node.asked for node in nodes] == [before[0] + 1, before[1]]


def test_a_node_that_lags_does_not_take_a_column_back() -> None:
    """As one that was paused over an ALTER, or cut off: rows that are read without it would be proven."""
    new, lags = Node(2, "vx", (20, 5)), Node(1, "v", (10, 5))
    session = Nodes(new, lags, Node(2, "vx", (20, 5)))
    assert read(session) == (2, "vx")
    session.first = lags
    assert read(session, 2) == (2, "vx")
    assert read(session) == (2, "vx"), "nor where it is the first to be asked"
    lags.now(2, "vx", (20, 5))
    assert read(session, 2) is None


def test_a_guardrail_that_is_set_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes refuse its pages: the next attempt asks for smaller ones."""
    session = Nodes(Node(1, "v"))
    session.default_fetch_size = 5000

    def answer(cql: str) -> Any:
        if session.default_fetch_size > 100:
            raise InvalidRequest("Guardrail page_size violated: Query for table system.local with page size 5000")
        return Node(1, "v").answer(cql)

    session.first.answer = answer  # type: ignore[method-assign]
    with pytest.raises(HelenusError, match="Guardrail page_size") as error:
        read(session)
    assert error.value.kind is Kind.CASSANDRA_READ
    assert read(session) == (1, "v")
    assert 50 < session.default_fetch_size <= 100


def test_a_type_that_was_altered() -> None:
    assert read(Nodes(Node(1, "v", (10, 5)), Node(2, "x", (10, 6)))) == (2, "x")


def test_a_table_that_only_one_node_has_yet() -> None:
    lags = Node(1, "", (0, 5))
    lags.table = None  # type: ignore[assignment]
    assert read(Nodes(lags, Node(2, "v", (20, 5)))) == (2, "v")
    with pytest.raises(HelenusError) as error:
        read(Nodes(lags))
    assert error.value.kind is Kind.TABLE_MISSING


def test_a_table_recreated_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read is several queries: the new id comes with the columns of before, and a type may come too late."""
    old, new = (Node(1, columns).table for columns in "vw")
    new = replace(new, id=uuid.UUID(int=2))
    torn = replace(new, columns=old.columns)
    answers: list[Table | None] = [torn, None, new, new]

    def read_torn(session: Any, keyspace: str, name: str) -> dict[object, Table]:
        table = answers.pop(0)
        if table is None:
            raise ValueError("unknown CQL type 'place'")
        return {table.id: table}

    monkeypatch.setattr(table_definition, "read_tables", read_torn)
    assert table_definition.read_definition(Nodes(Node(1, "")), SETTINGS) == (1, new)
    for many, kind in ([None] * 2, Kind.TABLE_UNSUPPORTED), ([old, new] * 5, Kind.CASSANDRA_READ):
        answers[:] = many
        with pytest.raises(HelenusError) as error:
            table_definition.read_definition(Nodes(Node(1, "")), SETTINGS)
        assert error.value.kind is kind
        assert not answers


def test_nodes_that_agree_are_followed_whatever_they_had() -> None:
    """Should an ALTER be lost with the nodes that knew of it, nothing waits for it."""
    assert read(Nodes(Node(1, "v", (10, 5)), Node(1, "v", (10, 5))), 2) == (1, "v")


def test_unavailable_and_hanging_nodes_are_not_waited_for() -> None:
    down, hangs = Node(3, "y", (30, 0)), Node(4, "z", (40, 0))
    down.is_up, hangs.hangs = False, True
    session = Nodes(Node(1, "v", (10, 0)), down, hangs)
    assert read(session) == (1, "v")
    assert down.asked == 0
    session.first = hangs
    with pytest.raises(HelenusError) as error:
        read(session)
    assert error.value.kind is Kind.CASSANDRA_READ
