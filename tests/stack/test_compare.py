"""What a topic's markers leave, whatever the clustering column's type."""

from __future__ import annotations

import ipaddress
import json
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, types, values

from helenus_schemas.codec import to_json as jsonform
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_stack.compare import last_records, order
from helenus_stack.records import Record
from helenus_stack.values import as_clustering, from_json

TYPE = CqlType("int")


def table(t: CqlType, is_reversed: bool = False) -> Table:
    columns = (
        Column("p", TYPE, "partition_key", 0),
        Column("c", t, "clustering", 0, is_reversed),
        Column("v", TYPE, "regular"),
    )
    return Table("ks", "t", uuid.UUID(int=1), columns)


def row(c: Any, offset: int = 0) -> Record:
    return Record(0, offset, 0, {"p": 1, "c": c}, {"p": 1, "c": c, "v": 7}, {}, None, is_json=True)


def marker(**limits: Any) -> Record:
    headers = {name: json.dumps({"inclusive": True, "values": {"c": c}}).encode() for name, c in limits.items()}
    return Record(0, 9, 0, {"p": 1, "c": None}, None, {"scope": b"range", **headers}, None, is_json=True)


@pytest.mark.parametrize(
    ("cql_type", "ascending"),
    [
        # As Cassandra 5.0 sorts them: addresses byte for byte, so that 10.0.0.1 is between a00:: and fe80::1.
        ("inet", ["::1", "1::", "a00::", "10.0.0.1", "192.168.0.1", "fe80::1"]),
        ("blob", ["", "AA==", "AAA=", "fw==", "gA=="]),
        ("timestamp", [-5, 0, 3]),
        ("decimal", [{"bigint": "/w==", "scale": 0}, {"bigint": "CQ==", "scale": 1}, {"bigint": "AQ==", "scale": 0}]),
        ("varint", ["/w==", "AA==", "AQ==", "AQA="]),
        ("boolean", [False, True]),
        ("text", ["", "a", "b", "\uffff", "\U00010000"]),
        ("double", [-1.5, -0.0, 0.0, 2.5, "NaN"]),
        ("date", [-3, 0, 4]),
        (
            "uuid",
            ["00000000-0000-1000-8000-000000000000", "00000001-0000-1000-8000-000000000000",
             "00000000-0000-4000-8000-000000000000"],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_range_takes_the_rows_within_its_bounds(cql_type: str, ascending: list[Any], is_reversed: bool) -> None:
    keyed_table = table(CqlType(cql_type), is_reversed)
    records = [row(c, offset) for offset, c in enumerate(ascending)]
    for index, c in enumerate(ascending):
        remaining = ascending[index + 1 :] if is_reversed else ascending[:index]
        newest = last_records(keyed_table, [*records, marker(start=c)])
        assert newest.keys() == last_records(keyed_table, [row(other) for other in remaining]).keys()
        remaining = ascending[:index] if is_reversed else ascending[index + 1 :]
        newest = last_records(keyed_table, [*records, marker(end=c)])
        assert newest.keys() == last_records(keyed_table, [row(other) for other in remaining]).keys()


def test_addresses_of_both_versions() -> None:
    newest = last_records(table(CqlType("inet")), [row("10.0.0.1"), row("::1"), row("fe80::1"), marker(end="b00::")])
    assert [key[1] for key in newest] == [ipaddress.ip_address("fe80::1")]


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(types(depth=2).flatmap(lambda t: st.tuples(st.just(t), st.lists(values(t), min_size=2, max_size=5))))
def test_values_of_any_type_have_an_order(typed: tuple[CqlType, list[Any]]) -> None:
    t, several = typed
    encode = jsonform.encoder(t)
    clustering_values = [as_clustering(t, from_json(t, json.loads(encode(cql_bytes(t, value))))) for value in several]
    assert len(sorted(order(t, value) for value in clustering_values)) == len(several)
