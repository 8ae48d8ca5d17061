"""What a batch reads of one key, or of one delete marker: the changes that it is read for, and what the read proves.

The module runs as plain Python, and compiled by Cython with the types of `_key_read.pxd`: a backlog creates one object
for each of its keys.
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
    """Which changes of its key a read proves: all but the `unproven` ones.

    Those `by_age` are accepted because they have waited long enough, not because the row shows them; `contradicted` of
    these were contradicted by their row to the end. No read in the next `pause_s` seconds can prove more.
    """

    unproven: Mapping[bytes, UnprovenChange]
    by_age: Collection[bytes] = ()
    contradicted: int = 0
    pause_s: float = 0.0


PROVEN = Proof({})
"""All changes are proven. Compared by identity in compiled loops."""


class KeyRead(ResolvedKey):
    """A key to read, or the scope of a marker: for events of this batch, for its `unconfirmed` key that is due, or
    both.

    It is read at level `consistency`; `read_at` is when the read began, s since the epoch, None if it was not read.
    `awaited` are the changes that the read is to prove, by their ids, and `proof` says which of them it proves. Of a
    marker, `oldest` is the write time in µs of the oldest cell in its scope, and `has_untimed_rows` says that the read
    does not show the age of some. `is_outdated`: the table can't have this key any more. `is_scanned`: a snapshot
    requests it, and so probably its neighbours on the ring too.

    If it is `verifying` changes, it asks whether a read at the gate's level shows them, and is published if it shows
    one of them: until then it has no `events`. The read contradicts those that are `unseen`. `deleted_at` is the newest
    write time in µs of its changes that delete a whole partition, a range or the table.
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
        self.has_untimed_rows = self.is_outdated = False
        self.unseen = _NO_CHANGES

    @property
    def is_marked(self) -> bool:
        """Return whether it concerns more than a row: a partition, a range of it, or the table."""
        return self.scope in _MARKED

    @property
    def name(self) -> Name:
        return self.topic, self.partition, self.key, self.bounds

    @property
    def must_be_published(self) -> bool:
        """Return whether it has to be published; else an earlier batch published it, and it is only to be confirmed."""
        return self.events > 0 or (self.unconfirmed is not None and self.unconfirmed.unread > 0)

    @property
    def since(self) -> float:
        """Return when the first event for which it is read was appended, s since the epoch."""
        since = [self.unconfirmed.since] if self.unconfirmed else []
        return min([*since, self.event.timestamp / 1000] if self.event else since)

    def note(self, change: Change) -> None:
        """Note the write time of a change of it."""
        self.newest = later_time(self.newest, change.write_time)
        self.deleted_at = later_time(self.deleted_at, deletion_time(change))

    def for_next_pass(self) -> KeyRead:
        """Return the same read for another pass, without the results of this one: its row, its proof, its records."""
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

    def note_live_row(self, image: Image | None) -> None:
        """Note the age of a live row in a marker's scope; None stands for a row whose key can't be encoded."""
        oldest = image.oldest_write_time() if image else None
        if image is None or oldest is None or image.timed.many or image.timed.untimed:
            self.has_untimed_rows = True  # a column with many cells shows the newest alone
        if oldest is not None and (self.oldest is None or oldest < self.oldest):
            self.oldest = oldest


def deletion_time(change: Change) -> int | None:
    """Return the write time of a change that deletes a partition, a range or the table; None of any other."""
    return change.write_time if change.scope in _MARKED else None


def unproven_change(change: Change) -> UnprovenChange:
    """Return what a change waits with until it is proven."""
    return UnprovenChange(change.write_time, math.nan, known_effect(change.effect), known_expiry(change.all_expired_at))


def known_effect(effect: int) -> int:
    """Return the effect of a change; 0 if it is out of range, as no agent writes it."""
    return effect if 0 <= effect < 1 << 32 else 0


def known_expiry(expiry: int | None) -> int | None:
    """Return when a change's last cell expires; None if the time is out of range, as no agent writes it."""
    return expiry if expiry is None or 0 < expiry < 1 << 32 else None
