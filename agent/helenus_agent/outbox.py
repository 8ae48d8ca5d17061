"""From changes to events: each followed table's topic, and the partition of each change in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import structlog

from helenus_agent import metrics
from helenus_agent.config import AgentSettings
from helenus_agent.decoder import Batch
from helenus_agent.notices import Notice
from helenus_schemas import names
from helenus_schemas.table import Table
from helenus_sinks.log import Log

try:
    from cassandra.cmurmur3 import murmur3
except ImportError:  # a driver built without its extensions
    from cassandra.murmur3 import murmur3

_log = structlog.get_logger()


class Outbox:
    """Appends to a Log. `waiting` counts what is not acknowledged, by the index of its table. Raises HelenusError."""

    def __init__(self, log: Log, settings: AgentSettings) -> None:
        self.waiting: Counter[int] = Counter()
        self._sink = log
        self._settings = settings
        self._topics: list[tuple[str, int]] = []

    def open(self, followed: Sequence[Table]) -> None:
        """Make the topics of tables that are new among the followed ones."""
        settings = self._settings
        config = {
            "cleanup.policy": "delete",
            "retention.ms": str(settings.topic_retention_ms),
            **settings.topic_config,
        }
        for table in followed[len(self._topics) :]:
            topic = names.topic(settings.topic_prefix, table.keyspace, table.name)
            partitions = self._sink.create(topic, settings.topic_partitions, config)
            self._topics.append((topic, partitions))
            _log.info("topic.ready", topic=topic, partitions=partitions)

    def append(self, batch: Batch) -> None:
        """Append a batch's changes, each to the partition of its token."""
        topics = self._topics
        # Order matters within a partition only, and a Log takes one partition's records cheaper than all in turn.
        groups: defaultdict[tuple[int, int], list[tuple[bytes, bytes]]] = defaultdict(list)
        for index, partition_key, key, value in batch.changes:
            groups[index, names.partition(murmur3(partition_key), topics[index][1])].append((key, value))
        for (index, partition), records in groups.items():
            self._sink.extend(topics[index][0], partition, records)
            self.waiting[index] += len(records)

    def tell(self, index: int, notice: Notice, node: str) -> None:
        """Append what concerns the whole table, to every partition of its topic."""
        topic, partitions = self._topics[index]
        for partition, value in enumerate(notice.values(node, partitions)):
            self._sink.append(topic, partition, None, value)
        self.waiting[index] += partitions

    def flush(self, timeout: float) -> None:
        """Have it all acknowledged within `timeout` seconds."""
        self._sink.flush(timeout)

    def done(self, followed: Sequence[Table]) -> None:
        """What waited is acknowledged."""
        for index, count in self.waiting.items():
            metrics.EVENTS.labels(followed[index].full_name).inc(count)
        self.waiting.clear()
