"""The digest of the published image of a key: the same image, read again, is not published again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from helenus_connector.interfaces.shape import Record, ShapedRecord


def digest_of(
    records: Iterable[ShapedRecord | None], handle_record: Callable[[ShapedRecord | None], None] | None = None
) -> bytes:
    """Return the digest of an image of a key, or of a scope's rows. `handle_record` is called with each record on the
    way.
    """
    digest = hashlib.md5(usedforsecurity=False)
    for shaped in records:
        for part in () if shaped is None else shaped.record[:2] if shaped.alike is None else (shaped.alike,):
            digest.update(_length_prefixed(part))
        if handle_record is not None:
            handle_record(shaped)
    return digest.digest()


def digest_of_record(record: Record) -> bytes:
    """Return the digest of an image that is one record, as `digest_of` does."""
    return hashlib.md5(b"".join(map(_length_prefixed, record[:2])), usedforsecurity=False).digest()


def _length_prefixed(part: bytes | None) -> bytes:
    return b"\0" if part is None else b"\1%d\0" % len(part) + part
