"""Entries of a segment: int size, int crc of the size, a mutation of so many bytes, int crc of both."""

from __future__ import annotations

ENTRY_OVERHEAD = 12
"""Bytes that an entry adds to its mutation."""


def last_entry(data: bytes, end: int) -> int:
    """Return where the last of the entries begins that `data` has up to `end`, whole ones from its first byte on."""
    start = offset = 0
    while offset < end:
        start = offset
        offset += ENTRY_OVERHEAD + int.from_bytes(data[offset : offset + 4], "big")
    return start
