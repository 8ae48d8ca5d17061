"""A change event's value: the wire form of a `Change`.

The value is an Avro record without a header. Its first three fields are DataStax's `MutationValue`, in the order its
Kafka agents write; ours follow, so a reader that knows three fields stops before them. DataStax's Pulsar agents write
the three sorted by name: `columns` is always null there, so the first byte shows which of the two it is.

The field `origin` is there only if it is not LOG, and `cells` only if an agent was asked for them: other events are no
longer for them.
"""

from __future__ import annotations

from typing import Any

from helenus_schemas.codec.avro_long import long_bytes, read_long, sized_bytes
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.cells import AVRO as CELLS
from helenus_schemas.event.change import Bound, Change, Origin, Scope

_BOUND = {
    "type": "record",
    "name": "Bound",
    "namespace": "helenus",
    "fields": [
        {"name": "inclusive", "type": "boolean"},
        {"name": "values", "type": {"type": "array", "items": "bytes"}},
    ],
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "MutationValue",
    "namespace": "com.datastax.oss.cdc",
    "fields": [
        {"name": "md5Digest", "type": ["null", "string"], "default": None},
        {"name": "nodeId", "type": ["null", "string"], "default": None},
        {"name": "columns", "type": ["null", {"type": "array", "items": "string"}], "default": None},
        {
            "name": "scope",
            "type": {
                "type": "enum",
                "name": "Scope",
                "namespace": "helenus",
                "symbols": [s.name for s in Scope],
                "default": "ROW",
            },
            "default": "ROW",
        },
        {"name": "part", "type": "int", "default": 0},
        {"name": "parts", "type": "int", "default": 1},
        {"name": "segment", "type": "long", "default": -1},
        {"name": "position", "type": "long", "default": -1},
        {"name": "writeTime", "type": ["null", "long"], "default": None},
        {"name": "expiresAt", "type": ["null", "long"], "default": None},
        {"name": "start", "type": ["null", _BOUND], "default": None},
        {"name": "end", "type": ["null", "helenus.Bound"], "default": None},
        {"name": "effect", "type": "long", "default": 0},
        {"name": "allExpiredAt", "type": ["null", "long"], "default": None},
    ],
}
"""The Avro schema of a commit log's event. Its first three fields alone are DataStax's."""
SCHEMA_WITH_ORIGIN: dict[str, Any] = {
    **SCHEMA,
    "fields": [
        *SCHEMA["fields"],
        {
            "name": "origin",
            "type": {
                "type": "enum",
                "name": "Origin",
                "namespace": "helenus",
                "symbols": [o.name for o in Origin],
                "default": "LOG",
            },
            "default": "LOG",
        },
    ],
}
"""The Avro schema of events of a snapshot, and of a repair."""
SCHEMA_WITH_CELLS: dict[str, Any] = {
    **SCHEMA,
    "fields": [
        *SCHEMA_WITH_ORIGIN["fields"],
        {"name": "cells", "type": ["null", CELLS], "default": None},
    ],
}
"""The Avro schema of a commit log's events with cells."""

_FRAME = 5
THREE_FIELDS = 73
"""Bytes of DataStax's three fields with a digest and a node, in either order."""


def encode(change: Change) -> bytes:
    """Encode a Change; a foreign one has three fields. The decoder writes the same bytes by itself."""
    first = _text(change.digest) + _text(change.node) + b"\0"
    if change.foreign:
        return first
    return b"".join(
        (
            first,
            long_bytes(change.scope),
            long_bytes(change.part),
            long_bytes(change.parts),
            long_bytes(change.segment),
            long_bytes(change.position),
            _optional(change.write_time),
            _optional(change.expires_at),
            _bound(change.start),
            _bound(change.end),
            long_bytes(change.effect),
            _optional(change.all_expired_at),
            long_bytes(change.origin) if change.origin or change.cells is not None else b"",
            b"" if change.cells is None else b"\2" + change.cells,
        )
    )


def request(scope: Scope, origin: Origin) -> bytes:
    """Return the value of an event that no commit log has: it asks for its key to be read."""
    return encode(Change(None, None, scope, origin=origin))


def decode(data: bytes) -> Change:
    """Read a Change: ours, or DataStax's three fields in either order. Raises Malformed for other bytes."""
    digest: str | None
    node: str | None
    try:
        if data[:2] == b"\2@" and data[34:36] == b"\2H" and data[72] == 0:  # as our agent writes it: 32, 36 characters
            digest, node, offset = data[2:34].decode(), data[36:72].decode(), 73
        elif _is_sorted(data):
            offset = _skip_columns(data, 0)
            digest, offset = _read_text(data, offset)
            node, offset = _read_text(data, offset)
        else:
            digest, offset = _read_text(data, 0)
            node, offset = _read_text(data, offset)
            offset = _skip_columns(data, offset)
        if offset == len(data):
            return Change(digest, node, foreign=True)
        scope, offset = read_long(data, offset)
        part, offset = read_long(data, offset)
        parts, offset = read_long(data, offset)
        segment, offset = read_long(data, offset)
        position, offset = read_long(data, offset)
        write_time, offset = _read_optional(data, offset)
        expires_at, offset = _read_optional(data, offset)
        start, offset = _read_bound(data, offset)
        end, offset = _read_bound(data, offset)
        if parts < 1:
            raise Malformed(f"not an event's value: a part of {parts}")
        effect, offset = read_long(data, offset)
        all_expired_at, offset = _read_optional(data, offset)
        origin, offset = read_long(data, offset) if offset < len(data) else (0, offset)
        has_cells, offset = _read_branch(data, offset) if offset < len(data) else (False, offset)
        return Change(
            digest,
            node,
            Scope(scope),
            part,
            parts,
            segment,
            position,
            write_time,
            expires_at,
            start,
            end,
            effect=effect,
            all_expired_at=all_expired_at,
            origin=Origin(origin),
            cells=data[offset:] if has_cells else None,
        )
    except Malformed:
        raise
    except (IndexError, ValueError) as error:
        raise Malformed(f"not an event's value: {error}") from None


def without_cells(value: bytes) -> bytes | None:
    """Return an event's value without its cells; None if it has none. Raises Malformed."""
    change = decode(value)
    if change.cells is None:
        return None
    end = len(value) - len(change.cells) - 1
    return value[: end - 1] if value[end - 1] == Origin.LOG else value[:end]


def without_frames(key: bytes | None, value: bytes) -> tuple[bytes | None, bytes]:
    """Return key and value of an event without the registry's frames that DataStax's Kafka agents may write.

    A frame is a zero byte and the 4 bytes of a schema's id. Only in their values a digest's length, 32, follows it.
    """
    if len(value) == _FRAME + THREE_FIELDS and value[:1] == b"\0" and value[_FRAME : _FRAME + 2] == b"\2@":
        return key and key[_FRAME:], value[_FRAME:]
    return key, value


def _is_sorted(data: bytes) -> bool:
    """Return whether columns come first, as DataStax's Pulsar agents write them.

    After null columns follows a digest, 32 characters; 36 would be the node after our order's null digest. Columns that
    are not null may look like a digest, but then the rest is not a digest and a node.
    """
    if data[:1] == b"\0":
        return (data[1:4] == b"\0\2H" and len(data) == 40) or (data[1:2] == b"\2" and data[2:3] != b"H")
    try:
        _, offset = _read_text(data, _skip_columns(data, 0))
        node, offset = _read_text(data, offset)
    except (IndexError, ValueError):
        return False
    return offset == len(data) and (node is None or len(node) == 36)


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    return b"\2" + sized_bytes(value.encode())


def _optional(value: int | None) -> bytes:
    return b"\0" if value is None else b"\2" + long_bytes(value)


def _bound(bound: Bound | None) -> bytes:
    if bound is None:
        return b"\0"
    values = b"".join(map(sized_bytes, bound.values))
    block = long_bytes(len(bound.values)) + values if bound.values else b""
    return b"\2" + (b"\1" if bound.inclusive else b"\0") + block + b"\0"


def _read_branch(data: bytes, offset: int) -> tuple[bool, int]:
    branch = data[offset]
    if branch not in (0, 2):
        raise Malformed(f"not an event's value: union branch {branch}")
    return branch == 2, offset + 1


def _read_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = read_long(data, offset)
    if not 0 <= size <= len(data) - offset:
        raise Malformed(f"not an event's value: a length of {size}")
    return data[offset : offset + size], offset + size


def _read_text(data: bytes, offset: int) -> tuple[str | None, int]:
    is_present, offset = _read_branch(data, offset)
    if not is_present:
        return None, offset
    text, offset = _read_bytes(data, offset)
    return text.decode(), offset


def _read_optional(data: bytes, offset: int) -> tuple[int | None, int]:
    is_present, offset = _read_branch(data, offset)
    return read_long(data, offset) if is_present else (None, offset)


def _read_bound(data: bytes, offset: int) -> tuple[Bound | None, int]:
    is_present, offset = _read_branch(data, offset)
    if not is_present:
        return None, offset
    inclusive = data[offset] == 1
    values = []
    count, offset = read_long(data, offset + 1)
    while count:
        if not 0 < count <= len(data) - offset:
            raise Malformed(f"not an event's value: a block of {count}")
        for _ in range(count):
            value, offset = _read_bytes(data, offset)
            values.append(value)
        count, offset = read_long(data, offset)
    return Bound(inclusive, tuple(values)), offset


def _skip_columns(data: bytes, offset: int) -> int:
    is_present, offset = _read_branch(data, offset)
    if not is_present:
        return offset
    count, offset = read_long(data, offset)
    while count:
        if not 0 < count <= len(data) - offset:
            raise Malformed(f"not an event's value: a block of {count}")
        for _ in range(count):
            _, offset = _read_bytes(data, offset)
        count, offset = read_long(data, offset)
    return offset
