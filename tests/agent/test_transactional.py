"""Tables of Accord on a real Cassandra 6.0: no event of their writes exists, and the agent says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from confluent_kafka import KafkaException
from integration.pipeline import free_port
from patience import eventually

from helenus_schemas.event import wire
from helenus_schemas.event.change import Scope
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.records import messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.long,
    pytest.mark.integration,
    # The driver's event loop and the consumer are ended by their own threads, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MAIN = "from helenus_agent.cli import main; main()"


@pytest.fixture(scope="module")
def status(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Status]:
    directory = tmp_path_factory.mktemp("stack")
    yaml = {"accord": {"enabled": True}}
    with Stack(directory, only=["cassandra", "kafka"], cassandra="6.0", cassandra_yaml=yaml) as stack:
        yield stack.status()


@pytest.fixture
def session(status: Status) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(status.cassandra(), "status"))
    profile = session.cluster.profile_manager.default
    profile.consistency_level = ConsistencyLevel.QUORUM  # Accord takes no LOCAL_ONE
    yield session
    session.cluster.shutdown()


@pytest.mark.parametrize("policy", ["refuse", "gap"])
def test_transactional_tables(status: Status, session: Any, tmp_path: Path, policy: str) -> None:
    keyspace, port = f"acc_{policy}", free_port()
    session.execute(
        f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    for table, mode in {"plain": "off", "moves": "off", "accord": "full"}.items():
        options = f"cdc = true AND transactional_mode = '{mode}'"
        session.execute(f"CREATE TABLE {keyspace}.{table} (k int PRIMARY KEY, v int) WITH {options}")
    keys = {
        **status.cassandra(),
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "kafka.bootstrap.servers": status.bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "table.include.list": f"{keyspace}\\..*",
        "transactional.tables": policy,
        "http.port": str(port),
        "log.format": "json",
    }
    path, log = tmp_path / "agent.properties", tmp_path / "agent.log"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))

    def written(table: str) -> list[Scope]:
        try:
            arrived = list(messages(status.bootstrap_servers, f"events-{keyspace}.{table}"))
        except KafkaException:  # the topic is being made
            return []
        return [wire.decode(message.value() or b"").scope for message in arrived]

    def named() -> dict[str, str]:
        """The tables that the log names as transactional, with their mode."""
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        return {line["table"]: line["mode"] for line in lines if line["event"] == "table.transactional"}

    with log.open("w") as file:
        agent = subprocess.Popen([sys.executable, "-c", MAIN, str(path)], stderr=file, stdout=file)
    try:
        eventually(lambda: named() == {f"{keyspace}.accord": "full"}, log.read_text)
        for table in ("plain", "moves", "accord"):
            session.execute(f"INSERT INTO {keyspace}.{table} (k, v) VALUES (1, 1)")
        eventually(lambda: written("plain") == written("moves") == [Scope.ROW], log.read_text)
        session.execute(f"ALTER TABLE {keyspace}.moves WITH transactional_mode = 'full'")
        eventually(lambda: named().keys() == {f"{keyspace}.accord", f"{keyspace}.moves"}, log.read_text)
        session.execute(f"INSERT INTO {keyspace}.moves (k, v) VALUES (2, 2)")
        session.execute(f"INSERT INTO {keyspace}.plain (k, v) VALUES (2, 2)")
        eventually(lambda: len(written("plain")) == 2, log.read_text)
        refusal = f"the writes of transactional tables are in no commit log ({keyspace}.accord, {keyspace}.moves)"
        assert readiness(port).startswith(refusal) == (policy == "refuse")
        scopes = {table: set(written(table)) for table in ("moves", "accord") if policy == "gap"}
        assert scopes == ({} if policy == "refuse" else {"moves": {Scope.ROW, Scope.GAP}, "accord": {Scope.GAP}})
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    finally:
        agent.kill()
        agent.wait()


def readiness(port: int) -> str:
    """What `/health/ready` says is wrong."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=30) as answer:
            return str(answer.read().decode()) if answer.status != 200 else ""
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
