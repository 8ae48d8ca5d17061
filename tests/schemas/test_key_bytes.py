"""Keys of events to CQL bytes in one pass: byte for byte what a function for each column makes, plain and compiled."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, types, values

from helenus_schemas.codec import key as keys
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed

SOURCE = Path(keys.__file__).with_name("_key_bytes.py")
MOST = (
    "ascii bigint blob boolean date double float int smallint text time timestamp timeuuid tinyint uuid varint".split()
)
slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


@pytest.fixture(scope="module", params=["plain", "compiled"])
def key_bytes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.plain(SOURCE) if request.param == "plain" else twice.compiled(SOURCE, tmp_path_factory)


def table(partition: list[CqlType], clustering: list[CqlType]) -> Table:
    columns = [Column(f"p{i}", t, "partition_key", i) for i, t in enumerate(partition)]
    columns += [Column(f"c{i}", t, "clustering", i) for i, t in enumerate(clustering)]
    return Table("ks", "t", uuid.UUID(int=1), tuple(columns))


def read(module: ModuleType, key_table: Table, data: bytes) -> Any:
    """What it makes of a key: the same as the functions, and nothing of what they refuse."""
    reader = module.KeyBytesReader([c.type for c in key_table.partition_key], [c.type for c in key_table.clustering])
    key = reader.read_key(data)
    try:
        expected: Any = KeyCodec(key_table)._decode(data)
    except Malformed:
        expected = None
    assert key is None or key == expected
    return key


def is_far(name: str, value: bytes | None) -> bool:
    """Whether it is a number of ten bytes in Avro, which is left to the functions."""
    if name not in ("bigint", "time", "timestamp") or not value:
        return False
    return not -1 << 62 <= int.from_bytes(value, "big", signed=True) < 1 << 62


of_key = st.one_of(st.sampled_from(MOST).map(CqlType), types(2, key=True))
typed = of_key.flatmap(lambda t: st.tuples(st.just(t), values(t)))


@slow
@given(partition=st.lists(typed, min_size=1, max_size=3), clustering=st.lists(typed, max_size=3), data=st.data())
def test_keys(key_bytes: ModuleType, partition: Any, clustering: Any, data: st.DataObject) -> None:
    key_table = table([t for t, _ in partition], [t for t, _ in clustering])
    key: list[bytes | None] = [cql_bytes(t, v) for t, v in (*partition, *clustering)]
    whole = data.draw(st.integers(0, len(clustering)))
    key[len(key) - whole :] = [None] * whole
    try:
        encoded = KeyCodec(key_table).encode(key)
    except ValueError:
        return
    decoded_key = read(key_bytes, key_table, encoded)
    has_stand_ins = len(partition) > 1 and b"" in key
    others = [t for t, _ in (*partition, *clustering) if t.name not in MOST]
    far = [v for (t, _), v in zip((*partition, *clustering), key, strict=True) if is_far(t.name, v)]
    assert decoded_key is not None or has_stand_ins or others or far
    bad = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(bad)))
        bad[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    read(key_bytes, key_table, bytes(bad))


@pytest.mark.parametrize("name", MOST)
@given(data=st.data())
def test_most_types_are_read_here(key_bytes: ModuleType, name: str, data: st.DataObject) -> None:
    """Not by the functions, which would be slower and nothing else."""
    key_table = table([CqlType(name)], [])
    value = cql_bytes(CqlType(name), data.draw(values(CqlType(name))))
    assert read(key_bytes, key_table, KeyCodec(key_table).encode([value])) == (
        None if is_far(name, value) else (value,)
    )


@pytest.mark.parametrize(
    "text", ["0" * 36, str(uuid.UUID(int=5)).upper(), "{" + "0" * 32 + "}", "urn:uuid:" + "0" * 27]
)
def test_other_texts_of_a_uuid(key_bytes: ModuleType, text: str) -> None:
    read(key_bytes, table([CqlType("uuid")], []), bytes([len(text) << 1]) + text.encode())


@pytest.mark.parametrize("t", ["int", "date", "bigint", "tinyint", "text"])
@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9 + b"\1", b"\xff" * 10 + b"\1", b"\xff" * 8 + b"\1", b"\1"])
def test_numbers_at_their_limits(key_bytes: ModuleType, t: str, data: bytes) -> None:
    read(key_bytes, table([CqlType(t)], []), data)
