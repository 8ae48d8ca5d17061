"""Makes the reads of a batch's rows: changes of one key become one read. Groups them by key, and by consistency level.

The module runs as plain Python, and compiled by Cython with the types of `_row_reads.pxd`:
the results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.reread._key_read import KeyRead, known_effect, known_expiry
from helenus_connector.unconfirmed.unconfirmed_key import Name
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.codec.key import Key
from helenus_schemas.event.change import Effect, Origin, Scope
from helenus_schemas.event.own_format import HAS_EXPIRED, HAS_EXPIRES, HAS_WRITTEN

COMPILED = not __file__.endswith(".py")
_ROW, _PARTITION, _TABLE = Scope.ROW, Scope.PARTITION, Scope.TABLE  # an enum's members are slow to look up
_LOG = Origin.LOG
_UNSCANNED = (Origin.LOG, Origin.REPAIR, Origin.STATE)
_WRITTEN, _EXPIRY, _EXPIRED = HAS_WRITTEN, HAS_EXPIRES, HAS_EXPIRED  # C integers when compiled
_DELETES = int(Effect.GONE | Effect.DELETES)
_NAN = math.nan
_new = tuple.__new__
_Awaited = UnprovenChange


class _ChangeContent:
    """The content of a change, as its read needs it. One object is loaded with each change in turn: they are many."""

    scope: Scope
    effect: int
    write_time: int | None
    expires_at: int | None
    all_expired_at: int | None
    origin: Origin
    parts: int

    def load(self, admitted: AdmittedChange) -> None:
        """Load the content of this change, without parsing its event if that was only scanned."""
        match = admitted.match
        if match is not None and match.regex_match is None:
            has = match.present_times
            self.scope, self.effect, self.origin, self.parts = match.decode_scope(), match.effect, _LOG, 1
            self.write_time = match.write_time if has & _WRITTEN else None
            self.expires_at = match.expires_at if has & _EXPIRY else None
            self.all_expired_at = match.all_expired_at if has & _EXPIRED else None
            return
        change = admitted.change
        self.scope, self.effect, self.origin, self.parts = change.scope, change.effect, change.origin, change.parts
        self.write_time, self.expires_at = change.write_time, change.expires_at
        self.all_expired_at = change.all_expired_at

    def add_to(self, key_read: KeyRead, admitted: AdmittedChange) -> None:
        """Add the change to the read of its row."""
        key_read.events += 1
        if admitted.is_released:
            key_read.is_released = True
        written = self.write_time
        if written is not None and (key_read.newest is None or written > key_read.newest):
            key_read.newest = written
        if self.scope is _PARTITION:
            if self.scope > key_read.scope:
                key_read.scope = self.scope
            if written is not None and (key_read.deleted_at is None or written > key_read.deleted_at):
                key_read.deleted_at = written
        expires = self.expires_at
        if expires is not None and (key_read.first_expires is None or expires < key_read.first_expires):
            key_read.first_expires = expires
        name, awaited = admitted.id, key_read.awaited
        if name is not None and name not in awaited:
            unproven = (written, _NAN, known_effect(self.effect), known_expiry(self.all_expired_at))
            awaited[name] = _new(_Awaited, unproven)


def collect_row_reads(
    changes: Iterable[AdmittedChange],
    by_name: dict[Name, KeyRead],
    collected: list[tuple[KeyRead, AdmittedChange]],
    consistency: int,
    has_rows: bool,
    note: Callable[[AdmittedChange], None],
    add: Callable[[AdmittedChange], None],
) -> bool:
    """Make reads of the rows that changes concern, one per key, in `by_name`; list each change with its read in
    `collected`. Call `note` with changes that delete, or write what expires, and `add` with those that concern more
    than a row, verify, or may wait. `has_rows` says that the table has clustering columns; without, a partition is one
    row.

    Return whether a snapshot or a repair requests some row: then no event says whether it expires.
    """
    content = _ChangeContent()
    asks_ttl = False
    for admitted in changes:
        content.load(admitted)
        # 1. Note deletions and expiry, whatever becomes of the change.
        if admitted.id is None:
            asks_ttl = asks_ttl or content.origin is not _LOG
        elif content.effect & _DELETES or content.expires_at is not None or content.scope is _TABLE:
            note(admitted)
        # 2. Leave all but ordinary changes of a row to `add`.
        is_row = content.scope is _ROW or (content.scope is _PARTITION and not has_rows)
        if not is_row or admitted.verifying is not None or None in admitted.values:
            add(admitted)
            continue
        # 3. Find the row's read, or make one.
        event, key = admitted.event, admitted.key
        topic, partition = event.topic, event.partition
        name = (topic, partition, key, None)
        key_read = by_name.get(name)
        if key_read is None:
            if admitted.id is not None and (admitted.is_published or admitted.pause_s):
                add(admitted)  # such a change alone is no reason to read the row now
                continue
            is_scanned = content.origin not in _UNSCANNED
            key_read = KeyRead(
                topic,
                partition,
                key,
                admitted.values,
                content.scope,
                None,
                content.parts,
                event,
                consistency,
                is_scanned,
            )
            by_name[name] = key_read
        # 4. Read the row for this change too.
        content.add_to(key_read, admitted)
        collected.append((key_read, admitted))
    return asks_ttl


def index_by_key(reads: Sequence[KeyRead]) -> tuple[dict[Key, KeyRead], dict[Key, list[KeyRead]]]:
    """Return one read of each key, and the repeated ones: several events partitions may have a key, such as after
    partitions were added.
    """
    reads_by_key = {key_read.values: key_read for key_read in reads}
    repeated_reads: dict[Key, list[KeyRead]] = {}
    if len(reads_by_key) < len(reads):
        for key_read in reads:
            if reads_by_key[key_read.values] is not key_read:
                repeated_reads.setdefault(key_read.values, []).append(key_read)
    return reads_by_key, repeated_reads


def group_by_level(reads: Iterable[KeyRead], clustered: bool) -> tuple[dict[int, list[KeyRead]], list[KeyRead]]:
    """Return the reads of rows for changes of this batch, by their consistency level; and all others: of markers, of
    due keys, and those that verify. `clustered` says that the table has clustering columns; without, a partition is one
    row.
    """
    reads_by_level: dict[int, list[KeyRead]] = {}
    others: list[KeyRead] = []
    level: int | None = None
    members: list[KeyRead] = []
    for key_read in reads:
        scope = key_read.scope
        is_row = scope is _ROW or (scope is _PARTITION and not clustered)
        if not is_row or key_read.unconfirmed is not None or key_read.verifying is not None:
            others.append(key_read)
            continue
        if level is None or key_read.consistency != level:
            level = key_read.consistency
            members = reads_by_level.setdefault(level, [])
        members.append(key_read)
    return reads_by_level, others
