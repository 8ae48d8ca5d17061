"""A node that is lost with its disk, and with changes that its agent had not sent and no other replica had logged."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from bench.chaos.new_node import nodes_up
from integration.pipeline import script, write_properties
from integration.test_three_nodes import Three, session, unheard  # noqa: F401
from patience import eventually

from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode
from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

ORDERS, CELLS = "lost.orders", "lost.cells"
"""Whose rows are read, and whose records are the cells of changes."""
LOST = 3
FIRST, SECOND = range(100), range(1000, 1120)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """What a repair streams is not logged."""
    yaml = {"commitlog_segment_size": "4MiB", "cdc_total_space": "512MiB", "cdc_on_repair_enabled": False}
    with Stack(tmp_path_factory.mktemp("lost"), nodes=3, brief=False, cassandra_yaml=yaml) as stack:
        yield stack


@pytest.fixture(scope="module")
def pipeline(three: Stack, session: Any, directory: Path) -> Iterator[Three]:  # noqa: F811
    pipeline = Three(three.status(), directory)
    session.execute("CREATE KEYSPACE lost WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 2}")
    for table in (ORDERS, CELLS):
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH cdc = true")
    try:
        pipeline.start_agents(f"cells.include.list={CELLS}\n")
        # Of two replicas one is lost.
        levels = {"query.consistency": "LOCAL_ONE", "snapshot.consistency": "LOCAL_ONE"}
        pipeline.connect(ORDERS, CELLS)
        for table, more in ((ORDERS, {}), (CELLS, {"resolver": "none", "output.format": "debezium"})):
            properties = {**pipeline.connector_properties(table), **levels, **more}
            write_properties(directory / f"{table}.properties", properties)
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def insert(session: Any, keys: range) -> None:  # noqa: F811
    for table in (ORDERS, CELLS):
        for k in keys:
            session.execute(f"INSERT INTO {table} (k, v) VALUES ({k}, {k})")


def published(pipeline: Three, table: str) -> set[int]:
    return {record.key["k"] for record in pipeline.records(table)}


def lost_node(pipeline: Three, table: str, node: str, *options: str) -> tuple[int, str]:
    """Run the command; returns its exit status and its output."""
    url = f"http://127.0.0.1:{pipeline.connector.port}"
    command = [script("helenus-connector"), "lost-node", table.replace(".", "-"), node, "--url", url, *options]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return completed.returncode, completed.stdout + completed.stderr


def test_what_only_the_lost_node_had_logged_is_published(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
) -> None:
    for node in (1, 2, 3):
        three.nodetool("disablehandoff", node=node)
    insert(session, FIRST)
    for table in (ORDERS, CELLS):
        eventually(lambda table=table: published(pipeline, table) == set(FIRST), f"{table} is published")
    status, message = lost_node(pipeline, ORDERS, "127.0.0.3")
    assert (status, "is not lost" in message) == (2, True), message
    pipeline.agents[LOST - 1].stop()
    with unheard(three, 2):
        insert(session, SECOND)
    three.nodetool("repair", "-full", "lost", node=LOST)  # two of its replicas have each row
    three.kill(f"cassandra{LOST}")
    shutil.rmtree(three.directory / f"cassandra{LOST}" / "data")
    lost_at = datetime.now(timezone.utc).isoformat()
    eventually(lambda: len(nodes_up(three)) == 2, "it is down")
    rows = {k for (k,) in session.execute(f"SELECT k FROM {ORDERS}")}
    assert rows == {*FIRST, *SECOND}, "the repair brought all to a node that lives"
    for table in (ORDERS, CELLS):
        eventually(lambda table=table: pipeline.is_quiet(table), f"{table} is quiet")
        assert 10 < len(rows - published(pipeline, table)) < len(SECOND), "others have sent what they logged"

    # 1. The loss is named, and reported as a gap.
    status, message = lost_node(pipeline, ORDERS, "127.0.0.3", "--until", lost_at, "--json")
    assert status == 0, message
    loss = json.loads(message)
    assert (loss["ring_known"], loss["repair"], loss["data_center"]) == (True, "verify", "datacenter1")
    assert 0.6 < loss["share"] < 0.7
    assert loss["since"] < loss["last_event"] < loss["until"]
    eventually(lambda: pipeline.count(ORDERS, "gaps_total") == 1, "the connector has read the gap")
    gaps = [change for m in pipeline.events(ORDERS) if (change := decode(m.value())).scope is Scope.GAP]
    assert {gap.node for gap in gaps} == {loss["node"]}
    assert all(gap.start and gap.end for gap in gaps)

    # 2. What is missing is published, by a comparison or by snapshots.
    status, message = lost_node(pipeline, ORDERS, loss["node"], "--until", lost_at, "--repair")
    assert status == 3, message
    eventually(lambda: published(pipeline, ORDERS) == rows, "all is published")
    status, message = lost_node(pipeline, ORDERS, loss["node"], "--until", lost_at, "--repair")
    assert (status, "topic and table are equal" in message) == (0, True), message
    status, message = lost_node(pipeline, CELLS, loss["node"], "--until", lost_at, "--repair")
    assert status == 0, message
    eventually(lambda: published(pipeline, CELLS) == rows, "all is published")

    # 3. Once it has left the ring, nobody knows its tokens.
    three.nodetool("removenode", loss["node"], node=1)
    eventually(lambda: "127.0.0.3" not in three.nodetool("status", node=1), "it is removed")

    def is_unknown() -> bool:
        status, message = lost_node(pipeline, ORDERS, loss["node"], "--dry-run", "--until", lost_at)
        assert status == 0, message
        return "all: the node has left the ring" in message

    eventually(is_unknown, "the ring is without it")
    status, message = lost_node(pipeline, ORDERS, "127.0.0.3", "--dry-run")
    assert (status, "nodetool status shows the host ids" in message) == (2, True), message
