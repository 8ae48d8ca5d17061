"""The Log on a real Kafka that hangs, dies and comes back: nothing lost, no CPU burnt, memory bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent.fakes import Raw, write_of
from agent.standalone import TABLE, number
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from patience import eventually

from helenus_connector.testing.log import MemoryRecord
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.log import TopicError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TESTS = Path(__file__).resolve().parents[1]
OUTAGE = 20  # s

LONGER_THAN_A_TEST_S = 3600
"""What waits so long is cut short, or the test's timeout ends it."""


@pytest.fixture(scope="module")
def servers(only_kafka: Any) -> Any:
    return only_kafka


@pytest.fixture
def address(servers: Any) -> str:
    return str(servers.status().bootstrap_servers)


def test_the_first_record_does_not_wait(address: str) -> None:
    log = KafkaLog({"bootstrap.servers": address})
    log.create("first", 1, {})
    log.start()
    log.start()
    log.append("first", 0, b"k", b"v")
    log.flush(10)
    log.close()


@pytest.mark.parametrize("prefix", ["events-", "data-"])
def test_topics_whose_names_differ_in_dots_alone(address: str, prefix: str) -> None:
    """As those of the tables shop.a_b and shop_a.b: the second is refused by itself, with what to do."""
    log = KafkaLog({"bootstrap.servers": address})
    log.create(f"{prefix}shop.a_b", 1, {})
    with pytest.raises(
        TopicError, match=r"collides .*shop\.a_b.*shop_a\.b.* table\.exclude\.list, .*data\.topic"
    ) as error:
        log.create(f"{prefix}shop_a.b", 1, {})
    assert (error.value.kind, error.value.topic) == (Kind.BROKER_REFUSED, f"{prefix}shop_a.b")
    log.create(f"{prefix}shop.c", 1, {})
    log.append(f"{prefix}shop.a_b", 0, b"k", b"v")
    log.append(f"{prefix}shop.c", 0, b"k", b"v")
    log.flush(10)
    log.close()


def test_a_topic_that_takes_less_than_others(address: str) -> None:
    """Once a flush has said so, a record that it does not take is refused by itself, and no other topic's is."""
    log = KafkaLog({"bootstrap.servers": address})
    log.create("limited", 1, {"max.message.bytes": "20000"})
    log.create("unlimited", 1, {})
    log.append("limited", 0, b"k", b"".join(os.urandom(1) for _ in range(30_000)))
    with pytest.raises(TopicError) as error:
        log.flush(10)
    assert (error.value.kind, error.value.topic) == (Kind.RECORD_TOO_LARGE, "limited")
    for _ in range(100):
        log.extend("limited", 0, [(b"k", os.urandom(1000))] * 10)
    with pytest.raises(TopicError, match="a record of 30001 bytes, where 19872 are allowed") as error:
        log.extend("limited", 0, [(b"k", bytes(30_000))])
    assert error.value.topic == "limited"
    log.append("unlimited", 0, b"k", os.urandom(500_000))
    log.flush(10)
    log.close()


@pytest.mark.parametrize("setting", ["buffer.memory=1", "message.max.bytes=1 MB"])
def test_a_setting_that_kafka_does_not_know(address: str, setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(HelenusError, match=name) as error:
        KafkaLog({"bootstrap.servers": address, name: value}).start()
    assert error.value.kind is Kind.CONFIG


def test_a_flush_that_hangs_can_be_hurried(servers: Any, address: str) -> None:
    """As a signal handler does, or another thread."""
    log = KafkaLog({"bootstrap.servers": address})
    log.create("hurried", 1, {})
    log.start()
    servers.pause("kafka")
    timer = threading.Timer(0.5, log.hurry, [0.5])
    try:
        log.append("hurried", 0, b"k", b"v")
        timer.start()
        with pytest.raises(HelenusError, match="did not acknowledge 1 records") as error:
            log.flush(LONGER_THAN_A_TEST_S)
        assert error.value.kind is Kind.APPEND_FAILED
    finally:
        timer.join()
        servers.resume("kafka")
        log.close()


def test_a_flush_goes_on_while_records_are_acknowledged(address: str) -> None:
    """`timeout` is the time without one: a slow broker does not get everything again."""

    class Slow:
        """A producer that acknowledges a record every 30 ms."""

        records_left = 20

        def flush(self, timeout: float) -> int:
            time.sleep(0.03)
            self.records_left -= 1
            return self.records_left

    log = KafkaLog({"bootstrap.servers": address})
    log._producer = Slow()
    log.flush(0.3)
    log._producer = None


class Agent:
    """The agent's command on a cdc_raw directory and this Kafka, with a made-up Cassandra."""

    def __init__(self, directory: Path, address: str) -> None:
        self.raw = Raw(directory / "cdc_raw")
        self.address = address
        self.topic = f"{directory.name}-ks.t"
        self.path = directory / "agent.properties"
        self.out = directory / "out"
        self.path.write_text(
            f"cdc.raw.dir={self.raw.path}\nstate.dir={directory}/state\nkafka.bootstrap.servers={address}\n"
            f"topic.prefix={directory.name}-\n"
        )
        with open(self.out, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agent.standalone", str(self.path)],
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
            )

    def write(self, segment: int, first: int, last: int) -> None:
        self.raw.segment(segment, 4_000_000)
        self.raw.write(segment, *(write_of(TABLE, key) for key in range(first, last)))
        self.raw.index(segment, complete=True)

    def wait(self, condition: Callable[[], bool]) -> None:
        def alive_and_so() -> bool:
            assert self.process.poll() is None, self.out.read_text()
            return condition()

        eventually(alive_and_so, self.out.read_text, every=0.2)

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def megabytes(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) >> 10

    def keys(self) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "t",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            unread_partitions = len(consumer.list_topics(timeout=10).topics[self.topic].partitions)
            consumer.assign([TopicPartition(self.topic, n, OFFSET_BEGINNING) for n in range(unread_partitions)])
            numbers = []
            deadline = time.monotonic() + 60
            while unread_partitions and time.monotonic() < deadline:
                for message in consumer.consume(10_000, 1.0):
                    if message.error():
                        unread_partitions -= 1
                    else:
                        numbers.append(number(MemoryRecord(self.topic, 0, message.key(), None)))
            return numbers
        finally:
            consumer.close()


@pytest.mark.long
@pytest.mark.parametrize("how", ["pause", "kill"])
def test_a_broker_that_is_away(servers: Any, address: str, tmp_path: Path, how: str) -> None:
    agent = Agent(tmp_path, address)
    try:
        agent.write(10, 0, 1000)
        agent.wait(lambda: agent.raw.names == [])
        getattr(servers, how)("kafka")
        for n in range(5):
            agent.write(11 + n, 1000 + n * 8000, 9000 + n * 8000)
        before = agent.cpu
        time.sleep(OUTAGE)
        assert agent.process.poll() is None
        # To meet the outage may cost a busy client ten seconds; after that, next to nothing.
        assert agent.cpu - before < 12
        quiet = agent.cpu
        time.sleep(5)
        assert agent.cpu - quiet < 0.5
        assert len(agent.raw.names) == 10
        servers.resume("kafka") if how == "pause" else servers.start("kafka")
        agent.wait(lambda: agent.raw.names == [])
        assert agent.megabytes < 130
        keys = agent.keys()
        assert set(keys) == set(range(41_000))
        assert len(keys) < 2 * 41_000  # what was acknowledged is not sent again
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0
    finally:
        servers.resume("kafka")
        agent.process.kill()
        agent.process.wait()


def test_stopped_while_the_broker_hangs(servers: Any, address: str, tmp_path: Path) -> None:
    """It ends by itself, not by the watchdog that ends what hangs."""
    agent = Agent(tmp_path, address)
    try:
        agent.write(10, 0, 10)
        agent.wait(lambda: agent.raw.names == [])
        servers.pause("kafka")
        agent.write(11, 10, 5000)
        time.sleep(3)
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0
        output = agent.out.read_text()
        assert "agent.unacknowledged" in output
        assert "waited_s" not in output
        assert len(agent.raw.names) == 2
    finally:
        servers.resume("kafka")
        agent.process.kill()
        agent.process.wait()
