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
    taken: list[tuple[KeyRead, AdmittedChange]],
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
        work = by_name.get(name)
        if work is None:
            if name_of is not None and (admitted.is_published or admitted.pause_s):
                add(admitted)
                continue
            work = KeyRead(topic, partition, key, values, scope, None, parts, event, consistency)
            work.events = 1
            work.newest = written
            if origin is not _LOG:
                work.is_scanned = origin not in _UNSCANNED
            by_name[name] = work
        else:
            work.events += 1
            if scope is _PARTITION and scope > work.scope:
                work.scope = scope
            if written is not None and (work.newest is None or written > work.newest):
                work.newest = written
        if scope is _PARTITION and written is not None and (work.deleted_at is None or written > work.deleted_at):
            work.deleted_at = written
        if admitted.is_released:
            work.is_released = True
        taken.append((work, admitted))
        if expires is not None and (work.first_expires is None or expires < work.first_expires):
            work.first_expires = expires
        if name_of is not None:
            awaited = work.awaited
            if name_of not in awaited:
                awaited[name_of] = _new(_Awaited, (written, _NAN, known_effect(effect), known_expiry(expired)))
    return some_asked


def index_by_key(works: Sequence[KeyRead]) -> tuple[dict[Key, KeyRead], dict[Key, list[KeyRead]]]:
    """Works by the keys that they read; and more of them, where several read one key."""
    found = {work.values: work for work in works}
    more: dict[Key, list[KeyRead]] = {}
    if len(found) < len(works):
        for work in works:
            if found[work.values] is not work:
                more.setdefault(work.values, []).append(work)
    return found, more


def group_by_level(works: Iterable[KeyRead], clustered: bool) -> tuple[dict[int, list[KeyRead]], list[KeyRead]]:
    """The works of rows that changes alone ask for, by the level to read them at; and the others. Unless a table's rows
    are `clustered` in partitions, a partition is one row.
    """
    found: dict[int, list[KeyRead]] = {}
    others: list[KeyRead] = []
    level: int | None = None
    members: list[KeyRead] = []
    for work in works:
        scope = work.scope
        is_row = scope is _ROW or (scope is _PARTITION and not clustered)
        if not is_row or work.unconfirmed is not None or work.verifying is not None:
            others.append(work)
            continue
        if level is None or work.consistency != level:
            level = work.consistency
            members = found.setdefault(level, [])
        members.append(work)
    return found, others
