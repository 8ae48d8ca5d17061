"""A read: the changes of one key, or of one delete marker, and what it proves of them.

It runs as it is, and compiled by Cython with the types of `_key_read.pxd`: a backlog has one for each of its keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.unconfirmed.unconfirmed_key import Name, UnconfirmedKey, later_time
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.event.change import Change, Scope

if TYPE_CHECKING:
    from helenus_connector.interfaces.event import Event
    from helenus_connector.interfaces.image import Bounds
    from helenus_schemas.codec.key import Key

COMPILED = not __file__.endswith(".py")
_NO_CHANGES: frozenset[bytes] = frozenset()
_MARKED = (Scope.PARTITION, Scope.RANGE, Scope.TABLE)


class Proof(NamedTuple):
    """What a read proves of the changes of its key.

    `unproven` are those of which it proves nothing, and `by_age` those that it proves by the time that they waited; of
    these so many were `contradicted` by their row to the end. No read of the next `pause_s` seconds can prove more.
    """

    unproven: Mapping[bytes, UnprovenChange]
    by_age: Collection[bytes] = ()
    contradicted: int = 0
    pause_s: float = 0.0


PROVEN = Proof({})


class KeyRead(ResolvedKey):
    """A key to read, or the scope of a marker: the batch's events that touch it, and its `unconfirmed` key if due.

    It is read at level `consistency`; `read_at` is when the read began, s since the epoch, None if it was not read.
    `awaited` are its changes by their ids, and `proof` is what the read proves of them. Of a marker, `oldest` is the
    write time in µs of the oldest cell of the rows in its scope, and `timeless` says that some of them show no time.
    `is_outdated`: the table can't have this key any more. `is_scanned`: a snapshot asks for it, so it is likely that
    keys that are close to it on the ring are asked for too.

    With changes that it is `verifying` it asks whether a read at the gate's level shows them, and is published if it
    shows one: it has no `events` until then. The read speaks against those that are `unseen`. `deleted_at` is the
    newest write time in µs of its changes that delete a whole partition, a range or the table.
    """

    awaited: dict[bytes, UnprovenChange]
    unconfirmed: UnconfirmedKey | None
    read_at: float | None
    first_expires: int | None
    oldest: int | None
    verifying: list[AdmittedChange] | None
    unseen: AbstractSet[bytes]
    deleted_at: int | None

    def __init__(
        self,
        topic: str,
        partition: int,
        key: bytes,
        values: Key,
        scope: Scope,
        bounds: Bounds | None = None,
        parts: int = 1,
        event: Event | None = None,
        consistency: int = 0,
        is_scanned: bool = False,
    ) -> None:
        ResolvedKey.__init__(self, topic, partition, key, values, scope, bounds, parts, event)
        self.consistency = consistency
        self.is_scanned = is_scanned
        self.awaited = {}
        self.unconfirmed = self.read_at = self.first_expires = self.oldest = self.verifying = self.deleted_at = None
        self.proof = PROVEN
        self.timeless = self.is_outdated = False
        self.unseen = _NO_CHANGES

    @property
    def is_marked(self) -> bool:
        """Return whether it is of more than a row: of a partition, a range of it, or the table."""
        return self.scope in _MARKED

    @property
    def name(self) -> Name:
        return self.topic, self.partition, self.key, self.bounds

    @property
    def is_asked_for(self) -> bool:
        """Return whether it has to be published; else it is read to be confirmed alone."""
        return self.events > 0 or (self.unconfirmed is not None and self.unconfirmed.unread > 0)

    @property
    def since(self) -> float:
        """Return when the first event that asks for it was appended, s since the epoch."""
        since = [self.unconfirmed.since] if self.unconfirmed else []
        return min([*since, self.event.timestamp / 1000] if self.event else since)

    def note(self, change: Change) -> None:
        """Take note of the write time of a change of it."""
        self.newest = later_time(self.newest, change.write_time)
        self.deleted_at = later_time(self.deleted_at, deletion_time(change))

    def for_attempt(self) -> KeyRead:
        """Return the same read for another attempt, without what came of this one: its row, its proof, its records."""
        key_read = KeyRead(
            self.topic,
            self.partition,
            self.key,
            self.values,
            self.scope,
            self.bounds,
            self.parts,
            self.event,
            self.consistency,
            self.is_scanned,
        )
        key_read.events, key_read.is_released = self.events, self.is_released
        key_read.newest, key_read.deleted_at = self.newest, self.deleted_at
        key_read.first_expires = self.first_expires
        key_read.awaited, key_read.unconfirmed, key_read.verifying = self.awaited, self.unconfirmed, self.verifying
        return key_read

    def saw(self, image: Image | None) -> None:
        """Take note of what lives in a marker's scope; None for a row whose key has no form."""
        oldest = image.oldest_write_time() if image else None
        if image is None or oldest is None or image.timed.many or image.timed.untimed:
            self.timeless = True  # of many cells the newest alone is shown
        if oldest is not None and (self.oldest is None or oldest < self.oldest):
            self.oldest = oldest


def deletion_time(change: Change) -> int | None:
    """Return the write time of a change that deletes a partition, a range or the table; None of any other."""
    return change.write_time if change.scope in _MARKED else None


def unproven_change(change: Change) -> UnprovenChange:
    """Return what a change waits with."""
    return UnprovenChange(change.write_time, math.nan, known_effect(change.effect), known_expiry(change.all_expired_at))


def known_effect(effect: int) -> int:
    """Return the effect of a change; one that no agent writes counts as none."""
    return effect if 0 <= effect < 1 << 32 else 0


def known_expiry(expiry: int | None) -> int | None:
    """Return when a change's last cell expires; a time that no agent writes counts as none."""
    return expiry if expiry is None or 0 < expiry < 1 << 32 else None
