"""Tables of Accord: their rows reach the topic by a snapshot, `verify` finds what was written since, and repairs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.query import SimpleStatement
from integration.pipeline import Pipeline
from integration.test_state import agrees
from integration.test_verify import command as verify
from patience import eventually

from helenus_connector.control._obstacles import _empty_read
from helenus_schemas.cql.table import read_tables
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

TABLE = "CREATE TABLE {} (p int, c int, d text, v text, n int, PRIMARY KEY (p, c, d)) WITH transactional_mode = '{}'"
LEVELS = {"snapshot.mode": "initial", "query.consistency": "QUORUM", "snapshot.consistency": "QUORUM"}
MODES: dict[str, dict[str, object]] = {
    "plain": LEVELS,
    "live": {**LEVELS, "state": "keys", "query.group": "live"},
    "merged": {**LEVELS, "state": "rows", "query.group": "merged"},
    "local": {"snapshot.mode": "initial", "query.group": "local"},
}
"""What the connector of each table is set to."""


@pytest.fixture(scope="module")
def session(stack_of_accord: Stack) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(stack_of_accord.status().cassandra(), "status"))
    session.cluster.profile_manager.default.consistency_level = ConsistencyLevel.QUORUM  # Accord takes no LOCAL_ONE
    yield session
    session.cluster.shutdown()


@pytest.fixture(scope="module")
def stack_of_accord(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yaml = {"accord": {"enabled": True}}
    with Stack(tmp_path_factory.mktemp("stack"), cassandra="6.0", cassandra_yaml=yaml) as stack:
        yield stack


@pytest.fixture(scope="module")
def pipeline(stack_of_accord: Stack, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    pipeline = Pipeline(stack_of_accord.status(), tmp_path_factory.mktemp("pipeline"))
    session.execute("CREATE KEYSPACE acc WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in MODES:
        session.execute(TABLE.format(f"acc.{table}", "full"))
        for n in range(50):
            session.execute(f"INSERT INTO acc.{table} (p, c, d, v, n) VALUES ({n % 5}, {n}, 'a', 'v{n}', {n})")
        session.execute(f"ALTER TABLE acc.{table} WITH cdc = true")
    try:
        with (pipeline.directory / "agent.properties").open("a") as file:
            file.write("cells.include.list=acc\\.merged\ntransactional.tables=gap\n")
        pipeline.agent.start().ready()
        pipeline.connect().start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@pytest.mark.parametrize("table", ["plain", "live", "merged"])
def test_a_snapshot_and_a_repair(pipeline: Pipeline, session: Any, table: str) -> None:
    name = f"acc.{table}"
    with pipeline.connected({name: MODES[table]}):
        agrees(pipeline, session, name)
        session.execute(f"UPDATE {name} SET v = 'later' WHERE p = 1 AND c = 1 AND d = 'a'")
        session.execute(f"DELETE FROM {name} WHERE p = 2 AND c = 2 AND d = 'a'")
        exit_status, report, errors = verify(pipeline, name, "--patience", "5", "--repair")
        assert exit_status == 3, f"{report}\n{errors}\n{pipeline.connector.tail()}"
        agrees(pipeline, session, name)
        exit_status, report, errors = verify(pipeline, name, "--patience", "60")
        assert exit_status == 0, f"{report}\n{errors}\n{pipeline.connector.tail()}"


def test_a_level_that_accord_has_not_is_named(pipeline: Pipeline) -> None:
    pipeline.configure("acc.local", MODES["local"])
    advice = "set query.consistency and snapshot.consistency to QUORUM"
    eventually(lambda: advice in pipeline.connector.log.read_text(), pipeline.connector.tail)
    pipeline.call_rest("DELETE", "acc-local")


@pytest.mark.parametrize("mode", ["full", "off"])
def test_what_asks_for_a_level_reads_no_row(session: Any, mode: str) -> None:
    """What a read at a level finds, it also repairs: with `resolver=none` a repaired row would be published again."""
    name = f"probed_{mode}"
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS probed WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(TABLE.format(f"probed.{name}", mode))
    (table,) = (table for table in read_tables(session, "probed").values() if table.name == name)
    local = SimpleStatement(_empty_read(table), consistency_level=ConsistencyLevel.LOCAL_QUORUM)
    if mode == "off":
        session.execute(f"INSERT INTO probed.{name} (p, c, d, v, n) VALUES (1, 1, 'a', 'v', 1)")
        assert list(session.execute(local)) == []
    else:
        with pytest.raises(InvalidRequest, match="unsupported with Accord"):
            session.execute(local)
