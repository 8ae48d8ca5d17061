"""The form of values in chunks: what is split is joined, and what nobody wrote is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_sinks.chunks import (
    HEADER,
    BadChunks,
    ChunkJoiner,
    ChunkReference,
    MessageChunkReference,
    chunk_header,
    chunk_key,
    split_value,
    whole_headers,
)

ID = "0123456789abcdef" * 2


def reference(value: bytes, count: int) -> ChunkReference:
    return ChunkReference(ID, count, len(value), hashlib.sha256(value).hexdigest(), 0, 10, 10 + count - 1)


@given(value=st.binary(min_size=1, max_size=200), chunk_bytes=st.integers(1, 60), data=st.data())
def test_chunks_are_joined(value: bytes, chunk_bytes: int, data: st.DataObject) -> None:
    """Whatever other records are between them, and repeated: those of a writer that was killed, or sent again."""
    chunks = list(split_value(value, chunk_bytes))
    joiner = ChunkJoiner(ChunkReference.parse(reference(value, len(chunks)).encode()))
    for number, chunk in enumerate(chunks):
        if data.draw(st.booleans()):
            joiner.add(chunk_header("f" * 32, number), b"of another")
            joiner.add(chunk_header(ID, number), None)
            joiner.add(None, b"no chunk")
        assert not joiner.is_complete
        joiner.add(chunk_header(ID, number), chunk)
        joiner.add(chunk_header(ID, number), chunk)
    assert joiner.is_complete
    assert joiner.value() == value


@given(value=st.binary(min_size=1, max_size=50), flipped=st.integers(0, 49))
def test_damage_is_found(value: bytes, flipped: int) -> None:
    joiner = ChunkJoiner(reference(value, 1))
    index = flipped % len(value)
    joiner.add(chunk_header(ID, 0), value[:index] + bytes([value[index] ^ 1]) + value[index + 1 :])
    with pytest.raises(BadChunks, match="SHA-256"):
        joiner.value()


def test_no_more_is_held_than_the_reference_says() -> None:
    joiner = ChunkJoiner(reference(b"12345678", 2))
    joiner.add(chunk_header(ID, 0), b"1234")
    with pytest.raises(BadChunks, match="more than 8 bytes"):
        joiner.add(chunk_header(ID, 1), b"5" * 1000)


GOOD = reference(b"x" * 100, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"count": 101, "last": 110},
        {"count": -1},
        {"count": 4.0},
        {"count": True, "last": 10},
        {"size": 10**9},
        {"size": 2**63},
        {"last": 12},
        {"last": 10 + 2 * 4 + 1000},
        {"offset": -1, "last": 2},
        {"partition": 2**31},
        {"partition": "0"},
        {"id": "0" * 31},
        {"id": "G" * 32},
        {"sha256": "0" * 32},
        {"sha256": None},
        {"topic": "another"},
    ],
)
def test_references_that_can_not_be(wrong: dict[str, object]) -> None:
    with pytest.raises(BadChunks):
        ChunkReference.parse(json.dumps(asdict(GOOD) | wrong).encode())


ON_PULSAR = MessageChunkReference(ID, 4, 100, "0" * 64, 2, "7:9", "8:0")


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": "8:1"},
        {"first": "7"},
        {"first": "7:9:0"},
        {"first": "-7:9"},
        {"first": "٧:9"},
        {"first": 7},
        {"first": ["7", "9"]},
        {"last": f"{2**63}:0"},
        {"last": None},
        {"count": 0},
        {"partition": -1},
        {"sha256": ""},
        {"offset": 0},
    ],
)
def test_references_to_messages_that_can_not_be(wrong: dict[str, object]) -> None:
    with pytest.raises(BadChunks):
        MessageChunkReference.parse(json.dumps(asdict(ON_PULSAR) | wrong).encode())


def test_a_reference_to_messages() -> None:
    assert MessageChunkReference.parse(ON_PULSAR.encode(), 100) == ON_PULSAR
    assert ON_PULSAR.message_ids == ((7, 9), (8, 0))
    with pytest.raises(BadChunks, match="100 bytes, where 99 are allowed"):
        MessageChunkReference.parse(ON_PULSAR.encode(), 99)
    with pytest.raises(BadChunks, match="not the fields"):
        MessageChunkReference.parse(GOOD.encode())


@given(st.binary(max_size=100) | st.text(max_size=50).map(str.encode) | st.just(b"[" * 900))
def test_headers_of_anything(header: bytes) -> None:
    for reference_class in (ChunkReference, MessageChunkReference):
        with pytest.raises(BadChunks):
            reference_class.parse(header)


def test_a_reference_and_the_limit() -> None:
    assert ChunkReference.parse(GOOD.encode(), 100) == GOOD
    with pytest.raises(BadChunks, match="100 bytes, where 99 are allowed"):
        ChunkReference.parse(GOOD.encode(), 99)
    assert len(replace(GOOD, last=2**63 - 1, offset=2**63 - 4, partition=2**31 - 1).encode()) < 1000


@given(st.binary(max_size=5), st.integers(0, 5), st.binary(max_size=5), st.integers(0, 5))
def test_keys_of_chunks_differ(key: bytes, number: int, other: bytes, other_number: int) -> None:
    assert (chunk_key(key, number) == chunk_key(other, other_number)) == ((key, number) == (other, other_number))


def test_headers_of_the_whole_record() -> None:
    headers = [("a", b"1"), ("left_out", b'["bad"]'), ("left_out", b'["bad","large"]'), (HEADER, b"{}")]
    assert whole_headers(headers) == headers[:2]
    assert whole_headers(headers[:1]) == headers[:1]
