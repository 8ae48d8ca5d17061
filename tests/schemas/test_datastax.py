"""DataStax's form of events on Pulsar, against what their agents and Java's Avro print."""

from __future__ import annotations

import io
import json

import fastavro
from agent.writer import table_of

from helenus_schemas.event import datastax, wire
from helenus_schemas.event.change import Bound, Change, Scope

DIGEST, NODE = "0123456789abcdef" * 2, "5a1c395e-b41f-11e5-9f22-ba0be0483c18"


def test_the_key_s_schema_is_theirs() -> None:
    """As Avro 1.11.4 prints it for their agent."""
    table = table_of("table5", "pk text pk, c1 date ck, c2 uuid ck, v text", keyspace="ks1")
    assert datastax.key_schema(table) == (
        '{"type":"record","name":"table5","namespace":"ks1","doc":"Primary key schema for table ks1.table5","fields":['
        '{"name":"pk","type":"string"},{"name":"c1","type":["null",{"type":"int","logicalType":"date"}]},'
        '{"name":"c2","type":["null",{"type":"string","logicalType":"uuid"}]}]}'
    )


def test_a_value_is_read_with_a_schema_of_three_fields() -> None:
    for change in (
        Change(DIGEST, NODE),
        Change(DIGEST, NODE, Scope.RANGE, 1, 3, 7, 9, 5, None, Bound(True, (b"a", b"")), Bound(False, ())),
    ):
        ours = wire.encode(change)
        value = datastax.sorted_value(ours)
        assert value[:3] == b"\0\2@"
        read = fastavro.schemaless_reader(io.BytesIO(value), json.loads(datastax.VALUE), None)
        assert read == {"columns": None, "md5Digest": DIGEST, "nodeId": read["nodeId"]}
        assert str(read["nodeId"]) == NODE
        assert wire.decode(value) == change
        assert datastax.unsorted_value(value) == ours


def test_a_value_of_theirs_stays_as_it_is() -> None:
    theirs = b"\0\2@" + DIGEST.encode() + b"\2H" + NODE.encode()
    assert len(theirs) == 73
    assert datastax.unsorted_value(theirs) == theirs
    assert wire.decode(theirs) == Change(DIGEST, NODE, foreign=True)
    ours = wire.encode(Change(DIGEST, NODE))
    assert datastax.unsorted_value(ours) == ours
