"""Pieces of Avro that envelopes are made of, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from helenus_connector.shape.encoding.parsed_cells import ParsedCells
from helenus_schemas.codec.avro_long import long_bytes

TEXTS: dict[str, Any] = {"type": "array", "items": "string"}
SAID: list[dict[str, Any]] = [
    {"name": "columns", "type": TEXTS},
    {"name": "replaced", "type": TEXTS},
    {"name": "removed", "type": {"type": "map", "values": TEXTS}},
]
"""The fields of the record that `op_bytes` makes."""


def op_bytes(changed: ParsedCells) -> bytes:
    removed = [text_bytes(name) + texts_bytes(parts) for name, parts in changed.removed.items()]
    return texts_bytes(changed.columns) + texts_bytes(changed.replaced) + array_bytes(removed)


@lru_cache(1024)
def texts_bytes(names: tuple[str, ...]) -> bytes:
    """Cached: a table's changes write the same few columns."""
    return array_bytes([text_bytes(name) for name in names])


def array_bytes(items: Sequence[bytes]) -> bytes:
    """An array, or a map of entries."""
    return b"".join([long_bytes(len(items)), *items, b"\0"]) if items else b"\0"


@lru_cache(1024)
def text_bytes(text: str) -> bytes:
    data = text.encode()
    return long_bytes(len(data)) + data


@lru_cache(1024)
def optional_text(text: str | None) -> bytes:
    """A text, or null."""
    return b"\0" if text is None else b"\2" + text_bytes(text)
