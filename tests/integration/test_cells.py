"""Events with cells, folded by Cassandra's rules, give the rows that SELECT with WRITETIME and TTL gives."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.oracle.fold import Folded, select
from agent.oracle.reader import record_of
from cassandra.query import tuple_factory
from connector.test_state_index import DictStore
from integration.pipeline import Pipeline, write_properties
from patience import eventually

from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler
from helenus_connector.interfaces.event import Event
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.cql.types import quote
from helenus_schemas.event.cells import decode_cells
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
STATEMENTS = 400
PARTITIONS, ROWS = 4, 5
TTL = 100_000


def statement(chance: random.Random, write_time: int) -> str:
    """A statement of a kind at random, with this write time."""
    k, c, n = chance.randrange(PARTITIONS), chance.randrange(ROWS), chance.randrange(9)
    using = f"USING TIMESTAMP {write_time}" + (f" AND TTL {TTL + n}" if chance.random() < 0.3 else "")
    gone, row = f"USING TIMESTAMP {write_time}", f"WHERE k = {k} AND c = {c}"
    low, high = sorted((c, chance.randrange(ROWS)))
    return chance.choice(
        [
            f"INSERT INTO cells.t (k, c, v, w) VALUES ({k}, {c}, {n}, 'w{n}') {using}",
            f"INSERT INTO cells.t (k, c) VALUES ({k}, {c}) USING TIMESTAMP {write_time}",
            f"INSERT INTO cells.t (k, c, m, s, u) "
            f"VALUES ({k}, {c}, {{{n}: 'a', 7: 'b'}}, {{{n}, 3}}, {{x: {n}}}) {using}",
            f"INSERT INTO cells.t (k, st) VALUES ({k}, 's{n}') {using}",
            f"UPDATE cells.t {using} SET v = {n}, w = null {row}",
            f"UPDATE cells.t {using} SET m[{n}] = 'c', s = s + {{{n}}}, u.y = 'y{n}' {row}",
            f'UPDATE cells.t {using} SET l = l + [{n}, {n + 1}], "Q u" = [{n}] {row}',
            f"UPDATE cells.t {using} SET st = 's{n}', z = '' WHERE k = {k}",
            f"DELETE m[{n}], v, u.x FROM cells.t {gone} {row}",
            f"DELETE s, l FROM cells.t {gone} {row}",
            f"DELETE st FROM cells.t {gone} WHERE k = {k}",
            f"DELETE FROM cells.t {gone} {row}",
            f"DELETE FROM cells.t {gone} WHERE k = {k} AND c >= {low} AND c < {high}",
            f"DELETE FROM cells.t {gone} WHERE k = {k} AND c > {c}",
            *([f"DELETE FROM cells.t {gone} WHERE k = {k}"] if chance.random() < 0.2 else []),
            f"BEGIN UNLOGGED BATCH {gone} UPDATE cells.t SET w = 'b{n}' {row}; INSERT INTO cells.t (k, c) VALUES "
            f"({k}, {(c + 1) % ROWS}); UPDATE cells.t SET z = 'z' WHERE k = {k}; APPLY BATCH",
        ]
    )


@pytest.fixture
def pipeline(status: Status, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(status, tmp_path)
    more = {"cells.include.list": r"cells\.t", "table.include.list": r"cells\..*"}
    write_properties(tmp_path / "agent.properties", {**pipeline.agent_properties(pipeline.agent.port), **more})
    yield pipeline
    pipeline.stop()


def test_folded_cells_are_the_rows_that_select_gives(pipeline: Pipeline) -> None:
    chance, session = random.Random(SEED), pipeline._named
    session.execute("CREATE KEYSPACE cells WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TYPE cells.pair (x int, y text)")
    session.execute(
        "CREATE TABLE cells.t (k int, c int, st text static, z text static, v int, w text, m map<int, text>, "
        's set<int>, l list<int>, u pair, "Q u" frozen<list<int>>, PRIMARY KEY (k, c)) WITH cdc = true'
    )
    session.execute("CREATE TABLE cells.light (k int PRIMARY KEY, v int) WITH cdc = true")
    pipeline.agent.start().ready()
    now = time.time_ns() // 1000 - 60_000_000
    times = chance.sample(range(now, now + 50_000_000), STATEMENTS)
    for write_time in times[: STATEMENTS // 2]:
        session.execute(statement(chance, write_time))
    session.execute("INSERT INTO cells.light (k, v) VALUES (0, 0)")
    eventually(lambda: any(pipeline.reader.messages("events-cells.light")), pipeline.agent.tail)
    session.execute("ALTER TABLE cells.t ADD later int")
    for write_time in times[STATEMENTS // 2 :]:
        session.execute(statement(chance, write_time))
    session.execute("UPDATE cells.t SET later = 5, m = {1: 'only'} WHERE k = 0 AND c = 0")
    eventually(lambda: "later" in last(pipeline, "events-cells.t"), pipeline.agent.tail)
    light = [decode(message.value() or b"") for message in pipeline.reader.messages("events-cells.light")]
    assert [change.cells for change in light] == [None]

    table: Table = next(t for t in read_tables(session, "cells").values() if t.name == "t")
    codec, records = KeyCodec(table), []
    schemas, ttls = set(), set()
    for message in pipeline.reader.messages("events-cells.t"):
        change = decode(message.value() or b"")
        assert change.cells is not None
        cells = decode_cells(change.cells, change.scope)
        schemas.add(cells.schema.hex())
        ttls |= {cell.ttl for cell in cells.cells if cell.value is not None and cell.ttl is not None}
        if cells.deletion is not None:
            assert abs(cells.deletion.deleted_at - time.time()) < 600
        key = message.key() or b""
        records.append(record_of(table.id, codec, codec.decode(key)[0] or b"", key, change))
    assert len(schemas) == 2, "before and after the ALTER"
    assert table.schema_id in schemas
    assert ttls <= set(range(TTL, TTL + 9))
    assert Folded(table, records).compare(select(session, table)), f"seed {SEED}"
    events = [Event("t", 0, n, 0, m.key(), m.value()) for n, m in enumerate(pipeline.reader.messages("events-cells.t"))]
    chance.shuffle(events)
    assert merged(table, events, chance) == whole(session, table), f"seed {SEED}"


def merged(table: Table, events: list[Event], chance: random.Random) -> dict[Any, Any]:
    """The rows and static columns that are the last records of `state=rows`, of events in any order and with copies."""
    codec, store, now = KeyCodec(table), DictStore(), time.time()
    rows: dict[Any, Any] = {}
    while events:
        batch, events = events[:37], events[37:]
        merger = TopicPartitionMerger(table, codec, store, 0)
        for m in merger.take([*batch, *chance.sample(batch, len(batch) // 2)], now):
            key = codec.decode(m.key)
            if m.scope in (Scope.ROW, Scope.STATIC):
                columns = table.statics if m.scope is Scope.STATIC else table.regulars
                before = None if m.before is None else {c.name: m.before[c.name] for c in columns}
                assert rows.pop(key, None) == before
                if m.after is not None:
                    rows[key] = {c.name: m.after[c.name] for c in columns}
    return rows


def whole(session: Any, table: Table) -> dict[Any, Any]:
    """The same by SELECT, in CQL bytes."""
    handler, factory = session.client_protocol_handler, session.row_factory
    session.client_protocol_handler, session.row_factory = RawProtocolHandler, tuple_factory
    names = [c.name for c in (*table.primary_key, *table.values)]
    try:
        rows = list(session.execute(f"SELECT {', '.join(map(quote, names))} FROM cells.t"))
    finally:
        session.client_protocol_handler, session.row_factory = handler, factory
    rows_by_key: dict[Any, Any] = {}
    for row in rows:
        values = dict(zip(names, row, strict=True))
        if row[1] is not None:
            rows_by_key[row[:2]] = {c.name: values[c.name] for c in table.regulars}
        statics = {c.name: values[c.name] for c in table.statics}
        if any(value is not None for value in statics.values()):
            rows_by_key[row[0], None] = statics
    return rows_by_key


def last(pipeline: Pipeline, topic: str) -> str:
    changes = [decode(message.value() or b"") for message in pipeline.reader.messages(topic)]
    return " ".join(repr(decode_cells(c.cells, c.scope).columns) for c in changes if c.cells and c.scope is Scope.ROW)
