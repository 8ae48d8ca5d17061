"""The wire form of a Change."""

import contextlib
import io

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas.change import SCHEMA, Bound, Change, Scope, decode, encode

DIGEST = "0123456789abcdef0123456789abcdef"
NODE = "11111111-2222-3333-4444-555555555555"
longs = st.integers(-(1 << 63), (1 << 63) - 1)
bounds = st.none() | st.builds(Bound, st.booleans(), st.lists(st.binary(max_size=8), max_size=3).map(tuple))
changes = st.builds(
    Change,
    st.none() | st.just(DIGEST) | st.just("BACK_FILL_INSERT"),
    st.none() | st.just(NODE),
    st.sampled_from(Scope),
    st.integers(0, 9),
    st.integers(1, 9),
    longs,
    longs,
    st.none() | longs,
    st.none() | longs,
    bounds,
    bounds,
)


@given(changes)
def test_round_trip_and_avro_agree(change: Change) -> None:
    data = encode(change)
    assert decode(data) == change
    seen = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(SCHEMA))
    assert (seen["md5Digest"], seen["nodeId"], seen["scope"]) == (change.digest, change.node, change.scope.name)
    assert seen["writeTime"] == change.write_time


@given(changes)
def test_a_reader_that_knows_three_fields_reads_them(change: Change) -> None:
    theirs = {**SCHEMA, "fields": SCHEMA["fields"][:3]}
    seen = fastavro.schemaless_reader(io.BytesIO(encode(change)), fastavro.parse_schema(theirs))
    assert seen == {"md5Digest": change.digest, "nodeId": change.node, "columns": None}


def test_datastax_events_in_both_field_orders() -> None:
    digest, node = b"\2\x40" + DIGEST.encode(), b"\2\x48" + NODE.encode()
    assert decode(digest + node + b"\0") == Change(DIGEST, NODE)
    assert decode(b"\0" + digest + node) == Change(DIGEST, NODE)
    assert decode(b"\2\x20BACK_FILL_INSERT\0\0") == Change("BACK_FILL_INSERT", None)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_change_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(data)


@given(changes, st.data())
def test_a_cut_event_is_refused(change: Change, data: st.DataObject) -> None:
    whole = encode(change)
    cut = data.draw(st.integers(0, len(whole) - 1))
    if cut == _three_fields_end(change):
        return
    with pytest.raises(ValueError, match="event"):
        decode(whole[:cut])


def _three_fields_end(change: Change) -> int:
    theirs = fastavro.parse_schema({**SCHEMA, "fields": SCHEMA["fields"][:3]})
    out = io.BytesIO()
    fastavro.schemaless_writer(out, theirs, {"md5Digest": change.digest, "nodeId": change.node, "columns": None})
    return len(out.getvalue())
