"""Statements and REST alone say what three agents without files publish, and how, while writes go on: none is lost."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agent.test_control_plane_live import CDC, BareAgent
from bench.chaos.new_node import host_id, nodes_up, start_new_node
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import named_tuple_factory, tuple_factory
from integration.pipeline import script
from integration.test_statements import KEYSPACE, Told
from patience import eventually

from helenus_agent.positions import Positions
from helenus_agent.state_store._snapshot import inflate
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event.change import Change
from helenus_schemas.event.wire import decode
from helenus_stack.compare import Difference, differences
from helenus_stack.records import messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

KEYS = 400
TABLES = ("told.a", "told.b", "told.c")
LOST = "127.0.0.3"
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"


class ToldThree(Told):
    """Three agents whose settings are in Cassandra, but for a contact point each."""

    replication = REPLICATION

    def connector_properties(self, table: str) -> dict[str, object]:
        return {**super().connector_properties(table), "snapshot.mode": "initial", "headers": "digest"}

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
    """Connect by the first two nodes, which are never killed."""
    policy = WhiteListRoundRobinPolicy(status.contact_points[:2])
    profile = ExecutionProfile(policy, consistency_level=level, row_factory=row_factory, request_timeout=60)
    return Cluster(
        status.contact_points[:2],
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


class Bare(NamedTuple):
    """Three nodes with an agent each that has no file. `session` writes at QUORUM by the first two nodes."""

    told: ToldThree
    agents: list[BareAgent]
    session: Session

    def directory(self, node: int) -> Path:
        """What the agent of a node, by its index, has."""
        return self.told.directory / self.told.status.nodes[node].name

    def start(self) -> None:
        for agent in self.agents:
            agent.start()
        for agent in self.agents:  # one that ended says why: nothing else would
            eventually(lambda a=agent: a.call("GET", "/health/live")[0] == 200, lambda a=agent: a.out.read_text())
        self.told.follow().start()

    def runs(self, table: str, output_format: str) -> None:
        name, told = f"cdc-{table}", self.told
        eventually(
            lambda: told.state(name) == "RUNNING RUNNING", lambda: f"{told.connectors()}\n{told.connector.tail()}"
        )
        assert told.connectors()[name]["info"]["config"].get("output.format", "avro") == output_format

    def converge(self, tables: Sequence[str]) -> None:
        for table in tables:
            eventually(
                lambda t=table: self.told.differences(t) == [], lambda t=table: str(self.told.differences(t)[:5])
            )


@pytest.fixture
def bare(three: Stack, tmp_path: Path) -> Iterator[Bare]:
    told = ToldThree(three.status(), tmp_path)
    session = connect(told.status, ConsistencyLevel.QUORUM)
    session.execute(f"CREATE KEYSPACE told WITH replication = {REPLICATION}", timeout=60)
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text, n int)", timeout=60)
    agents = []
    for node in told.status.nodes:
        (tmp_path / node.name).mkdir()
        stores = {"CONFIG_STORE_KEYSPACE": KEYSPACE, "CONFIG_STORE_REPLICATION": REPLICATION}
        stores |= {"STATE_STORE": "cassandra", "STATE_STORE_INTERVAL_MS": "1000"}
        agents.append(BareAgent(told.status, tmp_path / node.name, node.address, **stores))
    try:
        yield Bare(told, agents, session)
    finally:
        for agent in agents:
            agent.kill()
        told.stop()
        for keyspace in ("told", KEYSPACE):
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
        session.cluster.shutdown()


def is_written(writers: Sequence[list[str]], more: int) -> None:
    """Wait until so many more statements are done of each table: what follows is in the middle of them."""
    wanted = [len(acknowledged) + more for acknowledged in writers]
    eventually(lambda: all(len(acknowledged) >= count for acknowledged, count in zip(writers, wanted, strict=True)))


LogPosition = tuple[str | None, int, int]
"""Of a change: the node that logged it, the segment, and the position in it."""


def saved_in_file(directory: Path) -> Positions:
    """What an agent had saved beside it."""
    return Positions.from_json(json.loads((directory / "state" / "positions.json").read_text()))


def saved_in_cassandra(session: Session, host_id: str) -> Positions:
    """What it had saved in Cassandra."""
    query = f"SELECT positions FROM {KEYSPACE}.agent_states WHERE host_id = {host_id}"
    return Positions.from_json(json.loads(inflate(session.execute(query).one().positions))["positions"])


def changes_sent(told: ToldThree, table: str) -> list[Change]:
    """The changes of a table that agents have sent, as often as they have."""
    changes = (decode(message.value()) for message in messages(told.status.bootstrap_servers, f"events-{table}"))
    return [change for change in changes if change.digest is not None]


def sent_again(changes: Iterable[Change]) -> list[LogPosition]:
    """Those of them that were sent more than once."""
    counts = Counter((c.node, c.segment, c.position, c.part) for c in changes)
    return [position[:3] for position, count in counts.items() if count > 1]


def is_saved(position: LogPosition, saved: Positions) -> bool:
    """Return whether what was saved has this change as one that was sent."""
    _, segment, offset = position
    mark = saved.segments.get(segment)
    return segment in saved.done or (mark is not None and offset <= mark.offset)


def logged_again(changes: Iterable[Change]) -> set[str]:
    """The digests of changes that a node has in two places of its log, as of a hint that came once more."""
    positions = {(c.digest, c.node, c.segment, c.position) for c in changes if c.digest is not None}
    counts = Counter((digest, node) for digest, node, *_ in positions)
    return {digest for (digest, _), count in counts.items() if count > 1}


def records_of_changes(told: ToldThree, table: str) -> Counter[str]:
    """How many records each change has, by its digest."""
    return Counter(record.headers["digest"].decode() for record in told.records(table) if "digest" in record.headers)


def lost_node(told: ToldThree, table: str, *options: str) -> str:
    """Have the worker say what the third node may not have sent."""
    url = f"http://127.0.0.1:{told.connector.port}"
    command = [script("helenus-connector"), "lost-node", f"cdc-{table}", LOST, "--url", url, *options]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_what_is_published_changes_while_writes_go_on(bare: Bare, three: Stack) -> None:
    told, session = bare.told, bare.session
    first, second, third = bare.agents
    brokers = f"kafka://{told.status.bootstrap_servers}"
    hosts = [host_id(three, node.address) for node in told.status.nodes]
    bare.start()
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
        bare.runs("told.a", "json")
        bare.runs("told.b", "avro")
        is_written(writers, 100)
        # Another table, while one agent is away and another one loses its disk.
        second.kill()
        third.kill()
        saved = {
            hosts[1]: saved_in_file(bare.directory(1)),
            hosts[2]: saved_in_cassandra(session, hosts[2]),
        }
        shutil.rmtree(bare.directory(2) / "state")
        told.execute("CREATE DATA_SOURCE cdc ON TABLE told.c WITH plain")
        is_written(writers, 100)
        third.start()
        bare.runs("told.c", "json")
        # Another form, from where the connector was.
        told.execute("DROP DATA_SOURCE cdc ON TABLE told.a")
        eventually(lambda: told.state("cdc-told.a") == "None", told.connector.tail)
        told.execute("CREATE DATA_SOURCE cdc ON TABLE told.a WITH described")
        bare.runs("told.a", "avro")
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
    bare.converge(TABLES)
    assert [agent.stop() for agent in bare.agents] == [0, 0, 0]
    for table in TABLES:
        check_repetitions(told, table, saved)


def check_repetitions(told: ToldThree, table: str, saved: Mapping[str, Positions]) -> None:
    """What was sent twice is what a killed agent had not `saved`, by host id; what was published twice is what a node
    logged twice. Noted is also what one node alone has reported: rows that it got by streaming are changes, too.
    """
    changes = changes_sent(told, table)
    positions, logged, counts = sent_again(changes), logged_again(changes), records_of_changes(told, table)
    published = {digest for digest, count in counts.items() if count > 1}
    reporters: dict[str | None, set[str | None]] = {}
    for change in changes:
        reporters.setdefault(change.digest, set()).add(change.node)
    of_one_node = sum(count for digest, count in counts.items() if len(reporters.get(digest, ())) == 1)
    counted = (
        f"{table}: of {len(changes)} changes sent {len(positions)} twice; of {counts.total()} records {len(published)} "
        f"are second ones of a change, {of_one_node} of a change of one node; {len(logged)} changes logged twice"
    )
    (told.directory / f"{table}.counts").write_text(counted)
    assert not [p for p in positions if str(p[0]) not in saved or is_saved(p, saved[str(p[0])])], counted
    assert published <= logged, counted


def test_a_disk_is_lost_while_others_have_not_sent(bare: Bare, three: Stack) -> None:
    """A node with all its directories, its agent's too, while the agents of the other replicas are away."""
    told, session, tables = bare.told, bare.session, TABLES[:2]
    hosts = [host_id(three, node.address) for node in told.status.nodes]
    bare.start()
    with writing(session, tables[0], 1) as a, writing(session, tables[1], 2) as b:
        told.execute(
            f"CREATE DATA_SINK plain WITH 'kafka://{told.status.bootstrap_servers}?output.format=json'",
            *(f"CREATE DATA_SOURCE cdc ON TABLE {table} WITH plain" for table in tables),
        )
        for table in tables:
            bare.runs(table, "json")
        is_written([a, b], 100)
        for agent in bare.agents[:2]:
            agent.kill()
        saved = {hosts[node]: saved_in_file(bare.directory(node)) for node in (0, 1)}
        is_written([a, b], 100)
        bare.agents[2].kill()
        is_written([a, b], 100)
        (server,) = three.select(["cassandra3"])
        three.kill("cassandra3")
        for directory in ("data", "commitlog", "cdc_raw"):
            shutil.rmtree(server.folder / directory)
        shutil.rmtree(bare.directory(2) / "state")
        lost_at = datetime.now(timezone.utc).isoformat()
        eventually(lambda: len(nodes_up(three)) == 2, "it is down")
        is_written([a, b], 100)
        # As docs/clusters.md has it: the loss is named, the node is replaced, at its address, and repaired.
        for table in tables:
            assert "tokens   " in lost_node(told, table, "--until", lost_at)
        start_new_node(three, server, {}, f"-Dcassandra.replace_address_first_boot={LOST}")
        eventually(lambda: len(nodes_up(three)) == 3, lambda: f"it is there again\n{server.log.read_text()[-3000:]}")
        for agent in bare.agents:
            agent.start()
        is_written([a, b], 100)
    three.nodetool("repair", "-full", "told")
    bare.converge(tables)
    for table in tables:
        assert "topic and table are equal" in lost_node(told, table, "--until", lost_at, "--repair")
    assert "node.disk_lost" in bare.agents[2].out.read_text()
    assert [agent.stop() for agent in bare.agents] == [0, 0, 0]
    for table in tables:
        check_repetitions(told, table, saved)
