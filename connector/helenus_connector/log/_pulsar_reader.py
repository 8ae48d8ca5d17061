"""Reading topics on Pulsar: events for the tasks."""

from __future__ import annotations

import contextlib
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
_IMPATIENT_S = 2.0
_KEPT = 64  # partitions
_KEPT_BYTES = 32 << 20  # of all of them, of what was pushed and is not read yet
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
        place: OffsetRange,
        at: int,
        time_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        version: int = -1,
    ) -> None:
        self._topic, self._partition = place.topic, place.partition
        self._offset, self._time = at, time_ms
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
        """1, and ms since the epoch."""
        return 1, self._time

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Those of records and dead letters: events need none."""
        return self._headers


class _Thread:
    """Goes when its thread ends."""


class _Kept(threading.local):
    """What a thread keeps between its readings: its latest partitions, the newest last, by the client's settings."""

    def __init__(self) -> None:
        self.brokers: dict[PulsarConfig, PulsarBrokers] = {}
        self.partitions: dict[tuple[PulsarConfig, str, int], PulsarPartition] = {}
        self._thread = _Thread()
        weakref.finalize(self._thread, _close_all, self.brokers).atexit = False

    def take(self, config: PulsarConfig, place: OffsetRange) -> PulsarPartition:
        """The partition, at the range's start."""
        name = config, place.topic, place.partition
        found = self.partitions.get(name)
        if found is None or found.at != place.start:
            self.forget(name)
            brokers = self.brokers.get(config)
            if brokers is None:
                brokers = self.brokers[config] = PulsarBrokers(config)
            found = PulsarPartition(brokers, place.topic, place.partition, place.start, TIMEOUT_S)
        self.partitions.pop(name, None)
        self.partitions[name] = found
        return found

    def forget(self, name: tuple[PulsarConfig, str, int]) -> None:
        if (found := self.partitions.pop(name, None)) is not None:
            found.close()

    def trim(self) -> None:
        """Keep no more than a process may."""
        sizes = [found.size for found in self.partitions.values()]
        while len(sizes) > _KEPT or sum(sizes) > _KEPT_BYTES:
            self.forget(next(iter(self.partitions)))
            del sizes[0]


def _close_all(brokers: dict[PulsarConfig, PulsarBrokers]) -> None:
    for each in brokers.values():
        each.close()
    brokers.clear()


_kept = _Kept()
_clients: dict[PulsarConfig, pulsar.Client] = {}


def read(
    config: PulsarConfig,
    places: Sequence[OffsetRange],
    data_loss: str,
    lost: Callable[[OffsetRange, int], None],
    failed: Callable[[OffsetRange, HelenusError], None],
    make: Callable[[OffsetRange, PulsarEntry], list[PulsarMessage]] | None = None,
) -> Generator[list[PulsarMessage], None, None]:
    """As `choice.read`, one range after the other; as `choice.read_data` with `records`, and as `choice.read_signals`
    with `texts`.

    The number of lost events is not known: `lost` is given one, where a topic ends before a range does.
    """
    patience = _READ_TIMEOUT_S
    for place in places:
        if place.start >= place.end:
            continue
        name = config, place.topic, place.partition
        try:
            if not (yield from _read(_kept.take(config, place), place, patience, make or events)):
                _kept.forget(name)
                if data_loss == "continue":
                    lost(place, 1)
                else:
                    what = "the topic no longer has events that were not read"
                    failed(place, HelenusError(Kind.OFFSETS_LOST, what, str(place)))
        except HelenusError as error:
            _kept.forget(name)
            failed(place, error if error.where else error.with_location(str(place)))
            if error.kind is Kind.BROKER_UNREACHABLE:
                patience = _IMPATIENT_S  # not the full time again for every partition of a broker that hangs
    _kept.trim()


def _read(
    reading: PulsarPartition,
    place: OffsetRange,
    patience: float,
    make: Callable[[OffsetRange, PulsarEntry], list[PulsarMessage]],
) -> Generator[list[PulsarMessage], None, bool]:
    """Reads to the range's end; False if the topic's comes first."""
    chunk: list[PulsarMessage] = []
    size = 0
    last: PulsarEntry | None = None
    for entry in reading.entries(place.end, patience):
        # The range may start and end in an entry, or between two.
        start, end = max(0, reading.at - entry.first), min(entry.count, place.end - entry.first)
        if end > 0:
            made = make(place, entry)
            chunk += made[start:end] if start or end < entry.count else made
            size += entry.content_size
        if end < entry.count:
            reading.back(entry)
        else:
            last = entry
        reading.at = entry.first + end if end > 0 else place.end
        if len(chunk) >= _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
    if last is not None:
        reading.done(last)
    return reading.at >= place.end


def events(place: OffsetRange, entry: PulsarEntry) -> list[PulsarMessage]:
    """The messages of an events topic."""
    time_ms = entry.metadata.publish_time
    return [
        PulsarMessage(place, at, time_ms, _key(single.partition_key), unsorted_value(value))
        for at, (single, value) in enumerate(entry.singles(), entry.first)
    ]


def records(place: OffsetRange, entry: PulsarEntry) -> list[PulsarMessage]:
    """The messages of a data topic: no bytes are null, and properties are headers."""
    named = entry.metadata.schema_version
    version = int.from_bytes(named, "big") if len(named) == _VERSION_BYTES else -1
    time_ms = entry.metadata.publish_time
    found = []
    for at, (single, value) in enumerate(entry.singles(), entry.first):
        headers = [(_text(one.key), _raw(one.value)) for one in single.properties]
        found.append(PulsarMessage(place, at, time_ms, _key(single.partition_key), value or None, headers, version))
    return found


def texts(place: OffsetRange, entry: PulsarEntry) -> list[PulsarMessage]:
    """Messages whose keys are text."""
    time_ms = entry.metadata.publish_time
    return [
        PulsarMessage(place, at, time_ms, _raw(single.partition_key) or None, value or None)
        for at, (single, value) in enumerate(entry.singles(), entry.first)
    ]


def _key(text: str | bytes) -> bytes | None:
    try:
        return _bytes_of(text) if text else None
    except ValueError:  # a text: not from an agent, or JSON
        return _raw(text)


def _raw(text: str | bytes) -> bytes:
    """The bytes of a text of protobuf's, which gives the bytes themselves where they are no UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def _text(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def converted(place: OffsetRange, message: Any, headers: Sequence[tuple[str, bytes]] = ()) -> PulsarMessage:
    """A message of pulsar-client's as ours."""
    time_ms = message.publish_timestamp()
    key = _key(message.partition_key())
    return PulsarMessage(place, offset_of(message), time_ms, key, unsorted_value(message.data()), headers)


@contextlib.contextmanager
def opened(config: PulsarConfig, topic: str, partition: int, at: int) -> Iterator[pulsar.Reader]:
    """A reader for a moment. Raises HelenusError if that fails."""
    reader = _reader(config, topic, partition, at)
    try:
        yield reader
    except pulsar.PulsarException as error:
        raise _error(error, f"topic {topic}, partition {partition}") from None
    finally:
        _close(reader)


def _reader(config: PulsarConfig, topic: str, partition: int, at: int) -> pulsar.Reader:
    where = f"topic {topic}, partition {partition}"
    ledger, entry, index = parts(at)
    # One that is alone in its entry has the index -1: a reader that begins at 0 takes the last such for one before it.
    start = pulsar.MessageId(partition, ledger, entry, index or -1) if at else pulsar.MessageId.earliest
    try:
        full = config.name(topic)
        # One without partitions is its own only one.
        whole = partition == 0 and _client(config).get_topic_partitions(full) == [full]
        name = full if whole else f"{full}-partition-{partition}"
        return _client(config).create_reader(name, start, start_message_id_inclusive=True)
    except pulsar.PulsarException as error:
        raise _error(error, where) from None


def _client(config: PulsarConfig) -> pulsar.Client:
    """This process's client."""
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
    """pulsar-client's errors as ours."""
    refused = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.TopicNotFound, pulsar.InvalidTopicName)
    kind = Kind.BROKER_REFUSED if isinstance(error, refused) else Kind.BROKER_UNREACHABLE
    return pulsar_error(kind, f"Pulsar: {error or type(error).__name__}", where)
