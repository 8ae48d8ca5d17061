"""A stack: servers in a directory, brought up and down as one.

with Stack(tmp_path, nodes=1) as stack:
    status = stack.status()  # contact_points, cql_port, bootstrap_servers, registry_url, pulsar_url, nodes, servers
    stack.kill("kafka")
    stack.start("kafka")
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from helenus_stack import (
    cassandra,
    connect,
    kafka,
    ports,
    postgres,
    programs,
    pulsar,
    readiness,
    registry,
    secure,
    watchdog,
)
from helenus_stack.archive import OLDEST, Archive
from helenus_stack.errors import StackError
from helenus_stack.files import exclusive
from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.process import STOP_SECONDS, Process, stop
from helenus_stack.progress import Progress, Silent
from helenus_stack.resolve import resolve
from helenus_stack.server import Server
from helenus_stack.settings import Logs, Override, Settings
from helenus_stack.status import Status, report

ATTEMPTS = 3


class Stack:
    """The servers that live in `directory`; `only` some of them, if names are given.

    `cassandra`, `kafka` and `pulsar` are their versions. A `secure` stack has TLS and passwords; its status says which.
    Its `log` is kafka (with a schema registry), pulsar, or both.
    With `connect` it has a Kafka Connect worker, with `postgres` a database for that one's sinks. `environments` are of
    the servers that this object starts, by their names: what each has beside its own.
    A server is named `cassandra1`, `kafka`, `registry`, `pulsar`, `connect` or `postgres`; `cassandra` means every
    node. Settings that are None are as the directory's last `up` had them, or the defaults of `Settings`. As a context
    manager the stack is up inside, down after (its data stays), and never outlives this process, even one that is
    killed.
    Methods raise StackError.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        only: Sequence[str] = (),
        nodes: int | None = None,
        data_centers: int | None = None,
        racks: int | None = None,
        cassandra: str | None = None,
        kafka: str | None = None,
        pulsar: str | None = None,
        secure: bool | None = None,
        log: Logs | None = None,
        connect: bool | None = None,
        postgres: bool | None = None,
        port_offset: int | None = None,
        heap: str | None = None,
        brief: bool | None = None,
        cassandra_yaml: Mapping[str, Override] | None = None,
        kafka_properties: Mapping[str, str] | None = None,
        pulsar_properties: Mapping[str, str] | None = None,
        environments: Mapping[str, Mapping[str, str]] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.progress = progress or Silent()
        self._only = only
        self._environments = environments or {}
        self._port_offset = port_offset
        self._given = {
            "nodes": nodes,
            "data_centers": data_centers,
            "racks": racks,
            "cassandra": cassandra,
            "kafka": kafka,
            "pulsar": pulsar,
            "secure": secure,
            "log": log,
            "connect": connect,
            "postgres": postgres,
            "heap": heap,
            "brief": brief,
            "cassandra_yaml": cassandra_yaml,
            "kafka_properties": kafka_properties,
            "pulsar_properties": pulsar_properties,
        }
        self._file = self.directory / "stack.json"
        self._lock = self.directory / "lock"
        self._run = self.directory / "run"
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._claim: socket.socket | None = None
        self._archives: dict[str, Archive] = {}
        self.settings = Settings.changed(self._file, self._given)

    def __enter__(self) -> Stack:
        self._watchdog = watchdog.start(self._run, self._lock)
        try:
            self.up()
            self._claim = ports.hold(self.settings.port_offset)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
        if self._claim:
            self._claim.close()
            self._claim = None
        if self._watchdog:
            self._watchdog.terminate()
            self._watchdog.wait()
            self._watchdog = None

    @property
    def servers(self) -> list[Server]:
        """All servers of the stack, running or not."""
        servers = cassandra.servers(self.settings, self.directory)
        if self.settings.has_kafka:
            servers += [kafka.server(self.settings, self.directory), registry.server(self.settings, self.directory)]
        if self.settings.has_pulsar:
            servers.append(pulsar.server(self.settings, self.directory))
        if self.settings.connect:
            servers.append(connect.server(self.settings, self.directory))
        if self.settings.postgres:
            servers.append(postgres.server(self.settings, self.directory))
        return servers

    def select(self, names: Iterable[str] = ()) -> list[Server]:
        """The named servers; all if no name is given."""
        servers, names = self.servers, list(names)
        for name in names:
            if not any(name in (server.name, server.kind) for server in servers):
                server_names = ", ".join(server.name for server in servers)
                raise StackError(f"there is no server {name!r}", str(self.directory), f"name one of {server_names}")
        return [server for server in servers if not names or server.name in names or server.kind in names]

    def process(self, server: Server) -> Process:
        """The server's process."""
        return Process(self._run / f"{server.name}.pid")

    def status(self) -> Status:
        """Where clients connect, and how the servers are; takes some seconds if one of them hangs."""
        return report(self.directory, self.settings, [(server, self.process(server)) for server in self.servers])

    def fetch(self) -> None:
        """Downloads what the servers need, and the user's cache doesn't have yet."""
        self._fetch(self.servers)

    def up(self, *names: str) -> Status:
        """Starts the named servers (default: `only`, or all) where they don't run yet; returns when they are ready.

        If that fails, or is interrupted, what this call started is stopped again, and its overrides are forgotten.
        """
        names = names or tuple(self._only)
        with self._alone():
            for server in self.select(names):
                self.process(server).signal(signal.SIGCONT)
            missing = [server.name for server in self.select(names) if self.process(server).pid is None]
            if not missing:
                self.progress.say("nothing to start: everything runs")
            if self._running and self.settings != Settings.changed(self._file, {}):
                self.progress.say("servers that run keep their settings until they are restarted")
            before = Settings.changed(self._file, {})
            with self._ports():
                self.settings.save(self._file)
                secure.prepare(self.settings, self.directory)
                started = self.select(missing) if missing else []
                try:
                    self._ready(started, [(server, self.process(server)) for server in self.select(names)])
                    nodes = [(server, self.process(server)) for server in self.select(["cassandra"])]
                    # Another server does not wait for nodes: one of them may just be ending.
                    has_nodes = any(server.kind == "cassandra" for server in self.select(names))
                    if has_nodes and len(nodes) > 1 and all(process.pid for _, process in nodes):
                        readiness.wait_united(nodes, self.settings, self.directory, self.progress)
                    for server in started:
                        server.furnish()
                        if (pid := self.process(server).pid) and server.name in self._archives:
                            self._archives.pop(server.name).make(pid)
                except BaseException:
                    stop(map(self.process, started), STOP_SECONDS)
                    self.settings.tried(before).save(self._file)
                    raise
        return self.status()

    def _ready(self, started: list[Server], servers: list[tuple[Server, Process]]) -> None:
        """Starts some of these servers, waits for all of them, and starts again those that are stuck."""
        for _ in range(ATTEMPTS):
            logged = {server.name: server.logged for server in started}
            self._launch(started)
            readiness.wait(servers, self.progress)
            started = [server for server in started if server.stuck(server.log.read_bytes()[logged[server.name] :])]
            if not started:
                return
            self.progress.say(
                f"{', '.join(server.name for server in started)} is stuck: stopping it, to start it again"
            )
            stop(map(self.process, started), STOP_SECONDS)
        raise readiness.failure(started[0], f"was stuck {ATTEMPTS} times")

    def down(self, *, delete: bool = False) -> None:
        """Stops everything, agent and connector first; with `delete`, removes the data too."""
        if not self.directory.exists():
            return
        with self._alone():
            files = sorted(self._run.glob("*.pid"))
            if files:
                self.progress.say(f"stopping {', '.join(file.stem for file in files)}: up to {STOP_SECONDS:.0f} s")
            programs.end(self.directory)
            stop(map(Process, files), STOP_SECONDS)
            if delete and self._file.exists():
                folders = [self.directory / name for name in ("run", "logs", "secrets", ".secrets")]
                for folder in (*(server.folder for server in self.servers), *folders):
                    shutil.rmtree(folder, ignore_errors=True)
                self._file.unlink()

    def start(self, name: str) -> None:
        """Starts a server and waits until it is ready."""
        self.up(name)

    def stop(self, name: str) -> None:
        """Asks a server to end, and waits until it has."""
        with self._alone():
            stop(map(self.process, self.select([name])), STOP_SECONDS)

    def kill(self, name: str) -> None:
        """Ends a server at once, as kill -9 does."""
        with self._alone():
            stop(map(self.process, self.select([name])), 0)

    def pause(self, name: str) -> None:
        """Freezes a server: it keeps its connections and answers nothing."""
        for server in self.select([name]):
            self.process(server).signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Lets a paused server go on."""
        for server in self.select([name]):
            self.process(server).signal(signal.SIGCONT)

    def move_to(self, version: str, cassandra_yaml: Mapping[str, Override] | None = None) -> None:
        """Makes this the Cassandra of each node, and overrides its configuration, from the node's next start on."""
        with self._alone():
            changed = replace(self.settings, cassandra=version, cassandra_yaml=cassandra_yaml or {})
            cassandra.version(changed)
            changed.save(self._file)
            self.settings, self._given["cassandra"] = changed, version
            self._given["cassandra_yaml"] = changed.cassandra_yaml

    def nodetool(self, *arguments: str, node: int = 1) -> str:
        """The output of Cassandra's nodetool, run on a node."""
        version = cassandra.version(self.settings)
        jars = fetch(read_lock(version.lock), self.progress, resolve)
        return cassandra.nodetool(self.settings, node - 1, java_home(version.java, self.progress), jars, *arguments)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time starts or stops servers in a directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ignore = self.directory / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        with exclusive(self._lock, self.progress, f"waiting for another helenus-stack in {self.directory}"):
            self.settings = Settings.changed(self._file, self._given)  # the other one may have changed them
            yield

    @property
    def _running(self) -> bool:
        return any(self.process(server).pid for server in self.servers)

    @contextmanager
    def _ports(self) -> Iterator[None]:
        """Chooses the stack's ports, and holds them while its servers start."""
        offset = self._port_offset
        if offset is None and self._file.exists():
            offset = self.settings.port_offset
        if self._running or self._claim:  # with the ports they were started with
            if self._port_offset not in (None, self.settings.port_offset):
                problem = f"the stack runs with port offset {self.settings.port_offset}, not {self._port_offset}"
                raise StackError(problem, str(self.directory), "run helenus-stack down first")
            yield
            return
        with ports.claim(self.settings, offset) as self.settings:
            yield

    def _fetch(self, servers: Sequence[Server]) -> list[Path]:
        """The Java of each server."""
        fetch([jar for lock in {server.lock for server in servers} for jar in read_lock(lock)], self.progress, resolve)
        return [java_home(server.java, self.progress, newer=server.newer_java) for server in servers]

    def _launch(self, servers: Sequence[Server]) -> None:
        if not servers:
            return
        for server, java in zip(servers, self._fetch(servers), strict=True):
            command = server.prepare(java, fetch(read_lock(server.lock), self.progress, resolve))
            environment = dict(command.environment)
            if server.java >= OLDEST and "CLASSPATH" in environment:
                self._archives[server.name] = Archive.for_classpath(server.lock, java, environment["CLASSPATH"])
                environment.update(self._archives[server.name].environment())
            environment.update(self._environments.get(server.name, {}))
            self.process(server).start(command.arguments, command.folder, server.log, environment)
            self.progress.say(f"starting {server.name} at {server.address}:{server.port}, log {server.log}")
