"""Documents of to_opensearch.py, without a server: values come back as they were, and ids are those of keys."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from docs.recipe_stores import Publisher
from hypothesis import given, settings
from hypothesis import strategies as st
from opensearch_json import from_json, make_encoder, make_identifier, mapping_of, merge_properties
from records import to_rows
from schemas.cqldata import cql_bytes, same, types, values

from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse

EMPTY: Any = SimpleNamespace(read_schema=lambda: None, limits={})
INT, TEXT = parse("int"), parse("text")


def rows_of(columns: list[tuple[str, Any, Any]]) -> pa.Table:
    """A table of one row, as a batch gives it to a store, of columns with their types and values."""
    publisher = Publisher()
    publisher.become([Column("k", INT, "partition_key", 0), *(Column(name, kind) for name, kind, _ in columns)])
    raw = [None if value is None else cql_bytes(kind, value) for _, kind, value in columns]
    publisher.row(0, [cql_bytes(INT, 1)], raw)
    return publisher.batch(publisher.topic[0]).for_table(EMPTY).rows


@settings(deadline=None)
@given(data=st.data())
def test_values_come_back(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(types(depth=2), min_size=1, max_size=4), "types")
    table = rows_of([(f"v{i}", kind, data.draw(st.none() | values(kind))) for i, kind in enumerate(kinds)])
    (row,) = to_rows(table)
    document = json.loads(json.dumps(make_encoder(pa.struct(list(table.schema)))(row), allow_nan=False))
    assert None not in document.values()
    read = {field.name: from_json(document.get(field.name), field.type) for field in table.schema}
    assert same(to_rows(pa.Table.from_pylist([read], table.schema))[0], row)


@settings(deadline=None)
@given(data=st.data())
def test_an_id_is_that_of_its_key(data: st.DataObject) -> None:
    """Equal keys have equal ids, others have others, of at most 512 bytes, with their fields in any order."""
    kind = data.draw(types(depth=2, key=True), "type")
    first, second = (rows_of([("c", kind, data.draw(values(kind)))]) for _ in range(2))
    field = first.schema.field("c")
    identify = make_identifier([("c", field.type)])
    rows = [to_rows(table)[0] for table in (first, second)]
    ids = [identify(row) for row in rows]
    assert (ids[0] == ids[1]) == same(rows[0]["c"], rows[1]["c"])
    assert all(0 < len(text.encode()) <= 512 for text in ids)


def test_an_id_stays_when_a_type_grows() -> None:
    small, large = pa.struct([("a", pa.int32())]), pa.struct([("b", pa.string()), ("a", pa.int32())])
    grown = make_identifier([("k", large)])({"k": {"b": None, "a": 1}})
    assert make_identifier([("k", small)])({"k": {"a": 1}}) == grown == '[{"a":1}]'
    assert make_identifier([("k", pa.string())])({"k": "x" * 508}) == f'["{"x" * 508}"]'
    assert make_identifier([("k", pa.string())])({"k": "x" * 509}).startswith("sha256:")


def test_fields_that_an_index_has_stay() -> None:
    address = pa.struct([("street", pa.string()), ("zip", pa.int32())])
    needed = {"a": mapping_of(pa.int64()), "m": mapping_of(pa.map_(pa.string(), address)), "p": mapping_of(address)}
    stored = {"a": {"type": "keyword"}, "m": {"type": "nested"}, "p": {"properties": {"zip": {"type": "keyword"}}}}
    merged = merge_properties(stored, needed)
    assert merged["a"] == stored["a"]
    assert merged["m"] == {"type": "nested", "properties": needed["m"]["properties"]}
    assert merged["p"]["properties"]["zip"] == {"type": "keyword"}
    assert merged["p"]["properties"]["street"] == needed["p"]["properties"]["street"]
    assert merge_properties(merged, needed) == merged
