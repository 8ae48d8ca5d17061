"""Bytes of bytes, as values of the state have them: each item after its length, in 4 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

_LENGTH = Struct(">I")


def packed_items(items: Iterable[bytes]) -> bytes:
    """Items, one after the other."""
    return b"".join([part for item in items for part in (_LENGTH.pack(len(item)), item)])


def items_of(data: bytes, at: int = 0) -> list[bytes]:
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
