"""Proven, not just seen: three replicas that pause, miss writes, get hints and are repaired.

After each trouble the topic is held against SELECT at level ALL, once and after all is quiet: a topic that the read
itself would bring right, by its read repair, is not right.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bench.chaos.new_node import nodes_up
from bench.processes import python_workers
from cassandra import ConsistencyLevel, OperationTimedOut, ReadTimeout, WriteTimeout
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import tuple_factory
from integration.pipeline import Command, Pipeline, free_port, write_properties
from integration.random_tables import RandomTable
from integration.workload import Workload, create
from patience import eventually

from helenus_schemas.cql.table import read_tables
from helenus_schemas.event.wire import decode
from helenus_stack.compare import differences
from helenus_stack.records import messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

ALL_KINDS = "three.all_kinds"
ROWS = "three.rows"
WIDE = "three.wide"
LATE = "three.late"
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
RANDOM = [RandomTable("three", f"random{i}", random.Random(SEED + i)) for i in range(3)]
TABLES = (ALL_KINDS, ROWS, WIDE, LATE, *(t.full_name for t in RANDOM))


class Three(Pipeline):
    """An agent for each of three nodes; `node` is the one of `Pipeline`'s own agent."""

    def __init__(self, status: Status, directory: Path) -> None:
        super().__init__(status, directory)
        self.agents = [self.agent]
        for node in status.nodes[1:]:
            port = free_port()
            more = {
                **self.agent_properties(port),
                "cassandra.config": node.cassandra_yaml,
                "cassandra.contact.points": node.address,
                "cassandra.local.dc": node.data_center,
                "state.dir": directory / f"state-{node.name}",
            }
            file = write_properties(directory / f"agent-{node.name}.properties", more)
            self.agents.append(Command(["helenus-agent", str(file)], directory / f"agent-{node.name}.log", port))

    def start_agents(self, lines: str = "") -> None:
        """Start all agents, with these lines added to their files, and wait until they are ready."""
        for agent in self.agents:
            with Path(agent.arguments[1]).open("a") as file:
                file.write(lines)
            agent.start()
        for agent in self.agents:
            agent.ready()

    def stop(self) -> None:
        super().stop()
        for agent in self.agents[1:]:
            if agent.process is not None:
                agent.stop()

    def count(self, table: str, name: str, **labels: str) -> float:
        name = f"helenus_connector_{name}"
        return self.connector.total(name, connector=table.replace(".", "-"), **labels)

    def is_quiet(self, table: str) -> bool:
        """Whether every event is fully processed, also those that a restart steps back to, and no key waits."""
        if self.connector.health()[0] != 200 or not self.count(table, "events_read_total"):
            return False
        url = f"http://127.0.0.1:{self.connector.port}/connectors/{table.replace('.', '-')}/offsets"
        with urllib.request.urlopen(url, timeout=10) as answer:
            events_read = sum(entry["offset"]["offset"] for entry in json.load(answer)["offsets"])
        return events_read >= len(self.events(table)) and not self.count(table, "keys_unconfirmed")

    def events(self, table: str) -> list[Any]:
        return list(messages(self.status.bootstrap_servers, f"events-{table}"))

    def wait_confirmed(self, table: str, session: Any, context: str = "") -> None:
        """Wait until all is confirmed; then the topic is the table, and every event accounted for."""
        end = [0]

        def quiet() -> bool:
            before = len(self.events(table))
            time.sleep(2.5)
            end[0] = len(self.events(table))
            return before == end[0] and self.is_quiet(table)

        eventually(quiet, f"{table} is quiet; the connector's log ends:\n{self.connector.tail()}")
        keyspace, name = table.split(".")
        definition = next(t for t in read_tables(session, keyspace).values() if t.name == name)
        records = self.records(table)
        differing = differences(session.at_all, definition, records)
        assert not differing, f"{len(differing)} keys of {table} differ; {context}\n" + "\n".join(
            map(str, differing[:10])
        )
        self.adds_up(table.replace(".", "-"))


@pytest.fixture(scope="module")
def session(three: Stack) -> Iterator[Any]:
    """Writes at ONE through the first node, which is never paused; `at_all` reads at ALL."""
    status = three.status()
    first = WhiteListRoundRobinPolicy(status.contact_points[:1])
    profiles = {
        EXEC_PROFILE_DEFAULT: ExecutionProfile(first, consistency_level=ConsistencyLevel.ONE),
        "all": ExecutionProfile(first, consistency_level=ConsistencyLevel.ALL, row_factory=tuple_factory),
    }
    for profile in profiles.values():
        profile.request_timeout = 60  # three nodes on a busy machine answer slowly
    cluster = Cluster(
        status.contact_points[:1], port=status.cql_port, execution_profiles=profiles, idle_heartbeat_timeout=120
    )
    session = cluster.connect()
    session.at_all = AtAll(session)
    yield session
    cluster.shutdown()


class AtAll:
    """A session as `differences` wants one."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def execute(self, cql: str) -> Any:
        return self.session.execute(cql, execution_profile="all", timeout=30)


@pytest.fixture(scope="module")
def pipeline(three: Stack, session: Any, directory: Path) -> Iterator[Three]:
    pipeline = Three(three.status(), directory)
    session.execute("CREATE KEYSPACE three WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
    create(session, "three", "all_kinds")
    session.execute(f"CREATE TABLE {ROWS} (k int PRIMARY KEY, v int) WITH cdc = true")
    session.execute(f"CREATE TABLE {WIDE} (p int, c int, v text, PRIMARY KEY (p, c)) WITH cdc = true")
    session.execute(f"CREATE TABLE {LATE} (k int PRIMARY KEY, v int) WITH cdc = true")
    for table in RANDOM:
        session.execute(table.create())
    try:
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES, max_batch_size=200)
        more = {"settle.min.age.ms": 60_000, "max.batch.size": 200}  # as it is by default: for memtables that are late
        write_properties(directory / f"{LATE}.properties", {**pipeline.connector_properties(LATE), **more})
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@contextmanager
def paused(stack: Stack, *nodes: str) -> Iterator[None]:
    for node in nodes:
        stack.pause(node)
    try:
        yield
    finally:
        for node in nodes:
            stack.resume(node)


def changes(pipeline: Three, table: str) -> dict[Any, set[str | None]]:
    """The distinct changes on an events topic, by key and digest: the nodes that reported them."""
    nodes_by_change: dict[Any, set[str | None]] = {}
    for message in pipeline.events(table):
        change = decode(message.value())
        nodes_by_change.setdefault((message.key(), change.digest), set()).add(change.node)
    return nodes_by_change


def reports(pipeline: Three, table: str) -> int:
    """How many reports of changes there are, one per node, copies not counted."""
    return sum(map(len, changes(pipeline, table).values()))


def test_one_replica_reports_and_two_come_later(pipeline: Three, session: Any) -> None:
    """One replica proves nothing at LOCAL_QUORUM: a second read at ALL confirms the rows. Later copies are dropped."""
    for k in range(300):
        session.execute(f"INSERT INTO {ROWS} (k, v) VALUES ({k}, {k})")
    pipeline.wait_confirmed(ROWS, session)
    assert pipeline.count(ROWS, "records_total") == 300, "the second read brings nothing new"
    assert pipeline.count(ROWS, "keys_read_total") == 600
    for agent in pipeline.agents[1:]:
        agent.start()
    for agent in pipeline.agents[1:]:
        agent.ready()
    eventually(lambda: pipeline.count(ROWS, "events_total", outcome="confirmed") == 600, "two of three are dropped")
    assert pipeline.count(ROWS, "records_total") == 300
    assert pipeline.count(ROWS, "keys_read_total") == 600
    pipeline.wait_confirmed(ROWS, session)


COSTS = {
    "inserts": (ROWS, 1000, 1.9, "INSERT INTO {t} (k, v) VALUES ({i}, {i})"),
    "updates": (WIDE, 500, 1.9, "UPDATE {t} SET v = 'a' WHERE p = {i} AND c = 1"),
    "row deletes": (WIDE, 500, 2.0, "DELETE FROM {t} WHERE p = {i} AND c = 1"),
    "deletes of a key": (ROWS, 500, 1.9, "DELETE FROM {t} WHERE k = {i}"),
    "partition deletes": (WIDE, 200, 1.9, "DELETE FROM {t} WHERE p = {i}"),
    "range deletes": (WIDE, 100, 3.5, "DELETE FROM {t} WHERE p = {i} AND c > 0"),
}
"""Statements on keys of their own, how many, and how many reads each may cost at most, on a machine that is busy: there
a first read comes before a second replica reported. On one that is not, 1.1 and, of ranges, 2 to 3.
"""


def test_reads_per_change(pipeline: Three, session: Any) -> None:
    """Of each kind, how many keys are read per change, whoever of three replicas reports it when."""
    for agent in pipeline.agents[1:]:
        if agent.process is None:  # where this test is run by itself
            agent.start().ready()
    costs = {}
    for kind, (table, count, _, statement) in COSTS.items():
        before = {n: pipeline.count(table, n) for n in ("keys_read_total", "records_total", "statements_total")}
        count_before = len(changes(pipeline, table))
        for i in range(count):
            session.execute(statement.format(t=table, i=10_000 + i))
        pipeline.wait_confirmed(table, session)
        assert len(changes(pipeline, table)) - count_before == count
        costs[kind] = {n: (pipeline.count(table, n) - b) / count for n, b in before.items()}
    assert costs["inserts"]["statements_total"] <= 1, costs
    assert {kind for kind, (_, _, limit, _) in COSTS.items() if costs[kind]["keys_read_total"] > limit} == set(), costs


def test_memtables_that_are_late_for_long(pipeline: Three, session: Any) -> None:
    """Their nodes have logged a write, and do not show it while they wait for memory, which a slow flush frees.

    One node's agent reports at once, the others' when all is over.
    """
    slow = "{'class': 'ZstdCompressor', 'compression_level': 22, 'chunk_length_in_kb': 1024}"
    session.execute(f"CREATE TABLE IF NOT EXISTS three.filler (k int PRIMARY KEY, v text) WITH compression = {slow}")
    for k in range(10):
        session.execute(f"INSERT INTO {LATE} (k, v) VALUES ({k}, 0)", execution_profile="all")
    pipeline.wait_confirmed(LATE, session)
    for agent in pipeline.agents[1:]:
        if agent.process is not None:
            agent.stop()
    count_before = len(changes(pipeline, LATE))
    records = len(pipeline.records(LATE))
    try:
        fill_memtables(session)
        sent = [session.execute_async(f"UPDATE {LATE} SET v = 1 WHERE k = {k}", timeout=60) for k in range(10)]
        for future in sent:
            with suppress(WriteTimeout, OperationTimedOut):
                future.result()
        eventually(lambda: len(changes(pipeline, LATE)) > count_before, "a node reports them", every=0.1)
        eventually(lambda: len(pipeline.records(LATE)) > records, "they are read", every=0.1)
        early = pipeline.records(LATE)[records:]
        eventually(lambda: values(session) == {1}, "all memtables have them")
    finally:
        for agent in pipeline.agents[1:]:
            agent.start().ready()
    assert any(r.value == {"v": 0} for r in early), "a row was read before its memtable had it"
    pipeline.wait_confirmed(LATE, session)


def values(session: Any) -> set[int]:
    """The values at ALL; none while a replica does not answer, as what a read repairs waits for memory too."""
    try:
        return {v for _, v in session.at_all.execute(f"SELECT k, v FROM {LATE}")}
    except (ReadTimeout, OperationTimedOut):
        return set()


def fill_memtables(session: Any) -> None:
    """Write until no node takes more, as its memtables are full."""
    chance = random.Random(1)
    words = [f"{chance.getrandbits(32):08x}" for _ in range(3000)]
    texts = [" ".join(chance.choices(words, k=7000)) for _ in range(40)]
    insert = session.prepare("INSERT INTO three.filler (k, v) VALUES (?, ?)")
    with suppress(WriteTimeout, OperationTimedOut):
        for k in range(0, 10_000, 4):
            sent = [session.execute_async(insert, (k + i, texts[(k + i) % len(texts)])) for i in range(4)]
            for future in sent:
                future.result()
        raise AssertionError("the memtables are never full")


def test_random_statements_at_one(pipeline: Three, session: Any) -> None:
    workload = Workload(session, ALL_KINDS, seed=4)
    workload.run(600)
    pipeline.wait_confirmed(ALL_KINDS, session)


def test_random_tables_converge(pipeline: Three, session: Any) -> None:
    """Run again with HELENUS_SEED as the failure shows it."""
    for table in RANDOM:
        table.run(session, 250)
    for table in RANDOM:
        context = f"HELENUS_SEED={SEED}: {table.create()}"
        pipeline.wait_confirmed(table.full_name, session, context=context)


def test_a_paused_replica_gets_hints(pipeline: Three, three: Stack, session: Any) -> None:
    changes_before = changes(pipeline, ALL_KINDS)
    with Workload(session, ALL_KINDS, seed=5) as workload:
        time.sleep(1)
        with paused(three, "cassandra3"):
            time.sleep(6)
        time.sleep(1)
    assert workload.statements > 100

    def hints_are_reported() -> bool:
        new = [nodes for change, nodes in changes(pipeline, ALL_KINDS).items() if change not in changes_before]
        counts = Counter(node for nodes in new for node in nodes)
        return len(counts) == 3 and min(counts.values()) > 0.8 * max(counts.values())

    eventually(hints_are_reported, "the replica that paused has reported what the others did")
    pipeline.wait_confirmed(ALL_KINDS, session)


@pytest.fixture
def no_hints(three: Stack) -> Iterator[None]:
    """No hints are kept: what a replica misses it never gets but by a read or a repair."""

    def on_all(command: str) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: three.nodetool(command, node=node), (1, 2, 3)))

    on_all("disablehandoff")
    yield
    on_all("enablehandoff")


def up(three: Stack) -> int:
    """How many nodes are up, as the first one has it."""
    return len(nodes_up(three))


@contextmanager
def unheard(three: Stack, *nodes: int) -> Iterator[None]:
    """Nodes that the others take for down: nothing is sent to them."""
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(lambda node: three.nodetool("disablegossip", node=node), nodes))
            eventually(lambda: up(three) == 3 - len(nodes), "they are down")
            yield
        finally:
            list(pool.map(lambda node: three.nodetool("enablegossip", node=node), nodes))
            eventually(lambda: up(three) == 3, "they are up")


def written_to_one_replica(three: Stack, session: Any, first: int) -> None:
    """40 rows from `first` on, and 20 deletions, that the two others miss."""
    with unheard(three, 2, 3):
        for k in range(first, first + 40):
            session.execute(f"INSERT INTO {ROWS} (k, v) VALUES ({k}, {k})")
        for k in range(first - 300, first - 260, 2):
            session.execute(f"DELETE FROM {ROWS} WHERE k = {k}")


def test_hints_are_lost(pipeline: Three, three: Stack, session: Any, no_hints: None) -> None:
    """The connector's own reads bring together what the replicas have."""
    changes_before = changes(pipeline, ROWS)
    written_to_one_replica(three, session, 300)
    with Workload(session, ALL_KINDS, seed=6), paused(three, "cassandra3"):
        time.sleep(4)
    pipeline.wait_confirmed(ROWS, session)
    pipeline.wait_confirmed(ALL_KINDS, session)
    tellers = [len(nodes) for change, nodes in changes(pipeline, ROWS).items() if change not in changes_before]
    assert tellers.count(1) >= 20, "a deletion is repaired in other words; a whole row in the same"


def test_read_repair_is_reported_again(pipeline: Three, three: Stack, session: Any, no_hints: None) -> None:
    """A replica logs what a read brings it under digests of its own: changes that only one node ever reports."""
    before = reports(pipeline, ROWS)
    with unheard(three, 3):
        for k in range(200, 240):
            session.execute(f"DELETE FROM {ROWS} WHERE k = {k}")
    eventually(lambda: reports(pipeline, ROWS) >= before + 80 and pipeline.is_quiet(ROWS), "two of three report")
    records = pipeline.count(ROWS, "records_total")
    pipeline.wait_confirmed(ROWS, session)  # it reads all at ALL
    eventually(lambda: reports(pipeline, ROWS) > before + 80, "what a read repairs is reported")
    pipeline.wait_confirmed(ROWS, session)
    # A change of its own may be published: the same row once more, which a sink takes as it took the first.
    assert pipeline.count(ROWS, "records_total") <= records + 40


def test_repair_is_reported_again(pipeline: Three, three: Stack, session: Any, no_hints: None) -> None:
    """With cdc_on_repair, as is the default, replicas log what a repair brings them, in other mutations."""
    pipeline.connector.stop()  # its reads would repair first
    before = reports(pipeline, ROWS)
    written_to_one_replica(three, session, 400)
    eventually(lambda: reports(pipeline, ROWS) >= before + 60, "one replica reports")
    three.nodetool("repair", "-full", "three", "rows")
    eventually(lambda: reports(pipeline, ROWS) > before + 60, "the others report what the repair brings them")
    pipeline.connector.start().ready()
    pipeline.wait_confirmed(ROWS, session)


def test_a_batch_of_a_thousand_rows_over_many_micro_batches(pipeline: Three, session: Any) -> None:
    """One mutation with one digest on three nodes; a micro-batch takes 600 events."""
    rows = "".join(f"INSERT INTO {WIDE} (p, c, v) VALUES (777, {c}, 'v{c}');" for c in range(1000))
    session.execute(f"BEGIN UNLOGGED BATCH {rows} APPLY BATCH")
    pipeline.wait_confirmed(WIDE, session)
    events = [decode(m.value()) for m in pipeline.events(WIDE)]
    counts = Counter(event.digest for event in events)
    assert [count for count in counts.values() if count >= 1000] == [3000]
    assert len({r.key["c"] for r in pipeline.records(WIDE) if r.key["p"] == 777}) == 1000


def test_workers_that_die_hand_their_partitions_to_others(pipeline: Three, session: Any) -> None:
    killed = set()
    with Workload(session, ALL_KINDS, seed=7):
        for _ in range(4):
            time.sleep(1)
            assert pipeline.connector.process is not None
            for pid in python_workers(pipeline.connector.process.pid):
                with suppress(ProcessLookupError):  # with what it was forked from
                    os.kill(pid, signal.SIGKILL)
                killed.add(pid)
    pipeline.wait_confirmed(ALL_KINDS, session)
    assert len(killed) > 2, "others took over"


def test_a_value_changed_and_restored_around_a_kill_between_flush_and_mark(
    pipeline: Three, session: Any, tmp_path: Path
) -> None:
    """v1 is published and waits; v2 is published by a worker that dies before it can say so; the row is v1 again."""
    killed = tmp_path / "killed"
    pipeline.connector.stop()
    pipeline.connector.start(HELENUS_FAILPOINT=f"connector.after-flush:3@{killed}").ready()

    def there_and_back() -> bool:
        for v in (1, 2, 1):
            for k in range(5000, 5005):
                session.execute(f"INSERT INTO {ROWS} (k, v) VALUES ({k}, {v})")
            time.sleep(0.1)
        return killed.exists()

    eventually(there_and_back, "a worker is killed")
    pipeline.wait_confirmed(ROWS, session)
