"""What a stack says about itself, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from helenus_stack import cassandra, connect, postgres, pulsar, registry
from helenus_stack.process import Process
from helenus_stack.secure import CASSANDRA_ADMIN, KAFKA_ADMIN, PULSAR_ADMIN, Security, security
from helenus_stack.server import Server
from helenus_stack.settings import LogName, Settings

State = Literal["ready", "starting", "paused", "died", "stopped"]


@dataclass(frozen=True)
class ServerStatus:
    """One server: its state, where it listens, its pid if it lives, its log."""

    name: str
    state: State
    address: str
    pid: int | None
    log: str


@dataclass(frozen=True)
class NodeStatus:
    """What the agent of a Cassandra node needs to know."""

    name: str
    address: str
    data_center: str
    cassandra_yaml: str
    cdc_raw: str
    jmx_port: int


@dataclass(frozen=True)
class Status:
    """A stack: where clients connect, and how its servers are. `ready`: all of them."""

    directory: str
    ready: bool
    contact_points: list[str]
    cql_port: int
    local_dc: str
    bootstrap_servers: str
    registry_url: str
    """Empty in a stack without Kafka."""
    pulsar_url: str | None
    pulsar_admin_url: str | None
    connect_url: str | None
    postgres_url: str | None
    security: Security | None
    nodes: list[NodeStatus]
    servers: list[ServerStatus]

    @property
    def log(self) -> LogName:
        """What clients use: Kafka, if the stack has both."""
        return "kafka" if self.bootstrap_servers else "pulsar"

    def only(self, log: LogName) -> Status:
        """As a stack with this one alone would have it."""
        if log == "kafka":
            return replace(self, pulsar_url=None, pulsar_admin_url=None)
        return replace(self, bootstrap_servers="", registry_url="")

    def kafka(self, user: str = KAFKA_ADMIN) -> dict[str, str]:
        """The settings of librdkafka with which a user of a secure stack, or anybody of another, connects."""
        login = self.security.kafka(user) if self.security else {}
        return {"bootstrap.servers": self.bootstrap_servers, **login}

    def pulsar(self, user: str = PULSAR_ADMIN) -> dict[str, str]:
        """The properties `pulsar.*` with which a user of a secure stack, or anybody of another, connects."""
        login = self.security.pulsar(user) if self.security else {}
        return {"pulsar.service.url": self.pulsar_url or "", "pulsar.admin.url": self.pulsar_admin_url or "", **login}

    def cassandra(self, user: str = CASSANDRA_ADMIN) -> dict[str, str]:
        """The properties `cassandra.*` with which a user of a secure stack, or anybody of another, connects."""
        login = self.security.cassandra(user) if self.security else {}
        points = ",".join(self.contact_points)
        return {"cassandra.contact.points": points, "cassandra.port": str(self.cql_port), **login}

    def json(self) -> str:
        """The same as JSON, with the fields' names as keys."""
        return json.dumps(asdict(self), indent=2)

    def table(self) -> str:
        """A line per server, columns aligned."""
        rows = [("SERVER", "STATE", "ADDRESS", "PID", "LOG")]
        rows += [(s.name, s.state, s.address, str(s.pid or "-"), s.log) for s in self.servers]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


def report(directory: Path, settings: Settings, servers: Sequence[tuple[Server, Process]]) -> Status:
    """Looks at all servers of a stack."""
    seen = [
        ServerStatus(
            server.name, state(server, process), f"{server.address}:{server.port}", process.pid, str(server.log)
        )
        for server, process in servers
    ]
    return Status(
        directory=str(directory),
        ready=all(server.state == "ready" for server in seen),
        contact_points=settings.addresses,
        cql_port=settings.cql_port,
        local_dc=settings.data_center(0),
        bootstrap_servers=f"127.0.0.1:{settings.kafka_port}" if settings.has_kafka else "",
        registry_url=registry.url(settings) if settings.has_kafka else "",
        pulsar_url=pulsar.service_url(settings) if settings.has_pulsar else None,
        pulsar_admin_url=pulsar.admin_url(settings) if settings.has_pulsar else None,
        connect_url=connect.url(settings) if settings.connect else None,
        postgres_url=postgres.url(settings) if settings.postgres else None,
        security=security(settings, directory),
        nodes=[
            NodeStatus(
                server.name,
                server.address,
                settings.data_center(index),
                cassandra_yaml=str(server.folder / cassandra.YAML),
                cdc_raw=str(cassandra.configuration(settings, index, server.folder)["cdc_raw_directory"]),
                jmx_port=settings.jmx_port(index),
            )
            for index, server in enumerate(cassandra.servers(settings, directory))
        ],
        servers=seen,
    )


def state(server: Server, process: Process) -> State:
    """What the server's process does, and for a running one whether it answers properly."""
    if (life := process.life) != "running":
        return life
    return "ready" if server.answers and server.ready() else "starting"
