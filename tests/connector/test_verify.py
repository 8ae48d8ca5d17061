"""A verification without servers: what records and rows are compared by, and what their comparison says."""

from __future__ import annotations

import itertools
import json
import pickle
import struct
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest
from connector.celled import JSON
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, types, values

from helenus_connector.cassandra_rows import budget
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.interfaces.image import Bounds, Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record
from helenus_connector.log import events
from helenus_connector.query import worker_process
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.row.row import shown_table
from helenus_connector.testing.broker import MemoryMessage, MemoryPlanner
from helenus_connector.testing.cassandra import Answer, Host, MemoryReader, MemorySession
from helenus_connector.testing.registry import MemoryRegistry
from helenus_connector.verify import _engine, _rows
from helenus_connector.verify._entry import ASKED, COUNTS, KEY, NEVER, VerifyEntry, offset_bytes
from helenus_connector.verify._job import VerifyJob, cut, sampled, shared_out, token_of
from helenus_connector.verify._reduce import Comparison
from helenus_connector.verify._rows import RowEntries
from helenus_connector.verify._topic import TopicRecords
from helenus_connector.verify.options import VerifyOptions
from helenus_connector.verify.report import EXPIRED, FOREIGN, GHOST, MISPLACED, MISSING, STALE, UNPUBLISHABLE, Progress
from helenus_connector.verify.scopes import Clustering, MarkerScopes
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse, walk
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Scope
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN
from helenus_schemas.service.logs import setup

slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
WORKER = WorkerSettings.from_properties({"bootstrap.servers": "k:9092", "checkpoint.dir": "/tmp/none"}, "worker")
FORMS: list[dict[str, str]] = [
    {},
    {"output.format": "key-value-json"},
    {"output.format": "json"},
    {"key.compat": "datastax"},
    {"output.format": "key-value-json", "key.compat": "datastax", "headers": ""},
    {"output.format": "debezium"},
    {"output.format": "debezium", "value.converter": JSON, "value.converter.schemas.enable": "false"},
    {"output.format": "debezium", "key.converter": JSON, "value.converter": JSON},
    {"output.format": "key-value-json", "key.converter": JSON, "value.converter": JSON},
    {"output.format": "json", "key.converter": JSON, "value.converter": JSON},
]
TOPIC = "data-ks1.t"


def table(*columns: tuple[str, str], keys: Sequence[str] = ("int", "int")) -> Table:
    made = [
        Column(f"k{i}", parse(t), "clustering" if i else "partition_key", max(i - 1, 0)) for i, t in enumerate(keys)
    ]
    for name, t in columns:
        static = t.endswith(" static")
        made.append(Column(name, parse(t.removesuffix(" static")), "static" if static else "regular"))
    return Table("ks1", "t", uuid.UUID(int=1), tuple(made))


def settings_with(more: dict[str, str]) -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks1", "table": "t", "value.converter.schema.registry.url": "http://r"}
    return ConnectorSettings.from_properties({**properties, **more}, "test")


def int32(value: int | None) -> bytes | None:
    return None if value is None else struct.pack(">i", value)


class Topic:
    """A data topic of one connector, as it writes it, and its table; `alter` gives it another definition."""

    def __init__(self, table: Table, more: dict[str, str], registry: MemoryRegistry | None = None) -> None:
        self.settings = settings_with(more)
        self.registry = registry or MemoryRegistry()
        self.messages: list[MemoryMessage] = []
        self.rows: dict[Key, tuple[bytes | None, ...]] = {}
        self.statics: dict[Key, tuple[bytes | None, ...]] = {}
        self.alter(table)

    def alter(self, table: Table) -> None:
        self.table = shown_table(table, self.settings)
        self.codec = KeyCodec(self.table)
        self.shape = make_shape(self.table, self.settings, self.registry)
        self.job = VerifyJob(WORKER, self.settings, self.table, TOPIC, 2, 1, None, False, setup())

    def add(self, record: Record, partition: int = 0) -> None:
        offset = len(self.messages)
        self.messages.append(
            MemoryMessage(TOPIC, partition, offset, (1, offset), record.key, record.value, record.headers)
        )

    def publish(self, key: Key, row: Sequence[bytes | None] | None, expires: int | None = None) -> None:
        after = None if row is None else Image(tuple(row), 5)
        made = ResolvedKey("events", 0, self.codec.encode(key), key, Scope.ROW)
        made.after, made.expires = after, expires
        self.resolved(made)

    def marker(
        self,
        key: Key,
        scope: Scope,
        after: Image | None = None,
        bounds: Bounds | None = None,
        expires: int | None = None,
    ) -> None:
        """Publish a delete marker; no row lives in its scope."""
        name = b"" if scope is Scope.TABLE else self.codec.encode(key)
        made = ResolvedKey("events", 0, name, key, scope, bounds)
        made.after, made.read_rows, made.expires = after, lambda _: iter(()), expires
        self.resolved(made)

    def resolved(self, resolved: ResolvedKey) -> None:
        resolved.write_time = 5
        for shaped in self.shape.records(resolved):
            assert shaped is not None
            assert shaped.cause is None
            self.add(shaped.record)

    def entries(self, chunk: int = 7) -> list[VerifyEntry]:
        records = TopicRecords(self.job, self.registry.schema, self.registry.schema)
        chunks = [self.messages[i : i + chunk] for i in range(0, len(self.messages), chunk)]
        entries_made = [entry for chunk_of_messages in chunks for entry in records.entries(chunk_of_messages, False)]
        made = RowEntries(self.job)
        n, nulls = len(self.table.partition_key), (None,) * len(self.table.clustering)
        for key, row in self.rows.items():
            entries_made += made.for_row(0, token_of(key[:n]), key, row, False)
        for partition, row in self.statics.items():
            entries_made += made.for_row(0, token_of(partition), (*partition, *nulls), row, True)
        return [*entries_made, *records.shared_entries()]

    def differences(self) -> dict[tuple[bytes, bool], str]:
        """The kinds of keys that differ."""
        rows = Comparison(self.job, False).differences(ordered(self.entries()))
        return {(row[2 + VerifyEntry._fields.index("name")], row[2 + 4]): row[0] for row in rows if row[0]}


def ordered(entries: Iterable[VerifyEntry]) -> list[VerifyEntry]:
    """As Spark sorts them."""

    def turn(entry: VerifyEntry) -> Any:
        token = (0, 0) if entry.token is None else (1, entry.token)
        name = (0, b"") if entry.name is None else (1, entry.name)
        return token, entry.rank, name, entry.static, entry.side, entry.partition, -int.from_bytes(entry.at, "big")

    return sorted(entries, key=turn)


keyed = types(key=True).flatmap(lambda t: st.tuples(st.just(t), values(t)))
valued = types().flatmap(lambda t: st.tuples(st.just(t), st.one_of(st.none(), values(t))))


@slow
@pytest.mark.parametrize("form", FORMS)
@given(
    partition=keyed,
    clustering=st.lists(keyed, max_size=2),
    regulars=st.lists(valued, max_size=3),
    statics=st.lists(valued, max_size=2),
    later=valued,
)
def test_a_record_of_any_row_is_equal_to_it(
    form: dict[str, str], partition: Any, clustering: Any, regulars: Any, statics: Any, later: Any
) -> None:
    """Also after a column was added and one was dropped, and whatever the static columns are by now."""
    if (
        partition[1] != partition[1]
        or cql_bytes(*partition) == b""
        or ("json" in str(form) and any(t.name == "double" for t in walk([partition[0]])))
    ):
        return  # Cassandra has no such key; every NaN is one in JSON
    columns = [Column("p", partition[0], "partition_key", 0)]
    columns += [Column(f"c{i}", t, "clustering", i) for i, (t, _) in enumerate(clustering)]
    columns += [Column(f"r{i}", t) for i, (t, _) in enumerate(regulars)]
    columns += [Column(f"s{i}", t, "static") for i, (t, _) in enumerate(statics if clustering else ())]
    topic = Topic(Table("ks1", "t", uuid.UUID(int=1), tuple(columns)), form)
    key = (cql_bytes(*partition), *(cql_bytes(*part) for part in clustering))
    key = topic.codec.decode(topic.codec.encode(key))
    row = [None if v is None else cql_bytes(t, v) for t, v in [*regulars, *(statics if clustering else ())]] or list(
        key
    )
    topic.publish(key, row)
    topic.rows[key] = tuple(row)
    if topic.table.statics and any(v is not None for v in row[len(regulars) :]):
        nulls = (None,) * len(clustering)
        topic.publish((key[0], *nulls), (*(None,) * len(regulars), *row[len(regulars) :]))
        topic.statics[key[:1]] = tuple(row)
    assert topic.differences() == {}
    if topic.table.regulars:
        topic.alter(replace(topic.table, columns=(*topic.table.columns, Column("later", later[0]))))
        width = len(topic.table.regulars) - 1
        names = [c.name for c in topic.table.regulars]
        assert names[0] == "later"
        topic.rows[key] = (None, *row[:width], *row[width:])
        topic.statics = {k: (None, *v) for k, v in topic.statics.items()}
        assert topic.differences() == {}
        if later[1] is not None:
            topic.rows[key] = (cql_bytes(*later), *row)
            assert topic.differences() == {(topic.codec.encode(key), False): STALE}


@pytest.mark.parametrize("form", FORMS)
def test_each_kind_of_difference(form: dict[str, str]) -> None:
    topic = Topic(table(("v", "int"), ("w", "text")), form)
    rows = {n: (int32(n), b"w") for n in range(8)}
    keys = {n: (int32(n), int32(1)) for n in range(8)}
    for n in range(6):
        topic.publish(keys[n], rows[n], expires=1_000_000 if n == 3 else None)
        topic.rows[keys[n]] = rows[n]
    topic.publish(keys[0], None)
    topic.rows[keys[1]] = (int32(100), b"w")
    del topic.rows[keys[2]], topic.rows[keys[3]]
    topic.rows[keys[6]] = rows[6]
    names = {n: (topic.codec.encode(keys[n]), False) for n in range(8)}
    old = GHOST if "headers" in form else EXPIRED  # without headers no record says that it expired
    assert topic.differences() == {
        names[0]: MISSING,
        names[1]: STALE,
        names[2]: GHOST,
        names[3]: old,
        names[6]: MISSING,
    }


@pytest.mark.parametrize(("written", "kind"), [(6, STALE), (5, EXPIRED), (4, EXPIRED), (None, EXPIRED)])
def test_a_row_that_lives_on_is_not_expired(written: int | None, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat, renewed by changes that were lost: its record says that it expired. Of a row a part may have."""
    topic = Topic(table(("v", "int"), ("w", "int")), {})
    key, row = (int32(1), int32(1)), (None, int32(2))
    topic.publish(key, (int32(1), int32(1)), expires=1_000_000)
    topic.rows[key] = row
    (first,) = [r for r in Comparison(topic.job, False).differences(ordered(topic.entries())) if r[0]]
    assert first[0] in _engine._MAY_PASS, "its row's write time is to be read"
    reader = MemoryReader({key: Image(row, written)}, topic.table)
    monkeypatch.setattr(_rows, "_reader", lambda job, times: reader if times else None)
    reread = _rows._read_again(_rows.TableRows(topic.job, times=True), [VerifyEntry(*first[2:])])
    assert [r[0] for r in Comparison(topic.job, True).differences(ordered(reread)) if r[0]] == [kind]


def test_static_columns_of_a_marker_that_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker's time is that of the deletion, and all that it shows is newer: other columns live on."""
    topic = Topic(table(("v", "int"), ("s", "int static"), ("u", "int static")), {})
    key, lives_on, other = (int32(1), None), (None, None, int32(2)), (int32(2), int32(1))
    topic.publish(other, (int32(1), None, None))  # so that the marker is appended a millisecond after the epoch
    topic.rows[other] = (int32(1), None, None)
    topic.marker(key, Scope.PARTITION, Image((None, int32(1), int32(2)), 6), expires=1_000_000)
    topic.statics[key[:1]] = lives_on[1:]
    (first,) = [r for r in Comparison(topic.job, False).differences(ordered(topic.entries())) if r[0]]
    reader = MemoryReader({}, topic.table)
    monkeypatch.setattr(reader, "read_statics", lambda key, consistency: Image(lives_on, 6))
    monkeypatch.setattr(_rows, "_reader", lambda job, times: reader if times else None)
    reread = _rows._read_again(_rows.TableRows(topic.job, times=True), [VerifyEntry(*first[2:])])
    assert [r[0] for r in Comparison(topic.job, True).differences(ordered(reread)) if r[0]] == [EXPIRED]


def test_write_times_are_read_of_rows_that_are_looked_at_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    session = MemorySession([Host("a")], {"ks1": 1})
    monkeypatch.setattr(worker_process, "session_for", lambda _: session)
    job = Topic(table(("v", "int")), {}).job
    assert _rows._reader(job, times=True)._images.timed
    assert not _rows._reader(job, times=False)._images.timed


def test_a_key_that_cassandra_can_not_take_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ghost on the topic. It is not the table that was altered: another statement is taken."""
    topic = Topic(table(("v", "int"), keys=("text",)), {"output.format": "json"})
    topic.messages.append(MemoryMessage(TOPIC, 0, 0, (1, 0), b'{"k0":""}', b'{"k0":"","v":3}', []))
    (first,) = [r for r in Comparison(topic.job, False).differences(ordered(topic.entries())) if r[0]]

    def answer(cql: str, values: list[Any], paging: bytes | None, size: int | None) -> Answer:
        if b"" in values:
            raise InvalidRequest("Key may not be empty")
        return [], None

    session = MemorySession([Host("a")], {"ks1": 1}, answer)
    monkeypatch.setattr(worker_process, "session_for", lambda _: session)
    reread = list(_rows._read_again(_rows.TableRows(topic.job, times=True), [VerifyEntry(*first[2:])]))
    assert [r[0] for r in Comparison(topic.job, True).differences(ordered(reread)) if r[0]] == [GHOST]


def test_records_of_another_table_are_known_by_their_schema() -> None:
    """JSON keys of two tables may be alike; the header `schema_id` names the table's definition."""
    topic = Topic(table(("v", "int")), {"output.format": "json"})
    other = Topic(replace(table(("v", "int")), name="other"), {"output.format": "json"})
    other.publish((int32(1), int32(1)), (int32(1),))

    def counted() -> Counter[str]:
        counts = Counter[str]()
        for entry in topic.entries():
            if entry.rank == COUNTS:
                counts.update(pickle.loads(entry.note or b""))
        return counts

    tables = [topic.table, replace(topic.table, name="third"), other.table]
    topic.messages = other.messages
    assert _engine._table_of(counted(), tables, topic.settings) == "ks1.other"
    assert _engine._table_of(counted(), tables[:2], topic.settings) is None, "an earlier version of ours, say"
    topic.messages = list(other.messages)
    topic.publish((int32(2), int32(1)), (int32(1),))
    assert _engine._table_of(counted(), tables, topic.settings) is None, "it has records of both"


@pytest.mark.parametrize("form", FORMS[:3])
def test_a_key_that_the_table_can_not_have_is_foreign(form: dict[str, str]) -> None:
    topic = Topic(table(("v", "int")), form)
    topic.publish((int32(1), int32(1)), (int32(1),))
    topic.rows[int32(1), int32(1)] = (int32(1),)
    other = Topic(replace(table(("v", "int"), keys=("text",)), name="other"), form, topic.registry)
    other.publish((b"x",), (int32(1),))
    message = other.messages[0]
    topic.add(Record(message.key(), message.value(), list(message.headers() or ())))
    (kind,) = topic.differences().values()
    assert kind == FOREIGN


def plant(topic: Topic, key: Key, row: Sequence[bytes | None] | None) -> None:
    """Publish a record in another partition than the key's."""
    first = len(topic.messages)
    topic.publish(key, row)
    planted = topic.messages[first:]
    del topic.messages[first:]
    for message in planted:
        topic.add(Record(message.key(), message.value(), list(message.headers() or ())), partition=1)


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("planted", [5, 6])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_record_in_another_partition_is_named(form: dict[str, str], planted: int, is_last: bool) -> None:
    """Also one that is as the row is now: the next change of the row does not replace it."""
    topic = Topic(table(("v", "int")), form)
    keys = [(int32(n), int32(1)) for n in range(4)]
    for n, key in enumerate(keys):
        topic.rows[key] = (int32(5),)
        if n == 2 and not is_last:
            plant(topic, key, (int32(planted),))
        topic.publish(key, (int32(5),))
    if is_last:
        plant(topic, keys[2], (int32(planted),))
    differing = [row for row in Comparison(topic.job, False).differences(ordered(topic.entries())) if row[0]]
    kinds = {MISPLACED} | ({STALE} if is_last and planted == 6 else set())
    assert {row[0] for row in differing} == kinds
    assert {VerifyEntry(*row[2:]).name for row in differing} == {topic.codec.encode(keys[2])}
    # A record without value in that partition ends it.
    plant(topic, keys[2], None)
    topic.publish(keys[2], (int32(5),))
    assert topic.differences() == {}


def test_a_row_that_no_record_can_show_is_counted_apart() -> None:
    topic = Topic(table(("v", "varint")), {"varint.handling.mode": "long"})
    topic.rows[int32(1), int32(1)] = (b"\x7f" * 20,)
    assert list(topic.differences().values()) == [UNPUBLISHABLE]


def test_columns_left_out_for_size_are_verified_without_them() -> None:
    topic = Topic(table(("a", "text"), ("b", "text")), {})
    key, row = (int32(1), int32(1)), (b"x" * 1000, b"y")
    topic.rows[key] = row
    smaller, header = next(topic.shape.smaller(Image(row, 5)))
    made = ResolvedKey("events", 0, topic.codec.encode(key), key, Scope.ROW)
    made.after = smaller
    (shaped,) = topic.shape.records(made)
    assert shaped is not None
    record = shaped.record
    topic.add(record._replace(headers=[*record.headers, header]))
    (difference,) = [r for r in Comparison(topic.job, False).differences(ordered(topic.entries())) if r[0]]
    last = VerifyEntry(*difference[2:])
    request = VerifyEntry(last.part, last.token, KEY, last.name, last.static, ASKED, at=last.at)
    reread = [request, last, *RowEntries(topic.job).for_row(0, last.token, key, row, False, last.note)]
    assert [r[0] for r in Comparison(topic.job, True).differences(reread)] == [""]


BOUNDS = st.tuples(
    st.one_of(st.none(), st.tuples(st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=2))),
    st.one_of(st.none(), st.tuples(st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=2))),
)
STEPS = st.one_of(
    st.tuples(st.just("row"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("gone"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("static"), st.integers(0, 2), st.one_of(st.none(), st.integers(0, 2))),
    st.tuples(st.just("partition"), st.integers(0, 2)),
    st.tuples(st.just("range"), st.integers(0, 2), BOUNDS),
    st.tuples(st.just("truncate")),
)


def within(c: int, d: int, bounds: Any) -> bool:
    """Whether clustering values lie within bounds; the first column is descending."""
    start, end = bounds
    sort_key = (-c, d)
    for bound, is_start in ((start, True), (end, False)):
        if bound is None:
            continue
        includes, bound_values = bound
        limit = tuple(-v if i == 0 else v for i, v in enumerate(bound_values))
        mine = sort_key[: len(limit)]
        if mine == limit:
            if not includes:
                return False
        elif (mine > limit) is not is_start:
            return False
    return True


@slow
@pytest.mark.parametrize("form", FORMS)
@given(steps=st.lists(STEPS, max_size=30), planted=st.lists(st.integers(0, 47), max_size=3))
def test_what_markers_leave_is_compared(form: dict[str, str], steps: list[Any], planted: list[int]) -> None:
    made = table(("v", "int"), ("s", "int static"), keys=("int", "int", "int"))
    columns = tuple(replace(c, reversed=c.name == "k1") for c in made.columns)
    topic = Topic(replace(made, columns=columns), form)
    there: dict[tuple[int, int, int], int] = {}
    statics: dict[int, int] = {}
    all_rows = [("row", *key, 1) for key in itertools.product(range(3), range(4), range(4))]
    for kind, *step in [*all_rows, *steps]:
        p = step[0] if step else 0
        partition = (int32(p), None, None)
        image = Image((None, int32(statics.get(p))), 5) if p in statics else None
        if kind == "row":
            _, c, d, v = step
            topic.publish((int32(p), int32(c), int32(d)), (int32(v), int32(7)))
            there[p, c, d] = v
        elif kind == "gone":
            topic.publish((int32(p), *map(int32, step[1:])), None)
            there.pop(tuple(step), None)
        elif kind == "static":
            statics.pop(p, None)
            if step[1] is not None:
                statics[p] = step[1]
            topic.publish((int32(p), None, None), (None, int32(step[1])))
        elif kind == "partition":
            statics.pop(p, None)
            topic.marker(partition, Scope.PARTITION)
            there = {key: v for key, v in there.items() if key[0] != p}
        elif kind == "range":
            bounds = step[1]
            limits = [b and Bound(b[0], tuple(int32(v) or b"" for v in b[1])) for b in bounds]
            topic.marker(partition, Scope.RANGE, image, (limits[0], limits[1]))
            there = {key: v for key, v in there.items() if key[0] != p or not within(*key[1:], bounds)}
        else:
            topic.marker((), Scope.TABLE)
            there, statics = {}, {}
    expected: dict[tuple[bytes, bool], str] = {}
    for p, c, d in itertools.product(range(3), range(4), range(4)):
        key, name = (int32(p), int32(c), int32(d)), topic.codec.encode((int32(p), int32(c), int32(d)))
        changed = p * 16 + c * 4 + d in planted
        if (p, c, d) in there and not changed:
            topic.rows[key] = (int32(there[p, c, d]), int32(9))
        elif (p, c, d) in there:
            expected[name, False] = GHOST
        elif changed:
            topic.rows[key] = (int32(1), None)
            expected[name, False] = MISSING
    topic.statics = {(int32(p),): (None, int32(s)) for p, s in statics.items()}
    assert topic.differences() == expected


def test_ranges_over_keys() -> None:
    """Each of a few bounds with each, over each key: the newest marker over it is found."""
    columns = [Column("c", parse("int"), "clustering", 0, reversed=True), Column("d", parse("int"), "clustering", 1)]
    clustering = Clustering(columns)
    key_bounds = [None, *((i, v) for i in (True, False) for v in ([0], [1], [0, 0], [0, 1], [1, 0], [1, 1]))]

    def text(bound: Any) -> bytes:
        if bound is None:
            return b""
        named = dict(zip("cd", bound[1], strict=False))
        return json.dumps({"inclusive": bound[0], "values": named}).encode()

    pairs = list(itertools.product(key_bounds, key_bounds))
    for number, bounds in enumerate(pairs):
        scopes = MarkerScopes(clustering)
        marks = [bounds, pairs[number * 7 % len(pairs)], pairs[number * 31 % len(pairs)]]
        for offset, (start, end) in zip((3, 2, 1), marks, strict=True):
            scopes.add(offset_bytes(offset), text(start) + b"\n" + text(end))
        for c, d in itertools.product(range(2), range(2)):
            expected = next(
                (offset_bytes(offset) for offset, b in zip((3, 2, 1), marks, strict=True) if within(c, d, b)), NEVER
            )
            assert scopes.over((int32(c), int32(d))) == (expected, expected), (marks, c, d)


def test_a_queue_has_few_segments() -> None:
    clustering = Clustering([Column("c", parse("int"), "clustering", 0)])
    scopes = MarkerScopes(clustering)
    for n in reversed(range(1000)):
        scopes.add(offset_bytes(n), b'\n{"inclusive":false,"values":{"c":%d}}' % n)
    assert len(scopes._starts) == 1
    scopes.add(offset_bytes(0), b"no bounds\n")
    assert scopes.over((int32(5),)) == (offset_bytes(999), offset_bytes(999))
    assert scopes.over((int32(5000),)) == (NEVER, offset_bytes(0))


def test_rows_are_taken_from_the_budget_of_the_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = MemorySession([Host("a")], {"ks": 1})
    monkeypatch.setattr(worker_process, "session_for", lambda _: session)
    topic = Topic(table(("v", "int")), {"query.max.rate": "1000"})
    reader = _rows._reader(replace(topic.job, directory=tmp_path), times=False)
    assert reader.budget is not None
    reader.budget.take(400)
    of_the_stage = budget.budget_for(tmp_path / "default", topic.job.settings)
    with of_the_stage._locked_state() as (state, _):
        assert state.paid_rows == pytest.approx(600, abs=100)
    assert _rows._reader(topic.job, times=False) is reader
    assert reader.budget is None, "nobody else reads"


def test_a_topic_without_a_leader_has_not_lost_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """An election is waited for; where there is no leader for long, nothing is said of the records."""
    run, broker, waited = object.__new__(_engine._Run), MemoryPlanner(), []
    run._job, run._planner, run._ends = Topic(table(("v", "int")), {}).job, broker, {}
    run._progress = Progress()
    broker.ends, broker.start = {TOPIC: {}}, 0

    def elect(seconds: float) -> None:
        waited.append(seconds)
        broker.ends = {TOPIC: {"0": 7, "1": 5}}

    monkeypatch.setattr(run._progress, "wait", elect)
    assert [str(offset_range) for [offset_range] in run._ranges()] == [
        f"topic {TOPIC}, partition 0, offsets 0 to 7",
        f"topic {TOPIC}, partition 1, offsets 0 to 5",
    ]
    assert waited
    broker.ends = {TOPIC: {}}
    monkeypatch.setattr(run._progress, "wait", waited.append)
    monkeypatch.setattr(events, "_LEADER_S", 0.0)
    for since in (False, True):
        with pytest.raises(HelenusError, match=f"no leader.*{TOPIC}") as error:
            run._ranges(since)
        assert error.value.kind is Kind.BROKER_UNREACHABLE


def test_a_ring_is_cut_and_sampled() -> None:
    whole = (LEAST_TOKEN, MOST_TOKEN)
    for count in (1, 2, 7, 1000):
        parts = cut([whole], count)
        assert len(parts) == count
        assert (parts[0][0], parts[-1][1]) == whole
        assert all(end + 1 == start for (_, end), (start, _) in itertools.pairwise(parts))
    assert cut([(5, 6)], 10) == [(5, 5), (6, 6)]
    assert cut([(5, 6), (10, 109)], 4) == [(5, 6), (10, 42), (43, 75), (76, 109)]
    assert cut([(-9, -8), (5, 5), (7, 7)], 1) == [(-9, -8), (5, 5), (7, 7)]
    sampled_ranges = sampled([whole], 0.1)
    assert len(sampled_ranges) == 100
    job = replace(Topic(table(("v", "int")), {}).job, tokens=tuple(sampled_ranges))
    for first, last in sampled_ranges:
        assert job.has(first)
        assert job.has(last)
        assert job.has(first - 1) == any(end == first - 1 for _, end in sampled_ranges)
        assert job.has(last + 1) == any(start == last + 1 for start, _ in sampled_ranges)
    assert sorted(itertools.chain(*shared_out(sampled_ranges, 7))) == sampled_ranges


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": 0}, "sample"),
        ({"sample": "x"}, "sample"),
        ({"token_range": "5"}, "token_range"),
        ({"token_range": "7:5"}, "token_range"),
        ({"token_range": "7:9,8:10"}, "token_range"),
        ({"limit": -1}, "limit"),
        ({"patience": -1}, "patience"),
        ({"repair": "yes"}, "repair"),
        ({"reparo": True}, "reparo"),
    ],
)
def test_options_that_can_not_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VerifyOptions.from_words(options)


def test_options() -> None:
    assert VerifyOptions.from_words({}).is_whole
    options = VerifyOptions.from_words(
        {"token_range": "-5:10", "sample": 0.5, "repair": True, "limit": 3, "patience": 1}
    )
    assert options == VerifyOptions(True, ((-4, 10),), 0.5, 3, 1.0)
    assert VerifyOptions.from_words({"token_range": ":10"}).tokens == ((LEAST_TOKEN, 10),)
    assert VerifyOptions.from_words({"token_range": "20:30,:10"}).tokens == ((LEAST_TOKEN, 10), (21, 30))


@pytest.mark.parametrize("form", FORMS)
def test_masked_rows_are_compared_as_they_were_published(form: dict[str, str]) -> None:
    """And a row that is not to be published is none: a record of it is a ghost."""
    masks = {"column.mask.hash.v2.MD5.with.salt.x": "ks1.t.w", "where.t": "v > 4 AND k0 < 8"}
    topic = Topic(table(("v", "int"), ("w", "text")), {**form, **masks})
    low = int32(1)
    topic.rows = {(int32(7), low): (int32(5), b"w"), (int32(8), low): (int32(5), b"w"), (int32(6), low): (low, b"w")}
    for key, row in topic.rows.items():
        topic.publish(key, row)
    assert not topic.differences()
    topic.rows[(int32(7), low)] = (int32(5), b"x")
    assert list(topic.differences().values()) == [STALE]
    topic.rows[(int32(7), low)] = (low, b"x")
    assert list(topic.differences().values()) == [GHOST]
