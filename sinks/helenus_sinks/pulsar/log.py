"""The Log on Pulsar, over a producer of our own: pulsar-client can't say which schema a message has.

A second thread has all connections, in an event loop (`_session`). It takes records from the caller through queues, one
for each partition, and sends them in batches (`_writer`). Batches without acknowledgement are kept as the frames that
were sent. When a connection or a topic goes away, the same frames are sent again in the same order, so a broker that
deduplicates recognizes them. A partition's producer keeps its name: a broker accepts it only when it has processed
everything from an older connection, so nothing old arrives after something new.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas, Headers, TopicError
from helenus_sinks.pulsar._admin import Admin, Refused
from helenus_sinks.pulsar._entries import size_of
from helenus_sinks.pulsar._session import ProducerSession
from helenus_sinks.pulsar._topic_schemas import TopicSchemas
from helenus_sinks.pulsar._writer import FRAME_BYTES, MessageId, Writer
from helenus_sinks.pulsar.client import Client
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import AUTHENTICATION, Answered, advice

_ANSWER_TIMEOUT_S = 30.0
_QUEUE_TIMEOUT_S = 60.0
_SLICE_S = 0.2
_ANY_SIZE = 1 << 31
"""Larger than any message: brokers say how large one may be."""
T = TypeVar("T")


class PulsarLog:
    """A `Log` on Pulsar. Topics are partitioned ones of a namespace; `declare` says which schema one has."""

    keeps_schemas = True

    def __init__(self, settings: PulsarConfig) -> None:
        self._settings = settings
        self._where = settings.service_url
        self._admin = Admin(settings.admin_url, settings.access) if settings.admin_url else None
        Client(settings.service_url, settings.access)  # raises for wrong settings, before anything is sent
        self._name = f"helenus-{uuid.uuid4().hex[:12]}"
        self._session: ProducerSession | None = None
        self._topic_schemas = TopicSchemas(
            self._where, lambda question: self._answer(question), lambda topic: self._partition_name(topic, 0)
        )
        self._schemas: dict[str, tuple[Any, bytes]] = {}
        self._declared: dict[str, DeclaredSchemas] = {}
        self._unpartitioned: set[str] = set()  # topics without partitions
        self._retained: set[str] = set()  # topics whose retention is set
        self._sequences: dict[str, int] = {}
        self._largest = _ANY_SIZE
        self._epoch: int | None = None
        self._kept: dict[str, int] = {}
        self._deadline = math.inf

    @property
    def largest(self) -> int:
        return self._largest

    def cluster(self) -> str:
        """Return the service URL: Pulsar has no name of a cluster for clients."""
        return self._where

    def topics(self) -> dict[str, int]:
        """Return how many partitions each topic has; one that is not partitioned counts as one.

        Raises HelenusError BROKER_UNREACHABLE or BROKER_REFUSED.
        """
        namespace = f"{self._settings.tenant}/{self._settings.namespace}"

        async def ask(client: Client) -> list[str]:
            reply = await (await client.service()).ask("get_topics", namespace=namespace, mode=0)
            if not reply.topics:  # a missing namespace has none either, but then the lookup of a topic fails
                await client.broker(self._settings.name("any"))
            return [str(topic) for topic in reply.topics]

        partition_counts: dict[str, int] = {}
        unpartitioned: set[str] = set()
        try:
            names = self._answer(ask)
        except HelenusError as error:
            raise error.with_location(f"{error.where}, namespace {namespace}") from None
        for full_name in names:
            name = full_name.rpartition("/")[2]
            topic, _, partition = name.rpartition("-partition-")
            if topic and partition.isdigit():
                partition_counts[topic] = max(partition_counts.get(topic, 0), int(partition) + 1)
            else:
                unpartitioned.add(name)
        self._unpartitioned = unpartitioned - partition_counts.keys()
        return {**dict.fromkeys(self._unpartitioned, 1), **partition_counts}

    def create(
        self,
        topic: str,
        partitions: int,
        config: Mapping[str, str],
        replication_factor: int | None = None,  # noqa: ARG002
    ) -> int:
        try:
            return self._create(topic, partitions, config)
        except HelenusError as error:
            raise _as_topic_error(error, error.where, topic) from None

    def _create(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        full_name = self._settings.name(topic)
        if partition_count := self._answer(lambda client: client.partitions(full_name)):
            if self._admin is not None and topic not in self._retained:
                with contextlib.suppress(Refused):  # without permission the operator's retention applies
                    self._admin.retain(full_name.partition("://")[2], config)
                self._retained.add(topic)
            return partition_count
        if self._admin is None:
            message = "the topic is missing: set pulsar.admin.url to have it made, or make it, with partitions"
            raise TopicError(
                Kind.BROKER_REFUSED, message, f"{self._where}, topic {full_name}", topic, advice(Kind.BROKER_REFUSED)
            )
        self._admin.create(full_name.partition("://")[2], partitions, config)
        self._retained.add(topic)
        if partition_count := self._answer(lambda client: client.partitions(full_name)):
            return partition_count
        message = "a topic without partitions has this name: delete it, or choose another"
        raise TopicError(
            Kind.BROKER_REFUSED, message, f"{self._where}, topic {full_name}", topic, advice(Kind.BROKER_REFUSED)
        )

    def declare(self, topic: str, schemas: DeclaredSchemas) -> None:
        if self._declared.get(topic) == schemas:
            return
        try:
            self._schemas[topic] = self._topic_schemas.register(topic, schemas)
        except HelenusError as error:
            raise _as_topic_error(error, f"{self._where}, topic {topic}", topic) from None
        self._declared[topic] = schemas

    def own(self, epoch: int) -> None:
        """Have brokers refuse producers with a lower epoch (`helenus_sinks.pulsar.owners`) in the partitions of the
        next records, if their topics are declared. `append` and `flush` raise NOT_OWNER where there is a higher one.
        """
        self._epoch = epoch

    def keep(self, topic: str, epoch: int) -> None:
        """As `own`, for one topic, which needs no schema: its producers stay from batch to batch, since no other
        process takes turns with this one.
        """
        if self._kept.get(topic) != epoch and self._session is not None:
            self._session.leave(topic)  # brokers have closed its producers, without a word
        self._kept[topic] = epoch

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        size = size_of(key, value, headers)
        session = self._session or self._start()
        max_bytes = min(self._largest, session.largest) - FRAME_BYTES
        if size > max_bytes:
            max_bytes = self.largest_record()  # a broker may take more than it does by default
        if size > max_bytes:
            message = f"a record of {size} bytes, where {max_bytes} are allowed"
            raise TopicError(Kind.RECORD_TOO_LARGE, message, f"topic {topic}, partition {partition}", topic)
        if session.is_full:
            self._wait_for_room(session, topic)
        session.submit(self._writer(session, topic, partition), (key, value, headers), size)

    def largest_record(self) -> int:
        """Return how many bytes a record may have, with its headers and its key in base64, as a broker says. Raises
        HelenusError if none does.
        """
        session = self._session or self._start()
        if not session.is_largest_known:
            session.largest = self._answer(_ask_largest)
            session.is_largest_known = True
        return min(self._largest, session.largest) - FRAME_BYTES

    def store(
        self, topic: str, partition: int, values: Iterable[tuple[bytes, Headers]], timeout: float
    ) -> tuple[MessageId, MessageId]:
        """Append values without keys to a topic that has no other records, and flush. Returns the message ids of the
        first and the last one: others may be between them, as of another writer. Raises as `append` and `flush`.
        """
        writer = self._writer(self._session or self._start(), topic, partition)
        stored_ids: list[MessageId | None] = []
        writer.stored_ids = stored_ids  # nothing of it is on its way: each call ends with a flush
        for value, headers in values:
            self.append(topic, partition, None, value, headers)
        self.flush(timeout)
        writer.stored_ids = None
        first, last = stored_ids[0], stored_ids[-1]
        if first is None or last is None:
            problem = "a broker has records from before a connection was lost, and does not say where"
            raise HelenusError(Kind.APPEND_FAILED, problem, f"{self._where}, topic {topic}, partition {partition}")
        return first, last

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        for key, value in records:
            self.append(topic, partition, key, value)

    def start(self) -> None:
        """Connect now: the first record would wait for it."""
        session = self._session or self._start()
        session.run(session.connect())

    def keep_short(self, timeout: float) -> None:
        """Do nothing: there are no transactions."""

    def hurry(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def send_lingering(self) -> None:
        if self._session is not None:
            self._session.send_lingering()

    def flush(self, timeout: float) -> None:
        session = self._session
        if session is None:
            return
        session.send_lingering()
        fewest, since = session.unacknowledged, time.monotonic()
        while session.unacknowledged and not session.error:
            now = time.monotonic()
            if session.unacknowledged < fewest:
                fewest, since = session.unacknowledged, now
            if now > min(since + timeout, self._deadline):
                break
            session.wait(min(_SLICE_S, timeout or _SLICE_S))
        unacknowledged, error, last_problem = session.unacknowledged, session.error, session.last_problem
        if not unacknowledged and not error:
            session.release()
            return
        self.close()
        if error is not None:
            if error.kind is Kind.RECORD_TOO_LARGE:
                self._largest = min(self._largest, session.largest)
            raise error
        reason = f": {last_problem}" if last_problem else ""
        raise HelenusError(
            Kind.APPEND_FAILED, f"Pulsar did not acknowledge {unacknowledged} records in time{reason}", self._where
        )

    def close(self) -> None:
        self._declared.clear()  # a topic that is recreated has no schema
        if self._session is not None:
            self._session.end()
            self._session = None

    def _start(self) -> ProducerSession:
        self._session = ProducerSession(self._settings)
        return self._session

    def _writer(self, session: ProducerSession, topic: str, partition: int) -> Writer:
        writer = session.writers.get((topic, partition))
        if writer is None:
            full_name = self._partition_name(topic, partition)
            writer = Writer(session, topic, full_name, f"{self._name}-{partition}", self._sequences)
            session.writers[topic, partition] = writer
        writer.schema = self._schemas.get(topic, (None, b""))
        # Dead letters have no schema: several connectors may write them to one topic.
        writer.topic_epoch = self._kept.get(topic, self._epoch if topic in self._schemas else None)
        writer.stays = topic in self._kept
        return writer

    def _partition_name(self, topic: str, partition: int) -> str:
        full_name = self._settings.name(topic)
        return full_name if topic in self._unpartitioned else f"{full_name}-partition-{partition}"

    def _wait_for_room(self, session: ProducerSession, topic: str) -> None:
        session.send_lingering()
        deadline = time.monotonic() + _QUEUE_TIMEOUT_S
        while session.is_full and not session.error:
            if time.monotonic() > min(deadline, self._deadline):
                reason = f": {session.last_problem}" if session.last_problem else ""
                raise HelenusError(Kind.APPEND_FAILED, f"Pulsar takes no records: the queue is full{reason}", topic)
            session.wait(_SLICE_S)
        if session.error:
            raise session.error  # the flush that has to follow drops the records that are held

    def _answer(self, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        session = self._session or self._start()
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        return session.answer(question, lambda: time.monotonic() > min(deadline, self._deadline))


async def _ask_largest(client: Client) -> int:
    return (await client.service()).largest


def _as_topic_error(error: HelenusError, where: str, topic: str) -> HelenusError:
    """Return an error of a request about a topic: a TopicError if Pulsar answered it, and not about the login."""
    answered = isinstance(error, Refused) or (isinstance(error, Answered) and error.code != AUTHENTICATION)
    ours = isinstance(error, TopicError) or error.kind is Kind.REGISTRY_REFUSED
    if error.action is Action.RETRY or not (answered or ours):
        return error.with_location(where)
    return TopicError(error.kind, error.what, where, topic, error.advice)
