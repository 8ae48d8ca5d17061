"""All that a batch reads: the changes of one key become one read, and so do those of one delete marker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from helenus_connector.gate.event_content import check_bounds, decode_key, read_scope
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.reread._key_read import KeyRead, deletion_time, unproven_change
from helenus_connector.reread._row_reads import collect_row_reads
from helenus_connector.unconfirmed.unconfirmed_key import Name, UnconfirmedKey, later_time
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, pack_changes, unpack_changes
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Origin, Scope

_ROW, _PARTITION = Scope.ROW, Scope.PARTITION  # an enum's members are slow to look up
_TABLE, _RANGE = Scope.TABLE, Scope.RANGE
_UNSCANNED = Origin.LOG, Origin.REPAIR, Origin.STATE


class KeyReads:
    """What a batch reads, `by_name`, and the keys that it leaves `waiting` for a later one.

    `verifications` are reads at the gate's level, which ask whether it shows changes that waited too long. `outdated`
    are due keys that the table can't have any more. `asks_ttl`: some rows are read without an event that says whether
    they expire.
    """

    def __init__(self, codec: KeyCodec, consistency: int, gate_level: int = 0) -> None:
        self.by_name: dict[Name, KeyRead] = {}
        self.verifications: dict[Name, KeyRead] = {}
        self.waiting: dict[Name, UnconfirmedKey] = {}
        self.outdated: list[UnconfirmedKey] = []
        self.asks_ttl = False
        self._codec = codec
        self._consistency = consistency
        self._gate_level = gate_level
        self._awaited: dict[Name, dict[bytes, UnprovenChange]] = {}
        # Each with its change, whose copies are counted when all events are read:
        self._reads_of_changes: list[tuple[KeyRead, AdmittedChange]] = []
        self._keys_of_changes: list[tuple[UnconfirmedKey, AdmittedChange]] = []

    def take(self, changes: Iterable[AdmittedChange], note: Callable[[AdmittedChange], None]) -> None:
        """Add changes as `add` does; call `note` with those that may delete something or write what expires."""
        has_rows = self._codec.partition_columns < self._codec.columns
        if collect_row_reads(
            changes, self.by_name, self._reads_of_changes, self._consistency, has_rows, note, self.add
        ):
            self.asks_ttl = True

    def add(self, admitted: AdmittedChange) -> None:
        """Have the key of a change read. A change that is published already, and whose key no other change has read,
        waits with its key.
        """
        event, change, key = admitted.event, admitted.change, admitted.key
        bounds = (change.start, change.end) if change.scope is _RANGE else None
        name = (event.topic, event.partition, key, bounds)
        scope = read_scope(change, admitted.values)
        if admitted.verifying is not None:
            self._verify(name, scope, admitted)
            return
        key_read = self.by_name.get(name)
        if key_read is None:
            if admitted.id is not None and (admitted.is_published or admitted.pause_s):
                self._wait(name, admitted, admitted.id)
                return
            key_read = KeyRead(
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
            self.by_name[name] = key_read
        elif scope > key_read.scope:
            key_read.scope = scope
        key_read.events += 1
        key_read.is_released |= admitted.is_released
        self._reads_of_changes.append((key_read, admitted))
        key_read.note(change)
        if change.expires_at is not None and (
            key_read.first_expires is None or change.expires_at < key_read.first_expires
        ):
            key_read.first_expires = change.expires_at
        if admitted.id is not None:
            key_read.awaited.setdefault(admitted.id, unproven_change(change))

    def add_due(
        self, overdue_keys: Iterable[UnconfirmedKey], level: Callable[[UnconfirmedKey, Key, Iterable[bytes]], int]
    ) -> None:
        """Have keys read that are due, at the `level` that confirms them. Call once, after all changes were added."""
        for key_read, admitted in self._reads_of_changes:
            if admitted.copies > 1:
                key_read.events += admitted.copies - 1
        for waiting_key, admitted in self._keys_of_changes:
            waiting_key.copies += admitted.copies
        self._reads_of_changes.clear()
        self._keys_of_changes.clear()
        for unconfirmed in overdue_keys:
            self.asks_ttl |= unconfirmed.unread > 0  # a snapshot may have requested it
            try:
                self._add_due(unconfirmed, level)
            except Malformed:
                self.outdated.append(unconfirmed)
        for name, waiting in self.waiting.items():
            waiting.awaited = pack_changes(self._awaited[name])

    def _verify(self, name: Name, scope: Scope, admitted: AdmittedChange) -> None:
        topic, partition, key, bounds = name
        event, change = admitted.event, admitted.change
        key_read = self.verifications.get(name)
        if key_read is None:
            key_read = KeyRead(topic, partition, key, admitted.values, scope, bounds, event=event)
            key_read.consistency, key_read.verifying = self._gate_level, []
            self.verifications[name] = key_read
        key_read.scope = max(key_read.scope, scope)
        key_read.verifying = [*(key_read.verifying or ()), admitted]
        key_read.note(change)
        key_read.awaited[admitted.id or b""] = unproven_change(change)

    def _wait(self, name: Name, admitted: AdmittedChange, change: bytes) -> None:
        topic, partition, key, bounds = name
        scope, since = read_scope(admitted.change, admitted.values), admitted.event.timestamp / 1000
        waiting_key = self.waiting.get(name)
        if waiting_key is None:
            waiting_key = self.waiting[name] = UnconfirmedKey(topic, partition, key, scope, bounds=bounds, since=since)
        self._awaited.setdefault(name, {})[change] = unproven_change(admitted.change)
        waiting_key.scope = max(waiting_key.scope, scope)
        waiting_key.pause_s = max(waiting_key.pause_s, admitted.pause_s)
        self._keys_of_changes.append((waiting_key, admitted))
        waiting_key.newest = later_time(waiting_key.newest, admitted.change.write_time)
        waiting_key.deleted_at = later_time(waiting_key.deleted_at, deletion_time(admitted.change))

    def _add_due(
        self, overdue_key: UnconfirmedKey, level: Callable[[UnconfirmedKey, Key, Iterable[bytes]], int]
    ) -> None:
        scope = Scope(overdue_key.scope)
        key = overdue_key.key if scope is _TABLE else self._codec.current_key(overdue_key.key)
        name = (overdue_key.topic, overdue_key.partition, key, overdue_key.bounds)
        values = () if scope is _TABLE else decode_key(self._codec, key)
        check_bounds(self._codec, values, overdue_key.bounds)
        awaited = unpack_changes(overdue_key.awaited)
        waiting_key = self.waiting.pop(name, None)
        if waiting_key is not None:
            awaited.update(self._awaited[name])
            overdue_key.copies += waiting_key.copies
            overdue_key.since = min(overdue_key.since, waiting_key.since)
            overdue_key.newest = later_time(overdue_key.newest, waiting_key.newest)
            overdue_key.deleted_at = later_time(overdue_key.deleted_at, waiting_key.deleted_at)
        key_read = self.by_name.get(name)
        if key_read is None:
            # A key that was never read has to be published first: a higher level may be unavailable for long.
            consistency = self._consistency if overdue_key.unread else level(overdue_key, values, awaited)
            key_read = KeyRead(
                overdue_key.topic,
                overdue_key.partition,
                key,
                values,
                scope,
                overdue_key.bounds,
                consistency=consistency,
            )
            self.by_name[name] = key_read
        key_read.scope = max(key_read.scope, scope)
        key_read.unconfirmed = overdue_key
        key_read.newest, key_read.deleted_at = (
            later_time(key_read.newest, overdue_key.newest),
            later_time(key_read.deleted_at, overdue_key.deleted_at),
        )
        key_read.awaited = {**awaited, **key_read.awaited}
