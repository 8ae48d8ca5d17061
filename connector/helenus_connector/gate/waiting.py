"""The changes that wait at the gate, of all tables of a query: kept by the driver, given to each batch.

    a batch ends: 3 changes wait, each with the nodes that reported it → the next one, wherever it runs, has them

What waits is the driver's alone to remember: tasks run on any host, and their caches may be gone. A restart steps back
`replay_s` in the events topic, and finds again what came since; what came before is in a file.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from helenus_connector.gate import _waiting_file
from helenus_connector.gate._topic_waits import TopicWaits
from helenus_connector.gate._topic_waits import WaitingLimits as WaitingLimits
from helenus_connector.interfaces.event import WaitingChange
from helenus_connector.interfaces.gate import GateState, GateWaits
from helenus_schemas.service.durable import Damaged

_log = structlog.get_logger(__name__)
_LAG_S = 10.0  # events that are older when they are read: the topic is not read up to date
_ADVICE = "topics are read again from their first event, as waiting changes may be anywhere in them"
_SAVES_PER_REPLAY = 4  # in the time that a restart steps back: what is older than half of that is in the file
_MAX_UNSAVED_SHARE, _MAX_UNSAVED_S = 1 / 40, 5.0  # of its timeout, or s: for how long a change may wait unsaved
NOTHING = 0, 0, 0, 0.0
"""The `counts` of a topic of which nothing waits."""


class WaitingChanges:
    """Its methods may be called from any thread; `clock` is one that nobody sets, in s."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.RLock()
        self._limits: Mapping[str, WaitingLimits] = {}
        self._save_interval_s = 0.0
        self._topics: dict[str, TopicWaits] = {}
        self._is_old = self._has_changed = self._has_file = False
        self._saved_at = -math.inf
        self._loaded: dict[str, int] = {}

    def use(self, limits: Mapping[str, WaitingLimits]) -> None:
        """Go by these limits. The changes of a topic that has none wait until it has again."""
        with self._lock:
            self._limits = limits
            shortest_replay_s = min((topic_limits.replay_s for topic_limits in limits.values()), default=0.0)
            self._save_interval_s = shortest_replay_s / _SAVES_PER_REPLAY
            for topic, topic_limits in limits.items():  # of most, which are at level one, nothing ever waits
                if not topic_limits.is_one:
                    self._topics.setdefault(topic, TopicWaits())

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
            return len(topic_waits), topic_waits.copies, topic_waits.total_bytes, topic_waits.oldest_age()

    def next_due(self, now: float) -> float | None:
        """Return when the next change is handed out as overdue, s since the epoch, as `now` is."""
        with self._lock:
            delays = [topic_waits.seconds_to_next(limits) for _, topic_waits, limits in self._limited()]
            next_s = min((delay_s for delay_s in delays if delay_s is not None), default=None)
            return None if next_s is None else now + max(0.0, next_s)

    def hand_out(self, limit: int) -> dict[str, GateWaits]:
        """Return the waiting changes by topic, with at most `limit` overdue ones in all. They stay until `apply`."""
        with self._lock:
            waits = {}
            for topic, topic_waits, limits in self._limited():
                if limits.is_one and not len(topic_waits):
                    continue
                waits[topic] = topic_waits.hand_out(limits, limit)
                limit -= len(waits[topic].overdue)
            return waits

    def hand_back(self, changes: Iterable[WaitingChange]) -> None:
        """Have overdue changes that no task took handed out to the next batch, instead of after their pause."""
        with self._lock:
            for waiting in changes:
                topic_waits = self._topics.get(waiting.event.topic)
                if topic_waits is not None:
                    topic_waits.hand_back([waiting])

    def _limited(self) -> list[tuple[str, TopicWaits, WaitingLimits]]:
        return [
            (topic, topic_waits, self._limits[topic])
            for topic, topic_waits in self._topics.items()
            if topic in self._limits
        ]

    def tick(self, topic: str, now: float, read_until: float | None = None) -> None:
        """A batch read a topic up to events of this time, s since the epoch as `now`; None: it read all there were.
        Its result is applied after that: so a change that it found does not wait yet.
        """
        with self._lock:
            topic_waits = self._topics.get(topic)
            if topic_waits is None:
                return
            if read_until is None or read_until > now - _LAG_S:
                read_until = now
            topic_waits.run_clock(self._clock(), read_until)

    def apply(self, topic: str, state: GateState, read_from: float | None, now: float) -> None:
        """Take over what a batch of a topic left at the gate; the oldest event it read was of `read_from`, s since the
        epoch as `now`.
        """
        if not (state.gone or state.waits or state.truncated):
            return
        with self._lock:
            self._topics.setdefault(topic, TopicWaits()).apply(topic, state)
            self._has_changed = True
            self._is_old |= (read_from or now) < now - self._replay(topic) / 2

    def _replay(self, topic: str) -> float:
        limits = self._limits.get(topic)
        return limits.replay_s if limits else 0.0

    def save(self, now: float) -> None:
        """Keep what a restart would not step back to: once in a while, or at once where events were old when they came.
        Raises HelenusError(STATE).
        """
        with self._lock:
            is_recent = 0 <= now - self._saved_at < self._save_interval_s
            is_due = self._has_changed and (self._is_old or not is_recent)
            if not is_due and not any(self._has_aged(topic, waits) for topic, waits in self._topics.items()):
                return
            saved_count = self._save(now)
            # What is too young to be kept now, is to be kept later.
            self._has_changed = saved_count < sum(map(len, self._topics.values()))
            self._is_old, self._saved_at = False, now

    def _has_aged(self, topic: str, topic_waits: TopicWaits) -> bool:
        """Return whether changes have waited so long since the file was written that a restart has to know it."""
        limits = self._limits.get(topic)
        if limits is None or not len(topic_waits):
            return False
        return topic_waits.clock - topic_waits.saved_clock >= max(_MAX_UNSAVED_S, limits.timeout_s * _MAX_UNSAVED_SHARE)

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
            topic_waits.saved_clock = topic_waits.clock
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
                self._add(waiting)
                self._loaded[waiting.event.topic] = self._loaded.get(waiting.event.topic, 0) + waiting.copies
            return True

    def take_loaded(self, topics: Collection[str]) -> dict[str, int]:
        """Return how many events of these topics `load` took over from an earlier run, each once: that run read them,
        and this one says what becomes of them.
        """
        with self._lock:
            return {topic: self._loaded.pop(topic) for topic in self._loaded.keys() & set(topics)}

    def shrink(self, topic: str, partitions: Collection[int]) -> int:
        """A topic has these partitions alone: forget changes of others, and say how many events waited with them."""
        with self._lock:
            gone = [w for w in self._topics.get(topic, ()) if w.event.partition not in partitions]
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
                self._add(replace(waiting))
            self._save(math.inf)

    def awaited_changes(self, topic: str) -> set[bytes]:
        """Return the ids of the changes that wait at an events topic's gate."""
        with self._lock:
            return {waiting.id for waiting in self._topics.get(topic, ())}

    def restore(self, topic: str, changes: Iterable[GateState]) -> None:
        """Have the changes of an events topic be those that these batches left, in their order; the first begins with
        none. The `since` of a change is for how long it has waited by then, s.
        """
        with self._lock:
            self._topics.pop(topic, None)
            for state in changes:
                waited_s = [waiting.since for waiting in state.waits]
                self.apply(topic, state, None, 0.0)
                for waiting, age_s in zip(state.waits, waited_s, strict=True):
                    if self._topics[topic].has(waiting):  # else it is a report of one that waits
                        self._topics[topic].add(waiting, age_s)

    def drop(self, topics: Collection[str]) -> None:
        """Another query goes on with these topics. Raises HelenusError(STATE)."""
        with self._lock:
            if sum(len(self._topics.pop(topic, ())) for topic in topics):
                self._save(math.inf)

    def _add(self, waiting: WaitingChange) -> None:
        """Add a change whose `since` is how long it has waited, s."""
        self._topics.setdefault(waiting.event.topic, TopicWaits()).add(waiting, waiting.since)
