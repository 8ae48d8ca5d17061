"""The gate `one`: a change goes on with its first report. `interfaces.gate` has the contract.

Copies of a confirmed change are dropped. Copies of one that is published but not confirmed go on as such: the resolver
has them wait with their key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from helenus_connector.gate.cache import BY_AGE, CONFIRMED, PUBLISHED, Caches, ChangeCache, Entry, change_id
from helenus_connector.gate.event import check, decoded, identity, values_of, written_at
from helenus_connector.gate.replicas import Replicas, routing_key
from helenus_connector.interfaces.gate import NOTHING_WAITS, Admitted, Event, Gap, Intake, Waiting, Waits
from helenus_schemas.codec.key import Key, KeyCodec, Outgrown
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.event.own_format import log_position, match_own_format, parse_match

_TABLE, _RANGE = Scope.TABLE, Scope.RANGE  # an enum's members are slow to look up


class OneGate:
    """The gate of one table in one process; its `caches` are shared by the host's processes."""

    def __init__(self, replicas: Replicas, caches: Caches) -> None:
        self._replicas = replicas
        self._caches = caches
        self._counts: dict[tuple[str, int, int, Key], int] = {}
        self._values: dict[bytes, Key] = {}
        self._met: dict[tuple[int, bytes, bytes, bytes], tuple[Entry, Admitted]] = {}
        self._partition_columns: int | None = None
        self._codec: KeyCodec
        self._counts_reports = False

    def admit(
        self,
        events: Iterable[Event],
        codec: KeyCodec,
        made_at: float,
        intake: Intake,
        waits: Waits = NOTHING_WAITS,
    ) -> Iterator[Admitted]:
        self._codec, self._partition_columns = codec, None
        self._counts.clear()
        self._values.clear()
        self._met.clear()
        self._caches.begin()
        admitted = self._admitted(events, made_at, intake)
        return chain(admitted, self._overdue(waits, made_at, intake)) if waits.overdue else admitted

    def nodes(self, topic: str, partition: int, values: Key, change: bytes) -> int:
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
        self._met.clear()
        self._values.clear()

    def close(self) -> None:
        self._caches.close()

    def _admitted(self, events: Iterable[Event], made_at: float, intake: Intake) -> Iterator[Admitted]:
        stopped, at, cache = intake.at_gate.stopped, None, None
        for event in events:
            if stopped and event.partition in stopped:
                continue  # it is read again
            intake.read += 1
            if cache is None or event.partition != at:
                at, cache = event.partition, self._caches.of(event.topic, event.partition)
            try:
                admitted = self._admit(event, cache, intake)
            except Malformed as error:
                if isinstance(error, Outgrown) or written_at(event) < made_at:
                    intake.outdated += 1
                    continue
                where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
                intake.poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))
                continue
            if admitted is not None:
                yield admitted

    def _admit(self, event: Event, cache: ChangeCache, intake: Intake) -> Admitted | None:
        codec = self._codec
        match = match_own_format(event.value) if event.value and event.key is not None else None
        copied: tuple[int, bytes, bytes, bytes] | None = None
        if match is not None and event.key is not None:
            key = codec.current(event.key)
            digest, node, scope = match.digest, match.node, match.scope
            copied = event.partition, key, digest, scope
            met = self._met.get(copied)
            if met is not None:
                entry, admitted = met
                bit = cache.bit(node)
                if not entry.nodes & bit:
                    entry.nodes |= bit
                    cache.last[node] = match
                admitted.copies += 1
                return self._counted(admitted, entry, node, event, intake) if self._counts_reports else None
            name: bytes | None = change_id(key, scope, digest)
        else:
            change, key = decoded(event, codec)
            if change.scope is Scope.GAP:
                intake.gaps.append(Gap(event.partition, event.offset, change.node, change.write_time))
                intake.confirmed += 1
                return None
            node, name = (change.node or "").encode(), identity(change, key)
        entry = cache.look(name) if name is not None else Entry()
        bit = cache.bit(node)
        is_again = entry.nodes & bit and cache.is_new(node, log_position(match or change))
        if is_again or not entry.nodes & bit:
            cache.last[node] = match or change  # what is sent again lies before
        if entry.flags and is_again:
            # Not sent again, but written again, with the very same bytes: what is known is of the write before.
            entry.nodes = entry.flags = 0
        elif entry.flags & CONFIRMED:
            if entry.nodes & bit or not entry.flags & BY_AGE:
                intake.confirmed += 1
                if name is not None:
                    self._is_done(name, event, intake)
                return None
            entry.flags &= ~(CONFIRMED | BY_AGE)  # until its key is read, also if this batch is done again
        if match is not None:
            change = parse_match(match)
        elif change.scope is _TABLE:
            # Rows go whatever their write times: who writes one again with its own may write the very same bytes.
            cache.clear()
            self._met.clear()
        if name is not None:
            cache.report(name, entry, bit)
        values: Key = ()
        if change.scope is not _TABLE:
            known = self._values.get(key)
            values = self._values[key] = values_of(codec, key) if known is None else known
        if change.scope is _RANGE:
            check(codec, values, (change.start, change.end))
        admitted = Admitted(event, change, key, values, name, 1, name is not None and entry.flags & PUBLISHED > 0)
        if copied is not None and not admitted.is_published:
            self._met[copied] = entry, admitted
        return self._counted(admitted, entry, node, event, intake) if self._counts_reports else admitted

    def _counted(self, admitted: Admitted, entry: Entry, node: bytes, event: Event, intake: Intake) -> Admitted | None:
        """What goes on when one more `event` of a change came; only where reports are counted."""
        raise NotImplementedError

    def _is_done(self, change: bytes, event: Event, intake: Intake) -> None:
        """A copy of a confirmed change came."""

    def _overdue(self, waits: Waits, made_at: float, intake: Intake) -> Iterator[Admitted]:
        """What has waited at the gate: it had another level before, and goes on."""
        for waiting in waits.overdue:
            admitted = self._again(waiting, made_at, intake)
            intake.at_gate.gone.append((waiting.event.partition, waiting.id))
            if admitted is not None:
                intake.at_gate.completed += 1
                yield admitted

    def _again(self, waiting: Waiting, made_at: float, intake: Intake) -> Admitted | None:
        """A change that waited, from its event; None if the table can't have its key any more."""
        event, codec = waiting.event, self._codec
        try:
            change, key = decoded(event, codec)
            values = values_of(codec, key)
            if change.scope is _RANGE:
                check(codec, values, (change.start, change.end))
        except Malformed as error:
            if isinstance(error, Outgrown) or written_at(event) < made_at:
                intake.outdated += waiting.copies
            else:
                where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
                intake.poison.append((event, HelenusError(Kind.POISON_EVENT, str(error), where)))
            return None
        return Admitted(event, change, key, values, waiting.id, waiting.copies)

    def _reported(self, cache: ChangeCache, entry: Entry, key: Key) -> int:
        """How many replicas of a partition reported; the event at hand is of one, unless of another data centre."""
        hashed = routing_key(key) if key else None
        replicas = self._replicas.nodes(hashed)
        groups = cache.nodes(entry)
        if any(len(nodes) > 1 for nodes in groups):
            # Of nodes that share a bit, one of another data centre may be the one that reported.
            everywhere = self._replicas.holders(hashed)
            groups = [nodes for nodes in groups if nodes & everywhere <= replicas]
        return max(int(self._replicas.alone()), sum(not nodes.isdisjoint(replicas) for nodes in groups))
