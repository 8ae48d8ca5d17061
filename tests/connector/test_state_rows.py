"""Rows kept as cells, against a model written straight from Cassandra's rules: in whatever order statements come, and
however often, the last records of all keys are the rows.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import twice
from agent.writer import Cell, Complex, Marker, Row, Update, table_of
from connector.celled import OTHER, events
from connector.test_state_index import DictStore
from hypothesis import given, settings
from hypothesis import strategies as st

from helenus_connector.cassandra_rows.clustering_bounds import covering
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange, PoisonEvent, ReadRequest, RowChange
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.state.rows import _partition, _row_bytes
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.rows._partition import PartitionState
from helenus_connector.state.rows._row import NO_PAGE, CellRow
from helenus_connector.state.rows._row_bytes import dump_row, load_row
from helenus_connector.state.store.packing import LAST_SECOND
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.cells import Cell as KeptCell
from helenus_schemas.event.cells import Deletion, Liveness
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.wire import encode

TABLE = table_of("t", "k int pk, c int ck, st int static, v int, w int, m map<int,int>, s set<int>")
CODEC = KeyCodec(TABLE)
NOW = 1_700_000_000
DAY_S = 86_400
NEVER = -(1 << 63)
GOLDEN_ROW = (
    "01013031323334353637383961620000000200000000000003e80300000000000000050000003c00000000000003e8000000"
    "000000000400000000000000640000000100016d0000000000000003000000000000005a0000000300000000000000000700"
    "0176000000017805000000000000000800016d00000001700000003c00000000000003e80000000179020000000000000009"
    "000177000000000000006e"
)
GOLDEN_PARTITION = (
    "0100000003000000000000008c01000000000000000500000000000000640000000200000000000000060000000000000078"
    "020100000001610102000000016200000000000000000000000700000000000000820000000000036b6579000000056f7468"
    "6572"
)
PLAIN = twice.plain(Path(_row_bytes.__file__).with_name("_row_bytes.py"))
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
SECONDS = st.integers(0, LAST_SECOND)
DELETIONS = st.builds(Deletion, TIMES, SECONDS)
_PATHS = st.none() | st.binary(max_size=70)
KEPT_CELLS = st.one_of(
    st.tuples(st.text(), TIMES, st.binary(max_size=200), _PATHS),
    st.tuples(st.text(), TIMES, st.binary(max_size=2), _PATHS, SECONDS, SECONDS),
    st.tuples(st.text(), st.sampled_from([0, 5]), st.none(), _PATHS, st.none(), st.none(), SECONDS),
).map(lambda fields: KeptCell(*fields))
LIVENESSES = st.one_of(st.tuples(TIMES), st.tuples(TIMES, SECONDS, st.integers(1, LAST_SECOND)))


def i(n: int) -> bytes:
    return n.to_bytes(4, "big", signed=True)


def merge_events(
    store: DictStore,
    batch_events: Sequence[Event],
    now: float = NOW,
    table: Table = TABLE,
    gc: int = 10 * DAY_S,
    is_cassandra_3: bool = False,
) -> list[MergedChange]:
    merger = TopicPartitionMerger(table, KeyCodec(table), store, 0, gc, is_cassandra_3=is_cassandra_3)
    return list(merger.take(batch_events, now))


def end_of(cell: Any, is_cassandra_3: bool) -> tuple[Any, ...]:
    """What decides between two cells of one write time: one that ends, a tombstone, the later end, the larger value. On
    Cassandra 3.x a tombstone, the larger number, the later end.
    """
    value, expires, deleted_at = cell
    ends = deleted_at if value is None else expires
    if is_cassandra_3:
        return value is None, value or 0, NOW * 2 if ends is None else ends
    return ends is not None, value is None, ends or 0, b"" if value is None else i(value)


class Model:
    """All that was written, as plain facts."""

    def __init__(self, is_cassandra_3: bool = False) -> None:
        self.is_cassandra_3 = is_cassandra_3
        self.cells: dict[Any, tuple[int, Any]] = {}
        self.liveness: dict[Any, tuple[int, bool, int]] = {}
        self.deletions: list[tuple[int, Any]] = []  # write time, whether it is of a (k, c, column)

    def cell(self, cell_key: Any, time: int, value: int | None, expires: int | None, deleted_at: int | None) -> None:
        new_cell = value, expires, deleted_at
        stored = self.cells.get(cell_key)
        order = time, end_of(new_cell, self.is_cassandra_3)
        if stored is None or order > (stored[0], end_of(stored[1], self.is_cassandra_3)):
            self.cells[cell_key] = time, new_cell

    def live(self, k: int, c: int | None, time: int, expires: int | None) -> None:
        new = time, expires is not None, expires or 0
        self.liveness[k, c] = max(new, self.liveness.get((k, c), new))

    def gone(self, k: int, c: int | None, column: str | None, time: int) -> bool:
        return any(time <= deletion_time and takes(k, c, column) for deletion_time, takes in self.deletions)

    def row(self, k: int, c: int | None, now: int) -> dict[str, Any] | None:
        time, is_expiring, expires = self.liveness.get((k, c), (NEVER, False, 0))
        is_live = time != NEVER and not self.gone(k, c, None, time) and (not is_expiring or expires > now)
        columns: dict[str, Any] = {}
        for (pk, ck, column, path), (write_time, (value, ends, _)) in self.cells.items():
            if (pk, ck) != (k, c) or value is None or (ends is not None and ends <= now):
                continue
            if not self.gone(k, c, column, write_time):
                columns.setdefault(column, {})[path] = value
        return columns if columns or is_live else None

    def rows(self, now: int) -> dict[Any, Any]:
        keys = {cell_key[:2] for cell_key in self.cells} | self.liveness.keys()
        return {(k, c): row for k, c in keys if (row := self.row(k, c, now)) is not None}


def plain(values: Any, is_static: bool) -> dict[str, Any]:
    """What a record says, as the model has it."""
    plain_values: dict[str, Any] = {}
    for name, data in values.items():
        if data is None or (not is_static and name == "st"):
            continue
        if name in ("v", "w", "st"):
            plain_values[name] = {None: int.from_bytes(data, "big", signed=True)}
        else:
            numbers = [int.from_bytes(data[start : start + 4], "big", signed=True) for start in range(8, len(data), 8)]
            count = int.from_bytes(data[:4], "big")
            if name == "m":
                assert numbers[::2] == sorted(numbers[::2])
                plain_values[name] = dict(zip(numbers[::2], numbers[1::2], strict=True))
            else:
                assert numbers == sorted(numbers)
                plain_values[name] = dict.fromkeys(numbers, 0)
            assert len(plain_values[name]) == count
    return plain_values


def written(chance: random.Random, model: Model, now: int) -> Update:
    """A statement at random, which the model learns too."""
    k, c, write_time = chance.randrange(2), chance.randrange(4), now * 10**6 + chance.randrange(12)
    kind = chance.randrange(10)
    ttl = chance.choice([None, None, 3, 20, 60])
    ends = None if ttl is None else (ttl, now + ttl)
    expires = ends and ends[1]

    def cell(column: str, path: int | None = None, row: int | None = c) -> Cell:
        if chance.random() < 0.3:
            model.cell((k, row, column, path), write_time, None, None, now)
            return Cell(None, write_time, deleted_at=now, path=None if path is None else i(path))
        value = 0 if column == "s" else chance.randrange(-1, 2)
        model.cell((k, row, column, path), write_time, value, expires, None)
        return Cell(b"" if column == "s" else i(value), write_time, ends, path=None if path is None else i(path))

    if kind == 0:
        model.deletions.append((write_time, lambda pk, ck, column: pk == k))
        return Update(TABLE, i(k), deletion=(write_time, now))
    if kind == 1:
        low, high = sorted((c, chance.randrange(4)))
        model.deletions.append((write_time, lambda pk, ck, column: pk == k and ck is not None and low <= ck < high))
        if low == high:
            model.deletions.pop()
            return written(chance, model, now)
        deletion = ((write_time, now),)
        return Update(TABLE, i(k), [Marker(1, (i(low),), deletion), Marker(0, (i(high),), deletion)])
    if kind == 2:
        model.deletions.append((write_time, lambda pk, ck, column: (pk, ck) == (k, c)))
        return Update(TABLE, i(k), [Row((i(c),), deletion=(write_time, now))])
    if kind == 3:
        return Update(TABLE, i(k), static=Row((), {"st": cell("st", row=None)}))
    row = Row((i(c),))
    if kind < 7:
        row.time, row.expires = write_time, ends
        model.live(k, c, write_time, expires)
    for name in chance.sample(["v", "w"], chance.randrange(3)):
        row.columns[name] = cell(name)
    for name in chance.sample(["m", "s"], chance.randrange(3)):
        whole = None
        if chance.random() < 0.4:
            whole = write_time - 1, now
            model.deletions.append((write_time - 1, lambda pk, ck, column, name=name: (pk, ck, column) == (k, c, name)))
        row.columns[name] = Complex([cell(name, path) for path in sorted(chance.sample(range(3), 2))], whole)
    if not row.columns and row.time is None:
        row.time = write_time
        model.live(k, c, write_time, None)
    return Update(TABLE, i(k), [row])


@settings(max_examples=4 * settings.default.max_examples, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_the_last_record_of_every_key_is_its_row(seed: int, is_cassandra_3: bool) -> None:
    chance, model, store = random.Random(seed), Model(is_cassandra_3), DictStore()
    seen: dict[Any, Any] = {}
    honouring: dict[Any, Any] = {}
    late: list[Update] = []
    now = NOW
    for _ in range(chance.randrange(1, 12)):
        now += chance.choice([0, 1, 5, 30])
        statements = [written(chance, model, now - chance.randrange(3)) for _ in range(chance.randrange(6))]
        copies = [event for update in statements + late for event in events(update, node=OTHER)]
        chance.shuffle(statements)
        batch_events = [event for update in statements for event in events(update)] + copies
        chance.shuffle(batch_events)
        late = chance.sample(statements, min(len(statements), 2))
        before = dict(store.values)
        merged = merge_events(store, batch_events, now, is_cassandra_3=is_cassandra_3)
        after = dict(store.values)
        store.values = before
        repeated = merge_events(store, batch_events, now, is_cassandra_3=is_cassandra_3)
        assert repeated == merged, "a batch that is done again gives the same"
        assert store.values == after
        for m in merged:
            if m.scope not in (Scope.ROW, Scope.STATIC):
                assert m.op == "d"
                for gone in [key for key in honouring if is_within(m, key)]:
                    del honouring[gone]
                continue
            values = CODEC.decode(m.key)
            key = tuple(None if v is None else int.from_bytes(v, "big") for v in values)
            images = [None if row is None else plain(row, m.scope is Scope.STATIC) for row in (m.before, m.after)]
            assert images[0] == seen.pop(key, None), "before is what was last said"
            honouring.pop(key, None)
            assert m.op == ("c" if images[0] is None else "d" if images[1] is None else "u")
            assert m.op != "d" or images[0] is not None
            if images[1] is not None:
                seen[key] = honouring[key] = images[1]
        assert seen == model.rows(now)
        assert honouring == seen, "rows that live follow a marker"
    copies = batch_events + batch_events
    assert not merge_events(store, copies, now, is_cassandra_3=is_cassandra_3), "copies merge into nothing"


def is_within(marker: RowChange, key: tuple[int, int | None]) -> bool:
    """Whether a marker wipes a row, or the static columns, of a sink that honours it."""
    if CODEC.decode(marker.key)[0] != i(key[0]):
        return False
    if marker.bounds is None:
        return True
    return key[1] is not None and covering(TABLE)[0]([i(key[1])], marker.bounds)


def test_what_is_kept_is_forgotten_after_gc_grace() -> None:
    store = DictStore()
    row = Row((i(1),), {"v": Cell(i(1))}, time=NOW * 10**6)
    merge_events(store, events(Update(TABLE, i(1), [row])))
    gone = events(Update(TABLE, i(1), [Row((i(1),), deletion=(NOW * 10**6 + 1, NOW))]))
    assert [m.op for m in merge_events(store, gone)] == ["d"]
    assert not merge_events(store, events(Update(TABLE, i(1), [row])), NOW + 9 * DAY_S)
    rows = TopicPartitionMerger(TABLE, CODEC, store, 0)
    assert not list(rows.take([], NOW + 10 * DAY_S))
    assert rows.row_count == 0
    assert not any(name[:1] in b"rsgp" for name in store.values)


def truncation(time: int, node: str = OTHER, segment: int = 1, position: int = 1) -> Event:
    """A node's report of a TRUNCATE, at a time, s since the epoch."""
    change = Change("0" * 32, node, Scope.TABLE, segment=segment, position=position, write_time=time * 10**6)
    return Event("t", 0, 0, time * 1000, None, encode(change))


def test_many_rows_of_a_partition_are_deleted_and_truncated() -> None:
    store = DictStore()
    rows = [Row((i(c),), {"v": Cell(i(c), NOW * 10**6)}, time=NOW * 10**6) for c in range(1000)]
    assert [m.op for m in merge_events(store, events(Update(TABLE, i(1), rows)))] == ["c"] * 1000
    deletion = ((NOW * 10**6 + 1, NOW),)
    range_delete = events(Update(TABLE, i(1), [Marker(7, (i(99),), deletion), Marker(6, (i(899),), deletion)]))
    merged = merge_events(store, range_delete)
    assert merged[0].scope is Scope.RANGE
    assert merged[0].bounds == (Bound(False, (i(99),)), Bound(True, (i(899),)))
    assert [m.op for m in merged[1:]] == ["d"] * 800
    merged = merge_events(store, [truncation(NOW + 3600)], NOW + 3600)
    assert merged[0].scope is Scope.TABLE
    assert [m.op for m in merged[1:]] == ["d"] * 200
    assert not any(name[:1] in b"rsgp" for name in store.values)


def test_static_columns_without_rows_are_truncated() -> None:
    store = DictStore()
    now_us = NOW * 10**6
    for k in (1, 2):
        merge_events(store, events(Update(TABLE, i(k), static=Row((), {"st": Cell(i(7), now_us)}))))
    merge_events(store, events(Update(TABLE, i(2), [Row((i(1),), {"v": Cell(i(1))}, time=now_us)])))
    merged = merge_events(store, [truncation(NOW + 3600)], NOW + 3600)
    assert [(m.scope, m.op) for m in merged[:1]] == [(Scope.TABLE, "d")]
    assert sorted((m.scope, m.op) for m in merged[1:]) == [
        (Scope.ROW, "d"),
        (Scope.STATIC, "d"),
        (Scope.STATIC, "d"),
    ]
    assert [m.before and m.before["st"] for m in merged if m.scope is Scope.ROW] == [i(7)]
    assert not any(name[:1] in b"rsgp" for name in store.values)


def test_a_table_that_is_recreated_with_another_key() -> None:
    """What was to be done with its rows, when they are due, is not done to this one's."""
    before = table_of("t", "k int pk, c int ck, v int")
    older = uuid.uuid1()
    now = replace(table_of("t", "k int pk, c int ck, d text ck, v int"), id=uuid.uuid1())
    store, now_us = DictStore(), NOW * 10**6
    merge_events(
        store, events(Update(before, i(1), [Row((i(1),), {"v": Cell(i(1), now_us)}, time=now_us)])), table=before
    )
    merge_events(store, events(Update(before, i(1), [Row((i(1),), deletion=(now_us + 1, NOW))])), table=before)
    assert not merge_events(store, [], NOW + 10, table=now)
    row = Row((i(1), b"x"), {"v": Cell(i(1), now_us + 10**7)}, time=now_us + 10**7)
    assert [m.op for m in merge_events(store, events(Update(now, i(1), [row])), NOW + 20, table=now)] == ["c"]
    assert not merge_events(store, [], NOW + 10 * DAY_S + 5, table=now)
    with pytest.raises(SchemaChanged, match="recreated"):
        merge_events(store, [], NOW + 10 * DAY_S + 6, table=replace(now, id=older))
    restored = TopicPartitionMerger(replace(now, id=older), KeyCodec(now), store, 0, id_now=lambda: older)
    assert [m.op for m in restored.take([], NOW + 10 * DAY_S + 7)] == ["d"], "it came back WITH ID: all nodes say so"


HIDING = {
    "tombstone": {"v": Cell(None, NOW * 10**6 + 5, deleted_at=NOW)},
    "ended": {"v": Cell(i(2), NOW * 10**6 + 5, (5, NOW + 5))},
    "column": {"m": Complex([], (NOW * 10**6 + 5, NOW))},
}


@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("table", [TABLE, table_of("o", "k int pk, c int ck, v int, w int, m map<int,int>")])
@pytest.mark.parametrize("is_kept_by_cassandra", [True, False])
def test_a_statement_that_comes_again_after_what_hid_it_was_purged(
    hiding: str, table: Table, is_kept_by_cassandra: bool
) -> None:
    """It is no copy, though it has the digest of one: Cassandra shows what it wrote."""
    cells: dict[str, Cell | Complex] = {"v": Cell(i(1)), "w": Cell(i(1))}
    if hiding == "column":
        cells["m"] = Complex([Cell(i(1), path=i(1))])
    written, store = Update(table, i(1), [Row((i(1),), cells, time=NOW * 10**6)]), DictStore()
    hidden = Update(table, i(1), [Row((i(1),), HIDING[hiding])])
    gc, repeated_at = (10 * DAY_S, NOW + 11 * DAY_S) if is_kept_by_cassandra else (0, NOW + 700)
    for update, now in ((written, NOW), (hidden, NOW + 1)):
        stamped = [event._replace(timestamp=now * 1000) for event in events(update)]
        assert [m.op for m in merge_events(store, stamped, now, table, gc)] == ["c" if now == NOW else "u"]
    merge_events(store, [], NOW + 6, table, gc)
    repeated_events = [event._replace(timestamp=repeated_at * 1000) for event in events(written)]
    assert [type(m) for m in merge_events(store, repeated_events, repeated_at, table, gc)] == [ReadRequest]


@pytest.mark.parametrize("days", [0, 3, 30])
def test_in_a_backlog_gc_grace_is_counted_by_the_events(days: int) -> None:
    """A node's copy of a write that comes after its copy of the delete, as a hint does, meets the delete."""
    written = NOW - days * DAY_S
    write_time, store = written * 10**6, DictStore()
    write = events(Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(1), write_time)}, time=write_time)]))
    delete = events(Update(TABLE, i(1), [Row((i(1),), deletion=(write_time + 5, written))]))
    late = events(Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(1), write_time)}, time=write_time)]), node=OTHER)
    for event, now, ops in ((write, 0, ["c"]), (delete, 0, ["d"]), (late, 9, []), (late, 99, [])):
        stamped_events = [unstamped._replace(timestamp=(written + now) * 1000) for unstamped in event]
        assert [m.op for m in merge_events(store, stamped_events, NOW + now, gc=DAY_S)] == ops
    assert not merge_events(store, [], NOW + DAY_S + 3600, gc=DAY_S)
    assert not any(name[:1] in b"rsgp" for name in store.values), "without a backlog it is over by the clock"


def test_a_row_that_ended_before_it_came_is_never_said_to_have_lived() -> None:
    store, write_time = DictStore(), (NOW - 100) * 10**6
    ends = 60, NOW - 40
    row = Row((i(1),), {"v": Cell(i(1), write_time, ends)}, time=write_time, expires=ends)
    for now in range(NOW, NOW + 3):
        assert not merge_events(store, events(Update(TABLE, i(1), [row])) if now == NOW else [], now, gc=30)


def test_a_column_that_is_not_known_is_waited_for() -> None:
    store = DictStore()
    wide = table_of("t", "k int pk, c int ck, st int static, v int, w int, m map<int,int>, s set<int>, x int")
    change = events(Update(replace(wide, id=TABLE.id), i(1), [Row((i(1),), {"x": Cell(i(1))}, time=NOW * 10**6)]))
    with pytest.raises(SchemaChanged, match="names the column x, which is not known"):
        merge_events(store, change)
    assert [m.op for m in merge_events(store, change, table=replace(TABLE, dropped_at={"x": NOW * 10**6 + 1}))] == ["c"]


def bound(chance: random.Random) -> Bound | None:
    if chance.random() < 0.2:
        return None
    return Bound(chance.random() < 0.5, tuple(i(chance.randrange(3)) for _ in range(1 + chance.randrange(2))))


@given(st.integers(0, 1 << 32))
def test_bounds_within_others_hold_no_other_row(seed: int) -> None:
    chance = random.Random(seed)
    table = table_of("t", "k int pk, c int ck, d int ck desc, v int")
    covers, is_within = covering(table)
    inner, outer = (bound(chance), bound(chance)), (bound(chance), bound(chance))
    rows = [(i(c), i(d)) for c in range(3) for d in range(3)]
    assert is_within(inner, inner)
    if is_within(inner, outer):
        assert {row for row in rows if covers(row, inner)} <= {row for row in rows if covers(row, outer)}


def test_a_partition_that_is_a_queue_stays_small() -> None:
    """Rows come, DELETE … WHERE k = 1 AND c < x takes them, over and over."""
    table, store, now_us = table_of("t", "k int pk, c int ck, v int"), DictStore(), NOW * 10**6
    for turn in range(30):
        first = turn * 100
        rows = [Row((i(c),), {"v": Cell(i(1))}, time=now_us + c) for c in range(first, first + 100)]
        merge_events(store, events(Update(table, i(1), rows)), NOW + turn, table)
        deletion = ((now_us + first + 100, NOW + turn),)
        gone = [Marker(7, (), deletion), Marker(0, (i(first + 90),), deletion)]
        assert len(merge_events(store, events(Update(table, i(1), gone)), NOW + turn, table)) == (
            91 if not turn else 101
        )
        (partition_state,) = [PartitionState.loads(value) for name, value in store.values.items() if name[:1] == b"p"]
        assert len(partition_state.ranges) == 1
        assert partition_state.next_page - partition_state.first_page <= 3


def test_a_partition_whose_rows_all_end_is_forgotten() -> None:
    store, now_us = DictStore(), NOW * 10**6
    ends = 60, NOW + 60
    rows = [Row((i(c),), {"v": Cell(i(1), now_us, ends)}, time=now_us, expires=ends) for c in range(200)]
    merge_events(store, events(Update(TABLE, i(1), rows)))
    assert len(merge_events(store, [], NOW + 61)) == 200
    assert not merge_events(store, [], NOW + 11 * DAY_S)
    assert not any(name[:1] in b"rsgp" for name in store.values)


def test_a_table_without_clustering_columns() -> None:
    table, store = table_of("u", "k int pk, v int"), DictStore()
    row = Row((), {"v": Cell(i(1))}, time=NOW * 10**6)
    assert [m.op for m in merge_events(store, events(Update(table, i(1), [row])), table=table)] == ["c"]
    merged = merge_events(store, events(Update(table, i(1), deletion=(NOW * 10**6, NOW))), table=table)
    assert [(m.op, m.scope) for m in merged] == [("d", Scope.ROW)]


@pytest.mark.parametrize("is_delete_first", [True, False])
def test_a_mutation_that_deletes_a_row_without_clustering_columns_and_writes_it(is_delete_first: bool) -> None:
    """BEGIN BATCH DELETE … USING TIMESTAMP; INSERT …: its two events have one digest and one row."""
    table, store, now_us = table_of("u", "k int pk, v int, w int"), DictStore(), NOW * 10**6
    first = Row((), {"v": Cell(i(1)), "w": Cell(i(1))}, time=now_us)
    merge_events(store, events(Update(table, i(1), [first])), table=table)
    replaced = Update(table, i(1), [Row((), {"v": Cell(i(2))}, time=now_us + 9)], deletion=(now_us + 5, NOW))
    both = events(replaced)[:: 1 if is_delete_first else -1]
    assert len(both) == 2
    merged = merge_events(store, both, table=table)
    assert [m.op for m in merged] == (["d", "c"] if is_delete_first else ["u", "u"])
    assert merged[-1].after == {"v": i(2), "w": None}
    assert not merge_events(store, [*both, *events(replaced, node=OTHER)], table=table)


def test_a_row_of_before_without_clustering_columns_that_is_deleted_first() -> None:
    """Its delete is one of a partition, which no read can answer."""
    table = table_of("u", "k int pk, v int")
    gone = events(Update(table, i(1), deletion=(NOW * 10**6, NOW)))
    store = DictStore()
    assert not merge_events(store, gone, table=table)
    rows = TopicPartitionMerger(table, KeyCodec(table), DictStore(), 0, trusts_absence=False)
    assert [(m.op, m.before, m.after) for m in rows.take(gone + gone, NOW)] == [("d", None, None)]


def test_a_column_that_was_dropped_and_added_again() -> None:
    store = DictStore()
    row = Row((i(1),), {"v": Cell(i(1)), "w": Cell(i(2))}, time=NOW * 10**6)
    merge_events(store, events(Update(TABLE, i(1), [row])))
    table = replace(TABLE, dropped_at={"v": NOW * 10**6 + 5})
    new = Row((i(1),), {"w": Cell(i(3), NOW * 10**6 + 9)})
    (merged,) = merge_events(store, events(Update(TABLE, i(1), [new])), table=table)
    assert merged.before is not None
    assert merged.before["v"] is None
    assert merged.after is not None
    assert (merged.after["v"], merged.after["w"]) == (None, i(3))


def test_events_that_can_not_be_merged() -> None:
    update = Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(1))}, time=1)])
    assert [type(m) for m in merge_events(DictStore(), events(update, cells=False))] == [ReadRequest]
    (event,) = events(update)
    assert [type(m) for m in merge_events(DictStore(), [event._replace(key=b"x")])] == [PoisonEvent]
    with pytest.raises(HelenusError, match="counters, as of column n"):
        merge_events(DictStore(), [], table=table_of("c", "k int pk, n counter"))


GOLDEN_ROW_2 = (
    "02013031323334353637383961620000000200000000000003e81f00000000000000050000003c00000000000003e8000000"
    "0000000004000000000000006400000000000000630000000000000042000000000000006e00000000000003f2"
    + GOLDEN_ROW[GOLDEN_ROW.index("0000000100016d") :]
)


GOLDEN_ROW_3 = (
    "03013031323334353637383961620000000200000000000003e83f00000000000000050000003c00000000000003e8000000"
    "0000000004000000000000006400000000000000630000000000000042000000000000006e00000000000003f200000102"
    + GOLDEN_ROW[GOLDEN_ROW.index("0000000100016d") :]
)


GOLDEN_ROW_4 = (
    "0401303132333435363738396162ff04d00f0000000000000005d00f780000000000000004c8010000000000000063000000"
    "0000000042dc01e40f840402026d0000000000000003b4010800000000000000000702760278050000000000000008026d02"
    "7078d00f02790200000000000000090277dc0108027a00"
)


GOLDEN_PARTITION_2 = (
    "0200000003000000000000008c01000000000000000500000000000000640000000200000000000000060000000000000078"
    "02010000000161010200000001620000000000000000000000070000000000000082000000000002"
    + GOLDEN_PARTITION[GOLDEN_PARTITION.index("000000036b6579") :]
)


def golden_row() -> CellRow:
    row = CellRow(
        Liveness(5, 60, 1000),
        Deletion(4, 100),
        {"m": Deletion(3, 90)},
        recent_mutations=b"0123456789ab",
        page=2,
        scheduled_at=1000,
    )
    cells = [KeptCell("v", 7, b"x"), KeptCell("m", 8, b"y", b"p", 60, 1000), KeptCell("w", 9, None, deleted_at=110)]
    row.cells = {(cell.column, cell.path): cell for cell in cells}
    return row


def test_bytes_of_version_1_are_read() -> None:
    """Never change these: a later version of Helenus finds them in checkpoints."""
    assert load_row(bytes.fromhex(GOLDEN_ROW)) == golden_row()
    assert PartitionState.loads(bytes.fromhex(GOLDEN_PARTITION)) == golden_partition()


def test_bytes_of_version_2_are_read() -> None:
    """The same."""
    row = golden_row()
    row.liveness_bound, row.implied_deletion, row.reread_at = 99, Deletion(66, 110), 1010
    assert load_row(bytes.fromhex(GOLDEN_ROW_2)) == row
    partition = golden_partition()
    partition.first_page = 2
    assert PartitionState.loads(bytes.fromhex(GOLDEN_PARTITION_2)) == partition
    assert partition.dumps().hex() == GOLDEN_PARTITION_2
    assert _partition._VERSION == 2, "keep bytes of the versions before this one"


def test_bytes_of_version_3_are_read() -> None:
    """The same."""
    row = golden_row()
    row.liveness_bound, row.implied_deletion, row.reread_at, row.proven_up_to = 99, Deletion(66, 110), 1010, 258
    assert load_row(bytes.fromhex(GOLDEN_ROW_3)) == row


def test_bytes_of_version_4_are_read_and_written() -> None:
    """The same."""
    row = golden_row()
    row.liveness_bound, row.implied_deletion, row.reread_at, row.proven_up_to = 99, Deletion(66, 110), 1010, 258
    row.cells["z", None] = KeptCell("z", 9, b"")
    assert load_row(bytes.fromhex(GOLDEN_ROW_4)) == row
    assert dump_row(row).hex() == GOLDEN_ROW_4
    assert _row_bytes.VERSION == 4, "keep bytes of the versions before this one"


@given(
    st.builds(
        CellRow,
        st.none() | LIVENESSES.map(lambda fields: Liveness(*fields)),
        st.none() | DELETIONS,
        st.dictionaries(st.text(), DELETIONS, max_size=3),
        recent_mutations=st.integers(0, 4).map(lambda n: b"0123456789ab" * n),
        page=st.integers(0, NO_PAGE),
        scheduled_at=SECONDS,
        liveness_bound=st.none() | TIMES,
        implied_deletion=st.none() | DELETIONS,
        reread_at=SECONDS,
        proven_up_to=st.integers(0, LAST_SECOND),
    ),
    st.lists(KEPT_CELLS, max_size=5),
)
def test_any_row_is_read_as_it_was_written(row: CellRow, cells: list[KeptCell]) -> None:
    row.cells = {(cell.column, cell.path): cell for cell in cells}
    data = dump_row(row)
    assert load_row(data) == row
    assert PLAIN.dump_row(row) == data
    assert PLAIN.load_row(data) == row


def golden_partition() -> PartitionState:
    ranges = {(Bound(True, (b"a",)), Bound(False, (b"b", b""))): Deletion(6, 120), (None, None): Deletion(7, 130)}
    return PartitionState(Deletion(5, 100), ranges, 3, [b"key", b"other"], 140)


def test_bytes_of_a_newer_version_are_refused() -> None:
    with pytest.raises(ValueError, match="version 5"):
        load_row(b"\5" + bytes.fromhex(GOLDEN_ROW)[1:])
    with pytest.raises(ValueError, match="version 3"):
        PartitionState.loads(b"\3" + bytes.fromhex(GOLDEN_PARTITION)[1:])
    for row in (GOLDEN_ROW, GOLDEN_ROW_4):
        with pytest.raises(ValueError, match="too many"):
            load_row(bytes.fromhex(row) + b"x")
