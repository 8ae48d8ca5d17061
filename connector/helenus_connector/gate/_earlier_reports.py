"""The reports of earlier batches, of changes that waited when this one began: what of them counts in this batch."""

from __future__ import annotations

from collections.abc import Mapping

from helenus_connector.interfaces.event import Nodes
from helenus_connector.interfaces.gate import GateState

_NO_CHANGES: Mapping[bytes, tuple[Nodes, int]] = {}
_NO_REPORTS: tuple[Nodes, int] = ((), 0)


class EarlierReports:
    """The `reports` that the driver gave to a batch, by partition and change. What changes of them is in `at_gate`."""

    def __init__(self, reports: Mapping[int, Mapping[bytes, tuple[Nodes, int]]], at_gate: GateState) -> None:
        self._reports = reports
        self._at_gate = at_gate
        self._ended: set[bytes] = set()
        self._truncated: set[tuple[int, str]] = set()

    def had_any(self) -> bool:
        """Return whether any change waited when the batch began."""
        return bool(self._reports)

    def find(self, partition: int, change: bytes) -> tuple[Nodes, int]:
        """Return the nodes that reported a change, and how many of its events wait: none if it waits no longer."""
        nodes, copies = self._reports.get(partition, _NO_CHANGES).get(change, _NO_REPORTS)
        if not copies or change in self._ended:
            return _NO_REPORTS
        return self.without_truncated(partition, nodes), copies

    def without_truncated(self, partition: int, nodes: Nodes) -> Nodes:
        """Return the nodes of an earlier report, but for those that truncated the table in this batch."""
        if not self._truncated:
            return nodes
        return tuple(node for node in nodes if (partition, node) not in self._truncated)

    def discard(self, partition: int, node: str) -> None:
        """Discard the reports of a node that truncated the table: it no longer has those changes."""
        self._truncated.add((partition, node))
        self._at_gate.truncated.append((partition, node))

    def end_wait(self, partition: int, change: bytes) -> None:
        """End the wait of a change."""
        self._ended.add(change)
        self._at_gate.gone.append((partition, change))

    def has_ended(self, change: bytes) -> bool:
        """Return whether the wait of a change ended in this batch."""
        return change in self._ended
