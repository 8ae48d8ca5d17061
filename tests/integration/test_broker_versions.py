"""The whole path on older message brokers that people run: Kafka 3.9, and Pulsar 3.0 LTS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from integration.pipeline import Pipeline
from integration.test_cassandra_versions import STATE_TABLE, insert_every_type
from integration.test_path import TYPES, columns
from integration.test_state import write as write_rows
from integration.test_verify import command as verify
from integration.workload import Workload, create

from helenus_stack.settings import LogName
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

VERSIONS = (("kafka", "3.9"), ("pulsar", "3.0"))
MODES: dict[str, dict[str, object]] = {
    "kinds": {},
    "types": {"snapshot.mode": "initial"},
    "live": {"state": "keys", "markers": "false", "query.group": "live"},
    "merged": {"state": "rows", "query.group": "merged"},
}
"""What the connector of each table is set to."""


@dataclass
class Run:
    """A broker of one version, with an agent and a worker for the tables of its keyspace."""

    broker: Stack
    log: LogName
    keyspace: str
    pipeline: Pipeline


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: "-".join(version))
def run(
    request: pytest.FixtureRequest, status: Status, session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    (log, version), directory = request.param, tmp_path_factory.mktemp("run")
    keyspace = f"on_{log}_{version.replace('.', '_')}"
    with Stack(directory / "stack", only=[log, *["registry"] * (log == "kafka")], log=log, **{log: version}) as broker:
        servers = broker.status()
        servers = replace(
            servers,
            contact_points=status.contact_points,
            cql_port=status.cql_port,
            local_dc=status.local_dc,
            nodes=status.nodes,
        )
        pipeline = Pipeline(servers, directory / "pipeline")
        try:
            create_tables(session, keyspace)
            with (pipeline.directory / "agent.properties").open("a") as file:
                file.write(f"cells.include.list={keyspace}\\.merged\ntable.include.list={keyspace}\\..*\n")
            pipeline.agent.start().ready()
            pipeline.connect().start().ready()
            with pipeline.connected({f"{keyspace}.{table}": more for table, more in MODES.items()}):
                yield Run(broker, log, keyspace, pipeline)
            assert (pipeline.connector.stop(), pipeline.agent.stop()) == (0, 0)
        finally:
            pipeline.stop()


def create_tables(session: Any, keyspace: str) -> None:
    """Make a table for each mode, with rows in the one that is snapshotted."""
    create(session, keyspace, "kinds")
    for table in ("live", "merged"):
        session.execute(STATE_TABLE.format(f"{keyspace}.{table}", "m map<text, int>,"))
    session.execute(f"CREATE TABLE {keyspace}.types (k int PRIMARY KEY, {columns(TYPES)}) WITH cdc = false")
    for k in range(20):
        insert_every_type(session, f"{keyspace}.types", TYPES, k)
    session.execute(f"ALTER TABLE {keyspace}.types WITH cdc = true")


def test_every_mode_and_a_broker_that_dies(run: Run, session: Any) -> None:
    """The topic has what the table has: before, while and after the broker is away, and after an ALTER."""
    pipeline, kinds, types = run.pipeline, f"{run.keyspace}.kinds", f"{run.keyspace}.types"
    states = [f"{run.keyspace}.{table}" for table in ("live", "merged")]
    Workload(session, kinds, seed=1).run(200)
    insert_every_type(session, types, TYPES, 100)
    pipeline.converges(kinds)
    run.broker.kill(run.log)
    Workload(session, kinds, seed=2).run(100)
    for seed, table in enumerate(states, 3):
        write_rows(session, table, 100, seed)
    run.broker.start(run.log)
    session.execute(f"ALTER TABLE {types} ADD later text")
    session.execute(f"UPDATE {types} SET later = 'x' WHERE k = 3")
    for table in (kinds, types):
        pipeline.converges(table)
    for table in states:
        exit_status, report, errors = verify(pipeline, table, "--patience", "60")
        assert exit_status == 0, f"{report}\n{errors}\n{pipeline.connector.tail()}"
