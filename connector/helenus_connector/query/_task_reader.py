"""What a task reads: its parts of the events topics, as much as it may hold in memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.log.choice import read
from helenus_connector.log.events import Message, OffsetRange
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.event_packs import PartitionNote
from helenus_schemas.errors import HelenusError

_FIELDS_BYTES = 16
"""Of an event, in addition to its key and value; as they lie in a topic."""
_new = tuple.__new__


def read_parts(
    worker: WorkerSettings, task_ranges: TaskRanges, has_transactions: bool = False
) -> tuple[list[PartitionNote], dict[str, list[Event]]]:
    """Read one task's parts. Return notes of their partitions, and their events by topic, ordered within
    a partition. `has_transactions` is as of `choice.read`.
    """
    task_events = _TaskEvents(task_ranges, has_transactions)
    for data_loss in ("fail", "continue"):
        parts = [part for part in task_ranges.parts if part.data_loss == data_loss and part.error is None]
        ranges = [r for part in parts for r in part.ranges]
        # On Pulsar they are read one by one, and the first ones may use up the limit.
        random.shuffle(ranges)
        # Also when the first kind has used up the limit, this reads one chunk before it ends: so in each batch some
        # events of the second kind are read.
        task_events.read(worker, ranges, data_loss)
    return task_events.notes, task_events.by_topic


class _TaskEvents:
    """The events of a task, which takes no more bytes than it may hold, and the notes of their partitions."""

    def __init__(self, task_ranges: TaskRanges, has_transactions: bool) -> None:
        self._has_transactions = has_transactions
        self._remaining_bytes = task_ranges.most_bytes
        self._epochs = {(r.topic, r.partition): part.epoch for part in task_ranges.parts for r in part.ranges}
        self.by_topic: dict[str, list[Event]] = {topic: [] for topic, _ in self._epochs}
        self.notes: list[PartitionNote] = []
        for part in task_ranges.parts:
            for r in part.ranges:
                self._note(r, error=part.error, read=part.read.get(r.partition, 0))
        for part in task_ranges.parts:
            if part.lost:
                self._note(part.ranges[0], lost=part.lost)

    def read(self, worker: WorkerSettings, ranges: Sequence[OffsetRange], data_loss: str) -> None:
        """Read ranges, until the task holds as many bytes as it may. What is left of them is held, and read next."""
        next_offsets = {(r.topic, r.partition): r.start for r in ranges}
        reading = read(worker, ranges, data_loss, self._note_lost, self._note_failed, self._has_transactions)
        try:
            with closing(reading) as chunks:
                for chunk in chunks:
                    events, size = events_of(chunk)
                    self.by_topic[events[0].topic] += events
                    next_offsets[events[0].topic, events[0].partition] = events[-1].offset + 1
                    self._remaining_bytes -= size
                    if self._remaining_bytes <= 0:
                        break
                else:
                    return
        except HelenusError as error:  # of the client, on this host
            for offset_range in ranges:
                self._note_failed(offset_range, error)
            return
        failed_partitions = {(note.topic, note.partition) for note in self.notes if note.error}
        for offset_range in ranges:
            topic_partition = offset_range.topic, offset_range.partition
            if next_offsets[topic_partition] < offset_range.end and topic_partition not in failed_partitions:
                self._note(offset_range, end=next_offsets[topic_partition])

    def _note_lost(self, offset_range: OffsetRange, count: int) -> None:
        if count:
            self._note(offset_range, lost=count)

    def _note_failed(self, offset_range: OffsetRange, error: HelenusError) -> None:
        self._note(offset_range, error=error)

    def _note(self, offset_range: OffsetRange, **fields: Any) -> None:
        topic, partition = offset_range.topic, offset_range.partition
        epoch = self._epochs[topic, partition]
        planned = PartitionNote(topic, partition, offset_range.start, epoch, planned_end=offset_range.end)
        self.notes.append(replace(planned, **fields))


def events_of(chunk: Sequence[Message]) -> tuple[list[Event], int]:
    """Return the events in messages of one partition, at least one, and about how many bytes they have."""
    first = chunk[0]
    # A field of all of them after the other takes less than each one's fields.
    keys, values = [m.key() for m in chunk], [m.value() for m in chunk]
    offsets, times = [m.offset() for m in chunk], [m.timestamp()[1] for m in chunk]
    fields = zip(repeat(first.topic()), repeat(first.partition()), offsets, times, keys, values, strict=False)
    events = list(map(_new, repeat(Event), fields))  # by its own constructor a named tuple takes twice as long
    return events, _FIELDS_BYTES * len(events) + sum(map(len, filter(None, chain(keys, values))))
