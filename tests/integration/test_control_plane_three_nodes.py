"""Three agents without files, on three nodes: one configuration for all of them, and one overview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.test_control_plane_live import CDC, KAFKA, BareAgent
from agent.test_live import Live
from patience import eventually

from helenus_schemas.event.wire import decode
from helenus_stack.records import messages
from helenus_stack.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 500


@pytest.fixture
def live(three: Stack, tmp_path: Path) -> Iterator[Live]:
    live = Live(three, tmp_path)
    live.session.execute(
        "CREATE KEYSPACE control WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}", timeout=60
    )
    live.session.execute("CREATE TABLE control.a (k int PRIMARY KEY, v text) WITH cdc = true", timeout=60)
    yield live
    for keyspace in ("control", "helenus_live"):
        live.session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
    live.cluster.shutdown()


def test_three_agents_without_files(live: Live, tmp_path: Path) -> None:
    agents = []
    for node in live.status.nodes:
        (tmp_path / node.name).mkdir()
        agents.append(BareAgent(live.status, tmp_path / node.name, node.address))
    first, second, third = agents

    def healths() -> list[str]:
        return [agent.health() for agent in agents]

    def overview() -> dict[str, dict[str, Any]]:
        status, answer = first.call("GET", "/api/v1/cdc/agents")
        return {agent["address"]: agent for agent in answer["agents"]} if status == 200 else {}

    def insert(begin: int) -> None:
        for k in range(begin, begin + ROWS):
            live.session.execute(f"INSERT INTO control.a (k, v) VALUES ({k}, 'x')")

    def changes() -> list[Any]:
        events = messages(live.status.bootstrap_servers, "events-control.a")
        return [(event.key(), decode(event.value())) for event in events]

    def count_copies() -> int:
        """Keys that each node has sent. One that was slow may have logged a key twice: by a hint, too."""
        return len({(change.node, key) for key, change in changes()})

    try:
        # They make the keyspace and its tables at the same time.
        for agent in agents:
            agent.start()
        eventually(
            lambda: (
                all("service cdc is not configured" in agent["trouble"] for agent in overview().values())
                and len(overview()) == 3
            ),
            lambda: str(healths()),
        )
        tables = list(live.session.execute("SELECT id FROM system_schema.tables WHERE keyspace_name = 'helenus_live'"))
        assert len(tables) == 2
        versions = live.session.execute("SELECT schema_version FROM system.peers")
        local = live.session.execute("SELECT schema_version FROM system.local").one()
        assert {row.schema_version for row in versions} == {local.schema_version}
        # One is configured, all follow.
        insert(0)
        kafka = {"bootstrap.servers": live.status.bootstrap_servers, "topic.partitions": "2"}
        assert second.call("PUT", KAFKA, kafka)[0] == 200
        assert second.call("PUT", CDC, {"table.include.list": r"control\.a"})[0] == 200
        eventually(lambda: count_copies() == 3 * ROWS)
        eventually(lambda: all(agent["status"] == "publishing" for agent in overview().values()))
        # A dead agent shows as dead, and the others go on.
        third.kill()
        address = live.status.nodes[2].address
        eventually(lambda: not overview()[address]["alive"])
        assert [agent["alive"] for agent in overview().values()].count(True) == 2
        # A change is taken by those that run, and by the dead one when it is there again.
        assert first.call("PUT", CDC, {"table.include.list": r"control\.a", "headers": "datastax"})[0] == 200
        insert(ROWS)
        third.start()
        eventually(lambda: healths() == ["ready"] * 3, lambda: str(healths()))
        eventually(lambda: overview()[address]["alive"])
        eventually(lambda: count_copies() == 6 * ROWS)
        places = Counter((change.node, change.segment, change.position, change.part) for _, change in changes())
        assert set(places.values()) == {1}, "each agent has sent each change once"
        assert [agent.stop() for agent in agents] == [0, 0, 0]
    finally:
        for agent in agents:
            agent.kill()
