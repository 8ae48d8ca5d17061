"""The wire form of a Change."""

import contextlib
import io

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Bound, Change, Origin, Scope
from helenus_schemas.event.own_format import match_own_format, parse_match
from helenus_schemas.event.wire import (
    SCHEMA,
    SCHEMA_WITH_CELLS,
    SCHEMA_WITH_ORIGIN,
    decode,
    encode,
    without_cells,
    without_frames,
)

DIGEST = "0123456789abcdef0123456789abcdef"
NODE = "11111111-2222-3333-4444-555555555555"
CELLS = b"\2" + bytes(range(32)) + b"\x1c" + b'{"columns":[]}' + b"\x04\x06\x08\2\0"
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
    st.just(False),
    longs,
    st.none() | longs,
    st.sampled_from(Origin),
    st.none() | st.just(CELLS),
)


@given(changes)
def test_round_trip_and_avro_agree(change: Change) -> None:
    data = encode(change)
    assert decode(data) == change
    schema = SCHEMA_WITH_ORIGIN if change.origin else SCHEMA
    schema = SCHEMA_WITH_CELLS if change.cells else schema
    seen = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema))
    assert (seen["md5Digest"], seen["nodeId"], seen["scope"]) == (change.digest, change.node, change.scope.name)
    assert seen["writeTime"] == change.write_time
    assert seen.get("origin", "LOG") == change.origin.name
    assert without_cells(data) == (encode(change._replace(cells=None)) if change.cells else None)
    assert (seen.get("cells") or {}).get("schema") == (bytes(range(16, 32)) if change.cells else None)


@given(changes)
def test_matching_a_change_of_a_key_alone(change: Change) -> None:
    match = match_own_format(encode(change))
    alone = change.scope in (Scope.ROW, Scope.STATIC, Scope.PARTITION) and not (change.start or change.end)
    assert (match is not None) == (alone and change.digest == DIGEST and change.node == NODE and not change.origin)
    if match is not None:
        assert parse_match(match) == change._replace(part=0, parts=1, segment=-1, position=-1)


@settings(deadline=None)  # the first schema that is parsed takes long on a busy machine
@given(changes)
def test_a_reader_that_knows_three_fields_reads_them(change: Change) -> None:
    theirs = {**SCHEMA, "fields": SCHEMA["fields"][:3]}
    seen = fastavro.schemaless_reader(io.BytesIO(encode(change)), fastavro.parse_schema(theirs))
    assert seen == {"md5Digest": change.digest, "nodeId": change.node, "columns": None}


def test_datastax_events_in_both_field_orders() -> None:
    digest, node = b"\2\x40" + DIGEST.encode(), b"\2\x48" + NODE.encode()
    assert decode(digest + node + b"\0") == Change(DIGEST, NODE, foreign=True)
    assert decode(b"\0" + digest + node) == Change(DIGEST, NODE, foreign=True)
    assert decode(b"\2\x20BACK_FILL_INSERT\0\0") == Change("BACK_FILL_INSERT", None, foreign=True)
    assert encode(decode(b"\0" + digest + node)) == digest + node + b"\0", "it stays theirs"


@pytest.mark.parametrize("digest", [DIGEST, None])
@pytest.mark.parametrize("node", [NODE, None])
@pytest.mark.parametrize("columns", [None, [], ["a"], ["a", "b" * 40], ["c"] * 32])
@pytest.mark.parametrize("order", [("md5Digest", "nodeId", "columns"), ("columns", "md5Digest", "nodeId")])
def test_datastax_events_with_all_and_nothing_in_them(
    digest: str | None, node: str | None, columns: list[str] | None, order: tuple[str, ...]
) -> None:
    """As Avro writes them."""
    fields = {field["name"]: field for field in SCHEMA["fields"][:3]}
    out = io.BytesIO()
    schema = fastavro.parse_schema({**SCHEMA, "fields": [fields[name] for name in order]})
    fastavro.schemaless_writer(out, schema, {"md5Digest": digest, "nodeId": node, "columns": columns})
    assert decode(out.getvalue()) == Change(digest, node, foreign=True)


def test_frames_of_a_registry() -> None:
    theirs = b"\2\x40" + DIGEST.encode() + b"\2\x48" + NODE.encode() + b"\0"
    assert without_frames(b"\0\0\0\0\1key", b"\0\0\0\1\2" + theirs) == (b"key", theirs)


@given(changes)
def test_an_event_without_its_cells(change: Change) -> None:
    light = change._replace(cells=None)
    assert without_cells(encode(change)) == (None if change.cells is None else encode(light))


@given(changes)
def test_our_events_have_no_frame(change: Change) -> None:
    for data in (
        encode(change),
        encode(change._replace(foreign=True)),
        b"\0" + encode(change._replace(foreign=True))[:-1],
    ):
        assert without_frames(b"key", data) == (b"key", data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_change_or_refused(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        decode(data)


@given(changes, st.data())
def test_a_cut_event_is_refused(change: Change, data: st.DataObject) -> None:
    whole = encode(change)
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = [3, len(SCHEMA["fields"])]  # where DataStax's end, and a commit log's, and one without its cells
    if change.cells is not None:
        ends.append(len(SCHEMA_WITH_ORIGIN["fields"]))
    if cut in [_end(change, fields) for fields in ends]:
        return
    if change.cells and cut >= len(whole) - len(change.cells):
        return  # the cells are cut, which `decode_cells` finds out
    with pytest.raises(Malformed, match="event"):
        decode(whole[:cut])


def _end(change: Change, fields: int) -> int:
    """How long an event's value is with so many fields."""
    parsed_schema = fastavro.parse_schema({**SCHEMA, "fields": SCHEMA_WITH_ORIGIN["fields"][:fields]})
    data = io.BytesIO(encode(change))
    fastavro.schemaless_reader(data, parsed_schema)
    return data.tell()
