"""The schema changes while the agent runs, or while it is down, on a real node; and the node's cdc_raw fills up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import SMALL_SEGMENTS
from cassandra.cluster import Cluster
from cassandra.policies import ConstantReconnectionPolicy
from confluent_kafka import Consumer, TopicPartition
from patience import eventually

from helenus_schemas.event.cells import Cells, decode_cells
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import decode

pytestmark = [
    pytest.mark.integration,
    # The driver's event loop and the consumer are ended by their own threads, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MAIN = "from helenus_agent.cli import main; main()"
PARTITIONS = 2
Record = tuple["bytes | None", Change]


class Node:
    """The servers, and an agent with one state through all tests, as on a node that lives long."""

    def __init__(self, stack: Any, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.status = stack.status()
        self.cluster = Cluster(
            self.status.contact_points,
            port=self.status.cql_port,
            reconnection_policy=ConstantReconnectionPolicy(0.5, None),
        )
        self.session = self.cluster.connect()
        self.session.default_timeout = 60
        self.raw = Path(self.status.nodes[0].cdc_raw)
        self.agent: subprocess.Popen[bytes] | None = None
        self.out = directory / "agent.out"
        self.port = 0
        self.read: dict[str, list[list[Record]]] = {}
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.status.bootstrap_servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
            }
        )
        self.cql(
            "CREATE KEYSPACE IF NOT EXISTS s WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )

    def cql(self, *statements: str) -> None:
        for statement in statements:
            self.session.execute(statement)

    def start(self) -> None:
        """Start the agent, and wait until it is ready."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        keys = {
            "cassandra.contact.points": self.status.contact_points[0],
            "cassandra.port": str(self.status.cql_port),
            "cassandra.config": self.status.nodes[0].cassandra_yaml,
            "kafka.bootstrap.servers": self.status.bootstrap_servers,
            "state.dir": str(self.directory / "state"),
            "topic.partitions": str(PARTITIONS),
            "cells.include.list": r"s\\.(altered|dropped_twice)",
            "http.port": str(self.port),
        }
        path = self.directory / "agent.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        with open(self.out, "ab") as out:
            self.agent = subprocess.Popen([sys.executable, "-c", MAIN, str(path)], stderr=out)
        self.wait(lambda: self._ready() is not None)

    def stop(self) -> None:
        assert self.agent is not None
        self.agent.send_signal(signal.SIGTERM)
        assert self.agent.wait(20) == 0, self.out.read_text()
        self.agent = None

    def _ready(self) -> bytes | None:
        assert self.agent is not None
        assert self.agent.poll() is None, self.out.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    def metric(self, name: str) -> float:
        """The value of a metric of the agent, 0 if it has none. `name` with its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"helenus_agent_{name} "):
                    return float(line.split()[-1])
        return 0.0

    def topic(self, table: str, keyspace: str = "s") -> list[list[Record]]:
        """Per partition of a table's topic what it holds, all of it."""
        topic = f"events-{keyspace}.{table}"
        records_by_partition = self.read.setdefault(topic, [[] for _ in range(PARTITIONS)])
        if topic not in self.consumer.list_topics(timeout=10).topics:
            return records_by_partition
        for n, part in enumerate(records_by_partition):
            partition = TopicPartition(topic, n, len(part))
            _, end = self.consumer.get_watermark_offsets(partition, timeout=10)
            if len(part) >= end:
                continue
            self.consumer.assign([partition])
            while len(part) < end:
                message = self.consumer.poll(10)
                assert message is not None
                assert not message.error()
                part.append((message.key(), decode(message.value())))
        return records_by_partition

    def rows(self, table: str, keyspace: str = "s") -> list[bytes]:
        """The keys of all rows in a table's topic."""
        return [key for part in self.topic(table, keyspace) for key, _ in part if key is not None]

    def cells(self, table: str) -> Iterator[tuple[bytes, Change, Cells]]:
        """The changes of rows in a table's topic, with their keys and what they say."""
        for part in self.topic(table):
            for key, change in part:
                if key is not None:
                    assert change.cells is not None
                    yield key, change, decode_cells(change.cells, change.scope)

    def notices(self, table: str) -> list[list[tuple[int, Change]]]:
        """Per partition of a table's topic what concerns the whole table, with its place."""
        return [[(offset, c) for offset, (key, c) in enumerate(part) if key is None] for part in self.topic(table)]

    def wait(self, condition: Callable[[], bool]) -> None:
        eventually(condition, lambda: self.out.read_text()[-5000:], every=0.3)

    def insert(self, table: str, first: int, last: int, text: str = "x") -> None:
        query = self.session.prepare(f"INSERT INTO s.{table} (a, v) VALUES (?, ?)")
        futures = [self.session.execute_async(query, (n, text)) for n in range(first, last)]
        for future in futures:
            future.result()

    def arrive(self, table: str, count: int, keyspace: str = "s") -> None:
        self.wait(lambda: len(self.rows(table, keyspace)) >= count)


@pytest.fixture(scope="module")
def node(small_segments: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(small_segments, tmp_path_factory.mktemp("schema"))
    yield node
    node.consumer.close()
    node.cluster.shutdown()


@pytest.fixture(autouse=True)
def _agent(node: Node) -> Iterator[None]:
    """The agent runs before each test, and ended well after it."""
    node.start()
    yield
    if node.agent is not None:
        node.stop()


def number(key: bytes) -> int:
    """An Avro int."""
    value = shift = 0
    for byte in key:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value >> 1 ^ -(value & 1)


def assert_between(node: Node, table: str, scope: Scope, which: int, before: range, after: range) -> Change:
    """In each partition the notice number `which` has just these rows before and after it. Returns it."""
    for part, notices in zip(node.topic(table), node.notices(table), strict=True):
        index, change = notices[which]
        assert change.scope is scope
        keys = [None if key is None else number(key) for key, _ in part]
        assert {k for k in keys[:index] if k in after} == set()
        assert {k for k in keys[index:] if k in before} == set()
        assert any(k in before for k in keys)
        assert any(k in after for k in keys)
    return change


def test_truncate(node: Node) -> None:
    node.cql("CREATE TABLE s.trunc (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("trunc", 0, 50)
    node.cql("TRUNCATE s.trunc")
    node.insert("trunc", 50, 100)
    node.arrive("trunc", 100)
    change = assert_between(node, "trunc", Scope.TABLE, 0, range(50), range(50, 100))
    assert change.node is not None
    assert abs((change.write_time or 0) / 1e6 - time.time()) < 120
    # While the agent is down, with changes before and after that it has not read.
    node.stop()
    node.insert("trunc", 100, 150)
    node.cql("TRUNCATE s.trunc")
    node.insert("trunc", 150, 200)
    node.start()
    node.arrive("trunc", 200)
    assert_between(node, "trunc", Scope.TABLE, 1, range(100, 150), range(150, 200))
    # Once, whatever restarts.
    node.stop()
    node.start()
    node.insert("trunc", 200, 210)
    node.arrive("trunc", 210)
    assert [len(notices) for notices in node.notices("trunc")] == [2] * PARTITIONS
    assert all(c.parts == PARTITIONS and c.part == n for n, p in enumerate(node.notices("trunc")) for _, c in p)


@pytest.mark.long  # the tests of this file that are left have each kind
def test_recreated_with_another_key_under_writes(node: Node) -> None:
    node.cql("CREATE TABLE s.recreated (a int PRIMARY KEY, v text) WITH cdc = true")
    written = 0
    stop = threading.Event()

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            try:
                node.session.execute("INSERT INTO s.recreated (a, v) VALUES (%s, 'x')", (written,))
            except Exception:
                return
            written += 1

    thread = threading.Thread(target=write)
    thread.start()
    node.arrive("recreated", 50)
    node.cql("DROP TABLE s.recreated")
    stop.set()
    thread.join()
    node.cql("CREATE TABLE s.recreated (a text, b text, v text, PRIMARY KEY (a, b)) WITH cdc = true")
    for n in range(50):
        node.cql(f"INSERT INTO s.recreated (a, b, v) VALUES ('k{n}', 'b', 'x')")
    node.wait(lambda: sum(key.endswith(b"\2\2b") for key in node.rows("recreated")) >= 50)
    # What the old table logged and the agent had not read when it saw the new one would be no key of it.
    keys = node.rows("recreated")
    passed_over = node.metric('skipped_total{reason="dropped_table"}')
    assert sum(key.endswith(b"\2\2b") for key in keys) == 50
    old = {number(key) for key in keys if not key.endswith(b"\2\2b")}
    assert old == set(range(len(old)))
    assert written <= len(old) + passed_over <= written + 1  # the last one may fail as the table goes
    # While the agent is down: keys of the old table would not fit the new one.
    node.stop()
    for n in range(20):
        node.cql(f"INSERT INTO s.recreated (a, b, v) VALUES ('old{n}', 'b', 'x')")
    node.cql(
        "DROP TABLE s.recreated",
        "CREATE TABLE s.recreated (a int PRIMARY KEY, v text) WITH cdc = true",
    )
    node.insert("recreated", 1_000_000, 1_000_020)
    node.start()
    node.arrive("recreated", len(keys) + 20)
    later = node.rows("recreated")
    assert {number(key) for key in later if key not in keys} == set(range(1_000_000, 1_000_020))
    assert node.metric('skipped_total{reason="dropped_table"}') == 20  # of an agent that began again
    assert node._ready() is not None


def test_dropped_while_the_agent_is_down(node: Node) -> None:
    node.cql(
        "CREATE TABLE s.gone (a int PRIMARY KEY, v text) WITH cdc = true",
        "CREATE TABLE s.stays (a int PRIMARY KEY, v text) WITH cdc = true",
        "CREATE KEYSPACE other WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE other.t (a int PRIMARY KEY, v text) WITH cdc = true",
    )
    node.insert("gone", 0, 10)
    node.cql("INSERT INTO other.t (a, v) VALUES (1, 'x')")
    node.arrive("gone", 10)
    node.arrive("t", 1, "other")
    node.stop()
    node.insert("gone", 10, 20)
    node.cql(  # the log alone says which columns it got
        "ALTER TABLE s.gone ADD w map<text, int>",
        "INSERT INTO s.gone (a, v, w) VALUES (20, 'x', {'k': 1})",
        "ALTER TABLE s.gone ADD (n bigint, f frozen<list<text>>)",
        "INSERT INTO s.gone (a, n, w, f) VALUES (21, 7, {'k': 2}, ['y'])",
    )
    node.cql("INSERT INTO other.t (a, v) VALUES (2, 'x')")
    node.cql("CREATE TABLE s.short (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("short", 0, 5)
    node.cql(
        "DROP TABLE s.gone",
        "DROP TABLE s.short",
        "DROP KEYSPACE other",
        "ALTER KEYSPACE s WITH durable_writes = true",
    )
    node.insert("stays", 0, 10)
    node.start()
    node.arrive("stays", 10)
    assert {number(key) for key in node.rows("gone")} == set(range(22))
    assert {number(key) for key in node.rows("t", "other")} == {1, 2}
    assert node.metric('skipped_total{reason="unknown_table"}') == 5
    assert node.metric("undecodable_total") == 0
    assert node._ready() is not None
    for table, keyspace in (("gone", "s"), ("t", "other")):
        node.wait(
            lambda table=table, keyspace=keyspace: all(p and p[-1][0] is None for p in node.topic(table, keyspace))
        )
        scopes = [[change.scope for key, change in part if key is None] for part in node.topic(table, keyspace)]
        assert scopes == [[Scope.TABLE]] * PARTITIONS


@pytest.mark.long  # test_drops.py, and the tests above on a node
def test_dropped_and_recreated_under_writes(node: Node) -> None:
    """Events of the old table stand before the drop, those of the new one after it."""
    create = "CREATE TABLE s.dropped_twice (a int PRIMARY KEY, v text) WITH cdc = true"
    node.cql(create)
    node.insert("dropped_twice", 0, 10)
    node.arrive("dropped_twice", 10)
    node.insert("dropped_twice", 10, 50)
    node.cql("DROP TABLE s.dropped_twice", create)
    node.insert("dropped_twice", 50, 100)
    node.arrive("dropped_twice", 100)
    change = assert_between(node, "dropped_twice", Scope.TABLE, 0, range(50), range(50, 100))
    assert abs((change.write_time or 0) / 1e6 - time.time()) < 120
    # While the agent is down.
    node.stop()
    node.insert("dropped_twice", 100, 150)
    node.cql("DROP TABLE s.dropped_twice", create)
    node.insert("dropped_twice", 150, 200)
    node.start()
    node.arrive("dropped_twice", 200)
    assert_between(node, "dropped_twice", Scope.TABLE, 1, range(50, 150), range(150, 200))
    node.stop()
    node.start()
    node.insert("dropped_twice", 200, 210)
    node.arrive("dropped_twice", 210)
    assert [len(notices) for notices in node.notices("dropped_twice")] == [2] * PARTITIONS
    tables = {number(key): cells.table for key, _, cells in node.cells("dropped_twice")}
    assert len(tables) == 210
    assert [len({tables[n] for n in rows}) for rows in (range(50), range(50, 150), range(150, 210))] == [1, 1, 1]
    assert len(set(tables.values())) == 3, "each table has its id"


@pytest.mark.long  # as above
def test_a_column_that_is_added_again(node: Node) -> None:
    node.cql("CREATE TABLE s.column (a int PRIMARY KEY, v text, w int) WITH cdc = true")
    node.insert("column", 0, 20)
    node.arrive("column", 20)
    node.cql("ALTER TABLE s.column DROP w", "ALTER TABLE s.column ADD w int")
    node.insert("column", 20, 40)
    node.arrive("column", 40)
    assert_between(node, "column", Scope.GAP, 0, range(20), range(20, 40))


def test_altered_while_the_agent_is_down(node: Node) -> None:
    """Old segments still decode: columns that are gone, that are new, that are back; a type that grew."""
    node.cql(
        "CREATE TYPE s.place (street text, zip int)",
        "CREATE TABLE s.altered (a int PRIMARY KEY, v text, n bigint, m map<text, int>, p place, f frozen<place>)"
        " WITH cdc = true",
    )
    insert = "INSERT INTO s.altered (a, v, n, m, p, f) VALUES"
    value = "'x', 7, {'k': 1}, {street: 's', zip: 1}, {street: 's', zip: 1}"
    node.cql(f"{insert} (0, {value})")
    node.arrive("altered", 1)
    node.stop()
    node.cql(
        f"{insert} (1, {value})",
        "ALTER TABLE s.altered DROP n",
        "ALTER TABLE s.altered DROP m",
        "ALTER TABLE s.altered ADD w frozen<list<int>>",
        "ALTER TYPE s.place ADD town text",
        "INSERT INTO s.altered (a, w, p, f) VALUES (2, [1], {street: 's', town: 't'}, {street: 's', town: 't'})",
        "UPDATE s.altered SET p.town = 'u' WHERE a = 3",
        "ALTER TABLE s.altered ADD n bigint",
        "ALTER TABLE s.altered ADD m map<text, int>",
        "INSERT INTO s.altered (a, n, m) VALUES (4, 8, {'z': 2})",
        "ALTER TABLE s.altered DROP w",
        "ALTER TABLE s.altered RENAME a TO renamed",
        "INSERT INTO s.altered (renamed, v) VALUES (5, 'y')",
    )
    node.start()
    node.arrive("altered", 6)
    # The same while it reads.
    node.cql(
        "ALTER TABLE s.altered DROP n",
        "INSERT INTO s.altered (renamed, m) VALUES (6, {'z': 2})",
        "ALTER TYPE s.place ADD land text",
        "UPDATE s.altered SET p.land = 'u' WHERE renamed = 7",
    )
    node.arrive("altered", 8)
    assert [number(key) for key in sorted(node.rows("altered"))] == list(range(8))
    # Cells have the columns and types of then, whatever became of them before they were read.
    cells_by_key = {number(key): (change, cells) for key, change, cells in node.cells("altered")}
    shown = {
        n: {c.column: c.value for c in cells.cells if cells.columns[c.column].multicell is False}
        for n, (_, cells) in cells_by_key.items()
    }
    bigint, place_value = (7).to_bytes(8, "big"), b"\0\0\0\1s\0\0\0\4\0\0\0\1"
    assert shown[1] == shown[0] == {"v": b"x", "n": bigint, "f": place_value}
    assert shown[4] == {"n": (8).to_bytes(8, "big")}
    assert shown[5] == {"v": b"y"}
    assert {c.column: c.path for c in cells_by_key[1][1].cells if c.column == "m"} == {"m": b"k"}
    assert set(cells_by_key[2][1].columns) == {"w", "p", "f"}
    assert str(cells_by_key[2][1].columns["w"]) == "frozen<list<int>>"
    assert [(c.path, c.value) for c in cells_by_key[3][1].cells] == [(b"\0\2", b"u")]
    assert [(c.path, c.value) for c in cells_by_key[7][1].cells] == [(b"\0\3", b"u")]
    assert len({cells.table for _, cells in cells_by_key.values()}) == 1
    assert node.metric("undecodable_total") == 0
    assert node._ready() is not None


@pytest.mark.long  # as above
def test_altered_many_times_in_a_row(node: Node) -> None:
    """Faster than the agent reads the schema: no such ALTER is taken for one of `cdc`."""
    node.cql("CREATE TABLE s.often (a int PRIMARY KEY, v text) WITH cdc = true")
    for alters in range(40):
        node.cql(f"ALTER TABLE s.often ADD c{alters} int", f"INSERT INTO s.often (a, c{alters}) VALUES ({alters}, 1)")
    node.wait(lambda: {number(key) for key in node.rows("often")} >= set(range(40)))
    assert [notice for notices in node.notices("often") for notice in notices] == []


@pytest.mark.long  # test_notices.py has it in memory
def test_cdc_off_and_on(node: Node) -> None:
    off, on = (f"ALTER TABLE s.switched WITH cdc = {cdc}" for cdc in ("false", "true"))

    def arrived(*keys: int) -> bool:
        return {number(key) for key in node.rows("switched")} >= set(range(*keys))

    node.cql("CREATE TABLE s.switched (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("switched", 0, 20)
    node.wait(lambda: arrived(0, 20))
    node.cql(off)
    node.insert("switched", 20, 30)
    node.cql(on)
    node.insert("switched", 30, 50)
    node.wait(lambda: arrived(30, 50))
    assert_between(node, "switched", Scope.GAP, 0, range(20), range(30, 50))
    # Off while it runs, on while it is down.
    node.cql(off)
    node.wait(lambda: "table.retired" in node.out.read_text().rsplit("table.resumed", 1)[-1])
    node.stop()
    node.cql(on)
    node.insert("switched", 50, 70)
    node.start()
    node.wait(lambda: arrived(50, 70))
    assert_between(node, "switched", Scope.GAP, 1, range(30, 50), range(50, 70))
    # Off and on while it is down.
    node.stop()
    node.cql(off, on)
    node.insert("switched", 70, 90)
    node.start()
    node.wait(lambda: arrived(70, 90))
    assert_between(node, "switched", Scope.GAP, 2, range(50, 70), range(70, 90))
    # All else that alters a table is none.
    node.cql(
        "ALTER TABLE s.switched WITH comment = 'x'",
        "ALTER TABLE s.switched ADD w int",
        "CREATE INDEX by_w ON s.switched (w)",
    )
    # A change undone between two looks at the schema looks like cdc off and on: the agent has to see it.
    for first, last in ((90, 93), (93, 95)):
        node.insert("switched", first, last)
        node.wait(lambda first=first, last=last: arrived(first, last))
    node.cql(
        "DROP INDEX s.by_w",
        "CREATE MATERIALIZED VIEW s.by_v AS SELECT a, v FROM s.switched WHERE a IS NOT NULL AND v IS NOT NULL"
        " PRIMARY KEY (v, a)",
        "ALTER KEYSPACE s WITH durable_writes = true",
    )
    node.stop()
    node.cql("CREATE INDEX by_w ON s.switched (w)")
    node.start()
    node.insert("switched", 95, 100)
    node.wait(lambda: arrived(95, 100))
    assert [len(notices) for notices in node.notices("switched")] == [3] * PARTITIONS


def test_statements_over_several_tables(node: Node) -> None:
    """Of a batch only changes of followed tables are emitted; nothing of views; counters as others."""
    node.cql(
        "CREATE TABLE s.b1 (a int PRIMARY KEY, v text) WITH cdc = true",
        "CREATE TABLE s.b2 (a int PRIMARY KEY, v text) WITH cdc = false",
        "CREATE TABLE s.b3 (a int PRIMARY KEY, v text) WITH cdc = true",
        "CREATE TABLE s.counted (a int PRIMARY KEY, c counter) WITH cdc = true",
        "CREATE MATERIALIZED VIEW s.b1_by_v AS SELECT * FROM s.b1 WHERE a IS NOT NULL AND v IS NOT NULL"
        " PRIMARY KEY (v, a)",
    )
    for kind in ("", "UNLOGGED "):
        node.cql(
            f"BEGIN {kind}BATCH INSERT INTO s.b2 (a, v) VALUES (1, 'x'); INSERT INTO s.b1 (a, v) VALUES (1, 'x');"
            " INSERT INTO s.b3 (a, v) VALUES (1, 'x'); APPLY BATCH"
        )
    node.cql("UPDATE s.counted SET c = c + 1 WHERE a = 5")
    node.arrive("counted", 1)
    node.arrive("b3", 2)
    assert [number(key) for key in node.rows("b1")] == [1, 1]
    assert [number(key) for key in node.rows("b3")] == [1, 1]
    assert [number(key) for key in node.rows("counted")] == [5]
    assert node.rows("b2") == node.rows("b1_by_v") == []


@pytest.mark.long  # as above
def test_lost_segment(node: Node) -> None:
    node.cql("CREATE TABLE s.lost (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("lost", 0, 10)
    node.arrive("lost", 10)
    time.sleep(1)  # a sync writes its index
    node.insert("lost", 10, 20)
    node.arrive("lost", 20)
    node.stop()
    newest_read = max(int(p.stem.rsplit("-", 1)[1].removesuffix("_cdc")) for p in node.raw.glob("*_cdc.idx"))
    node.insert("lost", 20, 120, "x" * 20_000)  # two segments more
    for path in node.raw.glob(f"*-{newest_read}*"):
        path.unlink()
    own = next(log(node).glob(f"*-{newest_read}.log"))
    node.stack.nodetool("flush")
    node.wait(lambda: not own.exists())  # the node has no use for it any more
    node.start()
    node.wait(lambda: all(node.notices("lost")))
    assert {c.scope for part in node.notices("lost") for _, c in part} == {Scope.GAP}
    assert node.metric("lost_segments_total") == 1
    node.insert("lost", 200, 210)
    node.wait(lambda: {number(key) for key in node.rows("lost")} >= set(range(200, 210)))
    assert node._ready() is not None
    node.stop()
    node.start()
    time.sleep(2)
    assert [len(part) for part in node.notices("lost")] == [1] * PARTITIONS


def log(node: Node) -> Path:
    """The node's own directory for its commit log."""
    return node.raw.with_name("commitlog")


def test_another_reader_of_cdc_raw(node: Node) -> None:
    """It takes what is complete while our agent stalls: made and gone between two listings."""
    node.cql("CREATE TABLE s.taken (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("taken", 0, 10)
    node.arrive("taken", 10)
    assert node.agent is not None
    os.kill(node.agent.pid, signal.SIGSTOP)
    try:
        indexes_before = set(
            node.raw.glob("*_cdc.idx")
        )  # complete ones of tests before, too, that nobody misses any more
        node.insert("taken", 10, 210, "x" * 20_000)  # four segments and more

        def complete() -> list[Path]:
            return [path for path in {*node.raw.glob("*_cdc.idx")} - indexes_before if "COMPLETED" in path.read_text()]

        node.wait(lambda: len(complete()) >= 2)
        for index in complete():
            index.unlink(missing_ok=True)
            index.with_name(index.name.replace("_cdc.idx", ".log")).unlink(missing_ok=True)
    finally:
        os.kill(node.agent.pid, signal.SIGCONT)
    node.insert("taken", 210, 220)
    node.wait(lambda: {number(key) for key in node.rows("taken")} >= set(range(220)))
    assert all(part == [] for part in node.notices("taken"))
    assert "segment.unlinked" in node.out.read_text()
    assert node._ready() is not None


def test_a_second_agent_is_refused(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "agent.properties"
    keys = (node.directory / "agent.properties").read_text().splitlines()
    keys = [key for key in keys if not key.startswith(("state.dir", "http.port"))]
    path.write_text("\n".join([*keys, f"state.dir={tmp_path}/state"]))
    second = subprocess.run([sys.executable, "-c", MAIN, str(path)], capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert "another agent reads this cdc_raw" in second.stderr
    assert "Traceback" not in second.stderr


def restart(node: Node, **options: Any) -> None:
    """The node once more, stopped well, with other settings. The agent runs on, if it does."""
    from helenus_stack.stack import Stack

    node.stack.stop("cassandra1")
    Stack(node.stack.directory, cassandra_yaml={**SMALL_SEGMENTS, **options}).start("cassandra1")
    node.wait(lambda: _answers(node))


@pytest.mark.long
def test_segments_of_clean_stops_are_deleted(node: Node) -> None:
    """A segment that was made ready, and is never written: it has one name, no index, and counts against the limit."""
    node.cql("CREATE TABLE s.stopped (a int PRIMARY KEY, v text) WITH cdc = true")
    for n in range(3):
        restart(node)
        node.insert("stopped", n, n + 1)
    node.arrive("stopped", 3)

    def linked() -> bool:
        return all(path.stat().st_nlink > 1 for path in node.raw.glob("*.log"))

    node.wait(linked)
    assert node.metric("lost_segments_total") == 0


@pytest.mark.long
def test_cdc_off_for_a_run_of_the_node(node: Node) -> None:
    node.cql("CREATE TABLE s.off (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("off", 0, 20)
    node.arrive("off", 20)
    restart(node, cdc_enabled=False)
    node.insert("off", 20, 30)
    node.wait(lambda: "node.cdc_off" in node.out.read_text())  # it asks more and more rarely while the node starts
    restart(node)
    node.wait(lambda: node._ready() is not None)
    node.insert("off", 30, 50)
    node.wait(lambda: {number(key) for key in node.rows("off")} >= set(range(30, 50)))
    assert_between(node, "off", Scope.GAP, 0, range(20), range(30, 50))


def test_a_full_cdc_raw_refuses_writes_until_the_agent_comes(node: Node) -> None:
    node.cql("CREATE TABLE s.filled (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("filled", 0, 1)
    node.arrive("filled", 1)
    node.stop()
    text = "x" * 50_000
    written = 1
    while _writes(node, written, text):
        written += 1
        assert written < 1000
    node.start()
    node.arrive("filled", written)
    assert node.out.read_text().count("cdc_raw.fills") > 0
    node.wait(lambda: _writes(node, 5000, "y"))
    node.wait(lambda: 5000 in {number(key) for key in node.rows("filled")})
    assert all(part == [] for part in node.notices("filled"))


def _writes(node: Node, key: int, text: str) -> bool:
    try:
        node.insert("filled", key, key + 1, text)
    except Exception:
        return False
    return True


@pytest.mark.long  # test_lost_segment, and test_notices.py
def test_a_node_that_deletes_what_is_not_read(node: Node) -> None:
    """With cdc_block_writes: false it goes on, and the agent says that changes are missing."""
    from helenus_stack.stack import Stack

    node.cql("CREATE TABLE s.deleted (a int PRIMARY KEY, v text) WITH cdc = true")
    node.insert("deleted", 0, 10)
    node.arrive("deleted", 10)
    node.stop()
    node.stack.stop("cassandra1")
    changed = Stack(node.stack.directory, cassandra_yaml={**SMALL_SEGMENTS, "cdc_block_writes": False})
    changed.start("cassandra1")
    node.wait(lambda: _answers(node))
    node.start()
    node.insert("deleted", 10, 20)
    node.arrive("deleted", 20)
    node.stop()
    for first in range(20, 300, 20):
        node.insert("deleted", first, first + 20, "x" * 50_000)
    node.stack.nodetool("flush")
    node.wait(lambda: len(list(log(node).iterdir())) < 4)  # else it is read there, and nothing is missing
    node.start()
    node.wait(lambda: all(node.notices("deleted")))
    assert {c.scope for part in node.notices("deleted") for _, c in part} == {Scope.GAP}
    assert node.metric("possible_loss_total") + node.metric("lost_segments_total") > 0
    node.insert("deleted", 1000, 1010)
    node.wait(lambda: {number(key) for key in node.rows("deleted")} >= set(range(1000, 1010)))


def _answers(node: Node) -> bool:
    try:
        node.cql("SELECT key FROM system.local")
    except Exception:
        return False
    return True
