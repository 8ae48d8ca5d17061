"""Reads a stack's topics on Pulsar, whose messages say which version of their topic's schema they have."""

from __future__ import annotations

import json
import queue
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar

from helenus_connector.log._pulsar_offsets import offset
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Change
from helenus_schemas.event.datastax import unsorted_value
from helenus_schemas.event.wire import decode
from helenus_sinks.pulsar._admin import Admin, Refused
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_stack.errors import StackError
from helenus_stack.readers import AWAY
from helenus_stack.records import GONE, PATIENCE_S, Avro, Record, from_json
from helenus_stack.status import Status

_NOT_FOUND = 404
_NONE = {"type": "NONE", "data": "null"}


class Message:
    """The `events.Message` of Pulsar; an empty value is null, and properties are headers."""

    def __init__(self, message: Any, topic_partition: tuple[str, int], key: bytes | None, version: int) -> None:
        self._message, self._place, self._key = message, topic_partition, key
        self.version = version
        """Of its topic's schema; -1 without one."""

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        own = self._message.message_id()
        return offset(own.ledger_id(), own.entry_id(), own.batch_index())

    def timestamp(self) -> tuple[int, int]:
        """1, and ms since the epoch."""
        return 1, self._message.publish_timestamp()

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._message.data() or None

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [(name, text.encode()) for name, text in self._message.properties().items()]


class PulsarReader:
    """The `readers.Reader` of Pulsar."""

    frame = 0

    def __init__(self, status: Status) -> None:
        login = status.pulsar()
        cafile = login.get("pulsar.tls.cafile")
        self._config = PulsarConfig(
            login["pulsar.service.url"],
            login["pulsar.admin.url"],
            token=login.get("pulsar.auth.token"),
            cafile=Path(cafile) if cafile else None,
        )
        self._admin = Admin(login["pulsar.admin.url"], self._config.access)
        self._client = pulsar.Client(
            self._config.service_url,
            pulsar.AuthenticationToken(self._config.token) if self._config.token else None,
            PATIENCE_S,
            tls_trust_certs_file_path=cafile,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )
        self._schemas: dict[tuple[str, int], _Schema] = {}
        self._arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def topics(self) -> set[str]:
        with self._stack_errors():
            names = self._admin.ask("GET", f"{self._path('')}partitioned")
        return {name.rpartition("/")[2] for name in names}

    def messages(self, topic: str) -> Iterator[Message]:
        with self._stack_errors():
            for number in range(self._partitions(topic)):
                yield from self._partition(f"{topic}-partition-{number}")

    def follow(self, topic: str, whole: bool) -> None:
        start = pulsar.MessageId.earliest if whole else pulsar.MessageId.latest
        with self._stack_errors():
            self._client.create_reader(
                self._config.name(topic), start, reader_listener=lambda _, message: self._arrivals.put(message)
            )

    def arrival(self, seconds: float) -> Message | None:
        try:
            message = self._arrivals.get(timeout=seconds)
        except queue.Empty:
            return None
        return self._message(message)

    def record(self, message: Any) -> Record:
        key, value = message.key(), message.value()
        with self._stack_errors():
            schema = self._schema(message.topic(), message.version)
        return Record(
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            {} if key is None else schema.key(key),
            None if value in (None, GONE) else schema.value(value),
            dict(message.headers()),
            None if value is None else message.version,
            schema.is_json,
        )

    def change(self, message: Any) -> Change:
        return decode(unsorted_value(message.value() or b""))

    def close(self) -> None:
        self._client.close()

    def _partition(self, name: str) -> Iterator[Message]:
        try:
            end = self._admin.ask("GET", f"{self._path(name)}/lastMessageId")
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            return  # a new topic's partitions are there when somebody has come to them
        last = end["ledgerId"], end["entryId"], end["batchIndex"]
        reader = self._client.create_reader(self._config.name(name), pulsar.MessageId.earliest)
        try:
            while reader.has_message_available():  # what was there may be kept no longer
                message = reader.read_next(PATIENCE_S * 1000)
                own = message.message_id()
                yield self._message(message)
                if (own.ledger_id(), own.entry_id(), own.batch_index()) >= last:
                    break
        finally:
            reader.close()

    def _message(self, message: Any) -> Message:
        topic, _, partition = message.topic_name().rpartition("/")[2].rpartition("-partition-")
        version = message._message.int_schema_version()
        return Message(message, (topic, int(partition)), _key(message.partition_key()), version)

    def _partitions(self, topic: str) -> int:
        try:
            return int(self._admin.ask("GET", f"{self._path(topic)}/partitions")["partitions"])
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            return 0

    def _schema(self, topic: str, version: int) -> _Schema:
        topic_schema = self._schemas.get((topic, version))
        if topic_schema is None:
            namespace = f"{self._config.tenant}/{self._config.namespace}"
            path = f"schemas/{namespace}/{topic}/schema/{version}"
            topic_schema = self._schemas[topic, version] = _Schema(
                self._admin.ask("GET", path) if version >= 0 else _NONE
            )
        return topic_schema

    def _path(self, name: str) -> str:
        return f"persistent/{self._config.tenant}/{self._config.namespace}/{name}"

    @contextmanager
    def _stack_errors(self) -> Iterator[None]:
        """Errors of the client and the admin API as StackError."""
        try:
            yield
        except (pulsar.PulsarException, HelenusError) as error:
            problem = error.what if isinstance(error, HelenusError) else str(error)
            raise StackError(problem, self._config.service_url, AWAY) from error


def _key(text: str) -> bytes | None:
    """pulsar-client does not say whether a key is base64 or text; a JSON key of the form `json` is text."""
    try:
        return b64decode(text, validate=True) or None
    except ValueError:
        return text.encode()


class _Schema:
    """A schema as the admin API returns it, and what decodes by it."""

    def __init__(self, answer: Any) -> None:
        kind, text = answer["type"], json.loads(answer["data"])
        kinds, sides = {"value": kind}, {"value": text}
        if kind == "KEY_VALUE":
            kinds, sides = {side: answer["properties"][f"{side}.schema.type"] for side in text}, text
        self.is_json = kinds["value"] == "JSON"
        self.key, self.value = (
            Avro(sides[side]).decode if kinds.get(side) == "AVRO" else from_json for side in ("key", "value")
        )
