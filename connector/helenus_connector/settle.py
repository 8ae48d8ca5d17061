"""The keys that wait for a proven read: each is read again after a while, and published again if its image changed."""

from __future__ import annotations

import math
import pickle
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from helenus_connector.proof import AWAITED_BYTES, Awaited, packed, unknown, unpacked
from helenus_connector.ranges import Bounds
from helenus_schemas.change import Scope

MAX_BACKOFF_S = 60.0
_MOST_DOUBLED = 20
_MOST_AWAITED = 1000  # of one key; of more it is only known that there are some
AWAY, STUCK = 1, 2
"""Why a key that has to be published was not read: its replicas are away; or they fail to."""
_MARKED = (Scope.PARTITION, Scope.RANGE, Scope.TABLE)


Name = tuple[str, int, bytes, "Bounds | None"]
"""What is read at once and waits at once: the events topic and partition, the event's key, the bounds of a range."""
Place = tuple[str, int]
"""An events topic and partition."""
Within = bytes | tuple[bytes, Bounds]
"""What names a key, or a range, within its place."""


@dataclass(slots=True)
class Pending:
    """A key to read again, or a range of keys if it has `bounds`.

    `awaited` is `packed`. `image` is the MD5 of the last published value, None if that is not known. `copies` counts
    events that wait for the outcome: neither published nor dropped yet. `since` is the timestamp of the first event it
    waits for, s since the epoch. `unread` is AWAY or STUCK if it has to be published and could not be read. The
    rows behind a truncation are left to be told from a `stripe` of the ring on. There may be very many: all that is in
    it counts.
    """

    topic: str
    partition: int
    key: bytes
    scope: int
    awaited: bytes = b""
    image: bytes | None = None
    copies: int = 0
    attempts: int = 0
    due: float = 0.0
    bounds: Bounds | None = None
    since: float = 0.0
    unread: int = 0
    stripe: int = 0

    @property
    def name(self) -> Name:
        return self.topic, self.partition, self.key, self.bounds

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def within(self) -> Within:
        return self.key if self.bounds is None else (self.key, self.bounds)


@dataclass(slots=True)
class Told:
    """What a batch published in one place: by key, and by marker with the rows of its scope.

    A partition's key is that of its rows, with a zero for each of the `clustering` columns.
    """

    clustering: int = 0
    keys: list[bytes] = field(default_factory=list)
    scopes: set[bytes] = field(default_factory=set)
    lengths: set[int] = field(default_factory=set)
    is_sorted: bool = True

    def add(self, key: bytes, is_marked: bool) -> None:
        self.keys.append(key)
        self.is_sorted = False
        if is_marked:
            scope = self._scope(key)
            self.scopes.add(scope)
            self.lengths.add(len(scope))

    def covers(self, key: bytes) -> bool:
        """Whether a key may have been published with a marker."""
        return any(key[:n] in self.scopes for n in self.lengths)

    def touches(self, key: bytes, more_than: int = 0) -> bool:
        """Whether of a marker's scope, itself included, more than so many keys were published."""
        if not self.is_sorted:
            self.keys.sort()
            self.is_sorted = True
        scope = self._scope(key)
        at = bisect_left(self.keys, scope) + more_than
        return at < len(self.keys) and self.keys[at].startswith(scope)

    def _scope(self, key: bytes) -> bytes:
        return key[: max(len(key) - self.clustering, len(key.rstrip(b"\0")))]


class PendingKeys:
    """The keys of all connectors that wait for a proven read. Lives in the driver.

    A restart steps back `replay_s` from the last `save`; what waits longer is kept beside `file`. Both in s, by topic.
    """

    def __init__(self, timeout_s: Mapping[str, float], replay_s: Mapping[str, float], file: Path) -> None:
        self._timeout = timeout_s
        self._replay = replay_s
        self._file = file
        self._keys: dict[Place, dict[Within, Pending]] = {}
        self._queues: dict[str, dict[float, list[Pending]]] = {}
        self._ended: dict[str, float] = {}
        self._kept: int | None = None
        self._kept_at = 0.0
        self._is_old = True

    def use(self, timeout_s: Mapping[str, float], replay_s: Mapping[str, float]) -> None:
        """Go by other times. The keys of a topic that has none wait until it has again."""
        self._timeout, self._replay = timeout_s, replay_s

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def counts(self, topic: str) -> tuple[int, int]:
        """Of one events topic: keys that wait, and events whose outcome is open."""
        held = [keys for (of, _), keys in self._keys.items() if of == topic]
        return sum(map(len, held)), sum(p.copies for keys in held for p in keys.values())

    def unread(self, topic: str) -> int:
        """How many keys of an events topic wait because they can't be read."""
        return sum(p.unread > 0 for (of, _), keys in self._keys.items() if of == topic for p in keys.values())

    def next_due(self) -> float | None:
        """When the next key is to be read again, s since the epoch."""
        return min((due for topic in self._timeout if (due := self._next_of(topic)) is not None), default=None)

    def _next_of(self, topic: str) -> float | None:
        queue = self._queues.get(topic, {})
        while queue:
            due = min(queue)
            while queue[due]:
                if self._waits(queue[due][-1], due):
                    return due
                queue[due].pop()
            del queue[due]
        return None

    def _waits(self, pending: Pending, due: float) -> bool:
        """Whether a place in the queue is a key's own: it has another when it waits again."""
        return pending.due == due and self._keys[pending.place].get(pending.within) is pending

    def _wait(self, pending: Pending, due: float) -> None:
        pending.due = due
        self._queues.setdefault(pending.topic, {}).setdefault(due, []).append(pending)

    def due(self, now: float, limit: int) -> list[Pending]:
        """At most so many keys to read again by now: what is due longest comes first. They stay until `apply` hears of
        them, and what it does not hear of is due again after its time.
        """
        found: list[Pending] = []
        while len(found) < limit:
            queues = ((due, topic) for topic in self._timeout if (due := self._next_of(topic)) is not None)
            due, topic = min(queues, default=(math.inf, ""))
            # What is further away than anything can be is so since the clock was put back.
            if not topic or now < due <= now + max(MAX_BACKOFF_S, self._timeout[topic]):
                break
            members = self._queues[topic][due]
            while members and len(found) < limit:
                pending = members.pop()
                if self._waits(pending, due):
                    found.append(pending)
        again = {topic: now + timeout for topic, timeout in self._timeout.items()}
        for pending in found:
            self._wait(pending, again[pending.topic])
        return found

    def apply(
        self,
        resolved: Iterable[Pending],
        found: Iterable[Pending],
        now: float,
        told: Mapping[Place, Told] | None = None,
    ) -> None:
        """Take over what a batch says: due keys that are resolved, keys that wait, anew or again, and what was `told`:
        a key's image is what was published last, and not known any more if others' reads published it.
        """
        for place, published in (told or {}).items():
            self._overtake(self._keys.get(place, {}), published)
        for pending in resolved:
            self._keys.get(pending.place, {}).pop(pending.within, None)
        same: dict[float, float] = {}  # keys share numbers
        for pending in found:
            keys = self._keys.setdefault(pending.place, {})
            held = keys.get(pending.within)
            pending.since = same.setdefault(pending.since // 1, pending.since // 1)
            if held is None or pending.since < held.since or pending.scope > held.scope:
                self._is_old |= pending.since < now - self._replay.get(pending.topic, 0.0) / 2
            if held is not None and held is not pending and pending.attempts == 0:
                # A later Change or copy of a key that waits already: one re-read serves both, at its time.
                held.awaited = _few({**unpacked(held.awaited), **unpacked(pending.awaited)}, now)
                held.copies += pending.copies
                held.image = pending.image or held.image
                held.since = min(held.since, pending.since)
                held.scope = max(held.scope, pending.scope)
                held.unread = max(held.unread, pending.unread)
                held.stripe = min(held.stripe, pending.stripe)
                continue
            if len(pending.awaited) > _MOST_AWAITED * AWAITED_BYTES:
                pending.awaited = unknown(now)
            keys[pending.within] = pending
            wait = self._timeout.get(pending.topic, 0.0) * 2 ** min(pending.attempts, _MOST_DOUBLED)
            due = now + min(wait, MAX_BACKOFF_S)
            self._wait(pending, same.setdefault(due, due))

    def _overtake(self, held: Mapping[Within, Pending], told: Told) -> None:
        if not held:
            return
        keys = set(told.keys)
        for p in held.values():
            if p.image is not None and (
                p.key in keys or told.covers(p.key) or (p.scope in _MARKED and told.touches(p.key))
            ):
                p.image = None

    def forget_images(self, topic: str) -> None:
        """What was published last of a topic's keys is not known any more: a batch of it failed on the way."""
        for (of, _), keys in self._keys.items():
            for pending in keys.values() if of == topic else ():
                pending.image = None

    def save(self, now: float, topics: Iterable[str]) -> None:
        """Keep what a restart would not step back to, and that these topics were read until now.

        There are no such keys as a rule: a read is proven within seconds. When there are, they may be very many: they
        are written when the set changed, once in a while, as each has half of `replay_s` until it must be there. Of
        events that were old when they came, it must be at once.
        """
        self._ended.update(dict.fromkeys(topics, now))
        if self._is_old or not 0 <= now - self._kept_at < min(self._replay.values(), default=0.0) / 4:
            kept = pickle.dumps(self._long(now))
            if hash(kept) != self._kept:
                _write(_keys_file(self._file), kept)
            self._kept, self._kept_at, self._is_old = hash(kept), now, False
        _write(self._file, pickle.dumps((self._ended, [])))

    def _long(self, now: float) -> dict[tuple[str, int, int], list[Within]]:
        """The keys that wait for half of what a restart steps back, by place and scope."""
        kept: dict[tuple[str, int, int], list[Within]] = {}
        for (topic, partition), keys in self._keys.items():
            long_ago = now - self._replay.get(topic, 0.0) / 2
            by_scope: dict[int, list[Within]] = defaultdict(list)
            for name, pending in keys.items():
                if pending.since < long_ago:
                    by_scope[pending.scope].append(name)
            kept.update({(topic, partition, int(scope)): names for scope, names in by_scope.items()})
        return kept

    def load(self, now: float) -> None:
        """Take over what an earlier run kept: to be read and published, and then proven at level ALL, whatever its
        Changes were.
        """
        self._ended, kept = _saved(self._file)
        kept += _names(_keys_file(self._file))
        waits = unknown(now)
        found = [
            Pending(topic, p, key, scope, waits, bounds=bounds, unread=AWAY) for (topic, p, key, bounds), scope in kept
        ]
        self.apply([], found, now)


def ended(file: Path) -> Callable[[str], float | None]:
    """When earlier runs ended with a topic, as far as they could say: s since the epoch, by its name."""
    found, _ = _saved(file)
    return lambda topic: found.get(topic, found.get(""))


def _few(awaited: Mapping[bytes, Awaited], now: float) -> bytes:
    return packed(awaited) if len(awaited) <= _MOST_AWAITED else unknown(now)


def _keys_file(file: Path) -> Path:
    return file.with_suffix(".keys")


def _write(file: Path, data: bytes) -> None:
    new = file.with_name(file.name + ".new")
    new.write_bytes(data)
    new.replace(file)


def _saved(file: Path) -> tuple[dict[str, float], list[tuple[Name, int]]]:
    try:
        when, kept = pickle.loads(file.read_bytes())
    except FileNotFoundError:
        return {}, []
    # An older version kept one time, for all topics; and the keys in the same file.
    return ({"": when} if isinstance(when, float) else when), kept


def _names(file: Path) -> Iterator[tuple[Name, int]]:
    if file.exists():
        for (topic, partition, scope), keys in pickle.loads(file.read_bytes()).items():
            for key in keys:
                name = (key, None) if isinstance(key, bytes) else key
                yield (topic, partition, *name), scope
