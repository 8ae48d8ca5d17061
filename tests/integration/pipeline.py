"""The path under test: agent and connector run by their commands, and what comes out at the end."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import spark_start
from cassandra.cluster import Cluster, NoHostAvailable, Session
from cassandra.query import tuple_factory
from integration.held_topics import HeldTopics
from patience import PATIENCE_S, eventually

from helenus_schemas.cql.table import read_tables
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.log import Log
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog
from helenus_stack.compare import Difference, differences
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.readers import Reader, reader
from helenus_stack.records import Record
from helenus_stack.settings import LogName
from helenus_stack.status import Status

MIN_AGE_MS = 5000
"""Far above any write here; a tenth of what it is as a rule, as tests wait until no key does."""
METRIC = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_BUG = re.compile(r"Error at \w+\.py:\d+: ")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def write_properties(path: Path, values: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def script(name: str) -> str:
    """A command of Helenus, as it is installed with this Python."""
    return str(Path(sys.executable).with_name(name))


def _end_with_parent() -> None:
    """A test run that is killed leaves no process behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def total(metrics: Mapping[tuple[str, str], float], name: str, **labels: str) -> float:
    """The sum of a metric over all series with these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(v for (n, series), v in metrics.items() if n == name and all(w in series for w in wanted))


@dataclass
class Command:
    """One of Helenus's commands as a process, with its monitoring port."""

    arguments: list[str]
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    folder: Path | None = None

    def start(self, **environment: str) -> Command:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [script(self.arguments[0]), *self.arguments[1:]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={
                    **os.environ,
                    "JAVA_HOME": str(spark_java_home(Silent())),
                    "HELENUS_TEST": str(self.log.parent),
                    **environment,
                },
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        return self

    def ready(self) -> Command:
        eventually(self._is_ready, lambda: f"{self.arguments[0]} is ready; its log ends:\n{self.tail()}")
        return self

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.arguments[0]} ended:\n{self.tail()}"
        return self.health()[0] == 200

    def health(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> dict[tuple[str, str], float]:
        """Values by name and labels, as in `("helenus_x_total", 'connector="a"')`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return {(name, labels): float(value) for name, labels, value in METRIC.findall(answer.read().decode())}

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric over all series with these labels."""
        return total(self.metrics(), name, **labels)

    def kill(self) -> None:
        """kill -9, of this process alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def dies(self) -> int:
        """Wait for its end; returns the exit status."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM; it must end within seconds."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


@dataclass
class Pipeline:
    """Agent and connector for tables of one stack, in `directory`, over its Log."""

    status: Status
    directory: Path
    agent: Command = field(init=False)
    connector: Command = field(init=False)
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = reader(self.status)
        self.directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        agent = write_properties(self.directory / "agent.properties", self.agent_properties(port))
        self.agent = Command(["helenus-agent", str(agent)], self.directory / "agent.log", port)

    def agent_properties(self, port: int) -> dict[str, object]:
        return {
            "cassandra.config": self.status.nodes[0].cassandra_yaml,
            "cassandra.contact.points": self.status.nodes[0].address,
            "cassandra.port": self.status.cql_port,
            "cassandra.local.dc": self.status.local_dc,
            "state.dir": self.directory / "state",
            **self.brokers("kafka.bootstrap.servers"),
            "http.port": port,
        }

    def brokers(self, kafka: str) -> dict[str, object]:
        """The Log's properties; `kafka` is the key for Kafka's brokers."""
        if self.status.log == "kafka":
            return {kafka: self.status.bootstrap_servers}
        return {"log": "pulsar", **self.status.pulsar()}

    def connect(self, *tables: str, **more: object) -> Command:
        """Make the connector's files for these tables (`ks.table`); `more` are keys with `_` for dots."""
        port = free_port()
        worker = write_properties(
            self.directory / "worker.properties",
            {
                **self.brokers("bootstrap.servers"),
                "checkpoint.dir": self.directory / "checkpoint",
                "listeners": f"http://127.0.0.1:{port}",
                "spark.master": "local[2,4]",
                **spark_start.settings(),
                "log.level": "debug",
            },
        )
        files = [
            str(write_properties(self.directory / f"{t}.properties", {**self.connector_properties(t), **dotted(more)}))
            for t in tables
        ]
        self.connector = Command(["helenus-connector", str(worker), *files], self.directory / "connector.log", port)
        return self.connector

    @contextmanager
    def connected(self, tables: Mapping[str, Mapping[str, object]]) -> Iterator[Pipeline]:
        """Make connectors of these tables in the worker that runs, over REST, and delete them in the end.

        Each table has its further properties; None leaves a key out.
        """
        names = []
        for table, more in tables.items():
            names.append(self.configure(table, more))
        try:
            eventually(lambda: self.connector.health()[0] == 200, lambda: f"{names} run\n{self.connector.tail()}")
            yield self
        finally:
            for name in names:
                self.call_rest("DELETE", name)

    def configure(self, table: str, more: Mapping[str, object]) -> str:
        """Have a connector of this table with these further properties in the worker that runs; returns its name."""
        properties = {**self.connector_properties(table), **more}
        config = {key: str(value) for key, value in properties.items() if value is not None}
        self.call_rest("PUT", f"{config['name']}/config", {"connector.class": "helenus.CassandraSource", **config})
        return config["name"]

    def call_rest(self, method: str, path: str, body: object = None) -> None:
        """Ask the worker for something of its connectors."""
        url, data = f"http://127.0.0.1:{self.connector.port}/connectors/{path}", json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        urllib.request.urlopen(request, timeout=60).close()

    def connector_properties(self, table: str) -> dict[str, object]:
        keyspace, name = table.split(".")
        registry = {"value.converter.schema.registry.url": self.status.registry_url}
        return {
            "name": f"{keyspace}-{name}",
            "keyspace": keyspace,
            "table": name,
            "cassandra.contact.points": ",".join(self.status.contact_points),
            "cassandra.port": self.status.cql_port,
            "cassandra.local.dc": self.status.local_dc,
            "settle.min.age.ms": MIN_AGE_MS,
            "snapshot.mode": "never",  # tests count records
            **(registry if self.status.log == "kafka" else {}),
        }

    def records(self, table: str) -> list[Record]:
        if self.status.log == "kafka":
            return self.held_topics.records(f"data-{table}")
        return [self.reader.record(message) for message in self.reader.messages(f"data-{table}")]

    @cached_property
    def held_topics(self) -> HeldTopics:
        """What topics of Kafka hold; it is closed with the pipeline."""
        return HeldTopics(self.status, self.reader)

    @contextmanager
    def log(self) -> Iterator[Log]:
        """The Log, to append what no agent would; it is flushed at the end."""
        log: Log = KafkaLog({"bootstrap.servers": self.status.bootstrap_servers})
        if self.status.log == "pulsar":
            log = PulsarLog(PulsarConfig(str(self.status.pulsar_url), self.status.pulsar_admin_url))
        with closing(log):
            yield log
            log.flush(30)

    def differences(self, table: str) -> list[Difference]:
        keyspace, name = table.split(".")
        try:
            tables = read_tables(self._named, keyspace)
        except NoHostAvailable:  # Cassandra was away, and the driver does not know that it is back
            self._disconnect()
            tables = read_tables(self._named, keyspace)
        return differences(self._tuples, next(t for t in tables.values() if t.name == name), self.records(table))

    @cached_property
    def _named(self) -> Session:
        """Kept: to connect costs more than what is asked. Without the driver's copy of all tables of a test run."""
        status = self.status
        return Cluster(status.contact_points, port=status.cql_port, schema_metadata_enabled=False).connect()

    @cached_property
    def _tuples(self) -> Session:
        session = self._named.cluster.connect()
        session.row_factory = tuple_factory
        return session

    def _disconnect(self) -> None:
        self.__dict__.pop("_tuples", None)
        if session := self.__dict__.pop("_named", None):
            session.cluster.shutdown()

    def converges(self, table: str) -> None:
        """Wait until topic and table agree and no key waits, then check that every event is accounted for."""
        name = table.replace(".", "-")
        differing: list[Difference] = []

        def agrees() -> bool:
            nonlocal differing
            if self.connector.health()[0] != 200:
                return False
            if self.connector.total("helenus_connector_keys_unconfirmed", connector=name):
                return False
            differing = self.differences(table)
            return not differing

        try:
            eventually(agrees, f"{table} converges")
            self.adds_up(name)
            eventually(agrees, f"{table} converges")  # its last batch is counted now, and so are keys it left waiting
        except AssertionError:
            shown = "\n".join(map(str, differing[:10]))
            raise AssertionError(
                f"{table} has not converged, {len(differing)} keys differ:\n{shown}\n"
                f"connector:\n{self.connector.tail()}\nagent:\n{self.agent.tail()}"
            ) from None

    def adds_up(self, connector: str) -> None:
        """events read = published + unchanged + confirmed + unconfirmed + dead-lettered + those that wait at the gate

        A batch is counted when it is done, which may be a moment after its records are there.
        """
        names = ("events_read_total", "events_total", "events_unconfirmed", "gate_waiting_events")
        counts = [0.0] * len(names)

        def agree() -> bool:
            metrics = self.connector.metrics()
            counts[:] = [total(metrics, f"helenus_connector_{name}", connector=connector) for name in names]
            return counts[0] == sum(counts[1:])

        eventually(agree, lambda: "{} events read, {} done, {} unconfirmed, {} at the gate".format(*counts))

    def stop(self) -> None:
        for command in (getattr(self, "connector", None), self.agent):
            if command is not None and command.process is not None:
                command.stop()
        if held_topics := self.__dict__.pop("held_topics", None):
            held_topics.close()
        self.reader.close()
        self._disconnect()
        connector = getattr(self, "connector", None)
        log_lines = (
            connector.log.read_text(errors="replace").splitlines() if connector and connector.log.exists() else []
        )
        # Also one that goes by when Spark does a task again.
        assert not [line for line in log_lines if _BUG.search(line)]


Lasting = Callable[[LogName], Pipeline]


def dotted(values: Mapping[str, object]) -> dict[str, object]:
    return {key.replace("_", "."): value for key, value in values.items()}
