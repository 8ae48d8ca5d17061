"""What goes from the source's workers to the stage: events, many to a row of Spark's, and notes of their partitions."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from helenus_connector.interfaces.gate import Event
from helenus_connector.log.events import Message
from helenus_schemas.errors import HelenusError

_SCHEMA = pa.schema([("notes", pa.binary()), ("events", pa.binary())])
_PLACED = pa.schema([("place", pa.int32()), ("turn", pa.int32()), ("notes", pa.binary()), ("events", pa.binary())])
_PACK_EVENTS = 1_000
_PACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Note:
    """What a task must know of a partition, in addition to its records.

    In this batch only this task reads the partition: from `start` on, as planned in `epoch` of its topic. `lost` counts
    events that the topic no longer has, `error` is why it cannot be read. With an `end` it was read only up to, not
    including, that offset: more would have been too many bytes. Up to `read` an earlier run has read it. `now` is the
    batch's time, s since the epoch, the same if the batch is repeated; only for an operator with state.
    """

    topic: str
    partition: int
    start: int
    epoch: int
    lost: int = 0
    error: HelenusError | None = None
    end: int | None = None
    now: float = 0.0
    read: int = 0


def packed(messages: Sequence[Message]) -> Iterator[bytes]:
    """Messages as the fields of `Event`s, many in one piece of bytes: what `unpacked` takes."""
    pack: list[tuple[object, ...]] = []
    size = 0
    for m in messages:
        pack.append((m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value()))
        size += size_of(m)
        if len(pack) == _PACK_EVENTS or size >= _PACK_BYTES:
            yield marshal.dumps(pack)
            pack, size = [], 0
    if pack:
        yield marshal.dumps(pack)


def size_of(message: Message) -> int:
    """Its bytes."""
    return len(message.key() or b"") + len(message.value() or b"")


def unpacked(events: bytes) -> Iterator[Event]:
    """The events in a piece that a process of this run packed."""
    return map(Event._make, marshal.loads(events))


def row(notes: bytes | None = None, events: bytes | None = None) -> pa.RecordBatch:
    """One row of `COLUMNS`."""
    return pa.RecordBatch.from_arrays([pa.array([field], pa.binary()) for field in (notes, events)], schema=_SCHEMA)


def placed_row(place: int, turn: int, notes: bytes | None = None, events: bytes | None = None) -> pa.RecordBatch:
    """One row of `PLACED`: the `turn`-th of a partition, from 0, since a shuffle need not keep their order."""
    fields = zip((place, turn, notes, events), _PLACED.types, strict=True)
    return pa.RecordBatch.from_arrays([pa.array([field], kind) for field, kind in fields], schema=_PLACED)
