"""The agent with a real Cassandra and a real Kafka: killed, cut off, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import golden
from cassandra.cluster import Cluster
from cassandra.policies import ConstantReconnectionPolicy
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from patience import PATIENCE_S, eventually

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event import wire

pytestmark = [
    pytest.mark.integration,
    # The driver's event loop and the consumer are ended by their own threads, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MAIN = "from helenus_agent.cli import main; main()"


class Live:
    """The servers, and their agents."""

    def __init__(self, stack: Any, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.status = stack.status()
        reconnect = ConstantReconnectionPolicy(0.5, None)
        self.cluster = Cluster(self.status.contact_points, port=self.status.cql_port, reconnection_policy=reconnect)
        self.session = self.cluster.connect()
        self.raw = Path(self.status.nodes[0].cdc_raw)
        self.agents: list[subprocess.Popen[bytes]] = []
        self.out = directory / "agent.out"
        self.log = "kafka"
        self.read: dict[str, tuple[dict[int, int], list[tuple[bytes, bytes]]]] = {}
        self.broker = {"kafka.bootstrap.servers": self.status.bootstrap_servers}

    def start(self, failpoint: str = "", **more: str) -> subprocess.Popen[bytes]:
        keys = {
            "cassandra.contact.points": self.status.contact_points[0],
            "cassandra.port": str(self.status.cql_port),
            "cassandra.config": self.status.nodes[0].cassandra_yaml,
            **self.broker,
            "state.dir": str(self.directory / "state"),
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        path = self.directory / "agent.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        with open(self.out, "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", MAIN, str(path)],
                stderr=out,
                env={**os.environ, "HELENUS_FAILPOINT": failpoint},
            )
        self.agents.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes], seconds: float = 30) -> int:
        process.send_signal(signal.SIGTERM)
        return process.wait(seconds)

    def events(self, topic: str) -> list[tuple[bytes, bytes]]:
        """All there is in a topic, as key and value: what came since the last call is read, and added to the rest."""
        positions, records = self.read.setdefault(topic, ({}, []))
        consumer = Consumer(
            {
                "bootstrap.servers": self.status.bootstrap_servers,
                "group.id": "test",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
            }
        )
        try:
            topics = consumer.list_topics(timeout=10).topics
            if topic not in topics:
                return []
            unread_partitions = len(topics[topic].partitions)
            consumer.assign(
                [TopicPartition(topic, n, positions.get(n, OFFSET_BEGINNING)) for n in topics[topic].partitions]
            )
            deadline = time.monotonic() + 30
            while unread_partitions and time.monotonic() < deadline:
                for message in consumer.consume(1000, 1.0):
                    if error := message.error():
                        assert error.code() != KafkaError._AUTO_OFFSET_RESET, error
                        unread_partitions -= 1
                    else:
                        positions[message.partition()] = message.offset() + 1
                        records.append((message.key(), message.value()))
            return list(records)
        finally:
            consumer.close()

    def wait(self, condition: Callable[[], bool]) -> None:
        eventually(condition, self.out.read_text)

    def arrive(self, table: str, count: int) -> None:
        """Wait for so many events of a table; only then are their keys worth a look."""
        self.wait(lambda: len(self.events(f"events-live.{table}")) >= count and len(self.keys(table)) >= count)

    def insert(self, table: str, first: int, last: int) -> None:
        query = self.session.prepare(f"INSERT INTO live.{table} (a, v) VALUES (?, ?)")
        futures = []
        for n in range(first, last):
            futures.append(self.session.execute_async(query, (n, "x" * 100)))
            if len(futures) == 500:
                for future in futures:
                    future.result()
                futures.clear()
        for future in futures:
            future.result()

    def table(self, name: str) -> None:
        self.session.execute(
            "CREATE KEYSPACE IF NOT EXISTS live WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        self.session.execute(f"CREATE TABLE IF NOT EXISTS live.{name} (a int PRIMARY KEY, v text) WITH cdc = true")

    def keys(self, table: str) -> Counter[int]:
        """How often each int key is in a table's topic."""
        codec = KeyCodec(next(t for t in read_tables(self.session, "live").values() if t.name == table))
        return Counter(
            int.from_bytes(codec.decode(key)[0] or b"", "big") for key, _ in self.events(f"events-live.{table}")
        )


@pytest.fixture(scope="module")
def servers(small_segments: Any) -> Any:
    return small_segments


@pytest.fixture
def live(servers: Any, tmp_path: Path) -> Iterator[Live]:
    live = Live(servers, tmp_path)
    yield live
    for process in live.agents:
        if process.poll() is None:
            process.kill()
            process.wait()
    live.cluster.shutdown()


def test_validate_asks_the_servers(live: Live) -> None:
    live.table("asked")
    live.stop(live.start())

    def validate(**more: str) -> tuple[int, str]:
        path = live.directory / "other.properties"
        changes = "".join(f"{key.replace('_', '.')}={value}\n" for key, value in more.items())
        path.write_text((live.directory / "agent.properties").read_text() + changes)
        command = [sys.executable, "-c", "import sys; " + MAIN, "validate", str(path), "--connect"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return process.returncode, process.stdout + process.stderr

    code, text = validate()
    assert (code, "the servers refuse nothing" in text) == (0, True), text
    code, text = validate(cassandra_local_dc="elsewhere")
    assert (code, "cassandra.local.dc=elsewhere: the node is of" in text) == (2, True), text


def test_every_statement(live: Live) -> None:
    agent = live.start()
    for statement in golden.SETUP:
        live.session.execute(statement, timeout=60)
    for statement, _ in golden.STATEMENTS:
        live.session.execute(statement, timeout=60)
    tables = {t.name: t for t in read_tables(live.session, "g").values() if t.cdc}
    wanted = Counter(
        (e.table, e.scope, golden.expected_key(tables[e.table], e.key))
        for _, expected in golden.STATEMENTS
        for e in expected
    )

    def arrived() -> Counter[tuple[str, str, bytes]]:
        return Counter(
            (name, wire.decode(value).scope.name, key)
            for name in tables
            for key, value in live.events(f"events-g.{name}")
        )

    live.wait(lambda: arrived() >= wanted)
    assert arrived() == wanted
    assert live.stop(agent) == 0


# test_operations.py kills it while it saves, and integration/test_failures.py with a connector behind it.
@pytest.mark.parametrize(
    "point",
    [
        "agent.after-flush",
        *(pytest.param(f"agent.after-{step}", marks=pytest.mark.long) for step in ("append", "save")),
    ],
)
def test_killed_anywhere(live: Live, point: str) -> None:
    """Killed while it works, time and again: every key arrives, and segments that are fully processed are deleted."""
    table = "killed_" + point.removeprefix("agent.after-")
    live.table(table)
    total = 0
    for visit in (1, 2, 5):
        agent = live.start(failpoint=f"{point}:{visit}")
        while agent.poll() is None:
            live.insert(table, total, total + 200)
            total += 200
            time.sleep(0.1)  # it is the agent that is to be busy when it starts, not the node
        assert agent.returncode == -signal.SIGKILL
    live.insert(table, total, total + 3000)
    total += 3000
    agent = live.start()
    live.arrive(table, total)
    assert sorted(live.keys(table)) == list(range(total))
    live.wait(lambda: len(list(live.raw.glob("*.log"))) <= 3)
    assert live.stop(agent) == 0


@pytest.mark.long  # ../sinks/test_kafka.py pauses it, ../integration/test_failures.py stops it
def test_broker_away(live: Live) -> None:
    live.table("away")
    agent = live.start()
    live.insert("away", 0, 1000)
    live.wait(lambda: len(live.keys("away")) == 1000)
    live.stack.kill(live.log)
    live.insert("away", 1000, 20_000)
    time.sleep(5)
    assert agent.poll() is None
    cpu = _cpu(agent.pid)
    time.sleep(3)
    assert _cpu(agent.pid) - cpu < 1.0  # it waits, it does not spin
    live.stack.start(live.log)
    live.arrive("away", 20_000)
    assert sorted(live.keys("away")) == list(range(20_000))
    assert _megabytes(agent.pid) < 300
    assert live.stop(agent) == 0


@pytest.mark.long  # test_agent.py and integration/test_bad_input.py have both halves
def test_stopped_while_the_broker_is_away(live: Live) -> None:
    live.table("stopped")
    agent = live.start()
    live.insert("stopped", 0, 100)
    live.wait(lambda: len(live.keys("stopped")) == 100)
    live.stack.kill(live.log)
    live.insert("stopped", 100, 200)
    time.sleep(2)
    assert live.stop(agent) == 0
    assert live.start().wait(PATIENCE_S) == 1, "it ends by itself"
    assert "broker-unreachable" in live.out.read_text()
    live.stack.start(live.log)
    agent = live.start()
    live.arrive("stopped", 200)
    assert live.stop(agent) == 0


@pytest.mark.long  # integration/test_failures.py::test_cassandra_killed has an agent that goes on
def test_cassandra_restarts(live: Live) -> None:
    live.table("restarted")
    agent = live.start()
    live.insert("restarted", 0, 1000)
    live.arrive("restarted", 1000)
    live.stack.kill("cassandra1")
    live.stack.start("cassandra1")
    live.wait(lambda: _answers(live))
    live.table("born_later")
    live.insert("restarted", 1000, 2000)
    live.insert("born_later", 0, 100)
    live.arrive("restarted", 2000)
    live.arrive("born_later", 100)
    assert agent.poll() is None
    assert live.stop(agent) == 0


@pytest.mark.long  # a start of Cassandra more
def test_drained_while_the_node_is_dead(live: Live) -> None:
    """By what the agent had saved; the log has mutations of many tables, changes of the schema and a TRUNCATE too.
    No agent saw that a table got a column.
    """
    live.table("drained")
    live.session.execute("CREATE TABLE live.second (a int PRIMARY KEY, v text)")
    agent = live.start()
    live.insert("drained", 0, 100)
    live.arrive("drained", 100)
    assert live.stop(agent) == 0
    live.insert("drained", 100, 3000)
    live.insert("second", 0, 100)
    live.session.execute("CREATE TABLE live.unknown (a int PRIMARY KEY, v text)")
    live.session.execute("TRUNCATE live.second")
    both = [f"INSERT INTO live.{table} (a, v) VALUES (3000, 'x')" for table in ("second", "drained")]
    live.session.execute(f"BEGIN BATCH {'; '.join(both)} APPLY BATCH")
    live.session.execute("ALTER TABLE live.drained ADD w map<text, int>", timeout=60)
    live.session.execute("INSERT INTO live.drained (a, v, w) VALUES (3001, 'x', {'k': 1})")
    live.insert("drained", 3002, 4000)
    live.stack.kill("cassandra1")
    with open(live.out, "ab") as out:
        properties = str(live.directory / "agent.properties")
        command = [sys.executable, "-c", MAIN, "drain", "--offline", properties]
        assert subprocess.run(command, stderr=out, timeout=120).returncode == 0, live.out.read_text()
    live.stack.start("cassandra1")
    live.wait(lambda: _answers(live))
    sent = live.keys("drained")
    assert set(range(4000)) == set(sent)
    assert not list((live.directory / "state" / "quarantine").glob("*"))
    agent = live.start()
    live.insert("drained", 4000, 4100)
    live.arrive("drained", 4100)
    assert live.stop(agent) == 0


def _answers(live: Live) -> bool:
    try:
        live.session.execute("SELECT key FROM system.local")
    except Exception:
        return False
    return True


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024
