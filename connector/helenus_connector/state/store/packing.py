"""Values of the state as bytes: lists of items, each after its length in 4 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

LAST_SECOND = 0xFFFFFFFF
"""The last second since the epoch at which Cassandra can delete a cell or let it expire: it stores 4 bytes."""
_LENGTH = Struct(">I")


def pack_items(items: Iterable[bytes]) -> bytes:
    """Pack items one after the other, each after its length."""
    return b"".join([part for item in items for part in (_LENGTH.pack(len(item)), item)])


def unpack_items(data: bytes, offset: int = 0) -> list[bytes]:
    """Unpack the items from an offset to the end. Raises ValueError for bytes that end within one."""
    items = []
    unpack, end = _LENGTH.unpack_from, len(data)
    while offset < end:
        (size,) = unpack(data, offset)
        offset += 4
        items.append(data[offset : offset + size])
        offset += size
    if offset > end:
        raise ValueError(f"bytes of the state that end {offset - end} bytes early")
    return items
