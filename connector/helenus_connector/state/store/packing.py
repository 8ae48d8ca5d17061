"""Values of the state as bytes: lists of items, each after its length in 4 bytes.

It runs as it is, and compiled by Cython with the types of `packing.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

LAST_SECOND = 0xFFFFFFFF
"""The last second since the epoch at which Cassandra can delete a cell or let it expire: it stores 4 bytes."""
_LENGTH = Struct(">I")
_pack_length, _unpack_length = _LENGTH.pack, _LENGTH.unpack_from
_LENGTH_BYTES = 4
COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_SHORT = 1024
_SHORT_LENGTHS = [_pack_length(size) for size in range(_SHORT)]
"""Most items are that short: their lengths are not packed again and again."""


def pack_items(items: Iterable[bytes]) -> bytes:
    """Pack items one after the other, each after its length."""
    parts: list[bytes] = []
    for item in items:
        size = len(item)
        parts.append(_SHORT_LENGTHS[size] if size < _SHORT else _pack_length(size))
        parts.append(item)
    return b"".join(parts)


def unpack_items(data: bytes, offset: int = 0) -> list[bytes]:
    """Unpack the items from an offset to the end. Raises ValueError for bytes that end within one."""
    items: list[bytes] = []
    end = len(data)
    while offset < end:
        if _compiled and end - offset >= _LENGTH_BYTES:
            size = data[offset]  # a number of 64 bits: of 32, as bytes become in C, it could be negative
            size = size << 8 | data[offset + 1]
            size = size << 8 | data[offset + 2]
            size = size << 8 | data[offset + 3]
        else:
            (size,) = _unpack_length(data, offset)
        offset += 4
        items.append(data[offset : offset + size])
        offset += size
    if offset > end:
        raise ValueError(f"bytes of the state that end {offset - end} bytes early")
    return items
