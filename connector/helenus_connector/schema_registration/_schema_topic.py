"""The topic of schemas: compacted, of one partition, written and read by every process that has schemas in it.

    read     all that is new, up to the end that the brokers tell
    append   one entry, durable when it returns; the caller reads again, and learns what came before it

Two processes may append at once. Which of two entries counts, all of them decide alike: by the order in the topic.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.schema_registration._entry import SchemaEntry, parse_entry
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import MISSING, DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.kept_topics import find_forgetful
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.settings import client_settings

_CONFIG = {"cleanup.policy": "compact"}
_READ_S, _ANSWER_S, _FLUSH_S = 30.0, 10.0, 30.0
_MOST_BYTES = 128 << 20
"""Of the schemas in one topic, in memory: those of ten thousand tables have some 20 MB. Beyond it the topic is none of
ours, or somebody fills it.
"""
_log = structlog.get_logger(__name__)


class SchemaTopic:
    """The entries of a topic, of the brokers of `worker`. Any thread may use it, one at a time.

    The methods raise HelenusError: CONFIG for a topic that loses schemas or has several partitions, and the brokers'.
    """

    def __init__(self, worker: WorkerSettings, topic: str) -> None:
        self._worker = worker
        self.name = topic
        self.where = f"{worker.bootstrap_servers}, topic {topic}"
        self._lock = threading.RLock()
        self._entries: dict[str, SchemaEntry] = {}
        self._without_order: set[str] = set()
        self._size = 0
        self._consumer: Consumer | None = None
        self._next_offset = 0
        self._log: KafkaLog | None = None
        self._is_checked = False

    def entries(self, subject: str | None = None) -> list[SchemaEntry]:
        """Return the entries that the topic has now, of one subject or of all, in their order."""
        with self._lock:
            self._read()
            entries = [e for e in self._entries.values() if subject is None or e.subject == subject]
        return sorted(entries, key=lambda entry: entry.order)

    def find(self, is_wanted: Callable[[SchemaEntry], bool]) -> SchemaEntry | None:
        """Return an entry, from what was read before if it is there."""
        with self._lock:
            entry = next(filter(is_wanted, self._entries.values()), None)
            if entry is None:
                self._read()
                entry = next(filter(is_wanted, self._entries.values()), None)
            return entry

    def append(self, entry: SchemaEntry) -> list[SchemaEntry]:
        """Append an entry, and return the entries of its subject, in their order.

        Of a new one a second record follows, which says the order of the first: compaction keeps the last one alone.
        """
        with self._lock:
            self._write(entry)
            entries = self.entries(entry.subject)
            self.note_orders()
            return entries

    def note_orders(self) -> None:
        """Append entries that have no record yet that says their order, as of a process that was killed meanwhile."""
        with self._lock:
            for key in list(self._without_order):
                if (entry := self._entries.get(key)) is None:
                    self._without_order.discard(key)
                    continue
                try:
                    self._write(entry)
                except HelenusError as error:
                    if error.kind is not Kind.RECORD_TOO_LARGE:
                        raise
                    # Somebody else's, who writes larger records than this login: ours must not wait for it.
                    _log.warning("schemas.order_not_kept", topic=self.name, subject=entry.subject, reason=str(error))
                self._without_order.discard(key)

    def _write(self, entry: SchemaEntry) -> None:
        self._create()
        assert self._log is not None
        try:
            self._log.append(self.name, 0, *entry.to_record())
            self._log.flush(_FLUSH_S)
        except HelenusError:
            self._log.close()
            raise

    def has_records(self, topic: str) -> bool:
        """Return whether another topic, one of records, has any, or ever had."""
        with self._lock, self._broker_errors():
            consumer = self._consumer or self._connect()
            metadata = consumer.list_topics(topic, _ANSWER_S).topics[topic]
            if metadata.error is not None and metadata.error.code() not in MISSING:
                raise KafkaException(metadata.error)
            for partition in metadata.partitions:
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), _ANSWER_S)
                if end:
                    return True
        return False

    def close(self) -> None:
        """Close all connections; the next call connects again."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
            if self._log is not None:
                self._log.close()
            self._consumer = self._log = None

    def _create(self) -> None:
        """Create the topic if it is missing, and check that it keeps what it gets."""
        if self._log is None:
            self._log = KafkaLog(self._worker.producer_config)
            self._log.replication_factor = self._worker.topic_creation_default_replication_factor
        if self._is_checked:
            return
        advice = "delete it, or set another schema.store.topic"
        if (count := self._log.create(self.name, 1, _CONFIG)) != 1:
            raise HelenusError(Kind.CONFIG, f"the topic of schemas has {count} partitions, not one", self.where, advice)
        client = client_settings(self._worker.producer_config)
        for error in find_forgetful(client, self._worker.bootstrap_servers, [self.name], _CONFIG).values():
            raise error
        self._is_checked = True

    def _connect(self) -> Consumer:
        settings: dict[str, object] = {
            **client_settings(self._worker.consumer_config),
            "group.id": "helenus-schemas",  # librdkafka wants one; nothing is committed
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "earliest",
            # No writer has transactions: one that is left open by another program must not hide schemas.
            "isolation.level": "read_uncommitted",
            "allow.auto.create.topics": "false",
        }
        consumer: Consumer = new_client(Consumer, settings, DeliveryReports(), self.where)
        self._consumer = consumer
        return consumer

    @contextlib.contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as failure:
            raise self._error(failure.args[0]) from None

    def _error(self, error: KafkaError) -> HelenusError:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        return broker_error(error, self.where)

    def _read(self) -> None:
        """Read what is new. A topic that is missing has nothing; one that was made anew is read from its start."""
        with self._broker_errors():
            consumer = self._consumer or self._connect()
            try:
                first, end = consumer.get_watermark_offsets(TopicPartition(self.name, 0), _ANSWER_S)
            except KafkaException as failure:
                if failure.args[0].code() not in MISSING:
                    raise
                self._forget()
                return
            if end < self._next_offset:
                self._forget()
            if end <= max(first, self._next_offset):
                return
            consumer.assign([TopicPartition(self.name, 0, max(first, self._next_offset))])
            deadline = time.monotonic() + _READ_S
            while self._next_offset < end:
                message = consumer.poll(0.2)
                if time.monotonic() > deadline:
                    raise HelenusError(
                        Kind.BROKER_UNREACHABLE, "the topic of schemas is not read to its end", self.where
                    )
                if message is None:
                    continue
                if message.error() is None:
                    self._take(message.key() or b"", message.value(), message.offset())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    self._next_offset = max(self._next_offset, message.offset())
                else:
                    raise KafkaException(message.error())
            consumer.unassign()

    def _take(self, key: bytes, value: bytes | None, offset: int) -> None:
        self._next_offset = offset + 1
        if value is None:
            former = self._entries.pop(key.decode(errors="replace"), None)
            self._size -= 0 if former is None else len(former.schema)
            return
        try:
            entry = parse_entry(key, value)
        except ValueError as error:
            _log.warning("schemas.entry_ignored", topic=self.name, offset=offset, reason=str(error)[:300])
            return
        former = self._entries.get(entry.key)
        if entry.order >= 0:
            self._without_order.discard(entry.key)
        else:
            self._without_order.add(entry.key)
            if former is not None:
                # Another process appended it at the same moment: the first one counts, and keeps its state.
                return
            entry = replace(entry, order=offset)
        self._size += len(entry.schema) - (0 if former is None else len(former.schema))
        if self._size > _MOST_BYTES:
            self._forget()
            problem = f"the topic has schemas of more than {_MOST_BYTES} bytes"
            raise HelenusError(Kind.STATE, problem, self.where, "see who writes it, and set another schema.store.topic")
        self._entries[entry.key] = entry

    def _forget(self) -> None:
        """Forget what was read: the topic is another one, or is read again from its start."""
        self._entries, self._without_order, self._size, self._next_offset = {}, set(), 0, 0
        self._is_checked = False
