"""What runs: a stack of three nodes, Kafka and a registry, an agent on each node, workers, and relays before Kafka."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, FallthroughRetryPolicy
from cassandra.query import tuple_factory

from bench.chaos.modes import DEFAULTS, KEYSPACE, MODES, Mode
from bench.chaos.service import Service
from bench.relay import Relay
from helenus_schemas.cql.table import Table, read_tables
from helenus_stack import kafka
from helenus_stack.errors import StackError
from helenus_stack.java import spark_java_home
from helenus_stack.process import stop
from helenus_stack.progress import Silent
from helenus_stack.stack import Stack
from helenus_stack.status import NodeStatus, Status

NODES = 3
_YAML = {
    "commitlog_segment_size": "4MiB",
    "cdc_total_space": "512MiB",
    # What a replica that hangs has not taken by then is dropped, and a hint: here, within a fault.
    "write_request_timeout": "2000ms",
    "hints_flush_period": "500ms",
}
_SPARK = {
    # Spark lives for minutes, on few cores: less to compile, at the start and for each query.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_PATIENCE_S = 300.0
_CONTINUE = signal.SIGCONT


class ChaosCluster:
    """Servers, agents and workers in `directory`, up while it is entered. `modes` are those of the connectors.

    With two workers these are a group; what has state is with a third worker of its own.
    """

    def __init__(self, directory: Path, modes: Sequence[str], workers: int = 1) -> None:
        self.directory = directory
        self.modes = [MODES[name] for name in modes]
        self.agents: list[Service] = []
        self.workers: list[Service] = []
        self.complaints: list[str] = []
        """What faults found to be against a promise."""
        self._worker_count = workers
        self._exit = ExitStack()

    def __enter__(self) -> ChaosCluster:
        try:
            self.stack = self._exit.enter_context(
                Stack(self.directory / "stack", nodes=NODES, log="kafka", brief=False, cassandra_yaml=_YAML)
            )
            self._put_relays_before_kafka()
            self.status: Status = self.stack.status()
            self.session = self._connect()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for service in self.services:
            service.signal_family(_CONTINUE)
        stop([service.process for service in self.services], 15)
        self._exit.close()

    @property
    def services(self) -> list[Service]:
        return [*self.agents, *self.workers]

    def service(self, name: str) -> Service:
        """Return the agent or worker of this name."""
        return next(service for service in self.services if service.name == name)

    def start_services(self, creates: Mapping[str, str]) -> None:
        """Make the tables, and start agents and workers; returns when all are ready."""
        strategy = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
        self.session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {strategy}")
        self.session.execute(f"CREATE TYPE {KEYSPACE}.place (street text, no int)")
        for create in creates.values():
            self.session.execute(create, timeout=60)
        self.agents = [self._agent(node) for node in self.status.nodes]
        groups = [(f"worker{number + 1}", self.modes) for number in range(self._worker_count)]
        if self._worker_count > 1:
            stateless = [mode for mode in self.modes if not mode.has_state]
            stateful = [mode for mode in self.modes if mode.has_state]
            groups = [(name, stateless) for name, _ in groups] + ([("worker-state", stateful)] if stateful else [])
        self.workers = [self._worker(name, modes, name != "worker-state") for name, modes in groups if modes]
        for service in self.services:
            service.start()
        self.wait(lambda: all(service.is_ready() for service in self.services), "agents and workers are ready")

    def wait(self, condition: Callable[[], bool], description: str, seconds: float = _PATIENCE_S) -> None:
        """Wait until a condition holds; raises TimeoutError, with the logs' ends."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                tails = "\n".join(f"{s.name}: {s.health()}\n{s.tail()}" for s in self.services if not s.is_ready())
                raise TimeoutError(f"not within {seconds:.0f} s: {description}\n{tails}")
            time.sleep(0.5)

    def leader(self, mode: Mode) -> Service | None:
        """Return the worker that runs a mode's connector now, if one does."""
        for worker in self.workers:
            if self._worker_count > 1 and (worker.name == "worker-state") != mode.has_state:
                continue
            health = worker.health()
            if health and "standby: " not in health and "starting: " not in health:
                return worker
        return None

    def table(self, mode: Mode) -> Table:
        """Return the definition of a mode's table as it is now."""
        tables = read_tables(self.session, KEYSPACE, mode.table)
        return next(iter(tables.values()))

    def nodetool(self, *arguments: str, nodes: Sequence[int] = (1, 2, 3)) -> None:
        """Run nodetool on nodes at once. Raises StackError."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: self.stack.nodetool(*arguments, node=node), nodes))

    def kill_server(self, name: str) -> None:
        """Kill a server at once, also while another one starts."""
        stop([self.stack.process(server) for server in self.stack.select([name])], 0)

    def kill_pids(self, pids: Sequence[int]) -> None:
        """Kill processes at once; one that has ended is no error."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def revive(self) -> None:
        """Have every process run, none of it stopped by a signal; returns when all are ready."""
        for service in self.services:
            service.signal_family(_CONTINUE)
        for attempt in (1, 2):
            try:
                self.stack.up()
                break
            except StackError:
                if attempt == 2:
                    raise
        for service in self.services:
            service.start()
        self.wait(self._all_ready, "all run again")

    def _all_ready(self) -> bool:
        for service in self.services:
            service.start()  # as a supervisor does
        return all(service.is_ready() for service in self.services)

    def _put_relays_before_kafka(self) -> None:
        """Give Kafka two more listeners that advertise a relay: one for the workers, one for the agents."""
        folder = next(server.folder for server in self.stack.servers if server.name == "kafka")
        configured = kafka.configuration(self.stack.settings, folder)
        relays: list[Relay] = []
        more: dict[str, str] = {}
        for name in ("WORKER", "AGENT"):
            port = free_port()
            relay = self._exit.enter_context(Relay(port))
            relays.append(relay)
            for key, value in (
                ("listeners", f"{name}://127.0.0.1:{port}"),
                ("advertised.listeners", f"{name}://127.0.0.1:{relay.port}"),
                ("listener.security.protocol.map", f"{name}:PLAINTEXT"),
            ):
                more[key] = f"{more.get(key, configured[key])},{value}"
        self.worker_relay, self.agent_relay = relays
        self.stack.stop("kafka")
        Stack(self.stack.directory, kafka_properties=more).start("kafka")

    def _connect(self) -> Any:
        """A session that tries each statement once. Its profile `all` reads at ALL, rows as tuples."""
        policy = DCAwareRoundRobinPolicy(self.status.local_dc)
        common = {"load_balancing_policy": policy, "retry_policy": FallthroughRetryPolicy()}
        profiles = {
            EXEC_PROFILE_DEFAULT: ExecutionProfile(**common, request_timeout=10),
            "all": ExecutionProfile(
                **common, consistency_level=ConsistencyLevel.ALL, row_factory=tuple_factory, request_timeout=60
            ),
        }
        cluster = Cluster(
            self.status.contact_points,
            port=self.status.cql_port,
            execution_profiles=profiles,
            reconnection_policy=ConstantReconnectionPolicy(1.0, max_attempts=None),
            connect_timeout=30,
        )
        self._exit.callback(cluster.shutdown)
        return cluster.connect()

    def _agent(self, node: NodeStatus) -> Service:
        name, port = f"agent{node.name[-1]}", free_port()
        cells = "|".join(mode.table for mode in self.modes if mode.has_cells)
        file = _write(
            self.directory / f"{name}.properties",
            {
                "cassandra.config": node.cassandra_yaml,
                "cassandra.contact.points": node.address,
                "cassandra.port": self.status.cql_port,
                "cassandra.local.dc": node.data_center,
                "state.dir": self.state_directory(name),
                "kafka.bootstrap.servers": f"127.0.0.1:{self.agent_relay.port}",
                "listeners": f"http://127.0.0.1:{port}",
                "topic.partitions": 2,
                **({"cells.include.list": f"{KEYSPACE}\\\\.({cells})"} if cells else {}),
            },
        )
        return Service(name, self.stack.directory, "helenus-agent", [file], port)

    def state_directory(self, agent: str) -> Path:
        """Return where an agent saves its state."""
        return self.directory / f"state-{agent}"

    def _worker(self, name: str, modes: Sequence[Mode], is_of_group: bool) -> Service:
        port = free_port()
        group = {"group.id": "chaos"} if is_of_group and self._worker_count > 1 else {}
        worker = _write(
            self.directory / f"{name}.properties",
            {
                "bootstrap.servers": f"127.0.0.1:{self.worker_relay.port}",
                "checkpoint.dir": self.directory / f"checkpoint-{name}",
                "listeners": f"http://127.0.0.1:{port}",
                "startup.timeout.ms": 300_000,
                "spark.master": "local[2,4]",
                **_SPARK,
                **group,
            },
        )
        files = [worker, *(self._connector(mode) for mode in modes)]
        java = {"JAVA_HOME": str(spark_java_home(Silent()))}
        return Service(name, self.stack.directory, "helenus-connector", files, port, java)

    def _connector(self, mode: Mode) -> Path:
        return _write(
            self.directory / f"{mode.table}.properties",
            {
                "name": mode.connector,
                "keyspace": KEYSPACE,
                "table": mode.table,
                "cassandra.contact.points": ",".join(self.status.contact_points),
                "cassandra.port": self.status.cql_port,
                "cassandra.local.dc": self.status.local_dc,
                "value.converter.schema.registry.url": self.status.registry_url,
                **DEFAULTS,
                **mode.properties,
            },
        )


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write(path: Path, values: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path
