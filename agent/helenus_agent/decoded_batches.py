"""What becomes of a decoded batch beside its events: counts, and reports of what could not be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from helenus_agent import metrics
from helenus_agent.commitlog.decoder import DecodedBatch, TablePlan, decode
from helenus_agent.commitlog.segment import Segment
from helenus_agent.positions import Positions
from helenus_agent.segments import gaps
from helenus_schemas.errors import HelenusError, Kind

if TYPE_CHECKING:
    from helenus_agent.node.tables import KnownTables


def count_batch(positions: Positions, tables: KnownTables, segment: Segment, batch: DecodedBatch) -> None:
    """Count a batch's mutations, and report what of it was skipped or is damaged."""
    metrics.MUTATIONS.inc(batch.mutations)
    for reason, count in Counter(batch.skipped).items():
        metrics.SKIPPED.labels(reason).inc(count)
    for table in tables.followed_now if "malformed_key" in batch.skipped else ():
        plan = tables.plans[table.id.bytes]
        if plan.malformed:
            gaps.report_malformed(positions, table, plan.malformed, segment.id)
            plan.malformed = 0
    for position, problem in batch.problems:
        breaks_section = batch.broken and (position, problem) == batch.problems[-1]
        gaps.report_corrupt(segment, position, problem, segment.unread[0].end - position if breaks_section else 0)


def unmarked_batches(
    positions: Positions, plans: dict[bytes, TablePlan], segments: Iterable[Segment], max_events: int
) -> Iterator[tuple[Segment, DecodedBatch]]:
    """Yield what may have been sent of segments and is no part of them: their node crashed before a marker came, and
    did not replay it. Report it when all of a segment is appended. Raises HelenusError.
    """
    for segment in segments:
        try:
            data, base, read_bytes = segment.read_unmarked()
        except OSError as error:
            raise HelenusError(Kind.CDC_DIRECTORY, f"cannot read: {error.strerror}", str(segment.path)) from None
        node, start, size = positions.host_id, 0, max(read_bytes, len(data))
        while start < len(data):
            unread = data[start:]
            batch = decode(unread, base + start, False, plans, node, segment.id, segment.version, max_events, True)
            yield segment, batch
            start += batch.next
            if not batch.next:
                break
        if size:
            gaps.report_taken_back(positions, segment.id, start, size - start)
