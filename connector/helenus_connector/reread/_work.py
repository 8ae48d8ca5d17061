"""What a batch reads: the changes of one key become one read, and so do those of one delete marker."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from helenus_connector.gate.event import check, scope_of, values_of
from helenus_connector.interfaces.gate import Admitted
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolver import Resolved
from helenus_connector.reread._proof import Awaited, packed, unpacked
from helenus_connector.reread.unconfirmed import Name, Unconfirmed
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Change, Origin, Scope

_TABLE, _RANGE = Scope.TABLE, Scope.RANGE  # an enum's members are slow to look up
_UNSCANNED = Origin.LOG, Origin.REPAIR, Origin.STATE
_MARKED = (Scope.PARTITION, _RANGE, _TABLE)


class Proof(NamedTuple):
    """What a read proves of the changes of its key.

    `unproven` are those of which it proves nothing, and `by_age` those that it proves by the time that they waited; of
    these so many were `contradicted` by their row to the end. `rest` is for how many seconds no read can prove more.
    """

    unproven: Mapping[bytes, Awaited]
    by_age: Collection[bytes] = ()
    contradicted: int = 0
    rest: float = 0.0


PROVEN = Proof({})


@dataclass(slots=True)
class Work(Resolved):
    """A key to read, or the scope of a marker: the batch's events that touch it, and its `unconfirmed` key if due.

    It is read at level `consistency`; `read_at` is when the read began, s since the epoch, None if it was not read.
    `awaited` are its changes by their ids, and `proof` is what the read proves of them. Of a marker, `oldest` is the
    write time in µs of the oldest cell of the rows in its scope, and `timeless` says that some of them show no time.
    `is_outdated`: the table can't have this key any more. `is_scanned`: a snapshot asks for it, so it is likely that
    keys that are close to it on the ring are asked for too.

    With changes that it is `verifying` it asks whether a read at the gate's level shows them, and is published if it
    shows one: it has no `events` until then. The read speaks against those that are `unseen`.
    """

    consistency: int = 0
    awaited: dict[bytes, Awaited] = field(default_factory=dict)
    unconfirmed: Unconfirmed | None = None
    read_at: float | None = None
    proof: Proof = PROVEN
    first_expires: int | None = None
    oldest: int | None = None
    timeless: bool = False
    is_outdated: bool = False
    is_scanned: bool = False
    verifying: list[Admitted] | None = None
    unseen: set[bytes] = field(default_factory=set)

    @property
    def is_marked(self) -> bool:
        """Whether it is of more than a row: of a partition, a range of it, or the table."""
        return self.scope in _MARKED

    @property
    def name(self) -> Name:
        return self.topic, self.partition, self.key, self.bounds

    @property
    def is_asked_for(self) -> bool:
        """Whether it has to be published; else it is read to be confirmed alone."""
        return self.events > 0 or (self.unconfirmed is not None and self.unconfirmed.unread > 0)

    @property
    def since(self) -> float:
        """When the first event that asks for it was appended, s since the epoch."""
        since = [self.unconfirmed.since] if self.unconfirmed else []
        return min([*since, self.event.timestamp / 1000] if self.event else since)

    def begin(self) -> None:
        """Forget an earlier attempt."""
        self.read_at = self.after = self.failure = self.read_rows = self.known = None
        self.published = self.dead_lettered = self.is_outdated = self.is_confirmed = False
        self.digest, self.records, self.unseen = b"", 0, set()

    def saw(self, image: Image | None) -> None:
        """Take note of what lives in a marker's scope; None for a row whose key has no form."""
        oldest = image.oldest() if image else None
        if image is None or oldest is None or image.timed.many or image.timed.untimed:
            self.timeless = True  # of many cells the newest alone is shown
        if oldest is not None and (self.oldest is None or oldest < self.oldest):
            self.oldest = oldest


class Works:
    """What a batch reads: `by_name`; and what waits for a later one: `waiting`. `gone` are due keys that the table
    can't have any more. Works of `verified` ask whether a read at the gate's level shows their changes.
    """

    def __init__(self, codec: KeyCodec, consistency: int, gate_level: int = 0) -> None:
        self.by_name: dict[Name, Work] = {}
        self.verified: dict[Name, Work] = {}
        self.waiting: dict[Name, Unconfirmed] = {}
        self.gone: list[Unconfirmed] = []
        self._codec = codec
        self._consistency = consistency
        self._gate_level = gate_level
        self._awaited: dict[Name, dict[bytes, Awaited]] = {}
        self._copied: list[tuple[Work, Admitted]] = []

    def add(self, admitted: Admitted) -> None:
        """Read a change's key; it waits with its key if it is published and nothing else asks for the key."""
        event, change, key = admitted.event, admitted.change, admitted.key
        bounds = (change.start, change.end) if change.scope is _RANGE else None
        name = (event.topic, event.partition, key, bounds)
        scope = scope_of(change, admitted.values)
        if admitted.verifying is not None:
            self._verify(name, scope, admitted)
            return
        work = self.by_name.get(name)
        if work is None:
            if admitted.is_published and admitted.id is not None:
                self._wait(name, admitted, admitted.id)
                return
            work = Work(
                event.topic,
                event.partition,
                key,
                admitted.values,
                scope,
                bounds,
                change.parts,
                event,
                consistency=self._consistency,
                is_scanned=change.origin not in _UNSCANNED,
            )
            self.by_name[name] = work
        elif scope > work.scope:
            work.scope = scope
        work.events += 1
        work.is_released |= admitted.is_released
        self._copied.append((work, admitted))
        if change.write_time is not None and (work.newest is None or change.write_time > work.newest):
            work.newest = change.write_time
        if change.expires_at is not None and (work.first_expires is None or change.expires_at < work.first_expires):
            work.first_expires = change.expires_at
        if admitted.id is not None:
            work.awaited.setdefault(admitted.id, awaited_of(change))

    def add_due(self, due: Iterable[Unconfirmed], level: Callable[[Unconfirmed, Key, Iterable[bytes]], int]) -> None:
        """Read keys that are due, at the `level` that confirms them. After all changes."""
        for work, admitted in self._copied:
            if admitted.copies > 1:
                work.events += admitted.copies - 1
        self._copied.clear()
        for unconfirmed in due:
            try:
                self._add_due(unconfirmed, level)
            except Malformed:
                self.gone.append(unconfirmed)
        for name, waiting in self.waiting.items():
            waiting.awaited = packed(self._awaited[name])

    def _verify(self, name: Name, scope: Scope, admitted: Admitted) -> None:
        topic, partition, key, bounds = name
        event, change = admitted.event, admitted.change
        work = self.verified.get(name)
        if work is None:
            work = Work(topic, partition, key, admitted.values, scope, bounds, event=event)
            work.consistency, work.verifying = self._gate_level, []
            self.verified[name] = work
        work.scope = max(work.scope, scope)
        work.verifying = [*(work.verifying or ()), admitted]
        work.newest = max((time for time in (work.newest, change.write_time) if time is not None), default=None)
        work.awaited[admitted.id or b""] = awaited_of(change)

    def _wait(self, name: Name, admitted: Admitted, change: bytes) -> None:
        topic, partition, key, bounds = name
        scope, since = scope_of(admitted.change, admitted.values), admitted.event.timestamp / 1000
        held = self.waiting.get(name)
        if held is None:
            held = self.waiting[name] = Unconfirmed(topic, partition, key, scope, bounds=bounds, since=since)
        self._awaited.setdefault(name, {})[change] = awaited_of(admitted.change)
        held.scope = max(held.scope, scope)
        held.copies += admitted.copies

    def _add_due(self, due: Unconfirmed, level: Callable[[Unconfirmed, Key, Iterable[bytes]], int]) -> None:
        scope = Scope(due.scope)
        key = due.key if scope is _TABLE else self._codec.current(due.key)
        name = (due.topic, due.partition, key, due.bounds)
        values = () if scope is _TABLE else values_of(self._codec, key)
        check(self._codec, values, due.bounds)
        awaited = unpacked(due.awaited)
        newer = self.waiting.pop(name, None)
        if newer is not None:
            awaited.update(self._awaited[name])
            due.copies += newer.copies
            due.since = min(due.since, newer.since)
        work = self.by_name.get(name)
        if work is None:
            # What was never read has to be published first: a higher level may not be had for long.
            consistency = self._consistency if due.unread else level(due, values, awaited)
            work = Work(
                due.topic,
                due.partition,
                key,
                values,
                scope,
                due.bounds,
                consistency=consistency,
            )
            self.by_name[name] = work
        work.scope = max(work.scope, scope)
        work.unconfirmed = due
        work.awaited = {**awaited, **work.awaited}


def awaited_of(change: Change) -> Awaited:
    """What a change waits with; numbers that no agent writes count as none."""
    effect, expired = change.effect, change.all_expired_at
    if not 0 <= effect < 1 << 32:
        effect = 0
    if expired is not None and not 0 < expired < 1 << 32:
        expired = None
    return Awaited(change.write_time, math.nan, effect, expired)
