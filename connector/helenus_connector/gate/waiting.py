"""The changes that wait at the gate, of all tables of a query: kept by the driver, given to each batch.

    a batch ends: 3 changes wait, each with the nodes that reported it → the next one, wherever it runs, has them

What waits is the driver's alone to remember: tasks run on any host, and their caches may be gone. A restart steps back
`replay_s` in the events topic, and finds again what came since; what came before is in a file.

How long a change waits goes by a clock of its topic, which runs while the topic is read up to date, or as fast as
that goes on: a worker that was down, or lags, has not read what other nodes reported meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate import _waiting_file
from helenus_connector.interfaces.event import Event, Nodes, WaitingChange
from helenus_connector.interfaces.gate import GateState, GateWaits
from helenus_schemas.service.durable import Damaged

_log = structlog.get_logger(__name__)
WEIGHT = 600
"""Bytes of the driver's memory that a waiting change takes in addition to those of its event's key and value."""
_RETRY_S = 10.0  # after which one that is overdue is handed out again, if it could not be read, say
_MAX_STEP_S = 60.0  # at most, for which the clock runs between two batches
_LAG_S = 10.0  # events that are older when they are read: the topic is not read up to date
_ADVICE = "topics are read again from their first event, as waiting changes may be anywhere in them"
_RECOUNT_S = 10.0
"""The reports of a change are counted again when it has waited for so long, then for twice, four times … as long: other
nodes may be its replicas by then, and no further report may come. A ring that became known late delays a change by the
same time again at most, and a change is counted seven times in the default ten minutes.
"""
_MIN_CLEANUP = 1000
_MAX_EARLY = 5000  # in a batch
_AGED, _AGED_S = 1 / 40, 5.0  # of its time, or s: for so long a change may have waited, and a restart not know of it
NOTHING = 0, 0, 0, 0.0
"""The `counts` of a topic of which nothing waits."""
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


@dataclass(slots=True)
class _Topic:
    """What waits of one topic: `changes` by partition and id. `clock` in s, `read_until` and `read_at` as of its last
    batch: s since the epoch, and by the driver's clock.
    """

    clock: float = 0.0
    saved: float = 0.0  # the clock when the file was written
    read_until: float | None = None
    read_at: float | None = None
    total_bytes: int = 0
    copies: int = 0
    changes: dict[int, dict[bytes, WaitingChange]] = field(default_factory=dict)
    reports: dict[int, dict[bytes, tuple[Nodes, int]]] = field(default_factory=dict)
    shared_reports: dict[tuple[Nodes, int], tuple[Nodes, int]] = field(default_factory=dict)
    by_timeout: list[tuple[float, int, WaitingChange]] = field(
        default_factory=list
    )  # by since when, as if it had come then
    early: list[tuple[float, int, WaitingChange]] = field(default_factory=list)  # by when they may be verified early
    recounts: list[tuple[float, int, WaitingChange]] = field(default_factory=list)  # by when they are counted again

    def __len__(self) -> int:
        return sum(map(len, self.changes.values()))

    def __iter__(self) -> Iterator[WaitingChange]:
        return (waiting for changes in self.changes.values() for waiting in changes.values())

    def has(self, waiting: WaitingChange) -> bool:
        return self.changes.get(waiting.event.partition, {}).get(waiting.id) is waiting

    def add(self, waiting: WaitingChange) -> None:
        self.remove(waiting.event.partition, waiting.id)
        self.changes.setdefault(waiting.event.partition, {})[waiting.id] = waiting
        self.total_bytes += weight(waiting.event)
        self.copies += waiting.copies
        self.report(waiting, waiting.nodes, waiting.copies)

    def report(self, waiting: WaitingChange, nodes: Nodes, copies: int) -> None:
        """Note who reported a change, by one object for all that the same nodes reported: that is soon handed out."""
        self.copies += copies - waiting.copies
        reported = self.shared_reports.setdefault((nodes, copies), (nodes, copies))
        waiting.nodes, waiting.copies = reported
        self.reports.setdefault(waiting.event.partition, {})[waiting.id] = reported

    def remove(self, partition: int, change: bytes) -> None:
        removed = self.changes.get(partition, {}).pop(change, None)
        if removed is not None:
            del self.reports[partition][change]
            self.total_bytes -= weight(removed.event)
            self.copies -= removed.copies

    def forget_gone(self) -> None:
        """Let go of changes that wait no longer, when they are many."""
        limit = 2 * len(self) + _MIN_CLEANUP
        if len(self.shared_reports) > limit:
            self.shared_reports.clear()
        for heap in (self.by_timeout, self.early, self.recounts):
            if len(heap) > limit:
                heap[:] = [entry for entry in heap if self.has(entry[2])]
                heapq.heapify(heap)


class WaitingChanges:
    """Its methods may be called from any thread; `clock` is one that nobody sets, in s."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.RLock()
        self._limits: Mapping[str, WaitingLimits] = {}
        self._often = 0.0
        self._topics: dict[str, _Topic] = {}
        self._numbers = itertools.count()
        self._is_old = self._has_changed = self._has_file = False
        self._saved_at = -math.inf
        self._loaded: dict[str, int] = {}

    def use(self, limits: Mapping[str, WaitingLimits]) -> None:
        """Go by these limits. The changes of a topic that has none wait until it has again."""
        with self._lock:
            self._limits = limits
            self._often = min((topic_limits.replay_s for topic_limits in limits.values()), default=0.0) / 4
            for topic, topic_limits in limits.items():  # of most, which are at level one, nothing ever waits
                if not topic_limits.is_one:
                    self._topics.setdefault(topic, _Topic())

    @property
    def topics(self) -> Collection[str]:
        """The events topics whose changes may wait."""
        with self._lock:
            return set(self._topics)

    def counts(self, topic: str) -> tuple[int, int, int, float]:
        """Return for an events topic: waiting changes, their events, their bytes, and how long the oldest waits, s."""
        with self._lock:
            topic_waits = self._topics.get(topic)
            if topic_waits is None or not len(topic_waits):
                return NOTHING
            oldest = min(next(iter(changes.values())).since for changes in topic_waits.changes.values() if changes)
            return len(topic_waits), topic_waits.copies, topic_waits.total_bytes, topic_waits.clock - oldest

    def next_due(self, now: float) -> float | None:
        """Return when the next change is handed out as overdue, s since the epoch, as `now` is."""
        with self._lock:
            waits = []
            for _, topic_waits, limits in self._limited():
                while topic_waits.by_timeout and not topic_waits.has(topic_waits.by_timeout[0][2]):
                    heapq.heappop(topic_waits.by_timeout)
                if topic_waits.by_timeout:
                    waits.append(topic_waits.by_timeout[0][0] + limits.timeout_s - topic_waits.clock)
                while topic_waits.recounts and not topic_waits.has(topic_waits.recounts[0][2]):
                    heapq.heappop(topic_waits.recounts)
                if topic_waits.recounts:
                    waits.append(topic_waits.recounts[0][0] - topic_waits.clock)
                if topic_waits.early and _is_crowded(topic_waits, limits):
                    waits.append(topic_waits.early[0][0] - topic_waits.clock)
            return now + max(0.0, min(waits)) if waits else None

    def hand_out(self, limit: int) -> dict[str, GateWaits]:
        """Return the waiting changes by topic, with at most `limit` overdue ones in all. They stay until `apply`."""
        with self._lock:
            waits = {}
            for topic, topic_waits, limits in self._limited():
                if limits.is_one and not len(topic_waits):
                    continue
                overdue = self._overdue(topic_waits, limits, limit)
                limit -= len(overdue)
                reports = {partition: changes for partition, changes in topic_waits.reports.items() if changes}
                waits[topic] = GateWaits(
                    reports, overdue, max(0, limits.bytes - topic_waits.total_bytes) / limits.tasks
                )
            return waits

    def _limited(self) -> list[tuple[str, _Topic, WaitingLimits]]:
        return [
            (topic, topic_waits, self._limits[topic])
            for topic, topic_waits in self._topics.items()
            if topic in self._limits
        ]

    def _overdue(self, topic_waits: _Topic, limits: WaitingLimits, limit: int) -> list[WaitingChange]:
        overdue: dict[int, WaitingChange] = {}
        while (
            topic_waits.by_timeout
            and topic_waits.by_timeout[0][0] + limits.timeout_s <= topic_waits.clock
            and len(overdue) < limit
        ):
            waiting = heapq.heappop(topic_waits.by_timeout)[2]
            if topic_waits.has(waiting) and id(waiting) not in overdue:
                waiting.is_early = waiting.is_recount = False
                overdue[id(waiting)] = waiting
        for waiting in overdue.values():
            heapq.heappush(
                topic_waits.by_timeout, (topic_waits.clock + _RETRY_S - limits.timeout_s, next(self._numbers), waiting)
            )
        max_early = min(limit, len(overdue) + _MAX_EARLY)
        while (
            _is_crowded(topic_waits, limits)
            and topic_waits.early
            and topic_waits.early[0][0] <= topic_waits.clock
            and len(overdue) < max_early
        ):
            waiting = heapq.heappop(topic_waits.early)[2]
            if topic_waits.has(waiting) and id(waiting) not in overdue:
                waiting.is_early, waiting.is_recount = True, False
                overdue[id(waiting)] = waiting
                heapq.heappush(topic_waits.early, (topic_waits.clock + _MAX_STEP_S, next(self._numbers), waiting))
        while topic_waits.recounts and topic_waits.recounts[0][0] <= topic_waits.clock and len(overdue) < limit:
            waiting = heapq.heappop(topic_waits.recounts)[2]
            if not topic_waits.has(waiting):
                continue
            waited = max(_RECOUNT_S, topic_waits.clock - waiting.since)
            heapq.heappush(topic_waits.recounts, (topic_waits.clock + waited, next(self._numbers), waiting))
            if id(waiting) not in overdue:
                waiting.is_early, waiting.is_recount = False, True
                overdue[id(waiting)] = waiting
        return list(overdue.values())

    def tick(self, topic: str, now: float, read_until: float | None = None) -> None:
        """A batch read a topic up to events of this time, s since the epoch as `now`; None: it read all there were.
        What it says is applied after that: so what it found does not wait yet.
        """
        with self._lock:
            topic_waits = self._topics.get(topic)
            if topic_waits is None:
                return
            until = now if read_until is None or read_until > now - _LAG_S else read_until
            now_s = self._clock()
            if topic_waits.read_at is not None and topic_waits.read_until is not None:
                topic_waits.clock += max(
                    0.0, min(now_s - topic_waits.read_at, until - topic_waits.read_until, _MAX_STEP_S)
                )
            topic_waits.read_at, topic_waits.read_until = now_s, until

    def apply(self, topic: str, state: GateState, read_from: float | None, now: float) -> None:
        """Take over what a batch of a topic left at the gate; the oldest event it read was of `read_from`, s since the
        epoch as `now`.
        """
        if not (state.gone or state.waits or state.truncated):
            return
        with self._lock:
            topic_waits = self._topics.setdefault(topic, _Topic())
            for partition, node in state.truncated:
                for waiting in topic_waits.changes.get(partition, {}).values():
                    if node in waiting.nodes:
                        topic_waits.report(
                            waiting, tuple(reporter for reporter in waiting.nodes if reporter != node), waiting.copies
                        )
            for partition, change in state.gone:
                topic_waits.remove(partition, change)
            for waiting in state.waits:
                present = topic_waits.changes.get(waiting.event.partition, {}).get(waiting.id)
                if present is not None:
                    topic_waits.report(present, waiting.nodes, waiting.copies)
                    continue
                waiting.event = waiting.event._replace(topic=topic)  # one text for all of them
                waiting.since, waiting.is_early, waiting.is_recount = topic_waits.clock, False, False
                self._add(topic_waits, waiting)
            topic_waits.forget_gone()
            self._has_changed = True
            self._is_old |= (read_from or now) < now - self._replay(topic) / 2

    def _add(self, topic_waits: _Topic, waiting: WaitingChange) -> None:
        topic_waits.add(waiting)
        heapq.heappush(topic_waits.by_timeout, (waiting.since, next(self._numbers), waiting))
        heapq.heappush(topic_waits.early, (waiting.since, next(self._numbers), waiting))
        heapq.heappush(topic_waits.recounts, (topic_waits.clock + _RECOUNT_S, next(self._numbers), waiting))

    def _replay(self, topic: str) -> float:
        limits = self._limits.get(topic)
        return limits.replay_s if limits else 0.0

    def save(self, now: float) -> None:
        """Keep what a restart would not step back to: once in a while, or at once where events were old when they came.
        Raises HelenusError(STATE).
        """
        with self._lock:
            is_due = self._has_changed and (self._is_old or not 0 <= now - self._saved_at < self._often)
            if not is_due and not any(self._has_aged(topic, of) for topic, of in self._topics.items()):
                return
            saved_count = self._save(now)
            # What is too young to be kept now, is to be kept later.
            self._has_changed = saved_count < sum(map(len, self._topics.values()))
            self._is_old, self._saved_at = False, now

    def _has_aged(self, topic: str, topic_waits: _Topic) -> bool:
        """Return whether changes have waited so long since the file was written that a restart has to know it."""
        limits = self._limits.get(topic)
        return (
            limits is not None
            and len(topic_waits) > 0
            and topic_waits.clock - topic_waits.saved >= max(_AGED_S, limits.timeout_s * _AGED)
        )

    def _save(self, now: float) -> int:
        """Keep what is older than half of what a restart steps back, and say how many changes that are."""
        old_changes = [
            (waiting, topic_waits.clock - waiting.since)
            for topic, topic_waits in self._topics.items()
            for waiting in topic_waits
            if waiting.event.timestamp / 1000 < now - self._replay(topic) / 2
        ]
        if old_changes or self._has_file:
            _waiting_file.save(self._file, old_changes)
            self._has_file = bool(old_changes)
        for topic_waits in self._topics.values():
            topic_waits.saved = topic_waits.clock
        return len(old_changes)

    def load(self) -> bool:
        """Take over what an earlier run kept. False if it is damaged: then all that waits is to be read again, which
        is anywhere in the topics. Raises HelenusError(STATE) if it can't be read.
        """
        with self._lock:
            try:
                changes = _waiting_file.load(self._file)
            except Damaged as error:
                _log.warning("gate.damaged", reason=f"{self._file}: {error}", advice=_ADVICE)
                self._has_file = self._has_changed = True  # to be replaced
                return False
            self._has_file = True
            for waiting in changes:
                topic_waits = self._topics.setdefault(waiting.event.topic, _Topic())
                waiting.since = topic_waits.clock - waiting.since
                self._add(topic_waits, waiting)
                self._loaded[waiting.event.topic] = self._loaded.get(waiting.event.topic, 0) + waiting.copies
            return True

    def take_loaded(self, topics: Collection[str]) -> dict[str, int]:
        """How many events of these topics `load` took over from an earlier run, each once: that run read them, and this
        one says what becomes of them.
        """
        with self._lock:
            return {topic: self._loaded.pop(topic) for topic in self._loaded.keys() & set(topics)}

    def shrink(self, topic: str, partitions: Collection[int]) -> int:
        """A topic has these partitions alone: forget changes of others, and say how many events waited with them."""
        with self._lock:
            topic_waits = self._topics.get(topic, _Topic())
            gone = [
                waiting
                for partition, changes in topic_waits.changes.items()
                if partition not in partitions
                for waiting in changes.values()
            ]
            self.apply(topic, GateState(gone=[(waiting.event.partition, waiting.id) for waiting in gone]), None, 0.0)
            return sum(waiting.copies for waiting in gone)

    def export_changes(self, topics: Collection[str]) -> list[WaitingChange]:
        """Return these topics' waiting changes for another query. Their `since` is how long they have waited, s."""
        with self._lock:
            waits_by_topic = ((topic, topic_waits) for topic, topic_waits in self._topics.items() if topic in topics)
            return [
                replace(waiting, since=topic_waits.clock - waiting.since)
                for _, topic_waits in waits_by_topic
                for waiting in topic_waits
            ]

    def import_changes(self, changes: Iterable[WaitingChange]) -> None:
        """Take over changes of another query. They are durable when this returns. Raises HelenusError(STATE)."""
        with self._lock:
            for waiting in changes:
                topic_waits = self._topics.setdefault(waiting.event.topic, _Topic())
                self._add(topic_waits, replace(waiting, since=topic_waits.clock - waiting.since))
            self._save(math.inf)

    def drop(self, topics: Collection[str]) -> None:
        """Another query goes on with these topics. Raises HelenusError(STATE)."""
        with self._lock:
            if sum(len(self._topics.pop(topic, ())) for topic in topics):
                self._save(math.inf)


def _is_crowded(topic_waits: _Topic, limits: WaitingLimits) -> bool:
    """Return whether so many changes wait that the oldest are verified early."""
    return limits.verifies and topic_waits.total_bytes > limits.bytes * _CROWDED_SHARE
