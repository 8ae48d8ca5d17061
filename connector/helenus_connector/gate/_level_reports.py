"""Admits a change with the report that completes it: the policy of all levels above one.

    RF 3, local_quorum: node 1 reports a change, which waits; node 2 does, and it goes on; node 3's report is a copy.

Reports count that are of this batch, or that the driver says were made before: never those of the host's cache, whose
nodes may share a bit. Of the cache it takes only that a change went on already. So a host that lost its cache, or never
had the partition, has a change wait that went on before; it is verified in the end, and never lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import lru_cache

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate._earlier_reports import EarlierReports
from helenus_connector.gate._level_check import LevelCheck
from helenus_connector.gate._report_policy import DecodeWaiting
from helenus_connector.gate._topic_waits import weight
from helenus_connector.gate.cache import CONFIRMED, PUBLISHED, RELEASED, CacheEntry, Caches
from helenus_connector.gate.replicas import Replicas
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, Nodes, WaitingChange
from helenus_connector.interfaces.gate import GateWaits, Intake
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event.change import Scope

_TABLE = Scope.TABLE


class LevelReports:
    """The policy of one batch. `waits` are the changes that wait when it begins."""

    counts_reports = True

    def __init__(
        self,
        settings: ConnectorSettings,
        replicas: Replicas,
        caches: Caches,
        codec: KeyCodec,
        waits: GateWaits,
        intake: Intake,
    ) -> None:
        self._expired = settings.gate_expired
        self._caches = caches
        self._intake, self._at_gate = intake, intake.at_gate
        self._level = LevelCheck(settings.gate, replicas, codec)
        self._earlier = EarlierReports(waits.reports, intake.at_gate)
        self._free_bytes = waits.room
        self._waiting: dict[bytes, AdmittedChange] = {}
        self._completed: dict[bytes, AdmittedChange] = {}

    def waiting_changes(self) -> Iterable[WaitingChange]:
        return [
            WaitingChange(change, waiting.event, waiting.nodes or (), waiting.copies)
            for change, waiting in self._waiting.items()
        ]

    def count_report(
        self, admitted: AdmittedChange, entry: CacheEntry, node: bytes, event: Event
    ) -> AdmittedChange | None:
        change, is_first = admitted.id, event is admitted.event
        if change is None:
            return admitted  # of no node's log: a snapshot's, say
        if admitted.scope is _TABLE:
            self._forget_reports(event.partition, host_id(node))
            return admitted
        # 1. A change that went on, in this batch or before, waits no more.
        if not is_first and change not in self._waiting:
            return None
        if is_first and (completed := self._completed.get(change)) is not None:
            completed.copies += 1  # of a range, say, which is decoded each time
            return None
        if is_first and entry.flags & (RELEASED | PUBLISHED):
            admitted.copies += self._end_earlier_wait(event.partition, change)
            return admitted
        # 2. Another waits, with one report more, until these reach the level.
        waiting = self._add_report(admitted, change, entry, node, event)
        if self._level.is_reached(waiting.values, waiting.nodes or ()):
            return self._complete(waiting, change, entry, event)
        # 3. No more may wait, unless nothing else does: this partition is read no further for now.
        if is_first and waiting is admitted and waiting.copies == 1 and self._is_full():
            del self._waiting[change]
            self._free_bytes += weight(event)
            self._at_gate.stopped[event.partition] = event.offset
            self._intake.read -= 1
        return None

    def _add_report(
        self, admitted: AdmittedChange, change: bytes, entry: CacheEntry, node: bytes, event: Event
    ) -> AdmittedChange:
        """Add a node's report to those of a change, which begins to wait with its first. Return it as it waits."""
        waiting = self._waiting.get(change)
        if waiting is None:
            waiting = self._waiting[change] = admitted
            waiting.nodes, copies = self._earlier.find(event.partition, change)
            waiting.copies += copies
            if not copies:
                self._free_bytes -= weight(event)
        elif event is admitted.event:
            waiting.copies += 1
            entry.admitted = waiting  # as after a truncation: its copies to come are counted in what waits
        waiting.nodes = add_node(waiting.nodes or (), host_id(node))
        return waiting

    def _complete(self, waiting: AdmittedChange, change: bytes, entry: CacheEntry, event: Event) -> AdmittedChange:
        """Admit a change with the event that completed it: all copies have the same content."""
        del self._waiting[change]
        entry.flags |= RELEASED
        if self._end_earlier_wait(event.partition, change):
            self._note_reports(waiting, entry)
            self._at_gate.completed += 1
        else:
            self._free_bytes += weight(waiting.event)
        waiting.event = event
        self._completed[change] = waiting
        return waiting

    def _is_full(self) -> bool:
        return self._free_bytes < 0 and (len(self._waiting) > 1 or self._earlier.had_any())

    def _end_earlier_wait(self, partition: int, change: bytes) -> int:
        """End the wait of a change since an earlier batch; return how many of its events waited."""
        _, copies = self._earlier.find(partition, change)
        if copies:
            self._earlier.end_wait(partition, change)
        return copies

    def _note_reports(self, admitted: AdmittedChange, entry: CacheEntry) -> None:
        """Store in the cache which nodes reported a change: judging a read of its key needs their number."""
        cache = self._caches.cache_for(admitted.event.topic, admitted.event.partition)
        for node in admitted.nodes or ():
            entry.nodes |= cache.reporter(node.encode()).bit
        cache.report(admitted.id or b"", entry, 0)

    def note_confirmed_copy(self, change: bytes, event: Event) -> None:
        """End the wait of a change that was admitted before: the driver missed that batch, or loaded an older file."""
        self._intake.confirmed += self._end_earlier_wait(event.partition, change)

    def _forget_reports(self, partition: int, node: str) -> None:
        """Discard the earlier reports of a node that truncated the table: it no longer has those changes."""
        self._completed.clear()
        self._earlier.discard(partition, node)
        for waiting in self._waiting.values():
            if waiting.event.partition == partition and waiting.nodes:
                waiting.nodes = tuple(reporter for reporter in waiting.nodes if reporter != node)

    def settle_overdue(self, waiting: WaitingChange, decode: DecodeWaiting) -> AdmittedChange | None:
        """Decide whether a change whose timeout has passed is verified, released, dropped or admitted."""
        change, event = waiting.id, waiting.event
        if self._earlier.has_ended(change):
            return None
        # 1. What is known of it by now, in this batch and in the cache?
        admitted = self._waiting.get(change) or decode(waiting)
        if admitted is None:
            self._earlier.end_wait(event.partition, change)
            return None
        if admitted.nodes is None:
            admitted.nodes = self._earlier.without_truncated(event.partition, waiting.nodes)
        entry = self._caches.cache_for(event.topic, event.partition).look(change)
        is_reached = self._level.is_reached(admitted.values, admitted.nodes)
        if waiting.is_recount and not is_reached:
            return None  # it waits on
        # 2. One that went on before needs no decision. A read verifies one, which waits until that has an outcome.
        action = "none" if is_reached or entry.flags else self._action(waiting, admitted.nodes)
        if action == "verify":
            admitted.verifying = waiting
            self._note_reports(admitted, entry)
            return admitted
        # 3. Else its wait ends here.
        self._waiting.pop(change, None)
        self._earlier.end_wait(event.partition, change)
        if entry.flags & CONFIRMED:
            self._intake.confirmed += admitted.copies
            return None
        admitted.is_published = entry.flags & PUBLISHED > 0
        if action == "drop":
            self._intake.dropped += admitted.copies
            self._at_gate.dropped += 1
            return None
        if action == "release":
            admitted.is_released = True
            self._at_gate.released += 1
        else:
            self._at_gate.completed += 1
        entry.flags |= RELEASED
        self._note_reports(admitted, entry)
        return admitted

    def _action(self, waiting: WaitingChange, nodes: Nodes) -> str:
        """Return what is done with a change that too few nodes reported in time: `verify`, `release` or `drop`."""
        if waiting.is_early:
            return "verify"
        if self._expired == "drop" and self._level.is_reached_anywhere(nodes):
            # Enough nodes reported it, though no ring of late says that they are the replicas. Then a ring may have
            # been missed, in a restart say, and a read decides.
            return "verify"
        return self._expired


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
