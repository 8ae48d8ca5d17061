"""What a batch reads: the changes of one key become one read, and so do those of one delete marker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from helenus_connector.gate.event_content import check_bounds, decode_key, read_scope
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.reread._key_read import KeyRead, deletion_time, unproven_change
from helenus_connector.reread._row_reads import collect_row_reads, group_by_level
from helenus_connector.reread._unread_keys import UnreadKeys
from helenus_connector.unconfirmed.unconfirmed_key import Name, UnconfirmedKey, later_time
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, pack_changes, unpack_changes
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Origin, Scope

_ROW, _PARTITION = Scope.ROW, Scope.PARTITION  # an enum's members are slow to look up
_TABLE, _RANGE = Scope.TABLE, Scope.RANGE
_UNSCANNED = Origin.LOG, Origin.REPAIR, Origin.STATE


class KeyReads:
    """What a batch reads: `by_name`; and what waits for a later one: `waiting`. `gone` are due keys that the table
    can't have any more. Works of `verified` ask whether a read at the gate's level shows their changes.
    `asks_ttl`: some rows are to be read of which no event says whether they expire.
    """

    def __init__(self, codec: KeyCodec, consistency: int, gate_level: int = 0) -> None:
        self.by_name: dict[Name, KeyRead] = {}
        self.verified: dict[Name, KeyRead] = {}
        self.waiting: dict[Name, UnconfirmedKey] = {}
        self.gone: list[UnconfirmedKey] = []
        self.asks_ttl = False
        self._codec = codec
        self._consistency = consistency
        self._gate_level = gate_level
        self._awaited: dict[Name, dict[bytes, UnprovenChange]] = {}
        self._taken: list[tuple[KeyRead, AdmittedChange]] = []
        self._waited: list[tuple[UnconfirmedKey, AdmittedChange]] = []

    def take(self, changes: Iterable[AdmittedChange], note: Callable[[AdmittedChange], None]) -> None:
        """Read the keys of changes: as `add`. Those that may delete something, or write what expires, are `note`d."""
        has_rows = self._codec.partition_columns < self._codec.columns
        if collect_row_reads(changes, self.by_name, self._taken, self._consistency, has_rows, note, self.add):
            self.asks_ttl = True

    def add(self, admitted: AdmittedChange) -> None:
        """Read a change's key; it waits with its key if it is published and nothing else asks for the key."""
        event, change, key = admitted.event, admitted.change, admitted.key
        bounds = (change.start, change.end) if change.scope is _RANGE else None
        name = (event.topic, event.partition, key, bounds)
        scope = read_scope(change, admitted.values)
        if admitted.verifying is not None:
            self._verify(name, scope, admitted)
            return
        work = self.by_name.get(name)
        if work is None:
            if admitted.id is not None and (admitted.is_published or admitted.pause_s):
                self._wait(name, admitted, admitted.id)
                return
            work = KeyRead(
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
        self._taken.append((work, admitted))
        work.note(change)
        if change.expires_at is not None and (work.first_expires is None or change.expires_at < work.first_expires):
            work.first_expires = change.expires_at
        if admitted.id is not None:
            work.awaited.setdefault(admitted.id, unproven_change(change))

    def add_due(
        self, due: Iterable[UnconfirmedKey], level: Callable[[UnconfirmedKey, Key, Iterable[bytes]], int]
    ) -> None:
        """Read keys that are due, at the `level` that confirms them. After all changes."""
        for work, admitted in self._taken:
            if admitted.copies > 1:
                work.events += admitted.copies - 1
        for held, admitted in self._waited:
            held.copies += admitted.copies
        self._taken.clear()
        self._waited.clear()
        for unconfirmed in due:
            self.asks_ttl |= unconfirmed.unread > 0  # a snapshot may have asked for it
            try:
                self._add_due(unconfirmed, level)
            except Malformed:
                self.gone.append(unconfirmed)
        for name, waiting in self.waiting.items():
            waiting.awaited = pack_changes(self._awaited[name])

    def _verify(self, name: Name, scope: Scope, admitted: AdmittedChange) -> None:
        topic, partition, key, bounds = name
        event, change = admitted.event, admitted.change
        work = self.verified.get(name)
        if work is None:
            work = KeyRead(topic, partition, key, admitted.values, scope, bounds, event=event)
            work.consistency, work.verifying = self._gate_level, []
            self.verified[name] = work
        work.scope = max(work.scope, scope)
        work.verifying = [*(work.verifying or ()), admitted]
        work.note(change)
        work.awaited[admitted.id or b""] = unproven_change(change)

    def _wait(self, name: Name, admitted: AdmittedChange, change: bytes) -> None:
        topic, partition, key, bounds = name
        scope, since = read_scope(admitted.change, admitted.values), admitted.event.timestamp / 1000
        held = self.waiting.get(name)
        if held is None:
            held = self.waiting[name] = UnconfirmedKey(topic, partition, key, scope, bounds=bounds, since=since)
        self._awaited.setdefault(name, {})[change] = unproven_change(admitted.change)
        held.scope = max(held.scope, scope)
        held.rest = max(held.rest, admitted.pause_s)
        self._waited.append((held, admitted))
        held.newest = later_time(held.newest, admitted.change.write_time)
        held.deleted_at = later_time(held.deleted_at, deletion_time(admitted.change))

    def _add_due(self, due: UnconfirmedKey, level: Callable[[UnconfirmedKey, Key, Iterable[bytes]], int]) -> None:
        scope = Scope(due.scope)
        key = due.key if scope is _TABLE else self._codec.current_key(due.key)
        name = (due.topic, due.partition, key, due.bounds)
        values = () if scope is _TABLE else decode_key(self._codec, key)
        check_bounds(self._codec, values, due.bounds)
        awaited = unpack_changes(due.awaited)
        newer = self.waiting.pop(name, None)
        if newer is not None:
            awaited.update(self._awaited[name])
            due.copies += newer.copies
            due.since = min(due.since, newer.since)
            due.newest = later_time(due.newest, newer.newest)
            due.deleted_at = later_time(due.deleted_at, newer.deleted_at)
        work = self.by_name.get(name)
        if work is None:
            # What was never read has to be published first: a higher level may not be had for long.
            consistency = self._consistency if due.unread else level(due, values, awaited)
            work = KeyRead(
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
        work.newest, work.deleted_at = later_time(work.newest, due.newest), later_time(work.deleted_at, due.deleted_at)
        work.awaited = {**awaited, **work.awaited}


class ReadTurns(NamedTuple):
    """What is read together: truncations one by one; markers by their turn, whether they verify changes or are stuck,
    and their level; rows by all of these but the turn.
    """

    tables: list[KeyRead]
    scopes: dict[tuple[int, bool, bool, int], list[KeyRead]]
    rows: dict[tuple[bool, bool, int], list[KeyRead]]


def order_reads(works: Sequence[KeyRead], clustered: bool, partition_columns: int, unread: UnreadKeys) -> ReadTurns:
    """Works by what is read together, of a table whose rows are `clustered` in partitions or not."""
    found = ReadTurns([], {}, {})
    turns: dict[Key, int] = defaultdict(int)
    ordinary: dict[int, list[KeyRead]] = {}
    others: Sequence[KeyRead] = works
    if not unread.has_stuck:
        ordinary, others = group_by_level(works, clustered)
    for consistency, members in ordinary.items():
        found.rows[False, False, consistency] = members
    for work in sorted(others, key=attrgetter("scope"), reverse=True):
        stuck, consistency = unread.is_stuck(work), work.consistency
        verifies = work.verifying is not None  # apart, as these are given up soon when replicas are away
        if work.scope is _TABLE:
            found.tables.append(work)
        elif work.scope is _ROW or not clustered:
            found.rows.setdefault((verifies, stuck, consistency), []).append(work)
        else:
            # What lies within the same partition is read one after the other: rows of it may be in both.
            partition = work.values[:partition_columns]
            found.scopes.setdefault((turns[partition], verifies, stuck, consistency), []).append(work)
            turns[partition] += 1
    return found
