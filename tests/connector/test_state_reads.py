"""Rows that are kept as cells, of events and of reads in whatever order: in the end they are the rows of a model of
Cassandra, with lists, rows of a key alone, and rows that were there before.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from agent.writer import Cell, Complex, Marker, Row, Update, table_of
from connector.celled import OTHER, events
from connector.test_state_index import DictStore
from connector.test_state_rows import Model, i
from hypothesis import given, settings
from hypothesis import strategies as st

from helenus_connector.cassandra_rows.cell_reader import CellReader, ReadRow
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange, ReadRequest, RowChange
from helenus_connector.pipeline._cell_requests import CellRequests
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.store.pages import Pages
from helenus_connector.testing.cassandra import MemorySession
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event.cells import Cell as ReadCell
from helenus_schemas.event.cells import Cells, Liveness, read_path
from helenus_schemas.event.change import Change, Effect, Origin, Scope, column_bit
from helenus_schemas.event.wire import encode, request

COLUMNS = "st int static, sl list<int> static, v int, w int, m map<int,int>, l list<int>"
TABLE = table_of("t", f"k int pk, c int ck, {COLUMNS}")
CODEC = KeyCodec(TABLE)
TYPES = {c.name: c.type for c in TABLE.values}
LISTS, STATICS = ("l", "sl"), ("st", "sl")
NOW = 1_700_000_000
DAY_S = 86_400
PATIENCE_S = 60
SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}, "test"
)


def path_of(time: int) -> bytes:
    """A timeuuid."""
    fields = (time & 0xFFFFFFFF, time >> 32 & 0xFFFF, time >> 48 & 0xFFF | 0x1000, 0x80, 1, 7)
    return uuid.UUID(fields=fields).bytes


class Cassandra(Model):
    """Statements at random, and what a read shows. Time passes by `now`."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.now = NOW
        self.paths = {1: 1 << 58, -1: 1 << 57}
        self.keys = chance.choice([1, 2]), chance.choice([1, 1, 3])
        self.list_times: set[int] = set()
        self.later: list[Callable[[], None]] = []
        """What is written, but not to be read yet."""

    def new_path(self, step: int) -> bytes:
        self.paths[step] += step
        return path_of(self.paths[step])

    def listed(self, k: int, c: int | None, name: str) -> list[tuple[bytes, int]]:
        """The paths and values of a list, in order."""
        row = self.row(k, c, self.now) or {}
        return sorted(row.get(name, {}).items(), key=lambda item: uuid.UUID(bytes=item[0]).time)

    def statement(self, *, is_before: bool) -> Update:
        """Return one at random; `apply_writes` applies it. `is_before`: there will be no event of it."""
        chance, now = self.chance, self.now
        k, c = map(chance.randrange, self.keys)
        write_time = now * 10**6 + chance.choice([0, 0, 0, -5, 9, -5_000_000]) * chance.randrange(9)
        ttl = chance.choice([None, None, 3, 20, 90])
        ends = None if ttl is None else (ttl, now + ttl)

        def cell(column: str, path: Any = None, row: int | None = c, value: int | None = -1) -> Cell:
            if value == -1:
                value = None if chance.random() < 0.3 else chance.randrange(3)
            name = (k, row, column, path)
            expires = None if ends is None or value is None else ends[1]
            self.later.append(lambda: self.cell(name, write_time, value, expires, now if value is None else None))
            raw = path if path is None or isinstance(path, bytes) else i(path)
            if value is None:
                return Cell(None, write_time, deleted_at=now, path=raw)
            return Cell(i(value), write_time, ends, path=raw)

        def gone(time: int, takes: Callable[[int, int | None, str | None], bool]) -> None:
            self.later.append(lambda: self.deletions.append((time, takes)))

        def changed(name: str, row: int | None = c) -> Complex:
            nonlocal write_time
            while write_time in self.list_times:  # equal elements of one write time are one to whom reads show no paths
                write_time += 1
            self.list_times.add(write_time)
            there, numbers = self.listed(k, row, name), [chance.randrange(2) for _ in range(1 + chance.randrange(2))]
            match chance.choice(["append", "prepend", "set", "whole", "remove", "take"]):
                case "set" if there:
                    path, _ = chance.choice(there)
                    return Complex([cell(name, path, row, chance.randrange(3))])
                case "remove" if there:
                    path, _ = chance.choice(there)
                    return Complex([cell(name, path, row, None)])
                case "take" if there:
                    _, value = chance.choice(there)
                    return Complex([cell(name, path, row, None) for path, element in there if element == value])
                case "whole":
                    gone(write_time - 1, lambda pk, ck, column: (pk, ck, column) == (k, row, name))
                    numbers = numbers[chance.randrange(2) :]
                    return Complex([cell(name, self.new_path(1), row, n) for n in numbers], (write_time - 1, now))
                case "prepend":
                    return Complex([cell(name, self.new_path(-1), row, n) for n in numbers][::-1])
            return Complex([cell(name, self.new_path(1), row, n) for n in numbers])

        match chance.choices(range(8), [1, 2, 2, 3, 5, 6, 4, 3])[0]:
            case 0:
                gone(write_time, lambda pk, ck, column: pk == k)
                return Update(TABLE, i(k), deletion=(write_time, now))
            case 1:
                gone(write_time, lambda pk, ck, column: pk == k and ck is not None and ck >= c)
                deletion = ((write_time, now),)
                return Update(TABLE, i(k), [Marker(1, (i(c),), deletion), Marker(6, (), deletion)])
            case 2:
                gone(write_time, lambda pk, ck, column: (pk, ck) == (k, c))
                return Update(TABLE, i(k), [Row((i(c),), deletion=(write_time, now))])
            case 3:
                columns: dict[str, Any] = {"st": cell("st", row=None)} if chance.random() < 0.5 else {}
                if not columns or chance.random() < 0.5:
                    columns["sl"] = changed("sl", None)
                return Update(TABLE, i(k), static=Row((), columns))
            case 4:
                if is_before:  # of a row of its key alone a read shows no TTL
                    ends = None
                row = Row(
                    (i(c),), {n: cell(n) for n in chance.sample(["v", "w"], chance.randrange(3))}, write_time, ends
                )
                expires = ends and ends[1]
                self.later.append(lambda: self.live(k, c, write_time, expires))
                return Update(TABLE, i(k), [row])
            case 5:
                return Update(TABLE, i(k), [Row((i(c),), {"l": changed("l")})])
            case 6:
                return Update(TABLE, i(k), [Row((i(c),), {n: cell(n) for n in chance.sample(["v", "w"], 1)})])
        whole = None
        if chance.random() < 0.4:
            whole = write_time - 1, now
            gone(write_time - 1, lambda pk, ck, column: (pk, ck, column) == (k, c, "m"))
        paths = sorted(chance.sample(range(3), chance.randrange(1 if whole is None else 0, 3)))
        return Update(TABLE, i(k), [Row((i(c),), {"m": Complex([cell("m", path) for path in paths], whole)})])

    def apply_writes(self) -> None:
        for write in self.later:
            write()
        self.later.clear()

    def read(self, _: object, keys: Sequence[tuple[Any, Scope]], consistency: int) -> Iterator[ReadRow | None]:
        return iter([self.read_row(key, scope) for key, scope in keys])

    def read_row(self, key: Any, scope: Scope) -> ReadRow | None:
        """As a SELECT with WRITETIME and TTL."""
        k = int.from_bytes(key[0], "big")
        c = None if scope is Scope.STATIC else int.from_bytes(key[1], "big")
        row = self.row(k, c, self.now)
        if row is None:
            return None
        cells = []
        for name in STATICS if c is None else ("v", "w", "m", "l"):
            paths = row.get(name, {})
            in_order = [p for p, _ in self.listed(k, c, name)] if name in LISTS else sorted(paths)
            for n, path in enumerate(in_order):
                write_time, (value, ends, _) = self.cells[k, c, name, path]
                raw = path if path is None else read_path(n) if name in LISTS else i(path)
                ttl = None if ends is None else ends - self.now
                cells.append(ReadCell(name, write_time, i(value), raw, ttl, ends))
        newest = max((cell.write_time for cell in cells), default=self.now * 10**6)
        ends = [cell.expires for cell in cells if cell.expires is not None]
        liveness = None if c is None else Liveness(newest)
        if c is not None and cells and len(ends) == len(cells):
            liveness = Liveness(newest, max(1, max(ends) - self.now), max(ends))
        schema = bytes.fromhex(TABLE.schema_id)
        return ReadRow(Cells(TABLE.id.bytes, schema, TYPES, liveness, cells=tuple(cells)), self.now * 1000)

    def whole(self) -> dict[Any, Any]:
        """All rows, in the form of `Sink`."""
        rows = {}
        for (k, c), row in self.rows(self.now).items():
            for name in LISTS:
                if name in row:
                    row[name] = [value for _, value in self.listed(k, c, name)]
            rows[k, c] = row
        return rows


class Connector:
    """The operator and the stage behind it, over a topic in memory. `seen` is what a naive sink has."""

    def __init__(self, cassandra: Cassandra) -> None:
        self.cassandra, self.store = cassandra, DictStore()
        self.topic: list[Event] = []
        self.seen: dict[Any, Any] = {}
        self.reads, self.trusts_absence = 0, True
        self._asked = CellRequests(SETTINGS, MemorySession([]), TABLE, self.append)

    def append(self, partition: int, key: bytes, value: bytes | None) -> None:
        self.topic.append(Event("t", partition, 0, self.cassandra.now * 1000, key, value))

    def batch(self) -> bool:
        """Do one; False if nothing came and nothing is asked."""
        batch_events, self.topic[:] = list(self.topic), []
        before = dict(self.store.values)
        merged = self._merged(batch_events)
        after, self.store.values = self.store.values, before
        assert self._merged(batch_events) == merged, "a batch that is done again gives the same"
        assert self.store.values == after
        asks = [m for m in merged if isinstance(m, ReadRequest)]
        for m in merged:
            if isinstance(m, RowChange) and m.scope in (Scope.ROW, Scope.STATIC):
                self._publish(m)
        outcome = BatchOutcome()
        self._asked.answer(asks, outcome)
        self.reads += outcome.keys_read
        return bool(batch_events or asks)

    def _merged(self, batch_events: Sequence[Event]) -> list[MergedChange]:
        store = Pages(self.store)
        rows = TopicPartitionMerger(TABLE, CODEC, store, 0, 10 * DAY_S, PATIENCE_S, trusts_absence=self.trusts_absence)
        merged = list(rows.take(batch_events, self.cassandra.now))
        store.flush()
        return merged

    def _publish(self, m: RowChange) -> None:
        values = CODEC.decode(m.key)
        key = tuple(None if v is None else int.from_bytes(v, "big") for v in values)
        images = [None if row is None else plain(row, m.scope is Scope.STATIC) for row in (m.before, m.after)]
        last = self.seen.pop(key, None)
        assert images[0] == last or not self.trusts_absence, "before is what was last said"
        assert m.op == ("d" if images[1] is None else "c" if images[0] is None else "u")
        assert images != [None, None] or not self.trusts_absence
        if images[1] is not None:
            self.seen[key] = images[1]


def plain(values: Any, is_static: bool) -> dict[str, Any]:
    """What a record says, as the model has it."""
    plain_values: dict[str, Any] = {}
    for name, data in values.items():
        if data is None or (name in STATICS) != is_static:
            continue
        if name in ("v", "w", "st"):
            plain_values[name] = {None: int.from_bytes(data, "big")}
            continue
        numbers = [int.from_bytes(data[start : start + 4], "big") for start in range(8, len(data), 8)]
        plain_values[name] = numbers if name in LISTS else dict(zip(numbers[::2], numbers[1::2], strict=True))
    return plain_values


IS_LONG = settings.default.max_examples > 25


# One in some thousand meets what no read tells (docs/state.md): others are drawn each time in `make test-long` alone.
@settings(max_examples=4 * settings.default.max_examples, deadline=None, derandomize=not IS_LONG)
@given(st.integers(0, 1 << 32))
def test_reads_and_events_in_any_order_end_in_the_rows(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        in_any_order(seed, patch)


def in_any_order(seed: int, patch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    cassandra = Cassandra(chance)
    patch.setattr(CellReader, "read", lambda *arguments: cassandra.read(*arguments))
    clock = SimpleNamespace(time=lambda: float(cassandra.now))
    patch.setattr("helenus_connector.pipeline._cell_requests.time", clock)
    connector = Connector(cassandra)
    connector.trusts_absence = chance.random() < 0.5
    light, at_once = chance.choice([0, 0.2, 1]), chance.choice([0.4, 0.9])
    for _ in range(chance.choice([0, 2, 6])):  # rows of before
        cassandra.statement(is_before=True)
        cassandra.apply_writes()
        cassandra.now += 1
    cassandra.now += 50  # no read shows tombstones of before, which would take what is written with an older time
    snapshot_keys = [(name, Scope.STATIC if name[1] is None else Scope.ROW) for name in cassandra.rows(cassandra.now)]
    on_their_way: list[tuple[int, Event]] = []
    for (k, c), scope in snapshot_keys:
        key = CODEC.encode((i(k), None if c is None else i(c)))
        event = Event("t", 0, 0, 0, key, request(scope, Origin.SNAPSHOT))
        on_their_way.append((cassandra.now + chance.randrange(20), event))

    def arrive() -> None:
        for when, event in list(on_their_way):
            if when <= cassandra.now:
                on_their_way.remove((when, event))
                connector.append(0, event.key or b"", event.value)

    for _ in range(chance.randrange(1, 18)):
        for _ in range(chance.randrange(3)):
            has_cells = chance.random() >= light
            update = cassandra.statement(is_before=False)
            for node in ("ad310466-96a7-4cb2-acf4-59535a960812", OTHER):
                late = chance.choice([0, 0, 2, 40])
                on_their_way += [(cassandra.now + late, e) for e in events(update, node=node, cells=has_cells)]
            if chance.random() < at_once:
                cassandra.apply_writes()
        arrive()
        connector.batch()
        cassandra.apply_writes()
        cassandra.now += chance.choice([0, 1, 5, 30])
    cassandra.now += 50
    for wait in (0, 0, PATIENCE_S, 1, PATIENCE_S + 1, 100, PATIENCE_S + 1, PATIENCE_S + 1):
        cassandra.now += wait
        arrive()
        connector.trusts_absence |= not on_their_way
        batches = 0
        while connector.batch():
            batches += 1
            cassandra.now += 1  # a read that does not show a write yet is done again
            assert batches < 2 * PATIENCE_S, "it ends"
    assert connector.seen == cassandra.whole()
    reads = connector.reads
    connector.batch()
    assert connector.reads == reads


@pytest.fixture
def cassandra(monkeypatch: pytest.MonkeyPatch) -> Cassandra:
    simulated_cassandra = Cassandra(random.Random(0))
    monkeypatch.setattr(CellReader, "read", lambda *arguments: simulated_cassandra.read(*arguments))
    monkeypatch.setattr(
        "helenus_connector.pipeline._cell_requests.time", SimpleNamespace(time=lambda: float(simulated_cassandra.now))
    )
    return simulated_cassandra


def snapshot(connector: Connector, c: int) -> None:
    connector.append(0, CODEC.encode((i(1), i(c))), request(Scope.ROW, Origin.SNAPSHOT))
    settled(connector)


def settled(connector: Connector, *new_events: Event) -> None:
    for event in new_events:
        connector.append(0, event.key or b"", event.value)
    while connector.batch():
        connector.cassandra.now += 1


@pytest.mark.parametrize(("deleted_s", "lives"), [(-50, False), (-200, True)])
@pytest.mark.parametrize("of_range", [True, False])
def test_a_row_of_its_key_alone_that_was_read_is_deleted(
    cassandra: Cassandra, deleted_s: int, lives: bool, of_range: bool
) -> None:
    """With a write time of before it was read: only another read shows whether the row is older."""
    connector = Connector(cassandra)
    cassandra.live(1, 1, (NOW - 100) * 10**6, None)
    snapshot(connector, 1)
    assert connector.seen == {(1, 1): {}}
    deletion_time = (NOW + deleted_s) * 10**6
    cassandra.deletions.append((deletion_time, lambda *_: True))
    deletion = ((deletion_time, NOW),)
    rows: list[Any] = [Marker(1, (i(0),), deletion), Marker(6, (), deletion)]
    if not of_range:
        rows = [Row((i(1),), deletion=(deletion_time, NOW))]
    settled(connector, *events(Update(TABLE, i(1), rows)))
    assert connector.seen == ({(1, 1): {}} if lives else {})


def test_a_partition_of_one_row_that_was_read_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a write time of before it was read: another read shows whether the row is older, by the row's own name."""
    table, store, topic = table_of("u", "k int pk, v int"), DictStore(), list[Event]()
    codec, schema, types = KeyCodec(table), bytes.fromhex(table.schema_id), {c.name: c.type for c in table.values}
    answers = [ReadRow(Cells(table.id.bytes, schema, types, Liveness(NOW * 10**6)), NOW * 1000), None]
    monkeypatch.setattr(CellReader, "read", lambda *_: iter([answers.pop(0)]))

    def append(partition: int, key: bytes, value: bytes | None) -> None:
        topic.append(Event("t", partition, 0, NOW * 1000, key, value))

    def batch(*new_events: Event) -> list[str]:
        pages = Pages(store)
        merged = list(TopicPartitionMerger(table, codec, pages, 0, 10 * DAY_S, PATIENCE_S).take(new_events, NOW))
        pages.flush()
        topic.clear()
        CellRequests(SETTINGS, MemorySession([]), table, append).answer(
            [m for m in merged if isinstance(m, ReadRequest)], BatchOutcome()
        )
        return [m.op for m in merged if isinstance(m, RowChange)]

    append(0, codec.encode((i(1),)), request(Scope.ROW, Origin.SNAPSHOT))
    assert batch(*topic) == []
    assert batch(*topic) == ["c"]
    assert batch(*events(Update(table, i(1), deletion=((NOW - 50) * 10**6, NOW)))) == []
    assert answers == [], "it was asked for"
    assert batch(*topic) == ["d"], "no read found it"


def test_a_row_of_its_key_alone_ends_with_the_ttl_of_its_event(cassandra: Cassandra) -> None:
    connector = Connector(cassandra)
    cassandra.live(1, 1, NOW * 10**6, NOW + 20)
    insert = Update(TABLE, i(1), [Row((i(1),), time=NOW * 10**6, expires=(20, NOW + 20))])
    settled(connector, *events(insert, cells=False))
    assert connector.seen == {(1, 1): {}}
    assert cassandra.now < NOW + 10, "at once"
    cassandra.now = NOW + 20
    settled(connector)
    assert connector.seen == {}


def test_an_insert_with_a_ttl_replaces_liveness_guessed_from_cells(cassandra: Cassandra) -> None:
    connector = Connector(cassandra)
    now_us = NOW * 10**6
    cassandra.cell((1, 1, "v", None), now_us - 100, 1, NOW + 10, None)
    snapshot(connector, 1)
    cassandra.live(1, 1, now_us + 1, NOW + 30)
    cassandra.cell((1, 1, "w", None), now_us + 2, 1, NOW + 10, None)
    update = Update(TABLE, i(1), [Row((i(1),), {"w": Cell(i(1), now_us + 2, (10, NOW + 10))})])
    insert = Update(TABLE, i(1), [Row((i(1),), time=now_us + 1, expires=(30, NOW + 30))])
    settled(connector, *events(update), *events(insert))
    for cassandra.now, seen in ((NOW + 10, {(1, 1): {}}), (NOW + 30, {})):
        settled(connector)
        assert connector.seen == seen


def test_a_read_that_comes_late_does_not_bring_back_a_row_that_a_cell_outlived(cassandra: Cassandra) -> None:
    """What kept the row alive after its deletion has ended when the read is merged."""
    connector = Connector(cassandra)
    now_us = NOW * 10**6
    cassandra.cell((1, 1, "v", None), now_us - 100, 1, None, None)
    cassandra.cell((1, 1, "w", None), now_us, 1, NOW + 3, None)
    connector.append(0, CODEC.encode((i(1), i(1))), request(Scope.ROW, Origin.SNAPSHOT))
    connector.batch()
    cassandra.deletions.append((now_us - 1, lambda *_: True))
    for event in events(Update(TABLE, i(1), [Row((i(1),), deletion=(now_us - 1, NOW))])):
        connector.topic.insert(0, event)
    cassandra.now = NOW + 30
    settled(connector)
    cassandra.now += PATIENCE_S
    settled(connector)
    assert connector.seen == {}


def test_elements_of_a_list_that_was_read(cassandra: Cassandra) -> None:
    """Each of them once, also if its own event comes late; and none that was removed."""
    connector = Connector(cassandra)
    write_time, paths = (NOW - 100) * 10**6, [cassandra.new_path(1) for _ in range(3)]
    for path in paths:
        cassandra.cell((1, 1, "l", path), write_time, 7, None, None)
    appended = Update(
        TABLE, i(1), [Row((i(1),), {"l": Complex([Cell(i(7), write_time, path=path) for path in paths])})]
    )
    snapshot(connector, 1)
    settled(connector, *events(appended))
    assert connector.seen == {(1, 1): {"l": [7, 7, 7]}}
    cassandra.cell((1, 1, "l", paths[1]), NOW * 10**6, None, None, NOW)
    removed = Complex([Cell(None, NOW * 10**6, deleted_at=NOW, path=paths[1])])
    settled(connector, *events(Update(TABLE, i(1), [Row((i(1),), {"l": removed})])), *events(appended, node=OTHER))
    assert connector.seen == {(1, 1): {"l": [7, 7]}}
    reads = connector.reads
    new, write_time = cassandra.new_path(1), (NOW + 10) * 10**6
    cassandra.deletions.append((write_time - 1, lambda _, __, column: column == "l"))
    cassandra.cell((1, 1, "l", new), write_time, 8, None, None)
    whole = Complex([Cell(i(8), write_time, path=new)], (write_time - 1, NOW + 10))
    settled(connector, *events(Update(TABLE, i(1), [Row((i(1),), {"l": whole})])))
    assert connector.seen == {(1, 1): {"l": [8]}}
    assert connector.reads == reads, "written as a whole it needs no read any more"


def test_equal_elements_of_one_write_time_of_which_one_expires(cassandra: Cassandra) -> None:
    """Two, though a read shows no paths."""
    connector = Connector(cassandra)
    write_time, (first, second) = (NOW - 100) * 10**6, [cassandra.new_path(1) for _ in range(2)]
    cassandra.cell((1, 1, "l", first), write_time, 7, NOW + 50, None)
    snapshot(connector, 1)
    assert connector.seen == {(1, 1): {"l": [7]}}
    cassandra.cell((1, 1, "l", second), write_time, 7, None, None)
    appended = Row((i(1),), {"l": Complex([Cell(i(7), write_time, path=second)])})
    settled(connector, *events(Update(TABLE, i(1), [appended])))
    assert connector.seen == {(1, 1): {"l": [7, 7]}}
    cassandra.now = NOW + 50
    settled(connector)
    assert connector.seen == {(1, 1): {"l": [7]}}


def test_a_delete_without_cells_that_is_read_too_early(cassandra: Cassandra) -> None:
    """The row is read once more."""
    connector = Connector(cassandra)
    write_time = (NOW - 100) * 10**6
    for column in ("v", "w"):
        cassandra.cell((1, 1, column, None), write_time, 1, None, None)
    snapshot(connector, 1)
    gone = Row((i(1),), {"v": Cell(None, NOW * 10**6, deleted_at=NOW)})
    settled(connector, *events(Update(TABLE, i(1), [gone]), cells=False))
    assert connector.seen == {(1, 1): {"v": {None: 1}, "w": {None: 1}}}
    cassandra.cell((1, 1, "v", None), NOW * 10**6, None, None, NOW)
    cassandra.now += PATIENCE_S
    settled(connector)
    assert connector.seen == {(1, 1): {"w": {None: 1}}}


def test_a_row_of_before_is_read_when_a_change_of_it_comes_first(cassandra: Cassandra) -> None:
    """Until the snapshot is complete: a record with the columns of the change alone is not what the row is."""
    connector = Connector(cassandra)
    connector.trusts_absence = False
    now_us = NOW * 10**6
    for column, value in (("v", 1), ("w", 1)):
        cassandra.cell((1, 1, column, None), now_us - 100, value, None, None)
    cassandra.cell((1, 1, "v", None), now_us, 2, None, None)
    change = events(Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(2), now_us)})]))
    connector.append(0, change[0].key or b"", change[0].value)
    connector.batch()
    assert connector.seen == {}
    settled(connector, *change)
    assert connector.seen == {(1, 1): {"v": {None: 2}, "w": {None: 1}}}
    assert connector.reads == 2, "the row, and the static columns of its partition"
    settled(connector, *events(Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(3), now_us + 1)})])))
    assert connector.seen == {(1, 1): {"v": {None: 3}, "w": {None: 1}}}
    assert connector.reads == 2, "both are known by now"


def test_a_row_that_is_read_has_its_static_columns(cassandra: Cassandra) -> None:
    """Also while the snapshot, which brings them too, is not there yet."""
    connector = Connector(cassandra)
    connector.trusts_absence = False
    now_us = cassandra.now * 10**6
    cassandra.cell((1, None, "st", None), now_us - 100, 7, None, None)
    cassandra.cell((1, 1, "v", None), now_us, 2, None, None)
    published = []
    publish = connector._publish

    def keep(m: RowChange) -> None:
        published.append(m)
        publish(m)

    connector._publish = keep  # type: ignore[method-assign]
    settled(connector, *events(Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(2), now_us)})])))
    (row,) = [m for m in published if m.scope is Scope.ROW]
    assert row.after is not None
    assert row.after["st"] == i(7)


def test_static_columns_are_asked_for_once_a_batch() -> None:
    """However many rows of their partition a snapshot asks for."""
    rows = TopicPartitionMerger(TABLE, CODEC, DictStore(), 0, trusts_absence=False)
    value = request(Scope.ROW, Origin.SNAPSHOT)
    snapshot_events = [Event("t", 0, c, NOW * 1000, CODEC.encode((i(1), i(c))), value) for c in range(2_000)]
    requested_scopes = [
        m.scope for m in rows.take(snapshot_events, NOW) if isinstance(m, ReadRequest) and m.event is None
    ]
    assert requested_scopes == [Scope.STATIC]


@pytest.mark.parametrize("behind_s", [0.0, 0.4, 1.0, 5.0, 5_000.0])
def test_the_last_word_is_read_though_clocks_differ(
    behind_s: float, cassandra: Cassandra, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that does not show a delete yet; the node's clock is behind, and a read is 150 ms after its batch."""
    real = cassandra.read_row

    def read_row(key: Any, scope: Scope) -> ReadRow | None:
        row = real(key, scope)
        return None if row is None else row._replace(read_at_ms=int((cassandra.now + 0.15 - behind_s) * 1000))

    monkeypatch.setattr(cassandra, "read_row", read_row)
    connector = Connector(cassandra)
    write_time = cassandra.now * 10**6
    cassandra.live(1, 1, write_time, None)
    for column in ("v", "w"):
        cassandra.cell((1, 1, column, None), write_time, 1, None, None)
    settled(connector, *events(Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(1)), "w": Cell(i(1))}, write_time)])))
    cassandra.now += 100
    write_time, deleted_at = cassandra.now * 10**6, cassandra.now
    (event,) = events(
        Update(TABLE, i(1), [Row((i(1),), {"v": Cell(None, write_time, deleted_at=deleted_at)})]), cells=False
    )
    connector.append(0, event.key or b"", event.value)
    connector.batch()
    connector.batch()
    cassandra.cell((1, 1, "v", None), write_time, None, None, deleted_at)
    for _ in range(5 * PATIENCE_S):
        cassandra.now += 1
        while connector.batch():
            pass
    assert connector.seen == {(1, 1): {"w": {None: 1}}}


def test_a_row_of_before_that_is_deleted_first_is_said_to_be_gone(cassandra: Cassandra) -> None:
    """It may be on the data topic: another connector, or a state that is gone, published it."""
    connector = Connector(cassandra)
    connector.trusts_absence = False
    connector.seen[1, 1] = {"v": {None: 1}}
    cassandra.deletions.append((NOW * 10**6, lambda *_: True))
    settled(connector, *events(Update(TABLE, i(1), [Row((i(1),), deletion=(NOW * 10**6, NOW))])))
    assert connector.seen == {}


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_insert_whose_row_is_gone_when_it_is_read_makes_no_row_of_nulls(
    cassandra: Cassandra, is_deleted: bool
) -> None:
    """As a new state reads the events of before; the event of the delete comes later."""
    connector = Connector(cassandra)
    now_us, published_ops = NOW * 10**6, []
    publish = connector._publish
    connector._publish = lambda m: (published_ops.append(m.op), publish(m))  # type: ignore[assignment]
    cassandra.live(1, 1, now_us, None)
    cassandra.cell((1, 1, "v", None), now_us, 1, None, None)
    if is_deleted:
        cassandra.deletions.append((now_us + 1, lambda *_: True))
    insert = Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(1), now_us)}, now_us)])
    delete = Update(TABLE, i(1), [Row((i(1),), deletion=(now_us + 1, NOW))])
    connector.topic += events(insert, cells=False)
    cassandra.now += 2 * PATIENCE_S
    settled(connector, *(events(delete, cells=False, offset=1) if is_deleted else ()))
    assert connector.seen == cassandra.whole()
    assert published_ops == ([] if is_deleted else ["c"])


@pytest.mark.parametrize(("write_time", "lives"), [(NOW * 10**6, 0), (None, Effect.ROW)])
def test_an_insert_that_was_not_asked_for_again_still_says_that_its_row_lives(
    cassandra: Cassandra, write_time: int | None, lives: int
) -> None:
    """Without its write time nobody knows whether a read shows it: what was read once may have been too early."""
    effect = int(Effect.LIVE | Effect.ROW | column_bit("v"))
    change = Change("0" * 32, OTHER, Scope.ROW, write_time=write_time, effect=effect)
    event = Event("t", 0, 0, NOW * 1000, CODEC.encode((i(1), i(1))), encode(change))
    answer = Connector(cassandra)._asked._answer(event, change, None, (NOW + 2 * PATIENCE_S) * 1000)
    assert answer is not None
    assert answer.effect & Effect.ROW == lives
