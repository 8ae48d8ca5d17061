"""Merged changes as bytes, on their way from the operator to the task that publishes them.

Spark passes them from one process to another within a batch. They are never stored, so this layout can change.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_connector.interfaces.merged_change import GapEvent, MergedChange, PoisonEvent, ReadRequest, RowChange
from helenus_schemas.event.change import Bound, Scope

_MAX_CHANGES = 500
"""A pack is a data frame of its own on its way to Spark: a cost that hundreds of small changes share."""
_MAX_BYTES = 1 << 20
"""A pack is one value of Spark's, and as a whole in the memory of each process on its way."""
_SCOPES = {int(scope): scope for scope in Scope}
_new = tuple.__new__


def pack_changes(changes: Iterable[MergedChange]) -> Iterator[bytes]:
    """Pack changes into pieces of bytes, which `unpack_changes` takes."""
    packed: list[tuple[object, ...]] = []
    size = 0
    for change in changes:
        packed.append(_pack_change(change))
        size += _count_bytes(change)
        if len(packed) == _MAX_CHANGES or size >= _MAX_BYTES:
            yield marshal.dumps(packed)
            packed, size = [], 0
    if packed:
        yield marshal.dumps(packed)


def unpack_changes(pack: bytes) -> Iterator[MergedChange]:
    """Unpack changes that a process of this run packed."""
    for fields in marshal.loads(pack):
        yield _unpack_change(fields)


def _pack_change(change: MergedChange) -> tuple[object, ...]:
    """Return the name of a change's type and its fields, of types that marshal knows."""
    if isinstance(change, RowChange):  # nearly all are: a match takes three times as long
        partition, key, scope, op, before, after, write_time, expires, event, bounds = change
        rows = _pack_row(before), _pack_row(after)
        return "row", partition, key, int(scope), op, *rows, write_time, expires, _pack(event), _pack_bounds(bounds)
    match change:
        case ReadRequest(partition, key, scope, requested_at, deleted_to, event, disturbances):
            return "read", partition, key, int(scope), requested_at, deleted_to, _pack(event), disturbances
        case PoisonEvent(event, failure):
            return "poison", _pack(event), failure
        case GapEvent(event):
            return "gap", _pack(event)


def _unpack_change(fields: tuple[Any, ...]) -> MergedChange:
    if fields[0] == "row":
        _, partition, key, scope, op, before, after, write_time, expires, event, bounds = fields
        end = write_time, expires, _unpack(event), _unpack_bounds(bounds)
        return _new(RowChange, (partition, key, _SCOPES[scope], op, before, after, *end))
    match fields:
        case "read", partition, key, scope, requested_at, deleted_to, event, disturbances:
            return ReadRequest(partition, key, Scope(scope), requested_at, deleted_to, _unpack(event), disturbances)
        case "poison", event, failure:
            return PoisonEvent(Event._make(event), failure)
        case "gap", event:
            return GapEvent(Event._make(event))
    raise ValueError(f"a merged change of an unknown type: {fields[0]}")


def _pack_row(row: Mapping[str, bytes | None] | None) -> dict[str, bytes | None] | None:
    return row if row is None or type(row) is dict else dict(row)


def _pack(event: Event | None) -> tuple[object, ...] | None:
    return None if event is None else tuple(event)


def _unpack(fields: tuple[Any, ...] | None) -> Event | None:
    return None if fields is None else _new(Event, fields)


def _pack_bounds(bounds: Bounds | None) -> tuple[object, ...] | None:
    return bounds and tuple(bound and (bound.inclusive, bound.values) for bound in bounds)


def _unpack_bounds(fields: tuple[Any, Any] | None) -> Bounds | None:
    if fields is None:
        return None
    start, end = (None if bound is None else Bound(*bound) for bound in fields)
    return start, end


def _count_bytes(change: MergedChange) -> int:
    """Return about how many bytes the values of a change take."""
    size = 0 if change.event is None else len(change.event.value or b"")
    if isinstance(change, RowChange):
        for row in (change.before, change.after):
            if row is not None:
                size += sum([len(value) for value in row.values() if value is not None])
    return size
