"""State on three nodes with RF 3: whatever is reported late, twice, or by hints, a naive sink has the table's rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.test_snapshot_three_nodes import session  # noqa: F401
from integration.test_state import agrees
from integration.test_state_rows import write
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
        for agent in pipeline.agents:
            with Path(agent.arguments[1]).open("a") as file:
                file.write("cells.include.list=kept.rows\n")
            agent.start()
        for agent in pipeline.agents:
            agent.ready()
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
        assert pipeline.connector.total("helenus_connector_statements_total", connector="kept-rows") == 0
