"""State on three nodes with RF 3: whatever is reported late, twice, or by hints, a naive sink has the table's rows."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest, WriteFailure, WriteTimeout
from integration.test_snapshot_three_nodes import session  # noqa: F401
from integration.test_state import agrees
from integration.test_state_rows import statements_once_whole, write
from integration.test_three_nodes import Three, paused

from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(1200)]

TABLES = {"kept.keys": {"state": "keys"}, "kept.rows": {"state": "rows", "query.group": "rows"}}


@pytest.fixture(scope="module")
def pipeline(three: Stack, session: Any, directory: Path) -> Iterator[Three]:  # noqa: F811
    pipeline = Three(three.status(), directory)
    session.execute("CREATE KEYSPACE kept WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
    for table in TABLES:
        session.execute(
            f"CREATE TABLE {table} (p int, c int, d text, v text, n int, m map<text, int>,"
            " l list<int>, st int static, sm map<text, int> static, PRIMARY KEY (p, c, d))"
            " WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"
        )
    try:
        pipeline.start_agents("cells.include.list=kept.rows\n")
        pipeline.connect(*TABLES)
        for table, more in TABLES.items():
            with (pipeline.directory / f"{table}.properties").open("a") as file:
                file.writelines(f"{key}={value}\n" for key, value in more.items())
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@pytest.mark.parametrize("table", TABLES)
def test_a_naive_sink_has_the_rows(pipeline: Three, three: Stack, session: Any, table: str) -> None:  # noqa: F811
    statements = statements_once_whole(pipeline, session, table) if table == "kept.rows" else 0
    write(session, table, 100, 1)
    agrees(pipeline, session, table)
    with paused(three, "cassandra2"):  # its copies come as hints, or by read repair
        write(session, table, 60, 2)
    pipeline.agents[2].kill()
    write(session, table, 60, 3)
    pipeline.agents[2].start()
    session.execute(f"DELETE FROM {table} WHERE p = 1")
    agrees(pipeline, session, table)
    write(session, table, 60, 4)
    pipeline.connector.kill()
    write(session, table, 60, 5)
    pipeline.connector.start().ready()
    agrees(pipeline, session, table)
    if table == "kept.rows":
        # A worker that was killed counts from the beginning.
        assert pipeline.connector.total("helenus_connector_statements_total", connector="kept-rows") <= statements
    truncated_while_agents_are_away(pipeline, session, table)
    truncated_under_writes(pipeline, session, table)


def truncated_while_agents_are_away(pipeline: Three, session: Any, table: str) -> None:  # noqa: F811
    """What one node logged after its TRUNCATE outlives the later reports of others, whatever its write time."""
    for agent in pipeline.agents[1:]:
        agent.kill()
    write(session, table, 40, 6)
    session.execute(f"TRUNCATE {table}", timeout=120)
    hour_ago = time.time_ns() // 1000 - 3_600_000_000
    for c in range(30):
        session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (1, {c}, 'a', 'old') USING TIMESTAMP {hour_ago}")
        session.execute(f"UPDATE {table} SET n = {c} WHERE p = 1 AND c = {c} AND d = 'a'")
    time.sleep(5)
    for agent in pipeline.agents[1:]:
        agent.start()
    agrees(pipeline, session, table)


def truncated_under_writes(pipeline: Three, session: Any, table: str) -> None:  # noqa: F811
    stop = threading.Event()

    def keep_writing(seed: int) -> None:
        for turn in itertools.count():
            if stop.is_set():
                return
            # As a node truncates, or has: a list that is gone has no element to set.
            with contextlib.suppress(WriteTimeout, WriteFailure, InvalidRequest):
                write(session, table, 5, seed * 1_000 + turn)

    writers = [threading.Thread(target=keep_writing, args=(seed,)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(3):
            time.sleep(4)
            session.execute(f"TRUNCATE {table}", timeout=120)
    finally:
        time.sleep(4)
        stop.set()
        for writer in writers:
            writer.join()
    agrees(pipeline, session, table)
