"""Events with cells, folded by Cassandra's rules, give the rows that SELECT with WRITETIME and TTL gives."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Pipeline, write_properties
from patience import eventually

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.event.cells import Cell, Cells, decode_cells
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import decode
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
STATEMENTS = 400
PARTITIONS, ROWS = 4, 5
TTL = 100_000
Place = tuple[bytes, bytes | None]


@dataclass
class Row:
    """A row, or a partition's static one, as far as its cells are known."""

    live: int = -(1 << 63)
    deleted: int = -(1 << 63)
    columns: dict[str, int] = field(default_factory=dict)
    cells: dict[tuple[str, bytes | None], Cell] = field(default_factory=dict)


class Folded:
    """All rows that events speak of. No two statements have the same write time, so the newest wins."""

    def __init__(self) -> None:
        self.rows: dict[Place, Row] = {}
        self.partitions: dict[bytes, int] = {}
        self.ranges: dict[bytes, list[tuple[int, int, int]]] = {}

    def add(self, key: tuple[bytes | None, ...], change: Change, cells: Cells) -> None:
        partition = key[0]
        assert partition is not None
        if change.scope in (Scope.PARTITION, Scope.RANGE):
            assert cells.deletion is not None
            assert abs(cells.deletion.deleted_at - time.time()) < 600
            at = cells.deletion.write_time
            if change.scope is Scope.PARTITION:
                self.partitions[partition] = max(self.partitions.get(partition, at), at)
                return
            first = -1 if change.start is None else number(change.start.values[0]) + (not change.start.inclusive)
            last = ROWS if change.end is None else number(change.end.values[0]) - (not change.end.inclusive)
            self.ranges.setdefault(partition, []).append((first, last, at))
            return
        row = self.rows.setdefault((partition, key[1] if change.scope is Scope.ROW else None), Row())
        if cells.liveness:
            row.live = max(row.live, cells.liveness.write_time)
        row.deleted = max([row.deleted, *(d.write_time for d in [cells.deletion] if d)])
        for name, deletion in cells.deletions.items():
            row.columns[name] = max(row.columns.get(name, deletion.write_time), deletion.write_time)
        for cell in cells.cells:
            known = row.cells.get((cell.column, cell.path))
            if known is None or cell.write_time > known.write_time:
                row.cells[cell.column, cell.path] = cell

    def alive(self, place: Place) -> tuple[bool, dict[tuple[str, bytes | None], Cell]]:
        """Whether the row itself lives, and its live cells."""
        partition, clustering = place
        row = self.rows.get(place, Row())
        gone = max(row.deleted, self.partitions.get(partition, row.deleted))
        if clustering is not None:
            of_ranges = self.ranges.get(partition, ())
            gone = max([gone, *(at for first, last, at in of_ranges if first <= number(clustering) <= last)])
        cells = {
            name: cell
            for name, cell in row.cells.items()
            if cell.value is not None and cell.write_time > max(gone, row.columns.get(name[0], gone))
        }
        return row.live > gone or bool(cells), cells


def number(value: bytes) -> int:
    return int(struct.unpack(">i", value)[0])


def statement(chance: random.Random, at: int) -> str:
    """A statement of a kind at random, with write time `at`."""
    k, c, n = chance.randrange(PARTITIONS), chance.randrange(ROWS), chance.randrange(9)
    using = f"USING TIMESTAMP {at}" + (f" AND TTL {TTL + n}" if chance.random() < 0.3 else "")
    gone, row = f"USING TIMESTAMP {at}", f"WHERE k = {k} AND c = {c}"
    low, high = sorted((c, chance.randrange(ROWS)))
    return chance.choice(
        [
            f"INSERT INTO cells.t (k, c, v, w) VALUES ({k}, {c}, {n}, 'w{n}') {using}",
            f"INSERT INTO cells.t (k, c) VALUES ({k}, {c}) USING TIMESTAMP {at}",
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


COLUMNS = ("v", "w", "q", "st", "z")
"""Columns of one cell; `q` stands for a name that has to be quoted."""


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
    for at in times[: STATEMENTS // 2]:
        session.execute(statement(chance, at))
    session.execute("INSERT INTO cells.light (k, v) VALUES (0, 0)")
    eventually(lambda: any(pipeline.reader.messages("events-cells.light")), pipeline.agent.tail)
    session.execute("ALTER TABLE cells.t ADD later int")
    for at in times[STATEMENTS // 2 :]:
        session.execute(statement(chance, at))
    session.execute("UPDATE cells.t SET later = 5, m = {1: 'only'} WHERE k = 0 AND c = 0")
    eventually(lambda: "later" in last(pipeline, "events-cells.t"), pipeline.agent.tail)
    light = [decode(message.value() or b"") for message in pipeline.reader.messages("events-cells.light")]
    assert [change.cells for change in light] == [None]

    table: Table = next(t for t in read_tables(session, "cells").values() if t.name == "t")
    codec, folded = KeyCodec(table), Folded()
    schemas = set()
    for message in pipeline.reader.messages("events-cells.t"):
        change = decode(message.value() or b"")
        assert change.cells is not None
        cells = decode_cells(change.cells, change.scope)
        assert cells.table == table.id.bytes
        schemas.add(cells.schema.hex())
        folded.add(codec.decode(message.key() or b""), change, cells)
    assert len(schemas) == 2, "before and after the ALTER"
    assert table.schema_id in schemas
    seen = 0
    for k in range(PARTITIONS):
        seen += compare(session, folded, k)
    assert seen, f"seed {SEED}"


def last(pipeline: Pipeline, topic: str) -> str:
    found = [decode(message.value() or b"") for message in pipeline.reader.messages(topic)]
    return " ".join(repr(decode_cells(c.cells, c.scope).columns) for c in found if c.cells and c.scope is Scope.ROW)


def compare(session: Any, folded: Folded, k: int) -> int:
    """One partition, row for row and cell for cell; returns how many rows it has."""
    where = f"seed {SEED}, partition {k}"
    partition = struct.pack(">i", k)
    timed = ", ".join(
        f"WRITETIME({name}) AS {short}_at, TTL({name}) AS {short}_ttl"
        for short, name in zip(COLUMNS, ("v", "w", '"Q u"', "st", "z"), strict=True)
    )
    query = f'SELECT c, v, w, m, s, l, u, "Q u" AS q, st, z, later, {timed} FROM cells.t WHERE k = {k}'
    asked_at, rows = time.time(), {row.c: row for row in session.execute(query)}
    _, statics = folded.alive((partition, None))
    alive = [c for c in range(ROWS) if folded.alive((partition, struct.pack(">i", c)))[0]]
    assert sorted(c for c in rows if c is not None) == alive, where
    assert (None in rows) == (not alive and bool(statics)), where
    for c, row in rows.items():
        of_row = {} if c is None else folded.alive((partition, struct.pack(">i", c)))[1]
        for short in COLUMNS:
            name = "Q u" if short == "q" else short
            cell = (statics if short in ("st", "z") else of_row).get((name, None))
            assert getattr(row, f"{short}_at") == (cell.write_time if cell else None), f"{where}, row {c}, {name}"
            ttl = getattr(row, f"{short}_ttl")
            assert (ttl is None) == (cell is None or cell.ttl is None), f"{where}, row {c}, {name}"
            if cell and ttl is not None:
                assert cell.expires is not None
                assert cell.ttl in range(TTL, TTL + 9)
                assert abs(cell.expires - asked_at - ttl) < 10
        texts = {"w": row.w, "st": row.st, "z": row.z}
        for name, value in texts.items():
            cell = (statics if name in ("st", "z") else of_row).get((name, None))
            assert value == (cell and (cell.value or b"").decode()), f"{where}, row {c}, {name}"
        for name, value in {"v": row.v, "later": row.later}.items():
            cell = of_row.get((name, None))
            assert value == (cell and number(cell.value or b"")), f"{where}, row {c}, {name}"
        many: dict[str, dict[bytes, bytes]] = {name: {} for name in "mslu"}
        for (name, path), cell in of_row.items():
            if path is not None:
                many[name][path] = cell.value or b""
        assert dict(row.m or {}) == {number(path): value.decode() for path, value in many["m"].items()}, where
        assert set(row.s or ()) == {number(path) for path in many["s"]}, where
        assert sorted(row.l or []) == sorted(map(number, many["l"].values())), where
        assert (row.u and row.u.x) == (many["u"].get(b"\0\0") and number(many["u"][b"\0\0"])), where
        assert (row.u and row.u.y) == (many["u"].get(b"\0\1") and many["u"][b"\0\1"].decode()), where
    return len(rows)
