"""One batch at the gate: events come in, the changes that go on come out. `interfaces.gate` has the contract.

Row events of our agents, which are most, are admitted by the loop in `_admission`; others one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from helenus_connector.gate._admission import Admission
from helenus_connector.gate._report_policy import ReportPolicy
from helenus_connector.gate.cache import PUBLISHED, CacheEntry, Caches, ChangeCache
from helenus_connector.gate.event_content import check_bounds, decode_event, decode_key, event_time, identity
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, WaitingChange, parse_gap
from helenus_connector.interfaces.gate import Intake
from helenus_schemas.codec.key import Key, KeyCodec, Outgrown
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope

_TABLE, _RANGE = Scope.TABLE, Scope.RANGE  # an enum's members are slow to look up


class ChangeGateBatch:
    """A batch of one table's events. Which report completes a change is up to the `policy`."""

    def __init__(
        self,
        caches: Caches,
        codec: KeyCodec,
        made_at: float,
        overdue: Sequence[WaitingChange],
        intake: Intake,
        policy: ReportPolicy,
    ) -> None:
        self.intake = intake
        self._caches = caches
        self._codec = codec
        self._made_at = made_at
        self._overdue = overdue
        self._policy = policy

    def admit(self, events: Iterable[Event]) -> Iterator[AdmittedChange]:
        yield from self._admit_events(list(events))
        for waiting in self._overdue:
            admitted = self._policy.settle_overdue(waiting, self._decode_waiting)
            if admitted is not None:
                yield admitted
        self.intake.at_gate.waits += self._policy.waiting_changes()

    def settle_verified(
        self, verified_changes: Iterable[AdmittedChange], unseen_changes: Iterable[AdmittedChange]
    ) -> int:
        at_gate, dropped, gone = self.intake.at_gate, 0, set()
        for admitted in verified_changes:
            at_gate.verified += 1
            gone.add((admitted.event.partition, admitted.id or b""))
        for admitted in unseen_changes:
            if admitted.verifying is not None and admitted.verifying.is_early:
                continue  # it may come yet
            at_gate.dropped += 1
            dropped += admitted.copies
            gone.add((admitted.event.partition, admitted.id or b""))
        if gone:
            at_gate.gone += gone
            at_gate.waits = [waiting for waiting in at_gate.waits if (waiting.event.partition, waiting.id) not in gone]
        return dropped

    def save(self) -> None:
        self._caches.save()

    def _admit_events(self, events: list[Event]) -> Iterator[AdmittedChange]:
        intake, policy, stopped, index = self.intake, self._policy, self.intake.at_gate.stopped, 0
        callbacks = (policy.count_report, policy.note_confirmed_copy) if policy.counts_reports else ()
        admission = Admission(self._codec, stopped, *callbacks)
        while index < len(events):
            event, start = events[index], index
            if stopped and event.partition in stopped:
                index += 1
                continue  # it is read again
            cache = self._caches.cache_for(event.topic, event.partition)
            admitted: list[AdmittedChange] = []
            try:
                admission.admit_events(events, index, cache, admitted)
                index = admission.index
                if index == start:  # it needs more than that
                    index += 1
                    admitted += self._admit(event, cache, admission.values)
            except Malformed as error:
                index = admission.index + 1
                self._note_malformed(events[index - 1], error)
            intake.read += index - start
            yield from admitted
        intake.confirmed += admission.confirmed
        for node, count in admission.paused.items():
            self._note_pause(node, count)

    def _admit(self, event: Event, cache: ChangeCache, values_by_key: dict[bytes, Key]) -> Iterable[AdmittedChange]:
        """Admit an event of another agent, or one of more than a key. `values_by_key` caches decoded keys."""
        intake, codec, policy = self.intake, self._codec, self._policy
        # 1. What does the event say, and was that said before?
        change, key = decode_event(event, codec)
        if change.scope is Scope.GAP:
            intake.gaps.append(parse_gap(event, change))
            intake.confirmed += 1
            return ()
        node, name = (change.node or "").encode(), identity(change, key)
        reporter, entry = cache.reporter(node), cache.look(name) if name is not None else CacheEntry()
        if not cache.hears(entry, reporter, change.segment, change.position):
            intake.confirmed += 1
            if name is not None:
                policy.note_confirmed_copy(name, event)
            return ()
        # 2. Note the report.
        if change.scope is _TABLE:
            # Rows go whatever their write times: who writes one again with its own may write the very same bytes.
            cache.clear()
        if name is not None:
            cache.report(name, entry, reporter.bit)
        # 3. Admit the change, if this report completes it.
        values = () if change.scope is _TABLE else self._decode_scope(change, key, values_by_key)
        admitted = AdmittedChange(event, change, key, values, name, 1, name is not None and entry.flags & PUBLISHED > 0)
        if name is not None and entry.repeats and (pause_s := cache.pause(entry)):
            admitted.pause_s = pause_s
            self._note_pause(node, 1)
        completed = policy.count_report(admitted, entry, node, event)
        return () if completed is None else (completed,)

    def _decode_waiting(self, waiting: WaitingChange) -> AdmittedChange | None:
        """Return a change that waited, decoded from its event; None if the table can no longer have its key."""
        event, codec = waiting.event, self._codec
        try:
            change, key = decode_event(event, codec)
            values = self._decode_scope(change, key, {})
        except Malformed as error:
            self._note_malformed(event, error, waiting.copies)
            return None
        return AdmittedChange(event, change, key, values, waiting.id, waiting.copies)

    def _decode_scope(self, change: Change, key: bytes, values_by_key: dict[bytes, Key]) -> Key:
        """Return the values of a change's key, and check the bounds of a range. Raises Malformed."""
        values = values_by_key.get(key)
        if values is None:
            values = values_by_key[key] = decode_key(self._codec, key)
        if change.scope is _RANGE:
            check_bounds(self._codec, values, (change.start, change.end))
        return values

    def _note_malformed(self, event: Event, error: Malformed, copies: int = 1) -> None:
        """Count an event whose key the table can't have as outdated if it is of before the table, else as poison."""
        if isinstance(error, Outgrown) or event_time(event) < self._made_at:
            self.intake.outdated += copies
        else:
            where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
            self.intake.poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))

    def _note_pause(self, node: bytes, count: int) -> None:
        name = node.decode(errors="replace")
        self.intake.paused[name] = self.intake.paused.get(name, 0) + count
