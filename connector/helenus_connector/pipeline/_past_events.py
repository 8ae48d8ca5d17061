"""Past events: those that an earlier run has done. They are noted, so that copies of their changes are known."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import Gate
from helenus_connector.interfaces.resolver import Resolver
from helenus_connector.pipeline._table_version import TableVersion


def note_past(
    gate: Gate,
    resolver: Resolver,
    version: TableVersion,
    events: Sequence[Event],
    waiting: Collection[bytes],
    at_gate: Collection[bytes],
) -> None:
    """Note past events: none of them is published again. The changes that the gate admits count as confirmed, but for
    those that are `waiting` for a read of their keys; those that wait `at_gate` are not published yet.

    A change that too few nodes had reported is not marked: the gate may have dropped it. If it was verified by a read,
    it may be published once more when others report it.
    """
    gate_batch = gate.begin_batch(version.codec, version.created_at)
    for admitted in list(gate_batch.admit(events)):
        by_age = resolver.note_past(admitted)
        if admitted.id is not None and admitted.id not in at_gate:
            topic, partition = admitted.event.topic, admitted.event.partition
            gate.mark(topic, partition, [admitted.id], admitted.id not in waiting, by_age)
    gate_batch.save()
