"""The reads of a batch's rows: changes of one key become one read. Reads by their key, and by their level.

It runs as it is, and compiled by Cython with the types of `_row_reads.pxd`: the results are the same.
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
_WRITTEN, _EXPIRY, _EXPIRED = HAS_WRITTEN, HAS_EXPIRES, HAS_EXPIRED  # in C
_DELETES = int(Effect.GONE | Effect.DELETES)
_NAN = math.nan
_new = tuple.__new__
_Awaited = UnprovenChange


def collect_row_reads(
    changes: Iterable[AdmittedChange],
    by_name: dict[Name, KeyRead],
    collected: list[tuple[KeyRead, AdmittedChange]],
    consistency: int,
    has_rows: bool,
    note: Callable[[AdmittedChange], None],
    add: Callable[[AdmittedChange], None],
) -> bool:
    """Read the keys of changes: what changes of one key have in common is one work, by its name. Those that delete, or
    write what expires, are to be `note`d; what is more than a row, or waits, is `add`ed. Unless a table `has_rows`
    within its partitions, a partition is one row. Returns whether some are no changes: a snapshot, or a repair, asks
    for a row of which no event says whether it expires.
    """
    some_asked = False
    for admitted in changes:
        values, name_of, event, match = admitted.values, admitted.id, admitted.event, admitted.match
        origin, parts = _LOG, 1
        if match is not None and match.regex_match is None:
            has, effect, scope = match.present_times, match.effect, match.decode_scope()
            written = match.write_time if has & _WRITTEN else None
            expires = match.expires_at if has & _EXPIRY else None
            expired = match.all_expired_at if has & _EXPIRED else None
        else:
            change = admitted.change
            scope, effect, written, expires = change.scope, change.effect, change.write_time, change.expires_at
            expired, origin, parts = change.all_expired_at, change.origin, change.parts
        if name_of is not None and (effect & _DELETES or expires is not None or scope is _TABLE):
            note(admitted)
        if name_of is None and origin is not _LOG:
            some_asked = True
        is_row = scope is _ROW or (scope is _PARTITION and not has_rows)
        if not is_row or admitted.verifying is not None or None in values:
            add(admitted)
            continue
        key = admitted.key
        topic, partition = event.topic, event.partition
        name = (topic, partition, key, None)
        key_read = by_name.get(name)
        if key_read is None:
            if name_of is not None and (admitted.is_published or admitted.pause_s):
                add(admitted)
                continue
            key_read = KeyRead(topic, partition, key, values, scope, None, parts, event, consistency)
            key_read.events = 1
            key_read.newest = written
            if origin is not _LOG:
                key_read.is_scanned = origin not in _UNSCANNED
            by_name[name] = key_read
        else:
            key_read.events += 1
            if scope is _PARTITION and scope > key_read.scope:
                key_read.scope = scope
            if written is not None and (key_read.newest is None or written > key_read.newest):
                key_read.newest = written
        if (
            scope is _PARTITION
            and written is not None
            and (key_read.deleted_at is None or written > key_read.deleted_at)
        ):
            key_read.deleted_at = written
        if admitted.is_released:
            key_read.is_released = True
        collected.append((key_read, admitted))
        if expires is not None and (key_read.first_expires is None or expires < key_read.first_expires):
            key_read.first_expires = expires
        if name_of is not None:
            awaited = key_read.awaited
            if name_of not in awaited:
                awaited[name_of] = _new(_Awaited, (written, _NAN, known_effect(effect), known_expiry(expired)))
    return some_asked


def index_by_key(reads: Sequence[KeyRead]) -> tuple[dict[Key, KeyRead], dict[Key, list[KeyRead]]]:
    """Works by the keys that they read; and more of them, where several read one key."""
    reads_by_key = {key_read.values: key_read for key_read in reads}
    more: dict[Key, list[KeyRead]] = {}
    if len(reads_by_key) < len(reads):
        for key_read in reads:
            if reads_by_key[key_read.values] is not key_read:
                more.setdefault(key_read.values, []).append(key_read)
    return reads_by_key, more


def group_by_level(reads: Iterable[KeyRead], clustered: bool) -> tuple[dict[int, list[KeyRead]], list[KeyRead]]:
    """The works of rows that changes alone ask for, by the level to read them at; and the others. Unless a table's rows
    are `clustered` in partitions, a partition is one row.
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
