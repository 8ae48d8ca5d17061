"""How much a batch reads of every topic, and which task reads which part."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from helenus_connector.log.events import OffsetRange, Offsets, Planner
from helenus_connector.query.batch_parts import TopicRanges
from helenus_schemas.errors import HelenusError


def limited(
    start: Offsets, latest: Offsets, limit: ReadLimit, planner: Planner, errors: dict[str, HelenusError]
) -> Offsets:
    """Return where a batch from `start` ends: at `latest`, or earlier, so that it reads about as many rows as the limit
    says.

    Partitions get equal shares of the limit; shares that are not needed go to the others: a long backlog of one table
    does not delay the next. Each gets at least one row. No offset is before `start`. A topic whose events cannot be
    counted stays where it is, and its error is added to `errors`.
    """
    end: Offsets = dict(start)
    ranges: list[OffsetRange] = []
    for topic, latest_offsets in latest.items():
        if start.get(topic) == latest_offsets:
            continue
        # A new topic is added with all its partitions, also those without events.
        end_offsets = end[topic] = dict(start.get(topic, {}))
        for partition, range_end in latest_offsets.items():
            range_start = end_offsets.setdefault(partition, 0)
            if range_start < range_end:
                ranges.append(OffsetRange(topic, int(partition), range_start, range_end))
    sizes = {range_: planner.size(range_) for range_ in ranges}
    remaining = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
    unshared = len(ranges)
    for range_ in sorted(ranges, key=sizes.__getitem__):
        share = max(1, remaining // unshared)
        unshared -= 1
        remaining = max(0, remaining - min(share, sizes[range_]))
        range_end = range_.end
        try:
            if not isinstance(limit, ReadAllAvailable):
                range_end = planner.advance(range_, share)
        except HelenusError as error:
            errors[range_.topic] = error
            range_end = range_.start
        end[range_.topic][str(range_.partition)] = max(range_.start, range_end)
    return end


def shared_out(parts: Sequence[TopicRanges], tasks: int) -> list[list[TopicRanges]]:
    """Divide parts among at most so many tasks: the largest first, each to the task that has the fewest events."""
    if len(parts) <= tasks:
        return [[part] for part in parts]
    loads: list[tuple[int, int, list[TopicRanges]]] = [(0, i, []) for i in range(tasks)]
    for part in sorted(parts, key=lambda part: -part.events):
        events, i, assigned = min(loads, key=lambda load: load[:2])
        assigned.append(part)
        loads[i] = (events + part.events + 1, i, assigned)
    return [assigned for _, _, assigned in loads]
