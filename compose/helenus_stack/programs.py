"""Agent and connector of a stack: their properties files, and their processes among the stack's.

Their pid files lie with the servers', so `helenus-stack down` and the watchdog end them too.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from helenus_schemas.settings.properties import read_properties
from helenus_stack.errors import StackError
from helenus_stack.process import STOP_SECONDS, Process, python_module, stop
from helenus_stack.status import NodeStatus, Status

LOG_LINES = 25


@dataclass(frozen=True)
class Program:
    """One of Helenus's commands, `agent` or `connector`, on properties files in `directory`/demo."""

    name: str
    directory: Path
    files: Sequence[Path]

    @property
    def process(self) -> Process:
        return Process(self.directory / "run" / f"{self.name}.pid")

    @property
    def log(self) -> Path:
        return self.directory / "logs" / f"{self.name}.log"

    @property
    def command_line(self) -> str:
        """The command as a person types it."""
        here = Path.cwd()
        files = (path.relative_to(here) if path.is_relative_to(here) else path for path in self.files)
        return " ".join([f"helenus-{self.name}", *map(str, files)])

    def start(self, environment: Mapping[str, str]) -> None:
        """Starts it in its own session, with its output appended to the log."""
        script = Path(sys.executable).with_name(f"helenus-{self.name}")
        command = [str(script)] if script.exists() else python_module(f"helenus_{self.name}.cli")
        self.process.start([*command, *map(str, self.files)], self.directory, self.log, environment)

    def check(self) -> None:
        """Raises StackError with the end of its log if it doesn't live any more."""
        if self.process.pid is None:
            raise self.failure(f"the {self.name} died")

    def failure(self, problem: str) -> StackError:
        """An error of this program, with the end of its log."""
        return StackError(problem, str(self.log), "read its log and correct what it names", tail(self.log))


def tail(log: Path) -> str:
    """The last lines of a log; empty if there is none."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:]) if log.exists() else ""


def end(directory: Path) -> None:
    """Stops agent and connector in a stack's directory, if they run, while their servers still answer."""
    stop([Process(directory / "run" / f"{name}.pid") for name in ("agent", "connector")], STOP_SECONDS)


def addresses(folder: Path) -> tuple[str, str]:
    """Where the agent and the connector of the properties files in `folder` serve their metrics."""
    agent, worker = (read_properties(folder / f"{name}.properties")["listeners"] for name in ("agent", "worker"))
    return agent, worker


def agent(status: Status, folder: Path, node: NodeStatus | None = None) -> Program:
    """The agent of a node, the stack's first if none is given; writes its properties file into `folder`."""
    node = node or status.nodes[0]
    path = _write(
        folder / "agent.properties",
        f"The agent of {node.name}. Start: helenus-agent {folder / 'agent.properties'}",
        [
            ("cassandra.config", node.cassandra_yaml, "Its configuration, which says where its commit log is."),
            ("cassandra.contact.points", node.address, "The node itself; the agent learns its tables from it."),
            ("cassandra.port", status.cql_port, "Its port for CQL."),
            ("cassandra.local.dc", status.local_dc, "Its data centre."),
            ("state.dir", folder / "agent", "Where the agent saves how far it has read."),
            ("log", status.log, "Where events go."),
            *_brokers(status, "The brokers."),
            ("topic.prefix", "events-", "Events of ks.table go to the topic events-ks.table."),
            ("topic.partitions", 4, "Partitions of the topics that the agent creates."),
            ("listeners", f"http://127.0.0.1:{free_port(9400)}", "Serves /metrics, /health/live and /health/ready."),
        ],
    )
    return Program("agent", Path(status.directory), [path])


def connector(status: Status, folder: Path, keyspace: str, table: str) -> Program:
    """A connector worker for one table; writes its two properties files into `folder`."""
    worker, source = folder / "worker.properties", folder / f"{keyspace}_{table}.properties"
    _write(
        worker,
        f"What all connectors of a worker share. Start: helenus-connector {worker} {source}",
        [
            ("log", status.log, "Where events come from, and records go to."),
            *_brokers(status, "The brokers of events and records."),
            ("checkpoint.dir", folder / "checkpoint", "Where Spark notes which events are done."),
            ("startup.timeout.ms", 300_000, "How long to wait for servers and a table that are not there yet."),
            ("spark.master", "local[2,4]", "Spark within the worker's process, on two cores, four attempts at a task."),
            (
                "spark.driver.extraJavaOptions",
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "For a short run: Spark starts with a third less work, and never gets quite as fast.",
            ),
            ("listeners", f"http://127.0.0.1:{free_port(8083)}", "Serves the REST API, /metrics and /health."),
        ],
    )
    form = "Key and value are Avro records, in Confluent's wire format."
    registry = [("value.converter.schema.registry.url", status.registry_url, "Where the records' schemas are kept.")]
    if status.log == "pulsar":
        form, registry = "Key and value are Avro records, whose schemas Pulsar keeps.", []
    _write(
        source,
        f"One table: reads events-{keyspace}.{table}, writes data-{keyspace}.{table}.",
        [
            ("name", f"{keyspace}-{table}", "The connector's name in metrics and logs."),
            ("keyspace", keyspace, "The table's keyspace."),
            ("table", table, "The table; it needs cdc = true."),
            ("cassandra.contact.points", ",".join(status.contact_points), "Where rows are read again."),
            ("cassandra.port", status.cql_port, "Their port for CQL."),
            ("cassandra.local.dc", status.local_dc, "The data centre to read in."),
            ("query.consistency", "LOCAL_QUORUM", "The level of those reads."),
            *registry,
            ("output.format", "key-value-avro", form),
        ],
    )
    return Program("connector", Path(status.directory), [worker, source])


def _brokers(status: Status, why: str) -> list[tuple[str, object, str]]:
    """Where the brokers are."""
    if status.log == "kafka":
        return [("bootstrap.servers", status.bootstrap_servers, why)]
    return [
        ("pulsar.service.url", status.pulsar_url, why),
        ("pulsar.admin.url", status.pulsar_admin_url, "Their REST API, over which missing topics are made."),
    ]


def free_port(usual: int) -> int:
    """A port of 127.0.0.1 that nobody listens on: the usual one if it is free."""
    for port in (usual, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise AssertionError("every system has a port")


def _write(path: Path, title: str, entries: Iterable[tuple[str, object, str]]) -> Path:
    """A properties file of (key, value, comment)."""
    lines = [f"# {title}"]
    for key, value, comment in entries:
        text = str(value).replace("\\", "\\\\")  # the only character of a path that this format escapes
        lines += ["", f"# {comment}", f"{key}={text}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path
