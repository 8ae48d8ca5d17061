"""Counts the replicas of a key that reported a change, by what the host's caches know of it.

RF 3, of three nodes two reported a change, and one of these was removed since → 1
"""

from __future__ import annotations

from functools import cached_property

from helenus_connector.gate.cache import CacheEntry, Caches, ChangeCache
from helenus_connector.gate.replicas import Replicas, routing_key
from helenus_schemas.codec.key import Key, KeyCodec


class ReplicaCounts:
    """The counts of one batch. Changes of a key that the same nodes reported are counted once."""

    def __init__(self, replicas: Replicas, caches: Caches, codec: KeyCodec) -> None:
        self._replicas = replicas
        self._caches = caches
        self._codec = codec
        self._counts: dict[tuple[str, int, int, Key], int] = {}

    def count(self, topic: str, partition: int, values: Key, change: bytes) -> int:
        """Return how many current replicas of a key, among those that are read, reported a change."""
        cache = self._caches.cache_for(topic, partition)
        entry = cache.look(change)
        key = values[: self._key_columns]
        count_name = (topic, partition, entry.nodes, key)
        count = self._counts.get(count_name)
        if count is None:
            count = self._counts[count_name] = self._count_reported(cache, entry, key)
        return count

    @cached_property
    def _key_columns(self) -> int:
        """Number of columns of a key that decide who its replicas are: none if every node holds every partition."""
        return self._codec.partition_columns if self._replicas.is_partial() else 0

    def _count_reported(self, cache: ChangeCache, entry: CacheEntry, key: Key) -> int:
        routing = routing_key(key) if key else None
        replicas = self._replicas.nodes(routing)
        groups = cache.nodes(entry)
        if any(len(nodes) > 1 for nodes in groups):
            # Of nodes that share a bit, one of another data centre may be the one that reported.
            everywhere = self._replicas.nodes_everywhere(routing)
            groups = [nodes for nodes in groups if nodes & everywhere <= replicas]
        return max(int(self._replicas.are_all_read()), sum(not nodes.isdisjoint(replicas) for nodes in groups))
