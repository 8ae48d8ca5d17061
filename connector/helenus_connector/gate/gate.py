"""The gate `one`: a change goes on with its first report. `interfaces.gate` has the contract.

Copies of a confirmed change are dropped. Copies of one that is published but not confirmed go on as such: the resolver
has them wait with their key.
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
        self._counts: dict[tuple[str, int, int, Key], int] = {}
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
        self._counts.clear()
        self._caches.begin()
        admitted = self._admitted(events, made_at, intake)
        return chain(admitted, self._overdue(waits, made_at, intake)) if waits.overdue else admitted

    def count_replicas(self, topic: str, partition: int, values: Key, change: bytes) -> int:
        cache = self._caches.of(topic, partition)
        entry = cache.look(change)
        if self._partition_columns is None:
            self._partition_columns = self._codec.partition_columns if self._replicas.some() else 0
        key = values[: self._partition_columns]
        name = (topic, partition, entry.nodes, key)
        count = self._counts.get(name)
        if count is None:
            count = self._counts[name] = self._reported(cache, entry, key)
        return count

    def mark(
        self, topic: str, partition: int, changes: Iterable[bytes], is_confirmed: bool, by_age: bool = False
    ) -> None:
        flags = PUBLISHED
        if is_confirmed:
            flags |= CONFIRMED | BY_AGE if by_age else CONFIRMED
        self._caches.of(topic, partition).mark(changes, flags)

    def save(self) -> None:
        self._caches.save()

    def close(self) -> None:
        self._caches.close()

    def _admitted(self, events: Iterable[Event], made_at: float, intake: Intake) -> Iterator[AdmittedChange]:
        found, stopped, at = list(events), intake.at_gate.stopped, 0
        counted = (partial(self._counted, intake), partial(self._is_done, intake)) if self._counts_reports else ()
        ordinary = Admission(self._codec, stopped, *counted)
        while at < len(found):
            event, start = found[at], at
            if stopped and event.partition in stopped:
                at += 1
                continue  # it is read again
            cache = self._caches.of(event.topic, event.partition)
            admitted: list[AdmittedChange] = []
            try:
                ordinary.run(found, at, cache, admitted)
                at = ordinary.at
                if at == start:  # it needs more than that
                    at += 1
                    admitted += self._admit(event, cache, ordinary.values, intake)
            except Malformed as error:
                at = ordinary.at + 1
                self._malformed(found[at - 1], error, made_at, intake)
            intake.read += at - start
            yield from admitted
        intake.confirmed += ordinary.confirmed
        for node, count in ordinary.paused.items():
            _note_pause(intake, node, count)

    def _malformed(self, event: Event, error: Malformed, made_at: float, intake: Intake, copies: int = 1) -> None:
        if isinstance(error, Outgrown) or event_time(event) < made_at:
            intake.outdated += copies
        else:
            where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
            intake.poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))

    def _admit(
        self, event: Event, cache: ChangeCache, known: dict[bytes, Key], intake: Intake
    ) -> Iterable[AdmittedChange]:
        """One event that another agent wrote, or that is of more than a key; `known` are the columns of keys."""
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
                self._is_done(intake, name, event)
            return ()
        if change.scope is _TABLE:
            # Rows go whatever their write times: who writes one again with its own may write the very same bytes.
            cache.clear()
        if name is not None:
            cache.report(name, entry, reporter.bit)
        values: Key = ()
        if change.scope is not _TABLE:
            found = known.get(key)
            values = known[key] = decode_key(codec, key) if found is None else found
        if change.scope is _RANGE:
            check_bounds(codec, values, (change.start, change.end))
        admitted = AdmittedChange(event, change, key, values, name, 1, name is not None and entry.flags & PUBLISHED > 0)
        if name is not None and entry.repeats and (pause_s := cache.pause(entry)):
            admitted.pause_s = pause_s
            _note_pause(intake, node, 1)
        goes_on = self._counted(intake, admitted, entry, node, event) if self._counts_reports else admitted
        return () if goes_on is None else (goes_on,)

    def _counted(
        self, intake: Intake, admitted: AdmittedChange, entry: CacheEntry, node: bytes, event: Event
    ) -> AdmittedChange | None:
        """What goes on when one more `event` of a change came; only where reports are counted."""
        raise NotImplementedError

    def _is_done(self, intake: Intake, change: bytes, event: Event) -> None:
        """A copy of a confirmed change came."""

    def _overdue(self, waits: GateWaits, made_at: float, intake: Intake) -> Iterator[AdmittedChange]:
        """What has waited at the gate: it had another level before, and goes on."""
        for waiting in waits.overdue:
            admitted = self._again(waiting, made_at, intake)
            intake.at_gate.gone.append((waiting.event.partition, waiting.id))
            if admitted is not None:
                intake.at_gate.completed += 1
                yield admitted

    def _again(self, waiting: WaitingChange, made_at: float, intake: Intake) -> AdmittedChange | None:
        """A change that waited, from its event; None if the table can't have its key any more."""
        event, codec = waiting.event, self._codec
        try:
            change, key = decode_event(event, codec)
            values = decode_key(codec, key)
            if change.scope is _RANGE:
                check_bounds(codec, values, (change.start, change.end))
        except Malformed as error:
            self._malformed(event, error, made_at, intake, waiting.copies)
            return None
        return AdmittedChange(event, change, key, values, waiting.id, waiting.copies)

    def _reported(self, cache: ChangeCache, entry: CacheEntry, key: Key) -> int:
        """How many replicas of a partition reported; the event at hand is of one, unless of another data centre."""
        hashed = routing_key(key) if key else None
        replicas = self._replicas.nodes(hashed)
        groups = cache.nodes(entry)
        if any(len(nodes) > 1 for nodes in groups):
            # Of nodes that share a bit, one of another data centre may be the one that reported.
            everywhere = self._replicas.holders(hashed)
            groups = [nodes for nodes in groups if nodes & everywhere <= replicas]
        return max(int(self._replicas.alone()), sum(not nodes.isdisjoint(replicas) for nodes in groups))


def _note_pause(intake: Intake, node: bytes, count: int) -> None:
    name = node.decode(errors="replace")
    intake.paused[name] = intake.paused.get(name, 0) + count
