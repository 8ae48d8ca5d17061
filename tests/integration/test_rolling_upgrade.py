"""Three nodes go from 4.1 to 5.0 to 6.0, one at a time and under writes, with agents and a connector that stay."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
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


def restart(upgrade: Upgrade, node: int) -> None:
    """Restart a node as its cluster's settings are now."""
    upgrade.stack.nodetool("drain", node=node)
    upgrade.stack.stop(f"cassandra{node}")
    upgrade.stack.start(f"cassandra{node}")


def versions(upgrade: Upgrade) -> set[str]:
    """The segment versions that lie in a node's cdc_raw or are sent, as its agents named them."""
    return {
        path.name.split("-")[1]
        for folder in upgrade.stack.directory.glob("cassandra*/commitlog")
        for path in folder.glob("CommitLog-*.log")
    }


def test_three_nodes_move_under_writes(upgrade: Upgrade) -> None:
    """Nothing is lost, stale, or published twice; a node goes back before its tables are rewritten; ids change."""
    stack, session, pipeline = upgrade.stack, upgrade.session, upgrade.pipeline
    workloads = [
        (Rows if table in ("live", "merged", "written") else Workload)(session, f"up.{table}", seed, rate=8)
        for seed, table in enumerate(MODES)
    ]
    seen = set()
    with ExitStack() as writing:
        for workload in workloads:
            writing.enter_context(workload)
        for index, (version, yaml) in enumerate(STEPS):
            if index == 0:
                stack.move_to(version, {**SEGMENTS, **yaml})
                restart(upgrade, 1)
                stack.move_to(VERSIONS[0], SEGMENTS)
                restart(upgrade, 1)  # back
            stack.move_to(version, {**SEGMENTS, **yaml})
            for node in (1, 2, 3):
                restart(upgrade, node)
                seen |= versions(upgrade)
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
    for workload in workloads:
        assert workload.statements > 500, f"{workload.table}: {workload.statements}, and {workload.failed} failed"
    for table in MODES.keys() - {"written"}:
        exit_status, report, errors = verify(pipeline, f"up.{table}", "--patience", "120")
        assert exit_status == 0, f"{table}: {report}\n{errors}\n{pipeline.connector.tail()}"
    each_once(pipeline, "up.written")


def each_once(pipeline: Three, table: str) -> None:
    """Copies of a change that nodes of different versions report are one change, and one record.

    Two where a node has logged the change twice: by a hint for a write that it had taken, late.
    """
    reports: dict[Any, Counter[str | None]] = {}
    for message in pipeline.events(table):
        change = decode(message.value())
        reports.setdefault(change.digest, Counter())[change.node] += 1
    reported_by_three = sum(len(nodes) >= 3 for nodes in reports.values())
    assert reported_by_three > 0.9 * len(reports), f"{reported_by_three} of {len(reports)}"
    logged_twice = sum(max(nodes.values()) > 1 for nodes in reports.values())
    values = [record.value for record in pipeline.records(table) if record.value]
    updates = {value["after"]["n"] for value in values if value["op"] == "u"}
    deletes = {value["source"]["ts_us"] for value in values if value["op"] == "d"}
    assert len(updates) + len(deletes) == len(reports), "each change is published"
    assert len(values) <= len(reports) + logged_twice, "once"
