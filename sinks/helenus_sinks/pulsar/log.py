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
from helenus_sinks.pulsar._writer import FRAME_BYTES, Writer
from helenus_sinks.pulsar.client import Client
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import AUTHENTICATION, Answered, advice
from helenus_sinks.pulsar.wire import FRAME_MAX

_ANSWER_TIMEOUT = 30.0
_ROOM_TIMEOUT = 60.0
_SLICE = 0.2
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
            self._where, lambda question: self._asked(question), lambda topic: self._place(topic, 0)
        )
        self._schemas: dict[str, tuple[Any, bytes]] = {}
        self._declared: dict[str, DeclaredSchemas] = {}
        self._whole: set[str] = set()  # topics without partitions
        self._retained: set[str] = set()  # topics whose retention is set
        self._sequences: dict[str, int] = {}
        self._largest = FRAME_MAX
        self._latest = math.inf

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

        found: dict[str, int] = {}
        whole: set[str] = set()
        try:
            names = self._asked(ask)
        except HelenusError as error:
            raise error.with_location(f"{error.where}, namespace {namespace}") from None
        for full in names:
            name = full.rpartition("/")[2]
            topic, _, partition = name.rpartition("-partition-")
            if topic and partition.isdigit():
                found[topic] = max(found.get(topic, 0), int(partition) + 1)
            else:
                whole.add(name)
        self._whole = whole - found.keys()
        return {**dict.fromkeys(self._whole, 1), **found}

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        try:
            return self._create(topic, partitions, config)
        except HelenusError as error:
            raise _of_topic(error, error.where, topic) from None

    def _create(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        full = self._settings.name(topic)
        if known := self._asked(lambda client: client.partitions(full)):
            if self._admin is not None and topic not in self._retained:
                with contextlib.suppress(Refused):  # without permission the operator's retention applies
                    self._admin.retain(full.partition("://")[2], config)
                self._retained.add(topic)
            return known
        if self._admin is None:
            what = "the topic is missing: set pulsar.admin.url to have it made, or make it, with partitions"
            raise TopicError(
                Kind.BROKER_REFUSED, what, f"{self._where}, topic {full}", topic, advice(Kind.BROKER_REFUSED)
            )
        self._admin.create(full.partition("://")[2], partitions, config)
        self._retained.add(topic)
        if known := self._asked(lambda client: client.partitions(full)):
            return known
        what = "a topic without partitions has this name: delete it, or choose another"
        raise TopicError(Kind.BROKER_REFUSED, what, f"{self._where}, topic {full}", topic, advice(Kind.BROKER_REFUSED))

    def declare(self, topic: str, schemas: DeclaredSchemas) -> None:
        if self._declared.get(topic) == schemas:
            return
        try:
            self._schemas[topic] = self._topic_schemas.register(topic, schemas)
        except HelenusError as error:
            raise _of_topic(error, f"{self._where}, topic {topic}", topic) from None
        self._declared[topic] = schemas

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        size = size_of(key, value, headers)
        session = self._session or self._start()
        most = min(self._largest, session.largest) - FRAME_BYTES
        if size > most:
            what = f"a record of {size} bytes, where {most} are allowed"
            raise TopicError(Kind.RECORD_TOO_LARGE, what, f"topic {topic}, partition {partition}", topic)
        if session.full:
            self._wait_for_room(session, topic)
        session.take(self._writer(session, topic, partition), (key, value, headers), size)

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        for key, value in records:
            self.append(topic, partition, key, value)

    def start(self) -> None:
        """Connect now: the first record would wait for it."""
        session = self._session or self._start()
        session.run(session.greet())

    def hurry(self, seconds: float) -> None:
        self._latest = min(self._latest, time.monotonic() + seconds)

    def flush(self, timeout: float) -> None:
        session = self._session
        if session is None:
            return
        session.hasten()
        least, since = session.left, time.monotonic()
        while session.left and not session.error:
            now = time.monotonic()
            if session.left < least:
                least, since = session.left, now
            if now > min(since + timeout, self._latest):
                break
            session.wait(min(_SLICE, timeout or _SLICE))
        left, error, last_problem = session.left, session.error, session.last_problem
        if not left and not error:
            return
        self.close()
        if error is not None:
            if error.kind is Kind.RECORD_TOO_LARGE:
                self._largest = min(self._largest, session.largest)
            raise error
        reason = f": {last_problem}" if last_problem else ""
        raise HelenusError(
            Kind.APPEND_FAILED, f"Pulsar did not acknowledge {left} records in time{reason}", self._where
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
            full = self._place(topic, partition)
            number = len(session.writers) + 1
            alone = self._settings.exclusive and topic in self._schemas
            writer = Writer(session, topic, full, f"{self._name}-{partition}", number, self._sequences, alone)
            session.writers[topic, partition] = writer
        writer.schema = self._schemas.get(topic, (None, b""))
        return writer

    def _place(self, topic: str, partition: int) -> str:
        full = self._settings.name(topic)
        return full if topic in self._whole else f"{full}-partition-{partition}"

    def _wait_for_room(self, session: ProducerSession, topic: str) -> None:
        session.hasten()
        deadline = time.monotonic() + _ROOM_TIMEOUT
        while session.full and not session.error:
            if time.monotonic() > min(deadline, self._latest):
                reason = f": {session.last_problem}" if session.last_problem else ""
                raise HelenusError(Kind.APPEND_FAILED, f"Pulsar takes no records: the queue is full{reason}", topic)
            session.wait(_SLICE)
        if session.error:
            raise session.error  # the flush that has to follow drops the records that are held

    def _asked(self, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        session = self._session or self._start()
        deadline = time.monotonic() + _ANSWER_TIMEOUT
        return session.answer(question, lambda: time.monotonic() > min(deadline, self._latest))


def _of_topic(error: HelenusError, where: str, topic: str) -> HelenusError:
    """Return an error of a request about a topic: a TopicError if Pulsar answered it, and not about the login."""
    answered = isinstance(error, Refused) or (isinstance(error, Answered) and error.code != AUTHENTICATION)
    ours = isinstance(error, TopicError) or error.kind is Kind.REGISTRY_REFUSED
    if error.action is Action.RETRY or not (answered or ours):
        return error.with_location(where)
    return TopicError(error.kind, error.what, where, topic, error.advice)
