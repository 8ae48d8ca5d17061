"""The gate `one` admits a change with its first report. `interfaces.gate` has the contract.

Copies of a confirmed change are dropped. Copies of a change that is published but not confirmed are admitted and marked
as published: the resolver lets them wait with their key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from helenus_connector.gate._admission import Admission
from helenus_connector.gate.cache import BY_AGE, CONFIRMED, PUBLISHED, CacheEntry, Caches, ChangeCache
from helenus_connector.gate.event_content import check_bounds, decode_event, decode_key, event_time, identity
from helenus_connector.gate.replicas import Replicas, routing_key
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, Gap, WaitingChange
from helenus_connector.interfaces.gate import NOTHING_WAITS, GateWaits, Intake
from helenus_schemas.codec.key import Key, KeyCodec, Outgrown
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

_TABLE, _RANGE = Scope.TABLE, Scope.RANGE  # an enum's members are slow to look up


class OneGate:
    """The gate of one table in one process; its `caches` are shared by the host's processes."""

    def __init__(self, replicas: Replicas, caches: Caches) -> None:
        self._replicas = replicas
        self._caches = caches
        self._replica_counts: dict[tuple[str, int, int, Key], int] = {}
        self._partition_columns: int | None = None
        self._codec: KeyCodec
        self._counts_reports = False

    def admit(
        self,
        events: Iterable[Event],
        codec: KeyCodec,
        made_at: float,
        intake: Intake,
        waits: GateWaits = NOTHING_WAITS,
    ) -> Iterator[AdmittedChange]:
        self._codec, self._partition_columns = codec, None
        self._replica_counts.clear()
        self._caches.begin()
        admitted = self._admit_events(events, made_at, intake)
        return chain(admitted, self._admit_overdue(waits, made_at, intake)) if waits.overdue else admitted

    def count_replicas(self, topic: str, partition: int, values: Key, change: bytes) -> int:
        cache = self._caches.cache_for(topic, partition)
        entry = cache.look(change)
        if self._partition_columns is None:
            self._partition_columns = self._codec.partition_columns if self._replicas.is_partial() else 0
        key = values[: self._partition_columns]
        name = (topic, partition, entry.nodes, key)
        count = self._replica_counts.get(name)
        if count is None:
            count = self._replica_counts[name] = self._count_reported(cache, entry, key)
        return count

    def mark(
        self, topic: str, partition: int, changes: Iterable[bytes], is_confirmed: bool, by_age: bool = False
    ) -> None:
        flags = PUBLISHED
        if is_confirmed:
            flags |= CONFIRMED | BY_AGE if by_age else CONFIRMED
        self._caches.cache_for(topic, partition).mark(changes, flags)

    def save(self) -> None:
        self._caches.save()

    def close(self) -> None:
        self._caches.close()

    def _admit_events(self, events: Iterable[Event], made_at: float, intake: Intake) -> Iterator[AdmittedChange]:
        event_list, stopped, index = list(events), intake.at_gate.stopped, 0
        callbacks = (
            (partial(self._count_report, intake), partial(self._note_confirmed_copy, intake))
            if self._counts_reports
            else ()
        )
        admission = Admission(self._codec, stopped, *callbacks)
        while index < len(event_list):
            event, start = event_list[index], index
            if stopped and event.partition in stopped:
                index += 1
                continue  # it is read again
            cache = self._caches.cache_for(event.topic, event.partition)
            admitted: list[AdmittedChange] = []
            try:
                admission.admit_events(event_list, index, cache, admitted)
                index = admission.index
                if index == start:  # it needs more than that
                    index += 1
                    admitted += self._admit(event, cache, admission.values, intake)
            except Malformed as error:
                index = admission.index + 1
                self._note_malformed(event_list[index - 1], error, made_at, intake)
            intake.read += index - start
            yield from admitted
        intake.confirmed += admission.confirmed
        for node, count in admission.paused.items():
            _note_pause(intake, node, count)

    def _note_malformed(self, event: Event, error: Malformed, made_at: float, intake: Intake, copies: int = 1) -> None:
        if isinstance(error, Outgrown) or event_time(event) < made_at:
            intake.outdated += copies
        else:
            where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
            intake.poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))

    def _admit(
        self, event: Event, cache: ChangeCache, values_by_key: dict[bytes, Key], intake: Intake
    ) -> Iterable[AdmittedChange]:
        """Admit an event of another agent, or one of more than a key. `values_by_key` caches decoded keys."""
        codec = self._codec
        change, key = decode_event(event, codec)
        if change.scope is Scope.GAP:
            intake.gaps.append(Gap(event.partition, event.offset, change.node, change.write_time))
            intake.confirmed += 1
            return ()
        node, name = (change.node or "").encode(), identity(change, key)
        reporter, entry = cache.reporter(node), cache.look(name) if name is not None else CacheEntry()
        if not cache.hears(entry, reporter, change.segment, change.position):
            intake.confirmed += 1
            if name is not None:
                self._note_confirmed_copy(intake, name, event)
            return ()
        if change.scope is _TABLE:
            # Rows go whatever their write times: who writes one again with its own may write the very same bytes.
            cache.clear()
        if name is not None:
            cache.report(name, entry, reporter.bit)
        values: Key = ()
        if change.scope is not _TABLE:
            cached = values_by_key.get(key)
            values = values_by_key[key] = decode_key(codec, key) if cached is None else cached
        if change.scope is _RANGE:
            check_bounds(codec, values, (change.start, change.end))
        admitted = AdmittedChange(event, change, key, values, name, 1, name is not None and entry.flags & PUBLISHED > 0)
        if name is not None and entry.repeats and (pause_s := cache.pause(entry)):
            admitted.pause_s = pause_s
            _note_pause(intake, node, 1)
        completed = self._count_report(intake, admitted, entry, node, event) if self._counts_reports else admitted
        return () if completed is None else (completed,)

    def _count_report(
        self, intake: Intake, admitted: AdmittedChange, entry: CacheEntry, node: bytes, event: Event
    ) -> AdmittedChange | None:
        """Return the change that one more `event` completes, else None. Called only where reports are counted."""
        raise NotImplementedError

    def _note_confirmed_copy(self, intake: Intake, change: bytes, event: Event) -> None:
        """Note that a copy of a confirmed change came."""

    def _admit_overdue(self, waits: GateWaits, made_at: float, intake: Intake) -> Iterator[AdmittedChange]:
        """Admit the changes that waited at the gate when it had another level."""
        for waiting in waits.overdue:
            admitted = self._admit_waiting(waiting, made_at, intake)
            intake.at_gate.gone.append((waiting.event.partition, waiting.id))
            if admitted is not None:
                intake.at_gate.completed += 1
                yield admitted

    def _admit_waiting(self, waiting: WaitingChange, made_at: float, intake: Intake) -> AdmittedChange | None:
        """Admit a change that waited, decoded from its event; None if the table can no longer have its key."""
        event, codec = waiting.event, self._codec
        try:
            change, key = decode_event(event, codec)
            values = decode_key(codec, key)
            if change.scope is _RANGE:
                check_bounds(codec, values, (change.start, change.end))
        except Malformed as error:
            self._note_malformed(event, error, made_at, intake, waiting.copies)
            return None
        return AdmittedChange(event, change, key, values, waiting.id, waiting.copies)

    def _count_reported(self, cache: ChangeCache, entry: CacheEntry, key: Key) -> int:
        """Return how many replicas of a partition reported a change."""
        routing = routing_key(key) if key else None
        replicas = self._replicas.nodes(routing)
        groups = cache.nodes(entry)
        if any(len(nodes) > 1 for nodes in groups):
            # Of nodes that share a bit, one of another data centre may be the one that reported.
            everywhere = self._replicas.nodes_everywhere(routing)
            groups = [nodes for nodes in groups if nodes & everywhere <= replicas]
        return max(int(self._replicas.are_all_read()), sum(not nodes.isdisjoint(replicas) for nodes in groups))


def _note_pause(intake: Intake, node: bytes, count: int) -> None:
    name = node.decode(errors="replace")
    intake.paused[name] = intake.paused.get(name, 0) + count
