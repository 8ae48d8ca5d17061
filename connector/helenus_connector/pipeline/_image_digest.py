"""The digest of what was published of a key: the same image, read again, is not published again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from helenus_connector.interfaces.shape import Record, ShapedRecord


def digest_of(
    records: Iterable[ShapedRecord | None], take: Callable[[ShapedRecord | None], None] | None = None
) -> bytes:
    """Identifies an image of a key, or of a scope's rows; `take` is given each record on the way."""
    digest = hashlib.md5(usedforsecurity=False)
    for shaped in records:
        for part in () if shaped is None else shaped.record[:2] if shaped.alike is None else (shaped.alike,):
            digest.update(_part(part))
        if take is not None:
            take(shaped)
    return digest.digest()


def digest_of_record(record: Record) -> bytes:
    """As `digest_of`, of one record."""
    return hashlib.md5(b"".join(map(_part, record[:2])), usedforsecurity=False).digest()


def _part(part: bytes | None) -> bytes:
    return b"\0" if part is None else b"\1%d\0" % len(part) + part
