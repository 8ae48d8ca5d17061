"""The resolver `merge`: from events with cells, by the rows that are kept, to records with before and after."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import twice
from agent.writer import Cell, Marker, Row, Update, table_of
from connector.celled import AS_JSON, JSON, OTHER, events
from connector.test_ordinary_rows import TABLES, random_events
from connector.test_state_index import DictStore
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.interfaces.shape import ShapedRecord
from helenus_connector.pipeline._record_appender import RecordAppender
from helenus_connector.pipeline._undeliverable import Undeliverable
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.resolve import merge
from helenus_connector.resolve.merge import StateResolver
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.row.row import shown_table
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.testing.log import MemoryLog as Log
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import decode, encode

TABLE = table_of("t", "k int pk, c int ck, s int static, v int, w int")
FIELDS = (
    "topic partition key values scope bounds event events is_confirmed newest write_time expires op before after"
).split()
NOW = 1_700_000_000
T = NOW * 1_000_000
PLAIN = {"output.format": "key-value-json"}
FORMATS = {
    "rows": PLAIN,
    "debezium": AS_JSON,
    "debezium-cassandra": {"output.format": "debezium-cassandra", "value.converter": JSON},
    "cep44": {"output.format": "cep44", "value.converter": JSON},
}


def i(n: int) -> bytes:
    return n.to_bytes(4, "big", signed=True)


def insert(c: int, time_offset: int, **values: int) -> Update:
    """An INSERT of the row `c` of partition 7, `time_offset` µs after `T`."""
    return update(Row((i(c),), {name: Cell(i(value)) for name, value in values.items()}, T + time_offset))


def update(*rows: Row | Marker, **more: Any) -> Update:
    return Update(TABLE, i(7), rows, lowest=(T - 1, NOW, 0), **more)


class Path:
    """Batches of events through the kept rows, the resolver and a shape. `last` is what a naive sink has: by key."""

    def __init__(self, **more: str) -> None:
        properties = {"name": "n", "keyspace": "ks", "table": "t", **more}
        self.settings = ConnectorSettings.from_properties(properties, "test")
        self.store = DictStore()
        table = shown_table(TABLE, self.settings)
        self.resolver = StateResolver("events-ks.t", table, KeyCodec(table))
        self.shape = make_shape(table, self.settings, MemoryRegistry())
        self.last: dict[Any, Any] = {}
        self.log = Log()
        version: Any = SimpleNamespace(current=SimpleNamespace(table=TABLE, topic="data"))
        self.appending = RecordAppender(self.settings, version, Undeliverable(self.settings))

    def take(self, batch: Sequence[Event], now: float = NOW) -> list[ShapedRecord]:
        shaped_records: list[ShapedRecord] = []
        for merged in TopicPartitionMerger(TABLE, KeyCodec(TABLE), self.store, 0, markers=self.settings.markers).take(
            batch, now
        ):
            resolved = self.resolver.resolved(merged)
            for shaped in [] if resolved is None else self.shape.records(resolved):
                assert shaped is not None
                assert shaped.cause is None
                shaped_records.append(shaped)
                self.appending.append(self.log, resolved, BatchOutcome(), shaped)
        return shaped_records

    def upsert(self, batch: Sequence[Event], now: float = NOW) -> None:
        for shaped in self.take(batch, now):
            key, value = (json.loads(part or b"null") for part in shaped.record[:2])
            if key["c"] is not None:
                self.last[key["c"]] = value


def value(shaped: ShapedRecord) -> Any:
    return json.loads(shaped.record.value or b"null")


def op(shaped: ShapedRecord) -> bytes | None:
    return dict(shaped.record.headers).get("op")


def test_records_say_what_a_row_was_and_what_became_of_it() -> None:
    path = Path(**AS_JSON)
    (made,) = path.take(events(insert(1, 1, v=1, w=2)))
    assert (value(made)["op"], value(made)["before"], op(made)) == ("c", None, b"c")
    (changed,) = path.take(events(insert(1, 2, v=5), offset=1))
    assert (value(changed)["before"]["v"], value(changed)["after"]["v"]) == (1, 5)
    assert (value(changed)["before"]["w"], value(changed)["after"]["w"], op(changed)) == (2, 2, b"u")
    gone, tombstone = path.take(events(update(Row((i(1),), deletion=(T + 3, NOW))), offset=2))
    assert (value(gone)["op"], value(gone)["before"]["v"], value(gone)["after"]) == ("d", 5, None)
    assert (tombstone.record.value, op(gone)) == (None, b"d")


@pytest.mark.parametrize("format_settings", FORMATS.values(), ids=FORMATS)
def test_copies_and_what_lost_are_no_records(format_settings: dict[str, str]) -> None:
    path = Path(**format_settings)
    assert path.take(events(insert(1, 5, v=1)))
    assert not path.take(events(insert(1, 5, v=1), node=OTHER, offset=1))
    assert not path.take(events(insert(1, 4, v=9), offset=2))  # late: an older write


@pytest.mark.parametrize(
    ("format_settings", "name"), [(format_settings, name) for name, format_settings in FORMATS.items()], ids=FORMATS
)
def test_a_delete_of_a_partition_is_a_marker_and_a_null_for_each_row(
    format_settings: dict[str, str], name: str
) -> None:
    path = Path(**format_settings)
    path.take(events(insert(1, 1, v=1), insert(2, 1, v=2)))
    shaped_records = path.take(events(update(deletion=(T + 2, NOW)), offset=2))
    of_marker = [shaped for shaped in shaped_records if "scope" in dict(shaped.record.headers)]
    assert [dict(shaped.record.headers)["scope"] for shaped in of_marker] == [b"partition"]
    assert shaped_records[0] is of_marker[0]
    of_rows = [shaped for shaped in shaped_records if op(shaped) == b"d" and shaped not in of_marker]
    assert len(of_rows) == 2
    if name == "rows":
        assert [shaped.record.value for shaped in of_rows] == [None, None]


def test_a_sink_that_knows_nothing_of_markers_has_the_rows() -> None:
    path = Path(**PLAIN)
    path.upsert(events(*(insert(c, 1, v=c) for c in range(5))))
    path.upsert(events(insert(2, 9, v=20), offset=5))
    path.upsert(events(update(deletion=(T + 5, NOW)), offset=6))
    path.upsert(events(insert(4, 10, v=40), offset=7))
    assert {c: row["v"] for c, row in path.last.items() if row is not None} == {2: 20, 4: 40}


def test_without_markers_static_columns_have_no_records_but_their_own() -> None:
    """A marker has their key: where it is on another topic, nothing of it is left on this one."""
    path = Path(**AS_JSON, state="rows", markers="false", **{"query.group": "n"})
    static = update(static=Row((), {"s": Cell(i(3), T + 2)}))
    path.take(events(insert(1, 1, v=1), insert(2, 1, v=2), static))
    path.take(events(update(*(Marker(kind, (i(1),), ((T + 3, NOW),)) for kind in (1, 6))), offset=3))
    path.take(events(update(deletion=(T + 5, NOW)), offset=4))
    path.take(events(update(deletion=(T + 9, NOW)), offset=5))  # now there are none
    envelopes = [json.loads(record.value) for record in path.log.records("data") if record.value is not None]
    of_statics = [envelope["op"] for envelope in envelopes if (envelope["after"] or envelope["before"])["c"] is None]
    assert of_statics == ["c", "d"]
    assert sum(envelope["op"] == "d" for envelope in envelopes) == 3
    assert path.log.records("markers-data-ks.t")


def test_a_change_of_columns_that_are_not_published_is_no_record() -> None:
    path = Path(**PLAIN, columns="k|c|v")
    assert path.take(events(insert(1, 1, v=1, w=1)))
    assert not path.take(events(insert(1, 2, w=2), offset=1))
    assert path.take(events(insert(1, 3, v=2), offset=2))


def test_a_row_of_a_snapshot_is_read_not_created() -> None:
    path = Path(**AS_JSON)
    (event,) = events(insert(1, 1, v=1))
    change = decode(event.value or b"")._replace(digest=None, node=None, origin=Origin.SNAPSHOT)
    (made,) = path.take([event._replace(value=encode(change))])
    assert (value(made)["op"], value(made)["source"]["snapshot"], op(made)) == ("r", "true", b"r")


def test_static_columns_are_a_record_of_their_own() -> None:
    path = Path(**PLAIN)
    path.take(events(insert(1, 1, v=1)))
    static = update(static=Row((), {"s": Cell(i(3), T + 2)}))
    shaped_records = path.take(events(static, offset=1))
    assert json.loads(shaped_records[0].record.key or b"")["c"] is None
    assert value(shaped_records[0])["s"] == 3
    assert op(shaped_records[0]) == b"c"
    assert decode(events(static)[0].value or b"").scope is Scope.STATIC
    gone = update(static=Row((), {"s": Cell(None, T + 3, deleted_at=NOW)}))
    (shaped,) = path.take(events(gone, offset=2))
    assert (shaped.record.value, op(shaped)) == (None, b"d"), "no sink keeps a row without a value"


def test_static_columns_go_with_their_partition() -> None:
    path = Path(**PLAIN)
    path.take(events(update(static=Row((), {"s": Cell(i(3), T + 2)}))))
    shaped_records = path.take(events(update(deletion=(T + 5, NOW)), offset=1))
    assert [(shaped.record.value, op(shaped)) for shaped in shaped_records] == [(None, b"d"), (None, b"d")]


@pytest.fixture(scope="module", params=["plain", "compiled"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    source = FilePath(merge.__file__).with_name("merge.py")
    return twice.plain(source) if request.param == "plain" else twice.compiled(source, tmp_path_factory)


@given(st.integers(0, 1 << 32), st.sampled_from(TABLES))
def test_changes_resolve_the_same_plain_and_compiled(module: ModuleType, seed: int, table: Table) -> None:
    chance, codec, store = random.Random(seed), KeyCodec(table), DictStore()
    published_table = replace(table, columns=tuple(column for column in table.columns if column.name != "x"))
    resolvers = [module_.StateResolver("events-ks.t", published_table, codec) for module_ in (merge, module)]
    for time_s in (NOW, NOW + 15):
        batch = random_events(table, chance, 12, time_s)
        for change in TopicPartitionMerger(table, codec, store, 0).take(batch, time_s + 1):
            if isinstance(change, RowChange):
                expected, resolved = (resolver.resolved(change) for resolver in resolvers)
                assert (expected is None) == (resolved is None)
                if expected is not None:
                    assert [getattr(resolved, name) for name in FIELDS] == [getattr(expected, name) for name in FIELDS]
                    assert (resolved.read_rows is None) == (expected.read_rows is None)
