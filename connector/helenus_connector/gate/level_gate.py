"""The gate of the other levels: a change goes on with the report that completes it. `interfaces.gate` has the contract.

    RF 3, local_quorum: node 1 reports a change, which waits; node 2 does, and it goes on; node 3's report is a copy.

Reports count that are of this batch, or that the driver says were made before: never those of the host's cache, whose
nodes may share a bit. Of the cache it takes only that a change went on already. So a host that lost its cache, or never
had the partition, has a change wait that went on before; it is verified in the end, and never lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate import levels
from helenus_connector.gate.cache import CONFIRMED, PUBLISHED, RELEASED, CacheEntry, Caches
from helenus_connector.gate.gate import OneGate
from helenus_connector.gate.replicas import Replicas, routing_key
from helenus_connector.gate.waiting import weight
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, Nodes, WaitingChange
from helenus_connector.interfaces.gate import NOTHING_WAITS, GateState, GateWaits, Intake
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.event.change import Scope

_TABLE = Scope.TABLE
_NONE: Mapping[bytes, tuple[Nodes, int]] = {}
_NO_REPORTS: tuple[Nodes, int] = ((), 0)


class LevelGate(OneGate):
    """The gate of one table in one process; its `caches` are shared by the host's processes."""

    def __init__(self, replicas: Replicas, caches: Caches, settings: ConnectorSettings) -> None:
        super().__init__(replicas, caches)
        self._counts_reports = True
        self._level = settings.gate
        self._expired = settings.gate_expired
        self._waits = NOTHING_WAITS
        self._waiting: dict[bytes, AdmittedChange] = {}
        self._admitted_now: dict[bytes, AdmittedChange] = {}
        self._gone: set[bytes] = set()
        self._truncated: set[tuple[int, str]] = set()
        self._room = 0.0
        self._factors: Mapping[str, int] = {}
        self._columns = 0  # of the key, that its replicas are known by
        self._level_results: dict[tuple[Key, Nodes], bool] = {}

    def admit(
        self,
        events: Iterable[Event],
        codec: KeyCodec,
        made_at: float,
        intake: Intake,
        waits: GateWaits = NOTHING_WAITS,
    ) -> Iterator[AdmittedChange]:
        self._waits, self._room, self._factors = waits, waits.room, self._replicas.factors()
        self._columns = (
            0 if levels.are_all_replicas(self._factors, self._replicas.by_dc(None)) else codec.partition_columns
        )
        self._waiting.clear()
        self._level_results.clear()
        self._admitted_now.clear()
        self._gone.clear()
        self._truncated.clear()
        return self._note_waiting(super().admit(events, codec, made_at, intake, waits), intake)

    def save(self) -> None:
        super().save()
        self._waiting.clear()
        self._admitted_now.clear()
        self._waits = NOTHING_WAITS

    def _note_waiting(self, admitted: Iterator[AdmittedChange], intake: Intake) -> Iterator[AdmittedChange]:
        yield from admitted
        intake.at_gate.waits += [
            WaitingChange(change, admitted_change.event, admitted_change.nodes or (), admitted_change.copies)
            for change, admitted_change in self._waiting.items()
        ]

    def _count_report(
        self, intake: Intake, admitted: AdmittedChange, entry: CacheEntry, node: bytes, event: Event
    ) -> AdmittedChange | None:
        change, is_first = admitted.id, event is admitted.event
        if change is None:
            return admitted  # of no node's log: a snapshot's, say
        if admitted.scope is _TABLE:
            self._forget_reports(event.partition, host_id(node), intake)
            return admitted
        if not is_first and change not in self._waiting:
            return None  # it went on
        if is_first and (earlier := self._admitted_now.get(change)) is not None:
            earlier.copies += 1  # of a range, say, which is decoded each time
            return None
        if is_first and entry.flags & (RELEASED | PUBLISHED):
            if copies := self._earlier_reports(event.partition, change)[1]:
                self._stop_waiting(event.partition, change, intake)
                admitted.copies += copies
            return admitted
        waiting = self._waiting.get(change)
        if waiting is None:
            nodes, copies = self._earlier_reports(event.partition, change)
            waiting = admitted
            waiting.nodes, waiting.copies = nodes, waiting.copies + copies
            if not copies:
                self._room -= weight(event)
        elif is_first:
            waiting.copies += 1
            entry.admitted = waiting  # as after a truncation: its copies to come are counted in what waits
        self._waiting[change] = waiting
        waiting.nodes = add_node(waiting.nodes or (), host_id(node))
        if self._reaches_level(waiting):
            del self._waiting[change]
            return self._complete(waiting, entry, event, intake)
        is_full = self._room < 0 and (len(self._waiting) > 1 or self._waits.reports)
        if is_full and is_first and waiting is admitted and waiting.copies == 1:
            # No more may wait, unless nothing else does: this partition is read no further for now.
            del self._waiting[change]
            self._room += weight(event)
            intake.at_gate.stopped[event.partition] = event.offset
            intake.read -= 1
        return None

    def _complete(self, waiting: AdmittedChange, entry: CacheEntry, event: Event, intake: Intake) -> AdmittedChange:
        """Admit a change with the event that completed it: all copies have the same content."""
        change = waiting.id or b""
        entry.flags |= RELEASED
        if self._earlier_reports(event.partition, change)[1]:
            self._note_reports(waiting, entry)
            self._stop_waiting(event.partition, change, intake)
            intake.at_gate.completed += 1
        else:
            self._room += weight(waiting.event)
        waiting.event = event
        self._admitted_now[change] = waiting
        return waiting

    def _note_reports(self, admitted: AdmittedChange, entry: CacheEntry) -> None:
        """Store in the cache which nodes reported a change: judging a read of its key needs their number."""
        cache = self._caches.cache_for(admitted.event.topic, admitted.event.partition)
        for node in admitted.nodes or ():
            entry.nodes |= cache.reporter(node.encode()).bit
        cache.report(admitted.id or b"", entry, 0)

    def _note_confirmed_copy(self, intake: Intake, change: bytes, event: Event) -> None:
        """End the wait of a change that was admitted before: the driver missed that batch, or loaded an older file."""
        if copies := self._earlier_reports(event.partition, change)[1]:
            self._stop_waiting(event.partition, change, intake)
            intake.confirmed += copies

    def _stop_waiting(self, partition: int, change: bytes, intake: Intake) -> None:
        self._gone.add(change)
        intake.at_gate.gone.append((partition, change))

    def _forget_reports(self, partition: int, node: str, intake: Intake) -> None:
        """Discard the earlier reports of a node that truncated the table: it no longer has those changes."""
        self._admitted_now.clear()
        self._truncated.add((partition, node))
        intake.at_gate.truncated.append((partition, node))
        for waiting in self._waiting.values():
            if waiting.event.partition == partition and waiting.nodes:
                waiting.nodes = tuple(reporter for reporter in waiting.nodes if reporter != node)

    def _earlier_reports(self, partition: int, change: bytes) -> tuple[Nodes, int]:
        """Return the nodes that reported a change in earlier batches, and how many of its events wait."""
        nodes, copies = self._waits.reports.get(partition, _NONE).get(change, _NO_REPORTS)
        if not copies or change in self._gone:
            return _NO_REPORTS
        return self._without_truncated(partition, nodes), copies

    def _without_truncated(self, partition: int, nodes: Nodes) -> Nodes:
        if not self._truncated:
            return nodes
        return tuple(node for node in nodes if (partition, node) not in self._truncated)

    def _reaches_level(self, waiting: AdmittedChange) -> bool:
        nodes = waiting.nodes or ()
        key = waiting.values[: self._columns]
        is_reached = self._level_results.get((key, nodes))
        if is_reached is None:
            hashed = routing_key(key) if key else None
            # Where every node holds every partition, the ring does not matter.
            rings = [self._replicas.by_dc(None)] if hashed is None else self._replicas.recent_by_dc(hashed)
            is_reached = any(self._reaches(replicas, nodes) for replicas in rings)
            self._level_results[key, nodes] = is_reached
        return is_reached

    def _reaches(self, replicas: Mapping[str, Collection[str]], nodes: Nodes) -> bool:
        return levels.is_met(self._level, self._factors, self._replicas.data_center, replicas, nodes)

    def _admit_overdue(self, waits: GateWaits, made_at: float, intake: Intake) -> Iterator[AdmittedChange]:
        for waiting in waits.overdue:
            admitted = None if waiting.id in self._gone else self._decide_overdue(waiting, made_at, intake)
            if admitted is not None:
                yield admitted

    def _decide_overdue(self, waiting: WaitingChange, made_at: float, intake: Intake) -> AdmittedChange | None:
        """Decide whether a change whose timeout has passed is verified, released, dropped or admitted."""
        change, event = waiting.id, waiting.event
        admitted = self._waiting.get(change) or self._admit_waiting(waiting, made_at, intake)
        if admitted is None:
            self._stop_waiting(event.partition, change, intake)
            return None
        if admitted.nodes is None:
            admitted.nodes = self._without_truncated(event.partition, waiting.nodes)
        entry = self._caches.cache_for(event.topic, event.partition).look(change)
        if waiting.is_recount and not self._reaches_level(admitted):
            return None  # it waits on
        expired = "" if self._reaches_level(admitted) else "verify" if waiting.is_early else self._expired
        if expired == "drop" and self._reaches(self._replicas.by_dc(None), admitted.nodes or ()):
            # Enough nodes reported it, though no ring of late says that they are the replicas. Then a ring may have
            # been missed, in a restart say, and a read decides.
            expired = "verify"
        if expired == "verify" and not entry.flags:
            admitted.verifying = waiting
            self._note_reports(admitted, entry)
            return admitted
        self._waiting.pop(change, None)
        self._stop_waiting(event.partition, change, intake)
        if entry.flags & CONFIRMED:
            intake.confirmed += admitted.copies
            return None
        admitted.is_published = entry.flags & PUBLISHED > 0
        if expired == "drop" and not entry.flags:
            intake.dropped += admitted.copies
            intake.at_gate.dropped += 1
            return None
        if expired == "release" and not entry.flags:
            admitted.is_released = True
            intake.at_gate.released += 1
        else:
            intake.at_gate.completed += 1
        entry.flags |= RELEASED
        self._note_reports(admitted, entry)
        return admitted


def settle_verified(
    at_gate: GateState, verified_changes: Iterable[AdmittedChange], unseen_changes: Iterable[AdmittedChange]
) -> int:
    """End the wait of verified changes, and of those that a read finally did not show; return the latter's events."""
    dropped, gone = 0, set()
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


@lru_cache(1024)
def host_id(node: bytes) -> str:
    """Return a node's host id as the driver writes it."""
    try:
        return str(uuid.UUID(node.decode()))
    except ValueError:
        return ""  # it is none of the replicas


@lru_cache(4096)
def add_node(nodes: Nodes, node: str) -> Nodes:
    """Return the nodes and one more. Equal results are one object, as there may be very many."""
    return nodes if node in nodes else tuple(sorted((*nodes, node)))
