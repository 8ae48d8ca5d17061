"""Values that Cassandra holds and no record can hold."""

from __future__ import annotations

from collections.abc import Iterable

from helenus_schemas.codec.to_json import map_key
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE, NullElement, elements, entries, fields, vector


def is_unpublishable(t: CqlType, data: bytes) -> bool:
    """Return whether a value that CQL allows has, at any depth, something that no record can hold.

    That is: a null element of a collection; an element of no bytes, of a type that has no such value; text that is not
    UTF-8; different keys of a map that have the same text.
    """
    try:
        if t.name in ("ascii", "text"):
            return not _is_utf8(data)
        if t.name in ("list", "set"):
            return _any_unpublishable((t.args[0], part) for part in elements(data))
        if t.name == "map":
            parts = entries(data)
            return _any_unpublishable(
                (a, part) for entry in parts for a, part in zip(t.args, entry, strict=True)
            ) or _have_one_text(t.args[0], [key for key, _ in parts])
        if t.name == "vector":
            return _any_unpublishable((t.args[0], part) for part in vector(data, t.args[0].width, t.dimension))
        if t.name in ("tuple", "udt"):
            # A field of no bytes is null.
            return any(
                part and is_unpublishable(a, part) for a, part in zip(t.args, fields(data, len(t.args)), strict=False)
            )
    except NullElement:
        return True
    return False


def _any_unpublishable(parts: Iterable[tuple[CqlType, bytes]]) -> bool:
    return any(is_unpublishable(t, part) if part else t.name not in EMPTY_IS_A_VALUE for t, part in parts)


def _have_one_text(t: CqlType, keys: list[bytes]) -> bool:
    return len(set(map(map_key(t), keys))) < len(keys)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
