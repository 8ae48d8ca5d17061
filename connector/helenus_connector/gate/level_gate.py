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
        self._below: dict[bytes, AdmittedChange] = {}
        self._went: dict[bytes, AdmittedChange] = {}
        self._gone: set[bytes] = set()
        self._truncated: set[tuple[int, str]] = set()
        self._room = 0.0
        self._factors: Mapping[str, int] = {}
        self._columns = 0  # of the key, that its replicas are known by
        self._is_enough: dict[tuple[Key, Nodes], bool] = {}

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
        self._below.clear()
        self._is_enough.clear()
        self._went.clear()
        self._gone.clear()
        self._truncated.clear()
        return self._then_wait(super().admit(events, codec, made_at, intake, waits), intake)

    def save(self) -> None:
        super().save()
        self._below.clear()
        self._went.clear()
        self._waits = NOTHING_WAITS

    def _then_wait(self, admitted: Iterator[AdmittedChange], intake: Intake) -> Iterator[AdmittedChange]:
        yield from admitted
        intake.at_gate.waits += [
            WaitingChange(change, held.event, held.nodes or (), held.copies) for change, held in self._below.items()
        ]

    def _counted(
        self, intake: Intake, admitted: AdmittedChange, entry: CacheEntry, node: bytes, event: Event
    ) -> AdmittedChange | None:
        change, is_first = admitted.id, event is admitted.event
        if change is None:
            return admitted  # of no node's log: a snapshot's, say
        if admitted.scope is _TABLE:
            self._forget_reports(event.partition, host_id(node), intake)
            return admitted
        if not is_first and change not in self._below:
            return None  # it went on
        if is_first and (went := self._went.get(change)) is not None:
            went.copies += 1  # of a range, say, which is decoded each time
            return None
        if is_first and entry.flags & (RELEASED | PUBLISHED):
            if copies := self._known(event.partition, change)[1]:
                self._leave(event.partition, change, intake)
                admitted.copies += copies
            return admitted
        held = self._below.get(change)
        if held is None:
            nodes, copies = self._known(event.partition, change)
            held = admitted
            held.nodes, held.copies = nodes, held.copies + copies
            if not copies:
                self._room -= weight(event)
        elif is_first:
            held.copies += 1
            entry.admitted = held  # as after a truncation: its copies to come are counted in what waits
        self._below[change] = held
        held.nodes = add_node(held.nodes or (), host_id(node))
        if self._is_met(held):
            del self._below[change]
            return self._completed(held, entry, event, intake)
        is_full = self._room < 0 and (len(self._below) > 1 or self._waits.reports)
        if is_full and is_first and held is admitted and held.copies == 1:
            # No more may wait, unless nothing else does: this partition is read no further for now.
            del self._below[change]
            self._room += weight(event)
            intake.at_gate.stopped[event.partition] = event.offset
            intake.read -= 1
        return None

    def _completed(self, held: AdmittedChange, entry: CacheEntry, event: Event, intake: Intake) -> AdmittedChange:
        """A change goes on, with the event that completed it: all copies say the same of it."""
        change = held.id or b""
        entry.flags |= RELEASED
        if self._known(event.partition, change)[1]:
            self._report(held, entry)
            self._leave(event.partition, change, intake)
            intake.at_gate.completed += 1
        else:
            self._room += weight(held.event)
        held.event = event
        self._went[change] = held
        return held

    def _report(self, held: AdmittedChange, entry: CacheEntry) -> None:
        """Have the cache know who reported a change: whoever reads its key asks how many did."""
        cache = self._caches.of(held.event.topic, held.event.partition)
        for node in held.nodes or ():
            entry.nodes |= cache.reporter(node.encode()).bit
        cache.report(held.id or b"", entry, 0)

    def _is_done(self, intake: Intake, change: bytes, event: Event) -> None:
        """It went on before, though the driver has it wait: it did not hear of that batch, or has it from its file."""
        if copies := self._known(event.partition, change)[1]:
            self._leave(event.partition, change, intake)
            intake.confirmed += copies

    def _leave(self, partition: int, change: bytes, intake: Intake) -> None:
        self._gone.add(change)
        intake.at_gate.gone.append((partition, change))

    def _forget_reports(self, partition: int, node: str, intake: Intake) -> None:
        """A node has truncated the table: it holds nothing of what it reported before."""
        self._went.clear()
        self._truncated.add((partition, node))
        intake.at_gate.truncated.append((partition, node))
        for held in self._below.values():
            if held.event.partition == partition and held.nodes:
                held.nodes = tuple(other for other in held.nodes if other != node)

    def _known(self, partition: int, change: bytes) -> tuple[Nodes, int]:
        """The nodes that reported a change in earlier batches, and how many events of it wait."""
        nodes, copies = self._waits.reports.get(partition, _NONE).get(change, _NO_REPORTS)
        if not copies or change in self._gone:
            return _NO_REPORTS
        return self._still(partition, nodes), copies

    def _still(self, partition: int, nodes: Nodes) -> Nodes:
        if not self._truncated:
            return nodes
        return tuple(node for node in nodes if (partition, node) not in self._truncated)

    def _is_met(self, held: AdmittedChange) -> bool:
        nodes = held.nodes or ()
        key = held.values[: self._columns]
        found = self._is_enough.get((key, nodes))
        if found is None:
            hashed = routing_key(key) if key else None
            # Where every node holds every partition, the ring does not matter.
            rings = [self._replicas.by_dc(None)] if hashed is None else self._replicas.by_dc_lately(hashed)
            found = any(self._is_reached(replicas, nodes) for replicas in rings)
            self._is_enough[key, nodes] = found
        return found

    def _is_reached(self, replicas: Mapping[str, Collection[str]], nodes: Nodes) -> bool:
        return levels.is_met(self._level, self._factors, self._replicas.data_center, replicas, nodes)

    def _overdue(self, waits: GateWaits, made_at: float, intake: Intake) -> Iterator[AdmittedChange]:
        for waiting in waits.overdue:
            admitted = None if waiting.id in self._gone else self._late(waiting, made_at, intake)
            if admitted is not None:
                yield admitted

    def _late(self, waiting: WaitingChange, made_at: float, intake: Intake) -> AdmittedChange | None:
        """What becomes of a change that waited for too long."""
        change, event = waiting.id, waiting.event
        held = self._below.get(change) or self._again(waiting, made_at, intake)
        if held is None:
            self._leave(event.partition, change, intake)
            return None
        if held.nodes is None:
            held.nodes = self._still(event.partition, waiting.nodes)
        entry = self._caches.of(event.topic, event.partition).look(change)
        if waiting.is_recount and not self._is_met(held):
            return None  # it waits on
        expired = "" if self._is_met(held) else "verify" if waiting.is_early else self._expired
        if expired == "drop" and self._is_reached(self._replicas.by_dc(None), held.nodes or ()):
            # Enough nodes reported it, though no ring of late says that they are the replicas. Then a ring may have
            # been missed, in a restart say, and a read decides.
            expired = "verify"
        if expired == "verify" and not entry.flags:
            held.verifying = waiting
            self._report(held, entry)
            return held
        self._below.pop(change, None)
        self._leave(event.partition, change, intake)
        if entry.flags & CONFIRMED:
            intake.confirmed += held.copies
            return None
        held.is_published = entry.flags & PUBLISHED > 0
        if expired == "drop" and not entry.flags:
            intake.dropped += held.copies
            intake.at_gate.dropped += 1
            return None
        if expired == "release" and not entry.flags:
            held.is_released = True
            intake.at_gate.released += 1
        else:
            intake.at_gate.completed += 1
        entry.flags |= RELEASED
        self._report(held, entry)
        return held


def settle_verified(at_gate: GateState, verified: Iterable[AdmittedChange], unseen: Iterable[AdmittedChange]) -> int:
    """What was verified waits no longer, nor what a read did not show in the end: the number of these events."""
    dropped, gone = 0, set()
    for held in verified:
        at_gate.verified += 1
        gone.add((held.event.partition, held.id or b""))
    for held in unseen:
        if held.verifying is not None and held.verifying.is_early:
            continue  # it may come yet
        at_gate.dropped += 1
        dropped += held.copies
        gone.add((held.event.partition, held.id or b""))
    if gone:
        at_gate.gone += gone
        at_gate.waits = [waiting for waiting in at_gate.waits if (waiting.event.partition, waiting.id) not in gone]
    return dropped


@lru_cache(1024)
def host_id(node: bytes) -> str:
    """A node's host id as the driver writes it."""
    try:
        return str(uuid.UUID(node.decode()))
    except ValueError:
        return ""  # it is none of the replicas


@lru_cache(4096)
def add_node(nodes: Nodes, node: str) -> Nodes:
    """The nodes with one more; the same object for the same ones, as there may be very many."""
    return nodes if node in nodes else tuple(sorted((*nodes, node)))
