"""Encode the pieces of Avro that envelopes consist of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from helenus_connector.shape.envelope.parsed_cells import ParsedCells
from helenus_schemas.codec.avro_long import long_bytes, sized_bytes

TEXT_ARRAY: dict[str, Any] = {"type": "array", "items": "string"}
WRITTEN_FIELDS: list[dict[str, Any]] = [
    {"name": "columns", "type": TEXT_ARRAY},
    {"name": "replaced", "type": TEXT_ARRAY},
    {"name": "removed", "type": {"type": "map", "values": TEXT_ARRAY}},
]
"""The fields of the record `written`, which `op_bytes` encodes."""


def op_bytes(parsed: ParsedCells) -> bytes:
    """Encode the record `written`: the columns that a change writes, replaces and removes parts of."""
    removed = [text_bytes(name) + texts_bytes(paths) for name, paths in parsed.removed.items()]
    return texts_bytes(parsed.columns) + texts_bytes(parsed.replaced) + array_bytes(removed)


@lru_cache(1024)
def texts_bytes(names: tuple[str, ...]) -> bytes:
    """Encode an array of strings. Cached: a table's changes write the same few columns."""
    return array_bytes([text_bytes(name) for name in names])


def array_bytes(items: Sequence[bytes]) -> bytes:
    """Encode an array of encoded items, or a map of encoded entries."""
    return b"".join([long_bytes(len(items)), *items, b"\0"]) if items else b"\0"


@lru_cache(1024)
def text_bytes(text: str) -> bytes:
    """Encode a string."""
    return sized_bytes(text.encode())


@lru_cache(1024)
def optional_text(text: str | None) -> bytes:
    """Encode the union of null and a string."""
    return b"\0" if text is None else b"\2" + text_bytes(text)
