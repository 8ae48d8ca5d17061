"""Merged changes as bytes, on their way from the operator to the task that publishes them.

Spark passes them from one process to another within a batch. They are never stored, so this layout can change. A pack
is what marshal makes of a list of tuples, each of which begins with the name of its kind: one of `RowChange`s of rows
that follow one another has a list of each field, as that takes half of the time; any other is of one change.

It runs as it is, and compiled by Cython with the types of `_change_pack.pxd`: the results are the same.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_connector.interfaces.merged_change import GapEvent, MergedChange, PoisonEvent, ReadRequest, RowChange
from helenus_schemas.event.change import Bound, Scope

COMPILED = not __file__.endswith(".py")
_MAX_CHANGES = 2000
"""A pack is a data frame of its own on its way to Spark: a cost that hundreds of small changes share."""
_MAX_BYTES = 1 << 20
"""A pack is one value of Spark's, and as a whole in the memory of each process on its way."""
_WITHOUT_REFERENCES = 2
"""A version of marshal's: later ones look each object up, as it may come again."""
_SCOPES = {int(scope): scope for scope in Scope}
_ROW = Scope.ROW
_new = tuple.__new__
_RowChange, _Event = RowChange, Event


class _RowRun:
    """Changes of rows that follow one another, of one topic partition and with the same columns: a list of each field.
    In `keys` None stands for the key of the event.
    """

    def __init__(self, topic: str, partition: int, names: tuple[str, ...]) -> None:
        self.topic, self.partition, self.names = topic, partition, names
        self.keys: list[bytes | None] = []
        self.ops: list[str] = []
        self.befores: list[tuple[bytes | None, ...] | None] = []
        self.afters: list[tuple[bytes | None, ...] | None] = []
        self.write_times: list[int | None] = []
        self.expiries: list[int | None] = []
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.event_keys: list[bytes | None] = []
        self.values: list[bytes | None] = []

    def add(self, change: RowChange) -> int:
        """Add a change, if it is one of these. Return about how many bytes it takes, -1 if it is none."""
        partition, key, scope, op, before, after, write_time, expires, event, bounds = change
        if scope is not _ROW or bounds is not None or event is None or partition != self.partition:
            return -1
        topic, event_partition, offset, timestamp, event_key, value = event
        if event_partition != partition or topic != self.topic:
            return -1
        row = before if after is None else after
        if row is None or type(row) is not dict or tuple(row) != self.names:
            return -1
        if before is not None and before is not row and (type(before) is not dict or tuple(before) != self.names):
            return -1
        size = len(key) + (0 if value is None else len(value))
        before_values = None if before is None else tuple(before.values())
        after_values = None if after is None else tuple(after.values())
        self.keys.append(None if key == event_key else key)
        self.ops.append(op)
        self.befores.append(before_values)
        self.afters.append(after_values)
        self.write_times.append(write_time)
        self.expiries.append(expires)
        self.offsets.append(offset)
        self.timestamps.append(timestamp)
        self.event_keys.append(event_key)
        self.values.append(value)
        return size + _count_values(before_values) + _count_values(after_values)

    def fields(self) -> tuple[object, ...]:
        """Return the fields that are packed, after the name of this kind."""
        row = self.keys, self.ops, self.befores, self.afters, self.write_times, self.expiries
        event = self.offsets, self.timestamps, self.event_keys, self.values
        return "rows", self.topic, self.partition, self.names, *row, *event


class _Packer:
    """Collects the changes of one pack."""

    def __init__(self) -> None:
        self.parts: list[tuple[object, ...]] = []
        self.run: _RowRun | None = None
        self.count = self.size = 0

    def add(self, change: MergedChange) -> bool:
        """Add a change. Return whether the pack is full."""
        self.count += 1
        if isinstance(change, RowChange) and change.event is not None:
            run = self.run
            size = -1 if run is None else run.add(change)
            if size < 0:
                row = change.before if change.after is None else change.after
                run = _RowRun(change.event.topic, change.partition, () if row is None else tuple(row))
                size = run.add(change)
                if size >= 0:
                    self.end_run()
                    self.run = run
            if size >= 0:
                self.size += size
                return self.count >= _MAX_CHANGES or self.size >= _MAX_BYTES
        self.end_run()
        self.parts.append(_pack_change(change))
        self.size += _count_bytes(change)
        return self.count >= _MAX_CHANGES or self.size >= _MAX_BYTES

    def end_run(self) -> None:
        """Let the next row begin another run."""
        if self.run is not None:
            self.parts.append(self.run.fields())
            self.run = None

    def dumps(self) -> bytes:
        """Return the bytes of the pack."""
        self.end_run()
        return marshal.dumps(self.parts, _WITHOUT_REFERENCES)


def pack_changes(changes: Iterable[MergedChange]) -> Iterator[bytes]:
    """Pack changes into pieces of bytes, which `unpack_changes` takes."""
    packer = _Packer()
    for change in changes:
        if packer.add(change):
            yield packer.dumps()
            packer = _Packer()
    if packer.count:
        yield packer.dumps()


def unpack_changes(pack: bytes) -> list[MergedChange]:
    """Unpack changes that a process of this run packed."""
    changes: list[MergedChange] = []
    for fields in marshal.loads(pack):
        if fields[0] == "rows":
            _unpack_run(fields, changes)
        else:
            changes.append(_unpack_change(fields))
    return changes


def _unpack_run(fields: tuple[Any, ...], changes: list[MergedChange]) -> None:
    """Append the changes of a `_RowRun` to these."""
    _, topic, partition, names, keys, ops, befores, afters, write_times, expiries, *event_fields = fields
    offsets, timestamps, event_keys, values = event_fields
    for index in range(len(keys)):
        event_key, key = event_keys[index], keys[index]
        event = _new(_Event, (topic, partition, offsets[index], timestamps[index], event_key, values[index]))
        rows = _to_row(names, befores[index]), _to_row(names, afters[index])
        head = partition, event_key if key is None else key, _ROW, ops[index]
        changes.append(_new(_RowChange, (*head, *rows, write_times[index], expiries[index], event, None)))


def _to_row(names: tuple[str, ...], values: tuple[bytes | None, ...] | None) -> dict[str, bytes | None] | None:
    """Return a row of these values by name."""
    if values is None:
        return None
    row: dict[str, bytes | None] = {}
    for index in range(len(names)):
        row[names[index]] = values[index]
    return row


def _count_values(values: tuple[bytes | None, ...] | None) -> int:
    """Return how many bytes values take."""
    size = 0
    if values is not None:
        for value in values:
            if value is not None:
                size += len(value)
    return size


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
    """Return about how many bytes a change takes."""
    size = 0 if change.event is None else len(change.event.key or b"") + len(change.event.value or b"")
    if isinstance(change, RowChange):
        for row in (change.before, change.after):
            if row is not None:
                size += sum([len(value) for value in row.values() if value is not None])
    return size
