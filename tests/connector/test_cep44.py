"""Records of the shape `cep44`: of changes as they were written, and of rows as they were read."""

from __future__ import annotations

import io
import json
import struct
import uuid
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from agent.writer import LIVE, Cell, Complex, Marker, Row, Update, table_of
from connector.celled import JSON, events
from connector.test_envelope import GONE, LOWEST, K, Made, T, int32, settings

from helenus_connector import schemas_command
from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.interfaces.image import Image, LiveRow
from helenus_connector.pipeline._image_digest import digest_of
from helenus_connector.shape.cep44._key import murmur2
from helenus_connector.shape.cep44._pack import schema_uuid
from helenus_connector.shape.cep44.predicates import ranges
from helenus_connector.shape.cep44.shape import Cep44
from helenus_connector.shape.row.row import shown_table
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Bound, Change, Origin, Scope
from helenus_schemas.event.wire import encode

REGISTRY = {"output.format": "cep44", "value.converter.schema.registry.url": "http://r"}
APART = {**REGISTRY, "cep44.payload": "bytes"}
AS_JSON = {"output.format": "cep44", "value.converter": JSON, "value.converter.schemas.enable": "false"}
FORMS = [REGISTRY, APART, AS_JSON]
TABLE = table_of("t", "k int pk, c int ck, s text static, v int, w text, m map<int, int>, l list<int>, st set<text>")
C = int32(1)
EMPTY = dict.fromkeys(("k", "c", "s", "v", "w", "m", "l", "st"))


class Cep(Made):
    """What the shape makes: the payload and the values of predicates are read as well."""

    def __init__(self, table: Table = TABLE, **more: str) -> None:
        self.settings = settings(**more)
        self.table, self.registry = shown_table(table, self.settings), MemoryRegistry()
        self.shape = Cep44(self.table, self.settings, self.registry)  # type: ignore[assignment]
        self.codec = KeyCodec(self.table)

    @property
    def envelope(self) -> Any:
        return json.loads(self.registry.schema(self.registry.subjects["data-ks.t-value"]) or "")

    def row(self, data: bytes) -> Any:
        field = next(field for field in self.envelope["fields"] if field["name"] == "payload")
        payload_schema = field["schema"] if self.settings.cep44_payload == "bytes" else field["type"]
        source = io.BytesIO(data)
        decoded_row = fastavro.schemaless_reader(source, fastavro.parse_schema(payload_schema))
        assert not source.read()
        return decoded_row

    def read(self, data: bytes | None) -> Any:
        if data is not None and self.settings.key_compat == "cep44" and data.startswith(b"ks:"):
            return data.decode()
        decoded = super().read(data)
        if isinstance(decoded, dict) and "payload" in decoded and self.settings.is_avro:
            if isinstance(decoded["payload"], bytes):
                decoded["payload"] = self.row(decoded["payload"])
            for predicate in decoded["range"] or ():
                # As the Sidecar has it: a payload with one field.
                whole = self.row(predicate["value"])
                predicate["value"] = {predicate["field"]: whole.pop(predicate["field"])}
                assert not any(whole.values())
        return decoded


def row(*columns: tuple[str, Cell | Complex], time: int | None = T, **more: Any) -> Update:
    return Update(TABLE, K, [Row((C,), dict(columns), time=time, **more)], lowest=LOWEST)


def written_values(value: dict[str, Any]) -> dict[str, Any]:
    """The columns of a payload that are not null."""
    return {name: written for name, written in value["payload"].items() if written is not None}


def entries(pairs: dict[Any, Any], made: Made) -> Any:
    if made.settings.is_avro:
        return [{"key": key, "value": value} for key, value in pairs.items()]
    return {str(key): value for key, value in pairs.items()}


@pytest.mark.parametrize("form", FORMS)
def test_an_insert(form: dict[str, str]) -> None:
    made = Cep(**form)
    ((key, value, headers),) = made.written(row(("v", Cell(int32(5)))))
    assert key == {"k": 7, "c": 1}
    assert value == {
        "timestampMicros": T,
        "sourceTable": "t",
        "sourceKeyspace": "ks",
        "schemaUuid": schema_uuid(TABLE),
        "truncatedFields": [],
        "version": "2",
        "operationType": "INSERT",
        "isPartial": True,
        "updateFields": ["k", "c", "v"],
        "range": None,
        "ttl": None,
        "payload": {**EMPTY, "k": 7, "c": 1, "v": 5},
        "written": {"columns": ["v"], "replaced": [], "removed": {}},
    }
    assert (headers["keyspace"], headers["table"], headers["op"]) == (b"ks", b"t", b"c")
    assert headers["schemaUuid"].decode() == schema_uuid(TABLE)
    assert headers["writetime"] == b"%d" % T


@pytest.mark.parametrize("form", FORMS)
def test_an_update_has_the_columns_it_writes(form: dict[str, str]) -> None:
    update = row(("v", Cell(int32(5), time=T)), ("w", Cell(None, time=T, deleted_at=GONE)), time=None)
    ((_, value, headers),) = Cep(**form).written(update)
    assert (value["operationType"], headers["op"]) == ("UPDATE", b"u")
    assert value["updateFields"] == ["k", "c", "v", "w"]
    assert written_values(value) == {"k": 7, "c": 1, "v": 5}


@pytest.mark.parametrize("form", FORMS)
def test_elements_that_are_added_removed_and_replaced(form: dict[str, str]) -> None:
    made = Cep(**form)
    deletion = (T - 1, GONE)
    added = Complex([Cell(int32(2), time=T, path=int32(1))])
    removed = Complex([Cell(None, time=T, path=b"x", deleted_at=GONE)])
    ((_, value, headers),) = made.written(row(("m", added), ("st", removed), time=None))
    assert (value["operationType"], headers["op"]) == ("COMPLEX_ELEMENT_DELETE", b"u")
    assert written_values(value) == {"k": 7, "c": 1, "m": entries({1: 2}, made)}
    assert value["written"] == {"columns": ["m", "st"], "replaced": [], "removed": {"st": ["x"]}}
    replaced = Complex([Cell(int32(2), time=T, path=int32(1))], deletion=deletion)
    ((_, value, _),) = made.written(row(("m", replaced), time=None))
    assert (value["operationType"], value["written"]["replaced"]) == ("UPDATE", ["m"])
    gone = Complex([], deletion=deletion)
    ((_, value, headers),) = made.written(row(("m", gone), time=None))
    assert (value["operationType"], headers["op"]) == ("DELETE", b"u")
    assert (value["updateFields"], written_values(value)) == (["k", "c", "m"], {"k": 7, "c": 1})
    ((_, value, _),) = made.written(row(("m", gone), ("v", Cell(int32(5), time=T)), time=None))
    assert value["operationType"] == "UPDATE"
    ((_, value, _),) = made.written(row(("m", gone)))
    assert value["operationType"] == "INSERT"


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_deleted(form: dict[str, str]) -> None:
    deleted = row(time=None, deletion=(T, GONE))
    record, tombstone = Cep(**form).written(deleted)
    assert record[0] == tombstone[0] == {"k": 7, "c": 1}
    assert tombstone[1:] == (None, {})
    assert (record[1]["operationType"], record[2]["op"]) == ("DELETE", b"d")
    assert (record[1]["updateFields"], record[1]["payload"]) == (["k", "c"], {**EMPTY, "k": 7, "c": 1})
    assert record[1]["written"] is None
    (record,) = Cep(**form, **{"tombstones.on.delete": "false"}).written(deleted)
    assert record[1]["operationType"] == "DELETE"


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_one_mutation_deletes_and_writes_is_two_records(form: dict[str, str]) -> None:
    both = row(("v", Cell(int32(5))), time=T, deletion=(T - 1, GONE))
    first, second = Cep(**form).written(both)
    assert [(r[1]["operationType"], r[1]["timestampMicros"]) for r in (first, second)] == [
        ("DELETE", T - 1),
        ("INSERT", T),
    ]
    assert (written_values(first[1]), written_values(second[1])) == ({"k": 7, "c": 1}, {"k": 7, "c": 1, "v": 5})
    both = row(("v", Cell(int32(5), time=T)), time=None, deletion=(T - 1, GONE))
    assert [r[1]["operationType"] for r in Cep(**form).written(both)] == ["DELETE", "UPDATE"]


@pytest.mark.parametrize("form", FORMS)
def test_static_columns(form: dict[str, str]) -> None:
    update = Update(TABLE, K, static=Row((), {"s": Cell(b"x", time=T)}), lowest=LOWEST)
    ((key, value, _),) = Cep(**form).written(update)
    assert key == {"k": 7, "c": None}
    assert (value["operationType"], value["updateFields"]) == ("UPDATE", ["k", "s"])
    assert value["payload"] == {**EMPTY, "k": 7, "s": "x"}


@pytest.mark.parametrize("form", FORMS)
def test_a_partition_that_is_deleted(form: dict[str, str]) -> None:
    record, tombstone = Cep(**form).written(Update(TABLE, K, deletion=(T, GONE), lowest=LOWEST))
    assert record[0] == tombstone[0] == {"k": 7, "c": None}
    assert (record[1]["operationType"], record[1]["updateFields"]) == ("DELETE_PARTITION", ["k"])
    assert record[1]["payload"] == {**EMPTY, "k": 7}
    assert (record[2]["scope"], record[2]["op"], tombstone[1]) == (b"partition", b"d", None)


@pytest.mark.parametrize("form", FORMS)
def test_a_partition_of_a_table_without_clustering_columns(form: dict[str, str]) -> None:
    definition = table_of("t", "k int pk, v int")
    record, tombstone = Cep(definition, **form).written(Update(definition, K, deletion=(T, GONE), lowest=LOWEST))
    assert (record[0], tombstone[1]) == ({"k": 7}, None)
    assert (record[1]["operationType"], record[1]["payload"]) == ("DELETE_PARTITION", {"k": 7, "v": None})
    assert "scope" not in record[2]


RANGES = table_of("t", "k int pk, a int ck, b int ck, v int")


@pytest.mark.parametrize("form", FORMS)
def test_a_range_that_is_deleted(form: dict[str, str]) -> None:
    bounds = [Marker(kind, prefix, ((T, GONE),)) for kind, prefix in ((7, (C, int32(5))), (6, (C,)))]
    record, tombstone = Cep(RANGES, **form).written(Update(RANGES, K, bounds, lowest=LOWEST))
    assert record[0] == tombstone[0] == {"k": 7, "a": None, "b": None}
    assert (record[1]["operationType"], record[1]["updateFields"]) == ("DELETE_RANGE", ["k"])
    assert record[1]["range"] == [
        {"field": "a", "rangePredicateType": "EQ", "value": {"a": 1}},
        {"field": "b", "rangePredicateType": "GT", "value": {"b": 5}},
    ]
    assert record[2]["start"] == b'{"inclusive":false,"values":{"a":1,"b":5},"descending":[]}'
    assert (record[2]["scope"], record[2]["op"]) == (b"range", b"d")


def test_a_range_of_tuples_is_as_many_records_as_it_takes() -> None:
    """WHERE (a, b) > (1, 5), which the Sidecar says as a > 1 AND b > 5: other rows."""
    bounds = [Marker(kind, prefix, ((T, GONE),)) for kind, prefix in ((7, (C, int32(5))), (6, ()))]
    *records, tombstone = Cep(RANGES, **REGISTRY).written(Update(RANGES, K, bounds, lowest=LOWEST))
    predicates = [
        [(p["field"], p["rangePredicateType"], *p["value"].values()) for p in value["range"]] for _, value, _ in records
    ]
    assert predicates == [[("a", "EQ", 1), ("b", "GT", 5)], [("a", "GT", 1)]]
    assert tombstone[1] is None


SMALL = range(4)


def holds(symbol: str, value: int, other: int) -> bool:
    return {
        "LT": value < other,
        "LTE": value <= other,
        "EQ": value == other,
        "GTE": value >= other,
        "GT": value > other,
    }[symbol]


@pytest.mark.parametrize("is_reversed", [(False, False), (True, False), (False, True), (True, True)])
def test_ranges_together_have_the_rows_of_the_range(is_reversed: tuple[bool, bool]) -> None:
    """Every range of two columns of few values, compared as Cassandra does: as tuples in the table's order."""
    columns = [Column(name, CqlType("int"), "clustering", i, is_reversed[i]) for i, name in enumerate(("a", "b"))]
    rows = [(a, b) for a in SMALL for b in SMALL]
    prefixes: list[tuple[int, ...]] = [(), *[(a,) for a in SMALL], *rows]

    def placed(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-v if back else v for v, back in zip(values, is_reversed, strict=False))

    def within(bound: tuple[int, ...], inclusive: bool, key: tuple[int, ...], sign: int) -> bool:
        a, b = placed(key[: len(bound)]), placed(bound)
        return inclusive if a == b else (a > b) == (sign > 0)

    count = 0
    for first in prefixes:
        for last in prefixes:
            for start_in, end_in in ((True, True), (True, False), (False, True), (False, False)):
                wanted = {r for r in rows if within(first, start_in or not first, r, 1)}
                wanted &= {r for r in rows if within(last, end_in or not last, r, -1)}
                if not wanted:  # Cassandra logs no empty range
                    continue
                bounds = [
                    Bound(is_in, tuple(map(int32, values))) if values else None
                    for is_in, values in ((start_in, first), (end_in, last))
                ]
                parts = [
                    {
                        r
                        for r in rows
                        if all(holds(p.symbol, r[p.column], struct.unpack(">i", p.value)[0]) for p in predicates)
                    }
                    for predicates in ranges(columns, *bounds)
                ]
                assert set().union(*parts) == wanted, (first, last, start_in, end_in)
                assert sum(map(len, parts)) == len(wanted)  # no row twice
                count += 1
    assert count > 500


@pytest.mark.parametrize("form", FORMS)
def test_a_ttl(form: dict[str, str]) -> None:
    update = row(("v", Cell(int32(5), row_ttl=True)), expires=(60, GONE + 60))
    ((_, value, headers),) = Cep(**form).written(update)
    assert value["ttl"] == {"ttl": 60, "deletedAt": GONE + 60}
    assert headers["expires"] == b"%d" % (GONE + 60)
    ((_, value, _),) = Cep(**form).written(row(("v", Cell(int32(5), time=T, expires=(9, GONE + 9))), time=None))
    assert value["ttl"] == {"ttl": 9, "deletedAt": GONE + 9}
    ((_, value, _),) = Cep(**form).written(row(expires=(60, GONE + 60)))
    assert value["ttl"] == {"ttl": 60, "deletedAt": GONE + 60}


UUID = uuid.UUID("50554d6e-29bb-11e5-b345-feff819cdc9f")
BIG = 10**37 + 1
VALUES: dict[str, tuple[bytes, Any, Any]] = {
    "ascii": (b"x", "x", {"type": "string", "cqlType": "ascii"}),
    "text": ("ü".encode(), "ü", {"type": "string", "cqlType": "text"}),
    "bigint": (struct.pack(">q", -5), -5, {"type": "long", "cqlType": "bigint"}),
    "blob": (b"\0\xff", b"\0\xff", {"type": "bytes", "cqlType": "blob"}),
    "boolean": (b"\1", True, {"type": "boolean", "cqlType": "boolean"}),
    "double": (struct.pack(">d", 1.5), 1.5, {"type": "double", "cqlType": "double"}),
    "float": (struct.pack(">f", 1.5), 1.5, {"type": "float", "cqlType": "float"}),
    "inet": (bytes((127, 0, 0, 1)), bytes((127, 0, 0, 1)), {"type": "bytes", "logicalType": "inet"}),
    "int": (int32(-1), -1, {"type": "int", "cqlType": "int"}),
    "smallint": (b"\xff\xff", -1, {"type": "int", "cqlType": "smallint"}),
    "tinyint": (b"\xff", -1, {"type": "int", "cqlType": "tinyint"}),
    "time": ((5).to_bytes(8, "big"), 5, {"type": "long", "cqlType": "time"}),
    "timestamp": (
        (1711149035715).to_bytes(8, "big"),
        1711149035715000,
        {"type": "long", "logicalType": "timestamp-micros", "cqlType": "timestamp"},
    ),
    "date": ((1 << 31).to_bytes(4, "big"), 0, {"type": "int", "logicalType": "date", "cqlType": "date"}),
    "uuid": (bytes(16), str(uuid.UUID(int=0)), {"type": "string", "logicalType": "uuid", "cqlType": "uuid"}),
    "timeuuid": (UUID.bytes, str(UUID), {"type": "string", "logicalType": "uuid", "cqlType": "timeuuid"}),
    "varint": (
        BIG.to_bytes(16, "big"),
        BIG.to_bytes(16, "big"),
        {"type": "fixed", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 0, "cqlType": "varint"},
    ),
    "decimal": (
        int32(1) + b"\xf1",  # -1.5
        (-15 * 10**18).to_bytes(16, "big", signed=True),
        {"type": "fixed", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 19, "cqlType": "decimal"},
    ),
    "frozen<list<int>>": (
        int32(1) + int32(4) + int32(3),
        [3],
        {"type": "array", "items": {"type": "int", "cqlType": "int"}, "isFrozen": "true"},
    ),
    "frozen<set<text>>": (int32(1) + int32(1) + b"a", ["a"], {"type": "array", "logicalType": "array_set"}),
    "frozen<map<int, text>>": (
        int32(1) + int32(4) + int32(3) + int32(1) + b"a",
        [{"key": 3, "value": "a"}],
        {"type": "array", "logicalType": "array_map", "cqlType": "frozen<map<int, text>>", "isFrozen": "true"},
    ),
    "frozen<addr>": (
        int32(1) + b"a" + int32(-1),
        {"street": "a", "zip": None},
        {"type": "record", "name": "record_udt", "namespace": "ks.t.v.record_udt", "logicalType": "record_udt"},
    ),
    "frozen<list<frozen<map<text, frozen<addr>>>>>": (
        int32(1) + int32(21) + int32(1) + int32(1) + b"m" + int32(8) + int32(4) + b"main",
        [[{"key": "m", "value": {"street": "main", "zip": None}}]],
        {"type": "array"},
    ),
    "tuple<int, text>": (int32(4) + int32(3) + int32(-1), {"index_0": 3, "index_1": None}, {"type": "record"}),
    "vector<float, 2>": (struct.pack(">ff", 1, 2), [1.0, 2.0], {"type": "array"}),
    "duration": (b"\2\4\6", {"months": 1, "days": 2, "nanoseconds": 3}, {"type": "record"}),
}
ADDR = CqlType("udt", (CqlType("text"), CqlType("int")), label="addr", fields=("street", "zip"))


def with_column(kind: str) -> Table:
    key = Column("k", CqlType("int"), "partition_key", 0)
    return Table("ks", "t", uuid.UUID(int=7), (key, Column("v", parse(kind, {"addr": ADDR}))))


@pytest.mark.parametrize("kind", VALUES)
def test_every_type(kind: str) -> None:
    """As the Sidecar has it, where it has the type: bytes, and their schema."""
    data, wanted, of_type = VALUES[kind]
    definition = with_column(kind)
    update = Update(definition, K, [Row((), {"v": Cell(data)}, time=T)], lowest=LOWEST)
    made = Cep(definition, **REGISTRY)
    ((_, _, _),) = made.written(update)
    payload = next(field["type"] for field in made.envelope["fields"] if field["name"] == "payload")
    null, value_type = payload["fields"][1]["type"]
    assert (null, {**value_type, **of_type}) == ("null", value_type)
    assert (payload["namespace"], payload["name"]) == ("ks.t", "t")
    assert (payload["primary_keys"], payload["static_columns"]) == (["k"], [])
    (shaped,) = made.shape.records(made.resolved(events(update)[0]))
    assert shaped is not None
    assert _without_logical_types(made, shaped.record.value or b"")["payload"]["v"] == wanted
    ((_, apart, _),) = Cep(definition, **APART).written(update)
    ((_, whole, _),) = Cep(definition, **REGISTRY).written(update)
    assert apart == whole


def _without_logical_types(made: Cep, data: bytes) -> Any:
    def bare(schema: Any) -> Any:
        if isinstance(schema, dict):
            return {key: bare(value) for key, value in schema.items() if key != "logicalType"}
        return [bare(part) for part in schema] if isinstance(schema, list) else schema

    return fastavro.schemaless_reader(io.BytesIO(data[5:]), fastavro.parse_schema(bare(made.envelope)))


def test_numbers_that_do_not_fit_are_left_out_and_named() -> None:
    definition = table_of("t", "k int pk, d decimal, n varint, at timestamp, v int")
    made = Cep(definition, **REGISTRY)
    columns = {
        "d": Cell(int32(20) + b"\1"),
        "n": Cell((10**38).to_bytes(17, "big")),
        "at": Cell((1 << 62).to_bytes(8, "big")),
        "v": Cell(int32(5)),
    }
    ((_, value, headers),) = made.written(Update(definition, K, [Row((), columns, time=T)], lowest=LOWEST))
    assert written_values(value) == {"k": 7, "v": 5}
    assert sorted(value["truncatedFields"]) == sorted(json.loads(headers["left_out"])) == ["at", "d", "n"]
    assert sorted(value["updateFields"]) == ["at", "d", "k", "n", "v"]
    modes = {"decimal.handling.mode": "string", "varint.handling.mode": "string"}
    del columns["at"]
    ((_, value, _),) = Cep(definition, **REGISTRY, **modes).written(
        Update(definition, K, [Row((), columns, time=T)], lowest=LOWEST)
    )
    assert written_values(value) == {"k": 7, "v": 5, "d": "1E-20", "n": str(10**38)}
    assert value["truncatedFields"] == []


@pytest.mark.parametrize(
    ("scale", "unscaled", "wanted"),
    [
        (21, 100, Decimal("1E-19")),
        (-18, 1, Decimal("1E+18")),
        (19, 10**38 - 1, Decimal("9999999999999999999.9999999999999999999")),
        (-(1 << 31), 0, 0),
        (19, 10**38, None),
        (-(1 << 31), 1, None),
        ((1 << 31) - 1, 1, None),
        (21, 110, None),
    ],
)
def test_decimals_at_their_limits(scale: int, unscaled: int, wanted: Decimal | None) -> None:
    definition = table_of("t", "k int pk, d decimal")
    data = struct.pack(">i", scale) + unscaled.to_bytes(20, "big", signed=True)
    ((_, value, _),) = Cep(definition, **REGISTRY).written(
        Update(definition, K, [Row((), {"d": Cell(data)}, time=T)], lowest=LOWEST)
    )
    assert value["payload"]["d"] == wanted
    assert value["truncatedFields"] == (["d"] if wanted is None else [])


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_were_read(form: dict[str, str]) -> None:
    made = Cep(**form)
    image = Image((None, None, None, int32(5), b"w", None), T)
    ((key, value, headers),) = made.decoded_records(made.was_read(image))
    assert key == {"k": 7, "c": 1}
    assert (value["operationType"], value["isPartial"], value["written"]) == ("UPDATE", False, None)
    assert sorted(value["updateFields"]) == sorted(EMPTY)
    assert value["payload"] == {**EMPTY, "k": 7, "c": 1, "v": 5, "w": "w"}
    assert "op" not in headers
    ((_, value, headers),) = made.decoded_records(
        made.was_read(image, encode(Change(None, None, origin=Origin.SNAPSHOT)))
    )
    assert (headers["snapshot"], headers["op"]) == (b"true", b"r")
    gone, tombstone = made.decoded_records(made.was_read(None))
    assert (gone[1]["operationType"], gone[1]["updateFields"], tombstone[1]) == ("DELETE", ["k", "c"], None)
    assert gone[2]["op"] == b"d"
    statics = Image((None, None, None, None, None, b"s"), T)
    ((key, value, _),) = made.decoded_records(made.was_read(statics, scope=Scope.STATIC))
    assert (key, value["operationType"], value["isPartial"]) == ({"k": 7, "c": None}, "UPDATE", True)
    assert (value["updateFields"], written_values(value)) == (["k", "s"], {"k": 7, "s": "s"})
    ((_, value, _),) = made.decoded_records(made.was_read(None, scope=Scope.STATIC))
    assert (value["operationType"], value["updateFields"], written_values(value)) == ("UPDATE", ["k", "s"], {"k": 7})


@pytest.mark.parametrize("form", FORMS)
def test_markers_whose_rows_were_read(form: dict[str, str]) -> None:
    made = Cep(**form)
    live = LiveRow(made.codec.encode((K, C)), (K, C), Image((None, None, None, int32(5), None, None), T + 1))
    statics = Image((None, None, None, None, None, b"s"), T)
    marker = made.was_read(statics, scope=Scope.PARTITION)
    marker.read_rows = lambda _: iter((live,))
    decoded_records = made.decoded_records(marker)
    kinds = [value and value["operationType"] for _, value, _ in decoded_records]
    assert kinds == ["DELETE_PARTITION", None, "UPDATE", "UPDATE"]
    assert written_values(decoded_records[0][1]) == {"k": 7}
    assert (written_values(decoded_records[2][1]), decoded_records[2][1]["isPartial"]) == ({"k": 7, "s": "s"}, True)
    assert (decoded_records[3][1]["timestampMicros"], decoded_records[3][1]["isPartial"]) == (T + 1, False)
    table = made.was_read(None, scope=Scope.TABLE)
    table.read_rows = lambda _: iter((live,))
    truncated, alive = made.decoded_records(table)
    assert truncated[:2] == ({"table": "ks.t"}, None)
    assert (truncated[2]["scope"], truncated[2]["op"]) == (b"table", b"t")
    assert alive[1]["operationType"] == "UPDATE"


@pytest.mark.parametrize("form", FORMS)
def test_the_sidecars_key(form: dict[str, str]) -> None:
    made = Cep(**form, **{"key.compat": "cep44"})
    ((key, _, headers),) = made.written(row(("v", Cell(int32(5)))))
    assert key == f"ks:t:{murmur2(K):x}"
    assert headers["exact_key"] == made.codec.encode((K, C))
    (record,) = made.written(Update(TABLE, K, deletion=(T, GONE), lowest=LOWEST))  # and no tombstone: others share it
    assert (record[0], record[1]["operationType"]) == (key, "DELETE_PARTITION")
    assert made.registry.subjects.keys() <= {"data-ks.t-value"}
    table = made.was_read(None, scope=Scope.TABLE)
    table.read_rows = lambda _: iter(())
    assert [record[0] for record in made.decoded_records(table)] == ["ks:t:"]
    assert made.settings.cleanup_policy == "delete"


def test_the_hash_of_the_sidecars_key() -> None:
    """Values of Kafka's own tests, and a key that the Sidecar was seen to write."""
    published_hashes = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"abc": 479470107,
        b"a-little-bit-long-string": -985981536,
    }
    assert {data: murmur2(data) for data in published_hashes} == {
        data: value & 0xFFFFFFFF for data, value in published_hashes.items()
    }
    assert murmur2(b"asset-000051") == 0x7A8F6E0F
    definition = table_of("t", "a text pk, b int pk, v int")
    update = Update(
        definition, b"\0\5asset\0\0\4" + b"-000" + b"\0", [Row((), {"v": Cell(int32(5))}, time=T)], lowest=LOWEST
    )
    ((key, _, _),) = Cep(definition, **AS_JSON, **{"key.compat": "cep44"}).written(update)
    assert key == f"ks:t:{murmur2(b'asset-000'):x}"  # the values' bytes, one after the other


SIDECARS = {
    "type": "record",
    "name": "CassandraCDC",
    "namespace": "org.apache.cassandra",
    "fields": [
        {"name": "timestampMicros", "type": "long"},
        *({"name": name, "type": "string"} for name in ("sourceTable", "sourceKeyspace", "schemaUuid")),
        {"name": "truncatedFields", "type": {"type": "array", "items": "string"}},
        {"name": "version", "type": ["null", "string"]},
        {
            "name": "operationType",
            "type": {
                "type": "enum",
                "name": "OperationType",
                "symbols": ["INSERT", "UPDATE", "DELETE", "COMPLEX_ELEMENT_DELETE", "DELETE_RANGE", "DELETE_PARTITION"],
            },
        },
        {"name": "isPartial", "type": "boolean"},
        {"name": "updateFields", "type": ["null", {"type": "array", "items": "string"}]},
        {
            "name": "range",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "RangePredicate",
                        "fields": [
                            {"name": "field", "type": "string"},
                            {
                                "name": "rangePredicateType",
                                "type": {
                                    "type": "enum",
                                    "name": "RangePredicateType",
                                    "symbols": ["LT", "LTE", "EQ", "GTE", "GT", "IN"],
                                },
                            },
                            {"name": "value", "type": "bytes"},
                        ],
                    },
                },
            ],
        },
        {
            "name": "ttl",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "TTL",
                    "fields": [{"name": "ttl", "type": "int"}, {"name": "deletedAt", "type": "long"}],
                },
            ],
        },
        {"name": "payload", "type": "bytes"},
    ],
}
"""The fields that a consumer of the Sidecar knows."""


def test_a_consumer_of_the_sidecar_reads_it() -> None:
    """By its own schema as the reader's; and by that one alone, since what is ours comes last."""
    made = Cep(**APART)
    ours, theirs = fastavro.parse_schema(made.envelope), fastavro.parse_schema(SIDECARS)
    bounds = [Marker(kind, (C,), ((T, GONE),)) for kind in (1, 6)]
    for update, kind in (
        (row(("v", Cell(int32(5), row_ttl=True)), expires=(60, GONE + 60)), "INSERT"),
        (Update(TABLE, K, bounds, lowest=LOWEST), "DELETE_RANGE"),
    ):
        shaped = next(iter(made.shape.records(made.resolved(events(update)[0]))))
        assert shaped is not None
        data = (shaped.record.value or b"")[5:]
        resolved = fastavro.schemaless_reader(io.BytesIO(data), ours, theirs)
        alone = fastavro.schemaless_reader(io.BytesIO(data), theirs)
        assert resolved == alone
        assert isinstance(alone, dict)
        assert alone["operationType"] == kind
        assert made.row(alone["payload"])["k"] == 7


def test_the_same_row_read_again_is_the_same_whatever_asked_for_it() -> None:
    made = Cep(**REGISTRY)

    def digest(values: tuple[bytes | None, ...] | None, event: bytes | None = None, write_time: int = T) -> bytes:
        read = made.was_read(None if values is None else Image(values, write_time), event)
        read.write_time = write_time
        return digest_of(made.shape.records(read))

    first, two = ((None, None, None, int32(n), b"w", None) for n in (5, 6))
    snapshot = encode(Change(None, None, origin=Origin.SNAPSHOT))
    assert digest(first) == digest(first, snapshot) == digest(first, None, T + 1)
    assert len({digest(first), digest(two), digest(None)}) == 3


def test_a_smaller_record_names_what_it_lacks() -> None:
    made = Cep(**REGISTRY)
    (event,) = events(row(("v", Cell(int32(5))), ("w", Cell(b"x" * 1000))))
    (shaped,) = made.shape.records(made.resolved(event))
    assert shaped is not None
    assert shaped.image is not None
    image, left_out = next(made.shape.smaller(shaped.image))
    assert left_out == ("left_out", b'["w"]')
    value = made.read(shaped.make(image).value)
    assert (value["payload"]["v"], value["payload"]["w"], value["truncatedFields"]) == (5, None, ["w"])
    assert value["updateFields"] == ["k", "c", "v", "w"]


def test_a_value_that_nothing_can_show_is_the_cause_of_no_record() -> None:
    made = Cep(**REGISTRY)
    bad = Complex([Cell(None, time=T, path=b"short", deleted_at=GONE)])
    (event,) = events(row(("l", bad), time=None))
    (shaped,) = made.shape.records(made.resolved(event))
    assert shaped is not None
    assert "a change cannot be published" in str(shaped.cause)


@pytest.mark.parametrize("form", FORMS)
def test_a_table_of_key_columns_only(form: dict[str, str]) -> None:
    definition = table_of("t", "k int pk, c int ck")
    made = Cep(definition, **form)
    ((_, value, _),) = made.written(Update(definition, K, [Row((C,), {}, time=T)], lowest=LOWEST))
    assert (value["operationType"], value["payload"], value["updateFields"]) == ("INSERT", {"k": 7, "c": 1}, ["k", "c"])
    gone, _ = made.written(Update(definition, K, [Row((C,), {}, deletion=(T, GONE))], lowest=LOWEST))
    assert (gone[1]["operationType"], gone[1]["payload"]) == ("DELETE", {"k": 7, "c": 1})


def test_names_that_are_not_legal_in_avro() -> None:
    key, odd = Column("k", CqlType("int"), "partition_key", 0), Column("my col", parse("set<int>"))
    definition = Table("my ks", "my t", uuid.UUID(int=7), (key, odd))
    for form in (REGISTRY, APART):
        made = Cep(definition, **form)
        update = Update(definition, K, [Row((), {"my col": Complex([Cell(b"", path=C)])}, time=T)], lowest=LOWEST)
        ((_, value, _),) = made.written(update)
        (name,) = set(value["payload"]) - {"k"}
        assert (value["updateFields"], value["payload"][name]) == (["k", name], [1])
        assert (value["sourceTable"], value["sourceKeyspace"]) == ("my t", "my ks")


def test_the_schemas_that_are_printed_are_those_that_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas_command, "read", lambda _: {"t": TABLE})
    worker: Any = SimpleNamespace(log="kafka", log_of_data="kafka")
    for form in (REGISTRY, APART, {**REGISTRY, "key.compat": "cep44"}):
        lines = map(json.loads, schemas_command.subjects(worker, settings(**form)))
        printed = {line["subject"]: line["schema"] for line in lines}
        registry = Cep(**form).registry
        for subject, number in registry.subjects.items():
            assert printed[subject] == registry.schema(number)
        assert ("data-ks.t-key" in printed) == ("data-ks.t-key" in registry.subjects) == ("key.compat" not in form)


def test_settings_that_it_refuses() -> None:
    none = {"name": "n", "keyspace": "ks", "table": "t", "resolver": "none"}
    assert ConnectorSettings.from_properties({**none, **REGISTRY}, "test").cleanup_policy == "delete"
    for more, match in (
        (
            {**REGISTRY, "output.format": "debezium", "key.compat": "cep44"},
            r"key\.compat=cep44: .*output\.format=cep44",
        ),
        ({**AS_JSON, "cep44.payload": "bytes"}, r"cep44\.payload=bytes: records in JSON"),
        ({"output.format": "cep44"}, r"schema\.registry\.url: required"),
    ):
        with pytest.raises(HelenusError, match=match):
            ConnectorSettings.from_properties({**none, **more}, "test")
    assert PulsarConnectorSettings.from_properties({**none, "output.format": "cep44"}, "test").is_avro
    assert settings(**REGISTRY).cleanup_policy == "compact"


def test_what_has_a_time_of_never() -> None:
    """An update whose row says nothing of its liveness, in a table whose collection was never deleted."""
    ((_, value, _),) = Cep(**REGISTRY).written(
        row(("m", Complex([Cell(int32(2), time=T, path=int32(1))], deletion=LIVE)), time=None)
    )
    assert (value["operationType"], value["written"]["replaced"]) == ("UPDATE", [])


@pytest.mark.parametrize("form", FORMS)
def test_a_key_with_a_value_of_no_bytes(form: dict[str, str]) -> None:
    """In a composite partition key it is null, as in the key."""
    definition = table_of("t", "a int pk, b text pk, c int ck, v int")
    update = Update(definition, b"\0\0\0" + b"\0\1x\0", [Row((C,), {"v": Cell(int32(5))}, time=T)], lowest=LOWEST)
    ((key, value, headers),) = Cep(definition, **form).written(update)
    assert key == {"a": None, "b": "x", "c": 1}
    assert value["payload"] == {"a": None, "b": "x", "c": 1, "v": 5}
    assert json.loads(headers["empty"]) == ["a"]


def test_a_number_in_the_key_that_does_not_fit_is_the_cause_of_no_record() -> None:
    definition = table_of("t", "k varint pk, v int")
    update = Update(definition, (10**38).to_bytes(17, "big"), [Row((), {"v": Cell(int32(5))}, time=T)], lowest=LOWEST)
    made = Cep(definition, **REGISTRY)
    for unfit_update in (update, Update(definition, update.key, deletion=(T, GONE), lowest=LOWEST)):
        (event,) = events(unfit_update)
        (shaped,) = made.shape.records(made.resolved(event))
        assert shaped is not None
        assert "a number of more than 38 digits" in str(shaped.cause)


def test_columns_that_are_not_published() -> None:
    made = Cep(**REGISTRY, columns="v")
    ((_, value, _),) = made.written(row(("v", Cell(int32(5))), ("w", Cell(b"secret"))))
    assert (value["payload"], value["updateFields"]) == ({"k": 7, "c": 1, "v": 5}, ["k", "c", "v"])
