"""What a task reads: its parts of the events topics, as much as it may hold in memory."""

from __future__ import annotations

import pickle
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat

import pyarrow as pa

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.interfaces.event import Event
from helenus_connector.log.choice import read
from helenus_connector.log.events import Message, OffsetRange
from helenus_connector.query._batch_limits import TaskRanges
from helenus_connector.query.event_packs import CopyFilter, PartitionNote, pack_events, placed_row
from helenus_schemas.errors import HelenusError, Kind

_FIELDS_BYTES = 16
"""Of an event, in addition to its key and value; as they lie in a topic."""
_new = tuple.__new__


def read_parts(worker: WorkerSettings, partition: TaskRanges) -> tuple[list[PartitionNote], dict[str, list[Event]]]:
    """Notes of the partitions of one task's parts, and their events by topic, in order within a partition."""
    found = [
        PartitionNote(r.topic, r.partition, r.start, p.epoch, error=p.error, read=p.read.get(r.partition, 0))
        for p in partition.parts
        for r in p.ranges
    ]
    epochs = {(note.topic, note.partition): note.epoch for note in found}
    events: dict[str, list[Event]] = {note.topic: [] for note in found}
    for part in partition.parts:
        if part.lost:
            place = part.ranges[0]
            found.append(PartitionNote(place.topic, place.partition, place.start, part.epoch, lost=part.lost))

    def lost(place: OffsetRange, count: int) -> None:
        if count:
            epoch = epochs[place.topic, place.partition]
            found.append(PartitionNote(place.topic, place.partition, place.start, epoch, lost=count))

    def failed(place: OffsetRange, error: HelenusError) -> None:
        epoch = epochs[place.topic, place.partition]
        found.append(PartitionNote(place.topic, place.partition, place.start, epoch, error=error))

    left = partition.most_bytes
    for data_loss in ("fail", "continue"):
        parts = [p for p in partition.parts if p.data_loss == data_loss and p.error is None]
        places = [r for p in parts for r in p.ranges]
        # On Pulsar they are read one by one, and the first ones may use up the limit.
        random.shuffle(places)
        at = {(r.topic, r.partition): r.start for r in places}
        try:
            # Of the second kind too, some are read in each batch.
            with closing(read(worker, places, data_loss, lost, failed)) as chunks:
                for chunk in chunks:
                    some, size = events_of(chunk)
                    events[some[0].topic] += some
                    at[some[0].topic, some[0].partition] = some[-1].offset + 1
                    left -= size
                    if left <= 0:
                        break
                else:
                    continue
        except HelenusError as error:  # of the client, on this host
            for place in places:
                failed(place, error)
            continue
        # A task can't hold more than that: the rest of these ranges is held, and read next.
        wrong = {(note.topic, note.partition) for note in found if note.error}
        for place in places:
            name = place.topic, place.partition
            if at[name] < place.end and name not in wrong:
                found.append(PartitionNote(*name, place.start, epochs[name], end=at[name]))
    return found, events


def events_of(chunk: Sequence[Message]) -> tuple[list[Event], int]:
    """The events in messages of one partition, at least one, and about how many bytes they have."""
    first = chunk[0]
    # A field of all of them after the other takes less than each one's fields.
    keys, values = [m.key() for m in chunk], [m.value() for m in chunk]
    offsets, times = [m.offset() for m in chunk], [m.timestamp()[1] for m in chunk]
    fields = zip(repeat(first.topic()), repeat(first.partition()), offsets, times, keys, values, strict=False)
    events = list(map(_new, repeat(Event), fields))  # by its own constructor a named tuple takes twice as long
    return events, _FIELDS_BYTES * len(events) + sum(map(len, filter(None, chain(keys, values))))


def read_places(plan: QueryPlan, partition: TaskRanges) -> Iterator[pa.RecordBatch]:
    """For an operator with state: rows of `PLACED`, of each partition a note of it before its events.

    All of its ranges are read, whatever their bytes: a batch that is repeated must have the same events.
    """
    turns = Counter[int]()

    def placed(place: int, **fields: bytes) -> pa.RecordBatch:
        turns[place] += 1
        return placed_row(plan.places[place], turns[place] - 1, **fields)

    places: list[OffsetRange] = []
    about: dict[int, PartitionNote] = {}
    for part in partition.parts:
        for r in part.ranges:
            about[r.partition] = PartitionNote(
                r.topic, r.partition, r.start, part.epoch, error=part.error, now=partition.now
            )
            places += [r] if part.error is None else []
        if part.lost:
            first = part.ranges[0].partition
            about[first] = replace(about[first], lost=part.lost)
    for number, note in about.items():
        if number >= len(plan.places):
            what = f"the events topic has a partition {number}, and had {len(plan.places)} when the state began"
            note = replace(note, error=HelenusError(Kind.STATE, what, note.topic))
            yield placed_row(plan.places[0], 0, notes=pickle.dumps([note]))
            return
        yield placed(number, notes=pickle.dumps([note]))
    found: list[PartitionNote] = []

    def lost(place: OffsetRange, events: int) -> None:
        if events:
            found.append(replace(about[place.partition], lost=events))

    def failed(place: OffsetRange, error: HelenusError) -> None:
        found.append(replace(about[place.partition], error=error))

    random.shuffle(places)
    copies = defaultdict[int, CopyFilter](CopyFilter)
    try:
        with closing(read(plan.worker, places, partition.parts[0].data_loss, lost, failed)) as chunks:
            for chunk in chunks:
                at = chunk[0].partition()
                for events in pack_events(copies[at].left_out(chunk)):
                    yield placed(at, events=events)
    except HelenusError as error:  # of the client, on this host
        for place in places:
            failed(place, error)
    found += [replace(about[at], copies=of.found) for at, of in copies.items() if of.found]
    for note in found:
        yield placed(note.partition, notes=pickle.dumps([note]))
