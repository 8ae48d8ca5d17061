"""Events with cells, as the agent writes them, and a stage that makes Debezium's envelopes of them."""

from __future__ import annotations

from typing import Any

from agent.writer import Update, entry, mutation

from helenus_agent.commitlog import decoder
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange, RowChange

NODE = "ad310466-96a7-4cb2-acf4-59535a960812"
OTHER = "ad310466-96a7-4cb2-acf4-59535a960813"
SEGMENT = 1795262845123
JSON = "org.apache.kafka.connect.json.JsonConverter"
AS_JSON = {"output.format": "debezium", "value.converter": JSON, "value.converter.schemas.enable": "false"}
NONE = {**AS_JSON, "resolver": "none"}


def events(*updates: Update, node: str = NODE, offset: int = 0, cells: bool = True) -> list[Event]:
    """The events of mutations, each of one of these updates of one table; their offsets begin at `offset`."""
    numbered_events: list[Event] = []
    for update in updates:
        plans: Any = {update.table.id.bytes: decoder.plan_table(update.table, 0, cells=cells)}
        batch: Any = decoder.decode(entry(mutation(update)), 100, True, plans, node, SEGMENT, 8, 10**6)
        assert not batch.problems
        for _, _, key, value in batch.changes:
            numbered_events.append(
                Event(f"events-{update.table.full_name}", 0, offset + len(numbered_events), 1000, key, value)
            )
    return numbered_events


def op(change: MergedChange) -> str | type[MergedChange]:
    """Return the `op` of a row's change; the type of another."""
    return change.op if isinstance(change, RowChange) else type(change)
