"""Two data centres of two nodes each, on Pulsar: the one that no connector reads is killed, or has no agents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.chaos.new_node import nodes_up
from bench.connections import connected_hosts
from bench.processes import family
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy
from integration.pipeline import write_properties
from integration.test_gate_levels import outcomes, waiting
from integration.test_three_nodes import Three, session  # noqa: F401
from integration.workload import SCHEMA, Workload
from patience import eventually

from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(1200)]

DEFAULT, EACH = "apart.changed", "apart.gated"
READ = "apart.read"
"""Its rows are inserted once, at ONE: nobody reads it but the connector."""
OTHERS = "cassandra2", "cassandra4"
"""The nodes of the data centre that is not read."""


class Centers(Three):
    """Agents of four nodes, over Pulsar. The worker runs until the end: it counts every event that it has read."""

    def events(self, table: str) -> list[Any]:
        return list(self.reader.messages(f"events-{table}"))

    def is_quiet(self, table: str) -> bool:
        if self.connector.health()[0] != 200 or self.count(table, "events_read_total") < len(self.events(table)):
            return False
        return not self.count(table, "keys_unconfirmed") and not waiting(self, table)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yaml = {"commitlog_segment_size": "4MiB", "cdc_total_space": "512MiB", "hints_flush_period": "500ms"}
    folder = tmp_path_factory.mktemp("apart")
    with Stack(folder, nodes=4, data_centers=2, log="pulsar", brief=False, cassandra_yaml=yaml) as stack:
        yield stack


@pytest.fixture(scope="module")
def pipeline(three: Stack, session: Any, directory: Path) -> Iterator[Centers]:  # noqa: F811
    pipeline = Centers(three.status(), directory)
    replicas = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 2, 'datacenter2': 2}"
    session.execute(f"CREATE KEYSPACE apart WITH replication = {replicas}")
    session.execute(SCHEMA[0].format(ks="apart"))
    for table in (DEFAULT, EACH):
        session.execute(SCHEMA[1].format(ks="apart", table=table.partition(".")[2]))
    session.execute(f"CREATE TABLE {READ} (k int PRIMARY KEY, v int) WITH cdc = true")
    try:
        pipeline.start_agents()
        pipeline.connect(DEFAULT, READ, EACH)
        # The driver meets a node of the other data centre first, more often than not.
        points = ",".join(sorted(pipeline.status.contact_points, key=lambda a: a in local_addresses(pipeline)))
        for table, more in ((DEFAULT, {}), (READ, {}), (EACH, {"gate": "each_quorum", "gate.timeout.ms": 120_000})):
            own = {**pipeline.connector_properties(table), "cassandra.contact.points": points, **more}
            write_properties(directory / f"{table}.properties", own)
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@pytest.fixture
def remote_session(three: Stack) -> Iterator[Any]:
    """Writes at ONE through the nodes of the other data centre."""
    status = three.status()
    policy = DCAwareRoundRobinPolicy("datacenter2")
    profile = ExecutionProfile(policy, consistency_level=ConsistencyLevel.ONE, request_timeout=60)
    cluster = Cluster(status.contact_points, port=status.cql_port, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    yield cluster.connect()
    cluster.shutdown()


def local_addresses(pipeline: Centers) -> set[str]:
    return {node.address for node in pipeline.status.nodes if node.data_center == "datacenter1"}


def assert_reads_are_local(pipeline: Centers) -> None:
    """The worker, with all its processes, has CQL connections to nodes of one data centre alone. One that starts may
    have to another one for a moment, until the driver knows where its first contact point is.
    """
    assert pipeline.connector.process is not None
    pid, port, local = pipeline.connector.process.pid, pipeline.status.cql_port, local_addresses(pipeline)
    eventually(lambda: set() < connected_hosts(family(pid), port) <= local, "all connections are local")


def records_total(pipeline: Centers, table: str) -> float:
    return pipeline.count(table, "records_total")


def local_reads(stack: Stack, node: int, table: str) -> int:
    """How many partitions of a table a node has read, for itself or for others."""
    match = re.search(r"Local read count: (\d+)", stack.nodetool("tablestats", table, node=node))
    assert match
    return int(match[1])


def test_rows_are_read_in_one_data_centre(pipeline: Centers, three: Stack, session: Any) -> None:  # noqa: F811
    """Its agents report each row before it is read again, so that no read has to ask all replicas."""
    for k in range(300):
        session.execute(f"INSERT INTO {READ} (k, v) VALUES ({k}, {k})")
    eventually(lambda: records_total(pipeline, READ) == 300 and pipeline.is_quiet(READ), "all are published")
    reads = {node.name: local_reads(three, number, READ) for number, node in enumerate(pipeline.status.nodes, 1)}
    remote = sum(reads.pop(name) for name in OTHERS)
    assert sum(reads.values()) >= 300
    assert remote == 0
    assert_reads_are_local(pipeline)


def test_a_data_centre_is_killed(pipeline: Centers, three: Stack, session: Any) -> None:  # noqa: F811
    """The default connector goes on; with a quorum of each, changes wait until hints have come."""
    Workload(session, EACH, seed=1).run(50)
    pipeline.wait_confirmed(EACH, session)
    assert_reads_are_local(pipeline)
    with Workload(session, DEFAULT, seed=2, rate=30) as of_default, Workload(session, EACH, seed=3, rate=30):
        for name in OTHERS:
            three.kill(name)
        eventually(lambda: len(nodes_up(three)) == 2, "they are down")
        eventually(lambda: waiting(pipeline, EACH) > 30, "changes wait")
        before = records_total(pipeline, DEFAULT)
        eventually(lambda: records_total(pipeline, DEFAULT) > before + 30, "records come without it")
        gated = records_total(pipeline, EACH)
        before = waiting(pipeline, EACH)
        eventually(lambda: waiting(pipeline, EACH) > before + 30, "more wait")
        assert records_total(pipeline, EACH) == gated, "none is published"
        assert_reads_are_local(pipeline)
        three.up(*OTHERS)
        eventually(lambda: len(nodes_up(three)) == 4, "they are up")
    assert of_default.statements > 100
    for table in (DEFAULT, EACH):
        pipeline.wait_confirmed(table, session)
    assert outcomes(pipeline, EACH)["completed"] > 60
    assert outcomes(pipeline, EACH)["dropped"] == 0
    assert_reads_are_local(pipeline)


def test_agents_of_the_data_centre_that_is_read_alone(
    pipeline: Centers,
    session: Any,  # noqa: F811
    remote_session: Any,
) -> None:
    """What is written through the other one comes to replicas here, and their agents report it."""
    for node, agent in zip(pipeline.status.nodes, pipeline.agents, strict=True):
        if node.name in OTHERS:
            assert agent.stop() == 0
    before = records_total(pipeline, DEFAULT)
    Workload(remote_session, DEFAULT, seed=4).run(300)
    eventually(lambda: records_total(pipeline, DEFAULT) > before + 50, "records come")
    pipeline.wait_confirmed(DEFAULT, session)
    assert_reads_are_local(pipeline)
