"""Keys that are read in the order of the ring: which of them, and what becomes of the others."""

from __future__ import annotations

import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel, ReadTimeout
from cassandra.metadata import Murmur3Token
from connector.staged import EVENTS, NODE, Staged, int32, rows
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.cassandra_rows._stretches import MIN_KEYS, stretches
from helenus_connector.cassandra_rows.raw_rows import RowPage
from helenus_connector.cassandra_rows.row_reader import RowReader
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.replicas import routing_key
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event
from helenus_connector.reread._key_reads import KeyReads
from helenus_connector.testing.cassandra import Answer, Host, MemorySession
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Change, Origin
from helenus_schemas.event.wire import encode


def keys(tokens: list[int]) -> list[tuple[int, Key]]:
    return [(token, (b"%d" % token, b"%d" % n)) for n, token in enumerate(tokens)]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 300), max_size=400), st.integers(1, 200))
def test_each_key_is_in_one_stretch_at_most_and_a_partition_is_not_cut(tokens: list[int], max_keys: int) -> None:
    keys_asked = keys(tokens)
    token_of = {key: token for token, key in keys_asked}
    ring_slices = list(stretches(keys_asked, max_keys))
    keys_of_slices = [key for stretch in ring_slices for key in stretch.keys]
    assert len(keys_of_slices) == len(set(keys_of_slices)) <= len(keys_asked)
    last = None
    for stretch in ring_slices:
        inside = {key for token, key in keys_asked if stretch.first <= token <= stretch.last}
        assert inside >= set(stretch.keys)
        assert {token_of[key] for key in stretch.keys} >= {stretch.first, stretch.last}
        assert MIN_KEYS <= len(stretch.keys) <= max_keys
        assert last is None or stretch.first > last
        last = stretch.last


def test_keys_of_a_snapshot_are_read_in_stretches_of_about_as_many() -> None:
    ring_slices = list(stretches(keys([n * 1_000 + n % 7 for n in range(2_000)]), 500))
    assert [len(stretch.keys) for stretch in ring_slices] == [500] * 4


def test_new_stretch_begins_where_the_ring_is_empty_or_foreign() -> None:
    near = [n * 1_000 for n in range(100)]
    far = [token + 10_000_000 for token in near]
    assert [(s.first, s.last) for s in stretches(keys(near + far), 500)] == [(0, 99_000), (10_000_000, 10_099_000)]


def test_a_key_alone_is_in_none() -> None:
    assert list(stretches(keys([5]), 500)) == list(stretches([], 500)) == []
    near = [n * 1_000 for n in range(100)]
    assert [len(s.keys) for s in stretches(keys([-(1 << 62), *near]), 500)] == [100]


def test_a_large_partition_is_in_none_and_those_around_it_are() -> None:
    around = [n * 1_000 for n in range(100)]
    ring_slices = list(stretches(keys(around[:50] + [50_500] * 600 + around[51:]), 500))
    assert [(s.first, s.last) for s in ring_slices] == [(0, 49_000), (51_000, 99_000)]


class Ring(MemorySession):
    """Has the rows of these keys, and answers statements by tokens and by keys; `fails` are those by tokens."""

    def __init__(self, there: list[Key]) -> None:
        super().__init__([Host(1)])
        self.there = sorted(there, key=token_of)
        self.by_token = self.by_key = 0
        self.fails: Exception | None = None

    def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Answer:
        if "token(" not in cql:
            self.by_key += 1
            return RowPage((k, k, None) for k in dict.fromkeys(values) if (k,) in self.there), None
        self.by_token += 1
        if self.fails:
            raise self.fails
        first, last = (int.from_bytes(value, "big", signed=True) for value in values)
        keys_in_range = [key for key in self.there if first <= token_of(key) <= last]
        first_index = int(paging_state or 0)
        page = keys_in_range[first_index : first_index + (page_size or len(keys_in_range))]
        return RowPage((k, k, None) for (k,) in page), b"%d" % (first_index + len(page)) if first_index + len(
            page
        ) < len(keys_in_range) else None


TABLE = Table("ks", "t", uuid.uuid1(), (Column("k", parse("int"), "partition_key", 0), Column("v", parse("int"))))
SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}, "test"
)
KEYS: list[Key] = [(struct.pack(">i", i),) for i in range(2_000)]


def token_of(key: Key) -> int:
    token: int = Murmur3Token.hash_fn(routing_key(key))
    return token


def through(reader: RowReader, keys_asked: list[Key]) -> list[Key]:
    keys_read = []
    for answers in reader.read_along_ring(keys_asked, ConsistencyLevel.ONE):
        for key, image in answers:
            assert image.values == key
            keys_read.append(key)
    return keys_read


def test_scan_reads_in_ring_order_and_leaves_missing_rows() -> None:
    session = Ring(KEYS[100:])
    reader = RowReader(session, TABLE, SETTINGS)
    assert sorted(through(reader, KEYS)) == KEYS[100:]
    assert 0 < session.by_token < 20
    assert session.by_key == 0
    assert dict(reader.read_rows(KEYS[:3], ConsistencyLevel.ONE)) == dict.fromkeys(KEYS[:3])


def test_where_reading_through_fails_keys_are_asked_for_as_ever() -> None:
    session = Ring(KEYS)
    reader = RowReader(session, TABLE, SETTINGS)
    session.fails = ReadTimeout("too many tombstones", consistency=1, required_responses=1, received_responses=0)
    assert through(reader, KEYS) == []
    tried = session.by_token
    session.fails = None
    assert through(reader, KEYS) == [], "it is not tried again at once"
    assert session.by_token == tried < 60
    assert len(list(reader.read_rows(KEYS, ConsistencyLevel.ONE))) == 2_000


def test_where_most_rows_are_not_asked_for_they_are_not_read_through_again() -> None:
    session = Ring(KEYS)
    reader = RowReader(session, TABLE, SETTINGS)
    few = KEYS[::20]
    assert set(through(reader, few)) <= set(few)
    read = session.by_token
    assert through(reader, few) == []
    assert session.by_token == read


def test_a_row_between_whose_key_has_no_form_is_passed_by() -> None:
    """Rows that nobody asked for come along: one that no event can name must not end the batch."""
    clustered = Table("ks", "t", uuid.uuid1(), (*TABLE.columns, Column("c", parse("decimal"), "clustering", 0)))
    clustering_key = struct.pack(">i", 0) + b"\1"

    class Clustered(Ring):
        def answer(self, cql: str, values: list[Any], paging_state: bytes | None, page_size: int | None) -> Answer:
            page, state = super().answer(cql, values, paging_state, page_size)
            return RowPage((row[0], c, row[0], None) for row in page for c in (b"12", clustering_key)), state

    reader = RowReader(Clustered(KEYS), clustered, SETTINGS)
    keys_asked: list[Key] = [(*key, clustering_key) for key in KEYS]
    answers = reader.read_along_ring(keys_asked, ConsistencyLevel.ONE)
    assert sorted(key for answer in answers for key, _ in answer) == keys_asked


def test_what_a_repair_asks_for_lies_anywhere() -> None:
    key_reads = KeyReads(KeyCodec(TABLE), ConsistencyLevel.ONE)
    for n, origin in enumerate(Origin):
        key = KEYS[n]
        change = Change(None, None, origin=origin)
        key_reads.add(AdmittedChange(Event("t", 0, n, 0, b"%d" % n, b""), change, b"%d" % n, key, None))
    scanned = {n for n, key_read in enumerate(key_reads.by_name.values()) if key_read.is_scanned}
    assert scanned == {Origin.SNAPSHOT, Origin.SNAPSHOT_FIRST, Origin.SNAPSHOT_LAST}


def test_few_keys_are_not_worth_it() -> None:
    session = Ring(KEYS)
    assert through(RowReader(session, TABLE, SETTINGS), KEYS[: MIN_KEYS - 1]) == []
    assert session.by_token == 0


def test_changes_are_published_before_what_a_snapshot_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is long while a snapshot runs: what changed does not wait for the rest of it."""
    staged = Staged(TABLE, tmp_path, monkeypatch)
    staged.live.update(rows(*((key, int32(n)) for n, key in enumerate(KEYS[:40]))))
    scanned, changed = Change(None, None, origin=Origin.SNAPSHOT), Change("0" * 32, NODE, write_time=5)
    changes = [scanned] * 35 + [changed] * 5 + [changed]  # the last one of a key that was scanned too
    places = [*range(40), 3]
    events = [
        Event(EVENTS, 0, n, 1000, staged.codec.encode(KEYS[key_index]), encode(change))
        for n, (key_index, change) in enumerate(zip(places, changes, strict=True))
    ]
    staged.stage.run(events, (), trust_images=True)
    order = [json.loads(record.key or b"")["k"] for record in staged.appended]
    assert sorted(order) == list(range(40))
    assert sorted(order[:6]) == [3, 35, 36, 37, 38, 39]
