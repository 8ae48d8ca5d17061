"""Every type, nested: CQL bytes by the Cassandra driver, our Avro and JSON, values by fastavro and json."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas.cqldata import SCALARS, cql_bytes, in_json, same, shown, types, values

from helenus_schemas.avro import build as avro
from helenus_schemas.codec import to_json as jsonform
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.codec.to_avro import optionals
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType

slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


def table(
    *types: CqlType, keys: tuple[CqlType, ...] = (CqlType("int"),), clustering: tuple[CqlType, ...] = ()
) -> Table:
    columns = [Column(f"pk{i}", t, "partition_key", i) for i, t in enumerate(keys)]
    columns += [Column(f"ck{i}", t, "clustering", i) for i, t in enumerate(clustering)]
    columns += [Column(f"c{i}", t) for i, t in enumerate(types)]
    return Table("ks", "t", uuid.UUID(int=1), tuple(columns))


def bare(schema: Any) -> Any:
    """A schema without its logical types: what is in the bytes, whatever Python can make of it."""
    if isinstance(schema, dict):
        return {k: bare(v) for k, v in schema.items() if k != "logicalType"}
    return [bare(s) for s in schema] if isinstance(schema, list) else schema


def read(schema: Any, data: bytes) -> Any:
    source = io.BytesIO(data)
    record = fastavro.schemaless_reader(source, fastavro.parse_schema(bare(schema)))
    assert source.read() == b"", "the reader left bytes"
    return record


typed_values = types().flatmap(lambda t: st.tuples(st.just(t), st.one_of(st.none(), values(t))))
rows = st.lists(typed_values, min_size=1, max_size=4)


@slow
@given(rows)
def test_rows_in_avro(row: list[tuple[CqlType, Any]]) -> None:
    row_table = table(*[t for t, _ in row])
    data = optionals([t for t, _ in row])([None if v is None else cql_bytes(t, v) for t, v in row])
    schema = avro.value_schema(row_table)
    fastavro.parse_schema(schema)
    assert same(read(schema, data), {f"c{i}": shown(t, v) for i, (t, v) in enumerate(row)})


@slow
@given(rows)
def test_rows_in_json(row: list[tuple[CqlType, Any]]) -> None:
    encode = jsonform.objects([f"c{i}" for i in range(len(row))], [t for t, _ in row])
    text = encode([None if v is None else cql_bytes(t, v) for t, v in row])
    assert json.loads(text) == {f"c{i}": in_json(t, v) for i, (t, v) in enumerate(row)}


@pytest.mark.parametrize("name", SCALARS)
@given(data=st.data())
def test_scalars(name: str, data: st.DataObject) -> None:
    t = CqlType(name)
    value = data.draw(values(t))
    raw = cql_bytes(t, value)
    assert same(read(avro.value_schema(table(t)), optionals([t])([raw])), {"c0": shown(t, value)})
    assert json.loads(jsonform.objects(["c0"], [t])([raw])) == {"c0": in_json(t, value)}


key_types = types(key=True)


@slow
@given(st.lists(key_types, min_size=1, max_size=2), st.lists(key_types, max_size=2), st.data())
def test_keys_come_back_as_they_were(keys: list[CqlType], clustering: list[CqlType], data: st.DataObject) -> None:
    key_table = table(keys=tuple(keys), clustering=tuple(clustering))
    key = tuple(cql_bytes(t, data.draw(values(t))) for t in (*keys, *clustering))
    if data.draw(st.booleans()):
        key = (*key[: len(keys)], *[None] * len(clustering))
    encoded = KeyCodec(key_table).encode(key)
    decoded = KeyCodec(key_table).decode(encoded)
    assert decoded[: len(keys)] == key[: len(keys)]
    assert decoded == KeyCodec(key_table).normalize(key)
    assert KeyCodec(key_table).encode(decoded) == encoded
    schema = avro.key_schema(key_table)
    fastavro.parse_schema(schema)
    assert len(read(schema, encoded)) == len(key)
