"""Statements alone: a table is published, and no more, by an agent that has a contact point and a worker that has a
template.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import spark_start
from integration.pipeline import Command, Pipeline, free_port, write_properties
from patience import eventually

from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long]  # a worker that starts twice

KEYSPACE = "helenus_statements"
REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
CREATE = "CREATE DATA_SOURCE IF NOT EXISTS cdc ON TABLE told.t WITH here"
DROP = "DROP DATA_SOURCE IF EXISTS cdc ON TABLE told.t"


class Told(Pipeline):
    """An agent that follows `configs`, and a worker that follows data sources."""

    replication = REPLICATION

    def agent_properties(self, port: int) -> dict[str, object]:
        properties = super().agent_properties(port)
        del properties["kafka.bootstrap.servers"]
        return {
            **properties,
            "config.store": "cassandra",
            "config.store.keyspace": KEYSPACE,
            "config.store.replication": self.replication,
            "config.store.poll.interval.ms": 500,
        }

    def follow(self) -> Command:
        port, properties = free_port(), self.connector_properties("told.t")
        template = {k: v for k, v in properties.items() if k not in ("name", "keyspace", "table")}
        worker = write_properties(
            self.directory / "worker.properties",
            {
                **self.brokers("bootstrap.servers"),
                "checkpoint.dir": self.directory / "checkpoint",
                "listeners": f"http://127.0.0.1:{port}",
                "spark.master": "local[2,4]",
                **spark_start.settings(),
                "data.source.template": write_properties(self.directory / "template.properties", template),
                "data.source.keyspace": KEYSPACE,
            },
        )
        self.connector = Command(["helenus-connector", str(worker)], self.directory / "connector.log", port)
        return self.connector

    def execute(self, *statements: str) -> str:
        options = [argument for statement in statements for argument in ("-e", statement)]
        command = Command(["helenus-agent", "sql", self.agent.arguments[1], *options], self.directory / "sql.log", 0)
        command.log.unlink(missing_ok=True)
        code, output = command.start().dies(), command.log.read_text()
        assert code == 0, output
        return output

    def connectors(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.connector.port}/connectors?expand=status&expand=info"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return dict(json.load(answer))
        except (urllib.error.URLError, OSError):
            return {}

    def state(self, name: str) -> str:
        """The states of a connector and its tasks; `None` if there is no such connector."""
        status = self.connectors().get(name, {}).get("status", {})
        return " ".join([str(status.get("connector", {}).get("state")), *(t["state"] for t in status.get("tasks", ()))])

    def keys(self) -> set[int]:
        return {record.key["k"] for record in self.records("told.t")}


def test_a_table_is_published_by_statements_alone(status: Status, session: Any, tmp_path: Path) -> None:
    told = Told(status.only("kafka"), tmp_path)
    session.execute(f"CREATE KEYSPACE told WITH replication = {REPLICATION}")
    session.execute("CREATE TABLE told.t (k int PRIMARY KEY, v text)")
    insert = session.prepare("INSERT INTO told.t (k, v) VALUES (?, 'x')")

    def write(*keys: int) -> None:
        for key in keys:
            session.execute(insert, (key,))

    def arrive(*keys: int) -> None:
        logs = lambda: f"{told.keys()}\n{told.connectors()}\n{told.agent.tail()}\n{told.connector.tail()}"  # noqa: E731
        eventually(lambda: set(keys) <= told.keys(), logs)

    try:
        told.agent.start()
        told.follow().start()
        told.execute(f"CREATE DATA_SINK here WITH 'kafka://{status.bootstrap_servers}?output.format=json'", CREATE)
        # From when the statement has returned, each write is published: whatever agent and worker have seen by then.
        write(*range(10))
        arrive(*range(10))
        eventually(lambda: told.state("cdc-told.t") == "RUNNING RUNNING", told.connector.tail)
        assert told.connectors()["cdc-told.t"]["info"]["config"]["output.format"] == "json"
        # Repetition changes nothing.
        told.execute(CREATE, CREATE)
        # It ends, and what was written before is there, or goes on from its position.
        write(*range(10, 20))
        told.execute(DROP, DROP)
        write(100)
        eventually(lambda: told.connectors() == {} and told.connector.health()[0] in (200, 503))
        # What is wrong with a source is in its status.
        session.execute(f"INSERT INTO {KEYSPACE}.data_sinks (name, address) VALUES ('away', 'kafka://elsewhere:1')")
        session.execute(
            f"UPDATE {KEYSPACE}.data_sources SET sink = 'away' WHERE keyspace_name = 'told' AND table_name = 'u' "
            "AND service = 'cdc'"
        )
        eventually(lambda: told.state("cdc-told.u") == "FAILED", told.connector.tail)
        assert "bootstrap.servers are others" in json.dumps(told.connectors())
        told.execute("DROP DATA_SOURCE cdc ON TABLE told.u; DROP DATA_SINK away")
        # Again: nothing of before is lost. What was written in between may be there: agents publish what a table logs
        # up to the end of the segment in which it loses CDC.
        told.execute(CREATE)
        write(*range(20, 30))
        arrive(*range(30))
        assert told.keys() - {100} == set(range(30))
        eventually(lambda: told.state("cdc-told.u") == "None")
        # A restart of the worker keeps the connector as REST left it, while Cassandra says nothing else.
        told.call_rest("PUT", "cdc-told.t/pause")
        assert told.connector.stop() == 0
        told.connector.start()
        eventually(lambda: told.state("cdc-told.t") == "PAUSED PAUSED", told.connector.tail)
        told.call_rest("PUT", "cdc-told.t/resume")
        write(30)
        arrive(30)
        told.execute(DROP)
    finally:
        told.stop()
        for keyspace in ("told", KEYSPACE):
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
