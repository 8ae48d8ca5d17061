"""A dropped table: one deletion of its rows, after what it logged and before the events of a new table of its name."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from agent.fakes import write_of
from agent.test_agent import TABLE, Bench
from agent.test_notices import emitted, notices
from agent.writer import Cell, Complex, Row, Update, mutation, table_of

from helenus_agent import agent as module
from helenus_agent import followed_tables
from helenus_agent.node.tables import Stamp
from helenus_agent.positions import Positions
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.cells import decode_cells
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode

SCHEMA = table_of("tables", "pk int pk, v int", cdc=False, keyspace="system_schema")
OTHER = table_of("other", "pk int pk, v int", keyspace="else")
ADDRESS = CqlType("udt", (parse("int"),), label="addr", fields=("no",))
AGAIN = replace(TABLE, id=uuid.uuid1())
MADE = (AGAIN.id.time - 0x01B21DD213814000) // 10


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    bench = Bench(tmp_path)
    bench.cassandra.set(TABLE, OTHER, SCHEMA)
    bench.raw.segment(10)
    yield bench
    bench.state.close()
    if bench.agent is not None:
        for segment in bench.agent._queue.segments + bench.agent._queue.finished:
            segment.close()


def drop(bench: Bench, *others: Table) -> None:
    """The schema from now on; that it was altered goes through the log."""
    bench.cassandra.set(OTHER, SCHEMA, *others)
    bench.raw.write(10, write_of(SCHEMA, 0))


def test_dropped_and_recreated(bench: Bench) -> None:
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 2))
    drop(bench, AGAIN)
    bench.raw.write(10, write_of(AGAIN, 3), write_of(TABLE, 4))
    bench.run_agent()
    # A change of the old table after those of the new one is impossible in a log; it is emitted nevertheless.
    assert emitted(bench) == [1, 2, "TABLE", 3, 4]
    assert emitted(bench, "events-else.other") == []
    (change,) = notices(bench, Scope.TABLE)
    assert (change.part, change.parts, change.write_time) == (0, 1, MADE - 1)
    for _ in range(2):
        bench.start(topic_partitions="1")
        bench.run_agent()
    assert emitted(bench) == [1, 2, "TABLE", 3, 4]
    for segment in (11, 12):
        bench.raw.segment(segment)
        bench.raw.write(segment, write_of(AGAIN, segment))
        bench.run_agent()
    for key in (5, 6):  # the log names it no more
        bench.start(topic_partitions="1")
        bench.raw.write(12, write_of(AGAIN, key))
        bench.run_agent()
    assert emitted(bench) == [1, 2, "TABLE", 3, 4, 11, 12, 5, 6]
    assert bench.saved.dropped == {}


@pytest.mark.parametrize("recreated", [True, False])
def test_a_drop_seen_long_before_its_segment_is_read(bench: Bench, recreated: bool) -> None:
    """A backlog: the schema is ahead of it. All events of the old table come first, and none of the new one."""
    bench.start(topic_partitions="1")
    bench.raw.write(10, *(write_of(TABLE, key) for key in (1, 2)))
    bench.raw.segment(11)
    bench.raw.write(11, write_of(TABLE, 3), write_of(SCHEMA, 0))
    if recreated:
        bench.raw.write(11, write_of(AGAIN, 4))
    bench.raw.segment(12)
    bench.raw.write(12, write_of(AGAIN if recreated else OTHER, 5))
    bench.cassandra.set(OTHER, SCHEMA, *([AGAIN] if recreated else []))
    bench.cassandra.is_changed = True
    bench.run_agent()
    assert emitted(bench) == ([1, 2, 3, "TABLE", 4, 5] if recreated else [1, 2, 3, "TABLE"])


def test_a_drop_follows_the_last_segment_though_writes_go_on(bench: Bench) -> None:
    agent = bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.cassandra.set(OTHER, SCHEMA)
    bench.cassandra.is_changed = True
    agent.step()
    bench.raw.segment(11)
    bench.raw.write(11, write_of(OTHER, 2))
    bench.raw.write(11, write_of(OTHER, 3))
    agent._queue.refresh()
    agent.step()
    agent._commit(1.0)
    assert emitted(bench) == [1, "TABLE"]


class BrokerAway(threading.Event):
    """A wait between two attempts, in whose seconds the schema becomes one after the other of these."""

    def __init__(self, bench: Bench, *schemas: list[Table]) -> None:
        super().__init__()
        self.bench, self.schemas = bench, list(schemas)

    def wait(self, timeout: float | None = None) -> bool:
        if self.schemas:
            self.bench.cassandra.set(OTHER, SCHEMA, *self.schemas.pop(0))
            self.bench.cassandra.is_changed = True
            return False
        return True


def test_a_table_that_is_altered_and_dropped_while_the_broker_is_away(bench: Bench) -> None:
    """With an attempt every ten seconds, the column would be one that the table never had: all of its segment's entries
    that name it would be lost, and a gap of every table.
    """
    agent = bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    wider = replace(TABLE, columns=(*TABLE.columns, Column("w", parse("int"))))
    bench.log.refuse_create = 10**6
    agent._rewind()
    agent._followed.learn_meanwhile(BrokerAway(bench, [wider], []), 600.0)
    bench.log.refuse_create = 0
    update = Update(wider, (2).to_bytes(4, "big"), [Row((), {"w": Cell(b"1234")}, time=1_700_000_000_000_000)])
    bench.raw.write(10, mutation(update))
    bench.run_agent()
    bench.raw.segment(11)
    bench.run_agent()
    assert emitted(bench) == [1, 2, "TABLE"]
    assert not bench.saved.gaps


TABLES = table_of("tables", "keyspace_name text pk, table_name text ck, id uuid", cdc=False, keyspace="system_schema")
COLUMNS = table_of(
    "columns",
    "keyspace_name text pk, table_name text ck, column_name text ck, kind text, position int, type text",
    cdc=False,
    keyspace="system_schema",
)


def altered(table: Table, name: str, cql_type: str, kind: str = "regular") -> bytes:
    """The mutation that a node logs when a table gets a column, or is created with one."""
    time, text = 1_700_000_000_000_000, {"kind": Cell(kind.encode()), "type": Cell(cql_type.encode())}
    of_table = Row((table.name.encode(),), {"id": Cell(table.id.bytes)}, time=time, deletion=(time - 1, 1_700_000_000))
    return mutation(
        Update(TABLES, table.keyspace.encode(), [of_table]),
        Update(COLUMNS, table.keyspace.encode(), [Row((table.name.encode(), name.encode()), text, time=time)]),
    )


WIDER = replace(TABLE, columns=(*TABLE.columns, Column("w", parse("int")), Column("x", parse("map<text, int>"))))


def write_of_both(key: int) -> bytes:
    """A row of `WIDER` that has both of its new columns."""
    of_map = Complex([Cell(b"1234", path=b"k")])
    row = Row((), {"w": Cell(b"1234"), "x": of_map}, time=1_700_000_000_000_000)
    return mutation(Update(WIDER, key.to_bytes(4, "big"), [row]))


@pytest.mark.parametrize("recreated", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_altered_and_dropped_while_no_agent_ran(bench: Bench, recreated: bool, killed: bool) -> None:
    """The log says which columns the table got. What the new table of its name has is not taken for the old one's."""
    bench.cassandra.set(TABLE, OTHER, TABLES, COLUMNS)
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    if killed:
        bench.cassandra.set(OTHER, TABLES, COLUMNS, *([AGAIN] if recreated else []))
    bench.raw.write(10, altered(TABLE, "w", "int"), altered(TABLE, "x", "map<text, int>"), write_of_both(2))
    bench.raw.write(10, altered(TABLE, "s", "frozen<gone>"), altered(OTHER, "y", "int"))
    bench.raw.write(10, *([altered(AGAIN, "w", "text"), write_of(AGAIN, 3)] if recreated else []))
    if killed:
        bench.start(topic_partitions="1")
    else:
        bench.cassandra.set(OTHER, TABLES, COLUMNS, *([AGAIN] if recreated else []))
    bench.run_agent()
    assert emitted(bench) == ([1, 2, "TABLE", 3] if recreated else [1, 2, "TABLE"])
    assert not bench.saved.gaps
    # What it got is saved: a later run need not read of it again.
    bench.raw.write(10, write_of_both(4))
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench)[-1] == 4
    assert not bench.saved.gaps


def test_a_type_of_now_and_one_that_a_column_has_again(bench: Bench) -> None:
    """A UDT is its keyspace's and not frozen unless the column is; a column may come again with another type."""
    bench.cassandra.set(TABLE, OTHER, TABLES, COLUMNS)
    bench.cassandra.udts_by_keyspace = {"ks": {"addr": ADDRESS}}
    bench.start(topic_partitions="1", cells_include_list=r"ks\.t")
    bench.run_agent()
    bench.cassandra.set(OTHER, TABLES, COLUMNS)
    fields = Complex([Cell(b"1234", path=b"\0\0")])
    whole = (4).to_bytes(4, "big") + b"1234"
    for cql_type, cell in (("addr", fields), ("frozen<addr>", Cell(whole)), ("int", Cell(b"1234"))):
        wider = replace(TABLE, columns=(*TABLE.columns, Column("a", parse(cql_type, {"addr": ADDRESS}))))
        row = Row((), {"a": cell}, time=1_700_000_000_000_000)
        bench.raw.write(10, altered(TABLE, "a", cql_type), mutation(Update(wider, b"\0\0\0\1", [row])))
    bench.start(topic_partitions="1", cells_include_list=r"ks\.t")
    bench.run_agent()
    records = [(key, value) for to, _, key, value, _ in bench.log.acknowledged if to == "events-ks.t"]
    changes = [decode(value or b"") for key, value in records if key is not None]
    cells = [decode_cells(change.cells or b"", change.scope) for change in changes]
    assert [str(c.columns["a"]) for c in cells] == ["addr", "frozen<addr>", "int"]
    assert [c.cells[0].value for c in cells] == [b"1234", whole, b"1234"]
    assert not bench.saved.gaps


def test_a_mutation_of_the_schema_that_can_not_be_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Malformed("no row")

    monkeypatch.setattr(followed_tables, "read_logged_columns", fail)
    bench.cassandra.set(TABLE, OTHER, TABLES, COLUMNS)
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.cassandra.set(OTHER, TABLES, COLUMNS)
    bench.raw.write(10, altered(TABLE, "w", "int"), write_of(TABLE, 1))
    with structlog.testing.capture_logs() as logs:
        bench.run_agent()
    assert emitted(bench) == [1, "TABLE"]
    assert "schema.not_read" in [log["event"] for log in logs]


@pytest.mark.parametrize("recreated", [True, False])
def test_dropped_while_no_agent_ran(bench: Bench, recreated: bool) -> None:
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 2))
    drop(bench, *([AGAIN] if recreated else []))
    if recreated:
        bench.raw.write(10, write_of(AGAIN, 3))
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == ([1, 2, "TABLE", 3] if recreated else [1, 2, "TABLE"])


def test_a_keyspace_that_is_dropped(bench: Bench) -> None:
    """Nothing else of it is followed by then. The event survives an unavailable broker, and restarts."""
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(OTHER, 1))
    bench.run_agent()
    bench.cassandra.set(TABLE, SCHEMA)
    bench.raw.write(10, write_of(SCHEMA, 0))
    for segment in (11, 12):
        bench.raw.segment(segment)
        bench.raw.write(segment, write_of(TABLE, segment))
    bench.log.refuse_flush = 100
    for _ in range(3):
        bench.start(topic_partitions="1")
        with pytest.raises(HelenusError):
            bench.run_agent()
    assert list(bench.saved.dropped) == [str(OTHER.id)]
    bench.log.refuse_flush = 0
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench, "events-else.other") == [1, "TABLE"]
    assert emitted(bench) == [11, 12]
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench, "events-else.other") == [1, "TABLE"]


def test_a_refused_drop_is_emitted_again_with_the_same_digest(bench: Bench) -> None:
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    drop(bench)
    bench.log.refuse_flush = 2
    bench.run(until=2)
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE"]


@pytest.mark.parametrize("recreated", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_a_refused_topic(bench: Bench, recreated: bool, there: bool) -> None:
    """The others go on. The table gets a gap event when its topic is allowed again."""
    bench.raw.segment(11)
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1), write_of(OTHER, 1))
    bench.run_agent()
    bench.log.closed = {"events-ks.t"}
    if not there:
        del bench.log.counts["events-ks.t"]
        assert bench.agent is not None
        bench.agent._outbox.forget_topics()
    drop(bench, *([AGAIN] if recreated else []))
    bench.raw.write(10, write_of(OTHER, 2))
    for _ in range(100):
        bench.run(seconds=0.2)
        if emitted(bench, "events-else.other") == [1, 2]:
            break
    bench.run(seconds=0.3)
    assert emitted(bench, "events-else.other") == [1, 2]
    assert emitted(bench) == [1]
    assert bench.saved.dropped.get(str(TABLE.id)) is None


@pytest.mark.parametrize("killed", [False, True])
def test_dropped_without_cdc(bench: Bench, killed: bool) -> None:
    """What it was before is on the topic still."""
    agent = bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    drop(bench, replace(TABLE, cdc=False))
    bench.run_agent()
    bench.raw.segment(11)
    bench.raw.write(11, write_of(OTHER, 1))
    bench.run_agent()
    bench.cassandra.set(OTHER, SCHEMA)
    if killed:
        agent._followed.learn()
        bench.start(topic_partitions="1")
    else:
        bench.cassandra.is_changed = True
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE"]


def test_tables_that_are_not_followed(bench: Bench) -> None:
    bench.cassandra.set(TABLE, OTHER, SCHEMA, table_of("plain", "pk int pk", cdc=False))
    bench.start(topic_partitions="1", table_exclude_list=r"ks\.t")
    bench.run_agent()
    drop(bench)
    bench.run_agent()
    assert notices(bench, Scope.TABLE) == []


def test_a_table_that_reappears_in_the_schema_was_not_dropped(bench: Bench) -> None:
    """Read half made, it has been missing."""
    agent = bench.start(topic_partitions="1")
    bench.cassandra.set(OTHER, SCHEMA)
    agent._followed.learn()
    bench.cassandra.set(TABLE, OTHER, SCHEMA)
    agent._followed.learn()
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    assert emitted(bench) == [1]
    assert bench.saved.dropped == {}


def test_a_dropped_table_without_a_saved_definition(bench: Bench) -> None:
    """tables.json was deleted: what its topic was called is not known."""
    host = "ad310466-96a7-4cb2-acf4-59535a960812"
    bench.state.save(Positions(host, dropped={str(uuid.uuid4()): 5}))
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    assert emitted(bench) == [1]
    assert bench.saved.dropped == {}


def test_the_creation_time_of_a_table_whose_id_holds_none(bench: Bench) -> None:
    recreated_table = replace(TABLE, id=uuid.uuid4())
    bench.start(topic_partitions="1")
    bench.cassandra.stamps = {recreated_table.id: Stamp(1_000, "x")}
    drop(bench, recreated_table)
    bench.run_agent()
    assert [change.write_time for change in notices(bench, Scope.TABLE)] == [999]


def test_a_table_that_is_recreated_with_an_older_id(bench: Bench) -> None:
    """`WITH ID`, as a backup's schema has it: the id does not tell when that was."""
    first, older = (uuid.UUID(fields=(second, 0, 0x1000, 0x80, 0, 1)) for second in (20, 10))
    bench.cassandra.set(replace(TABLE, id=first), OTHER, SCHEMA)
    bench.start(topic_partitions="1")
    recreated_table = replace(TABLE, id=older, added_at={"pk": 2_000, "v": 3_000})
    bench.cassandra.stamps = {older: Stamp(9_000, "x")}
    drop(bench, recreated_table)
    bench.run_agent()
    assert [change.write_time for change in notices(bench, Scope.TABLE)] == [1_999]


def test_a_column_that_is_dropped_and_added_again(bench: Bench) -> None:
    """Rows have lost their values of it, and no write in the log says so."""
    from helenus_schemas.cql.table import Column
    from helenus_schemas.cql.types import parse

    dropped = {"v": Column("v", parse("int"))}
    bench.start(topic_partitions="1")
    without = replace(TABLE, columns=tuple(c for c in TABLE.columns if c.name != "v"), dropped=dropped)
    drop(bench, without)
    bench.run_agent()
    assert emitted(bench) == []
    drop(bench, replace(TABLE, dropped=dropped))
    bench.run_agent()
    assert emitted(bench) == ["GAP"]
    bench.start(topic_partitions="1")
    bench.run_agent()
    drop(bench, table_of("t", "pk int pk, v int, w int"))
    bench.run_agent()
    assert emitted(bench) == ["GAP"]


def test_a_column_that_is_dropped_and_added_again_while_no_agent_ran(bench: Bench) -> None:
    from helenus_schemas.cql.table import Column
    from helenus_schemas.cql.types import parse

    bench.start(topic_partitions="1")
    bench.run_agent()
    drop(bench, replace(TABLE, dropped={"v": Column("v", parse("int"))}))
    for _ in range(2):
        bench.start(topic_partitions="1")
        bench.run_agent()
    assert emitted(bench) == ["GAP"]
