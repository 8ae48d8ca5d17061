"""Reading topics on Pulsar: events for the tasks.

An offset is a message's id as one number, which orders as ids do: its ledger, the entry in it, and its index in the
entry, 32 bits for each of the last two. A range has the ids from its start up to, not including, its end; numbers
between may hold no message, so the difference of two is no count.
"""

from __future__ import annotations

import contextlib
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pulsar

from helenus_connector.log.events import Range
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.datastax import unsorted_value
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import pulsar_error

TIMEOUT_S = 10.0
"""For an answer of the broker."""
_CHUNK = 5_000
_CHUNK_BYTES = 8 << 20
_READ_TIMEOUT_S = 60.0
_IMPATIENT_S = 2.0
_KEPT = 64  # readers, each with up to a thousand messages
SLICE_MS = 500


class Message:
    """The `events.Message` of Pulsar. `version` is that of its topic's schema, where it is of a data topic."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_time", "_topic", "_value", "version")

    def __init__(
        self,
        place: Range,
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


def offset(ledger: int, entry: int, index: int) -> int:
    """The number of an id; a message that is alone in its entry has the index 0 or -1."""
    return (ledger << 64) | (entry << 32) | max(index, 0)


def parts(number: int) -> tuple[int, int, int]:
    """Ledger, entry and index of an offset."""
    return number >> 64, number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF


def offset_of(message: Any) -> int:
    """The offset of a message of pulsar-client's."""
    message_id = message.message_id()
    return offset(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


class _Reading:
    """A reader of one partition, and the offset that it gives next."""

    def __init__(self, config: PulsarConfig, topic: str, partition: int, at: int) -> None:
        self.reader = _reader(config, topic, partition, at)
        self.at = at


_readings: dict[tuple[str, str, int], _Reading] = {}
_clients: dict[PulsarConfig, pulsar.Client] = {}


def read(
    config: PulsarConfig,
    places: Sequence[Range],
    data_loss: str,
    lost: Callable[[Range, int], None],
    failed: Callable[[Range, HelenusError], None],
    make: Callable[[Range, Any], Message] | None = None,
) -> Generator[list[Message], None, None]:
    """As `choice.read`, one range after the other; as `choice.read_data` with `record`, and as `choice.read_signals`
    with `text`. The process keeps its latest readers between calls.

    The number of lost events is not known: `lost` is given one, where a topic ends before a range does.
    """
    patience = _READ_TIMEOUT_S
    for place in places:
        if place.start >= place.end:
            continue
        name = (config.service_url, config.name(place.topic), place.partition)
        try:
            reading = _readings.get(name)
            if reading is None or reading.at != place.start:
                _forget(name)
                reading = _Reading(config, place.topic, place.partition, place.start)
            _readings.pop(name, None)
            _readings[name] = reading  # the latest is the last
            if not (yield from _read(reading, place, patience, make or converted)):
                if data_loss == "continue":
                    lost(place, 1)
                else:
                    what = "the topic no longer has events that were not read"
                    failed(place, HelenusError(Kind.OFFSETS_LOST, what, str(place)))
        except HelenusError as error:
            failed(place, error)
        except pulsar.PulsarException as error:
            _forget(name)
            failed(place, _error(error, str(place)))
            patience = _IMPATIENT_S  # not the full time again for every partition of a broker that hangs
    while len(_readings) > _KEPT:
        _forget(next(iter(_readings)))


def _read(
    reading: _Reading, place: Range, patience: float, make: Callable[[Range, Any], Message]
) -> Generator[list[Message], None, bool]:
    """Reads to the range's end; False if the topic's comes first."""
    chunk: list[Message] = []
    size = 0
    whole = True
    deadline = time.monotonic() + patience
    while reading.at < place.end:
        if not reading.reader.has_message_available():
            whole, reading.at = False, -1
            break
        try:
            message = reading.reader.read_next(SLICE_MS)
        except pulsar.Timeout:
            if time.monotonic() > deadline:
                raise
            continue
        at, deadline = offset_of(message), time.monotonic() + patience
        if at < place.start:  # it is in the entry that the range starts in
            continue
        if at >= place.end:  # which lies between two messages; this one is for a new reader
            reading.at = -1
            break
        reading.at = at + 1
        chunk.append(make(place, message))
        size += len(chunk[-1].key() or b"") + len(chunk[-1].value() or b"")
        if len(chunk) == _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
    return whole


def record(place: Range, message: Any) -> Message:
    """A message of a data topic: no bytes are null, and properties are headers."""
    headers = [(name, text.encode()) for name, text in message.properties().items()]
    version = message._message.int_schema_version()
    time_ms = message.publish_timestamp()
    return Message(place, offset_of(message), time_ms, _key(message), message.data() or None, headers, version)


def text(place: Range, message: Any) -> Message:
    """A message whose key is text."""
    key = message.partition_key().encode() or None
    return Message(place, offset_of(message), message.publish_timestamp(), key, message.data() or None)


def _key(message: Any) -> bytes | None:
    text = message.partition_key()
    try:
        return b64decode(text, validate=True) if text else None
    except ValueError:  # a text: not from an agent, or JSON
        return str(text).encode()


def converted(place: Range, message: Any, headers: Sequence[tuple[str, bytes]] = ()) -> Message:
    """A message of pulsar-client's as ours."""
    time_ms = message.publish_timestamp()
    return Message(place, offset_of(message), time_ms, _key(message), unsorted_value(message.data()), headers)


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


def _forget(name: tuple[str, str, int]) -> None:
    reading = _readings.pop(name, None)
    if reading is not None:
        _close(reading.reader)


def _close(reader: Any) -> None:
    with contextlib.suppress(pulsar.PulsarException):  # a broker that hangs does not answer this either
        reader.close()


def _error(error: Exception, where: str) -> HelenusError:
    """pulsar-client's errors as ours."""
    refused = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.TopicNotFound, pulsar.InvalidTopicName)
    kind = Kind.BROKER_REFUSED if isinstance(error, refused) else Kind.BROKER_UNREACHABLE
    return pulsar_error(kind, f"Pulsar: {error or type(error).__name__}", where)
