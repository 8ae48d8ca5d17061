"""Entries that a broker pushes, against one that is made up: every form of them, and connections that break."""

from __future__ import annotations

import random
import struct
import subprocess
import threading
import zlib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from google_crc32c import value as crc32c
from patience import eventually
from sinks.test_pulsar_client import Broker, brokers  # noqa: F401

from helenus_connector.log import _pulsar_reader as pulsar_reader
from helenus_connector.log._pulsar_entries import PulsarBrokers, PulsarPartition
from helenus_connector.log._pulsar_offsets import NONE, offset, parts
from helenus_connector.log._pulsar_planner import PulsarPlanner
from helenus_connector.log._pulsar_reader import PulsarMessage, read, records, texts
from helenus_connector.log.events import OffsetRange
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar._entries import message as entry
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.wire import MAGIC, command, messages

TIME_MS = 1_700_000_000_000
LZ4, ZLIB, ZSTD, SNAPPY = 1, 2, 3, 4


def pushed(consumer: int, position: int, data: bytes) -> bytes:
    """A broker's frame with a message, or a batch of them."""
    ledger, number, _ = parts(position)
    frame = command("message", consumer_id=consumer, message_id={"ledgerId": ledger, "entryId": number})
    return struct.pack(">I", len(frame) - 4 + len(data)) + frame[4:] + data


def stored(payload: bytes, count: int | None, is_checked: bool = True, **more: Any) -> bytes:
    """What a broker has of a producer's batch; with no count of a single message."""
    batch = {} if count is None else {"num_messages_in_batch": count}
    fields = {"producer_name": "p", "sequence_id": 0, "publish_time": TIME_MS, **batch, **more}
    metadata = messages.MessageMetadata(**fields).SerializeToString()
    data: bytes = struct.pack(">I", len(metadata)) + metadata + payload
    return MAGIC + struct.pack(">I", crc32c(data)) + data if is_checked else data


def batch(first: int, count: int, **more: Any) -> bytes:
    """A batch of events, numbered on from the first."""
    return stored(
        b"".join(entry(b"k\xff%d" % n, b"%d" % n, (), False) for n in range(first, first + count)), count, **more
    )


class Topic:
    """A partition's entries by offset. It pushes whole entries, until what it was asked for is used up."""

    def __init__(self, broker: Broker) -> None:
        self.entries: dict[int, tuple[int, bytes]] = {}
        self.next: dict[int, int] = {}
        self.permits: dict[int, int] = {}
        self.starts: list[int] = []
        self.acknowledged: list[int] = []
        self.closed: list[int] = []
        self.breaks_after = -1
        self.is_cut_off = False
        self.broker = broker
        names = ("partitioned_metadata", "subscribe", "flow", "last_id", "ack", "close_consumer")
        broker.answers |= {name: getattr(self, name) for name in names}

    def add(self, ledger: int, number: int, data: bytes, count: int = 1) -> None:
        self.entries[offset(ledger, number, 0)] = count, data

    def partitioned_metadata(self, request: Any) -> list[bytes]:
        return [command("partitioned_metadata_response", request_id=request.request_id, partitions=4)]

    def subscribe(self, request: Any) -> list[bytes]:
        start = request.start_message_id
        start_offset = 0 if start.ledgerId == NONE else offset(start.ledgerId, start.entryId, 0)
        assert (request.topic, request.durable) == ("persistent://public/default/t-partition-1", False)
        assert request.consumer_id not in self.next, "a broker would take it for the consumer that it has"
        self.starts.append(start_offset)
        self.next[request.consumer_id], self.permits[request.consumer_id] = start_offset, 0
        return [command("success", request_id=request.request_id)]

    def flow(self, request: Any) -> list[bytes]:
        number = request.consumer_id
        self.permits[number] += request.messagePermits
        frames = []
        for position, (count, data) in sorted(self.entries.items()):
            if position >= self.next[number] and self.permits[number] > 0:
                if self.breaks_after == 0:
                    self.breaks_after = -1
                    return [*frames, command("close_consumer", consumer_id=number)]
                self.breaks_after -= 1
                frames.append(pushed(number, position, data))
                self.permits[number] -= count
                self.next[number] = position + 1
        return frames

    def last_id(self, request: Any) -> list[bytes]:
        last = {"ledgerId": NONE, "entryId": NONE}
        if self.entries:
            newest = max(self.entries)
            ledger, number, _ = parts(newest)
            last = {"ledgerId": ledger, "entryId": number, "batch_index": self.entries[newest][0] - 1}
        return [command("last_id_response", request_id=request.request_id, last_message_id=last)]

    def ack(self, request: Any) -> list[bytes]:
        (read,) = request.message_id
        self.acknowledged.append(offset(read.ledgerId, read.entryId, 0))
        if self.is_cut_off:
            for transport in self.broker.open:
                transport.abort()
        return []

    def close_consumer(self, request: Any) -> list[bytes]:
        self.closed.append(request.consumer_id)
        return []


@pytest.fixture
def topic(brokers: list[Broker], monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:  # noqa: F811
    open_partitions = pulsar_reader._OpenPartitions()
    monkeypatch.setattr(pulsar_reader, "_open_partitions", open_partitions)
    monkeypatch.setattr(pulsar_reader, "TIMEOUT_S", 2.0)
    yield Topic(brokers[0])
    for broker in open_partitions.brokers.values():
        broker.close()


@pytest.fixture
def config(topic: Topic) -> PulsarConfig:
    return PulsarConfig(topic.broker.url)


def got(config: PulsarConfig, start: int, end: int, make: Any = None) -> list[PulsarMessage]:
    messages_read, failures = attempt(config, start, end, make)
    assert not failures, failures
    return messages_read


def attempt(
    config: PulsarConfig, start: int, end: int, make: Any = None
) -> tuple[list[PulsarMessage], list[HelenusError]]:
    failures: list[HelenusError] = []
    places = [OffsetRange("t", 1, start, end)]
    chunks = read(config, places, "fail", lambda *_: None, lambda _, error: failures.append(error), make)
    return [message for chunk in chunks for message in chunk], failures


def numbers(messages_read: list[PulsarMessage]) -> list[int]:
    return [int(message.value() or b"") for message in messages_read]


def test_every_form_of_an_entry(topic: Topic, config: PulsarConfig) -> None:
    """Alone, in batches, compressed by each codec, without a checksum, a batch of one."""
    payload = b"".join(entry(b"k\xff%d" % n, b"%d" % n, (), False) for n in range(5, 8))
    key = {"partition_key": b64encode(b"k\xff0").decode(), "partition_key_b64_encoded": True}
    topic.add(7, 0, stored(b"0", None, **key))
    topic.add(7, 1, batch(1, 3), 3)
    topic.add(9, 0, batch(4, 1, is_checked=False))
    topic.add(9, 2, stored(zlib.compress(payload), 3, compression=ZLIB, uncompressed_size=len(payload)), 3)
    for number, codec in ((LZ4, "lz4_raw"), (ZSTD, "zstd"), (SNAPPY, "snappy")):
        payload = b"".join(entry(b"k\xff%d" % n, b"%d" % n, (), False) for n in range(5 + 3 * number, 8 + 3 * number))
        squeezed = pa.compress(payload, codec, asbytes=True)
        topic.add(9, 2 + number, stored(squeezed, 3, compression=number, uncompressed_size=len(payload)), 3)
    messages_read = got(config, 0, offset(9, 6, 2) + 1)
    assert numbers(messages_read) == [*range(11), *range(14, 20)]
    assert [m.key() for m in messages_read] == [b"k\xff%d" % n for n in numbers(messages_read)]
    ids = [(7, 0, 0), *((7, 1, i) for i in range(3)), (9, 0, 0), *((9, n, i) for n in (2, 3, 5, 6) for i in range(3))]
    assert [parts(m.offset()) for m in messages_read] == ids
    assert {m.timestamp() for m in messages_read} == {(1, TIME_MS)}
    assert {(m.topic(), m.partition()) for m in messages_read} == {("t", 1)}
    eventually(lambda: topic.acknowledged == [offset(9, 6, 0)], "nobody waits until the broker has it", 0.01)


def test_any_two_offsets_bound_a_range_of_one_that_reads_on(topic: Topic, config: PulsarConfig) -> None:
    """Each begins where the one before ended, or elsewhere."""
    offsets, total = [], 0
    for number, size in enumerate((3, 1, 2, 5, 1)):
        topic.add(7, 2 * number, batch(total, size), size)
        offsets += [offset(7, 2 * number, i) for i in range(size)]
        total += size
    bounds = sorted({0, *offsets, *(message_offset + 1 for message_offset in offsets)})
    for _ in range(30):
        low, high = sorted(random.sample(bounds, 2))
        for start, end in ((low, high), (high, offsets[-1] + 1)):
            inside = [n for n, message_offset in enumerate(offsets) if start <= message_offset < end]
            assert numbers(got(config, start, end)) == inside, (start, end)


def test_permits_are_requested_early_and_not_beyond_the_range(topic: Topic, config: PulsarConfig) -> None:
    for number in range(40):
        topic.add(7, number, batch(number * 400, 400), 400)
    end = offset(7, 19, 399) + 1
    assert numbers(got(config, 0, end)) == list(range(8_000))
    assert len(topic.starts) == 1
    permits = [request.messagePermits for request in topic.broker.requests("flow")]
    assert sum(permits) < 8_000 + 2_000, permits
    assert numbers(got(config, end, offset(7, 39, 399) + 1)) == list(range(8_000, 16_000))
    assert len(topic.starts) == 1, "it reads on"


def test_a_consumer_that_the_broker_closes_resumes_where_it_was(topic: Topic, config: PulsarConfig) -> None:
    """As when a topic moves to another broker."""
    for number in range(6):
        topic.add(7, number, batch(number * 300, 300), 300)
    topic.breaks_after = 2
    assert numbers(got(config, 0, offset(7, 5, 299) + 1)) == list(range(1_800))
    assert len(topic.starts) == 2


def test_connections_that_are_gone_when_it_reads_on(topic: Topic, config: PulsarConfig) -> None:
    topic.add(7, 0, batch(0, 3), 3)
    topic.is_cut_off = True
    end = offset(7, 0, 2) + 1
    assert numbers(got(config, 0, end)) == [0, 1, 2]
    eventually(lambda: topic.acknowledged, every=0.02)
    topic.is_cut_off = False
    topic.add(7, 1, batch(3, 2), 2)
    assert numbers(got(config, end, offset(7, 1, 1) + 1)) == [3, 4]
    assert topic.starts == [0, offset(7, 0, 0)]


def test_a_topic_that_ends_before_its_range(topic: Topic, config: PulsarConfig) -> None:
    topic.add(7, 0, batch(0, 3), 3)
    messages_read, failures = attempt(config, 0, offset(8, 0, 0))
    assert numbers(messages_read) == [0, 1, 2]
    assert [error.kind for error in failures] == [Kind.OFFSETS_LOST]
    topic.entries.clear()
    messages_read, failures = attempt(config, offset(7, 0, 0), offset(8, 0, 0))
    assert not messages_read
    assert [error.kind for error in failures] == [Kind.OFFSETS_LOST]


def test_nothing_comes_though_there_is_more(
    topic: Topic, config: PulsarConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_reader, "_READ_TIMEOUT_S", 0.2)
    topic.add(7, 0, batch(0, 3), 3)
    topic.broker.answers["flow"] = lambda _: []
    messages_read, failures = attempt(config, 0, offset(7, 0, 2) + 1)
    assert not messages_read
    assert [error.kind for error in failures] == [Kind.BROKER_UNREACHABLE]
    assert "no events come" in failures[0].what
    topic.broker.answers["flow"] = topic.flow
    assert numbers(got(config, 0, offset(7, 0, 2) + 1)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "kind", "message_text"),
    [
        (batch(3, 2)[:-1] + b"x", Kind.BROKER_UNREACHABLE, "checksum"),
        (batch(3, 2, encryption_algo="AES"), Kind.BROKER_REFUSED, "7:1 cannot be read: it is encrypted"),
        (stored(b"x", None, num_chunks_from_msg=2), Kind.BROKER_REFUSED, "7:1 cannot be read: it is a chunk"),
        (batch(3, 2, compression=9), Kind.BROKER_REFUSED, "7:1 cannot be read: it is compressed by the codec 9"),
        (batch(3, 2, compression=LZ4, uncompressed_size=1 << 31), Kind.BROKER_REFUSED, "7:1 cannot be read: it says"),
        (stored(b"\0\0", 2), Kind.BROKER_REFUSED, "7:1 cannot be read"),
    ],
)
def test_an_entry_that_cannot_be_read_fails_its_range(
    topic: Topic, config: PulsarConfig, data: bytes, kind: Kind, message_text: str
) -> None:
    """None of it, and nothing after it, is passed over."""
    topic.add(7, 0, batch(0, 3), 3)
    topic.add(7, 1, data, 2)
    topic.add(7, 2, batch(5, 1))
    _, failures = attempt(config, 0, offset(7, 2, 0) + 1)
    assert [error.kind for error in failures] == [kind]
    assert message_text in str(failures[0])
    assert "t, partition 1" in str(failures[0])
    topic.add(7, 1, batch(3, 2), 2)
    assert numbers(got(config, 0, offset(7, 2, 0) + 1)) == list(range(6))


def test_records_and_texts(topic: Topic, config: PulsarConfig) -> None:
    first_record = entry(b"\x02", b"v", [("a", b"1"), ("b", "ä".encode())], False)
    topic.add(7, 0, stored(first_record + entry(b"\x04", None, (), False), 2, schema_version=(3).to_bytes(8, "big")), 2)
    topic.add(7, 1, stored(b"", None, null_value=True, null_partition_key=True))
    messages_read: Any = got(config, 0, offset(7, 1, 0) + 1, records)
    assert [(m.key(), m.value(), m.version) for m in messages_read] == [
        (b"\x02", b"v", 3),
        (b"\x04", None, 3),
        (None, None, -1),
    ]
    assert list(messages_read[0].headers()) == [("a", b"1"), ("b", "ä".encode())]
    topic.add(7, 2, stored(b"{}", None, partition_key="abcd"))
    (text_message,) = got(config, offset(7, 2, 0), offset(7, 2, 0) + 1, texts)
    assert (text_message.key(), text_message.value()) == (b"abcd", b"{}")


def test_partitions_with_too_many_buffered_bytes_are_closed(
    topic: Topic, config: PulsarConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        topic.add(7, number, batch(number * 3, 3), 3)
    assert numbers(got(config, 0, offset(7, 0, 0) + 1)) == [0]
    assert not topic.closed
    monkeypatch.setattr(pulsar_reader, "_MAX_BUFFERED_BYTES", 10)
    assert numbers(got(config, offset(7, 0, 1), offset(7, 0, 1) + 1)) == [1]
    assert numbers(got(config, offset(7, 0, 2), offset(7, 1, 2) + 1)) == [2, 3, 4, 5]
    assert len(topic.starts) == 2
    eventually(lambda: len(topic.closed) == 1, every=0.02)


def test_the_planner_counts_by_entry(topic: Topic, config: PulsarConfig) -> None:
    for number in range(150):
        topic.add(7, number, batch(number * 3, 3), 3)
    planner = PulsarPlanner(config)
    end = offset(7, 149, 2) + 1
    assert planner._run(planner._read_end("t", 1)) == end  # by a consumer beside the one that reads
    assert planner.advance(OffsetRange("t", 1, 0, end), 10) == offset(7, 3, 1)
    assert planner.advance(OffsetRange("t", 1, offset(7, 3, 1), end), 2) == offset(7, 3, 2) + 1
    assert planner.advance(OffsetRange("t", 1, offset(7, 3, 1), offset(7, 140, 1)), 10_000) == offset(7, 140, 1)
    assert planner.advance(OffsetRange("t", 1, 0, end), 10_000) == end
    planner.close()


def test_a_thread_that_ends_lets_go_of_its_brokers(topic: Topic, config: PulsarConfig) -> None:
    topic.add(7, 0, batch(0, 3), 3)
    loops = []

    def read_and_end() -> None:
        assert len(got(config, 0, offset(7, 0, 2) + 1)) == 3
        loops.extend(broker.loop for broker in pulsar_reader._open_partitions.brokers.values())

    thread = threading.Thread(target=read_and_end)
    thread.start()
    thread.join()
    assert [loop.is_closed() for loop in loops] == [True]


def test_a_topic_that_is_gone(topic: Topic, config: PulsarConfig) -> None:
    topic.broker.answers["partitioned_metadata"] = lambda request: [
        command("partitioned_metadata_response", request_id=request.request_id, error=11, message="no")
    ]
    brokers_of = PulsarBrokers(config)
    partition = PulsarPartition(brokers_of, "t", 1, 0, 0.5)
    with pytest.raises(HelenusError, match="no such topic") as error:
        next(partition.entries(1, 0.5))
    assert error.value.kind is Kind.BROKER_REFUSED
    brokers_of.close()


def test_a_forked_process_closes_no_connection_of_its_parent(tmp_path: Path) -> None:
    """Such as that which becomes Spark's JVM: its parent's threads are gone there, and with them what they keep."""
    closed, opened, ended = tmp_path / "closed", threading.Event(), threading.Event()

    def keep_open() -> None:
        opened_brokers: Any = SimpleNamespace(close=closed.touch)
        pulsar_reader._open_partitions.brokers[PulsarConfig("pulsar://h:1")] = opened_brokers
        opened.set()
        ended.wait()

    thread = threading.Thread(target=keep_open, daemon=True)
    thread.start()
    opened.wait()
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
    assert not closed.exists()
    ended.set()
    thread.join()
    eventually(closed.exists, "it is closed with its thread", every=0.05)
