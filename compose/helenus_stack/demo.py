"""`helenus-stack demo`: the whole path on real servers, shown statement by statement, and checked at the end."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cassandra.query import tuple_factory
from rich.console import Console

from helenus_schemas.cql.table import read_tables
from helenus_stack import programs, watchdog
from helenus_stack.compare import differences
from helenus_stack.cql import session
from helenus_stack.errors import StackError
from helenus_stack.files import try_lock
from helenus_stack.java import spark_java_home
from helenus_stack.process import Process
from helenus_stack.programs import Program
from helenus_stack.progress import Terminal
from helenus_stack.readers import Reader, reader
from helenus_stack.settings import LogName
from helenus_stack.show import LEGEND, Show, how_to_go_on, verdict
from helenus_stack.stack import Stack
from helenus_stack.status import Status
from helenus_stack.trace import Search, Tracer
from helenus_stack.workload import CHAPTERS, KEYSPACE, SCHEMA, TABLE

FOLDER = "demo"
"""Where in the stack's directory the demo keeps its files; its presence says that the stack's data are a demo's."""
EVENTS, DATA = f"events-{KEYSPACE}.{TABLE}", f"data-{KEYSPACE}.{TABLE}"
START_SECONDS = 60.0
FIRST_SECONDS = 120.0
TRACE_SECONDS = 30.0
CONVERGE_SECONDS = 30.0
QUIET_SECONDS = 2.0
PAUSE_SECONDS = 0.1
MEMORY_GB = 3.0
MEMORY_FILE = Path("/proc/meminfo")


def run(directory: Path, keep: bool, log: LogName = "kafka") -> int:
    """Runs the demo in a stack's directory and gives the exit code: 0 if topic and table agree, else 1; 130 at Ctrl-C.

    `log` is kafka or pulsar. With `keep` everything is left running at the end. Raises StackError if a step fails; then
    all is stopped.
    """
    directory = directory.absolute()
    progress = Terminal()
    try:
        with _only_one(directory), _supervised(_fresh(directory, progress, log), keep) as stack:
            demo = Demo(stack, progress)
            return 0 if demo.run() else 1
    except KeyboardInterrupt:
        return 130


def _needs() -> str:
    """What a demo takes, said before it takes it."""
    text = f"A demo takes {MEMORY_GB:.0f} GB of memory and, once what it needs is fetched, a minute or two."
    free = re.search(r"^MemAvailable: +(\d+) kB$", MEMORY_FILE.read_text(), re.M) if MEMORY_FILE.exists() else None
    if free and (gigabytes := int(free[1]) / 1e6) < MEMORY_GB:
        text += f" Only {gigabytes:.1f} GB are free: if it fails, close other programs and run it again."
    return text


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "demo.lock", "w") as file:
        if not try_lock(file.fileno()):
            raise StackError("another demo runs here", str(directory), "wait for its end, or choose another --dir")
        yield


def _fresh(directory: Path, progress: Terminal, log: LogName) -> Stack:
    """A stack without data. What an earlier demo left goes, what anybody else left is not touched."""
    if any(Process(path).pid for path in (directory / "run").glob("*.pid")):
        advice = "stop it with helenus-stack down, or choose another --dir"
        raise StackError("a stack runs here already", str(directory), advice)
    folder = directory / FOLDER
    if (directory / "stack.json").exists() and not folder.exists():
        advice = "remove it with helenus-stack down --delete, or choose another --dir"
        raise StackError("there is a stack with data of yours here", str(directory), advice)
    if folder.exists():
        progress.say(f"removing the last demo's data in {directory}")
    Stack(directory, progress=progress).down(delete=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return Stack(directory, log=log, progress=progress)


@contextmanager
def _supervised(stack: Stack, keep: bool) -> Iterator[Stack]:
    """The stack, which is stopped at the end, whatever ends this process; with `keep` only if the body raises."""
    guard = watchdog.start(stack.directory / "run", stack.directory / "lock")
    keeps_running = False
    try:
        yield stack
        keeps_running = keep
    finally:
        if keeps_running:
            print(how_to_go_on(stack.status(), f"{KEYSPACE}.{TABLE}"), flush=True)
        else:
            stack.progress.say("stopping everything")
            stack.down()
            stack.progress.say(f"stopped; what it left is in {stack.directory}: configuration in {FOLDER}, and logs")
        guard.terminate()
        guard.wait()


class Demo:
    """One run on a fresh stack."""

    def __init__(self, stack: Stack, progress: Terminal) -> None:
        self.stack = stack
        self.progress = progress
        self.started = time.monotonic()
        self.programs: list[Program] = []
        self.show = Show(Console(highlight=False, markup=False, soft_wrap=True))

    def run(self) -> bool:
        """Whether topic and table agree at the end."""
        self.progress.say(_needs())
        with self.progress.spinning():
            self.stack.fetch()
            java = spark_java_home(self.progress)
        self.started = time.monotonic()  # what it tells of times is not of the first run's downloads
        folder = self.stack.directory / FOLDER
        log = ["kafka", "registry"] if self.stack.settings.has_kafka else ["pulsar"]
        brokers = {"kafka": "Kafka and a schema registry", "pulsar": "Pulsar, which keeps schemas itself"}[log[0]]
        self.show.title(f"{brokers}, in {self.stack.directory}")
        with self.progress.spinning():
            status = self.stack.up(*log)
        self.show.title("The connector, so that Spark loads while Cassandra starts")
        self._start(programs.connector(status, folder, KEYSPACE, TABLE), {"JAVA_HOME": str(java)})
        with self.progress.spinning():
            status = self.stack.up()
        with session(status) as cassandra, closing(reader(status)) as topics:
            self.show.title("A table with cdc = true, and the agent of its node")
            for cql in SCHEMA:
                self.show.statement(cql)
                cassandra.execute(cql)
            agent = programs.agent(status, folder)
            self._start(agent, {})
            self._wait_for_topic(topics, agent)
            self._write(cassandra, Tracer(topics, EVENTS, DATA))
            return self._converges(status, cassandra, topics)

    def _start(self, program: Program, environment: dict[str, str]) -> None:
        self.show.statement(f"$ {program.command_line}")
        program.start(environment)
        self.programs.append(program)

    def _wait_for_topic(self, topics: Reader, agent: Program) -> None:
        """The agent makes the topic when it has found the table, and is at work then."""
        limit = time.monotonic() + START_SECONDS
        with self.progress.spinning():
            while EVENTS not in topics.topics():
                self._patience(limit, agent, f"the agent did not make {EVENTS}")
                self.progress.waiting(f"waiting for the agent to make {EVENTS}")
                time.sleep(0.1)

    def _patience(self, limit: float, program: Program, condition: str) -> None:
        """Raises StackError if anything died, or time is up: then `condition` is the error, with the program's log."""
        for server in self.stack.servers:
            if self.stack.process(server).pid is None:
                raise StackError(f"{server.name} died", str(server.log), "read its log", programs.tail(server.log))
        for started in self.programs:
            started.check()
        if time.monotonic() > limit:
            raise program.failure(f"{condition} in time")

    def _write(self, cassandra: Any, tracer: Tracer) -> None:
        self.show.title("The workload")
        self.show.console.print(LEGEND + (", what changed in bold" if self.show.console.is_terminal else ""))
        for title, statements in CHAPTERS:
            self.show.title(title)
            for cql in statements:
                self.show.statement(cql)
                cassandra.execute(cql)
                if not cql.startswith("ALTER"):
                    self._trace(cassandra.cluster.timestamp_generator.last, tracer)
                time.sleep(PAUSE_SECONDS)

    def _trace(self, write_time: int, tracer: Tracer) -> None:
        acknowledged = time.monotonic()
        first = not self.show.traces
        limit = acknowledged + (FIRST_SECONDS if first else TRACE_SECONDS)
        connector, agent = self.programs

        def waiting(search: Search) -> None:
            late, missing = (agent, "event") if search.event is None else (connector, "record")
            self._patience(limit, late, f"a statement's {missing} did not come")
            why = ", Spark is loading" if first and late is connector else ""
            if (waited := time.monotonic() - acknowledged) > QUIET_SECONDS:
                self.progress.waiting(f"waiting for the {missing}{why}, {waited:.0f} s")

        with self.progress.spinning():
            trace = tracer.trace(write_time, acknowledged, waiting)
        self.show.trace(trace)
        if first:
            self.show.console.print(
                f"  (the first record, {time.monotonic() - self.started:.0f} s after the start: Spark had to load)"
            )

    def _converges(self, status: Status, cassandra: Any, topics: Reader) -> bool:
        """Compares topic and table, and again while they differ: what the connector reads too early it reads again."""
        table = next(t for t in read_tables(cassandra, KEYSPACE).values() if t.name == TABLE)
        limit = time.monotonic() + CONVERGE_SECONDS
        with self.progress.spinning(), session(status, tuple_factory) as plain:
            while True:
                records = [topics.record(message) for message in topics.messages(DATA)]
                mismatches = differences(plain, table, records)
                if not mismatches or time.monotonic() > limit:
                    break
                self.progress.waiting(f"{len(mismatches)} keys differ still")
                time.sleep(0.5)
        statements = sum(len(chapter) for _, chapter in CHAPTERS)
        self.show.summary(statements, len(records), time.monotonic() - self.started)
        self.show.console.print(verdict(mismatches))
        return not mismatches
