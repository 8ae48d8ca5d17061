"""Values of the state as bytes: lists of items, each after its length in 4 bytes, and times of 4 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

LAST_SECOND = 0xFFFFFFFF
"""The last one, since the epoch, at which Cassandra can delete a cell or have it expire: stores have 4 bytes for it."""
_LENGTH = Struct(">I")


def pack_items(items: Iterable[bytes]) -> bytes:
    """Items, one after the other."""
    return b"".join([part for item in items for part in (_LENGTH.pack(len(item)), item)])


def unpack_items(data: bytes, at: int = 0) -> list[bytes]:
    """The items from a place on to the end. Raises ValueError for bytes that end within one."""
    found = []
    unpack, end = _LENGTH.unpack_from, len(data)
    while at < end:
        (size,) = unpack(data, at)
        at += 4
        found.append(data[at : at + size])
        at += size
    if at > end:
        raise ValueError(f"bytes of the state that end {at - end} bytes early")
    return found
