"""Statements and REST alone say what three agents without files publish, and how, while writes go on: none is lost."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from agent.test_control_plane_live import CDC, BareAgent
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import named_tuple_factory, tuple_factory
from integration.test_statements import KEYSPACE, Told
from patience import eventually

from helenus_schemas.cql.table import read_tables
from helenus_stack.compare import Difference, differences
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

KEYS = 400
TABLES = ("told.a", "told.b", "told.c")
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"


class ToldThree(Told):
    """Three agents whose settings are in Cassandra, but for a contact point each."""

    replication = REPLICATION

    def connector_properties(self, table: str) -> dict[str, object]:
        return {**super().connector_properties(table), "snapshot.mode": "initial"}

    def runs(self, table: str, output_format: str) -> None:
        """Wait until a table's connector and its task run, with this form."""
        name = f"cdc-{table}"
        eventually(
            lambda: self.state(name) == "RUNNING RUNNING", lambda: f"{self.connectors()}\n{self.connector.tail()}"
        )
        assert self.connectors()[name]["info"]["config"].get("output.format", "avro") == output_format

    @cached_property
    def at_all(self) -> Session:
        return connect(self.status, ConsistencyLevel.ALL, tuple_factory)

    def differences(self, table: str) -> list[Difference]:
        keyspace, name = table.split(".")
        definition = read_tables(self._named, keyspace, name).popitem()[1]
        return differences(self.at_all, definition, self.records(table))

    def stop(self) -> None:
        self.at_all.cluster.shutdown()
        super().stop()


def connect(status: Status, level: int, row_factory: Any = named_tuple_factory) -> Session:
    profile = ExecutionProfile(consistency_level=level, row_factory=row_factory, request_timeout=60)
    return Cluster(
        status.contact_points,
        port=status.cql_port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        schema_metadata_enabled=False,
    ).connect()


@contextmanager
def writing(session: Any, table: str, seed: int) -> Iterator[list[str]]:
    """Have rows of a table written, changed and deleted meanwhile. Yields the statements, as they are acknowledged."""
    acknowledged: list[str] = []
    stopping, chance, failures = threading.Event(), random.Random(seed), list[Exception]()

    def write() -> None:
        while not stopping.wait(0.02):
            key, number = chance.randrange(KEYS), len(acknowledged)
            cql = chance.choice(
                [
                    f"INSERT INTO {table} (k, v, n) VALUES ({key}, 'x{number}', {number})",
                    f"UPDATE {table} SET n = {number} WHERE k = {key}",
                    f"DELETE FROM {table} WHERE k = {key}",
                ]
            )
            try:
                session.execute(cql, timeout=60)
            except Exception as error:
                failures.append(error)
                return
            acknowledged.append(cql)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield acknowledged
    finally:
        stopping.set()
        thread.join()
    assert not failures, f"{table}: {failures}"


def is_written(writers: Sequence[list[str]], more: int) -> None:
    """Wait until so many more statements are done of each table: what follows is in the middle of them."""
    wanted = [len(acknowledged) + more for acknowledged in writers]
    eventually(lambda: all(len(acknowledged) >= count for acknowledged, count in zip(writers, wanted, strict=True)))


def create_tables(session: Session, tables: Sequence[str]) -> None:
    session.execute(f"CREATE KEYSPACE told WITH replication = {REPLICATION}", timeout=60)
    for table in tables:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text, n int)", timeout=60)


def agents_without_files(told: ToldThree) -> list[BareAgent]:
    """An agent of each node, which has its configuration from Cassandra, and its state there, too."""
    agents = []
    for node in told.status.nodes:
        (told.directory / node.name).mkdir()
        stores = {"CONFIG_STORE_KEYSPACE": KEYSPACE, "CONFIG_STORE_REPLICATION": REPLICATION}
        stores |= {"STATE_STORE": "cassandra", "STATE_STORE_INTERVAL_MS": "1000"}
        agents.append(BareAgent(told.status, told.directory / node.name, node.address, **stores))
    return agents


def test_what_is_published_changes_while_writes_go_on(three: Stack, tmp_path: Path) -> None:
    told = ToldThree(three.status(), tmp_path)
    session = connect(told.status, ConsistencyLevel.QUORUM)
    create_tables(session, TABLES)
    agents = agents_without_files(told)
    first, second, third = agents
    brokers = f"kafka://{told.status.bootstrap_servers}"

    try:
        for agent in agents:
            agent.start()
        for agent in agents:  # one that ended says why: nothing else would
            eventually(lambda a=agent: a.call("GET", "/health/live")[0] == 200, lambda a=agent: a.out.read_text())
        told.follow().start()
        with (
            writing(session, TABLES[0], 1) as a,
            writing(session, TABLES[1], 2) as b,
            writing(session, TABLES[2], 3) as c,
        ):
            writers = [a, b, c]
            told.execute(
                f"CREATE DATA_SINK plain WITH '{brokers}?output.format=json'",
                f"CREATE DATA_SINK described WITH '{brokers}'",
                "CREATE DATA_SOURCE cdc ON TABLE told.a WITH plain",
                "CREATE DATA_SOURCE cdc ON TABLE told.b WITH described",
            )
            told.runs("told.a", "json")
            told.runs("told.b", "avro")
            is_written(writers, 100)
            # Another table, while one agent is away and another one loses its disk.
            second.kill()
            third.kill()
            shutil.rmtree(tmp_path / told.status.nodes[2].name / "state")
            told.execute("CREATE DATA_SOURCE cdc ON TABLE told.c WITH plain")
            is_written(writers, 100)
            third.start()
            told.runs("told.c", "json")
            # Another form, from where the connector was.
            told.execute("DROP DATA_SOURCE cdc ON TABLE told.a")
            eventually(lambda: told.state("cdc-told.a") == "None", told.connector.tail)
            told.execute("CREATE DATA_SOURCE cdc ON TABLE told.a WITH described")
            told.runs("told.a", "avro")
            is_written(writers, 100)
            second.start()
            # What all agents do changes over REST, too.
            status, services = first.call("GET", CDC)
            assert status == 200, services
            assert first.call("PUT", CDC, {**services["config"], "headers": "datastax"})[0] == 200
            is_written(writers, 100)
        # What it wrote while it had no source was not published.
        for key in range(KEYS):
            session.execute(f"INSERT INTO told.a (k, v, n) VALUES ({key}, 'last', {key})", timeout=60)
        for table in TABLES:
            eventually(lambda t=table: told.differences(t) == [], lambda t=table: str(told.differences(t)[:5]))
        assert [agent.stop() for agent in agents] == [0, 0, 0]
    finally:
        for agent in agents:
            agent.kill()
        told.stop()
        for keyspace in ("told", KEYSPACE):
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
        session.cluster.shutdown()
