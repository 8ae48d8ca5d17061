"""Names of tables, columns, types and fields that Avro does not allow, or that meet."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from helenus_schemas import names
from helenus_schemas.avro import build as avro
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse


def udt(label: str, **fields: str) -> CqlType:
    return CqlType("udt", tuple(map(parse, fields.values())), frozen=True, label=label, fields=tuple(fields))


def odd(name: str, *columns: tuple[str, str | CqlType], keyspace: str = "ks") -> Table:
    made = [Column(n, parse(t) if isinstance(t, str) else t) for n, t in columns]
    return Table(keyspace, name, uuid.UUID(int=1), (Column("Pk 1", parse("int"), "partition_key", 0), *made))


AA = udt("Aa", x="int")
BB = udt("BB", x="text")
NASTY = {
    "columns": odd(
        "t", *[(n, "int") for n in ("my col", "my-col", "my_col", "1st", "größe", "名前", "住所", "a.b", "T")]
    ),
    "type named like its table": odd("t", ("a", udt("t", f="int")), ("b", udt("t_type", f="text")), ("c", "list<int>")),
    "type named like its table, twice": odd("t", ("a", udt("t", f="int")), ("b", udt("t", f="int"))),
    "cases": odd("t", ("a", udt("address", f="int")), ("b", udt("Address", f="text"))),
    "types that meet": odd("t", ("a", udt("my type", f="int")), ("b", udt("my-type", f="text"))),
    "types named like ours": odd(
        "t",
        ("a", udt("cql_decimal", f="decimal")),
        ("b", "decimal"),
        ("c", udt("Tuple_f4ae4162", f="duration")),
        ("d", "tuple<int, text>"),
        ("e", "map<int, duration>"),
    ),
    "types named like Avro's": odd(
        "long", *[(f"{n}{i}", udt(n, f="int")) for n in ("record", "string", "null", "map", "error") for i in (1, 2)]
    ),
    "fields": odd("t", ("a", udt("u", **{"a b": "int", "a-b": "decimal", "a_b": "decimal", "2": "int"}))),
    "table": odd("1 t", ("a", "decimal"), keyspace="My-Ks"),
    "table named like ours": odd("cql_decimal", ("a", "decimal"), ("b", "decimal")),
    "tuples of one hash": odd("t", ("a", CqlType("tuple", (AA,), True)), ("b", CqlType("tuple", (BB,), True))),
}


def records(schema: Any) -> Iterator[dict[str, Any]]:
    """All records that a schema defines."""
    if isinstance(schema, list):
        for branch in schema:
            yield from records(branch)
    if isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema
            for field in schema["fields"]:
                yield from records(field["type"])
        else:
            yield from records(schema.get("items") or schema.get("values"))


@pytest.mark.parametrize("case", NASTY)
def test_schemas_parse_and_keep_the_originals(case: str) -> None:
    table = NASTY[case]
    for schema, columns in ((avro.key_schema(table), table.primary_key), (avro.value_schema(table), table.values)):
        fastavro.parse_schema(schema)
        names = [field.get("cql_name", field["name"]) for field in schema["fields"]]
        assert names == [c.name for c in columns]
        defined = [record["name"] for record in records(schema)]
        assert len(set(defined)) == len(defined)
        assert schema["doc"] == f"Table {table.full_name}"


def test_avro_names_of_cql_names() -> None:
    cql_names = ("a_b", "a-b", "a b", "1st", "_1st", "größe")
    assert [names.avro_name(name) for name in cql_names] == [
        "a_b",
        "a_b_8ca2ed59",
        "a_b_0cc9cd4d",
        "_1st_ec31383c",
        "_1st",
        "gr__e_fdbb3a56",
    ]


def fields(*columns: tuple[str, str | CqlType]) -> dict[str, Any]:
    """The value's fields by the name in CQL, as whatever is defined before them in the schema leaves them."""
    field_schemas = avro.value_schema(odd("t", *columns))["fields"]
    return {field.get("cql_name", field["name"]): field for field in field_schemas}


@pytest.mark.parametrize(
    ("column", "later"),
    [
        (("a-b", "int"), ("a_b", "int")),
        (("a-b", "int"), ("a b", "int")),
        (("a", udt("my-type", f="int")), ("b", udt("my type", f="int"))),
        (("a", udt("my-type", f="int")), ("b", udt("my_type", f="int"))),
        (("a", udt("cql_decimal", f="int")), ("b", "decimal")),
        (("a", udt("Tuple_f4ae4162", f="int")), ("b", "tuple<int, text>")),
        (("a", udt("u", **{"x-y": "int"})), ("b", udt("x_y", f="int"))),
    ],
)
def test_a_later_column_takes_over_no_name(column: tuple[str, Any], later: tuple[str, Any]) -> None:
    assert fields(column, later)[column[0]] == fields(column)[column[0]]
    assert fields(column, later)[later[0]] == fields(later)[later[0]]


def test_a_later_field_of_a_type_takes_over_no_name() -> None:
    now, then = (
        fields(("a", udt("u", **field_types)))["a"]["type"][1]
        for field_types in ({"x-y": "int"}, {"x-y": "int", "x_y": "int"})
    )
    assert then["fields"][:1] == now["fields"]


def test_a_type_keeps_its_name_whatever_fields_it_gets() -> None:
    """Also where decimals are shown in another form, which the key of a row does not do."""
    for field_types in ({"f": "int"}, {"f": "int", "g": "decimal"}):
        t = udt("u", **field_types)
        table = Table("ks", "t", uuid.UUID(int=1), (Column("k", t, "partition_key", 0), Column("v", t)))
        table = table.with_forms({"decimal": "string"})
        assert [record["name"] for record in records(avro.value_schema(table))] == ["t", "u"]
        names = [record["name"] for record in records(avro.json_schema(table, avro.row_schema(table)))]
        assert [name for name in names if name != "cql_decimal"] == ["t", "u_in_key_64ccca3f", "u"]


def test_a_key_and_a_value_meet_in_no_name() -> None:
    table = odd("t", ("Pk_1", "int"))
    key, value = (schema["fields"][0]["name"] for schema in (avro.key_schema(table), avro.value_schema(table)))
    assert key != value == "Pk_1"


def test_a_type_named_like_its_table() -> None:
    first, second = avro.value_schema(NASTY["type named like its table"])["fields"][:2]
    assert (first["type"][1]["name"], first["type"][1]["cql_name"]) == ("t_e358efa4", "t")
    assert second["type"][1]["name"] == "t_type"
    fields = avro.value_schema(NASTY["type named like its table, twice"])["fields"]
    assert [fields[0]["type"][1]["name"], fields[1]["type"][1]] == ["t_e358efa4", "ks.t_e358efa4"]


@pytest.mark.parametrize("name", ["1st", "a b", "cql_decimal", "Tuple_1"])
def test_a_type_and_a_table_that_share_a_name_share_none_in_avro(name: str) -> None:
    """Where Avro takes the name for another reason too."""
    kinds = ("int", "decimal")
    own = CqlType("udt", (parse("decimal"),), frozen=True, label=name, fields=("f",))
    columns = tuple(Column(f"c{i}", parse(kind)) for i, kind in enumerate(kinds))
    table = Table("ks", name, uuid.uuid4(), (Column("k", own, "partition_key"), *columns, Column("u", own)), cdc=True)
    for schema in (
        avro.key_schema(table),
        avro.value_schema(table),
        avro.json_schema(table, avro.row_schema(table, "value")),
    ):
        fastavro.parse_schema(json.loads(avro.text(schema)))


def test_a_table_of_300_columns() -> None:
    kinds = ("int", "text", "decimal", "tuple<int, text>", "map<uuid, frozen<list<date>>>", "duration")
    wide = odd("wide", *[(f"column {i}", kinds[i % len(kinds)]) for i in range(300)])
    schema = avro.value_schema(wide)
    fastavro.parse_schema(json.loads(avro.text(schema)))
    assert [f["cql_name"] for f in schema["fields"]] == [c.name for c in wide.values]
