"""Reading topics on Pulsar: events for the tasks."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from base64 import b64decode
from binascii import a2b_base64
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import pulsar

from helenus_connector.log._pulsar_entries import PulsarBrokers, PulsarEntry, PulsarPartition
from helenus_connector.log._pulsar_offsets import offset_of, parts
from helenus_connector.log.events import OffsetRange
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.datastax import unsorted_value
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import pulsar_error

TIMEOUT_S = 10.0
"""For an answer of the broker."""
_CHUNK = 2_000  # of more, what was read first has left the processor's cache
_CHUNK_BYTES = 8 << 20
_READ_TIMEOUT_S = 60.0
_LATER_READ_TIMEOUT_S = 2.0
_MAX_PARTITIONS = 64  # partitions
_MAX_BUFFERED_BYTES = 32 << 20  # of all of them, of what was pushed and is not read yet
_VERSION_BYTES = 8

if sys.version_info >= (3, 11):  # `base64` does the same, in five times the time
    _bytes_of = partial(a2b_base64, strict_mode=True)
else:
    _bytes_of = partial(b64decode, validate=True)


class PulsarMessage:
    """The `events.Message` of Pulsar. `version` is that of its topic's schema, where it is of a data topic."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_time", "_topic", "_value", "version")

    def __init__(
        self,
        offset_range: OffsetRange,
        offset: int,
        time_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        version: int = -1,
    ) -> None:
        self._topic, self._partition = offset_range.topic, offset_range.partition
        self._offset, self._time = offset, time_ms
        self._key, self._value = key, value
        self._headers = headers
        self.version = version

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return 1, and ms since the epoch."""
        return 1, self._time

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Return the headers of a record or dead letter: events need none."""
        return self._headers


class _Thread:
    """A marker that is finalized when its thread ends."""


class _OpenPartitions(threading.local):
    """The partitions that a thread keeps open between reads, the latest last, and the brokers, by the client's
    settings.
    """

    def __init__(self) -> None:
        self.brokers: dict[PulsarConfig, PulsarBrokers] = {}
        self.partitions: dict[tuple[PulsarConfig, str, int], PulsarPartition] = {}
        self._thread = _Thread()
        weakref.finalize(self._thread, _close_all, self.brokers, os.getpid()).atexit = False

    def open_at(self, config: PulsarConfig, offset_range: OffsetRange) -> PulsarPartition:
        """Return the partition, opened at the range's start."""
        name = config, offset_range.topic, offset_range.partition
        partition = self.partitions.get(name)
        if partition is None or partition.position != offset_range.start:
            self.close_partition(name)
            brokers = self.brokers.get(config)
            if brokers is None:
                brokers = self.brokers[config] = PulsarBrokers(config)
            partition = PulsarPartition(
                brokers, offset_range.topic, offset_range.partition, offset_range.start, TIMEOUT_S
            )
        self.partitions.pop(name, None)
        self.partitions[name] = partition
        return partition

    def close_partition(self, name: tuple[PulsarConfig, str, int]) -> None:
        if (partition := self.partitions.pop(name, None)) is not None:
            partition.close()

    def trim(self) -> None:
        """Close the oldest partitions beyond what a process may keep."""
        sizes = [partition.size for partition in self.partitions.values()]
        while len(sizes) > _MAX_PARTITIONS or sum(sizes) > _MAX_BUFFERED_BYTES:
            self.close_partition(next(iter(self.partitions)))
            del sizes[0]


def _close_all(brokers: dict[PulsarConfig, PulsarBrokers], process: int) -> None:
    """Close the connections of a thread that ended, in its own `process`. In one that was forked its other threads are
    gone as well; to close a loop there would take the sockets from the parent's epoll, and its reader would wait for
    ever.
    """
    if os.getpid() != process:
        return
    for each in brokers.values():
        each.close()
    brokers.clear()


_open_partitions = _OpenPartitions()
_clients: dict[PulsarConfig, pulsar.Client] = {}


def read(
    config: PulsarConfig,
    ranges: Sequence[OffsetRange],
    data_loss: str,
    note_lost: Callable[[OffsetRange, int], None],
    note_failed: Callable[[OffsetRange, HelenusError], None],
    make: Callable[[OffsetRange, PulsarEntry], list[PulsarMessage]] | None = None,
) -> Generator[list[PulsarMessage], None, None]:
    """Read as `choice.read`, one range after the other; as `choice.read_data` with `records`, and as
    `choice.read_signals` with `texts`.

    The number of lost events is not known: `note_lost` is called with one, where a topic ends before a range does.
    """
    patience = _READ_TIMEOUT_S
    for offset_range in ranges:
        if offset_range.start >= offset_range.end:
            continue
        name = config, offset_range.topic, offset_range.partition
        try:
            if not (
                yield from _read(_open_partitions.open_at(config, offset_range), offset_range, patience, make or events)
            ):
                _open_partitions.close_partition(name)
                if data_loss == "continue":
                    note_lost(offset_range, 1)
                else:
                    problem = "the topic no longer has events that were not read"
                    note_failed(offset_range, HelenusError(Kind.OFFSETS_LOST, problem, str(offset_range)))
        except HelenusError as error:
            _open_partitions.close_partition(name)
            note_failed(offset_range, error if error.where else error.with_location(str(offset_range)))
            if error.kind is Kind.BROKER_UNREACHABLE:
                patience = _LATER_READ_TIMEOUT_S  # not the full time again for every partition of a broker that hangs
    _open_partitions.trim()


def _read(
    partition: PulsarPartition,
    offset_range: OffsetRange,
    patience: float,
    make: Callable[[OffsetRange, PulsarEntry], list[PulsarMessage]],
) -> Generator[list[PulsarMessage], None, bool]:
    """Read to the range's end; returns False if the topic's comes first."""
    chunk: list[PulsarMessage] = []
    size = 0
    last: PulsarEntry | None = None
    for entry in partition.entries(offset_range.end, patience):
        # The range may start and end in an entry, or between two.
        start, end = max(0, partition.position - entry.first), min(entry.count, offset_range.end - entry.first)
        if end > 0:
            messages = make(offset_range, entry)
            chunk += messages[start:end] if start or end < entry.count else messages
            size += entry.content_size
        if end < entry.count:
            partition.push_back(entry)
        else:
            last = entry
        partition.position = entry.first + end if end > 0 else offset_range.end
        if len(chunk) >= _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
    if last is not None:
        partition.acknowledge(last)
    return partition.position >= offset_range.end


def events(offset_range: OffsetRange, entry: PulsarEntry) -> list[PulsarMessage]:
    """Return the messages of an events topic."""
    time_ms = entry.metadata.publish_time
    return [
        PulsarMessage(offset_range, offset, time_ms, _key(single.partition_key), unsorted_value(value))
        for offset, (single, value) in enumerate(entry.parse_messages(), entry.first)
    ]


def records(offset_range: OffsetRange, entry: PulsarEntry) -> list[PulsarMessage]:
    """Return the messages of a data topic: no bytes are null, and properties are headers."""
    schema_version = entry.metadata.schema_version
    version = int.from_bytes(schema_version, "big") if len(schema_version) == _VERSION_BYTES else -1
    time_ms = entry.metadata.publish_time
    messages = []
    for offset, (single, value) in enumerate(entry.parse_messages(), entry.first):
        headers = [(_text(prop.key), _raw(prop.value)) for prop in single.properties]
        messages.append(
            PulsarMessage(offset_range, offset, time_ms, _key(single.partition_key), value or None, headers, version)
        )
    return messages


def texts(offset_range: OffsetRange, entry: PulsarEntry) -> list[PulsarMessage]:
    """Return messages whose keys are text."""
    time_ms = entry.metadata.publish_time
    return [
        PulsarMessage(offset_range, offset, time_ms, _raw(single.partition_key) or None, value or None)
        for offset, (single, value) in enumerate(entry.parse_messages(), entry.first)
    ]


def _key(text: str | bytes) -> bytes | None:
    try:
        return _bytes_of(text) if text else None
    except ValueError:  # a text: not from an agent, or JSON
        return _raw(text)


def _raw(text: str | bytes) -> bytes:
    """Return the bytes of a text of protobuf's, which returns the bytes themselves where they are no UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def _text(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def converted(offset_range: OffsetRange, message: Any, headers: Sequence[tuple[str, bytes]] = ()) -> PulsarMessage:
    """Return a message of pulsar-client's as ours."""
    time_ms = message.publish_timestamp()
    key = _key(message.partition_key())
    return PulsarMessage(offset_range, offset_of(message), time_ms, key, unsorted_value(message.data()), headers)


@contextlib.contextmanager
def opened(config: PulsarConfig, topic: str, partition: int, offset: int) -> Iterator[pulsar.Reader]:
    """Open a reader for a moment. Raises HelenusError if that fails."""
    reader = _reader(config, topic, partition, offset)
    try:
        yield reader
    except pulsar.PulsarException as error:
        raise _error(error, f"topic {topic}, partition {partition}") from None
    finally:
        _close(reader)


def _reader(config: PulsarConfig, topic: str, partition: int, offset: int) -> pulsar.Reader:
    where = f"topic {topic}, partition {partition}"
    ledger, entry, index = parts(offset)
    # One that is alone in its entry has the index -1: a reader that begins at 0 takes the last such for one before it.
    start = pulsar.MessageId(partition, ledger, entry, index or -1) if offset else pulsar.MessageId.earliest
    try:
        topic_name = config.name(topic)
        # One without partitions is its own only one.
        is_unpartitioned = partition == 0 and _client(config).get_topic_partitions(topic_name) == [topic_name]
        name = topic_name if is_unpartitioned else f"{topic_name}-partition-{partition}"
        return _client(config).create_reader(name, start, start_message_id_inclusive=True)
    except pulsar.PulsarException as error:
        raise _error(error, where) from None


def _client(config: PulsarConfig) -> pulsar.Client:
    """Return this process's client."""
    client = _clients.get(config)
    if client is None:
        client = pulsar.Client(
            config.service_url,
            authentication=pulsar.AuthenticationToken(config.token) if config.token else None,
            operation_timeout_seconds=int(TIMEOUT_S),
            # By default it trusts certifi's authorities, which include no company's own.
            tls_trust_certs_file_path=config.access.bundle if config.service_url.startswith("pulsar+ssl:") else None,
            tls_validate_hostname=config.check_hostname,
            # Errors are logged where they matter; the client would log an unavailable broker for ever.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )
        client = _clients.setdefault(config, client)  # another thread may have made one
    return client


def _close(reader: Any) -> None:
    with contextlib.suppress(pulsar.PulsarException):  # a broker that hangs does not answer this either
        reader.close()


def _error(error: Exception, where: str) -> HelenusError:
    """Return pulsar-client's errors as ours."""
    refused = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.TopicNotFound, pulsar.InvalidTopicName)
    kind = Kind.BROKER_REFUSED if isinstance(error, refused) else Kind.BROKER_UNREACHABLE
    return pulsar_error(kind, f"Pulsar: {error or type(error).__name__}", where)
