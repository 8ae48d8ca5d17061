"""Ordinary mutations are merged from bytes to bytes: what follows is the same as when each row is decoded, plain and
compiled, whatever comes in between.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from agent.writer import Cell, Complex, Row, Update, table_of
from bench.merged import DecodingMerger
from connector.celled import NODE, OTHER, events
from connector.test_state_index import DictStore
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange, RowChange
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.state.rows import _merge, _replica_reports, _row_update
from helenus_connector.state.rows._former_row_bytes import load_former_row
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.rows._row_bytes import dump_row, load_row
from helenus_connector.state.rows._topic_partition_history import TopicPartitionHistory
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.cells import Cell as KeptCell
from helenus_schemas.event.cells import Cells, Liveness
from helenus_schemas.event.cells_writer import encode_cells
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import encode

NOW = 1_700_000_000
TABLES = (
    table_of("t", "k int pk, c int ck, v int, w text, x int"),
    table_of("u", "k int pk, v int, w text, x int"),
    table_of("n", "k int pk, v int, w text, x int, m map<int,int>"),
    replace(table_of("d", "k int pk, v int, w text, x int"), dropped_at={"x": NOW * 10**6 + 20}),
    table_of("s", "k int pk, c int ck, st int static, v int, w text, x int"),
    table_of("wide", "k int pk, v int, w text, x int, " + ", ".join(f"y{n} int" for n in range(70))),
)
ROWS = Path(_row_update.__file__).parent
_WIDE = [", ".join(f"y{n} int" for n in range(count)) for count in (63, 64, 65, 300)]
EXTREME_TABLES = (
    *TABLES[:2],
    TABLES[3],
    table_of("e", "k int pk, c int ck"),
    *(table_of(f"wide{len(columns)}", f"k int pk, c int ck, {columns}") for columns in _WIDE),
)
EXTREME_TIMES = (-(1 << 63) + 1, -(1 << 62), -1, 0, 1, 1 << 62, (1 << 63) - 2, (1 << 63) - 1)
"""Write times. The lowest of all stands for none."""


@pytest.fixture(scope="module", params=["plain", "compiled"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    source = ROWS / "_ordinary_merge.py"
    if request.param == "compiled":
        return twice.compiled(source, tmp_path_factory)
    plain = twice.plain(source)
    plain.RowUpdater = twice.plain(ROWS / "_row_update.py").RowUpdater  # type: ignore[attr-defined]
    return plain


@pytest.fixture(scope="module", params=["plain", "compiled"])
def reports_module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    source = ROWS / "_replica_reports.py"
    return twice.plain(source) if request.param == "plain" else twice.compiled(source, tmp_path_factory)


def i(n: int) -> bytes:
    return n.to_bytes(4, "big")


def random_events(table: Table, chance: random.Random, count: int, time_s: int) -> list[Event]:
    """Mutations of a few rows, most of them newer than the ones before, and rows that a snapshot read."""
    made: list[Event] = []
    for number in range(count):
        time = time_s * 10**6 + number if chance.random() < 0.9 else (time_s - chance.randrange(30)) * 10**6
        key, clustering = i(chance.randrange(2)), (i(chance.randrange(2)),) if table.clustering else ()
        kind = chance.randrange(20)
        if kind == 0:
            update = Update(table, key, [Row(clustering, deletion=(time, time_s))])
        elif kind == 1 and table.clustering:
            update = Update(table, key, deletion=(time, time_s))
        elif kind == 2:
            made.append(snapshot_row(table, key, clustering, chance, time, len(made)))
            continue
        else:
            update = Update(table, key, [random_row(table, clustering, chance, time, time_s)])
        node = chance.choice([NODE, OTHER])
        made += events(update, node=node, offset=len(made))
        if chance.random() < 0.2:
            made.append(made[-1])  # a copy
    return [event._replace(timestamp=time_s * 1000, offset=n) for n, event in enumerate(made)]


def random_row(table: Table, clustering: tuple[bytes, ...], chance: random.Random, time: int, time_s: int) -> Row:
    expires = (20, time_s + 20) if chance.random() < 0.3 else None
    columns: dict[str, Cell | Complex] = {}
    for name in ("v", "w", "x"):
        value = i(chance.randrange(3)) if name != "w" else b"x" * chance.choice([0, 1, 70])
        match chance.randrange(6):
            case 0:
                columns[name] = Cell(None, time, deleted_at=time_s)
            case 1:
                columns[name] = Cell(value, time, (10, time_s + 10))
            case 2 | 3:
                columns[name] = Cell(value, time)
    for column in table.values:
        if column.name.startswith("y") and chance.random() < 0.9:
            columns[column.name] = Cell(i(chance.randrange(3)), time)
    if any(c.name == "m" for c in table.values) and chance.random() < 0.3:
        columns["m"] = Complex([Cell(i(1), time, path=i(2))])
    if any(c.name == "st" for c in table.values):
        return Row(clustering, columns or {"v": Cell(i(1), time)}, time=time)
    is_insert = chance.random() < 0.5 or not columns
    return Row(clustering, columns, time=time if is_insert else None, expires=expires if is_insert else None)


def extreme_events(table: Table, chance: random.Random, count: int, time_s: int) -> list[Event]:
    """Mutations whose write times are often equal, or as far away as can be, and which end at any time."""
    made: list[Event] = []
    for _ in range(count):
        key, clustering = i(chance.randrange(2)), (i(chance.randrange(2)),) if table.clustering else ()
        deletion = extreme_time(chance, time_s), time_s
        match chance.randrange(25):
            case 0 if table.clustering:
                update = Update(table, key, [Row(clustering, deletion=deletion)])
            case 1:
                update = Update(table, key, deletion=deletion)
            case _:
                update = Update(table, key, [extreme_row(table, clustering, chance, time_s)])
        made += events(update, node=chance.choice([NODE, OTHER]), offset=len(made))
        if chance.random() < 0.2:
            made.append(chance.choice(made))
    appended_s = [chance.choice([time_s, time_s, time_s - 3]) for _ in made]
    return [event._replace(timestamp=appended_s[n] * 1000, offset=n) for n, event in enumerate(made)]


def extreme_time(chance: random.Random, time_s: int) -> int:
    match chance.randrange(20):
        case 0 | 1:
            return chance.choice(EXTREME_TIMES)
        case 2 | 3 | 4:
            return (time_s - chance.randrange(40)) * 10**6
        case _:
            return time_s * 10**6 + chance.randrange(6)


def extreme_expiry(chance: random.Random, time_s: int) -> tuple[int, int]:
    """A TTL, and when it ends: at the time of the batch, at the first and last second of all, at another one."""
    ttl = chance.choice([0, 1, 2, 10, (1 << 31) - 1])
    return ttl, chance.choice([time_s + ttl & 0xFFFFFFFF, time_s, time_s + 1, time_s + 2, 0, 1, 1 << 31, 0xFFFFFFFF])


def extreme_row(table: Table, clustering: tuple[bytes, ...], chance: random.Random, time_s: int) -> Row:
    names = [column.name for column in table.regulars]
    names = chance.sample(names, chance.choice([0, 1, len(names) // 2, len(names)])) if names else []
    row_time, is_insert = extreme_time(chance, time_s), chance.random() < 0.5 or not names
    expires = extreme_expiry(chance, time_s) if is_insert and chance.random() < 0.3 else None
    columns: dict[str, Cell | Complex] = {}
    for name in names:
        value = chance.choice([b"", b"a", b"x" * 130]) if name == "w" else i(chance.randrange(3))
        time = row_time if chance.random() < 0.8 else extreme_time(chance, time_s)
        match chance.randrange(6):
            case 0:
                deleted_at = chance.choice([time_s, time_s - 100_000, time_s - 864_000, 0, 0xFFFFFFFF])
                columns[name] = Cell(None, time, deleted_at=deleted_at)
            case 1:
                columns[name] = Cell(value, time, extreme_expiry(chance, time_s))
            case 2 if is_insert:
                columns[name] = Cell(value, None)
            case 3 if expires is not None:
                columns[name] = Cell(value, chance.choice([None, time]), row_ttl=True)
            case _:
                columns[name] = Cell(value, time)
    return Row(clustering, columns, time=row_time if is_insert else None, expires=expires)


def snapshot_row(
    table: Table, key: bytes, clustering: tuple[bytes, ...], chance: random.Random, time: int, offset: int
) -> Event:
    read_cells = (KeptCell("v", time, i(chance.randrange(3))), KeptCell("w", time - 7, b"y"))
    ids = table.id.bytes, bytes.fromhex(table.schema_id)
    types = {c.name: c.type for c in table.values if c.name in ("v", "w")}
    cells = Cells(*ids, types, Liveness(time), cells=read_cells)
    made = Change(
        None,
        None,
        Scope.ROW,
        segment=time // 1000,
        position=time // 1000,
        origin=Origin.SNAPSHOT,
        cells=encode_cells(cells),
    )
    return Event(f"events-{table.full_name}", 0, offset, 0, KeyCodec(table).encode((key, *clustering)), encode(made))


def merge_batches(
    merger_class: Any,
    table: Table,
    batches: list[tuple[list[Event], int]],
    trusts_absence: bool,
    store: DictStore,
    gc_grace_s: int = 60,
    is_cassandra_3: bool = False,
) -> list[tuple[list[MergedChange], tuple[int, ...], frozenset[str]]]:
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_merge, "OrdinaryMerger", merger_class)
        for batch, now in batches:
            rules: Any = {"trusts_absence": trusts_absence, "is_cassandra_3": is_cassandra_3}
            merger = TopicPartitionMerger(table, KeyCodec(table), store, 0, gc_grace_s, **rules)
            # In the order of each key: which of two that expire in one second comes first is no one's business.
            changes = sorted(merger.take(batch, now), key=lambda change: getattr(change, "key", b"") or b"")
            counts = merger.copies, merger.outdated, merger.unchanged, merger.row_count, merger.disturbances
            results.append((changes, counts, frozenset(merger.nodes_with_cells)))
    return results


def stored(store: DictStore) -> dict[bytes, Any]:
    """Return what is kept of rows and partitions, rows as bytes; not for when they are looked at again."""
    rows: dict[bytes, bytes] = {}
    for key, value in store.values.items():
        if key[:1] in (b"r", b"s"):
            row = load_row(value)
            assert dump_row(row) == value
            row.scheduled_at = 0
            rows[key] = dump_row(row)
    history = TopicPartitionHistory.loads(store.values[b"m"])
    return {**rows, **{key: value for key, value in store.values.items() if key[:1] == b"g"}, b"m": history}


@given(st.integers(0, 1 << 32), st.sampled_from(TABLES), st.booleans())
def test_bytes_are_merged_as_decoded_rows_are(
    module: ModuleType, seed: int, table: Table, trusts_absence: bool
) -> None:
    chance = random.Random(seed)
    batches = []
    time_s = NOW
    for _ in range(4):
        batches.append((random_events(table, chance, chance.choice([1, 4, 12]), time_s), time_s + 1))
        time_s += chance.choice([3, 15, 40])
    expected_store, store = DictStore(), DictStore()
    expected = merge_batches(DecodingMerger, table, batches, trusts_absence, expected_store)
    assert merge_batches(module.OrdinaryMerger, table, batches, trusts_absence, store) == expected
    assert stored(store) == stored(expected_store)


@given(
    st.integers(0, 1 << 32),
    st.sampled_from(EXTREME_TABLES),
    st.booleans(),
    st.sampled_from([0, 60, 864_000]),
    st.booleans(),
)
def test_extreme_bytes_are_merged_as_decoded_rows_are(
    module: ModuleType, seed: int, table: Table, trusts_absence: bool, gc_grace_s: int, is_cassandra_3: bool
) -> None:
    chance, batches, time_s = random.Random(seed), [], NOW
    for _ in range(5):
        batch = extreme_events(table, chance, chance.choice([1, 4, 12]), time_s)
        batches.append((batch, time_s + chance.choice([0, 0, 1, 2])))
        time_s += chance.choice([0, 1, 3, 15, 86_400, 864_000])
    expected_store, store, rules = DictStore(), DictStore(), (gc_grace_s, is_cassandra_3)
    expected = merge_batches(DecodingMerger, table, batches, trusts_absence, expected_store, *rules)
    assert merge_batches(module.OrdinaryMerger, table, batches, trusts_absence, store, *rules) == expected
    assert stored(store) == stored(expected_store)


def damage(event: Event, chance: random.Random) -> Event:
    """Return an event whose cells are damaged, as anybody who writes to the topic may send it."""
    value = bytearray(event.value or b"")
    for _ in range(chance.choice([0, 1, 3])):
        # Cells are the last of an event, and begin with ids.
        offset = chance.randrange(max(0, len(value) - 90), len(value)) if len(value) > 200 else len(value) - 1
        match chance.randrange(5):
            case 0:
                value[offset] = chance.randrange(256)
            case 1:
                del value[offset + 1 :]
            case 2:
                value[offset:offset] = bytes([chance.randrange(256)])
            case 3:
                value[offset : offset + 1] = b"\xff" * chance.randrange(1, 11)
            case 4:
                value[offset] ^= 1 << chance.randrange(8)
    return event._replace(value=bytes(value))


@given(st.integers(0, 1 << 32), st.sampled_from(TABLES))
def test_damaged_cells_are_as_when_each_row_is_decoded(module: ModuleType, seed: int, table: Table) -> None:
    chance, batches, time_s = random.Random(seed), [], NOW
    for _ in range(3):
        batch = random_events(table, chance, chance.choice([4, 12]), time_s)
        batches.append(([damage(event, chance) for event in batch], time_s + 1))
        time_s += chance.choice([1, 15])
    expected_store, store = DictStore(), DictStore()
    try:
        expected = merge_batches(DecodingMerger, table, batches, True, expected_store)
    except SchemaChanged:
        with pytest.raises(SchemaChanged):
            merge_batches(module.OrdinaryMerger, table, batches, True, store)
        return
    assert merge_batches(module.OrdinaryMerger, table, batches, True, store) == expected
    assert stored(store) == stored(expected_store)


def test_changes_of_a_large_row_are_not_in_memory_together(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the row before and after; as many as are merged at once take a few megabytes."""
    table, sizes = TABLES[1], list[int]()

    class Merger(module.OrdinaryMerger):  # type: ignore[name-defined, misc]
        def merge_run(self, reports: Any, start: int) -> tuple[int, list[RowChange]]:
            end, changes = super().merge_run(reports, start)
            sizes.append(len(changes))
            return end, changes

    monkeypatch.setattr("helenus_connector.state.rows._row_store.load_row", None)
    time = NOW * 10**6
    insert = Row((), {"v": Cell(i(1)), "w": Cell(b"x" * 400_000)}, time=time)
    updates = [Row((), {"v": Cell(i(n), time + n)}) for n in range(1, 10)]
    batch = events(*[Update(table, i(1), [row]) for row in (insert, *updates)])
    ((changes, counts, _),) = merge_batches(Merger, table, [(batch, NOW)], True, DictStore())
    assert sizes == [3, 3, 3, 1]
    values = [change.after and change.after["v"] for change in changes if isinstance(change, RowChange)]
    assert values == [i(n) for n in (1, *range(1, 10))]
    assert counts[:3] == (0, 0, 0)


@given(st.integers(0, 1 << 32), st.sampled_from(TABLES))
def test_reports_are_the_same_plain_and_compiled(reports_module: ModuleType, seed: int, table: Table) -> None:
    chance, codec = random.Random(seed), KeyCodec(table)
    batch = [damage(event, chance) for event in random_events(table, chance, 12, NOW)]
    reports = reports_module.ReplicaReports(codec, bool(table.clustering))
    expected_reports = _replica_reports.ReplicaReports(codec, bool(table.clustering))
    for event in (
        *batch,
        *(event._replace(key=None) for event in batch),
        *(event._replace(value=b"") for event in batch),
    ):
        try:
            expected = expected_reports.for_event(event)
        except Malformed as error:
            with pytest.raises(Malformed, match=re.escape(str(error))):
                reports.for_event(event)
            continue
        report = reports.for_event(event)
        assert tuple(report)[:-1] == tuple(expected)[:-1]
        assert type(report).__name__ == type(expected).__name__


def test_ordinary_updates_decode_no_row(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test before would be one of nothing."""
    table = TABLES[0]
    store = DictStore()
    rows = [Row((i(1),), {"v": Cell(i(n)), "w": Cell(b"x")}, time=NOW * 10**6 + n) for n in range(3)]
    monkeypatch.setattr("helenus_connector.state.rows._row_store.load_row", None)
    batch = events(*[Update(table, i(1), [row]) for row in rows])
    ((changes, _, nodes),) = merge_batches(module.OrdinaryMerger, table, [(batch, NOW)], True, store)
    assert [change.op for change in changes if isinstance(change, RowChange)] == ["c", "u", "u"]
    assert nodes == {NODE}


def test_rows_of_before_are_read_and_written_in_the_form_of_today(module: ModuleType) -> None:
    """A checkpoint of the version before: the first change of a row decodes it, the next one does not."""
    table, store = TABLES[1], DictStore()
    insert = events(Update(table, i(1), [Row((), {"v": Cell(i(1))}, time=NOW * 10**6)]))
    merge_batches(module.OrdinaryMerger, table, [(insert, NOW)], True, store)
    (name,) = (key for key in store.values if key[:1] == b"r")
    former = (
        b"\3\0" + b"\xff\xff\xff\xff" + bytes(8) + b"\1" + (NOW * 10**6).to_bytes(8, "big") + bytes(12)
        + bytes(4) + b"\0\0\0\1" + b"\0" + (NOW * 10**6).to_bytes(8, "big") + b"\0\1v" + b"\0\0\0\4" + i(1)
    )  # fmt: skip
    row = load_row(store.values[name])
    row.recent_mutations = b""
    assert load_former_row(former) == load_row(former) == row
    store.values[name] = former
    for value in (2, 3):
        update = events(Update(table, i(1), [Row((), {"v": Cell(i(value), NOW * 10**6 + value)})]))
        ((changes, _, _),) = merge_batches(module.OrdinaryMerger, table, [(update, NOW)], True, store)
        (change,) = changes
        assert isinstance(change, RowChange)
        assert (change.before, change.after) == (
            {"v": i(value - 1), "w": None, "x": None},
            {"v": i(value), "w": None, "x": None},
        )
        assert store.values[name][0] == 4
