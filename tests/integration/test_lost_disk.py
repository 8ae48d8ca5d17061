"""A node is lost with all its directories while the agents of the other replicas have not sent.

Nothing is lost, and what comes twice is counted.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pytest
from agent.test_control_plane_live import BareAgent
from bench.chaos.new_node import host_id, nodes_up, start_new_node
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import named_tuple_factory
from integration.pipeline import script
from integration.test_statements import KEYSPACE
from integration.test_statements_three_nodes import (
    ToldThree,
    agents_without_files,
    create_tables,
    is_written,
    writing,
)
from patience import eventually

from helenus_agent.positions import Positions
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import decode
from helenus_stack.records import messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

TABLES = ("told.a", "told.b")
LOST = "127.0.0.3"


class ToldDigests(ToldThree):
    """Records say of which change they are."""

    def connector_properties(self, table: str) -> dict[str, object]:
        return {**super().connector_properties(table), "headers": "digest"}


def connect(status: Status) -> Session:
    """Connect at QUORUM by the first two nodes, which are not killed."""
    policy = WhiteListRoundRobinPolicy(status.contact_points[:2])
    profile = ExecutionProfile(
        policy, consistency_level=ConsistencyLevel.QUORUM, row_factory=named_tuple_factory, request_timeout=60
    )
    return Cluster(
        status.contact_points[:2],
        port=status.cql_port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        schema_metadata_enabled=False,
    ).connect()


class Bare(NamedTuple):
    """Three nodes with an agent each that has no file. `session` writes at QUORUM by the first two nodes."""

    told: ToldDigests
    agents: list[BareAgent]
    session: Session

    def directory(self, node: int) -> Path:
        """What the agent of a node, by its index, has."""
        return self.told.directory / self.told.status.nodes[node].name

    def start(self) -> None:
        """Start all, and make the sink: the first statement makes tables, for which three nodes have to agree."""
        brokers = f"kafka://{self.told.status.bootstrap_servers}"
        for agent in self.agents:
            agent.start()
        for agent in self.agents:  # one that ended says why: nothing else would
            eventually(lambda a=agent: a.call("GET", "/health/live")[0] == 200, lambda a=agent: a.out.read_text())
        self.told.execute(f"CREATE DATA_SINK plain WITH '{brokers}?output.format=json'")
        self.told.follow().start()

    def create_sources(self, tables: Sequence[str]) -> None:
        """Have tables published. Nodes that are busy may not agree in time: then once more, as the error advises."""

        def are_created() -> bool:
            try:
                self.told.execute(*(f"CREATE DATA_SOURCE IF NOT EXISTS cdc ON TABLE {t} WITH plain" for t in tables))
            except AssertionError as error:
                if "[cassandra-unreachable]" in str(error):
                    return False
                raise
            return True

        eventually(are_created, "they are created")

    def converge(self, tables: Sequence[str]) -> None:
        for table in tables:
            eventually(
                lambda t=table: self.told.differences(t) == [], lambda t=table: str(self.told.differences(t)[:5])
            )


@pytest.fixture
def bare(three: Stack, tmp_path: Path) -> Iterator[Bare]:
    told = ToldDigests(three.status(), tmp_path)
    session = connect(told.status)
    create_tables(session, TABLES)
    agents = agents_without_files(told)
    try:
        yield Bare(told, agents, session)
    finally:
        for agent in agents:
            agent.kill()
        told.stop()
        for keyspace in ("told", KEYSPACE):
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
        session.cluster.shutdown()


LogPosition = tuple[str | None, int, int]
"""Of a change: the node that logged it, the segment, and the position in it."""


def saved_in_file(directory: Path) -> Positions:
    """What an agent had saved beside it."""
    return Positions.from_json(json.loads((directory / "state" / "positions.json").read_text()))


def changes_sent(told: ToldDigests, table: str) -> list[Change]:
    """The changes of a table that agents have sent, as often as they have."""
    changes = (decode(message.value()) for message in messages(told.status.bootstrap_servers, f"events-{table}"))
    return [change for change in changes if change.digest is not None]


def sent_again(changes: Iterable[Change]) -> list[LogPosition]:
    """Those of them that were sent more than once. A gap may have no position: nothing was read before it."""
    counts = Counter((c.node, c.segment, c.position, c.part) for c in changes if c.scope is not Scope.GAP)
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


def records_of_changes(told: ToldDigests, table: str) -> Counter[str]:
    """How many records each change has, by its digest."""
    return Counter(record.headers["digest"].decode() for record in told.records(table) if "digest" in record.headers)


def lost_node(told: ToldDigests, table: str, *options: str) -> str:
    """Have the worker say what the third node may not have sent."""
    url = f"http://127.0.0.1:{told.connector.port}"
    command = [script("helenus-connector"), "lost-node", f"cdc-{table}", LOST, "--url", url, *options]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def check_repetitions(told: ToldDigests, table: str, saved: Mapping[str, Positions]) -> None:
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
    told, session, tables = bare.told, bare.session, TABLES
    hosts = [host_id(three, node.address) for node in told.status.nodes]
    bare.start()
    with writing(session, tables[0], 1) as a, writing(session, tables[1], 2) as b:
        bare.create_sources(tables)
        for table in tables:
            told.runs(table, "json")
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
        start_new_node(three, server, {}, {}, f"-Dcassandra.replace_address_first_boot={LOST}")
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
