"""The Log on Pulsar, over a producer of our own: pulsar-client can't say which schema a message has.

One thread beside the caller's has all connections, in an event loop; it takes records from the caller through queues,
one for each partition, and sends them in batches. What is not acknowledged is kept as the frames that were sent. When
a connection or a topic goes away, the same frames go out again in the same order, so a broker that deduplicates
finds batches that it knows. A partition's producer keeps its name: a broker lets it in only when it has done with what
came over an older connection, so nothing old arrives behind something new.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from helenus_schemas.avro.build import TABLE_ID, text
from helenus_schemas.avro.compare import has_times, incompatibility, other_times, parsed, recreated, without_names
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.settings.shared import PulsarSettings
from helenus_sinks.log import Headers, Schemas, TopicError
from helenus_sinks.pulsar._writer import FRAME_BYTES, RECORD_BYTES, Record, Writer
from helenus_sinks.pulsar.admin import Admin, Refused
from helenus_sinks.pulsar.session import (
    AUTHENTICATION,
    AUTHORIZATION,
    NOT_READY,
    TOPIC_NOT_FOUND,
    Access,
    Answered,
    Client,
    end_loop,
)
from helenus_sinks.pulsar.wire import FRAME_MAX, schema_of, texts_of

_ANSWER_TIMEOUT = 30.0
_PASSING_S = 5.0
_ROOM_TIMEOUT = 60.0
_ROOM_BYTES = 32 * 1024 * 1024
_ROOM_RECORDS = 50_000
_SLICE = 0.2
T = TypeVar("T")


@dataclass(frozen=True)
class PulsarConfig:
    """How to reach Pulsar. `batches` is `mixed`, or `key` where sinks share a subscription by key.

    With `exclusive`, the newest Log that writes to a partition of a declared topic is the only one that can.
    """

    service_url: str
    admin_url: str | None = None
    tenant: str = "public"
    namespace: str = "default"
    token: str | None = None
    cafile: Path | None = None
    check_hostname: bool = True
    batches: Literal["mixed", "key"] = "mixed"
    exclusive: bool = False

    def __repr__(self) -> str:
        return f"PulsarConfig({self.service_url}, {self.tenant}/{self.namespace})"

    @staticmethod
    def of(
        settings: PulsarSettings, batches: Literal["mixed", "key"] = "mixed", exclusive: bool = False
    ) -> PulsarConfig:
        """What a command's properties say."""
        return PulsarConfig(
            settings.pulsar_service_url,
            settings.pulsar_admin_url,
            settings.pulsar_tenant,
            settings.pulsar_namespace,
            settings.pulsar_auth_token.get_secret_value() if settings.pulsar_auth_token else None,
            settings.pulsar_tls_cafile,
            settings.pulsar_tls_check_hostname,
            batches,
            exclusive,
        )

    @property
    def access(self) -> Access:
        return Access(self.token, self.cafile, self.check_hostname)

    def name(self, topic: str) -> str:
        """The topic's name as Pulsar has it."""
        return f"persistent://{self.tenant}/{self.namespace}/{topic}"


class PulsarLog:
    """A `Log` on Pulsar. Topics are partitioned ones of a namespace; `declare` says which schema one has."""

    keeps_schemas = True

    def __init__(self, settings: PulsarConfig) -> None:
        self._settings = settings
        self._where = settings.service_url
        self._admin = Admin(settings.admin_url, settings.access) if settings.admin_url else None
        Client(settings.service_url, settings.access)  # a mistake is told at once
        self._name = f"helenus-{uuid.uuid4().hex[:12]}"
        self._session: _Session | None = None
        self._schemas: dict[str, tuple[Any, bytes]] = {}
        self._declared: dict[str, Schemas] = {}
        self._whole: set[str] = set()  # topics that have no partitions
        self._retained: set[str] = set()  # topics that are known to keep what they have
        self._sequences: dict[str, int] = {}
        self._largest = FRAME_MAX
        self._latest = math.inf

    @property
    def largest(self) -> int:
        return self._largest

    def cluster(self) -> str:
        """Where it is reached: Pulsar's brokers tell clients no name."""
        return self._where

    def topics(self) -> dict[str, int]:
        """How many partitions each topic has; one that is not partitioned is its own only one.

        Raises HelenusError BROKER_UNREACHABLE or BROKER_REFUSED.
        """
        namespace = f"{self._settings.tenant}/{self._settings.namespace}"

        async def ask(client: Client) -> list[str]:
            said = await (await client.service()).ask("get_topics", namespace=namespace, mode=0)
            if not said.topics:  # a namespace that is missing has none either, but its topics have no broker
                await client.broker(self._settings.name("any"))
            return [str(topic) for topic in said.topics]

        found: dict[str, int] = {}
        whole: set[str] = set()
        try:
            names = self._asked(ask)
        except HelenusError as error:
            raise error.at(f"{error.where}, namespace {namespace}") from None
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
                with contextlib.suppress(Refused):  # who may not ask goes by what operators set
                    self._admin.retain(full.partition("://")[2], config)
                self._retained.add(topic)
            return known
        if self._admin is None:
            what = "the topic is missing: set pulsar.admin.url to have it made, or make it, with partitions"
            raise TopicError(Kind.BROKER_REFUSED, what, f"{self._where}, topic {full}", topic)
        self._admin.create(full.partition("://")[2], partitions, config)
        self._retained.add(topic)
        if known := self._asked(lambda client: client.partitions(full)):
            return known
        what = "a topic without partitions has this name: delete it, or choose another"
        raise TopicError(Kind.BROKER_REFUSED, what, f"{self._where}, topic {full}", topic)

    def declare(self, topic: str, schemas: Schemas) -> None:
        if self._declared.get(topic) == schemas:
            return
        try:
            self._schemas[topic] = self._taken(topic, schemas)
        except HelenusError as error:
            raise _of_topic(error, f"{self._where}, topic {topic}", topic) from None
        self._declared[topic] = schemas

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        size = len(key or b"") * 4 // 3 + len(value or b"")
        if headers:
            size += sum(len(name) + len(content) for name, content in headers)
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
        left, error, heard = session.left, session.error, session.heard
        if not left and not error:
            return
        self.close()
        if error is not None:
            if error.kind is Kind.RECORD_TOO_LARGE:
                self._largest = min(self._largest, session.largest)
            raise error
        told = f": {heard}" if heard else ""
        raise HelenusError(Kind.APPEND_FAILED, f"Pulsar did not acknowledge {left} records in time{told}", self._where)

    def close(self) -> None:
        self._declared.clear()  # a topic that is made anew has no schema
        if self._session is not None:
            self._session.end()
            self._session = None

    def _start(self) -> _Session:
        self._session = _Session(self._settings)
        return self._session

    def _taken(self, topic: str, schemas: Schemas) -> tuple[Any, bytes]:
        """As `_registered`, of these or of those that the topic takes in their place."""
        names_table = schemas.key is not None and TABLE_ID in schemas.key  # as events' do not
        self._check_times(topic, schemas, names_table)
        known = self._known_key(topic, schemas) if names_table else None
        if known is not None and (what := recreated(parsed(known), parsed(schemas.key or ""))):
            raise HelenusError(Kind.REGISTRY_REFUSED, what, self._where)
        try:
            return self._registered(topic, schemas)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_REFUSED:
                raise
            known = known or self._known_key(topic, schemas)
            kept = None if known is None else self._with(known, schemas)
            if kept is None:
                raise
            return self._registered(topic, kept)

    def _registered(self, topic: str, schemas: Schemas) -> tuple[Any, bytes]:
        """A schema and its version. It belongs to the whole topic: any broker that has a part of it may be asked."""
        schema = schema_of(schemas)
        return schema, self._asked(lambda client: client.register(self._place(topic, 0), schema))

    def _known_key(self, topic: str, schemas: Schemas) -> str | None:
        """The key's schema as the topic has it, if that is another; None for JSON, which has names in its bytes, for a
        topic without schema, and where the broker does not tell us.
        """
        if schemas.key is None or schemas.kind == "JSON":
            return None
        known, _ = self._known(topic)
        return None if known == schemas.key else known

    def _known(self, topic: str) -> tuple[str | None, str]:
        """The schemas of the topic's keys and values: None and none where it has none, or the broker does not tell."""
        try:
            return texts_of(self._asked(lambda client: client.schema(self._place(topic, 0))))
        except Answered as error:
            if error.code not in (TOPIC_NOT_FOUND, AUTHORIZATION):
                raise
            return None, ""

    def _check_times(self, topic: str, schemas: Schemas, names_table: bool) -> None:
        """Raise REGISTRY_REFUSED for times of another unit than the topic's, as of records that DataStax's connector
        wrote: Pulsar takes them. Keys of events say which agent wrote them.
        """
        told = ((schemas.key if names_table or schemas.kind == "JSON" else None), schemas.value)
        new = [parsed(one) if one else None for one in told]
        if not any(map(has_times, new)):
            return
        for now, known in zip(new, self._known(topic), strict=True):
            try:
                what = other_times(parsed(known), now) if now is not None and known else None
            except ValueError:  # no JSON
                continue
            if what:
                raise HelenusError(Kind.REGISTRY_REFUSED, what, self._where)

    def _with(self, known: str, schemas: Schemas) -> Schemas | None:
        """These schemas with the key's as it is `known`, if that is the same but for its names; else None.

        A column of a key that gets another name changes no byte of any key, and Pulsar takes it for another column.
        Raises REGISTRY_REFUSED where names would be wrong.
        """
        old, new, value = map(parsed, (known, schemas.key or "", schemas.value))
        if without_names(old) != without_names(new):
            return None
        if what := incompatibility(old, new, value):
            raise HelenusError(Kind.REGISTRY_REFUSED, what, self._where)
        if without_names(value) == without_names(
            new
        ):  # of a table of key columns only: its value goes by the key's schema
            without = {name: part for name, part in json.loads(known).items() if name != TABLE_ID}
            return replace(schemas, key=known, value=text(without))
        return replace(schemas, key=known)

    def _writer(self, session: _Session, topic: str, partition: int) -> Writer:
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

    def _wait_for_room(self, session: _Session, topic: str) -> None:
        session.hasten()
        deadline = time.monotonic() + _ROOM_TIMEOUT
        while session.full and not session.error:
            if time.monotonic() > min(deadline, self._latest):
                told = f": {session.heard}" if session.heard else ""
                raise HelenusError(Kind.APPEND_FAILED, f"Pulsar takes no records: the queue is full{told}", topic)
            session.wait(_SLICE)
        if session.error:
            raise session.error  # the flush that has to follow drops what is held

    def _asked(self, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        session = self._session or self._start()
        deadline = time.monotonic() + _ANSWER_TIMEOUT
        return session.answer(question, lambda: time.monotonic() > min(deadline, self._latest))


def _of_topic(error: HelenusError, where: str, topic: str) -> HelenusError:
    """What was asked of a topic ended in this: in an error of it alone, if Pulsar answered, knowing who asks."""
    answered = isinstance(error, Refused) or (isinstance(error, Answered) and error.code != AUTHENTICATION)
    ours = isinstance(error, TopicError) or error.kind is Kind.REGISTRY_REFUSED
    if error.action is Action.RETRY or not (answered or ours):
        return error.at(where)
    return TopicError(error.kind, error.what, where, topic)


class _Session:
    """The event loop's thread, from one start to the end or a failure. `left` counts records without acknowledgement.

    The caller's thread alone writes `taken*`, the loop's alone `done*`: so neither needs a lock.
    """

    def __init__(self, settings: PulsarConfig) -> None:
        self.where = settings.service_url
        self.by_key = settings.batches == "key"
        self.writers: dict[tuple[str, int], Writer] = {}
        self.error: HelenusError | None = None
        self.heard = ""
        self.largest = FRAME_MAX
        self.taken = self.taken_bytes = self.done = self.done_bytes = 0
        self.loop = asyncio.new_event_loop()
        self.client = Client(settings.service_url, settings.access)
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="helenus-pulsar", daemon=True)
        self._thread.start()

    @property
    def left(self) -> int:
        return self.taken - self.done

    @property
    def full(self) -> bool:
        return self.taken - self.done >= _ROOM_RECORDS or self.taken_bytes - self.done_bytes >= _ROOM_BYTES

    def take(self, writer: Writer, record: Record, size: int) -> None:
        """Hand a record to a writer, from the caller's thread."""
        self.taken += 1
        self.taken_bytes += size + RECORD_BYTES
        writer.records.append((record, writer.schema, size + RECORD_BYTES))
        if not writer.called:
            writer.called = True
            self.loop.call_soon_threadsafe(writer.call)

    def hasten(self) -> None:
        """Send what lingers, from the caller's thread."""
        for writer in self.writers.values():
            if writer.records:
                self.loop.call_soon_threadsafe(writer.pump)

    def wait(self, seconds: float) -> None:
        """Wait for news, such as an acknowledgement, from the caller's thread."""
        with self._news:
            if self.left and not self.error:
                self._news.wait(seconds)

    def acknowledged(self, records: int, size: int) -> None:
        """From the loop's thread."""
        self.done += records
        self.done_bytes += size
        with self._news:
            self._news.notify_all()

    def failed(self, error: HelenusError) -> None:
        """Something that sending again does not mend, from the loop's thread."""
        self.error = self.error or error
        with self._news:
            self._news.notify_all()

    def answer(self, question: Callable[[Client], Coroutine[Any, Any, T]], late: Callable[[], bool]) -> T:
        """What a coroutine made by `question(client)` gives, unless it gets late. Raises HelenusError.

        A topic that is just given to another broker is looked up again: it may take that one a while. Other answers
        that may pass, such as one of a broker that loses what it was about to use, are soon told.
        """
        refusal = None
        soon = time.monotonic() + _PASSING_S
        asked = asyncio.run_coroutine_threadsafe(question(self.client), self.loop)
        while not late():
            try:
                return asked.result(_SLICE)  # in slices, as a flush waits
            except concurrent.futures.TimeoutError:
                continue
            except Answered as error:
                may_pass = error.kind is Kind.BROKER_UNREACHABLE
                if not may_pass or (error.code != NOT_READY and time.monotonic() > soon):
                    raise
                refusal = error
                time.sleep(_SLICE)
                asked = asyncio.run_coroutine_threadsafe(question(self.client), self.loop)
        asked.cancel()
        raise refusal or HelenusError(Kind.BROKER_UNREACHABLE, "Pulsar does not answer in time", self.where)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it in the loop, with nobody waiting."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    async def greet(self) -> None:
        """Connect to the service; who fails at it is told by the first record."""
        with contextlib.suppress(HelenusError):
            await self.client.service()

    def end(self) -> None:
        """Drop everything and end the thread."""
        self.loop.call_soon_threadsafe(self._stop)
        self._thread.join(10)

    def _stop(self) -> None:
        self.error = self.error or HelenusError(Kind.BROKER_UNREACHABLE, "closed")  # nobody opens anything any more
        for writer in self.writers.values():
            writer.end()
        self.client.close()
        self.loop.stop()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        end_loop(self.loop)
