"""A user's test cluster, as a properties file tells of it. This command starts and stops workers and agents alone.

    cassandra.contact.points=10.0.0.1,10.0.0.2,10.0.0.3    and other cassandra.* settings of a connector
    cassandra.local.dc=dc1
    bootstrap.servers=10.0.0.9:9092
    schema.registry.url=http://10.0.0.9:8081
    worker.file=worker.properties          of the workers: what is in it but checkpoint.dir and listeners
    agent.files=agent.properties           of agents on this machine that the command runs, with commas between
    nodetool=ssh {host} nodetool           how to run it on the node of a contact point; default: not at all
    replication.factor=3

`worker.file`, `agent.files` and `nodetool` may be absent. Agents of other nodes run already, with
`cells.include.list=chaos\\..*`. The keyspace `chaos` must not exist, nor topics of its tables.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from cassandra.auth import PlainTextAuthProvider
from confluent_kafka import Consumer

from bench.chaos.cluster import ChaosCluster, connect
from bench.chaos.modes import KEYSPACE
from bench.chaos.service import Service, write_properties
from helenus_schemas.settings.properties import read_properties
from helenus_stack.errors import StackError
from helenus_stack.status import Status

_NODETOOL_S = 600.0
_TIMEOUT_S = 30.0


class GivenCluster(ChaosCluster):
    """A cluster on servers that a user has, told of by a properties file."""

    def __init__(self, file: Path, directory: Path, modes: Sequence[str], workers: int = 1) -> None:
        super().__init__(directory, modes, workers)
        self._file, self._properties = file, read_properties(file)

    @property
    def replication(self) -> str:
        factor = self._properties.get("replication.factor", "3")
        return f"{{'class': 'NetworkTopologyStrategy', '{self.status.local_dc}': {factor}}}"

    def _open(self) -> None:
        self.status = given_status(self._file, self._properties, self.directory)
        login = [self._properties.get(f"cassandra.{name}", "") for name in ("username", "password")]
        self.session = connect(self.status, auth_provider=PlainTextAuthProvider(*login) if login[0] else None)
        self._exit.callback(self.session.cluster.shutdown)
        self._refuse_what_is_there()

    def _refuse_what_is_there(self) -> None:
        """Raise StackError if the keyspace is there, or a topic of its tables: nothing of the user's is touched."""
        there = [row.keyspace_name for row in self.session.execute("SELECT keyspace_name FROM system_schema.keyspaces")]
        with closing(Consumer({**self.status.kafka(), "group.id": KEYSPACE, "log_level": 0})) as consumer:
            topics = consumer.list_topics(timeout=_TIMEOUT_S).topics
        topics = [name for name in topics if name.startswith((f"events-{KEYSPACE}.", f"data-{KEYSPACE}."))]
        if KEYSPACE in there or topics:
            names = ([f"the keyspace {KEYSPACE}"] if KEYSPACE in there else []) + topics
            advice = "drop the keyspace and delete the topics, if they are of an earlier run"
            raise StackError(f"there is {', '.join(names)}", str(self._file), advice)

    def nodetool(self, *arguments: str, nodes: Sequence[int] = ()) -> None:
        if command := self._properties.get("nodetool"):
            hosts = self.status.contact_points
            hosts = [hosts[number - 1] for number in nodes] if nodes else hosts
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda host: _run(command.replace("{host}", host), arguments), hosts))

    def state_directory(self, agent: str) -> Path:
        return Path(read_properties(self.service(agent).files[0])["state.dir"])

    def _make_agents(self) -> list[Service]:
        agents = []
        for name, file in zip(agent_names(self._properties), _files(self._file, self._properties), strict=True):
            properties = {**read_properties(file), "cells.include.list": f"{KEYSPACE}\\\\..*"}
            if "listeners" not in properties:
                raise StackError("an agent needs listeners, to see when it is ready", str(file), "add listeners")
            port = int(properties["listeners"].rpartition(":")[2])
            own = write_properties(self.directory / f"{name}.properties", properties)
            agents.append(Service(name, self.directory, "helenus-agent", [own], port))
        return agents

    def _worker_properties(self) -> Mapping[str, object]:
        file = self._properties.get("worker.file")
        return {
            **(read_properties(self._file.parent / file) if file else {}),
            "bootstrap.servers": self.status.bootstrap_servers,
        }

    def _connector_properties(self) -> Mapping[str, object]:
        cassandra = {key: value for key, value in self._properties.items() if key.startswith("cassandra.")}
        return {**cassandra, "value.converter.schema.registry.url": self.status.registry_url}


def agent_names(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the agents that a file has the command run."""
    return [f"agent{number + 1}" for number, _ in enumerate(_names(properties))]


def _names(properties: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in properties.get("agent.files", "").split(",") if name.strip()]


def _files(file: Path, properties: Mapping[str, str]) -> list[Path]:
    return [file.parent / name for name in _names(properties)]


def given_status(file: Path, properties: Mapping[str, str], directory: Path) -> Status:
    """Return a user's servers as a stack's status. Raises StackError if the file lacks one."""
    needed = ("cassandra.contact.points", "cassandra.local.dc", "bootstrap.servers", "schema.registry.url")
    if missing := [name for name in needed if not properties.get(name)]:
        raise StackError(f"{', '.join(missing)} is missing", str(file), "add it")
    return Status(
        directory=str(directory),
        ready=True,
        contact_points=[point.strip() for point in properties["cassandra.contact.points"].split(",")],
        cql_port=int(properties.get("cassandra.port", "9042")),
        local_dc=properties["cassandra.local.dc"],
        bootstrap_servers=properties["bootstrap.servers"],
        registry_url=properties["schema.registry.url"],
        pulsar_url=None,
        pulsar_admin_url=None,
        connect_url=None,
        postgres_url=None,
        security=None,
        nodes=[],
        servers=[],
    )


def _run(command: str, arguments: Sequence[str]) -> None:
    completed = subprocess.run(
        [*shlex.split(command), *arguments], capture_output=True, text=True, timeout=_NODETOOL_S, check=False
    )
    if completed.returncode:
        raise StackError(f"nodetool {arguments[0]} failed", command, "correct nodetool", completed.stderr[-500:])
