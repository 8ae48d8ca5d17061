"""Random schemas and values of Kafka Connect's, and their JSON, which Java's JsonConverter reads and writes."""

from __future__ import annotations

import datetime
import random
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from helenus_connector.connect_data._json_form import json_schema, json_value
from helenus_connector.connect_data.java_numbers import to_float32
from helenus_connector.connect_data.record import ConnectHeader, ConnectRecord
from helenus_connector.connect_data.schema import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema, SchemaField
from helenus_connector.connect_data.times import from_milliseconds
from helenus_connector.converters.headers import simple_header

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
SCALARS = (*INTEGERS, "float32", "float64", "boolean", "string", "bytes")
LOGICAL = {DECIMAL: "bytes", DATE: "int32", TIME: "int32", TIMESTAMP: "int64"}
TEXTS = ("", "a", "17", "-3", " 1.5 ", "true", "TRUE", "1e3", "2024-02-29", "ünï ✓", "300", "NaN")
_NAMES = {"float": "float32", "double": "float64"}


def random_schema(rng: random.Random, depth: int = 2, **more: Any) -> ConnectSchema:
    """A schema of any type: structs, arrays and maps down to a depth."""
    more = {"is_optional": rng.random() < 0.5, **more}
    choice = rng.random()
    if depth and choice < 0.15:
        return random_struct(rng, depth - 1, **more)
    if depth and choice < 0.25:
        return ConnectSchema("array", value_schema=random_schema(rng, depth - 1), **more)
    if depth and choice < 0.35:
        key = ConnectSchema(rng.choice(("string", "int32")))  # type: ignore[arg-type]
        return ConnectSchema("map", key_schema=key, value_schema=random_schema(rng, depth - 1), **more)
    if choice < 0.55:
        name = rng.choice(list(LOGICAL))
        parameters = (("scale", str(rng.choice((0, 2)))),) if name == DECIMAL else ()
        schema = ConnectSchema(LOGICAL[name], name=name, version=1, parameters=parameters, **more)  # type: ignore[arg-type]
    else:
        name = rng.choice((None, None, "io.debezium.time.NanoTime"))
        schema = ConnectSchema(rng.choice(SCALARS), name=name, doc=rng.choice((None, "a doc")), **more)  # type: ignore[arg-type]
    if rng.random() < 0.2:
        return replace(schema, default=random_value(rng, schema, required=True))
    return schema


def random_struct(rng: random.Random, depth: int = 2, names: str = "abcdef", **more: Any) -> ConnectSchema:
    """A struct whose fields have the first of these names."""
    fields = [SchemaField(name, random_schema(rng, depth)) for name in names[: rng.randint(1, len(names))]]
    more = {"name": rng.choice((None, "ks.t")), "version": rng.choice((None, 3)), **more}
    return ConnectSchema("struct", fields=tuple(fields), **more)


def random_value(rng: random.Random, schema: ConnectSchema, required: bool = False) -> Any:
    if schema.is_optional and not required and rng.random() < 0.3:
        return None
    if schema.type == "struct":
        return {field.name: random_value(rng, field.schema) for field in schema.fields}
    if schema.type == "array":
        assert schema.value_schema is not None
        return [random_value(rng, schema.value_schema) for _ in range(rng.randint(0, 3))]
    if schema.type == "map":
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        # One at most: several have the order of Java's hashes.
        keys = [random_value(rng, schema.key_schema, required=True) for _ in range(rng.randint(0, 1))]
        return {key: random_value(rng, schema.value_schema) for key in keys}
    if schema.name == DECIMAL:
        scale = int(dict(schema.parameters)["scale"])
        return Decimal(rng.choice((0, 1, -1, 12345, -(10**20), 10**9 + 7))).scaleb(-scale)
    if schema.name == DATE:
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.choice((0, 1, -1, 19782, -200_000, 100_000)))
    if schema.name in (TIME, TIMESTAMP):
        day = 86_400_000
        times = (
            (0, 1, day - 1, 3_661_001) if schema.name == TIME else (0, -1, day, 1_709_164_800_123, -(10**13), 10**13)
        )
        return from_milliseconds(rng.choice(times), schema.name)
    if schema.type in INTEGERS:
        bits = INTEGERS[schema.type]
        return rng.choice((0, 1, -1, (1 << (bits - 1)) - 1, -(1 << (bits - 1)), rng.getrandbits(bits - 1)))
    if schema.type == "float32":
        return to_float32(rng.choice((0.0, 1.5, 0.1, 1e7, 1e-5, 3.4e38, -123456.7)))
    if schema.type == "float64":
        return rng.choice((0.0, 1.5, 0.1, 1e7, 1e-5, 1.7e308, -1e19, 123456789.125, rng.random()))
    if schema.type == "boolean":
        return rng.random() < 0.5
    return rng.choice(TEXTS) if schema.type == "string" else rng.randbytes(rng.randint(0, 4))


def random_record(rng: random.Random, schema: ConnectSchema, **more: Any) -> ConnectRecord:
    """A record of this schema of values, with a key and headers."""
    key = ConnectSchema("struct", name="ks.t", fields=(SchemaField("k", ConnectSchema("int32")),))
    headers = [
        ConnectHeader("op", ConnectSchema("string"), "d"),
        ConnectHeader("writetime", ConnectSchema("int64"), 5),
        ConnectHeader("op", ConnectSchema("string"), "u"),
    ]
    value = random_value(rng, schema)
    record = ConnectRecord(
        topic=rng.choice(("data-ks.t", "data-ks.other")),
        partition=rng.choice((None, 3)),
        key_schema=key,
        key={"k": rng.randint(0, 9)},
        value_schema=schema,
        value=value,
        timestamp=rng.choice((None, 0, 1_709_164_800_123)),
        headers=tuple(headers[: rng.randint(0, 3)]),
    )
    return replace(record, **more)


def random_envelope(rng: random.Random, has_defaults: bool) -> ConnectRecord:
    """A record in Debezium's envelope: of a row that is there, of a delete with the row before it, or a tombstone."""
    row = random_struct(rng, depth=1, is_optional=True, name="ks.t.Value", version=None)
    while not has_defaults and "default" in str(json_schema(row)):
        row = random_struct(rng, depth=1, is_optional=True, name="ks.t.Value", version=None)
    number, text = ConnectSchema("int64", is_optional=True), ConnectSchema("string")
    source = ConnectSchema("struct", fields=(SchemaField("table", text), SchemaField("ts_ms", number)))
    fields = {"before": row, "after": row, "source": source, "op": text, "ts_ms": number}
    schema = ConnectSchema(
        "struct", name="ks.t.Envelope", fields=tuple(SchemaField(name, own) for name, own in fields.items())
    )
    op = rng.choice("cudr")
    before, after = (random_value(rng, row, required=True) for _ in range(2))
    value = {
        "before": None if op in "cr" else before,
        "after": None if op == "d" else after,
        "source": {"table": rng.choice(("t", "u")), "ts_ms": rng.choice((None, 5))},
        "op": op,
        "ts_ms": 7,
    }
    gone = rng.random() < 0.15
    more = {"value": None, "value_schema": None} if gone else {"value": value, "value_schema": schema}
    record = random_record(rng, schema, **more)
    return replace(record, headers=record.headers[:2])


def random_outbox(rng: random.Random) -> ConnectRecord:
    """A record in Debezium's envelope of an outbox table's row."""
    text, number = (
        ConnectSchema("string", is_optional=True),
        ConnectSchema("int64", name="io.debezium.time.MicroTimestamp"),
    )
    version = ConnectSchema("int32")
    columns = {"id": ConnectSchema("string"), "aggregatetype": text, "aggregateid": text, "payload": text}
    columns |= {"type": text, "at": number, "v": version}
    row = ConnectSchema("struct", True, "ks.outbox.Value", fields=tuple(SchemaField(n, s) for n, s in columns.items()))
    fields = {"before": row, "after": row, "op": ConnectSchema("string"), "ts_ms": ConnectSchema("int64")}
    schema = ConnectSchema(
        "struct", name="ks.outbox.Envelope", fields=tuple(SchemaField(name, own) for name, own in fields.items())
    )
    op = rng.choice("ccccrud")
    after = {
        "id": rng.choice("abc"),
        "aggregatetype": rng.choice(("order", "user.x")),
        "aggregateid": rng.choice(("7", None)),
        "payload": rng.choice(("{}", "text", "", " ", None)),
        "type": rng.choice(("made", None)),
        "at": 1_700_000_000_123_456,
        "v": rng.choice((1, 2)),
    }
    value = {"before": None, "after": None if op == "d" else after, "op": op, "ts_ms": 7}
    gone = rng.random() < 0.1
    more = {"value": None, "value_schema": None} if gone else {"value": value, "value_schema": schema}
    return random_record(rng, schema, partition=None, **more)


def to_json(record: ConnectRecord) -> dict[str, Any]:
    """A record as ConnectTransforms.java takes it."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "timestamp": record.timestamp,
        "key": with_schema(record.key_schema, record.key),
        "value": with_schema(record.value_schema, record.value),
        "headers": [[header.name, with_schema(header.schema, header.value)] for header in record.headers],
    }


def shown(record: ConnectRecord) -> dict[str, Any]:
    """A record as ConnectTransforms.java prints it."""
    plain = to_json(record)
    plain["headers"] = [
        [*pair, (simple_header(header.schema, header.value) or b"").decode()]
        for pair, header in zip(plain["headers"], record.headers, strict=True)
    ]
    return plain


def with_schema(schema: ConnectSchema | None, value: Any) -> Any:
    if schema is None and value is None:
        return None
    return {
        "schema": None if schema is None else json_schema(schema),
        "payload": json_value(schema, value, with_defaults=False),
    }


def read_schema(form: Mapping[str, Any]) -> ConnectSchema:
    """A schema in the JSON of JsonConverter."""
    kind = _NAMES.get(form["type"], form["type"])
    schema = ConnectSchema(
        kind,
        form.get("optional", False),
        form.get("name"),
        form.get("version"),
        form.get("doc"),
        parameters=tuple(form.get("parameters", {}).items()),
        fields=tuple(SchemaField(field["field"], read_schema(field)) for field in form.get("fields", ())),
        key_schema=read_schema(form["keys"]) if "keys" in form else None,
        value_schema=read_schema(form.get("items", form.get("values"))) if {"items", "values"} & form.keys() else None,
    )
    return replace(schema, default=read_value(schema, form["default"])) if "default" in form else schema


def read_value(schema: ConnectSchema, form: Any) -> Any:
    """A value in the JSON of JsonConverter."""
    if form is None:
        return None
    if schema.type == "struct":
        return {field.name: read_value(field.schema, form.get(field.name)) for field in schema.fields}
    if schema.type == "array":
        assert schema.value_schema is not None
        return [read_value(schema.value_schema, item) for item in form]
    if schema.type == "map":
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        pairs: Sequence[Any] = list(form.items()) if isinstance(form, dict) else form
        return {read_value(schema.key_schema, key): read_value(schema.value_schema, item) for key, item in pairs}
    if schema.name == DECIMAL:
        unscaled = int.from_bytes(b64decode(form), "big", signed=True)
        return Decimal(unscaled).scaleb(-int(dict(schema.parameters)["scale"]))
    if schema.name in (DATE, TIME, TIMESTAMP):
        return from_milliseconds(form * (86_400_000 if schema.name == DATE else 1), schema.name)
    if schema.type == "float32":
        return to_float32(form)
    return b64decode(form) if schema.type == "bytes" else form


def reread(answer: dict[str, Any]) -> dict[str, Any]:
    """What ConnectTransforms.java prints, with floats in as few digits as stand for them: Java before 19 has more."""

    def read_again(node: Any) -> Any:
        if node is None or node["schema"] is None:
            return node
        schema = read_schema(node["schema"])
        return with_schema(schema, read_value(schema, node["payload"]))

    if "topic" not in answer:
        return answer
    headers = [[name, read_again(node), text] for name, node, text in answer["headers"]]
    return {**answer, "key": read_again(answer["key"]), "value": read_again(answer["value"]), "headers": headers}
