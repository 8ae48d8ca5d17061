"""Keys of events: written in several forms of equal values, or when their types had fewer fields."""

from __future__ import annotations

import itertools
import struct
import uuid

import pytest

from helenus_schemas.codec import key as keys
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed

ONE = b"\0\0\0\1"


def udt(label: str, fields: int, t: str = "int") -> CqlType:
    return CqlType("udt", (parse(t),) * fields, True, label, tuple(f"f{i}" for i in range(fields)))


def codec(*clustering: CqlType, partition: str = "int") -> KeyCodec:
    columns = [Column("p", parse(partition), "partition_key", 0)]
    columns += [Column(f"c{i}", t, "clustering", i) for i, t in enumerate(clustering)]
    return KeyCodec(Table("ks", "t", uuid.UUID(int=1), tuple(columns)))


def value(*parts: int | None) -> bytes:
    return b"".join(b"\xff" * 4 if part is None else struct.pack(">ii", 4, part) for part in parts)


def test_several_types_of_a_key_got_fields() -> None:
    """Each on its own, one within the other, and by several fields."""
    now = codec(udt("a", 3), udt("b", 2), CqlType("list", (udt("c", 2),), True))
    key = (ONE, value(5), value(6), ONE + struct.pack(">i", 8) + value(7))
    expected = (ONE, value(5, None, None), value(6, None), ONE + struct.pack(">i", 12) + value(7, None))
    for a, b, c in itertools.product((1, 2, 3), (1, 2), (1, 2)):
        before = codec(udt("a", a), udt("b", b), CqlType("list", (udt("c", c),), True))
        assert now.decode(now.current_key(before.encode(key))) == expected
    nested = codec(CqlType("udt", (udt("b", 2), parse("int")), True, "a", ("x", "y")))
    before = codec(CqlType("udt", (udt("b", 1),), True, "a", ("x",)))
    inner = struct.pack(">i", 12) + value(7, None)
    current = nested.current_key(before.encode((ONE, struct.pack(">i", 8) + value(7))))
    assert nested.decode(current) == (ONE, inner + b"\xff" * 4)


def test_the_number_of_former_key_types_is_bounded() -> None:
    now = codec(*(udt(f"t{i}", 20) for i in range(8)), *(udt(f"s{i}", 1) for i in range(40)))
    with pytest.raises(Malformed):
        now.current_key(b"\2\2")
    assert len(now._former_types) == keys._MAX_FORMER_TYPES


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_an_earlier_key_that_could_be_a_current_one(columns: int) -> None:
    """({5}, {0}) of before has the bytes of ({5, 1}, null), which no row has."""
    before, now = (codec(*(udt("a", fields) for _ in range(columns))) for fields in (1, 2))
    for parts in itertools.product((None, -1, 0, 1, 5), repeat=columns):
        key = (ONE, *(value(part) for part in parts))
        assert now.decode(now.current_key(before.encode(key))) == (ONE, *(value(part, None) for part in parts))
    for parts in itertools.product((None, 0, 1), repeat=2 * columns):
        key = (ONE, *(value(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)))
        assert now.current_key(now.encode(key)) == now.encode(key)


def test_a_key_with_nulls_that_is_unambiguous_stays_as_it_is() -> None:
    """A whole partition's, and one with a value of no bytes."""
    now = codec(udt("a", 2), parse("int"))
    for key in ((ONE, None, None), (ONE, value(5, 6), b""), (ONE, value(5, None), b"")):
        assert now.current_key(now.encode(key)) == now.encode(key)
    before = codec(udt("a", 1), parse("int"))
    assert now.decode(now.current_key(before.encode((ONE, value(5), b"")))) == (ONE, value(5, None), None)


def test_booleans_that_are_true_are_one_clustering_key() -> None:
    """Cassandra's comparison takes all but 0 for true. In a partition key, where bytes count, 02 has no form."""
    listed = parse("frozen<list<boolean>>")
    key_codec = codec(parse("boolean"), listed)
    true, other = ((ONE, value, ONE + ONE + value) for value in (b"\1", b"\2"))
    assert key_codec.encode(true) == key_codec.encode(other)
    assert key_codec.normalize(other) == key_codec.normalize(true) == key_codec.decode(key_codec.encode(other)) == true
    for t, value in (("boolean", b"\2"), ("boolean", b""), ("frozen<list<boolean>>", ONE + ONE + b"\2")):
        with pytest.raises(Malformed):
            codec(partition=t).encode((value,))
    for data in (b"\0", b"\1"):
        boolean_codec = codec(partition="boolean")
        assert boolean_codec.decode(boolean_codec.encode((data,))) == (data,)


HOLLOW = "boolean tinyint smallint int bigint float double timestamp time date uuid timeuuid inet decimal".split()
HOLLOW += ["frozen<list<int>>", "frozen<set<text>>", "frozen<map<int, int>>", "vector<int, 2>", "vector<text, 3>"]
HOLLOW += ["vector<varint, 2>"]


@pytest.mark.parametrize("name", HOLLOW)
def test_values_of_no_bytes_in_a_composite_partition_key(name: str) -> None:
    """They come back, and are no other key; a reader of the record alone finds a value, and bytes after it."""
    names = ("text", name, name)
    columns = [Column(f"p{i}", parse(t), "partition_key", i) for i, t in enumerate(names)]
    columns.append(Column("c", parse("varint"), "clustering", 0))
    key_codec = KeyCodec(Table("ks", "t", uuid.UUID(int=1), tuple(columns)))
    first = keys.stand_in(parse(name))
    encoded_keys = set()
    for a, b, c in itertools.product((b"", first), (b"", first), (None, b"", b"\1")):
        key = (b"", a, b, c)
        data = key_codec.encode(key)
        assert key_codec.decode(data) == key_codec.normalize(key) == key
        assert key_codec.current_key(data) == data
        whole = key_codec.encode((b"", first, first, c))
        assert data.startswith(whole)
        assert len(data) - len(whole) == (a, b).count(b"")
        encoded_keys |= {data, key_codec.comparison_bytes(key[:3])}
    assert len(encoded_keys) == 4 * 3 + 4
    for extra in (b"\0", b"\2\2", b"\4\2", b"\6", b"\2\0", b"\x80"):
        with pytest.raises(Malformed):
            key_codec.decode(key_codec.encode((b"", first, first, None)) + extra)
    with pytest.raises(Malformed):
        key_codec.decode(key_codec.encode((b"x", first, first, None)).replace(b"\2x", b"\2y") + b"\0")
