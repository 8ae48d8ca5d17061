"""How much a batch takes of every topic, and which task reads what of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from helenus_connector.log.events import OffsetRange, Offsets, Planner
from helenus_schemas.errors import HelenusError


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """What a task reads of one connector's topic: ranges, all planned in `epoch`; `error` if they cannot be read.

    `events` is about how many events they have, `lost` how many are known to be gone before they were read. Up to the
    offsets in `read`, by partition, an earlier run has read them.
    """

    ranges: tuple[OffsetRange, ...]
    data_loss: str
    epoch: int
    error: HelenusError | None = None
    events: int = 0
    lost: int = 0
    read: Mapping[int, int] = field(default_factory=dict)


class TaskRanges(InputPartition):
    """The work of one task, which reads at most about so many bytes of it. `now` is the batch's time."""

    def __init__(self, parts: Sequence[TopicRanges], most_bytes: int, now: float = 0.0) -> None:
        self.parts = tuple(parts)
        self.most_bytes = most_bytes
        self.now = now


def limited(
    start: Offsets, latest: Offsets, limit: ReadLimit, broker: Planner, wrong: dict[str, HelenusError]
) -> Offsets:
    """Where a batch from `start` ends: at `latest`, or before it so that about the limit's rows are read at most.

    Partitions get equal shares of the limit; shares that are not needed go to the others: a long backlog of one table
    does not delay the next. Each gets at least one row. No offset is before `start`. A topic whose events cannot be
    counted stays where it is, and is put among those that are `wrong`.
    """
    end: Offsets = dict(start)
    places: list[OffsetRange] = []
    for topic, ends in latest.items():
        if start.get(topic) == ends:
            continue
        # A new topic is added with all its partitions, also those without events.
        at = end[topic] = dict(start.get(topic, {}))
        for p, last in ends.items():
            first = at.setdefault(p, 0)
            if first < last:
                places.append(OffsetRange(topic, int(p), first, last))
    sizes = {place: broker.size(place) for place in places}
    left = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
    waiting = len(places)
    for place in sorted(places, key=sizes.__getitem__):
        share = max(1, left // waiting)
        waiting -= 1
        left = max(0, left - min(share, sizes[place]))
        last = place.end
        try:
            if not isinstance(limit, ReadAllAvailable):
                last = broker.advance(place, share)
        except HelenusError as error:
            wrong[place.topic] = error
            last = place.start
        end[place.topic][str(place.partition)] = max(place.start, last)
    return end


def shared_out(parts: Sequence[TopicRanges], tasks: int) -> list[list[TopicRanges]]:
    """Parts for at most so many tasks, the large ones first, to the task that has the least."""
    if len(parts) <= tasks:
        return [[part] for part in parts]
    loads: list[tuple[int, int, list[TopicRanges]]] = [(0, i, []) for i in range(tasks)]
    for part in sorted(parts, key=lambda p: -p.events):
        events, i, held = min(loads, key=lambda load: load[:2])
        held.append(part)
        loads[i] = (events + part.events + 1, i, held)
    return [held for _, _, held in loads]
