"""Tells whether the reports of some nodes reach the gate's level, for a key.

gate=local_quorum, RF 3: nodes 1 and 2 reported, both are replicas of the key → True
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from helenus_connector.gate import levels
from helenus_connector.gate.replicas import Replicas, routing_key
from helenus_connector.interfaces.event import Nodes
from helenus_schemas.codec.key import Key, KeyCodec


class LevelCheck:
    """The check of one batch, by the replication factors at its begin. It remembers its results."""

    def __init__(self, level: str, replicas: Replicas, codec: KeyCodec) -> None:
        self._level = level
        self._replicas = replicas
        self._factors = replicas.factors()
        # Where every node holds every partition, all keys have the same replicas.
        is_same_for_all = levels.are_all_replicas(self._factors, replicas.by_dc())
        self._key_columns = 0 if is_same_for_all else codec.partition_columns
        self._results: dict[tuple[Key, Nodes], bool] = {}

    def is_reached(self, values: Key, nodes: Nodes) -> bool:
        """Return whether the nodes reach the level for a key, by the current ring or an earlier one by which a change
        may have waited.
        """
        key = values[: self._key_columns]
        is_reached = self._results.get((key, nodes))
        if is_reached is None:
            rings = self._replicas.recent_by_dc(routing_key(key)) if key else [self._replicas.by_dc()]
            is_reached = any(self._is_met(replicas, nodes) for replicas in rings)
            self._results[key, nodes] = is_reached
        return is_reached

    def is_reached_anywhere(self, nodes: Nodes) -> bool:
        """Return whether the nodes are so many as the level needs, be they replicas of a key or not."""
        return self._is_met(self._replicas.by_dc(), nodes)

    def _is_met(self, replicas: Mapping[str, Collection[str]], nodes: Nodes) -> bool:
        return levels.is_met(self._level, self._factors, self._replicas.data_center, replicas, nodes)
