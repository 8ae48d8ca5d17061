"""What a task reads for an operator with state: all of its ranges, as rows."""

from __future__ import annotations

import pickle
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from helenus_connector.control.plan import QueryPlan
from helenus_connector.log.choice import read
from helenus_connector.log.events import OffsetRange
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.event_packs import CopyFilter, PartitionNote, pack_events
from helenus_schemas.errors import HelenusError, Kind

if TYPE_CHECKING:
    import pyarrow as pa


class PlacedRow(NamedTuple):
    """One row of `source.PLACED`: the `turn`-th of a place, from 0, since a shuffle need not keep their order."""

    place: int
    turn: int
    notes: bytes | None = None
    events: bytes | None = None


def read_arrow(plan: QueryPlan, task_ranges: TaskRanges) -> Iterator[pa.RecordBatch]:
    """Yield the same as `read_places`, as Arrow's rows."""
    import pyarrow as pa

    kinds = pa.int32(), pa.int32(), pa.binary(), pa.binary()
    schema = pa.schema(list(zip(PlacedRow._fields, kinds, strict=True)))
    for row in read_places(plan, task_ranges):
        columns = [pa.array([field], kind) for field, kind in zip(row, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def read_places(plan: QueryPlan, task_ranges: TaskRanges) -> Iterator[PlacedRow]:
    """Yield rows for an operator with state: of each partition a note of it, then its events.

    All of its ranges are read, whatever their bytes: a batch that is repeated must have the same events.
    """
    turns = Counter[int]()

    def numbered_row(partition_number: int, **fields: bytes) -> PlacedRow:
        turns[partition_number] += 1
        return PlacedRow(plan.places[partition_number], turns[partition_number] - 1, **fields)

    ranges: list[OffsetRange] = []
    notes: dict[int, PartitionNote] = {}
    for part in task_ranges.parts:
        for r in part.ranges:
            notes[r.partition] = PartitionNote(
                r.topic,
                r.partition,
                r.start,
                part.epoch,
                error=part.error,
                now=task_ranges.now,
                rules=task_ranges.rules,
                planned_end=r.end,
            )
            ranges += [r] if part.error is None else []
        if part.lost:
            first_partition = part.ranges[0].partition
            notes[first_partition] = replace(notes[first_partition], lost=part.lost)
    for number, note in notes.items():
        if number >= len(plan.places):
            problem = f"the events topic has a partition {number}, and had {len(plan.places)} when the state began"
            note = replace(note, error=HelenusError(Kind.STATE, problem, note.topic))
            yield PlacedRow(plan.places[0], 0, notes=pickle.dumps([note]))
            return
        yield numbered_row(number, notes=pickle.dumps([note]))
    late_notes: list[PartitionNote] = []

    def note_lost(offset_range: OffsetRange, events: int) -> None:
        if events:
            late_notes.append(replace(notes[offset_range.partition], lost=events))

    def note_failed(offset_range: OffsetRange, error: HelenusError) -> None:
        late_notes.append(replace(notes[offset_range.partition], error=error))

    random.shuffle(ranges)
    copies = defaultdict[int, CopyFilter](CopyFilter)
    try:
        data_loss, has_transactions = task_ranges.parts[0].data_loss, bool(plan.exactly_once)
        reading = read(plan.worker, ranges, data_loss, note_lost, note_failed, has_transactions)
        with closing(reading) as chunks:
            for chunk in chunks:
                number = chunk[0].partition()
                for events in pack_events(copies[number].remove_copies(chunk)):
                    yield numbered_row(number, events=events)
    except HelenusError as error:  # of the client, on this host
        for offset_range in ranges:
            note_failed(offset_range, error)
    late_notes += [
        replace(notes[number], copies=copy_filter.copies)
        for number, copy_filter in copies.items()
        if copy_filter.copies
    ]
    for note in late_notes:
        yield numbered_row(note.partition, notes=pickle.dumps([note]))
