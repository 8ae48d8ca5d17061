"""Servers of our own: Cassandra nodes with their agents, Kafka behind relays, and a registry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.chaos.cluster import ChaosCluster, connect
from bench.chaos.machine import DISK_MB, clock_environment, make_clock_library, mount_disk, unmount_disk
from bench.chaos.modes import KEYSPACE
from bench.chaos.open_transactions import end_open_transactions
from bench.chaos.service import Service, free_port, write_properties
from bench.chaos.topology import OTHER_CENTER, Topology
from bench.connections import connected_hosts
from bench.processes import family
from bench.relay import Relay
from helenus_sinks.kafka.open_transactions import HeldBack
from helenus_stack import kafka
from helenus_stack.errors import StackError
from helenus_stack.process import stop
from helenus_stack.stack import Stack
from helenus_stack.status import NodeStatus

_YAML = {
    "commitlog_segment_size": "4MiB",
    "cdc_total_space": "512MiB",
    # What a replica that hangs has not taken by then is dropped, and a hint: here, within a fault.
    "write_request_timeout": "2000ms",
    "hints_flush_period": "500ms",
}
_RANDOM_TOKENS = {"num_tokens": 16, "initial_token": None}
_REPLAY = {"JAVA_TOOL_OPTIONS": "-Dcassandra.commitlog.ignorereplayerrors=true"}
"""A node that is killed soon after an ALTER may have changes in its log that it can't replay, as the schema on its disk
is of before: it would never start again (seen of 5.0.9). What it leaves out, the repair at the end brings.
"""


class StackCluster(ChaosCluster):
    """A cluster on a stack, which is up while it is entered."""

    stack: Stack
    worker_relay: Relay
    agent_relay: Relay

    def __init__(
        self,
        directory: Path,
        modes: Sequence[str],
        workers: int = 1,
        topology: Topology | None = None,
        has_disks: bool = False,
        clocked: Collection[str] = (),
    ) -> None:
        """`has_disks`: agents and workers have their own. What is `clocked` has a clock of its own, by its name."""
        super().__init__(directory, modes, workers)
        self.topology = topology or Topology()
        self._has_disks, self._clocked = has_disks, clocked
        self._clock_environments: dict[str, Mapping[str, str]] = {}
        self._remote_session: Any = None
        self.flipped_segments: set[tuple[str, str]] = set()
        """Agents and names of segments that a fault has damaged: an agent is ready once its quarantine has none."""

    def _open(self) -> None:
        # One after the other: few cores have enough to do with nodes that start.
        topology, yaml = self.topology, {**_YAML, "cdc_on_repair_enabled": self.topology.logs_repairs}
        if self._clocked:
            library = make_clock_library(self.directory)
            self._clock_environments = {name: clock_environment(library, self.clock(name)) for name in self._clocked}
        replaying = {name: {**_REPLAY, **self._clock_environments.get(name, {})} for name in topology.servers}
        self.stack = self._exit.enter_context(
            Stack(
                self.directory / "stack",
                only=["kafka", "registry"],
                nodes=topology.nodes,
                data_centers=topology.data_centers,
                racks=topology.racks,
                log="kafka",
                brief=False,
                cassandra_yaml=yaml if topology.tokens == 1 else {**yaml, **_RANDOM_TOKENS},
                environments={**self._clock_environments, **replaying},
            )
        )
        self._put_relays_before_kafka()
        self.stack.up("cassandra")
        self.status = self.stack.status()
        self.session = connect(self.status)
        self._exit.callback(self.session.cluster.shutdown)
        if topology.data_centers > 1:
            self._remote_session = connect(replace(self.status, local_dc=OTHER_CENTER))
            self._exit.callback(self._remote_session.cluster.shutdown)

    @property
    def replication(self) -> str:
        return self.topology.replication()

    def reaches_agents(self, level: str, data_center: int) -> bool:
        return self.topology.reaches_agents(level, data_center)

    def session_in(self, data_center: int) -> Any:
        return self.session if data_center == 1 else self._remote_session

    def alter_keyspace(self, replication: str) -> None:
        """Give the keyspace another replication."""
        self.session.execute(f"ALTER KEYSPACE {KEYSPACE} WITH replication = {replication}", timeout=60)

    def nodetool(self, *arguments: str, nodes: Sequence[int] = ()) -> None:
        with ThreadPoolExecutor() as pool:
            numbers = nodes or range(1, self.topology.nodes + 1)
            list(pool.map(lambda node: self.stack.nodetool(*arguments, node=node), numbers))

    def repair(self, nodes: Sequence[int] = ()) -> None:
        """As the base class says, or what these nodes hold, one node after the other."""
        for node in nodes or self.topology.repaired_nodes:
            self.stack.nodetool("repair", "-full", "-j", "4", KEYSPACE, node=node)

    def check_connections(self) -> None:
        remote = {node.address for node in self.status.nodes if node.data_center != self.status.local_dc}
        for worker in self.workers if remote else ():
            if (pid := worker.process.pid) is not None:
                hosts = connected_hosts(family(pid), self.status.cql_port) & remote
                complaint = f"{worker.name} has connections to {', '.join(sorted(hosts))}"
                if hosts and complaint not in self.complaints:
                    self.complaints.append(complaint)

    def clock_environment(self, process: str) -> Mapping[str, str]:
        """Return what gives a process the clock that is its own; empty if it has none."""
        return self._clock_environments.get(process, {})

    def kill_server(self, name: str) -> None:
        """Kill a server at once, also while another one starts."""
        stop([self.stack.process(server) for server in self.stack.select([name])], 0)

    def revive_servers(self) -> None:
        servers = [server.name for server in self.stack.servers]
        try:
            self.stack.up(*servers)
        except StackError:  # one was still ending, say
            self.stack.up(*servers)

    def _are_services_ready(self) -> bool:
        for agent, segment in self.flipped_segments:  # as docs/failures.md has it: report them, then remove them
            (self.state_directory(agent) / "quarantine" / segment).unlink(missing_ok=True)
        return super()._are_services_ready()

    def end_open_transactions(self) -> list[HeldBack]:
        topics = [f"data-{mode.topic_table}" for mode in self.modes]
        return end_open_transactions(str(self.status.bootstrap_servers), topics)

    def wait_for_hints(self) -> None:
        folders = [self.stack.directory / node.name / "hints" for node in self.status.nodes]
        # Those of a host that was lost stay: nobody takes them.
        hosts = {str(host.host_id) for host in self.session.cluster.metadata.all_hosts()}
        self.wait(
            lambda: not [f for folder in folders for f in folder.glob("*.hints") if f.name[:36] in hosts],
            "hints are delivered",
        )

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
        Stack(self.stack.directory, kafka_properties=more, environments=self._clock_environments).start("kafka")

    def _make_machines(self) -> None:
        if self._has_disks:
            for service in self.services:
                is_agent = service in self.agents
                folder = (self.state_directory if is_agent else self.checkpoint_directory)(service.name)
                mount_disk(folder, DISK_MB["agent" if is_agent else "worker"])
                self._exit.callback(unmount_disk, folder)
        self.agents, self.workers = list(map(self._with_clock, self.agents)), list(map(self._with_clock, self.workers))

    def _with_clock(self, service: Service) -> Service:
        return replace(service, environment={**service.environment, **self.clock_environment(service.name)})

    def _make_agents(self) -> list[Service]:
        return [agent for agent in map(self.make_agent, self.status.nodes) if agent.name in self.topology.agents]

    def make_agent(self, node: NodeStatus) -> Service:
        """Return the agent of a node; it is not started."""
        name, port = f"agent{node.name[-1]}", free_port()
        cells = "|".join(mode.table for mode in self.modes if mode.has_cells)
        file = write_properties(
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
                "startup.timeout.ms": 300_000,
                **({"cells.include.list": f"{KEYSPACE}\\\\.({cells})"} if cells else {}),
            },
        )
        return Service(name, self.stack.directory, "helenus-agent", [file], port)

    def _worker_properties(self) -> Mapping[str, object]:
        return {"bootstrap.servers": f"127.0.0.1:{self.worker_relay.port}"}

    def _connector_properties(self) -> Mapping[str, object]:
        return {
            "cassandra.contact.points": ",".join(self._local_addresses),
            "cassandra.port": self.status.cql_port,
            "cassandra.local.dc": self.status.local_dc,
            "value.converter.schema.registry.url": self.status.registry_url,
        }

    @property
    def _local_addresses(self) -> list[str]:
        return [node.address for node in self.status.nodes if node.data_center == self.status.local_dc]
