"""What any cluster of chaos has: a session, agents and workers, and tables with their connectors."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, FallthroughRetryPolicy
from cassandra.query import tuple_factory

from bench.chaos.modes import DEFAULTS, KEYSPACE, MODES, Mode
from bench.chaos.service import Service, free_port, write_properties
from helenus_schemas.cql.table import Table, read_tables
from helenus_sinks.kafka.open_transactions import HeldBack
from helenus_stack.errors import StackError
from helenus_stack.java import spark_java_home
from helenus_stack.process import stop
from helenus_stack.progress import Silent
from helenus_stack.status import Status

_SPARK = {
    # Spark lives for minutes, on few cores: less to compile, at the start and for each query.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_START_S = 900.0
_PATIENCE_S = 300.0
_STOP_S = 15.0
_AGREEMENT_S = 60.0
"""A node that hangs for a while agrees late: until then it takes a dropped table for one that is there."""
_TABLE_MISSING = "[table-missing]"
ClusterKind = TypeVar("ClusterKind", bound="ChaosCluster")


class ChaosCluster:
    """Agents and workers in `directory`, on servers that a subclass has. `modes` are those of the connectors.

    With two workers these are a group; what has state is with a third worker of its own.
    """

    status: Status
    """Where servers are."""
    session: Any
    """Tries each statement once. Its profile `all` reads at ALL, rows as tuples."""

    def __init__(self, directory: Path, modes: Sequence[str], workers: int = 1) -> None:
        self.directory = directory
        self.modes = [MODES[name] for name in modes]
        self.agents: list[Service] = []
        self.workers: list[Service] = []
        self.began_at = datetime.now(timezone.utc).isoformat()
        self.complaints: list[str] = []
        """What faults found to be against a promise."""
        self.state_lock = threading.Lock()
        """Held while an agent's state is damaged or deleted, and what it makes of that is seen: a node that is lost may
        take its agent with it meanwhile.
        """
        self._worker_count = workers
        self._exit = ExitStack()

    def __enter__(self: ClusterKind) -> ClusterKind:
        try:
            self._open()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for service in self.services:
            service.signal_family(signal.SIGCONT)
        stop([service.process for service in self.services], _STOP_S)
        self._exit.close()

    def _open(self) -> None:
        """Have servers, `status` and `session`; what is to be closed is in `_exit`."""
        raise NotImplementedError

    def _make_agents(self) -> list[Service]:
        """Return the agents that this command runs."""
        raise NotImplementedError

    def _make_machines(self) -> None:
        """Give agents and workers disks and clocks of their own, if faults need them."""

    def _worker_properties(self) -> Mapping[str, object]:
        """Return properties of a worker: at least its brokers."""
        raise NotImplementedError

    def _connector_properties(self) -> Mapping[str, object]:
        """Return properties of each connector: where Cassandra and the registry are."""
        raise NotImplementedError

    def nodetool(self, *arguments: str, nodes: Sequence[int] = ()) -> None:
        """Run nodetool on nodes at once, by their numbers; on all if none is given. Raises StackError."""
        raise NotImplementedError

    def repair(self) -> None:
        """Repair all partitions of the keyspace in full. Raises StackError."""
        self.nodetool("repair", "-full", "-j", "4", KEYSPACE, nodes=[1])

    def state_directory(self, agent: str) -> Path:
        """Return where an agent saves its state."""
        return self.directory / f"state-{agent}"

    def checkpoint_directory(self, worker: str) -> Path:
        """Return a worker's `checkpoint.dir`."""
        return self.directory / f"checkpoint-{worker}"

    def clock(self, process: str) -> Path:
        """Return the file that sets the clock of a server, agent or worker, if it has one of its own."""
        return self.directory / f"clock-{process}"

    def revive_servers(self) -> None:
        """Have each server run that this command started."""

    def end_open_transactions(self) -> list[HeldBack]:
        """End what the broker left open of transactions in data topics, and return where they began. By default none is
        looked for.
        """
        return []

    def wait_for_hints(self) -> None:
        """Wait until what replicas missed has come to them, as far as that can be seen."""

    def reaches_agents(self, level: str, data_center: int) -> bool:
        """Return whether the agents are sure to see a write that is acknowledged so, as it was sent."""
        return True

    def session_in(self, data_center: int) -> Any:
        """Return a session, as `session`, whose coordinators are in a data centre, by its number from 1."""
        return self.session

    def check_connections(self) -> None:
        """Complain if a worker has a connection to a node outside `cassandra.local.dc`."""

    @property
    def replication(self) -> str:
        """Return the replication of the keyspace that is made."""
        return f"{{'class': 'NetworkTopologyStrategy', '{self.status.local_dc}': 3}}"

    @property
    def services(self) -> list[Service]:
        return [*self.agents, *self.workers]

    def service(self, name: str) -> Service:
        """Return the agent or worker of this name."""
        return next(service for service in self.services if service.name == name)

    def start_services(self, creates: Mapping[str, str]) -> None:
        """Make the tables, and start agents and workers; returns when all are ready."""
        self.session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {self.replication}", timeout=60)
        self.session.execute(f"CREATE TYPE {KEYSPACE}.place (street text, no int)", timeout=60)
        for create in creates.values():
            self.session.execute(create, timeout=60)
        self.agents = self._make_agents()
        groups = [(f"worker{number + 1}", self.modes) for number in range(self._worker_count)]
        if self._worker_count > 1:
            stateless = [mode for mode in self.modes if not mode.has_state]
            stateful = [mode for mode in self.modes if mode.has_state]
            groups = [(name, stateless) for name, _ in groups] + [("worker-state", stateful)]
        self.workers = [self._make_worker(name, modes) for name, modes in groups if modes]
        self._make_machines()
        for service in self.services:
            service.start()
        self.wait(self._have_services_started, "agents and workers are ready", _START_S)

    def _have_services_started(self) -> bool:
        for service in self.services:
            if service.process.pid is None:
                raise StackError("it ended at its start", service.name, "see the end of its log", service.tail(3))
        return all(service.is_ready() for service in self.services)

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
        """Return the definition of a mode's table as it is now. Raises LookupError if there is none."""
        tables = list(read_tables(self.session, KEYSPACE, mode.table).values())
        if not tables:
            raise LookupError(f"there is no table {mode.topic_table}")
        return tables[0]

    def kill_pids(self, pids: Sequence[int]) -> None:
        """Kill processes at once; one that has ended is no error."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def revive(self) -> None:
        """Have every process run, none of it stopped by a signal; returns when all are ready."""
        for service in self.services:
            service.signal_family(signal.SIGCONT)
        self.revive_servers()
        self.wait(self._are_services_ready, "all run again")

    def restart_missing_tables(self) -> None:
        """Restart tasks that failed while their table was dropped and not created yet, as an operator does."""
        for mode in self.modes:
            worker = self.leader(mode)
            with suppress(OSError, ValueError, KeyError):
                tasks = worker.get_json(f"/connectors/{mode.connector}/status")["tasks"] if worker else []
                if worker and any(_TABLE_MISSING in task.get("trace", "") for task in tasks):
                    worker.post(f"/connectors/{mode.connector}/restart?includeTasks=true")

    def _are_services_ready(self) -> bool:
        self.restart_missing_tables()
        for service in self.services:
            service.start()  # as a supervisor does
        return all(service.is_ready() for service in self.services)

    def _make_worker(self, name: str, modes: Sequence[Mode]) -> Service:
        port = free_port()
        group = {"group.id": KEYSPACE} if self._worker_count > 1 and name != "worker-state" else {}
        own = {
            "checkpoint.dir": self.checkpoint_directory(name),
            "listeners": f"http://127.0.0.1:{port}",
            "startup.timeout.ms": 300_000,
        }
        file = self.directory / f"{name}.properties"
        write_properties(file, {"spark.master": "local[2,4]", **_SPARK, **self._worker_properties(), **own, **group})
        files = [file, *(self._write_connector(mode) for mode in modes)]
        java = {"JAVA_HOME": str(spark_java_home(Silent()))}
        return Service(name, Path(self.status.directory), "helenus-connector", files, port, java)

    def _write_connector(self, mode: Mode) -> Path:
        own = {"name": mode.connector, "keyspace": KEYSPACE, "table": mode.table, **DEFAULTS, **mode.properties}
        return write_properties(self.directory / f"{mode.table}.properties", {**self._connector_properties(), **own})


def connect(status: Status, **more: Any) -> Any:
    """Return a session as `ChaosCluster.session` says; `more` are arguments of the driver's Cluster."""
    common = {
        "load_balancing_policy": DCAwareRoundRobinPolicy(status.local_dc),
        "retry_policy": FallthroughRetryPolicy(),
    }
    profiles = {
        EXEC_PROFILE_DEFAULT: ExecutionProfile(**common, request_timeout=10),
        "all": ExecutionProfile(
            **common, consistency_level=ConsistencyLevel.ALL, row_factory=tuple_factory, request_timeout=60
        ),
    }
    return Cluster(
        status.contact_points,
        port=status.cql_port,
        execution_profiles=profiles,
        reconnection_policy=ConstantReconnectionPolicy(1.0, max_attempts=None),
        connect_timeout=30,
        max_schema_agreement_wait=_AGREEMENT_S,
        **more,
    ).connect()
