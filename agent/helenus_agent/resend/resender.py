"""Archived segments, sent once more: their changes go to the events topics as the agent would send them.

They go without cells. What is archived is old: a connector has to read the row as it is now, and must not show, or
merge, what was replaced since, deleted or truncated. So records never go back in time.

Nothing is remembered: neither positions nor the archive change, and a second run sends the same again. An agent may run
meanwhile. A connector that still remembers a change takes it for a duplicate.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from helenus_agent.commitlog.decoder import decode
from helenus_agent.commitlog.segment import Segment
from helenus_agent.commitlog.segment_header import Corrupt
from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.commitlog.segment_source import SegmentSource
from helenus_agent.config import AgentSettings
from helenus_agent.delivery.outbox import Outbox
from helenus_agent.node.cassandra import Schema
from helenus_agent.node.tables import KnownTables
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Log

_PIECE = 1 << 20  # bytes of log that are decoded at once
_EVENTS = 4096  # events at which a piece ends early
_UNACKNOWLEDGED = 10_000  # events after which the broker is waited for: half of what a producer's queue takes
_FLUSH_S = 60.0  # s for the broker to acknowledge them
_TORN_S = 0.2  # s between two looks at a marker that seems half written


@dataclass
class ResentSegment:
    """What became of a segment: events that the broker has acknowledged, reasons why changes are not among them, by
    number, and what could not be read, each with its position.
    """

    path: Path
    events: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def choose_segments(paths: Sequence[Path], names: Collection[str] = ()) -> list[Path]:
    """Return the segments of these ids or file names, all if there are none, the oldest first.

    Raises HelenusError(CONFIG) for a name that none has, and for two segments of one id.
    """
    by_id: dict[int, Path] = {}
    for path in paths:
        _, number = parse_name(path.name) or (0, 0)
        if by_id.setdefault(number, path) != path:
            message = f"two segments have the id {number}: {by_id[number]} and {path}"
            raise HelenusError(Kind.CONFIG, message, advice="keep the segments of one node in one folder")
    wanted = {name: Path(name).name.removesuffix(".log").rpartition("-")[2] for name in names}
    if unknown := [name for name, number in wanted.items() if not number.isdecimal() or int(number) not in by_id]:
        message = f"not in segment.source: {', '.join(unknown)}; there are {len(by_id)} segments"
        raise HelenusError(Kind.CONFIG, message, advice="name segments that are there, or none for all")
    return [by_id[number] for number in sorted({int(n) for n in wanted.values()} if names else by_id)]


class Resender:
    """Sends segments of a node, by the tables that its `schema` has and those that an agent `saved`, which may be
    dropped by now. Only tables with CDC are sent. Opens their topics. Raises HelenusError.
    """

    def __init__(
        self, settings: AgentSettings, schema: Schema, saved: Iterable[Table], host_id: uuid.UUID, log: Log
    ) -> None:
        # A dropped table's definition is there to step over its changes: no topic is made for it again.
        history = [replace(table, cdc=False) for table in saved if table.id not in schema.tables]
        self._tables = KnownTables(settings.table_include_list, settings.table_exclude_list, history=history)
        self._tables.update(schema.tables, schema.views, 0)
        self._host_id = str(host_id)
        self._outbox = Outbox(log, settings)
        refused = self._outbox.open((self._tables.index(table.id), table) for table in self._tables.followed_now)
        for _, error in refused:
            raise error

    @property
    def table_names(self) -> list[str]:
        """Return the names of the tables whose changes are sent."""
        return [table.full_name for table in self._tables.followed_now]

    def resend(self, source: SegmentSource, paths: Iterable[Path]) -> Iterator[ResentSegment]:
        """Send these segments; yield each when all of it is acknowledged."""
        for path in paths:
            segment = Segment(path, source=source)
            segment.complete = True
            resent = ResentSegment(path)
            try:
                self._send(segment, resent)
                self._flush()
            finally:
                segment.close()
            yield resent

    def _send(self, segment: Segment, resent: ResentSegment) -> None:
        while True:
            try:
                if not segment.look():
                    if segment.is_stable:
                        return
                    time.sleep(_TORN_S)
                while segment.unread:
                    self._send_piece(segment, resent, _PIECE)
            except Corrupt as error:
                resent.problems.append(f"{segment.position}: {error}")
                if segment.unread:
                    segment.skip()

    def _send_piece(self, segment: Segment, resent: ResentSegment, max_bytes: int) -> None:
        data, base, final = segment.read(max_bytes)
        padded = segment.padded
        batch = decode(
            data, base, final, self._tables.plans, self._host_id, segment.id, segment.version, _EVENTS, padded=padded
        )
        too_large = self._outbox.append(batch)
        resent.events += len(batch.changes) - len(too_large)
        resent.skipped.update(batch.skipped)
        resent.skipped["record_too_large"] += len(too_large)
        resent.problems += [f"{position}: {problem}" for position, problem in batch.problems]
        if batch.broken:
            segment.skip()
            return
        segment.advance(base + batch.next)
        if batch.unknown is not None:
            # Neither the node nor the agent knows it any more: it is stepped over as far as that can be done.
            self._tables.give_up(batch.unknown)
        elif not batch.next:
            self._send_piece(segment, resent, max_bytes * 2)  # an entry larger than the piece
        if sum(self._outbox.waiting.values()) >= _UNACKNOWLEDGED:
            self._flush()

    def _flush(self) -> None:
        self._outbox.flush(_FLUSH_S)
        self._outbox.confirm_all(self._tables.followed)
