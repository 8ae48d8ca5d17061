"""The changes of one topic that wait at the gate, and when each of them is due.

    a change comes, gate.timeout.ms=600000    counted again after 10 s, 20 s, 40 s …; its time is over after 600 s
    more than half of what may wait is there  the oldest are verified early

How long a change waits goes by a clock of its topic, which runs while the topic is read up to date, or as fast as
that goes on: a worker that was down, or lags, has not read what other nodes reported meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event, Nodes, WaitingChange
from helenus_connector.interfaces.gate import GateState, GateWaits

WEIGHT = 800
"""Bytes of the driver's memory that a waiting change takes in addition to those of its event's key and value."""
_RETRY_S = 10.0  # after which one that is overdue is handed out again, if it could not be read, say
_MAX_STEP_S = 60.0  # at most, for which the clock runs between two batches
_EARLY_RETRY_S = 60.0  # after which one that was handed out early may be so again
_RECOUNT_S = 10.0
"""The reports of a change are counted again when it has waited for so long, then for twice, four times … as long: other
nodes may be its replicas by then, and no further report may come. A ring that became known late delays a change by the
same time again at most, and a change is counted seven times in the default ten minutes.
"""
_MIN_CLEANUP = 1000
_MAX_EARLY = 5000  # in a batch
_CROWDED_SHARE = 0.5  # of what may wait; above it, the oldest are verified early


def weight(event: Event) -> int:
    """Return the bytes of the driver's memory that a waiting change takes."""
    return WEIGHT + len(event.key or b"") + len(event.value or b"")


@dataclass(frozen=True, slots=True)
class WaitingLimits:
    """Of one topic: for how long its changes wait, how many bytes of them, and whether they may be verified early.

    A restart steps back `replay_s` in it. So many `tasks` read it at once. At level one (`is_one`) nothing waits.
    """

    timeout_s: float
    bytes: int
    verifies: bool
    replay_s: float
    tasks: int = 1
    is_one: bool = False

    @staticmethod
    def from_settings(settings: ConnectorSettings) -> WaitingLimits:
        """Those of a table."""
        is_one = settings.gate == "one"
        return WaitingLimits(
            0.0 if is_one else settings.gate_timeout_ms / 1000,
            settings.gate_max_waiting_bytes,
            settings.gate_expired == "verify" and not is_one,
            settings.settle_replay_ms / 1000,
            settings.tasks_max,
            is_one,
        )


class Schedule:
    """Changes, each at a time of the topic's clock. One that waits no longer stays until its time has come."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, WaitingChange]] = []
        self._numbers = itertools.count()  # of two changes at one time, the first that was added is the first

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, time_s: float, waiting: WaitingChange) -> None:
        heapq.heappush(self._entries, (time_s, next(self._numbers), waiting))

    def first_time(self, waits: TopicWaits) -> float | None:
        """Return the first time at which a change is due that still waits."""
        while self._entries and not waits.has(self._entries[0][2]):
            heapq.heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def pop_due(self, clock: float, delay_s: float = 0.0) -> WaitingChange | None:
        """Take out the first change whose time was `delay_s` ago, or earlier; None if there is none."""
        if not self._entries or self._entries[0][0] + delay_s > clock:
            return None
        return heapq.heappop(self._entries)[2]

    def forget_gone(self, waits: TopicWaits) -> None:
        """Let go of changes that wait no longer."""
        self._entries = [entry for entry in self._entries if waits.has(entry[2])]
        heapq.heapify(self._entries)


class TopicWaits:
    """The waiting changes of one topic. `reports` has what is handed out of each, by partition and change id.

    `clock` is the topic's, in s; `saved_clock` is that at which the changes were stored last.
    """

    def __init__(self) -> None:
        self.clock = self.saved_clock = 0.0
        self.total_bytes = self.copies = 0
        self._read_until: float | None = None
        self._read_at: float | None = None
        self._changes: dict[int, dict[bytes, WaitingChange]] = {}
        self._reports: dict[int, dict[bytes, tuple[Nodes, int]]] = {}
        self._shared_reports: dict[tuple[Nodes, int], tuple[Nodes, int]] = {}
        # By the time at which a change came, or one that much later at which it is handed out once more:
        self._timeouts = Schedule()
        # By the time from which on it may be verified early:
        self._early = Schedule()
        # By the time at which its reports are counted again:
        self._recounts = Schedule()
        # Those that were handed out to a batch that lacked their partition:
        self._handed_back: list[WaitingChange] = []

    def __len__(self) -> int:
        return sum(map(len, self._changes.values()))

    def __iter__(self) -> Iterator[WaitingChange]:
        return (waiting for changes in self._changes.values() for waiting in changes.values())

    def has(self, waiting: WaitingChange) -> bool:
        """Return whether a change, this very object, waits."""
        return self._changes.get(waiting.event.partition, {}).get(waiting.id) is waiting

    def oldest_age(self) -> float:
        """Return for how long the oldest change waits, s. At least one does."""
        return self.clock - min(next(iter(changes.values())).since for changes in self._changes.values() if changes)

    def is_crowded(self, limits: WaitingLimits) -> bool:
        """Return whether so many changes wait that the oldest are verified early."""
        return limits.verifies and self.total_bytes > limits.bytes * _CROWDED_SHARE

    def run_clock(self, now: float, read_until: float) -> None:
        """Let the clock run on: the topic was read up to events of `read_until`, s since the epoch, when the driver's
        own clock was `now`.
        """
        if self._read_at is not None and self._read_until is not None:
            self.clock += max(0.0, min(now - self._read_at, read_until - self._read_until, _MAX_STEP_S))
        self._read_at, self._read_until = now, read_until

    def seconds_to_next(self, limits: WaitingLimits) -> float | None:
        """Return in how many seconds a change is handed out, not above 0 if one is due; None if none will be."""
        times = [self._recounts.first_time(self)]
        if any(map(self.has, self._handed_back)):
            times.append(self.clock)
        if (timeout := self._timeouts.first_time(self)) is not None:
            times.append(timeout + limits.timeout_s)
        if self.is_crowded(limits):
            times.append(self._early.first_time(self))
        return min((time - self.clock for time in times if time is not None), default=None)

    def hand_out(self, limits: WaitingLimits, limit: int) -> GateWaits:
        """Return what a batch is given of these changes, with at most `limit` overdue ones. They stay until `apply`."""
        overdue: dict[int, WaitingChange] = {}
        self._take_handed_back(overdue, limit)
        self._take_timed_out(overdue, limits.timeout_s, limit)
        self._take_early(overdue, limits, min(limit, len(overdue) + _MAX_EARLY))
        self._take_recounts(overdue, limit)
        reports = {partition: changes for partition, changes in self._reports.items() if changes}
        free_bytes = max(0, limits.bytes - self.total_bytes) / limits.tasks
        return GateWaits(reports, list(overdue.values()), free_bytes)

    def hand_back(self, changes: Iterable[WaitingChange]) -> None:
        """Have overdue changes, as `hand_out` returned them, handed out again by the next call."""
        self._handed_back += changes

    def _take_handed_back(self, overdue: dict[int, WaitingChange], limit: int) -> None:
        # They stay what they were, timed out, early or to be counted; their schedules have their next time already.
        changes, self._handed_back = self._handed_back[:limit], self._handed_back[limit:]
        overdue.update((id(waiting), waiting) for waiting in changes if self.has(waiting))

    def _take_timed_out(self, overdue: dict[int, WaitingChange], timeout_s: float, limit: int) -> None:
        while len(overdue) < limit and (waiting := self._timeouts.pop_due(self.clock, timeout_s)) is not None:
            if self.has(waiting) and id(waiting) not in overdue:
                waiting.is_early = waiting.is_recount = False
                overdue[id(waiting)] = waiting
                self._timeouts.add(self.clock + _RETRY_S - timeout_s, waiting)

    def _take_early(self, overdue: dict[int, WaitingChange], limits: WaitingLimits, limit: int) -> None:
        if not self.is_crowded(limits):
            return
        while len(overdue) < limit and (waiting := self._early.pop_due(self.clock)) is not None:
            if self.has(waiting) and id(waiting) not in overdue:
                waiting.is_early, waiting.is_recount = True, False
                overdue[id(waiting)] = waiting
                self._early.add(self.clock + _EARLY_RETRY_S, waiting)

    def _take_recounts(self, overdue: dict[int, WaitingChange], limit: int) -> None:
        while len(overdue) < limit and (waiting := self._recounts.pop_due(self.clock)) is not None:
            if not self.has(waiting):
                continue
            self._recounts.add(self.clock + max(_RECOUNT_S, self.clock - waiting.since), waiting)
            if id(waiting) not in overdue:
                waiting.is_early, waiting.is_recount = False, True
                overdue[id(waiting)] = waiting

    def apply(self, topic: str, state: GateState) -> None:
        """Take over what a batch left at the gate."""
        for partition, node in state.truncated:
            for waiting in self._changes.get(partition, {}).values():
                if node in waiting.nodes:
                    nodes = tuple(reporter for reporter in waiting.nodes if reporter != node)
                    self._report(waiting, nodes, waiting.copies)
        for partition, change in state.gone:
            self._remove(partition, change)
        for waiting in state.waits:
            present = self._changes.get(waiting.event.partition, {}).get(waiting.id)
            if present is not None:
                self._report(present, waiting.nodes, waiting.copies)
                continue
            waiting.event = waiting.event._replace(topic=topic)  # one text for all of them
            waiting.is_early = waiting.is_recount = False
            self.add(waiting, 0.0)
        self._forget_gone()

    def add(self, waiting: WaitingChange, age_s: float) -> None:
        """Add a change that has waited for some seconds."""
        waiting.since = self.clock - age_s
        self._remove(waiting.event.partition, waiting.id)
        self._changes.setdefault(waiting.event.partition, {})[waiting.id] = waiting
        self.total_bytes += weight(waiting.event)
        self.copies += waiting.copies
        self._report(waiting, waiting.nodes, waiting.copies)
        self._timeouts.add(waiting.since, waiting)
        self._early.add(waiting.since, waiting)
        self._recounts.add(self.clock + _RECOUNT_S, waiting)

    def _report(self, waiting: WaitingChange, nodes: Nodes, copies: int) -> None:
        """Note who reported a change, by one object for all that the same nodes reported: that is soon handed out."""
        self.copies += copies - waiting.copies
        reported = self._shared_reports.get((nodes, copies))
        if reported is None:
            # Of hundreds of nodes each may be in very many: then each text is there once, and handed out once.
            reported = tuple(map(sys.intern, nodes)), copies
            self._shared_reports[reported] = reported
        waiting.nodes, waiting.copies = reported
        self._reports.setdefault(waiting.event.partition, {})[waiting.id] = reported

    def _remove(self, partition: int, change: bytes) -> None:
        removed = self._changes.get(partition, {}).pop(change, None)
        if removed is not None:
            del self._reports[partition][change]
            self.total_bytes -= weight(removed.event)
            self.copies -= removed.copies

    def _forget_gone(self) -> None:
        """Let go of changes that wait no longer, when they are many."""
        limit = 2 * len(self) + _MIN_CLEANUP
        if len(self._shared_reports) > limit:
            self._shared_reports.clear()
        for schedule in (self._timeouts, self._early, self._recounts):
            if len(schedule) > limit:
                schedule.forget_gone(self)
