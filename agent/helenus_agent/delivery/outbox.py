"""From changes to events: each followed table's topic, and the partition of each change in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import structlog

from helenus_agent import metrics
from helenus_agent.commitlog.decoder import DecodedBatch
from helenus_agent.config import AgentSettings
from helenus_agent.delivery.notices import Notice
from helenus_schemas import names
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.event import datastax, placement, wire
from helenus_sinks.log import DeclaredSchemas, Headers, Log, TopicError

try:
    from cassandra.cmurmur3 import murmur3
except ImportError:  # a driver built without its extensions
    from cassandra.murmur3 import murmur3

_SINGLE_FLUSH_S = 10.0  # s for the acknowledgement of a record that may be too large
_log = structlog.get_logger(__name__)


class Outbox:
    """Appends to a Log. `waiting` counts what is not acknowledged, by the index of its table. Raises HelenusError.

    `is_open`: the topics of all tables that were given to `open` are there, as far as is known.
    """

    def __init__(self, log: Log, settings: AgentSettings) -> None:
        self.waiting: Counter[int] = Counter()
        self.is_open = False
        self._sink = log
        self._settings = settings
        self._pulsar = settings.log == "pulsar"
        self._topics: dict[int, tuple[str, int]] = {}
        self._keys: dict[int, tuple[Column, ...]] = {}
        self._partitions: dict[str, int] = {}
        self._refusals: Counter[str] = Counter()
        self._lingers = False  # what was appended since it was sent last

    def topic(self, table: Table) -> str:
        """Return the name of a table's topic."""
        return names.topic(self._settings.topic_prefix, table.keyspace, table.name)

    def open(self, followed: Iterable[tuple[int, Table]]) -> list[tuple[Table, HelenusError]]:
        """Make the topics of tables, each given with its index, where they are not known to be there, and declare the
        schemas of keys that were altered, where topics keep them.

        Returns the tables whose topics alone are refused, and why: none of their events may be appended. Raises
        PARTITIONS_CHANGED if a topic was recreated with another number of partitions.
        """
        refused: list[tuple[Table, HelenusError]] = []
        for index, table in followed:
            if index in self._topics and (not self._pulsar or self._keys.get(index) == table.primary_key):
                continue
            try:
                partitions = self._create_topic(table)
            except HelenusError as error:
                # Another topic could be opened: so this refusal concerns this one alone, whatever its kind.
                if error.action is Action.RETRY or not (isinstance(error, TopicError) or self._topics):
                    raise
                self._topics.pop(index, None)
                refused.append((table, error))
                continue
            self._keys[index] = table.primary_key
            topic = self.topic(table)
            if topic not in self._partitions:
                self._partitions[topic] = partitions
                _log.info("topic.ready", topic=topic, partitions=partitions)
            known_partitions = self._partitions[topic]
            if partitions != known_partitions:
                message = f"the topic had {names.counted(known_partitions, 'partition')} and has {partitions}"
                advice = "start the agent again, it goes by the new number; order per key holds within one number"
                raise HelenusError(Kind.PARTITIONS_CHANGED, message, topic, advice)
            self._topics[index] = topic, partitions
        self.is_open = True
        return refused

    def probe(self, index: int, table: Table, notice: Notice, node: str, timeout: float) -> None:
        """Append a notice to a refused table's topic. If it is acknowledged within `timeout` seconds, the topic is open
        again.

        Nothing else may wait for its acknowledgement. Raises the reason if it is refused again.
        """
        try:
            # It may have any number of partitions: nothing was appended since it was refused.
            partitions = self._partitions[self.topic(table)] = self._create_topic(table)
            self._topics[index] = self.topic(table), partitions
            self._keys[index] = table.primary_key
            self.append_notice(index, notice, node)
            self.flush(timeout)
        except HelenusError:
            self._topics.pop(index, None)
            self.waiting.clear()
            raise

    def _create_topic(self, table: Table) -> int:
        """Make a table's topic, if it is missing; returns the number of its partitions."""
        settings, topic = self._settings, self.topic(table)
        config = {
            "cleanup.policy": "delete",
            "retention.ms": str(settings.topic_retention_ms),
            **settings.topic_config,
        }
        partitions = self._sink.create(topic, settings.topic_partitions, config)
        if self._pulsar:
            key = datastax.key_schema(table)
            self._sink.declare(topic, DeclaredSchemas(key, datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES))
        return partitions

    def forget_topics(self) -> None:
        """Have `open` check all topics again: something failed, and one may have been deleted."""
        self._topics.clear()
        self.is_open = False

    def isolate_too_large(self, topic: str) -> bool:
        """Find out, when all is appended again, which record made a flush fail because it is too large for the topic.

        The Log may then refuse the record itself. After a second call each record is flushed alone. Return False if
        that was done already.
        """
        self._refusals[topic] += 1
        return self._refusals[topic] <= 2

    def append(self, batch: DecodedBatch) -> list[tuple[int, HelenusError]]:
        """Append a batch's changes, each to the partition of its token. Returns those that are too large for their
        topic, which are left out: the index of the table, and the error of each.
        """
        topics = self._topics
        self._lingers = self._lingers or bool(batch.changes)
        too_large: list[tuple[int, HelenusError]] = []
        if self._settings.headers == "datastax":
            for index, partition_key, key, value in batch.changes:
                topic, partitions = topics[index]
                token = murmur3(partition_key)
                headers = _datastax_headers(value, token)
                form = datastax.sorted_value(value) if self._pulsar else value
                self._append(index, placement.partition(token, partitions), key, form, headers, too_large)
            return too_large
        # Order matters within a partition only, and a Log takes one partition's records cheaper than all in turn.
        groups: defaultdict[tuple[int, int], list[tuple[bytes, bytes]]] = defaultdict(list)
        for index, partition_key, key, value in batch.changes:
            form = datastax.sorted_value(value) if self._pulsar else value
            groups[index, placement.partition(murmur3(partition_key), topics[index][1])].append((key, form))
        for (index, partition), records in groups.items():
            topic = topics[index][0]
            try:
                if self._refusals[topic] > 1:
                    raise TopicError(Kind.RECORD_TOO_LARGE, "one of them", topic, topic)
                self._sink.extend(topic, partition, records)
                self.waiting[index] += len(records)
            except TopicError as error:
                if error.kind is not Kind.RECORD_TOO_LARGE:
                    raise
                # Those before it are appended already, and arrive twice.
                for key, value in records:
                    self._append(index, partition, key, value, (), too_large)
        return too_large

    def _append(
        self,
        index: int,
        partition: int,
        key: bytes,
        value: bytes,
        headers: Headers,
        too_large: list[tuple[int, HelenusError]],
    ) -> None:
        """Append a record, without its cells if it is too large with them; unless it is too large even so."""
        topic = self._topics[index][0]
        alone = self._refusals[topic] > 1
        if alone:
            self._sink.flush(_SINGLE_FLUSH_S)  # a flush that fails drops the records that were not acknowledged
        try:
            self._sink.append(topic, partition, key, value, headers)
            if alone:
                self._sink.flush(_SINGLE_FLUSH_S)
            self.waiting[index] += 1
        except TopicError as error:
            if error.kind is not Kind.RECORD_TOO_LARGE:
                raise
            light = wire.without_cells(value)
            if light is None:
                too_large.append((index, error))
                return
            metrics.WITHOUT_CELLS.labels(topic).inc()
            self._append(index, partition, key, light, headers, too_large)

    def append_notice(self, index: int, notice: Notice, node: str) -> None:
        """Append an event of the whole table to every partition of its topic."""
        topic, partitions = self._topics[index]
        self._lingers = True
        for partition, value in enumerate(notice.values(node, partitions)):
            self._sink.append(topic, partition, None, datastax.sorted_value(value) if self._pulsar else value)
        self.waiting[index] += partitions

    def send_lingering(self) -> None:
        """Have what is appended sent now, as nothing follows for the moment."""
        if self._lingers:
            self._lingers = False
            self._sink.send_lingering()

    def flush(self, timeout: float) -> None:
        """Have it all acknowledged within `timeout` seconds."""
        self._lingers = False
        self._sink.flush(timeout)

    def confirm_all(self, followed: Sequence[Table]) -> None:
        """Count all that was waiting as acknowledged."""
        for index, count in self.waiting.items():
            metrics.EVENTS.labels(followed[index].full_name).inc(count)
        self.waiting.clear()
        self._refusals.clear()


def _datastax_headers(value: bytes, token: int) -> Headers:
    """Return the headers of DataStax's agents. Our events hold the same inside, where it costs less."""
    event = wire.decode(value)
    headers = [("segpos", b"%d:%d" % (event.segment, event.position)), ("token", b"%d" % token)]
    if event.write_time is not None:
        headers.append(("writetime", b"%d" % event.write_time))
    return headers
