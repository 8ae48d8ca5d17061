"""Types of other schemas in the places where a schema names them."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from helenus_schemas.avro.references import inline_types
from helenus_schemas.avro.resolution import unreadable


def record(name: str, /, *, namespace: str | None = None, **fields: Any) -> dict[str, Any]:
    own = {} if namespace is None else {"namespace": namespace}
    return {"type": "record", "name": name, **own, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def inlined(schema: Any, *others: Any) -> Any:
    return json.loads(inline_types(json.dumps(schema), map(json.dumps, others)))


def test_each_type_is_placed_once() -> None:
    """At the first place that names it: the rest names it still, also where the record that has it comes later."""
    order = record(
        "Order",
        namespace="a",
        first="Place",
        others=["null", {"type": "array", "items": "a.Place"}],
        by_name={"type": "map", "values": {"type": "Place"}},
        state="b.State",
        no="No",
        city="City",
    )
    state = {"type": "enum", "name": "State", "namespace": "b", "symbols": ["NEW"]}
    number = {"type": "fixed", "name": "a.No", "size": 2, "doc": "its number"}
    city = record("a.City", place="a.Place", within=record("Inner", x="int"))
    place_schema = record("a.Place", inner="Inner")
    expected_place = record("a.Place", inner=record("a.Inner", x="int"))
    assert inlined(order, state, number, city, place_schema) == record(
        "a.Order",
        first=expected_place,
        others=["null", {"type": "array", "items": "a.Place"}],
        by_name={"type": "map", "values": "a.Place"},
        state={"type": "enum", "name": "b.State", "symbols": ["NEW"]},
        no={"type": "fixed", "name": "a.No", "size": 2, "doc": "its number"},
        city=record("a.City", place="a.Place", within="a.Inner"),
    )


@pytest.mark.parametrize("namespace", ["a", None])
def test_a_type_without_namespace(namespace: str | None) -> None:
    """As in Java it is found by its name alone, and here it can be named more than once."""
    order = record("Order", namespace=namespace, x="Place", y=["null", "Place"])
    schema = inlined(order, record("Place", no="int"))
    out = io.BytesIO()
    value = {"x": {"no": 1}, "y": {"no": 2}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    assert out.getvalue() == b"\2\2\4"


def test_a_schema_that_is_a_name() -> None:
    place_schema = record("a.Place", no="int")
    assert inlined("a.Place", place_schema) == place_schema
    assert inlined(["null", "a.Place"], place_schema) == ["null", place_schema]


def test_types_that_name_each_other() -> None:
    """They are one type within itself; the library that would place them ends the process."""
    schema = inlined(
        record("Order", x="Left"), record("Left", right=["null", "Right"]), record("Right", left=["null", "Left"])
    )
    fastavro.parse_schema(schema)
    assert unreadable(schema, schema) is None


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "it names a.Place, which is not defined there"),
        ([record("b.Place", no="int")], "it names a.Place, which"),
        ([record("a.Place", no="Number")], "it names a.Number, which"),
        ([record("a.Place", no="int"), record("a.Place", no="long")], "a.Place is defined in two ways"),
        ([record("a.Order", no="int"), record("a.Place", no="long")], "a.Order is defined in two ways"),
        ([record("a.Place", no={"of": "int"})], "no type"),
        ([record("a.Place", no=None)], "no type"),
        ([record("a.Place", no=5)], "no type"),
        ([{"type": "record", "name": "a.Place", "fields": 5}], "fields are no list"),
        ([record("a.Place", no="a.T0"), *(record(f"a.T{n}", t=f"T{n + 1}") for n in range(3000))], "too many levels"),
        ([record("a.Place", no="a.T0"), *(record(f"a.T{n}", t=f"T{n + 1}") for n in range(199)), record("a.T199")],
         "more than 200 levels"),
    ],
)  # fmt: skip
def test_what_can_not_be_placed(others: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inlined(record("Order", namespace="a", x="Place"), *others)


def test_text_that_is_no_schema() -> None:
    for texts in (("{", ()), ("[]", ["["])):
        with pytest.raises(ValueError, match=r"Expecting|delimiter|Unterminated"):
            inline_types(*texts)
