"""What is kept of the changes that wait at the gate, next to a query's checkpoint: `gate.waiting`.

`{"nodes": [[host id, ...], ...], "changes": [[topic, [[partition, offset, timestamp, key, value, id, n, copies, for how
long it waits in s], ...]], ...]}`, where `n` is the place of the nodes that reported it. Bytes are in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from helenus_connector.interfaces.event import Event, Nodes, WaitingChange
from helenus_schemas.service import durable

_VERSION = 1


def save(file: Path, changes: Iterable[tuple[WaitingChange, float]]) -> None:
    """Each with for how long it waits, s. Raises HelenusError(STATE)."""
    node_sets: dict[Nodes, int] = {}
    topics: dict[str, list[Any]] = {}
    for waiting, waited_s in changes:
        topic, partition, offset, timestamp, key, value = waiting.event
        event_fields = partition, offset, timestamp, _text(key), _text(value)
        nodes_index = node_sets.setdefault(waiting.nodes, len(node_sets))
        topics.setdefault(topic, []).append([*event_fields, waiting.id.hex(), nodes_index, waiting.copies, waited_s])
    durable.make_directory(file.parent)
    content = {"nodes": list(node_sets), "changes": list(topics.items())}
    durable.save(file, content, _VERSION, "the changes that wait at the gate", "gate.waiting-after-write")


def load(file: Path) -> list[WaitingChange]:
    """As `save` has them, `since` of each is for how long it waits. Raises Damaged, and HelenusError(STATE)."""
    try:
        content = durable.load(file, _VERSION)
    except FileNotFoundError:
        return []
    node_sets: list[Nodes] = [tuple(nodes) for nodes in content["nodes"]]
    return [
        WaitingChange(
            bytes.fromhex(change),
            Event(topic, partition, offset, written, _bytes(key), _bytes(value)),
            node_sets[nodes_index],
            copies,
            waited,
        )
        for topic, changes in content["changes"]
        for partition, offset, written, key, value, change, nodes_index, copies, waited in changes
    ]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
