"""Records of the shape `debezium`: of changes as they were written, and of rows as they were read."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from agent.writer import Cell, Complex, Marker, Row, Update, table_of
from connector.celled import AS_JSON, JSON, NODE, SEGMENT, events

from helenus_connector import schemas_command
from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image, LiveRow
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import ShapedRecord
from helenus_connector.pipeline._image_digest import digest_of
from helenus_connector.shape.debezium.envelope import Envelope, envelope_schema
from helenus_connector.shape.row.row import shown_table
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.cells import decode_cells
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import decode, encode

T = 1_700_000_000_000_000
GONE = 1_700_000_000
LOWEST = (T - 1, GONE, 0)
K = struct.pack(">i", 7)
REGISTRY = {"output.format": "debezium", "value.converter.schema.registry.url": "http://r"}
FORMS = [REGISTRY, AS_JSON]
TABLE = table_of("t", "k int pk, c int ck, s text static, v int, w text, m map<int, int>, l list<int>, st set<text>")
C = struct.pack(">i", 1)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def settings(**more: str) -> ConnectorSettings:
    return ConnectorSettings.from_properties({"name": "n", "keyspace": "ks", "table": "t", **more}, "test")


class Made:
    """What the shape makes of a Resolved: keys and values, read back."""

    def __init__(self, table: Table, **more: str) -> None:
        self.settings = settings(**more)
        self.table, self.registry = shown_table(table, self.settings), MemoryRegistry()
        self.shape = Envelope(self.table, self.settings, self.registry, cluster="Test Cluster")
        self.codec = KeyCodec(self.table)

    def read(self, data: bytes | None) -> Any:
        if data is None:
            return None
        return self.registry.read(data) if self.settings.is_avro else json.loads(data)

    def decoded_records(self, resolved: ResolvedKey) -> list[tuple[Any, Any, dict[str, bytes]]]:
        shaped_records = list(self.shape.records(resolved))
        assert all(shaped is not None and shaped.cause is None for shaped in shaped_records)
        return [
            (self.read(s.record.key), self.read(s.record.value), dict(s.record.headers)) for s in shaped_records if s
        ]

    def written(self, update: Update) -> list[tuple[Any, Any, dict[str, bytes]]]:
        return [record for event in events(update) for record in self.decoded_records(self.resolved(event))]

    def resolved(self, event: Event) -> ResolvedKey:
        change = decode(event.value or b"")
        assert change.cells is not None
        assert event.key is not None
        cells = decode_cells(change.cells, change.scope)
        values, bounds = self.codec.decode(event.key), (change.start, change.end)
        made = ResolvedKey(
            event.topic, 0, event.key, values, change.scope, bounds if any(bounds) else None, event=event
        )
        made.write_time, made.expires, made.written, made.is_confirmed = (
            change.write_time,
            change.expires_at,
            cells,
            True,
        )
        return made

    def was_read(self, after: Image | None, event: bytes | None = None, scope: Scope = Scope.ROW) -> ResolvedKey:
        key = (K, None if scope is not Scope.ROW else C)
        event_read = None if event is None else Event("events", 0, 7, 1000, b"", event)
        made = ResolvedKey("events", 0, self.codec.encode(key), key, scope, event=event_read)
        made.write_time, made.after = T, after
        return made


def row(*columns: tuple[str, Cell | Complex], time: int | None = T, **more: Any) -> Update:
    return Update(TABLE, K, [Row((C,), dict(columns), time=time, **more)], lowest=LOWEST)


def after(record: tuple[Any, Any, Any]) -> dict[str, Any]:
    return {name: value for name, value in record[1]["after"].items() if value is not None}


@pytest.mark.parametrize("form", FORMS)
def test_an_insert(form: dict[str, str]) -> None:
    ((key, value, headers),) = Made(TABLE, **form).written(row(("v", Cell(int32(5)))))
    assert key == {"k": 7, "c": 1}
    assert value.pop("ts_ms") > T // 1000
    source = value.pop("source")
    assert value == {
        "before": None,
        "after": {"k": 7, "c": 1, "l": None, "m": None, "st": None, "v": 5, "w": None, "s": None},
        "op": "c",
        "written": {"columns": ["v"], "replaced": [], "removed": {}},
    }
    assert isinstance(source.pop("version"), str)
    assert source.pop("pos") > 0
    assert source == {
        "connector": "cassandra",
        "name": "n",
        "ts_ms": T // 1000,
        "ts_us": T,
        "ts_ns": T * 1000,
        "snapshot": "false",
        "db": "ks",
        "cluster": "Test Cluster",
        "keyspace": "ks",
        "table": "t",
        "file": str(SEGMENT),
        "node": NODE,
    }
    assert headers["writetime"] == b"%d" % T


@pytest.mark.parametrize("form", FORMS)
def test_an_update_has_the_columns_it_writes(form: dict[str, str]) -> None:
    update = row(("v", Cell(int32(5), time=T)), ("w", Cell(None, time=T, deleted_at=GONE)), time=None)
    ((_, value, _),) = made = Made(TABLE, **form).written(update)
    assert value["op"] == "u"
    assert after(made[0]) == {"k": 7, "c": 1, "v": 5}
    assert value["written"] == {"columns": ["v", "w"], "replaced": [], "removed": {}}


@pytest.mark.parametrize("form", FORMS)
def test_elements_that_are_added_removed_and_replaced(form: dict[str, str]) -> None:
    removed_id = uuid.uuid1()
    added = Complex([Cell(int32(10), time=T, path=int32(1)), Cell(None, time=T, path=int32(2), deleted_at=GONE)])
    of_list = Complex(
        [Cell(int32(4), time=T, path=uuid.uuid1().bytes), Cell(None, T, None, False, GONE, removed_id.bytes)]
    )
    of_set = Complex([Cell(b"", time=T, path=b"x")], deletion=(T - 1, GONE))
    made = Made(TABLE, **form).written(row(("m", added), ("l", of_list), ("st", of_set), time=None))
    assert after(made[0]) in (
        {"k": 7, "c": 1, "m": {"1": 10}, "l": [4], "st": ["x"]},
        {"k": 7, "c": 1, "m": {1: 10}, "l": [4], "st": ["x"]},
    )
    assert made[0][1]["written"] == {
        "columns": ["l", "m", "st"],
        "replaced": ["st"],
        "removed": {"m": ["2"], "l": [str(removed_id)]},
    }


@pytest.mark.parametrize("form", FORMS)
def test_fields_of_a_type(form: dict[str, str]) -> None:
    udt = CqlType("udt", (parse("text"), parse("int")), label="addr", fields=("street", "zip"))
    definition = Table("ks", "t", uuid.UUID(int=1), (*TABLE.columns[:2], Column("a", udt)))
    cells = Complex([Cell(None, time=T, path=b"\0\0", deleted_at=GONE), Cell(int32(1), time=T, path=b"\0\1")])
    update = Update(definition, K, [Row((C,), {"a": cells}, time=None)], lowest=LOWEST)
    ((_, value, _),) = Made(definition, **form).written(update)
    street = {"street": None} if form is REGISTRY else {}  # JSON leaves a type's nulls out
    assert value["after"] == {"k": 7, "c": 1, "a": {**street, "zip": 1}}
    assert value["written"]["removed"] == {"a": ["street"]}


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_deleted(form: dict[str, str]) -> None:
    update = row(time=None, deletion=(T, GONE))
    (deleted, tombstone) = Made(TABLE, **form).written(update)
    assert (deleted[1]["op"], deleted[1]["after"], deleted[1]["written"]) == ("d", None, None)
    assert deleted[1]["before"] == {**dict.fromkeys(c.name for c in TABLE.columns), "k": 7, "c": 1}
    assert deleted[0] == tombstone[0] == {"k": 7, "c": 1}
    assert tombstone[1:] == (None, {})
    (alone,) = Made(TABLE, **form, **{"tombstones.on.delete": "false"}).written(update)
    assert alone[1]["op"] == "d"


def test_a_row_that_one_mutation_deletes_and_writes() -> None:
    """What was written with it, at the same time, is gone too, as Cassandra has it; what is newer begins the row."""
    made = Made(TABLE, **REGISTRY)
    gone = made.written(row(("v", Cell(int32(5))), deletion=(T, GONE)))
    assert [value and value["op"] for _, value, _ in gone] == ["d", None]
    begun = made.written(row(("v", Cell(int32(5))), ("w", Cell(b"old", time=T - 1)), deletion=(T - 1, GONE)))
    assert begun[0][1]["op"] == "c"
    assert after(begun[0]) == {"k": 7, "c": 1, "v": 5}
    # Unlike an INSERT it takes away what the row had in other columns, but for those of its partition.
    written_part = begun[0][1]["written"]
    assert (written_part["columns"], written_part["replaced"]) == (["l", "m", "st", "v", "w"], ["l", "m", "st"])


@pytest.mark.parametrize("form", FORMS)
def test_static_columns_and_markers(form: dict[str, str]) -> None:
    made = Made(TABLE, **form)
    static = Update(TABLE, K, static=Row((), {"s": Cell(b"x", time=T)}), lowest=LOWEST)
    ((key, value, headers),) = made.written(static)
    assert (key, value["op"], "scope" in headers) == ({"k": 7, "c": None}, "u", False)
    assert after((key, value, headers)) == {"k": 7, "s": "x"}
    partition, tombstone = made.written(Update(TABLE, K, deletion=(T, GONE), lowest=LOWEST))
    assert (partition[0], partition[1]["op"], partition[1]["after"]) == ({"k": 7, "c": None}, "d", None)
    assert {n: v for n, v in partition[1]["before"].items() if v is not None} == {"k": 7}
    assert partition[2]["scope"] == b"partition"
    assert tombstone[1] is None
    ends = [Marker(1, (int32(2),), ((T, GONE),)), Marker(6, (int32(4),), ((T, GONE),))]
    scope, _ = made.written(Update(TABLE, K, ends, lowest=LOWEST))
    assert (scope[1]["op"], scope[2]["scope"]) == ("d", b"range")
    assert scope[2]["start"] == b'{"inclusive":true,"values":{"c":2},"descending":[]}'


def test_a_partition_of_a_table_without_rows_is_one() -> None:
    definition = table_of("t", "k int pk, v int")
    (deleted, _) = Made(definition, **REGISTRY).written(Update(definition, K, deletion=(T, GONE), lowest=LOWEST))
    assert (deleted[0], deleted[1]["op"], "scope" in deleted[2]) == ({"k": 7}, "d", False)


def test_a_table_of_key_columns_only() -> None:
    definition = table_of("t", "k int pk, c int ck")
    for form in FORMS:
        ((_, value, _),) = Made(definition, **form).written(
            Update(definition, K, [Row((C,), {}, time=T)], lowest=LOWEST)
        )
        assert (value["op"], value["after"]) == ("c", {"k": 7, "c": 1})


def test_what_columns_leaves_out_is_not_said() -> None:
    made = Made(TABLE, **REGISTRY, columns="v")
    ((_, value, _),) = made.written(row(("v", Cell(int32(5))), ("w", Cell(b"secret"))))
    assert value["after"] == {"k": 7, "c": 1, "v": 5}
    assert value["written"]["columns"] == ["v"]


def test_a_ttl_is_a_header() -> None:
    ((_, _, headers),) = Made(TABLE, **REGISTRY).written(
        row(("v", Cell(int32(5), row_ttl=True)), expires=(60, GONE + 60))
    )
    assert headers["expires"] == b"%d" % (GONE + 60)


@pytest.mark.parametrize("form", FORMS)
def test_the_kind_of_operation_is_a_header_where_it_is_known(form: dict[str, str]) -> None:
    made = Made(TABLE, **form)
    for update, op in (
        (row(("v", Cell(int32(5)))), b"c"),
        (row(("v", Cell(int32(5), time=T)), time=None), b"u"),
        (row(time=None, deletion=(T, GONE)), b"d"),
    ):
        assert made.written(update)[0][2]["op"] == op
    image = Image((None, None, None, int32(5), b"w", None), T)
    ((_, value, headers),) = made.decoded_records(made.was_read(image))
    assert (value["op"], "op" in headers) == ("r", False)


VALUES: dict[str, tuple[bytes, Any, Any]] = {
    "ascii": (b"x", "x", "x"),
    "text": ("ü".encode(), "ü", "ü"),
    "bigint": (struct.pack(">q", -5), -5, -5),
    "blob": (b"\0\xff", b"\0\xff", "AP8="),
    "boolean": (b"\1", True, True),
    "double": (struct.pack(">d", 1.5), 1.5, 1.5),
    "float": (struct.pack(">f", 1.5), 1.5, 1.5),
    "inet": (bytes((127, 0, 0, 1)), "127.0.0.1", "127.0.0.1"),
    "int": (int32(-1), -1, -1),
    "smallint": (b"\xff\xff", -1, -1),
    "tinyint": (b"\xff", -1, -1),
    "time": ((5).to_bytes(8, "big"), 5, 5),
    "varint": (b"\x05", b"\x05", "BQ=="),
    "decimal": (int32(1) + b"\x05", {"bigint": b"\x05", "scale": 1}, {"bigint": "BQ==", "scale": 1}),
    "duration": (b"\2\4\6", {"months": 1, "days": 2, "nanoseconds": 3}, {"months": 1, "days": 2, "nanoseconds": 3}),
    "frozen<list<int>>": (int32(1) + int32(4) + int32(3), [3], [3]),
    "frozen<map<text, int>>": (int32(1) + int32(1) + b"a" + int32(4) + int32(3), {"a": 3}, {"a": 3}),
    "frozen<set<text>>": (int32(1) + int32(1) + b"a", ["a"], ["a"]),
    "tuple<int, text>": (int32(4) + int32(3) + int32(-1), {"index_0": 3, "index_1": None}, {"index_0": 3}),
    "vector<float, 2>": (struct.pack(">ff", 1, 2), [1.0, 2.0], [1.0, 2.0]),
    "timestamp": ((-1).to_bytes(8, "big", signed=True), None, -1),
    "date": ((1 << 31).to_bytes(4, "big"), None, 0),
    "uuid": (bytes(16), None, str(uuid.UUID(int=0))),
    "timeuuid": (uuid.UUID("50554d6e-29bb-11e5-b345-feff819cdc9f").bytes, None, "50554d6e-29bb-11e5-b345-feff819cdc9f"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_type(kind: str) -> None:
    """As the row shape shows it, whose tests say more."""
    data, in_avro, in_json = VALUES[kind]
    definition = table_of("t", f"k int pk, v {kind}")
    update = Update(definition, K, [Row((), {"v": Cell(data)}, time=T)], lowest=LOWEST)
    for form, wanted in zip(FORMS, (in_avro, in_json), strict=True):
        ((_, value, _),) = Made(definition, **form).written(update)
        published = value["after"]["v"]
        assert published == wanted or (wanted is None and published is not None)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_were_read(form: dict[str, str]) -> None:
    made = Made(TABLE, **form)
    image = Image((None, None, None, int32(5), b"w", None), T)
    ((_, value, _),) = made.decoded_records(made.was_read(image))
    assert (value["op"], value["written"]) == ("r", None)
    assert {n: v for n, v in value["after"].items() if v is not None} == {"k": 7, "c": 1, "v": 5, "w": "w"}
    ((_, value, headers),) = made.decoded_records(
        made.was_read(image, encode(Change(None, None, origin=Origin.SNAPSHOT)))
    )
    assert (value["op"], value["source"]["snapshot"], headers["snapshot"]) == ("r", "true", b"true")
    gone, tombstone = made.decoded_records(made.was_read(None))
    assert (gone[1]["op"], gone[1]["after"], tombstone[1]) == ("d", None, None)


@pytest.mark.parametrize("form", FORMS)
def test_markers_whose_rows_were_read(form: dict[str, str]) -> None:
    made = Made(TABLE, **form)
    live = LiveRow(made.codec.encode((K, C)), (K, C), Image((None, None, None, int32(5), None, None), T + 1))
    statics = Image((None, None, None, None, None, b"s"), T)
    marker = made.was_read(statics, scope=Scope.PARTITION)
    marker.read_rows, marker.expires = lambda _: iter((live,)), 1_800_000_000
    decoded = made.decoded_records(marker)
    assert ["expires" in headers for _, _, headers in decoded] == [False, False, True, False], "the static columns' own"
    assert [value and value["op"] for _, value, _ in decoded] == ["d", None, "r", "r"]
    assert ["scope" in headers for _, _, headers in decoded] == [True, False, False, False]
    assert decoded[2][1]["after"]["s"] == "s"
    assert decoded[3][1]["source"]["ts_us"] == T + 1
    table = made.was_read(None, scope=Scope.TABLE)
    table.read_rows = lambda _: iter((live,))
    truncated, alive = made.decoded_records(table)
    assert (truncated[0], truncated[1]["op"], truncated[1]["after"]) == ({"table": "ks.t"}, "t", None)
    assert alive[1]["op"] == "r"


def test_the_same_row_read_again_is_the_same_whatever_asked_for_it() -> None:
    """Else each re-read of an unconfirmed key would be a record."""
    made = Made(TABLE, **REGISTRY)

    def digest(values: Iterable[bytes | None] | None, event: bytes | None = None) -> bytes:
        image = None if values is None else Image(tuple(values), T)
        return digest_of(made.shape.records(made.was_read(image, event)))

    row_values = (None, None, None, int32(5), b"w", None)
    two = (None, None, None, int32(6), b"w", None)
    snapshot = encode(Change(None, None, origin=Origin.SNAPSHOT))
    assert digest(row_values) == digest(row_values, snapshot)
    assert len({digest(row_values), digest(two), digest(None)}) == 3


def test_a_smaller_record_keeps_its_envelope() -> None:
    made = Made(TABLE, **REGISTRY)
    (event,) = events(row(("v", Cell(int32(5))), ("w", Cell(b"x" * 1000))))
    (shaped,) = made.shape.records(made.resolved(event))
    assert isinstance(shaped, ShapedRecord)
    assert shaped.image is not None
    image, left_out = next(made.shape.smaller(shaped.image))
    assert left_out == ("left_out", b'["w"]')
    value = made.read(shaped.make(image).value)
    assert (value["after"]["v"], value["after"]["w"], value["op"]) == (5, None, "c")


def test_a_value_that_nothing_can_show_is_the_cause_of_no_record() -> None:
    made = Made(TABLE, **REGISTRY)
    bad = Complex([Cell(None, time=T, path=b"short", deleted_at=GONE)])
    (event,) = events(row(("l", bad), time=None))
    (shaped,) = made.shape.records(made.resolved(event))
    assert shaped is not None
    assert "a change cannot be published" in str(shaped.cause)


def test_write_times_that_are_far_away() -> None:
    made = Made(TABLE, **REGISTRY)
    far = 1 << 62
    update = Update(TABLE, K, [Row((C,), {"v": Cell(int32(5))}, time=far)], lowest=(far, GONE, 0))
    ((_, value, _),) = made.written(update)
    assert (value["source"]["ts_us"], value["source"]["ts_ns"]) == (far, (1 << 63) - 1)


def test_names_of_the_schema() -> None:
    """Debezium's consumers know an envelope by its name."""
    schema = json.loads(envelope_schema(TABLE))
    assert f"{schema['namespace']}.{schema['name']}" == "ks.t.Envelope"
    assert [field["name"] for field in schema["fields"]] == ["before", "after", "source", "op", "ts_ms", "written"]
    assert schema["fields"][1]["type"] == ["null", "ks.t"]


def test_the_schemas_that_are_printed_are_those_that_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas_command, "read", lambda _: {"t": TABLE})
    worker: Any = SimpleNamespace(log="kafka", log_of_data="kafka")
    lines = map(json.loads, schemas_command.subjects(worker, settings(**REGISTRY)))
    printed = {line["subject"]: line["schema"] for line in lines}
    registry = Made(TABLE, **REGISTRY).registry
    assert registry.subjects.keys() == {"data-ks.t-key", "data-ks.t-value"}
    for subject, number in registry.subjects.items():
        assert printed[subject] == registry.schema(number)


def test_settings_that_it_refuses() -> None:
    none = {"name": "n", "keyspace": "ks", "table": "t", "resolver": "none"}
    with pytest.raises(HelenusError, match=r"resolver=none: .* set output\.format=debezium"):
        ConnectorSettings.from_properties({**none, "output.format": "json"}, "test")
    with pytest.raises(HelenusError, match=r"resolver=none: .* set output\.format=debezium"):
        ConnectorSettings.from_properties({**none, "value.converter.schema.registry.url": "http://r"}, "test")
    assert PulsarConnectorSettings.from_properties({**none, "output.format": "debezium"}, "test").is_avro
    with pytest.raises(HelenusError, match=r"schemas\.enable: set it to false: on Pulsar"):
        PulsarConnectorSettings.from_properties({**none, "output.format": "debezium", "value.converter": JSON}, "test")
    with pytest.raises(HelenusError, match=r"schema\.registry\.url: required"):
        ConnectorSettings.from_properties({**none, "output.format": "debezium"}, "test")
    assert settings(**AS_JSON).cleanup_policy == "compact"
    assert settings(**AS_JSON, resolver="none").cleanup_policy == "delete"
