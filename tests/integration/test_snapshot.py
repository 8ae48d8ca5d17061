"""Rows that were there before: each is on the topic at the end, and none is older than one before it, whatever dies."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pulsar
import pytest
from bench.processes import contents, family
from cassandra import OperationTimedOut, WriteTimeout
from cassandra.cluster import NoHostAvailable
from cassandra.concurrent import execute_concurrent_with_args
from integration.pipeline import Command, Pipeline, script
from integration.test_verify import command as verify
from patience import eventually

from helenus_stack.settings import LogName
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

ROWS = int(os.environ.get("HELENUS_ROWS", "3000"))
"""A multiple of 300. A snapshot's rates here follow it, so that it lasts as long."""
WIDE = int(os.environ.get("HELENUS_WIDE", "1000000"))
"""Rows of the large partition."""
IN_PARTITION = ROWS // 300
"""How many of them a partition of an odd number has."""
FILLERS = 6
"""Of 1 MiB each, where a segment of the commit log has 4."""
MORE = pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.long)])
"""Whether to start the worker again more often than that shows what it is about."""
UNSURE = (OperationTimedOut, WriteTimeout, NoHostAvailable)


class Table:
    """A table with rows from before it had `cdc`: some partitions have many rows, some static columns alone. With
    `expires` there are rows that expire while a snapshot runs, or soon after, and more of them are written meanwhile.
    """

    def __init__(
        self,
        session: Any,
        name: str,
        strategy: str = "'SimpleStrategy', 'replication_factor': 1",
        expires: bool = False,
    ) -> None:
        self.session = session
        self.name = name
        self.random = random.Random(name)
        self.expires = expires
        self.turn = 0
        keyspace = name.partition(".")[0]
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{'class': {strategy}}}")
        session.execute(
            f"CREATE TABLE {name} (p int, q text, c int, s text static, v text, n int, m map<text, int>, "
            "PRIMARY KEY ((p, q), c))"
        )
        insert = session.prepare(f"INSERT INTO {name} (p, q, c, v, n) VALUES (?, ?, ?, ?, ?)")
        rows = [(i % 300 if i % 2 else 0, "q", i, f"before {i}", i) for i in range(ROWS)]
        execute_concurrent_with_args(session, insert, rows, concurrency=100)
        for p in range(1000, 1040):
            session.execute(f"UPDATE {name} SET s = 'static {p}' WHERE p = {p} AND q = 'q'")
        session.execute(f"DELETE FROM {name} WHERE p = 7 AND q = 'q'")
        for i in range(60 if expires else 0):
            values = f"(0, 'q', {3 * ROWS + i}, 'before {i}') USING TTL {30 + 3 * i}"
            session.execute(f"INSERT INTO {name} (p, q, c, v) VALUES {values}")

    def leave_the_log(self, stack: Stack, nodes: Sequence[int] = (1,)) -> None:
        """As the function does, for its keyspace."""
        leave_the_log(self.session, self.name.partition(".")[0], stack, nodes)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Rows are written, deleted and expire meanwhile."""
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                with suppress(*UNSURE):  # whether it took effect is for the table to say
                    self.write_statement()
                stop.wait(0.01)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def write_statement(self) -> None:
        """Each statement writes a higher number than those before it."""
        c = self.random.randrange(ROWS)
        p = c % 300 if c % 2 else 0
        self.turn += 1
        where, n = f"p = {p} AND q = 'q' AND c = {c}", self.turn
        statements = [
            f"UPDATE {self.name} SET v = 'meanwhile {n}', n = {n} WHERE {where}",
            f"UPDATE {self.name} SET m = m + {{'k': {n}}} WHERE {where}",
            f"DELETE FROM {self.name} WHERE {where}",
            f"INSERT INTO {self.name} (p, q, c, v, s) VALUES ({p}, 'q', {c}, 'anew {n}', 'static {n}')",
            f"DELETE FROM {self.name} WHERE p = {p} AND q = 'q' AND c > {c} AND c < {c + 3}",
        ]
        if self.expires:  # keys of their own: an expired cell would give the row back its older time
            short = f"({p}, 'q', {ROWS + c}, 'soon gone {n}') USING TTL {5 + n % 15}"
            statements.append(f"INSERT INTO {self.name} (p, q, c, v) VALUES {short}")
        self.session.execute(self.random.choice(statements))


def leave_the_log(session: Any, keyspace: str, stack: Stack, nodes: Sequence[int] = (1,)) -> None:
    """Have the nodes delete the segments that hold the rows of now: no agent sees them any more."""
    session.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.filler (id int PRIMARY KEY, content blob)")
    fill = session.prepare(f"INSERT INTO {keyspace}.filler (id, content) VALUES (?, ?)")
    for n in range(FILLERS):
        session.execute(fill, (n, bytes(1 << 20)))
    for node in nodes:
        stack.nodetool("flush", node=node)


@pytest.fixture
def table(stack: Stack, session: Any, request: pytest.FixtureRequest) -> Iterator[Table]:
    made = Table(session, f"snapshots.t{abs(hash(request.node.name)) % 10_000}")
    made.leave_the_log(stack)
    yield made
    session.execute(f"DROP TABLE {made.name}")


@pytest.fixture
def pipeline(status: Status, log: LogName, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(status.only(log), tmp_path / "pipeline")
    yield pipeline
    pipeline.stop()


def snapshots(connector: Command, name: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{connector.port}/connectors/{name}/snapshots"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            snapshot_list: list[dict[str, Any]] = json.load(answer)["snapshots"]
            return snapshot_list
    except OSError:
        return []


def command(connector: Command, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{connector.port}"
    called = [script("helenus-connector"), "snapshot", *arguments, "--url", url]
    return subprocess.run(called, capture_output=True, text=True, timeout=120)


def send(status: Status, topic: str, key: str, value: object) -> None:
    """A signal, as an operator sends it: with a client of the message broker."""
    text = value if isinstance(value, str) else json.dumps(value)
    if status.log == "kafka":
        producer = confluent_kafka.Producer({"bootstrap.servers": status.bootstrap_servers})
        failed: list[Any] = []
        producer.produce(topic, text, key, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(30) == 0
        assert failed == [None]
        return
    client = pulsar.Client(str(status.pulsar_url), logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    client.create_producer(topic).send(text.encode(), partition_key=key)
    client.close()


def goes_on(connector: Command, name: str, after: float) -> float:
    """Wait until a snapshot has scanned more than this share; returns how much it has."""
    states: list[dict[str, Any]] = []

    def is_further() -> bool:
        states[:] = snapshots(connector, name)
        return bool(states) and states[0]["done"] > after

    eventually(is_further, lambda: f"it goes on: {states}\n{connector.tail()}")
    assert states[0]["state"] == "SCANNING"
    return float(states[0]["done"])


def in_order(pipeline: Pipeline, table: str) -> None:
    """No record is older than one before it for its key: by the newest write time that it shows, or that of the change
    that deleted its row; and by the number that the statements of `Table.one` write.
    """
    newest: dict[str, int] = {}
    highest: dict[str, int] = {}
    compared = 0
    for record in pipeline.records(table):
        if "scope" in record.headers:
            continue  # a marker has the time of its deletion, and the static columns of now
        key = json.dumps(record.key, default=str, sort_keys=True)
        written = int(record.headers.get("writetime", 0))
        if record.value is not None:
            assert not written or written >= newest.get(key, 0), f"{key} went back: {record}"
            compared += key in newest
            shown = re.fullmatch(r"(?:meanwhile|anew|soon gone) (\d+)", record.value["v"] or "")
            number = int(shown[1]) if shown else 0
            assert number >= highest.get(key, 0) or record.value["v"] is None, f"{key} went back: {record}"
            highest[key] = max(number, highest.get(key, 0))
        # A null may be of an older change than the one that deleted the row: it was read for a late copy, say.
        newest[key] = max(written, newest.get(key, 0))
    assert compared > 100, "keys have several records"


@MORE
def test_existing_rows_under_writes_while_workers_are_killed(
    pipeline: Pipeline, table: Table, tmp_path: Path, session: Any, more: bool
) -> None:
    name = table.name.replace(".", "-")
    session.execute(f"ALTER TABLE {table.name} WITH cdc = true")
    pipeline.agent.start().ready()
    connector = pipeline.connect(table.name, snapshot_mode="initial", snapshot_max_rate=ROWS // 24)
    with table.written():
        killed = tmp_path / "killed"
        # A Python worker, and its job with it; then the driver, before its file is replaced.
        connector.start(HELENUS_FAILPOINT=f"snapshot.after-flush:2@{killed},snapshots.after-write:8")
        eventually(killed.exists, lambda: f"a slice is flushed\n{connector.tail()}")
        connector.dies()
        connector.start()
        share = goes_on(connector, name, 0.05)
        if more:
            connector.kill()
            connector.start()
        session.execute(f"ALTER TABLE {table.name} ADD w int")
        goes_on(connector, name, share)
    assert command(connector, name, "--show").stdout.startswith(f"{name} {table.name.partition('.')[2]}: SCANNING")
    eventually(lambda: snapshots(connector, name)[0]["state"] == "COMPLETE", "the snapshot is complete")
    pipeline.converges(table.name)
    in_order(pipeline, table.name)
    kinds = [record.headers.get("snapshot") for record in pipeline.records(table.name)]
    assert b"last" in kinds  # others may have met a change in their batch, which came first
    metrics = connector.metrics()
    labels = f'connector="{name}",table="{table.name.partition(".")[2]}"'
    assert metrics["helenus_connector_snapshot_done_ratio", labels] == 1.0
    assert metrics["helenus_connector_snapshot_state", labels.replace("table=", 'state="COMPLETE",table=')] == 1.0
    if not more:
        return
    # What is complete does not begin again, and none of it is published again: a start reads its last events once more.
    before, records = snapshots(connector, name)[0], pipeline.records(table.name)
    connector.stop()
    connector.start().ready()
    eventually(lambda: connector.total("helenus_connector_events_read_total", connector=name) > 100, "a step back")
    session.execute(f"INSERT INTO {table.name} (p, q, c) VALUES (2000, 'q', 1)")
    pipeline.converges(table.name)
    assert snapshots(connector, name)[0] == before, "no second snapshot"
    positions = {(record.partition, record.offset) for record in records}
    later_records = [
        record for record in pipeline.records(table.name) if (record.partition, record.offset) not in positions
    ]
    assert [record for record in later_records if "snapshot" in record.headers] == []
    assert any(record.key["p"] == 2000 for record in later_records)


@pytest.mark.long  # the test above has a snapshot
def test_what_an_operator_asks_for(pipeline: Pipeline, table: Table, session: Any) -> None:
    name = table.name.replace(".", "-")
    session.execute(f"ALTER TABLE {table.name} WITH cdc = true")
    pipeline.agent.start().ready()
    topic = f"signals-{table.name}"
    connector = pipeline.connect(table.name, snapshot_mode="never", signal_topic=topic).start().ready()
    answer = command(connector, name, "--where", "p = 0 AND q = 'q'", "--wait")
    assert answer.returncode == 0, answer
    assert "COMPLETE" in answer.stdout
    records = pipeline.records(table.name)
    rows = {row.c for row in session.execute(f"SELECT c FROM {table.name} WHERE p = 0 AND q = 'q'")}
    assert {r.key["p"] for r in records} == {0}, "no event of before came from the agent"
    assert {r.key["c"] for r in records} - {None} == rows
    snapshot_records = [r for r in records if r.headers.get("origin") == b"snapshot"]
    assert {r.key["p"] for r in snapshot_records} == {0}
    assert snapshot_records[-1].headers["snapshot"] == b"last"
    for wrong, message in (
        (["--where", "c = 1"], "the partition key of"),
        (["--where", "p = 0"], "the partition key of"),
        (["--where", "p = 'x' AND q = 'q'"], "Cassandra refuses"),
        (["--where", "p = 1.2.3 AND q = 'q'"], "Cassandra refuses"),
        (["--table", "other"], "there is no table other"),
        (["--token-range", "all"], "give a token range as AFTER:UNTIL"),
        (["--key", "5"], "--key: 5 is no JSON object"),
    ):
        answer = command(connector, name, *wrong)
        assert answer.returncode == 2, answer
        assert message in answer.stderr
        assert len(answer.stderr.splitlines()) == 1
    assert "Connector nobody not found" in command(connector, "nobody").stderr
    with pipeline.log() as made:
        made.create(topic, 1, {})
    send(pipeline.status, topic, name, asks(table, 3, 5))
    eventually(lambda: is_complete(connector, name, 3, 5), lambda: f"the signal is acted on\n{connector.tail()}")
    assert command(connector, name, "--wait").returncode == 0
    pipeline.converges(table.name)


def asks(table: Table, *partitions: float) -> dict[str, Any]:
    """Debezium's signal for a snapshot of these partitions."""
    where = f"p IN ({', '.join(map(str, partitions))}) AND q = 'q'"
    conditions = [{"data-collection": table.name, "filter": where}]
    data = {"data-collections": [r"snapshots\.t.*"], "type": "incremental", "additional-conditions": conditions}
    return {"type": "execute-snapshot", "data": data}


def is_complete(connector: Command, name: str, *partitions: int) -> bool:
    """Whether the last snapshot was of these partitions, and is complete."""
    where = f"p IN ({', '.join(map(str, partitions))}) AND q = 'q'"
    states = [(snapshot["state"], snapshot["where"], snapshot["rows"]) for snapshot in snapshots(connector, name)]
    return states == [("COMPLETE", where, IN_PARTITION * len(partitions))]


@pytest.mark.long  # above a signal is acted on; connector/test_signals.py has the others in memory
def test_signals_of_a_topic(pipeline: Pipeline, table: Table, session: Any) -> None:
    """Debezium's: acted on once, not lost while the worker is down, and bad ones are passed over."""
    name, topic = table.name.replace(".", "-"), f"signals-{table.name}"
    session.execute(f"ALTER TABLE {table.name} WITH cdc = true")
    pipeline.agent.start().ready()
    connector = pipeline.connect(table.name, snapshot_mode="never", signal_kafka_topic=topic)  # Debezium's name

    def is_now(state: str) -> bool:
        return [snapshot["state"] for snapshot in snapshots(connector, name)] == [state]

    with pipeline.log() as made:
        made.create(topic, 1, {})
    send(pipeline.status, topic, name, asks(table, 3, 5))
    send(pipeline.status, topic, "another", asks(table, 9))
    connector.start().ready()
    eventually(
        lambda: is_complete(connector, name, 3, 5), lambda: f"the signal of before is acted on\n{connector.tail()}"
    )
    keys = {record.key["p"] for record in pipeline.records(table.name)}
    assert keys == {3, 5}, "no event of before came from the agent"
    connector.kill()
    for bad in ("hello", {"type": "drop-table"}, asks(table) | {"data": {"data-collections": ["("]}}, asks(table, 1.5)):
        send(pipeline.status, topic, name, bad)
    send(pipeline.status, topic, name, asks(table, 11))
    connector.start().ready()
    eventually(lambda: is_complete(connector, name, 11), lambda: f"it was not lost\n{connector.tail()}")
    skipped = [line for line in connector.log.read_text().splitlines() if "signal.skipped" in line]
    assert len(skipped) == 4, skipped
    begun = connector.log.read_text().count("snapshot.started")
    connector.stop()
    connector.start().ready()
    send(pipeline.status, topic, name, {"type": "execute-snapshot", "data": {"data-collections": [table.name]}})
    send(pipeline.status, topic, name, {"type": "pause-snapshot"})
    eventually(lambda: is_now("PAUSED"), lambda: f"it is begun, and paused\n{connector.tail()}")
    send(pipeline.status, topic, name, {"type": "stop-snapshot", "data": {"data-collections": [table.name]}})
    eventually(lambda: is_now("STOPPED"), lambda: f"it is stopped\n{connector.tail()}")
    assert connector.log.read_text().count("snapshot.started") <= begun + 1, "none of before is acted on again"


@pytest.mark.long  # five minutes; on Pulsar many times that, and the same code
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("log", ["kafka"], indirect=True)
def test_a_partition_of_many_rows(
    pipeline: Pipeline, stack: Stack, session: Any, record_property: Callable[[str, object], None]
) -> None:
    """Next to small ones: each row is published, and no process holds the partition."""
    name = "snapshots.skew"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS snapshots WITH replication = {replication}")
    session.execute(f"CREATE TABLE {name} (p int, c int, v text, PRIMARY KEY (p, c))")
    rows, at_once, parts = WIDE, 100, max(10, WIDE // 100_000)
    statement = f"INSERT INTO {name} (p, c, v) VALUES (?, ?, 'before');"
    batch = session.prepare(f"BEGIN UNLOGGED BATCH {statement * at_once} APPLY BATCH")
    values = ([v for c in range(c, c + at_once) for v in (0, c)] for c in range(0, rows, at_once))
    execute_concurrent_with_args(session, batch, values, concurrency=20)
    few = [[v for c in range(at_once) for v in (p, c)] for p in range(1, 101)]
    execute_concurrent_with_args(session, batch, few, concurrency=20)
    leave_the_log(session, "snapshots", stack)
    session.execute(f"ALTER TABLE {name} WITH cdc = true")
    pipeline.agent.start().ready()
    connector = pipeline.connect(name, snapshot_mode="initial").start()
    assert connector.process is not None
    megabytes = []

    def is_at(scanned: int) -> bool:
        states = snapshots(connector, "snapshots-skew")
        return bool(states) and (states[0]["rows"] >= scanned or states[0]["state"] == "COMPLETE")

    for part in range(1, parts + 1):
        eventually(lambda part=part: is_at(rows * part // parts), lambda: f"it goes on\n{connector.tail()}")
        megabytes.append(sum(map(resident, family(connector.process.pid))) >> 20)
    eventually(
        lambda: snapshots(connector, "snapshots-skew")[0]["state"] == "COMPLETE",
        lambda: f"it is complete\n{connector.tail()}",
    )
    record_property("MB", megabytes)
    first = max(megabytes[: parts * 3 // 10])
    assert max(megabytes) < 1.3 * first, f"MB of the worker's processes while the rows are scanned: {megabytes}"
    status, out, error_output = verify(pipeline, name, "--json")
    report = json.loads(out)["report"]
    assert (status, report["rows"]) == (0, rows + 100 * at_once), (report, error_output)
    session.execute(f"DROP TABLE {name}")


def resident(process: Path) -> int:
    """Bytes of a process that are its own: what is shared counts in parts."""
    lines = contents(process, "smaps_rollup").decode().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
