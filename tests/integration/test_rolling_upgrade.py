"""Three nodes go from 4.1 to 5.0 to 6.0, one at a time and under writes. Meanwhile nodes, agents, the worker and the
broker are killed, at restarts that chance chooses: run again with HELENUS_SEED as a failure shows it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, RetryPolicy
from integration.test_three_nodes import Three
from integration.test_verify import command as verify
from integration.workload import SCHEMA, Workload

from helenus_schemas.event.wire import decode
from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(3000)]

VERSIONS = ("4.1", "5.0", "6.0")
SEGMENTS = {"commitlog_segment_size": "4MiB", "cdc_total_space": "512MiB"}
STATE_TABLE = (
    "CREATE TABLE {} (p int, q text, c int, d timeuuid, v text, n int, st int static,"
    " PRIMARY KEY ((p, q), c, d)) WITH cdc = true"
)
MODES: dict[str, dict[str, object]] = {
    "kinds": {},
    "gated": {"gate": "local_quorum"},
    "written": {"resolver": "none", "output.format": "debezium", "query.group": "written"},
    "live": {"state": "keys", "markers": "false", "query.group": "live"},
    "merged": {"state": "rows", "query.group": "merged"},
}
"""What the connector of each table is set to."""
COMPATIBILITY = "storage_compatibility_mode"
STEPS: list[tuple[str, dict[str, str]]] = [
    (VERSIONS[1], {COMPATIBILITY: "CASSANDRA_4"}),  # segments of version 7, as 4.1 writes them
    (VERSIONS[1], {COMPATIBILITY: "UPGRADING"}),
    (VERSIONS[1], {COMPATIBILITY: "NONE"}),  # version 8
    (VERSIONS[2], {}),  # version 9
]


SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
PAUSE_S = 30.0


class Again(RetryPolicy):  # type: ignore[misc] # the driver has no types
    """A coordinator that is about to stop refuses what another one takes."""

    def on_request_error(self, query: Any, consistency: int, error: Any, retry_num: int) -> tuple[int, int | None]:
        return (self.RETRY_NEXT_HOST, consistency) if retry_num < 5 else (self.RETHROW, None)


@dataclass
class Upgrade:
    """A cluster of 4.1 with an agent on each node, and a worker."""

    stack: Stack
    session: Any
    pipeline: Three
    stages: list[tuple[float, str]] = field(default_factory=list)
    """When each began, and its name."""
    takeovers: list[float] = field(default_factory=list)
    """When a worker or a broker was started after one was killed: what was under way then may be published again."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.stages.append((time.time(), name))
        try:
            yield
        except Exception as error:
            raise AssertionError(f"{name}, HELENUS_SEED={SEED}: {error}") from error

    def stage_at(self, second: float) -> str:
        return self.stages[max(0, bisect(self.stages, (second,)) - 1)][1]


@pytest.fixture(scope="module")
def upgrade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    directory = tmp_path_factory.mktemp("upgrade")
    with Stack(directory / "stack", nodes=3, cassandra=VERSIONS[0], cassandra_yaml=SEGMENTS) as stack:
        status = stack.status()
        profile = ExecutionProfile(
            DCAwareRoundRobinPolicy(status.local_dc),
            Again(),
            consistency_level=ConsistencyLevel.LOCAL_QUORUM,
            request_timeout=30,
        )
        session = Cluster(
            status.contact_points,
            port=status.cql_port,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(1.0, max_attempts=None),
            protocol_version=5,
        ).connect()
        pipeline = Three(status, directory / "pipeline")
        try:
            make_tables(session)
            pipeline.start_agents("cells.include.list=up\\.(written|merged)\n")
            pipeline.connect().start().ready()
            with pipeline.connected({f"up.{table}": more for table, more in MODES.items()}):
                yield Upgrade(stack, session, pipeline)
        finally:
            pipeline.stop()
            session.cluster.shutdown()


def make_tables(session: Any) -> None:
    session.execute("CREATE KEYSPACE up WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
    session.execute(SCHEMA[0].format(ks="up"))
    for table in MODES:
        session.execute(
            STATE_TABLE.format(f"up.{table}")
            if table in ("live", "merged", "written")
            else SCHEMA[1].format(ks="up", table=table)
        )


class Rows(Workload):
    """Random statements on scalars, each with a value of its own, so that each is a change of its own."""

    def __init__(self, session: Any, table: str, seed: int, rate: float = 100) -> None:
        super().__init__(session, table, seed, rate)
        self.acknowledged: dict[int, float] = {}
        """When Cassandra had taken the UPDATE to this value."""

    def write_statement(self) -> None:
        r, n = self.random, self.statements + self.failed
        p, c = r.randrange(4), r.randrange(5)
        partition = f"p = {p} AND q = 'a'"
        where = f"{partition} AND c = {c} AND d = 50554d6e-29bb-11e5-b345-feff819cdc9f"
        written = f"SET v = 'v{n}', n = {n} WHERE {where}"
        statement = r.choices(
            [
                f"UPDATE {self.table} {written}",
                f"UPDATE {self.table} USING TTL {r.randint(1, 5)} {written}",
                f"DELETE FROM {self.table} WHERE {where}",
                f"UPDATE {self.table} SET st = {n} WHERE {partition}",
                f"DELETE FROM {self.table} WHERE {partition}",
                f"DELETE v FROM {self.table} WHERE {where}",
            ],
            [60, 10, 10, 10, 3, 7] if not self.table.endswith("written") else [80, 0, 20, 0, 0, 0],
        )[0]
        self.session.execute(statement)
        self.statements += 1
        if f" n = {n} " in statement:
            self.acknowledged[n] = time.time()


@contextmanager
def node_killed(upgrade: Upgrade, node: int) -> Iterator[None]:
    """kill -9 of the node, where it is drained and stopped else."""
    upgrade.stack.kill(f"cassandra{node}")
    yield


@contextmanager
def agent_killed(upgrade: Upgrade, node: int) -> Iterator[None]:
    """kill -9 of the node's agent, which is started when the node is up again."""
    agent = upgrade.pipeline.agents[node - 1]
    agent.kill()
    yield
    agent.start()


@contextmanager
def agent_paused(upgrade: Upgrade, node: int) -> Iterator[None]:
    """SIGSTOP of another node's agent, for half a minute at least."""
    process = upgrade.pipeline.agents[node % 3].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + PAUSE_S
    try:
        yield
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        process.send_signal(signal.SIGCONT)


@contextmanager
def worker_killed(upgrade: Upgrade, node: int) -> Iterator[None]:
    """kill -9 of the worker, which is started when the node is up again."""
    upgrade.pipeline.connector.kill()
    yield
    upgrade.takeovers.append(time.time())
    upgrade.pipeline.connector.start()


@contextmanager
def broker_killed(upgrade: Upgrade, node: int) -> Iterator[None]:
    """kill -9 of the broker, which is started when the node is up again."""
    upgrade.stack.kill("kafka")
    yield
    upgrade.takeovers.append(time.time())
    upgrade.stack.start("kafka")


Fault = Callable[[Upgrade, int], AbstractContextManager[None]]
FAULTS: Sequence[Fault] = (
    [node_killed] * 2 + [agent_killed] * 2 + [agent_paused, worker_killed, worker_killed, broker_killed]
)


def choose_faults() -> Mapping[tuple[int, int], Fault]:
    """Each at another restart, by step and node."""
    restarts = [(step, node) for step in range(len(STEPS)) for node in (1, 2, 3)]
    return dict(zip(random.Random(SEED).sample(restarts, len(FAULTS)), FAULTS, strict=True))


def restart(upgrade: Upgrade, node: int, fault: Fault | None = None) -> None:
    """Restart a node as its cluster's settings are now, with a fault meanwhile, and wait until all work again."""
    with fault(upgrade, node) if fault else nullcontext():
        if fault is not node_killed:
            upgrade.stack.nodetool("drain", node=node)
            upgrade.stack.stop(f"cassandra{node}")
        upgrade.stack.start(f"cassandra{node}")
    for command in (*upgrade.pipeline.agents, upgrade.pipeline.connector):
        command.ready()


def versions(upgrade: Upgrade) -> set[str]:
    """The segment versions that lie in a node's cdc_raw or are sent, as its agents named them."""
    return {
        path.name.split("-")[1]
        for folder in upgrade.stack.directory.glob("cassandra*/commitlog")
        for path in folder.glob("CommitLog-*.log")
    }


def test_three_nodes_move_under_writes(upgrade: Upgrade) -> None:
    """Nothing is lost or stale, and nothing is published twice but what was under way when something was killed; a node
    goes back before its tables are rewritten; ids change.
    """
    stack, session, pipeline = upgrade.stack, upgrade.session, upgrade.pipeline
    workloads = {
        table: (Rows if table in ("live", "merged", "written") else Workload)(session, f"up.{table}", seed, rate=8)
        for seed, table in enumerate(MODES)
    }
    seen = set()
    faults = choose_faults()
    with ExitStack() as writing:
        for workload in workloads.values():
            writing.enter_context(workload)
        for step, (version, yaml) in enumerate(STEPS):
            mode = yaml.get(COMPATIBILITY, "")
            if step == 0:
                with upgrade.stage(f"node 1 to {version} and back"):
                    stack.move_to(version, {**SEGMENTS, **yaml})
                    restart(upgrade, 1)
                    stack.move_to(VERSIONS[0], SEGMENTS)
                    restart(upgrade, 1)
            stack.move_to(version, {**SEGMENTS, **yaml})
            for node in (1, 2, 3):
                fault = faults.get((step, node))
                name = " ".join(filter(None, (f"node {node} to {version}", mode, fault and fault.__name__)))
                with upgrade.stage(name):
                    restart(upgrade, node, fault)
                seen |= versions(upgrade)
        with upgrade.stage("nodes get new ids"):
            stack.nodetool("cms", "initialize")
            time.sleep(5)
            for agent in pipeline.agents:
                assert agent.stop() == 0
                agent.start().ready()
            session.execute("ALTER TABLE up.kinds ADD later text")
            session.execute("UPDATE up.kinds SET later = 'x' WHERE p = 1 AND q = 'a' AND c = 1 AND d = now()")
            time.sleep(5)
    releases = session.execute("SELECT release_version FROM system.peers_v2")
    assert {row.release_version[:3] for row in releases} == {VERSIONS[2]}
    assert seen == {"7", "8", "9"}
    with upgrade.stage("comparison"):
        for workload in workloads.values():
            assert workload.statements > 500, f"{workload.table}: {workload.statements}, {workload.failed} failed"
        for table in MODES.keys() - {"written"}:
            exit_status, report, errors = verify(pipeline, f"up.{table}", "--patience", "120")
            differing = f"{table}: {report}\n{errors}\n{pipeline.connector.tail()}\n{upgrade.stages}"
            assert exit_status == 0, differing
        each_once(upgrade, workloads["written"])


def each_once(upgrade: Upgrade, written: Workload) -> None:
    """Copies of a change that nodes of different versions report are one change, and one record.

    Two where a node has logged the change twice: by a hint for a write that it had taken, late. And one more for each
    time that a worker or broker took over from one that was killed.
    """
    assert isinstance(written, Rows)
    reports: dict[Any, dict[str | None, set[tuple[int | None, int | None]]]] = {}
    for message in upgrade.pipeline.events(written.table):
        change = decode(message.value())
        places = reports.setdefault(change.digest, {}).setdefault(change.node, set())
        places.add((change.segment, change.position))  # an agent that was killed reports some again
    reported_by_three = sum(len(nodes) >= 3 for nodes in reports.values())
    assert reported_by_three > 0.9 * len(reports), f"{reported_by_three} of {len(reports)}"
    records = [record for record in upgrade.pipeline.records(written.table) if record.value]
    published: Counter[tuple[object, int]] = Counter()
    for record in records:
        value = record.value or {}
        change = value["after"]["n"] if value["op"] == "u" else -value["source"]["ts_us"]
        published[change, bisect(upgrade.takeovers, record.timestamp / 1000)] += 1
    changes = {change for change, _ in published}
    lost = {n: upgrade.stage_at(second) for n, second in written.acknowledged.items() if n not in changes}
    assert not lost, f"UPDATEs that Cassandra took, and the stages: {lost}"
    assert len(changes) == len(reports), "each change is published"
    logged_twice = sum(max(map(len, nodes.values())) > 1 for nodes in reports.values())
    repeats = sum(published.values()) - len(published)
    assert repeats <= logged_twice, f"{repeats} again without a kill, {logged_twice} logged twice"
