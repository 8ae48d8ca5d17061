"""Rows that were there before, on three nodes with RF 3: whatever dies or stands still, `verify` finds nothing."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RetryPolicy, WhiteListRoundRobinPolicy
from integration.test_snapshot import ROWS, Table, in_order, snapshots
from integration.test_three_nodes import SEED, Three, paused
from integration.test_verify import command as verify
from patience import eventually

from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(1800)]
KILLS = int(os.environ.get("HELENUS_KILLS", "10"))
KINDS = ("worker", "task", "saving", "agent", "replica", "node", "broker")


class Patient(RetryPolicy):  # type: ignore[misc] # the driver has no types
    """Three nodes on a busy machine may take longer for a write than a second, which is all they are given."""

    def on_write_timeout(self, query: Any, consistency: int, retry_num: int, **details: Any) -> tuple[int, int | None]:
        return (self.RETRY, consistency) if retry_num < 20 else (self.RETHROW, None)


@pytest.fixture(scope="module")
def session(three: Stack) -> Iterator[Any]:
    """Writes at LOCAL_QUORUM through the first node, which is never paused."""
    status = three.status()
    first = WhiteListRoundRobinPolicy(status.contact_points[:1])
    profile = ExecutionProfile(first, Patient(), consistency_level=ConsistencyLevel.LOCAL_QUORUM, request_timeout=30)
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    cluster = Cluster(status.contact_points[:1], port=status.cql_port, execution_profiles=profiles)
    yield cluster.connect()
    cluster.shutdown()


@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.long)])
def test_killed_at_random_points(kills: int, three: Stack, session: Any, tmp_path: Path) -> None:
    """Writes, deletes, TTL and an ALTER go on meanwhile."""
    chance = random.Random(SEED)
    table = Table(session, f"snapshots_three.t{kills}", "'NetworkTopologyStrategy', 'datacenter1': 3", expires=True)
    table.leave_the_log(three, nodes=(1, 2, 3))
    session.execute(f"ALTER TABLE {table.name} WITH cdc = true")
    name = table.name.replace(".", "-")
    pipeline = Three(three.status(), tmp_path)
    connector = pipeline.connect(table.name, snapshot_mode="initial", snapshot_max_rate=ROWS // (8 * kills))
    shares, share_done, amid = [], 0.0, 0

    def is_at(share: float) -> bool:
        states = snapshots(connector, name)
        shares[:] = [snapshot["done"] for snapshot in states]
        return bool(states) and (states[0]["state"] != "SCANNING" or states[0]["done"] >= share)

    try:
        for agent in pipeline.agents:
            agent.start()
        for agent in pipeline.agents:
            agent.ready()
        connector.start()
        with table.written():
            for kill in range(kills):
                share = share_done + chance.uniform(0.1, 0.9) / (kills + 1)
                eventually(lambda share=share: is_at(share), lambda: f"it goes on: {shares}\n{connector.tail()}")
                share_done, kind = shares[0], KINDS[kill % len(KINDS)] if kills >= len(KINDS) else chance.choice(KINDS)
                if snapshots(connector, name)[0]["state"] == "SCANNING":
                    amid += 1
                elif kind in ("task", "saving"):
                    kind = "worker"  # earlier kills took so long that nothing is left to scan
                if kind == "agent":
                    agent = chance.choice(pipeline.agents)
                    agent.kill()
                    agent.start()
                elif kind == "replica":
                    with paused(three, chance.choice(["cassandra2", "cassandra3"])):
                        eventually(
                            lambda share_done=share_done: is_at(share_done + 0.02),
                            lambda: f"without a replica: {shares}\n{connector.tail()}",
                        )
                elif kind in ("node", "broker"):
                    server = "kafka" if kind == "broker" else chance.choice(["cassandra2", "cassandra3"])
                    three.kill(server)
                    three.start(server)
                else:
                    connector.kill()
                    died = tmp_path / f"died-{kill}"
                    if kind == "task":
                        connector.start(HELENUS_FAILPOINT=f"snapshot.after-flush:{chance.randint(1, 3)}@{died}")
                        eventually(died.exists, lambda: f"a task died\n{connector.tail()}")
                    elif kind == "saving":
                        connector.start(HELENUS_FAILPOINT=f"snapshots.after-write:{chance.randint(1, 4)}")
                        connector.dies()
                        connector.start()
                    else:
                        connector.start()
                if kill == kills // 2:
                    session.execute(f"ALTER TABLE {table.name} ADD w int")
            assert amid > kills // 2, f"only {amid} of {kills} while it scanned: the machine is too busy"
            states = eventually(lambda: is_at(2) and snapshots(connector, name), "it is scanned")
            assert states[0]["state"] in ("PUBLISHING", "COMPLETE"), states
        eventually(
            lambda: snapshots(connector, name)[0]["state"] == "COMPLETE", lambda: f"complete\n{connector.tail()}"
        )
        for agent in pipeline.agents:
            agent.ready()
        status, out, error_output = verify(pipeline, table.name, "--json", "--patience", "120")
        report = json.loads(out)["report"]
        assert (status, report["behind"]) == (0, None), (SEED, report, error_output)
        assert report["rows"] > ROWS // 2, "two statements of six delete some, three write some again"
        in_order(pipeline, table.name)
    finally:
        pipeline.stop()
