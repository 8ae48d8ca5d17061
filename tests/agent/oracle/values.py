"""Random values of CQL types, as CQL bytes."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from helenus_schemas.cql.types import CqlType

_MAY_BE_EMPTY = frozenset("int bigint float double boolean uuid timestamp varint decimal inet text ascii blob".split())
_INTEGERS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "timestamp": 8}
_LETTERS = "abc XYZ \"'$;\n\0äß€🙂"


def value(rng: Random, t: CqlType, key: bool = False) -> bytes:
    """A value of the type; one that is no `key` may be empty where Cassandra lets it."""
    if not key and t.name in _MAY_BE_EMPTY and rng.random() < 0.03:
        return b""
    if t.name in ("list", "set"):
        return _elements([_element(rng, t.args[0]) for _ in range(rng.randrange(5))], 1)
    if t.name == "map":
        return _elements([_element(rng, a) for _ in range(rng.randrange(5)) for a in t.args], 2)
    if t.name in ("tuple", "udt"):
        fields = [None if rng.random() < 0.2 else value(rng, a, key) for a in t.args]
        return b"".join(_sized(field) for field in fields)
    if t.name == "vector":
        element = t.args[0]
        elements = [value(rng, element, True) for _ in range(t.dimension)]
        return b"".join(e if element.width else _vint(len(e)) + e for e in elements)
    return scalar(rng, t.name)


def scalar(rng: Random, name: str, longest: int = 20_000) -> bytes:
    """A value of a type without elements, not empty, of at most so many bytes or characters."""
    if name in _INTEGERS:
        return _integer(rng, _INTEGERS[name])
    if name == "counter":
        return rng.randrange(-100, 100).to_bytes(8, "big", signed=True)
    if name == "varint":
        return _integer(rng, rng.choice((1, 2, 8, 20, 300)))
    if name == "decimal":
        # Equal decimals are one key, encoded in its shortest form: so here each is.
        unscaled = rng.randrange(1 << rng.choice((3, 30, 90))) * 10 + rng.randrange(1, 10)
        unscaled *= rng.choice((1, -1))
        size = (unscaled if unscaled > 0 else ~unscaled).bit_length() // 8 + 1
        return struct.pack(">i", rng.randrange(-30, 30)) + unscaled.to_bytes(size, "big", signed=True)
    if name == "boolean":
        return rng.choice((b"\0", b"\1"))
    if name == "date":
        return rng.choice((bytes(4), b"\xff" * 4, b"\x80\0\0\0", rng.randbytes(4)))
    if name == "time":
        return rng.choice((0, 86_399_999_999_999, rng.randrange(86_400_000_000_000))).to_bytes(8, "big")
    if name in ("float", "double"):
        number = rng.choice((0.0, -0.0, float("inf"), float("-inf"), float("nan"), rng.uniform(-1e9, 1e9)))
        return struct.pack(">f" if name == "float" else ">d", number)
    if name == "uuid":
        return rng.randbytes(16)
    if name == "timeuuid":
        data = bytearray(rng.randbytes(16))
        data[6] = data[6] & 0x0F | 0x10
        data[8] = data[8] & 0x3F | 0x80
        return bytes(data)
    if name == "inet":
        return rng.choice((rng.randbytes(4), rng.randbytes(16), bytes(15) + b"\1", bytes(10) + b"\xff\xff\x0a\0\0\1"))
    if name == "duration":
        sign = rng.choice((1, -1))
        return b"".join(_vint(_zigzag(sign * rng.randrange(1 << rng.choice((1, 9, 31))))) for _ in range(3))
    size = rng.choice((1, 3, 20, 127, 128, 200, longest)) if rng.random() < 0.2 else rng.randrange(1, 12)
    if name == "blob":
        return rng.randbytes(size)
    letters = "".join(rng.choice(_LETTERS if name == "text" else _LETTERS[:12]) for _ in range(size))
    return letters.encode()


def sort_key(t: CqlType, data: bytes) -> Any:
    """Something that sorts as Cassandra sorts values of the type; None for types whose order is not known here."""
    if t.name in ("tinyint", "smallint", "int", "bigint", "varint"):
        return int.from_bytes(data, "big", signed=True)
    if t.name in ("text", "ascii", "blob", "date", "time"):
        return data
    return None


def _element(rng: Random, t: CqlType) -> bytes:
    return b"" if t.name in ("text", "blob") and rng.random() < 0.1 else value(rng, t, True)


def _integer(rng: Random, width: int) -> bytes:
    limit = 1 << 8 * width - 1
    number = rng.choice((0, -1, 1, limit - 1, -limit, rng.randrange(-limit, limit), rng.randrange(-9, 9)))
    return number.to_bytes(width, "big", signed=True)


def _elements(elements: list[bytes], columns: int) -> bytes:
    return struct.pack(">i", len(elements) // columns) + b"".join(map(_sized, elements))


def _sized(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">i", len(data)) + data


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _vint(number: int) -> bytes:
    """Unsigned, as Cassandra writes one."""
    size = max(0, (number.bit_length() - 1) // 7)
    if size >= 8:
        return b"\xff" + number.to_bytes(8, "big")
    return ((0xFF00 >> size & 0xFF) << 8 * size | number).to_bytes(size + 1, "big")
