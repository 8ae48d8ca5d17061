"""A key that waits until a read confirms it, and what a batch published that may concern it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from helenus_connector.interfaces.image import Bounds

MOST_WAITING = 100_000
"""How many keys of a query's tables may wait before a batch fails for one more: they are held in memory."""
AWAY, STUCK = 1, 2
"""Why a key that has to be published was not read: its replicas are away; or they fail to."""


Name = tuple[str, int, bytes, "Bounds | None"]
"""What is read at once and waits at once: the events topic and partition, the event's key, the bounds of a range."""
TopicPartition = tuple[str, int]
"""An events topic and partition."""
NameInPartition = bytes | tuple[bytes, Bounds]
"""What names a key, or a range, within its topic partition."""


def later_time(first: int | None, second: int | None) -> int | None:
    """Return the later of two times, each of which may not be known."""
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)


@dataclass(slots=True)
class UnconfirmedKey:
    """A key to read again, or a range of keys if it has `bounds`.

    `awaited` is `packed`. `image` is the MD5 of the last published value, None if that is not known. `copies` counts
    events that wait for the outcome: neither published nor dropped yet. `since` is the timestamp of the first event it
    waits for, s since the epoch. It is read again at `due_at`, s since the epoch: no read of the next `pause_s` seconds
    can prove more. `handed` is when the driver handed it to a batch, s by its clock. `unread` is AWAY or STUCK if it
    has to be published and could not be read. The rows after a truncation are still to be published from a `stripe` of
    the ring on. `newest` is the newest write time of its changes, and `deleted_at` that of those which delete its whole
    partition or range, µs; None if none is known. There may be very many of these keys: each byte counts.
    """

    topic: str
    partition: int
    key: bytes
    scope: int
    awaited: bytes = b""
    image: bytes | None = None
    copies: int = 0
    attempts: int = 0
    due_at: float = 0.0
    bounds: Bounds | None = None
    since: float = 0.0
    pause_s: float = 0.0
    handed: float = 0.0
    unread: int = 0
    stripe: int = 0
    newest: int | None = None
    deleted_at: int | None = None

    @property
    def name(self) -> Name:
        return self.topic, self.partition, self.key, self.bounds

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def name_in_partition(self) -> NameInPartition:
        return self.key if self.bounds is None else (self.key, self.bounds)


@dataclass(slots=True)
class PublishedKeys:
    """What a batch published in one topic partition: by key, and by marker with the rows of its scope.

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
        """Return whether a key may have been published with a marker."""
        return any(key[:n] in self.scopes for n in self.lengths)

    def touches(self, key: bytes, more_than: int = 0) -> bool:
        """Return whether more than so many keys of a marker's scope, itself included, were published."""
        if not self.is_sorted:
            self.keys.sort()
            self.is_sorted = True
        scope = self._scope(key)
        index = bisect_left(self.keys, scope) + more_than
        return index < len(self.keys) and self.keys[index].startswith(scope)

    def _scope(self, key: bytes) -> bytes:
        return key[: max(len(key) - self.clustering, len(key.rstrip(b"\0")))]
