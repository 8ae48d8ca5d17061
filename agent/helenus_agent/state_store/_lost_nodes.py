"""Finds the states of nodes that are gone from the ring, says what they may not have sent, and closes them."""

from __future__ import annotations

import time
import uuid

import structlog

from helenus_agent.state_store._state_table import StateHead, StateTable
from helenus_agent.state_store._take_over import format_time

_LOOK_S = 600.0  # s between two looks: a node leaves rarely
_log = structlog.get_logger(__name__)


class LostNodes:
    """The rows of other nodes. `tokens` are the own node's.

    A row with the same tokens is that of a node which this one replaced. Any other one has to be out of the ring at two
    looks: a node that has just started may not know all of it. `former_id` is the one that the own node had before it
    was upgraded to Cassandra 6.0.
    """

    def __init__(self, table: StateTable, tokens: frozenset[str]) -> None:
        self._table = table
        self._tokens = tokens
        self.former_id = ""
        self._absent: frozenset[uuid.UUID] = frozenset()
        self._next_look_at = 0.0

    def look(self) -> None:
        """Look for such rows, if that is due. One agent closes each, and reports it. Raises HelenusError."""
        if time.monotonic() < self._next_look_at:
            return
        self._next_look_at = time.monotonic() + _LOOK_S
        ring = self._table.ring()
        present = ring.host_ids | {self._table.host_id}  # a node may be renamed while its agent runs
        absent = [head for head in self._table.heads() if not head.is_closed and head.host_id not in present]
        for head in absent:
            is_replaced = bool(self._tokens) and head.tokens == self._tokens
            if str(head.host_id) == self.former_id:
                self._table.close_row(head)
            elif (is_replaced or head.host_id in self._absent) and self._table.close_row(head):
                self._report(head, is_replaced)
        self._absent = frozenset(head.host_id for head in absent)

    def _report(self, head: StateHead, is_replaced: bool) -> None:
        since, successor = format_time(head.saved_at), str(self._table.host_id)
        command = f"helenus-connector lost-node NAME {head.host_id} --since {since}"
        if is_replaced:
            command += f" --replaced-by {successor}"
        _log.error(
            "node.left",
            node=str(head.host_id),
            saved_at=since,
            replaced_by=successor if is_replaced else None,
            tokens=len(head.tokens),
            advice=f"unless its agent was drained, name what it had not sent: {command}",
        )
