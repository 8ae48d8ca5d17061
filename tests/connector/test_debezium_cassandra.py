"""Records of the shape `debezium-cassandra`: Debezium's connector for Cassandra, and what that leaves out."""

from __future__ import annotations

import itertools
import json
import struct
import uuid
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from agent.writer import Cell, Complex, Marker, Row, Update, entry, mutation, table_of
from connector.celled import AS_JSON, NODE, SEGMENT, events

from helenus_agent.commitlog import decoder
from helenus_connector import schemas_command
from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image, LiveRow
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.pipeline._image_digest import digest_of
from helenus_connector.shape.debezium._cassandra_range import column_class, value_text
from helenus_connector.shape.debezium.cassandra import DebeziumCassandra
from helenus_connector.shape.row.row import shown_table
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.avro.compare import incompatibility, parsed, without_names
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.cells import decode_cells
from helenus_schemas.event.change import Bound, Change, Origin, Scope
from helenus_schemas.event.wire import decode, encode

T = 1_700_000_000_000_000
GONE = 1_700_000_000
LOWEST = (T - 1, GONE, 0)
TOPIC = {"data.topic": "dbz.${keyspace}.${table}", "output.format": "debezium-cassandra"}
AVRO = {**TOPIC, "value.converter.schema.registry.url": "http://r"}
IN_JSON = {**AS_JSON, **TOPIC}
FORMS = [AVRO, IN_JSON]
TABLE = table_of("t", "k int pk, c int ck, s text static, v int, w text, m map<text, int>, l list<int>, st set<text>")
K, C = struct.pack(">i", 7), struct.pack(">i", 1)
KEY = {"k": 7, "c": 1}


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def cell(value: Any, until: int | None = None) -> dict[str, Any]:
    return {"value": value, "deletion_ts": until, "set": True}


class Made:
    """What the shape makes of changes: keys and values, read back."""

    def __init__(self, table: Table, /, **more: str) -> None:
        properties = {"name": "n", "keyspace": "ks", "table": "t", **more}
        self.settings = ConnectorSettings.from_properties(properties, "test")
        self.table, self.registry = shown_table(table, self.settings), MemoryRegistry()
        self.shape = DebeziumCassandra(self.table, self.settings, self.registry, cluster="Test Cluster")
        self.codec = KeyCodec(self.table)

    def read(self, data: bytes | None) -> Any:
        if data is None:
            return None
        return self.registry.read(data) if self.settings.is_avro else json.loads(data)

    def decoded_records(self, resolved: ResolvedKey) -> list[tuple[Any, Any]]:
        shaped_records = [shaped for shaped in self.shape.records(resolved) if shaped is not None]
        assert not [shaped.cause for shaped in shaped_records if shaped.cause]
        return [(self.read(s.record.key), self.read(s.record.value)) for s in shaped_records]

    def written(self, *updates: Update) -> list[tuple[Any, Any]]:
        return [record for event in events(*updates) for record in self.decoded_records(self.resolved(event))]

    def single_record(self, update: Update) -> tuple[Any, Any]:
        (record,) = self.written(update)
        return record

    def resolved(self, event: Event) -> ResolvedKey:
        change = decode(event.value or b"")
        assert change.cells is not None
        assert event.key is not None
        values, bounds = self.codec.decode(event.key), (change.start, change.end)
        made = ResolvedKey(event.topic, 0, event.key, values, change.scope, event=event)
        made.bounds = bounds if change.scope is Scope.RANGE else None
        made.write_time, made.expires = change.write_time, change.expires_at
        made.written, made.is_confirmed = decode_cells(change.cells, change.scope), True
        return made

    def was_read(self, after: Image | None, event: bytes | None = None, scope: Scope = Scope.ROW) -> ResolvedKey:
        key = (K, C if scope is Scope.ROW else None)
        event_read = None if event is None else Event("events", 0, 7, 1000, b"", event)
        made = ResolvedKey("events", 0, self.codec.encode(key), key, scope, event=event_read)
        made.write_time, made.after = T, after
        return made


def row(*columns: tuple[str, Cell | Complex], time: int | None = T, c: bytes = C, **more: Any) -> Update:
    return Update(TABLE, K, [Row((c,), dict(columns), time=time, **more)], lowest=LOWEST)


def cells(value: Any) -> dict[str, Any]:
    """The cells that a record has, without its key's."""
    parts = {name: part for name, part in value["after"].items() if part is not None and name not in KEY}
    return dict(parts)


@pytest.fixture(params=FORMS, ids=["avro", "json"])
def made(request: pytest.FixtureRequest) -> Made:
    return Made(TABLE, **request.param)


def test_the_whole_record(made: Made) -> None:
    key, value = made.single_record(row(("v", Cell(int32(5)))))
    assert key == KEY
    assert list(value) == ["ts_ms", "op", "source", "after", "written"]
    assert value.pop("ts_ms") > T // 1000
    source = value.pop("source")
    assert value == {
        "op": "i",
        "after": {
            "k": cell(7),
            "c": cell(1),
            **dict.fromkeys(("l", "m", "st")),
            "v": cell(5),
            **dict.fromkeys(("w", "s", "_range_start", "_range_end")),
        },
        "written": {"columns": ["v"], "replaced": [], "removed": {}, "exact": {}},
    }
    assert isinstance(source.pop("version"), str)
    assert source.pop("pos") > 0
    assert source == {
        "connector": "cassandra",
        "name": "dbz",
        "ts_ms": T // 1000,
        "snapshot": "false",
        "db": "NULL",
        "sequence": None,
        "ts_us": T,
        "ts_ns": T * 1000,
        "cluster": "Test Cluster",
        "file": f"CommitLog-7-{SEGMENT}.log",
        "keyspace": "ks",
        "table": "t",
        "node": NODE,
    }


def test_an_update_and_cells_that_are_deleted(made: Made) -> None:
    update = row(("v", Cell(int32(5), time=T)), ("w", Cell(None, time=T, deleted_at=GONE)), time=None)
    _, value = made.single_record(update)
    assert (value["op"], cells(value)) == ("u", {"v": cell(5), "w": cell(None)})


def test_a_ttl_is_when_a_cell_expires(made: Made) -> None:
    _, value = made.single_record(row(("v", Cell(int32(5), row_ttl=True)), ("w", Cell(b"x")), expires=(60, GONE + 60)))
    assert cells(value) == {"v": cell(5, (GONE + 60) * 1_000_000), "w": cell("x")}


def test_collections(made: Made) -> None:
    """Elements that are written; an element that is removed is null in a map and in a list, and not in a set."""
    removed_id = uuid.uuid1()
    gone = Cell(None, time=T, deleted_at=GONE)
    of_map = Complex([Cell(int32(10), time=T, path=b"a"), Cell(None, T, None, False, GONE, b"b")])
    of_list = Complex(
        [Cell(int32(4), time=T, path=uuid.uuid1().bytes), Cell(None, T, None, False, GONE, removed_id.bytes)]
    )
    of_set = Complex([Cell(b"", time=T, path=b"x"), Cell(None, T, None, False, GONE, b"y")])
    assert gone.value is None
    _, value = made.single_record(row(("m", of_map), ("l", of_list), ("st", of_set), time=None))
    assert cells(value) == {"m": cell({"a": 10, "b": None}), "l": cell([4, None]), "st": cell(["x"])}
    assert value["written"]["removed"] == {"m": ["b"], "l": [str(removed_id)], "st": ["y"]}
    whole = Complex([], deletion=(T, GONE))
    _, value = made.single_record(row(("m", whole), ("l", whole), ("st", whole), time=None))
    assert cells(value) == {"m": cell({}), "l": cell([]), "st": cell([])}
    assert value["written"]["replaced"] == ["l", "m", "st"]
    removed = Complex([Cell(None, T, None, False, GONE, b"y")])
    _, value = made.single_record(row(("st", removed), time=None))
    assert (cells(value), value["written"]["replaced"]) == ({"st": cell([])}, [])


def test_a_row_that_is_deleted(made: Made) -> None:
    key, value = made.single_record(row(time=None, deletion=(T, GONE)))
    assert (key, value["op"], value["source"]["ts_us"], value["written"]) == (KEY, "d", T, None)
    assert value["after"]["k"], value["after"]["c"] == (cell(7), cell(1))
    assert cells(value) == dict.fromkeys(("v", "w", "m", "l", "st", "s"), cell(None, T))


def test_a_tombstone_follows_a_delete_where_it_is_asked_for() -> None:
    made = Made(TABLE, **AVRO, **{"tombstones.on.delete": "true"})
    (_, deleted), (key, tombstone) = made.written(row(time=None, deletion=(T, GONE)))
    assert (deleted["op"], key, tombstone) == ("d", KEY, None)


def test_a_row_that_one_mutation_deletes_and_writes(made: Made) -> None:
    """Debezium says that it is deleted, and no more; here what is newer follows."""
    (_, deleted), (_, begun) = made.written(row(("v", Cell(int32(5))), deletion=(T - 1, GONE)))
    assert (deleted["op"], deleted["source"]["ts_us"]) == ("d", T - 1)
    assert (begun["op"], begun["source"]["ts_us"], cells(begun)) == ("i", T, {"v": cell(5)})
    (only,) = made.written(row(("v", Cell(int32(5))), deletion=(T, GONE)))
    assert only[1]["op"] == "d"
    update = row(("v", Cell(int32(5), time=T)), time=None, deletion=(T - 1, GONE))
    assert [value["op"] for _, value in made.written(update)] == ["d", "u"]


def test_a_partition_that_is_deleted(made: Made) -> None:
    key, value = made.single_record(Update(TABLE, K, deletion=(T, GONE), lowest=LOWEST))
    assert (key, value["op"]) == ({"k": 7, "c": None}, "d")
    assert (value["after"]["k"], value["after"]["c"]) == (cell(7), cell(None, T))
    assert cells(value) == dict.fromkeys(("v", "w", "m", "l", "st", "s"), cell(None, T))


def test_static_columns_have_a_record_of_their_own(made: Made) -> None:
    update = Update(TABLE, K, static=Row((), {"s": Cell(b"x", time=T)}), lowest=LOWEST)
    key, value = made.single_record(update)
    assert (key, value["op"], value["after"]["c"], cells(value)) == ({"k": 7, "c": None}, "u", None, {"s": cell("x")})


def int_value(value: int) -> dict[str, str]:
    return {"name": "c", "value": str(value), "type": "org.apache.cassandra.db.marshal.Int32Type"}


def test_ranges(made: Made) -> None:
    ends = [Marker(1, (int32(2),), ((T, GONE),)), Marker(6, (int32(4),), ((T, GONE),))]
    key, value = made.single_record(Update(TABLE, K, ends, lowest=LOWEST))
    assert (key, value["op"], value["source"]["ts_us"]) == ({"k": 7, "c": None}, "r", T)
    assert value["after"]["k"] == cell(7)
    assert value["after"]["c"] is None
    assert cells(value) == {
        "_range_start": {"method": "INCL_START_BOUND", "values": [int_value(2)]},
        "_range_end": {"method": "INCL_END_BOUND", "values": [int_value(4)]},
    }
    resolved = made.was_read(None, scope=Scope.RANGE)
    resolved.bounds, resolved.read_rows = (Bound(False, (int32(2),)), None), lambda _: iter(())
    ((_, value),) = made.decoded_records(resolved)
    assert cells(value) == {
        "_range_start": {"method": "EXCL_START_BOUND", "values": [int_value(2)]},
        "_range_end": {"method": "INCL_END_BOUND", "values": []},
    }


# Debezium's own scenarios, by the names of its tests.


def test_batch(made: Made) -> None:
    """BatchTest: a logged batch of a partition's delete and three inserts, with a TTL and with a map."""
    rows = [
        row(("v", Cell(int32(1))), c=int32(1)),
        row(("v", Cell(int32(2), row_ttl=True)), c=int32(2), expires=(60, GONE + 60)),
        row(("m", Complex([Cell(int32(1), path=b"a", time=T)], deletion=(T - 1, GONE))), c=int32(3)),
    ]
    records = made.written(Update(TABLE, int32(9), deletion=(T, GONE), lowest=LOWEST), *rows)
    assert [value["op"] for _, value in records] == ["d", "i", "i", "i"]
    assert [key for key, _ in records] == [{"k": 9, "c": None}, *({"k": 7, "c": c} for c in (1, 2, 3))]
    assert cells(records[2][1])["v"]["deletion_ts"] == (GONE + 60) * 1_000_000
    assert cells(records[3][1])["m"]["value"] == {"a": 1}


def test_clustering_partition_key_commit_log_processing(made: Made) -> None:
    inserts = [row(("v", Cell(int32(c))), c=int32(c)) for c in (1, 2)]
    records = made.written(*inserts, Update(TABLE, K, deletion=(T, GONE), lowest=LOWEST))
    assert [value["op"] for _, value in records] == ["i", "i", "d"]
    assert cells(records[2][1])["v"] == cell(None, T)


@pytest.mark.parametrize("form", FORMS)
def test_partition_key_row_deletion_commit_log_processing(form: dict[str, str]) -> None:
    definition = table_of("t", "k int pk, v int")
    insert = Update(definition, K, [Row((), {"v": Cell(int32(1))}, time=T)], lowest=LOWEST)
    records = Made(definition, **form).written(insert, Update(definition, K, deletion=(T, GONE), lowest=LOWEST))
    assert [(key, value["op"]) for key, value in records] == [({"k": 7}, "i"), ({"k": 7}, "d")]
    assert records[1][1]["after"]["v"] == cell(None, T)


@pytest.mark.parametrize("form", FORMS)
def test_range_tombstone_commit_log_processing(form: dict[str, str]) -> None:
    definition = table_of("t", "k int pk, b text ck, c int ck, v int")
    inserts = [
        Update(definition, K, [Row((b"x", int32(c)), {"v": Cell(int32(1))}, time=T)], lowest=LOWEST) for c in (1, 2)
    ]
    ends = [Marker(1, (b"x", int32(1)), ((T, GONE),)), Marker(0, (b"x", int32(3)), ((T, GONE),))]
    records = Made(definition, **form).written(*inserts, Update(definition, K, ends, lowest=LOWEST))
    assert [value["op"] for _, value in records] == ["i", "i", "r"]
    text = {"name": "b", "value": "x", "type": "org.apache.cassandra.db.marshal.UTF8Type"}
    after = records[2][1]["after"]
    assert after["_range_start"] == {"method": "INCL_START_BOUND", "values": [text, int_value(1)]}
    assert after["_range_end"] == {"method": "EXCL_END_BOUND", "values": [text, int_value(3)]}


def test_row_insertion_modification_commit_log_processing(made: Made) -> None:
    records = made.written(row(("v", Cell(int32(1)))), row(("v", Cell(int32(2), time=T)), time=None))
    assert [value["op"] for _, value in records] == ["i", "u"]
    source = records[0][1]["source"]
    assert (source["cluster"], source["keyspace"], source["table"]) == ("Test Cluster", "ks", "t")
    assert source["snapshot"] == "false"


def test_snapshot_processor(made: Made) -> None:
    """A snapshot's rows are inserts with all cells, as `r` is a range here; columns without a value are null cells."""
    image = Image((None, None, None, int32(5), b"w", None), T)
    ((key, value),) = made.decoded_records(
        made.was_read(image, encode(Change(None, None, origin=Origin.SNAPSHOT_FIRST)))
    )
    assert (key, value["op"], value["source"]["snapshot"], value["written"]) == (KEY, "i", "true", None)
    assert (value["source"]["file"], value["source"]["pos"], value["source"]["node"]) == ("", -1, None)
    assert cells(value) == {"v": cell(5), "w": cell("w"), **dict.fromkeys(("m", "l", "st"), cell(None))}


@pytest.mark.parametrize("form", FORMS)
def test_multiple_tables_processing(form: dict[str, str]) -> None:
    """MultipleTablesProcessingTest: two tables in each of two keyspaces, each with an insert and a delete, in order."""
    for keyspace, name in itertools.product(("a", "b"), ("t1", "t2")):
        definition = table_of(name, "k int pk, v int", keyspace=keyspace)
        where = {"keyspace": keyspace, "table": name, "data.topic": f"dbz.{keyspace}.{name}"}
        insert = Update(definition, K, [Row((), {"v": Cell(int32(1))}, time=T)], lowest=LOWEST)
        records = Made(definition, **{**form, **where}).written(
            insert, Update(definition, K, deletion=(T + 1, GONE), lowest=LOWEST)
        )
        assert [(value["op"], value["source"]["keyspace"], value["source"]["table"]) for _, value in records] == [
            ("i", keyspace, name),
            ("d", keyspace, name),
        ]


def test_mixed_cdc_batch(made: Made) -> None:
    """One mutation of a table with CDC and of one without: what is of the first is published."""
    other = table_of("other", "k int pk, w int", cdc=False)
    plans: Any = {TABLE.id.bytes: decoder.plan_table(TABLE, 0, cells=True), other.id.bytes: decoder.plan_table(other)}
    of_other = Update(other, K, [Row((), {"w": Cell(int32(2))}, time=T)], lowest=LOWEST)
    for mixed in ((of_other, row(("v", Cell(int32(1))))), (row(("v", Cell(int32(1)))), of_other)):
        batch: Any = decoder.decode(entry(mutation(*mixed)), 100, True, plans, NODE, SEGMENT, 8, 10**6)
        ((_, _, key, value),) = batch.changes
        ((_, envelope),) = made.decoded_records(made.resolved(Event("events-ks.t", 0, 0, 1000, key, value)))
        assert (envelope["op"], cells(envelope)) == ("i", {"v": cell(1)})


@pytest.mark.parametrize("form", FORMS)
def test_schema_change_listener(form: dict[str, str]) -> None:
    """SchemaChangeListenerTest: a column that was added is in the next record, and in none of before."""
    wider = table_of("t", "k int pk, c int ck, s text static, v int, n int")
    before, after = (
        Made(definition, **form) for definition in (table_of("t", "k int pk, c int ck, s text static, v int"), wider)
    )
    insert = Update(wider, K, [Row((C,), {"n": Cell(int32(8))}, time=T)], lowest=LOWEST)
    assert "n" not in before.single_record(row(("v", Cell(int32(1)))))[1]["after"]
    assert after.single_record(insert)[1]["after"]["n"] == cell(8)


def test_rows_that_were_read(made: Made) -> None:
    ((_, value),) = made.decoded_records(made.was_read(Image((None, None, None, int32(5), b"w", None), T)))
    assert (value["op"], cells(value)["v"], value["after"]["s"]) == ("u", cell(5), None)
    ((_, value),) = made.decoded_records(made.was_read(None))
    assert (value["op"], cells(value)["v"]) == ("d", cell(None, T))
    statics = Image((None, None, None, None, None, b"s"), T)
    for image, shown_as in ((statics, "s"), (None, None)):
        ((key, value),) = made.decoded_records(made.was_read(image, scope=Scope.STATIC))
        assert (key, value["op"], cells(value)) == ({"k": 7, "c": None}, "u", {"s": cell(shown_as)})


def test_markers_whose_rows_were_read(made: Made) -> None:
    live = LiveRow(made.codec.encode((K, C)), (K, C), Image((None, None, None, int32(5), None, None), T + 1))
    marker = made.was_read(Image((None, None, None, None, None, b"s"), T), scope=Scope.PARTITION)
    marker.read_rows = lambda _: iter((live,))
    decoded = made.decoded_records(marker)
    assert [value["op"] for _, value in decoded] == ["d", "u", "u"]
    assert (cells(decoded[1][1]), cells(decoded[2][1])["v"]) == ({"s": cell("s")}, cell(5))
    assert decoded[2][1]["source"]["ts_us"] == T + 1
    table = made.was_read(None, scope=Scope.TABLE)
    table.read_rows = lambda _: iter((live,))
    (key, truncated), (_, alive) = made.decoded_records(table)
    assert (key, truncated["op"], alive["op"]) == ({"k": None, "c": None}, "t", "u")
    assert set(truncated["after"].values()) == {None}


def test_the_same_row_read_again_is_the_same_whatever_asked_for_it() -> None:
    made = Made(TABLE, **AVRO)

    def digest(v: int | None, event: bytes | None = None) -> bytes:
        image = None if v is None else Image((None, None, None, int32(v), b"w", None), T)
        return digest_of(made.shape.records(made.was_read(image, event)))

    assert digest(5) == digest(5, encode(Change(None, None, origin=Origin.SNAPSHOT)))
    assert len({digest(5), digest(6), digest(None)}) == 3


def collection(*parts: bytes | None, each: int = 1) -> bytes:
    sized = [struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part for part in parts]
    return int32(len(parts) // each) + b"".join(sized)


def text_key(*parts: bytes) -> bytes:
    return collection(*parts, each=2)


U = "50554d6e-29bb-11e5-b345-feff819cdc9f"
VALUES: dict[str, tuple[bytes, Any, Any]] = {
    "ascii": (b"x", "x", "x"),
    "text": ("ü".encode(), "ü", "ü"),
    "boolean": (b"\1", True, True),
    "tinyint": (b"\xff", -1, -1),
    "smallint": (b"\xff\xff", -1, -1),
    "int": (int32(-1), -1, -1),
    "bigint": (struct.pack(">q", -5), -5, -5),
    "float": (struct.pack(">f", 1.5), 1.5, 1.5),
    "double": (struct.pack(">d", 0.1), 0.1, 0.1),
    "blob": (b"\0\xff", b"\0\xff", "AP8="),
    "time": ((5).to_bytes(8, "big"), 5, 5),
    "date": ((1 << 31).to_bytes(4, "big"), 0, 0),
    "timestamp": ((-1).to_bytes(8, "big", signed=True), -1, -1),
    "uuid": (bytes(16), str(uuid.UUID(int=0)), str(uuid.UUID(int=0))),
    "timeuuid": (uuid.UUID(U).bytes, U, U),
    "inet": (bytes((10, 0, 0, 1)), "/10.0.0.1", "/10.0.0.1"),
    "frozen<tuple<inet>>": (
        collection(bytes(15) + b"\1")[4:],
        {"field1": "/0:0:0:0:0:0:0:1"},
        {"field1": "/0:0:0:0:0:0:0:1"},
    ),
    "decimal": (int32(2) + b"\x04\xe2", 12.5, 12.5),
    "varint": (b"\x05", 5, 5),
    "duration": (b"\2\4\6", 2764800000000003, 2764800000000003),
    "frozen<list<int>>": (collection(int32(3), None), [3, None], [3, None]),
    "frozen<set<text>>": (collection(b"a"), ["a"], ["a"]),
    "frozen<map<text, int>>": (text_key(b"a", int32(3)), {"a": 3}, {"a": 3}),
    "frozen<map<int, text>>": (text_key(int32(3), b"a"), [{"key": 3, "value": "a"}], [[3, "a"]]),
    "frozen<map<uuid, int>>": (text_key(bytes(16), int32(3)), {str(uuid.UUID(int=0)): 3}, {str(uuid.UUID(int=0)): 3}),
    "tuple<int, text>": (int32(4) + int32(3) + int32(-1), *[{"field1": 3, "field2": None}] * 2),
    "vector<float, 2>": (struct.pack(">ff", 1, 2), [1.0, 2.0], [1.0, 2.0]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_type(kind: str) -> None:
    """fastavro has no types of Kafka Connect, so it shows what the bytes are."""
    data, in_avro, in_json = VALUES[kind]
    definition = table_of("t", f"k int pk, v {kind}")
    for form, wanted in zip(FORMS, (in_avro, in_json), strict=True):
        _, value = Made(definition, **form).single_record(
            Update(definition, K, [Row((), {"v": Cell(data)}, time=T)], lowest=LOWEST)
        )
        assert value["after"]["v"] == cell(wanted)


def test_every_type_is_among_the_tests() -> None:
    from helenus_schemas.cql.types import SCALARS

    assert SCALARS - {"counter"} <= VALUES.keys()


NUMBERS = [
    ("decimal", "precise", int32(2) + b"\x04\xe2", {"scale": 2, "value": b"\x04\xe2"}, {"scale": 2, "value": "BOI="}),
    ("decimal", "string", int32(2) + b"\x04\xe2", "12.50", "12.50"),
    ("varint", "precise", b"\x05", Decimal(5), "BQ=="),
    ("varint", "string", b"\x05", "5", "5"),
]


@pytest.mark.parametrize(("kind", "mode", "data", "in_avro", "in_json"), NUMBERS)
def test_modes_of_numbers(kind: str, mode: str, data: bytes, in_avro: Any, in_json: Any) -> None:
    definition = table_of("t", f"k int pk, v {kind}")
    for form, wanted in zip(FORMS, (in_avro, in_json), strict=True):
        made = Made(definition, **form, **{f"{kind}.handling.mode": mode})
        _, value = made.single_record(Update(definition, K, [Row((), {"v": Cell(data)}, time=T)], lowest=LOWEST))
        assert (value["after"]["v"], value["written"]["exact"]) == (cell(wanted), {})


@pytest.mark.parametrize("form", FORMS)
def test_what_debezium_rounds_or_wraps_is_said_exactly(form: dict[str, str]) -> None:
    definition = table_of(
        "t", "k int pk, d decimal, v varint, w varint, u duration, x duration, y frozen<list<duration>>"
    )
    long = 123456789012345678901234567890
    columns = {
        "d": Cell(int32(2) + b"\x04\xe2"),
        "v": Cell(long.to_bytes(13, "big")),
        "w": Cell(b"\5"),
        "u": Cell(b"\2\4\6"),
        "x": Cell(b"\x9c\x20\0\0"),
        "y": Cell(int32(1) + int32(4) + b"\x9c\x20\0\0"),
    }
    _, value = Made(definition, **form).single_record(
        Update(definition, K, [Row((), dict(columns), time=T)], lowest=LOWEST)
    )
    assert value["after"]["v"] == value["after"]["x"] == cell(None)
    assert value["after"]["y"] == cell([None])
    assert value["written"]["exact"] == {"d": "12.50", "v": str(long), "u": "1mo2d3ns", "x": "3600mo"}


@pytest.mark.parametrize("form", FORMS)
def test_types_of_the_user(form: dict[str, str]) -> None:
    """A frozen one as Debezium has it; of one that is not, on which Debezium stops, the fields that are written."""
    udt = CqlType("udt", (parse("text"), parse("int")), label="addr", fields=("street", "zip"))
    frozen = CqlType("udt", udt.args, True, "addr", udt.fields)
    definition = Table("ks", "t", uuid.UUID(int=1), (*TABLE.columns[:2], Column("a", udt), Column("f", frozen)))
    written = Complex([Cell(None, time=T, path=b"\0\0", deleted_at=GONE), Cell(int32(1), time=T, path=b"\0\1")])
    columns = {"a": written, "f": Cell(collection(b"x")[4:], time=T)}
    _, value = Made(definition, **form).single_record(
        Update(definition, K, [Row((C,), columns, time=None)], lowest=LOWEST)
    )
    assert cells(value) == {"a": cell({"street": None, "zip": 1}), "f": cell({"street": "x", "zip": None})}
    assert value["written"]["removed"] == {"a": ["street"]}


def test_names_of_the_schemas() -> None:
    made = Made(TABLE, **AVRO)
    key, value = (
        json.loads(made.registry.schema(made.registry.subjects[f"dbz.ks.t-{n}"]) or "") for n in ("key", "value")
    )
    names = "io.debezium.connector.cassandra.dbz.ks.t"
    assert [(s["namespace"], s["name"], s["connect.name"]) for s in (key, value)] == [
        (names, "Key", f"{names}.Key"),
        (names, "Envelope", f"{names}.Envelope"),
    ]
    after = next(f["type"] for f in value["fields"] if f["name"] == "after")
    assert (after["connect.name"], after["connect.version"]) == ("after", 1)
    of_cells = {f["name"]: f["type"][1] for f in after["fields"]}
    assert (of_cells["k"]["connect.name"], of_cells["k"]["connect.version"]) == ("cell_value", 1)
    assert of_cells["c"] == f"{names}.{of_cells['k']['name']}", "cells of one type are one type"
    plain = Made(TABLE, **{**AVRO, "data.topic": "", "name": "a-b"})
    schema = json.loads(plain.registry.schema(plain.registry.subjects["data-ks.t-value"]) or "")
    assert schema["connect.name"] == "io.debezium.connector.cassandra.a-b.ks.t.Envelope"


def test_keys_keep_the_schema_that_debezium_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other bytes would be another key: a topic that is compacted kept both."""
    columns: list[str] = []

    def keep(_: MemoryRegistry, subject: str, schema: str, value: str) -> int:
        theirs = {name: part for name, part in json.loads(schema).items() if name != "cql_id"}
        registered, ours, after = (parsed(text) for text in (json.dumps(theirs), schema, value))
        assert subject == "dbz.ks.t-key"
        assert without_names(registered) == without_names(ours)
        assert incompatibility(registered, ours, after) is None
        columns.extend(field["name"] for field in after["fields"])
        return 41

    monkeypatch.setattr(MemoryRegistry, "keep", keep)
    made = Made(TABLE, **AVRO)
    (event,) = events(Update(TABLE, K, [Row((C,), {}, time=T)], lowest=LOWEST))
    (shaped,) = made.shape.records(made.resolved(event))
    assert shaped is not None
    assert shaped.record.key is not None
    assert shaped.record.key[:5] == b"\0\0\0\0\x29"
    assert {c.name for c in TABLE.columns} <= set(columns)


def test_tuples_and_maps_of_one_name_are_types_of_their_own() -> None:
    definition = table_of("t", "k int pk, a tuple<list<int>>, b tuple<list<text>>, c map<int, int>, d map<int, text>")
    columns = {"a": Cell(collection(collection(int32(1)))[4:]), "b": Cell(collection(collection(b"x"))[4:])}
    _, value = Made(definition, **AVRO).single_record(
        Update(definition, K, [Row((), dict(columns), time=T)], lowest=LOWEST)
    )
    assert (cells(value)["a"], cells(value)["b"]) == (cell({"field1": [1]}), cell({"field1": ["x"]}))


def test_a_table_of_key_columns_only() -> None:
    definition = table_of("t", "k int pk, c int ck")
    for form in FORMS:
        key, value = Made(definition, **form).single_record(
            Update(definition, K, [Row((C,), {}, time=T)], lowest=LOWEST)
        )
        assert (key, value["op"]) == (KEY, "i")
        assert value["after"] == {"k": cell(7), "c": cell(1), "_range_start": None, "_range_end": None}


@pytest.mark.parametrize("form", FORMS)
def test_a_column_with_the_name_of_a_range_s_end_is_refused(form: dict[str, str]) -> None:
    definition = table_of("t", "k int pk, _range_end int, v int")
    with pytest.raises(HelenusError, match="column _range_end"):
        Made(definition, **form)
    _, value = Made(definition, **form, **{"column.exclude.list": "ks.t._range_end"}).single_record(
        Update(definition, K, [Row((), {"v": Cell(int32(1)), "_range_end": Cell(K)}, time=T)], lowest=LOWEST)
    )
    assert value["after"]["_range_end"] is None


def test_what_columns_leaves_out_is_not_said() -> None:
    _, value = Made(TABLE, **AVRO, columns="v").single_record(row(("v", Cell(int32(5))), ("w", Cell(b"secret"))))
    assert (cells(value), value["written"]["columns"]) == ({"v": cell(5)}, ["v"])


@pytest.mark.parametrize("form", FORMS)
def test_a_smaller_record_leaves_cells_out(form: dict[str, str]) -> None:
    made = Made(TABLE, **form)
    (event,) = events(row(("v", Cell(int32(5))), ("w", Cell(b"x" * 1000))))
    (shaped,) = made.shape.records(made.resolved(event))
    assert shaped is not None
    assert shaped.image is not None
    image, left_out = next(made.shape.smaller(shaped.image))
    assert left_out == ("left_out", b'["w"]')
    assert cells(made.read(shaped.make(image).value)) == {"v": cell(5)}


def test_values_that_nothing_can_show() -> None:
    made = Made(TABLE, **AVRO)
    (event,) = events(row(("l", Complex([Cell(None, T, None, False, GONE, b"short")])), time=None))
    (shaped,) = made.shape.records(made.resolved(event))
    assert shaped is not None
    assert "a change cannot be published" in str(shaped.cause)
    _, value = made.single_record(row(("v", Cell(int32(5))), ("w", Cell(b"\xff"))))
    assert cells(value) == {"v": cell(5)}, "text that is none is left out, as its header says"


CLASS = "org.apache.cassandra.db.marshal."
CLASSES = {
    "int": "Int32Type",
    "timeuuid": "TimeUUIDType",
    "varint": "IntegerType",
    "date": "SimpleDateType",
    "frozen<list<frozen<set<int>>>>": f"FrozenType({CLASS}ListType({CLASS}SetType({CLASS}Int32Type)))",
    "tuple<int, text>": f"TupleType({CLASS}Int32Type,{CLASS}UTF8Type)",
    "vector<float, 2>": f"VectorType({CLASS}FloatType , 2)",
}


@pytest.mark.parametrize("kind", CLASSES)
def test_classes(kind: str) -> None:
    """As Cassandra 5.0.2 prints them."""
    assert column_class(Column("c", parse(kind)), "ks") == CLASS + CLASSES[kind]
    turned = Column("c", parse(kind), reversed=True)
    assert column_class(turned, "ks") == f"{CLASS}ReversedType({CLASS}{CLASSES[kind]})"


def test_the_class_of_a_type_of_the_user() -> None:
    udt = CqlType("udt", (parse("int"),), True, "addr", ("zip",))
    wanted = f"{CLASS}FrozenType({CLASS}UserType(ks,61646472,7a6970:{CLASS}Int32Type))"
    assert column_class(Column("c", udt), "ks") == wanted


TEXTS = [
    ("timestamp", struct.pack(">q", 1700000000123), "2023-11-14T22:13:20.123Z"),
    ("timestamp", struct.pack(">q", 253402300800000), "+10000-01-01T00:00:00.000Z"),
    ("date", int32(5), "-5877641-06-28"),
    ("time", struct.pack(">q", 86399123456789), "23:59:59.123456789"),
    ("decimal", int32(2) + b"\x01\x2c", "3.00"),
    ("decimal", int32(-2) + b"\1", "1E+2"),
    ("decimal", int32(20) + b"\1", "1E-20"),
    ("float", struct.pack(">f", 1e10), "1.0E10"),
    ("float", struct.pack(">f", 1.5), "1.5"),
    ("double", struct.pack(">d", 1e-5), "1.0E-5"),
    ("double", struct.pack(">d", 100), "100.0"),
    ("double", struct.pack(">d", 1e7), "1.0E7"),
    ("double", struct.pack(">d", float("nan")), "NaN"),
    ("boolean", b"\1", "true"),
    ("blob", b"\0\xff", "00ff"),
    ("inet", bytes(16), "0:0:0:0:0:0:0:0"),
    ("smallint", b"\xff\0", "-256"),
    ("frozen<list<int>>", collection(int32(7)), "000000010000000400000007"),
    ("tuple<int, text>", collection(int32(7), b":")[4:], "7:\\:"),
]


@pytest.mark.parametrize(("kind", "data", "text"), TEXTS)
def test_values_of_a_range(kind: str, data: bytes, text: str) -> None:
    """As `AbstractType.getString` of Cassandra 5.0.2 gave them."""
    assert value_text(parse(kind), data) == text


def test_the_schemas_that_are_printed_are_those_that_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas_command, "read", lambda _: {"t": TABLE})
    worker: Any = SimpleNamespace(log="kafka", log_of_data="kafka")
    made = Made(TABLE, **AVRO)
    lines = map(json.loads, schemas_command.subjects(worker, made.settings))
    printed = {line["subject"]: line["schema"] for line in lines}
    assert printed == {name: made.registry.schema(number) for name, number in made.registry.subjects.items()}


def test_settings() -> None:
    """Debezium's defaults go with its format, where no other is given."""
    properties = {"name": "n", "keyspace": "ks", "table": "t", **AVRO}
    connector_settings = ConnectorSettings.from_properties(properties, "test")
    modes = (
        connector_settings.decimal_handling_mode,
        connector_settings.varint_handling_mode,
        connector_settings.tombstones_on_delete,
    )
    assert modes == ("double", "long", False)
    assert ConnectorSettings.from_properties({**properties, "decimal.handling.mode": "precise"}, "test").forms == {
        "varint": "long"
    }
    assert ConnectorSettings.from_properties({**properties, "resolver": "none"}, "test").cleanup_policy == "delete"
    assert PulsarConnectorSettings.from_properties(properties, "test").is_avro
    with pytest.raises(HelenusError, match=r"schema\.registry\.url=: required"):
        ConnectorSettings.from_properties({**properties, "value.converter.schema.registry.url": ""}, "test")


@pytest.mark.parametrize("form", FORMS)
def test_the_kind_of_operation_is_a_header_where_it_is_known(form: dict[str, str]) -> None:
    made = Made(TABLE, **form)

    def ops(resolved: ResolvedKey) -> list[bytes | None]:
        shaped_records = [shaped for shaped in made.shape.records(resolved) if shaped is not None]
        return [dict(shaped.record.headers).get("op") for shaped in shaped_records if shaped.record.value is not None]

    for update, op in (
        (row(("v", Cell(int32(5)))), [b"c"]),
        (row(("v", Cell(int32(5), time=T)), time=None), [b"u"]),
        (row(time=None, deletion=(T, GONE)), [b"d"]),
        (row(("v", Cell(int32(5))), deletion=(T - 1, GONE)), [b"d", b"c"]),
    ):
        (event,) = events(update)
        assert ops(made.resolved(event)) == op
    assert ops(made.was_read(Image((None,) * len(TABLE.values), T))) == [None]
    assert ops(made.was_read(None)) == [b"d"]
