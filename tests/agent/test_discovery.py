"""What is read of the schema in several queries, while it changes."""

from __future__ import annotations

import uuid
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
from agent.writer import table_of
from cassandra import InvalidRequest, OperationTimedOut, Unauthorized
from cassandra.cluster import NoHostAvailable

from helenus_agent.node import cassandra as module
from helenus_agent.node.cassandra import Cassandra
from helenus_agent.node.tables import Stamp
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind

TABLE = table_of("t", "pk int pk, v int")
WIDER = table_of("t", "pk int pk, v int, w int")

Version = namedtuple("Version", "schema_version truncated_at")
Altered = namedtuple("Altered", "id time")
Options = namedtuple("Options", "keyspace_name table_name id comment")
Index = namedtuple("Index", "keyspace_name table_name index_name")


class Session:
    """Answers as a node that is altered at some queries: `alter` maps how many were asked to what happens then."""

    def __init__(self) -> None:
        self.table, self.time, self.comment = TABLE, 1, ""
        self.indexes: list[Index] = []
        self.asked = 0
        self.alter: dict[int, Any] = {}
        self.odd = 0

    def execute(self, query: str) -> list[Any]:
        self.asked += 1
        self.alter.get(self.asked, lambda: None)()
        if query == module._VERSION:
            return [Version(uuid.UUID(int=5), None)]  # it comes late
        if query == module._ALTERED:
            return [Altered(self.table.id, self.time)]
        if query.endswith("system_schema.tables"):
            return [Options("ks", "t", self.table.id, self.comment)]
        return self.indexes if query.endswith("indexes") else []

    def widen(self) -> None:
        self.table, self.time = WIDER, 2


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session()

    def read_tables(_: Any) -> dict[uuid.UUID, Table]:
        session.execute("columns")
        if session.odd:
            session.odd -= 1
            raise ValueError("unknown CQL type")
        return {session.table.id: session.table}

    monkeypatch.setattr(module, "connect", lambda *_: session)
    monkeypatch.setattr(module, "read_tables", read_tables)
    return session


def cassandra() -> Cassandra:
    return Cassandra(SimpleNamespace(cassandra_contact_points=("127.0.0.1",), cassandra_port=1))  # type: ignore[arg-type]


def test_altered_between_the_queries(session: Session) -> None:
    """Whenever it happens: the columns, the options and the time are of one moment, or asked for again."""
    last = 0
    for query_number in range(1, 12):
        session.__init__()  # type: ignore[misc]
        session.alter[query_number] = session.widen
        schema = cassandra().schema()
        pair = (schema.tables[TABLE.id], schema.stamps[TABLE.id].time)
        assert pair in ((TABLE, 1), (WIDER, 2))
        last = max(last, session.asked)
    assert last > 10


def test_a_type_created_between_the_queries(session: Session) -> None:
    session.odd = 2
    assert cassandra().schema().tables == {TABLE.id: TABLE}
    session.odd = 99
    with pytest.raises(HelenusError, match="unknown CQL type"):
        cassandra().schema()


def test_alter_times_and_option_digests(session: Session) -> None:
    stamps = [cassandra().schema().stamps[TABLE.id]]
    session.comment = "x"
    stamps.append(cassandra().schema().stamps[TABLE.id])
    session.indexes = [Index("ks", "t", "i")]
    stamps.append(cassandra().schema().stamps[TABLE.id])
    session.time = 2
    stamps.append(cassandra().schema().stamps[TABLE.id])
    assert len({s.options for s in stamps}) == 3
    assert stamps[3] == Stamp(2, stamps[2].options)


def test_a_driver_that_gave_up_its_node_is_recreated(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It misses that a node is up again, if that goes fast: then it has none to ask, and tries none."""
    made: list[object] = []
    cluster = SimpleNamespace(shutdown=lambda: made.append("shut down"))
    given_up = SimpleNamespace(execute=lambda _: (_ for _ in ()).throw(NoHostAvailable("none", {})), cluster=cluster)
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(module, "connect", lambda *_: given_up)
    discovery = cassandra()

    def fails() -> bool:
        try:
            discovery._rows("columns")
        except HelenusError:
            return True
        return False

    def refuse(*_: object) -> object:
        made.append("refused")
        raise HelenusError(Kind.CASSANDRA_UNREACHABLE, "away", "fake")

    monkeypatch.setattr(module, "connect", refuse)
    assert [fails(), fails(), made] == [True, True, []]
    now += 20
    assert [fails(), fails(), made] == [True, True, ["refused"]]
    monkeypatch.setattr(module, "connect", lambda *_: session)
    now += 20
    assert [fails(), fails(), made] == [True, False, ["refused", "shut down"]]


@pytest.mark.parametrize(
    ("release", "error", "raises"),
    [
        ("5.0.5", OperationTimedOut(), True),
        ("4.0-rc1", OperationTimedOut(), True),
        ("5.0.5", Unauthorized("SELECT on system_views.settings"), False),
        ("3.11.17", InvalidRequest("Keyspace system_views does not exist"), False),
    ],
)
def test_a_missing_answer_is_not_taken_for_the_default_settings(
    session: Session, monkeypatch: pytest.MonkeyPatch, release: str, error: Exception, raises: bool
) -> None:
    """What is known of cdc_block_writes and the commit log's directory stays so until the node says otherwise."""
    local = SimpleNamespace(host_id=uuid.UUID(int=1), cluster_name="c", release_version=release, data_center="dc1")
    for name in module._ADDRESSES:
        setattr(local, name, "10.0.0.1")

    def execute(query: str) -> list[Any]:
        if query == module._NODE:
            return [local]
        raise error

    monkeypatch.setattr(session, "execute", execute)
    if raises:
        with pytest.raises(HelenusError, match="does not answer") as raised:
            cassandra().node()
        assert raised.value.kind is Kind.CASSANDRA_UNREACHABLE
    else:
        assert cassandra().node().settings == {}


def test_a_guardrail_that_is_set_while_it_runs(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node refuses its pages: the next attempt asks for smaller ones."""
    discovery, answers = cassandra(), session.execute
    monkeypatch.setattr(session, "default_fetch_size", 5000, raising=False)

    def execute(statement: Any) -> list[Any]:
        rows = getattr(statement, "fetch_size", session.default_fetch_size)  # type: ignore[attr-defined]
        if rows > 100:
            raise InvalidRequest(f"Guardrail page_size violated: page size {rows} exceeds the threshold of 100")
        return answers(getattr(statement, "query_string", statement))

    monkeypatch.setattr(session, "execute", execute)
    with pytest.raises(HelenusError, match="Cassandra wants smaller pages") as error:
        discovery.schema()
    assert (error.value.kind, "it is asked for smaller ones next" in str(error.value)) == (
        Kind.CASSANDRA_UNREACHABLE,
        True,
    )
    assert discovery.schema().tables == {TABLE.id: TABLE}
    assert 50 < session.default_fetch_size <= 100  # type: ignore[attr-defined]
