"""Whether a schema takes the values of another: as fastavro, which writes them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import fastavro
import pytest
from fastavro.validation import validate

from helenus_connector.connect_data.from_avro import without_logical_types
from helenus_schemas.avro.compare import parsed
from helenus_schemas.avro.resolution import unreadable


def record(name: str = "r", **fields: Any) -> dict[str, Any]:
    """A record whose fields have these types; one that is a tuple has a default too."""
    members = []
    for field, kind in fields.items():
        more = {"type": kind[0], "default": kind[1]} if isinstance(kind, tuple) else {"type": kind}
        members.append({"name": field, **more})
    return {"type": "record", "name": name, "fields": members}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


INT = ["null", "int"]
READABLE = [
    (record(a="long", b=("int", 0)), record(a="int", c="string")),
    (record(a=["null", "double"]), record(a=["null", "float"])),
    (record(a=INT), record(a="int")),
    (record("x", a=INT), record("y", a=INT)),
    (record(a={"type": "array", "items": ["null", "string"]}), record(a={"type": "array", "items": "string"})),
    (record(a={"type": "map", "values": "long"}), record(a={"type": "map", "values": "int"})),
    (record(a=["null", record("b", x="int")], c="b"), record(a=["null", record("b", x="int")], c="b")),
    (record(a=logical("string", "uuid")), record(a="string")),
    (record(a=logical("long", "cql_time")), record(a="long")),
    (record(a="long"), record(a=logical("long", "timestamp-millis"))),
    (record(a=logical("bytes", "decimal", precision=9)), record(a="bytes")),
    (
        record(a=logical("bytes", "decimal", precision=9, scale=2)),
        record(a=logical("bytes", "decimal", precision=20, scale=2)),
    ),
]
UNREADABLE = [
    (record(a="int"), record(a="long"), "a is int, and would get long"),
    (record(a="int"), record(a=INT), "a is int, and would get null"),
    (record(a="bytes"), record(a="string"), "a is bytes, and would get string"),
    ({**record(), "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}, record(a="int"), "b has no default"),
    (record(a="int", b="int"), record(a="int"), "b has no default"),
    (record(a=["null", "string"]), record(a="int"), "a has no int in its union"),
    (record(a=["null", record("b", x="int")]), record(a=["null", record("b", x="string")]), "a has no b in its union"),
    (record(a=record("b", x="int")), record(a=record("b", x="string")), "a.x is int, and would get string"),
    (record(a={"type": "array", "items": "int"}), record(a={"type": "array", "items": "string"}), "a is int"),
    (record(a={"type": "map", "values": "int"}), record(a={"type": "array", "items": "int"}), "a is map"),
    (
        record(a={"type": "enum", "name": "e", "symbols": ["A"]}),
        record(a={"type": "enum", "name": "e", "symbols": ["A", "B"]}),
        "a has not all symbols",
    ),
    (
        record(a={"type": "fixed", "name": "f", "size": 4}),
        record(a={"type": "fixed", "name": "f", "size": 5}),
        "a has 4 bytes",
    ),
]
UNITS = [
    (logical("long", "timestamp-micros"), logical("long", "timestamp-millis"), "timestamp-micros"),
    (logical("long", "time-micros"), "long", "time-micros, and would get long"),
    (logical("bytes", "decimal", precision=9, scale=2), "bytes", "decimal of scale 2, and would get bytes"),
    (
        logical("bytes", "decimal", precision=9, scale=2),
        logical("bytes", "decimal", precision=9, scale=3),
        "decimal of scale 2, and would get decimal of scale 3",
    ),
]


def problem(reader: Any, writer: Any) -> str | None:
    return unreadable(parsed(json.dumps(reader)), parsed(json.dumps(writer)))


EXAMPLES: dict[str, Any] = {"null": None, "int": 1, "long": 1 << 40, "float": 0.5, "string": "x", "bytes": b"x"}


def examples(schema: Any) -> list[Any]:
    """A value of each branch of a schema."""
    if isinstance(schema, list):
        return [example for branch in schema for example in examples(branch)]
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return [
            dict(zip([field["name"] for field in schema["fields"]], values, strict=True))
            for values in itertools.product(*(examples(field["type"]) for field in schema["fields"]))
        ]
    if kind == "array":
        return [[example] for example in examples(schema["items"])]
    if kind == "map":
        return [{"k": example} for example in examples(schema["values"])]
    if kind == "enum":
        return list(schema["symbols"])
    return [bytes(schema["size"])] if kind == "fixed" else [EXAMPLES.get(kind, {"x": 1})]


def fails(reader: Any, value: Any) -> bool:
    return not validate(value, fastavro.parse_schema(without_logical_types(reader)), raise_errors=False)


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_readable(reader: Any, writer: Any) -> None:
    assert problem(reader, writer) is None
    values = examples(writer)
    assert values
    assert [value for value in values if fails(reader, value)] == []


@pytest.mark.parametrize(("reader", "writer", "message"), UNREADABLE)
def test_unreadable(reader: Any, writer: Any, message: str) -> None:
    assert message in str(problem(reader, writer))
    assert [value for value in examples(writer) if fails(reader, value)]


@pytest.mark.parametrize(("reader", "writer", "message"), UNITS)
def test_the_same_number_in_another_unit(reader: Any, writer: Any, message: str) -> None:
    assert message in str(problem(record(a=reader), record(a=writer)))
    assert problem(record(a=writer), record(a=writer)) is None


def test_a_record_that_a_union_has_another_for() -> None:
    """That one record of a union can't read it does not let it read it elsewhere."""
    wrong, right, written = record("wrong", x="int"), record("right", x="string"), record("w", x="string")
    assert problem(record(a=[wrong, right]), record(a=written)) is None
    assert "a.x is int" in str(problem(record(a=[wrong, right], b="wrong"), record(a=written, b="w")))


def test_a_type_within_itself() -> None:
    node = record("n", next=["null", "n"], v="int")
    other = record("n", next=["null", "n"], v="string")
    assert problem(node, node) is None
    assert "n" in str(problem(node, other))
