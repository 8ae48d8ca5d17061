"""What a stack is made of, and the ports it takes; kept in its directory as stack.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from helenus_stack.errors import StackError
from helenus_stack.files import write_atomically

_FIXED = ("nodes", "data_centers", "racks", "cassandra", "kafka", "pulsar", "secure", "log")
"""What is in the data of a stack and can't be changed."""
_TRIED = ("heap", "brief", "cassandra_yaml", "kafka_properties", "pulsar_properties")
"""What may keep a server from starting."""
LogName = Literal["kafka", "pulsar"]
Logs = Literal["kafka", "pulsar", "both"]
Chosen = TypeVar("Chosen")
Override = str | int | float | bool | None | Mapping[str, object]


@dataclass(frozen=True)
class Settings:
    """One stack: 1 to 4 Cassandra nodes and a `log`; if wanted, `connect` and `postgres`. With several `data_centers`
    the nodes are in them in turns, and with several `racks` the nodes of a data centre in these.

    The log is `kafka`, a broker and a schema registry, or `pulsar`, which is one itself, or `both`.

    Every port is its standard number plus `port_offset`. `cassandra_yaml`, `kafka_properties` and `pulsar_properties`
    override the generated configuration, key by key, with the names of that version. `heap` is each Cassandra node's,
    in the JVM's notation. `cassandra`, `kafka` and `pulsar` are their versions. `secure`: TLS and passwords on
    Cassandra and Kafka, TLS and tokens on Pulsar. `brief`: Cassandra and Kafka live for minutes, and do without their
    JVM's second compiler: they start with half the work, and take less load.
    """

    nodes: int = 1
    data_centers: int = 1
    racks: int = 1
    cassandra: str = "5.0"
    kafka: str = "4.3"
    pulsar: str = "4.0"
    secure: bool = False
    log: Logs = "kafka"
    connect: bool = False
    postgres: bool = False
    port_offset: int = 0
    heap: str = "512m"
    brief: bool = True
    cassandra_yaml: Mapping[str, Override] = field(default_factory=dict)
    kafka_properties: Mapping[str, str] = field(default_factory=dict)
    pulsar_properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        """The nodes' addresses; all nodes share their port numbers."""
        return [f"127.0.0.{i}" for i in range(1, self.nodes + 1)]

    def data_center(self, index: int) -> str:
        """Where the node `index` (from 0) is. The first one is named as Cassandra names the only one."""
        return f"datacenter{index % self.data_centers + 1}"

    def rack(self, index: int) -> str:
        """The rack, within its data centre, of the node `index` (from 0)."""
        return f"rack{index // self.data_centers % self.racks + 1}"

    def token(self, index: int) -> int:
        """The token of the node `index` (from 0): the nodes of each data centre have them evenly spaced."""
        number, data_center = divmod(index, self.data_centers)
        nodes = len(range(data_center, self.nodes, self.data_centers))
        return -(2**63) + number * 2**64 // nodes + data_center  # no two nodes have the same

    @property
    def has_kafka(self) -> bool:
        return self.log != "pulsar"

    @property
    def has_pulsar(self) -> bool:
        return self.log != "kafka"

    # The numbers modulo 100 are all different: stacks whose offsets are multiples of 100 never meet.

    @property
    def cql_port(self) -> int:
        return 9042 + self.port_offset

    @property
    def storage_port(self) -> int:
        return 7000 + self.port_offset

    def jmx_port(self, index: int) -> int:
        """JMX of the node `index` (from 0), always on 127.0.0.1."""
        return 7199 + self.port_offset - index

    @property
    def kafka_port(self) -> int:
        return 9092 + self.port_offset

    @property
    def controller_port(self) -> int:
        return 9093 + self.port_offset

    @property
    def registry_port(self) -> int:
        return 8081 + self.port_offset

    @property
    def management_port(self) -> int:
        return 8082 + self.port_offset

    @property
    def pulsar_port(self) -> int:
        return 6650 + self.port_offset

    @property
    def pulsar_tls_port(self) -> int:
        return 6651 + self.port_offset

    @property
    def pulsar_web_port(self) -> int:
        return 8080 + self.port_offset

    @property
    def pulsar_web_tls_port(self) -> int:
        return 8443 + self.port_offset

    @property
    def bookie_port(self) -> int:
        """Of Pulsar's storage; 3181 would meet another stack's registry."""
        return 3184 + self.port_offset

    @property
    def connect_port(self) -> int:
        return 8083 + self.port_offset

    @property
    def postgres_port(self) -> int:
        return 5432 + self.port_offset

    @property
    def listeners(self) -> list[tuple[str, int]]:
        """Every (address, port) the whole stack listens on."""
        own = [self.kafka_port, self.controller_port, self.registry_port, self.management_port] * self.has_kafka
        own += [self.pulsar_port, self.pulsar_web_port, self.bookie_port] * self.has_pulsar
        own += [self.pulsar_tls_port, self.pulsar_web_tls_port] * (self.has_pulsar and self.secure)
        own += [self.connect_port] * self.connect + [self.postgres_port] * self.postgres
        return (
            [(address, port) for address in self.addresses for port in (self.cql_port, self.storage_port)]
            + [("127.0.0.1", self.jmx_port(i)) for i in range(self.nodes)]
            + [("127.0.0.1", port) for port in own]
        )

    @property
    def jvm(self) -> list[str]:
        """Options of Cassandra's and Kafka's JVMs."""
        options = ["-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"]
        return [*options, "-XX:TieredStopAtLevel=1"] if self.brief else options

    def save(self, path: Path) -> None:
        """Writes the settings as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n")

    def tried(self, before: Settings) -> Settings:
        """These, but without what may have kept a server from starting: that is as it was `before`."""
        return replace(self, **{name: getattr(before, name) for name in _TRIED})

    @classmethod
    def changed(cls, path: Path, options: Mapping[str, Any]) -> Settings:
        """What `save` wrote, or the defaults, with the given fields that are not None; raises StackError."""
        options = {name: value for name, value in options.items() if value is not None}
        try:
            saved = cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return cls(**options)
        except (ValueError, TypeError) as error:
            advice = "restore it, or remove its directory"
            raise StackError(f"the stack's settings can't be read: {error}", str(path), advice) from error
        for name in _FIXED:
            if options.get(name, getattr(saved, name)) != getattr(saved, name):
                problem = f"this stack was made with {name} {getattr(saved, name)}, not {options[name]}"
                advice = "choose another --dir, or run helenus-stack down --delete first"
                raise StackError(problem, str(path.parent), advice)
        return replace(saved, **options)


def choose_version(server: str, version: str, versions: Mapping[str, Chosen]) -> Chosen:
    """What `versions` says of a server's version; raises StackError if there is no such."""
    try:
        return versions[version]
    except KeyError:
        advice = f"choose one of {', '.join(versions)}"
        raise StackError(f"there is no {server.capitalize()} {version!r}", server, advice) from None
