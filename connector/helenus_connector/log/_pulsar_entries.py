"""A partition on Pulsar, read by entry: an entry is a single message, or a batch of messages as its producer made it.

Brokers push entries through a connection of our own. pulsar-client gives messages one by one, which takes three times
the CPU: an event would cost more to read than Kafka's whole way takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
import uuid
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from google_crc32c import value as crc32c

from helenus_connector.log._pulsar_consumers import count, subscribe
from helenus_connector.log._pulsar_offsets import NONE, after, offset, parts
from helenus_schemas.codec import blocks
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.client import Client, end_loop
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.connection import Connection
from helenus_sinks.pulsar.errors import pulsar_error
from helenus_sinks.pulsar.wire import MAGIC, command, messages

_PERMITS = 1_000  # messages that a broker may push before it is asked for more; then it stops after a whole read
_RETRY_S = 0.2
_CUMULATIVE = 1
_CODECS = {1: blocks.lz4, 2: blocks.deflate, 3: blocks.zstd, 4: blocks.snappy}
_MAX_ENTRY_BYTES = 64 << 20  # of an entry once it is decompressed: twelve times what a broker takes of one by default
_MIN_MESSAGE_BYTES = 6  # of a message of a batch: the size of its metadata, and in that the size of its value
_ADVICE = (
    "find out who writes to this topic. To go on after the message, stop the connector, set the partition's offset to "
    "{} over REST, and resume it"
)
_SLICE_S = 0.5
_size = struct.Struct(">I").unpack_from
_single = messages.SingleMessageMetadata.FromString
T = TypeVar("T")


@dataclass(frozen=True)
class PulsarEntry:
    """`first` is the offset of the first of its `count` messages, `size` how many bytes the broker sent.

    `metadata` is Pulsar's MessageMetadata, `payload` as its producer compressed it, if it did. `fault`: why it cannot
    be read, empty if it can.
    """

    first: int
    count: int
    size: int
    metadata: Any
    payload: bytes
    fault: str = ""

    @staticmethod
    def from_message(message_id: Any, data: bytes) -> PulsarEntry:
        """Return the entry in what follows the command in a broker's frame. Raises ValueError if that does not fit its
        checksum: it may be sent again. Any other fault is its producer's, and stays.
        """
        start = 0
        if data.startswith(MAGIC):
            start = 6
            if len(data) < start or crc32c(data[start:]) != _size(data, 2)[0]:
                raise ValueError("a message does not fit its checksum")
        first = offset(message_id.ledgerId, message_id.entryId, 0)
        try:
            (size,) = _size(data, start)
            if size > len(data) - start - 4:
                raise ValueError(f"metadata of {size} bytes, where {len(data) - start - 4} are left")
            metadata = messages.MessageMetadata.FromString(data[start + 4 : start + 4 + size])
        except Exception as error:  # struct's, protobuf's
            return PulsarEntry(first, 1, len(data), messages.MessageMetadata(), b"", str(error))
        payload = data[start + 4 + size :]
        # Whatever else it says, an offset after it is after its messages.
        count = max(1, metadata.num_messages_in_batch)
        return PulsarEntry(first, count, len(data), metadata, payload, _find_fault(metadata, payload))

    @property
    def content_size(self) -> int:
        """Return how many bytes the entry has once it is decompressed."""
        return max(self.size, self.metadata.uncompressed_size if self.metadata.compression and not self.fault else 0)

    def parse_messages(self) -> list[tuple[Any, bytes]]:
        """Return each message's metadata, with key, properties and nulls, and its value.

        Raises HelenusError BROKER_REFUSED for one that cannot be read: agents write none.
        """
        try:
            return list(self._parse_messages())
        except Exception as error:  # of protobuf's, of each codec's
            ledger, entry, _ = parts(self.first)
            problem = f"Pulsar: the message {ledger}:{entry} cannot be read: {error}"
            advice = _ADVICE.format(offset(ledger, entry + 1, 0))
            raise HelenusError(Kind.BROKER_REFUSED, problem, "", advice) from None

    def _parse_messages(self) -> Iterator[tuple[Any, bytes]]:
        metadata = self.metadata
        if self.fault:
            raise ValueError(self.fault)
        payload = self.payload
        if metadata.compression:
            payload = bytes(_CODECS[metadata.compression](payload, metadata.uncompressed_size))
        if not metadata.HasField("num_messages_in_batch"):
            yield metadata, payload
            return
        index, end = 0, len(payload)
        for _ in range(self.count):
            start = index + 4
            index = start + _size(payload, index)[0]
            single = _single(payload[start:index])
            start, index = index, index + single.payload_size
            # A size may be negative, and the metadata's may have led beyond the end.
            if not start <= index <= end:
                raise ValueError(
                    f"a message of it has {single.payload_size} bytes, where {max(0, end - start)} are left"
                )
            yield single, payload[start:index]


def _find_fault(metadata: Any, payload: bytes) -> str:
    """Return why an entry cannot be read, judged by its metadata; empty if nothing is wrong so far. The sizes and
    counts in the metadata are compared with what came: memory may be taken for them.
    """
    size = len(payload)
    if metadata.encryption_algo:
        return "it is encrypted"
    if metadata.num_chunks_from_msg > 1:
        return "it is a chunk of a larger one"
    if metadata.compression:
        size = metadata.uncompressed_size
        if metadata.compression not in _CODECS:
            return f"it is compressed by the codec {metadata.compression}"
        if size > _MAX_ENTRY_BYTES:
            return f"it says that it has {size} bytes, where {_MAX_ENTRY_BYTES} are allowed"
    if (
        metadata.HasField("num_messages_in_batch")
        and not 0 < metadata.num_messages_in_batch <= size // _MIN_MESSAGE_BYTES
    ):
        return f"it says that it has {metadata.num_messages_in_batch} messages, in {size} bytes"
    return ""


class PulsarBrokers:
    """A client and its event loop, which runs only while somebody waits. For one thread."""

    def __init__(self, config: PulsarConfig) -> None:
        self.config = config
        self.client = Client(config.service_url, config.access)
        self.loop = asyncio.new_event_loop()
        self.entries_arrived = asyncio.Event()

    def run(self, request: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a request and return its result. Raises HelenusError BROKER_UNREACHABLE if it takes longer."""

        async def limited() -> T:
            for _ in range(3):  # notice connections that were closed while the loop did not run
                await asyncio.sleep(0)
            return await asyncio.wait_for(request, seconds)

        try:
            return self.loop.run_until_complete(limited())
        except asyncio.TimeoutError:
            problem = f"Pulsar does not answer within {seconds:.0f} s"
            raise pulsar_error(Kind.BROKER_UNREACHABLE, problem, self.config.service_url) from None

    def close(self) -> None:
        """Close the connections to the brokers; a second call does nothing."""
        if not self.loop.is_closed():
            self.client.close()
            end_loop(self.loop)


class PulsarPartition:
    """A partition, read from the offset `position` on. The reader moves `position` as it is done with entries.

    `timeout` is in s, for each answer of a broker.
    """

    def __init__(self, brokers: PulsarBrokers, topic: str, partition: int, position: int, timeout: float) -> None:
        self.position = position
        self._requested_end = position  # until there the broker is asked for more before what came is used up
        self._brokers = brokers
        self._topic = brokers.config.name(topic)
        self._partition = partition
        self._where = f"{brokers.config.service_url}, topic {topic}, partition {partition}"
        self._timeout = timeout
        self._entries: deque[PulsarEntry] = deque()
        self._connection: Connection | None = None
        self._number = 0
        self._permits = 0
        self._has_damaged_message = False

    @property
    def size(self) -> int:
        """Return how many bytes came and were not used yet."""
        return sum(entry.size for entry in self._entries)

    def entries(self, end: int, patience: float) -> Iterator[PulsarEntry]:
        """Yield the entries from `position` on, until it reaches `end`, or the topic's. Raises HelenusError, also if
        nothing comes for `patience` s, though there is more.
        """
        self._requested_end = end
        while self.position < end:
            deadline = time.monotonic() + patience
            while (entry := self._next_entry(min(_SLICE_S, patience))) is None:
                if self._read_end() <= self.position:
                    return
                if time.monotonic() > deadline:
                    problem = "no events come, though the topic has more"
                    raise pulsar_error(Kind.BROKER_UNREACHABLE, problem, self._where)
            yield entry

    def _next_entry(self, seconds: float) -> PulsarEntry | None:
        """Return the next entry with a message at or after `position`; None if none comes in time.
        Raises HelenusError.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self._connection is None:
                self._open()
            while self._entries:
                entry = self._entries.popleft()
                if entry.first + entry.count > self.position:
                    return entry
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return None
            self._brokers.run(self._wait(remaining_s), seconds + self._timeout)

    def push_back(self, entry: PulsarEntry) -> None:
        """Let `entries` yield an entry once more that was used in part."""
        self._entries.appendleft(entry)

    def _read_end(self) -> int:
        """Return the offset after the topic's last message, -1 if there is none. Raises HelenusError."""
        if self._connection is None:
            self._open()
        assert self._connection is not None
        request = self._connection.ask("last_id", consumer_id=self._number)
        return after(self._brokers.run(request, self._timeout).last_message_id)

    def acknowledge(self, last: PulsarEntry) -> None:
        """Acknowledge to the broker what was read, for those who look there. Nobody waits for that."""
        ledger, entry, _ = parts(last.first)
        if self._connection is not None:
            read = [{"ledgerId": ledger, "entryId": entry}]
            self._connection.write(command("ack", consumer_id=self._number, ack_type=_CUMULATIVE, message_id=read))

    def close(self) -> None:
        """Let the broker push no more. Nobody waits for its answer."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.consumers.pop(self._number, None):
            connection.write(command("close_consumer", consumer_id=self._number, request_id=0))
        self._entries.clear()

    def message(self, received: Any, data: bytes) -> None:
        """Take an entry that has come. Called from the loop."""
        try:
            entry = PulsarEntry.from_message(received.message_id, data)
        except ValueError:
            self._has_damaged_message = True
            self._brokers.entries_arrived.set()
            return
        self._entries.append(entry)
        self._permits -= min(entry.count, _PERMITS)  # which a broker may exceed by a part of an entry
        if entry.first + entry.count < self._requested_end:
            self._request_more()
        self._brokers.entries_arrived.set()

    def lost(self, reason: str) -> None:  # noqa: ARG002
        """Note that the consumer is lost: the next entries come from another one. Called from the loop."""
        self._connection = None
        self._brokers.entries_arrived.set()

    async def _wait(self, seconds: float) -> None:
        arrived = self._brokers.entries_arrived
        arrived.clear()
        self._request_more()
        if self._connection is not None and not self._entries:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(arrived.wait(), seconds)
        if self._has_damaged_message:
            self._has_damaged_message = False
            self.close()  # it comes again with the next consumer
            raise pulsar_error(Kind.BROKER_UNREACHABLE, "Pulsar: a message does not fit its checksum", self._where)

    def _request_more(self) -> None:
        """Ask for more where the broker has pushed as much as it may."""
        if self._permits <= 0 and self._connection is not None:
            more, self._permits = _PERMITS - self._permits, _PERMITS
            self._connection.write(command("flow", consumer_id=self._number, messagePermits=more))

    def _open(self) -> None:
        """Subscribe at `position`, repeatedly while a topic moves between brokers. Raises HelenusError."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._brokers.run(self._subscribe(), max(_RETRY_S, deadline - time.monotonic()))
                return
            except HelenusError as error:
                if error.kind is not Kind.BROKER_UNREACHABLE or time.monotonic() > deadline:
                    raise error.with_location(self._where) from None
            time.sleep(_RETRY_S)

    async def _subscribe(self) -> None:
        self._entries.clear()
        self._permits = 0
        client, where = self._brokers.client, self._brokers.config.service_url
        # One without partitions is its own only one.
        partitioned = await count(client, where, self._topic) or self._partition
        partition_name = f"{self._topic}-partition-{self._partition}" if partitioned else self._topic
        ledger, entry, index = parts(self.position) if self.position > 0 else (NONE, NONE, 0)
        # The broker begins with the entry, also where this is not its first message.
        start = {"ledgerId": ledger, "entryId": entry, "batch_index": index}
        name = f"helenus-read-{uuid.uuid4().hex[:12]}"
        subscription = await subscribe(client, partition_name, name, self, durable=False, start_message_id=start)
        self._connection, self._number = subscription
