"""When a read is proven, and the keys that wait until one is.

The commit log is written before the memtable, and a read may miss the one replica that has the write. So an image is
*proven* only if enough current replicas had reported the Change before the read began that every read of that level
must meet one of them, and the row shows the write or the read began long enough after the report. Until then the key
is pending: it is read again after a while, and published again if its image changed.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cassandra import ConsistencyLevel

from helenus_connector.ranges import Bounds

MAX_BACKOFF_S = 60.0


def block_for(consistency: int, rf: int) -> int:
    """How many replicas a read of this level waits for, of the `rf` in its data centre."""
    if consistency in (ConsistencyLevel.QUORUM, ConsistencyLevel.LOCAL_QUORUM):
        return rf // 2 + 1
    return rf if consistency == ConsistencyLevel.ALL else 1


def level(consistency: int, nodes: int, rf: int) -> int:
    """The lowest level, not below `consistency`, at which a read is proven once `nodes` replicas reported."""
    return consistency if nodes + block_for(consistency, rf) > rf else ConsistencyLevel.ALL


class Report(NamedTuple):
    """What a read must show for a Change: nodes that reported it, write time in µs, when it was first seen, s."""

    nodes: int
    write_time: int | None
    seen: float


def proven(report: Report, consistency: int, rf: int, read_at: float, shown: int | None, min_age_s: float) -> bool:
    """Whether a read that began at `read_at` and shows the write time `shown` proves the image for this Change."""
    if report.nodes + block_for(consistency, rf) <= rf:
        return False
    if shown is not None and report.write_time is not None and shown >= report.write_time:
        return True
    return read_at - report.seen >= min_age_s


class Awaited(NamedTuple):
    """A Change whose read is not proven: its id in the cache, write time in µs, when it was first seen, s."""

    change: bytes
    write_time: int | None
    seen: float


Name = tuple[str, int, bytes, "Bounds | None"]
"""What is read at once and waits at once: the events topic and partition, the event's key, the bounds of a range."""


@dataclass(slots=True)
class Pending:
    """A key to read again, or a range of keys if it has `bounds`.

    `image` is the MD5 of the last published value, None if that is not known. `copies` counts events that wait for the
    outcome: neither published nor dropped yet. `since` is the timestamp of the first event it waits for, s since the
    epoch.
    """

    topic: str
    partition: int
    key: bytes
    scope: int
    awaited: dict[bytes, Awaited] = field(default_factory=dict)
    image: bytes | None = None
    copies: int = 0
    attempts: int = 0
    due: float = 0.0
    bounds: Bounds | None = None
    since: float = 0.0

    @property
    def name(self) -> Name:
        return self.topic, self.partition, self.key, self.bounds


class PendingKeys:
    """The keys of all connectors that wait for a proven read. Lives in the driver.

    A restart steps back `replay_s` from the last `save`; what waits longer is kept in `file`. Both in s, by topic.
    """

    def __init__(self, timeout_s: Mapping[str, float], replay_s: Mapping[str, float], file: Path) -> None:
        self._timeout = timeout_s
        self._replay = replay_s
        self._file = file
        self._keys: dict[Name, Pending] = {}
        self._queues: dict[str, list[tuple[float, int, Name]]] = {}
        self._ended: dict[str, float] = {}
        self._pushed = 0

    def use(self, timeout_s: Mapping[str, float], replay_s: Mapping[str, float]) -> None:
        """Go by other times. The keys of a topic that has none wait until it has again."""
        self._timeout, self._replay = timeout_s, replay_s

    def __len__(self) -> int:
        return len(self._keys)

    def counts(self, topic: str) -> tuple[int, int]:
        """Of one events topic: keys that wait, and events whose outcome is open."""
        held = [p.copies for p in self._keys.values() if p.topic == topic]
        return len(held), sum(held)

    def next_due(self) -> float | None:
        """When the next key is to be read again, s since the epoch."""
        return min((due for topic in self._timeout if (due := self._next_of(topic)) is not None), default=None)

    def _next_of(self, topic: str) -> float | None:
        queue = self._queues.get(topic, [])
        while queue:
            due, _, name = queue[0]
            held = self._keys.get(name)
            if held is not None and held.due == due:
                return due
            heapq.heappop(queue)
        return None

    def due(self, now: float) -> list[Pending]:
        """The keys to read again by now. They stay until `apply` hears of them."""
        return [p for p in self._keys.values() if p.due <= now and p.topic in self._timeout]

    def apply(self, resolved: Iterable[Pending], found: Iterable[Pending], now: float) -> None:
        """Take over what a batch says: due keys that are resolved, and keys that wait, anew or again."""
        for pending in resolved:
            self._keys.pop(pending.name, None)
        for pending in found:
            held = self._keys.get(pending.name)
            if held is not None and held is not pending and pending.attempts == 0:
                # A later Change or copy of a key that waits already: one re-read serves both, at its time.
                held.awaited.update(pending.awaited)
                held.copies += pending.copies
                held.image = pending.image or held.image
                held.since = min(held.since, pending.since)
                held.scope = max(held.scope, pending.scope)
                continue
            wait = self._timeout.get(pending.topic, 0.0) * 2**pending.attempts
            pending.due = now + min(wait, MAX_BACKOFF_S)
            self._keys[pending.name] = pending
            self._pushed += 1  # names have no order
            heapq.heappush(self._queues.setdefault(pending.topic, []), (pending.due, self._pushed, pending.name))

    def forget_images(self, topic: str) -> None:
        """What was published last of a topic's keys is not known any more: a batch of it failed on the way."""
        for pending in self._keys.values():
            if pending.topic == topic:
                pending.image = None

    def save(self, now: float, topics: Iterable[str]) -> None:
        """Keep what a restart would not step back to, and that these topics were read until now.

        There are no such keys as a rule: a read is proven within seconds.
        """
        self._ended.update(dict.fromkeys(topics, now))
        kept = [p for p in self._keys.values() if p.since < now - self._replay.get(p.topic, 0.0) / 2]
        old = [(p.name, int(p.scope)) for p in kept]
        new = self._file.with_suffix(".new")
        new.write_bytes(pickle.dumps((self._ended, old)))
        new.replace(self._file)

    def load(self, now: float) -> None:
        """Take over what an earlier run kept: to be read at level ALL, whatever its Changes were, and published."""
        found = []
        self._ended, kept = _saved(self._file)
        for (topic, partition, key, bounds), scope in kept:
            unknown = Awaited(bytes(16), None, now)
            found.append(Pending(topic, partition, key, scope, {unknown.change: unknown}, bounds=bounds))
        self.apply([], found, now)


def ended(file: Path) -> Callable[[str], float | None]:
    """When earlier runs ended with a topic, as far as they could say: s since the epoch, by its name."""
    found, _ = _saved(file)
    return lambda topic: found.get(topic, found.get(""))


def _saved(file: Path) -> tuple[dict[str, float], list[tuple[Name, int]]]:
    try:
        when, kept = pickle.loads(file.read_bytes())
    except FileNotFoundError:
        return {}, []
    # An older version kept one time, for all topics.
    return ({"": when} if isinstance(when, float) else when), kept
