"""How fast a worker of a group takes over, and what one costs that stands by.

    python -m bench standby [--rounds 3] [--rate 20] [--log kafka|pulsar]

Two workers with one `group.id`, each with a `checkpoint.dir` of its own. In each round the one that leads is killed
(kill -9), stopped (SIGSTOP, all its processes, for a while after the other one leads), and ended (SIGTERM, as in a
rolling restart). Shown is how long no record came: from the last one before to the first one after, under writes.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.backlog import cpu_of, memory_by_kind
from bench.path import add, is_ready, running, topics_exist, wait
from bench.tables import memory_of
from helenus_connector.log._pulsar_planner import PulsarPlanner
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_stack import programs
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.process import stop
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

TABLE = "bench.standby"
IDLE_SECONDS = 30
SETTLED_SECONDS = 10
"""Before a fault: the JVM compiles until then."""
STOPPED_SECONDS = 5
UNUSED_SECONDS = 110
"""Before the figures of a standby: until then Spark's Python processes end that it does not need."""
PAUSE_LIMITS = {"kill -9": 15, "SIGSTOP": 16, "SIGTERM": 10}
"""s; that of SIGSTOP is `session.timeout.ms` and 10 s."""
CPU_LIMIT, MEMORY_LIMIT = 3, 400
"""% of a core, and MB, of a standby."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=20, help="writes a second")
    parser.add_argument("--log", choices=("kafka", "pulsar"), default="kafka")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", log=options.log, brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
    ):
        cassandra.execute(
            "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        cassandra.execute(f"CREATE TABLE {TABLE} (k int PRIMARY KEY, v bigint) WITH cdc = true")
        status = stack.status()
        with running(programs.agent(status, stack.directory / "bench"), {}):
            topics_exist(status, f"events-{TABLE}")
            workers = [worker(status, stack.directory, number) for number in range(2)]
            try:
                for each in workers:
                    each.start({"JAVA_HOME": str(spark_java_home(Terminal()))})
                for each in workers:
                    wait(lambda each=each: is_ready(each), "the workers are ready")  # type: ignore[misc]
                with writes(cassandra, options.rate), followed(status) as records:
                    measure(workers, records, options.rounds)
            finally:
                stop([each.process for each in workers], 30)


def worker(status: Status, directory: Path, number: int) -> programs.Program:
    """A worker of the group, with files and a pid file of its own."""
    folder = directory / f"worker-{number}"
    folder.mkdir()
    made = programs.connector(status, folder, *TABLE.split("."))
    text = made.files[0].read_text()
    port = int(text.split("listeners=http://127.0.0.1:")[1].split()[0])
    made.files[0].write_text(text.replace(f":{port}", f":{port + number}"))
    java = "spark.driver.extraJavaOptions=-Dhelenus.worker=bench"  # in place of those for a short run
    add(made.files[0], [java, "group.id=bench"])
    add(made.files[1], ["output.format=json", "snapshot.mode=never"])
    return programs.Program("connector", folder, made.files)


@contextmanager
def writes(cassandra: Any, rate: float) -> Iterator[None]:
    """Writes so many times a second meanwhile."""
    ended, insert = threading.Event(), cassandra.prepare(f"INSERT INTO {TABLE} (k, v) VALUES (?, ?)")

    def write() -> None:
        number = 0
        while not ended.wait(1 / rate):
            number += 1
            cassandra.execute(insert, (number % 500, number))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def followed(status: Status) -> Records:
    """Return who follows the table's records."""
    return PulsarRecords(status) if status.log == "pulsar" else KafkaRecords(status)


class Records(ABC):
    """Follows the table's records, and notes when the last one came."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.last_at = time.monotonic()
        self.longest = 0.0
        """The longest time without a record since it was set to 0, s."""

    @abstractmethod
    def poll(self) -> bool:
        """Return whether a record came, within a tenth of a second or so."""

    @abstractmethod
    def close(self) -> None:
        """Close what reads the topic."""

    def _follow(self) -> None:
        while not self._ended.is_set():
            if self.poll():
                now = time.monotonic()
                self.longest, self.last_at = max(self.longest, now - self.last_at), now

    def __enter__(self) -> Records:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.close()


class KafkaRecords(Records):
    """As a reader of what is committed."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        settings = {"bootstrap.servers": status.bootstrap_servers, "group.id": "bench-reader"}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
        topic = f"data-{TABLE}"
        partitions = self._consumer.list_topics(topic, 30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition) for partition in partitions])

    def poll(self) -> bool:
        message = self._consumer.poll(0.1)
        return message is not None and message.error() is None

    def close(self) -> None:
        self._consumer.close()


class PulsarRecords(Records):
    """By where the topic ends."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._planner = PulsarPlanner(PulsarConfig(str(status.pulsar_url), status.pulsar_admin_url))
        self._partitions = self._planner.partitions([f"data-{TABLE}"])
        self._ends = self._planner.latest(self._partitions)

    def poll(self) -> bool:
        time.sleep(0.1)
        before, self._ends = self._ends, self._planner.latest(self._partitions)
        return self._ends != before

    def close(self) -> None:
        self._planner.close()


def measure(workers: list[programs.Program], records: Records, rounds: int) -> None:
    time.sleep(UNUSED_SECONDS)
    show_idle(next(each for each in workers if not leads(each)))
    faults = {"kill -9": kill, "SIGSTOP": freeze, "SIGTERM": end}
    pauses: dict[str, list[float]] = {name: [] for name in faults}
    for _ in range(rounds):
        for name, fault in faults.items():
            leader = next(each for each in workers if leads(each))
            other = next(each for each in workers if each is not leader)
            wait(lambda other=other: is_ready(other), "the other one stands by")  # type: ignore[misc]
            time.sleep(SETTLED_SECONDS)
            records.longest = 0.0
            fault(leader, other, records)
            pauses[name].append(records.longest)
            if leader.process.pid is None:
                leader.start({"JAVA_HOME": str(spark_java_home(Terminal()))})
            wait(lambda leader=leader: is_ready(leader), "the former leader stands by")  # type: ignore[misc]
    for name, seconds in pauses.items():
        pauses_text = ", ".join(f"{s:.1f}" for s in seconds)
        print(f"{name}: no record for {pauses_text} s (at most {PAUSE_LIMITS[name]}); {load()}", flush=True)


def show_idle(standby: programs.Program) -> None:
    pid = standby.process.pid
    assert pid is not None
    before = cpu_of(pid)
    time.sleep(IDLE_SECONDS)
    share = 100 * (cpu_of(pid) - before) / IDLE_SECONDS
    memory = f"{memory_of(pid):.0f} MB (at most {MEMORY_LIMIT}); for themselves {memory_by_kind(pid)}"
    print(f"a standby: {share:.1f} % of a core (at most {CPU_LIMIT}), {memory}; {load()}", flush=True)


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def leads(program: programs.Program) -> bool:
    address = program.files[0].read_text().split("listeners=")[1].split()[0]
    with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
        return b"Worker has completed startup" in answer.read()
    return False


def goes_on(other: programs.Program, records: Records) -> None:
    """Wait until the other worker leads, and a record came since."""
    wait(lambda: leads(other), "the other one leads")
    begun = time.monotonic()
    wait(lambda: records.last_at > begun, "a record comes")


def kill(leader: programs.Program, other: programs.Program, records: Records) -> None:
    leader.process.signal(signal.SIGKILL)
    goes_on(other, records)
    stop([leader.process], 5)


def freeze(leader: programs.Program, other: programs.Program, records: Records) -> None:
    pid = leader.process.pid
    assert pid is not None
    members = family(pid)
    for member in members:
        os.kill(member, signal.SIGSTOP)
    goes_on(other, records)
    time.sleep(STOPPED_SECONDS)
    for member in members:
        os.kill(member, signal.SIGCONT)
    wait(lambda: not leads(leader), "the former leader has noticed")


def end(leader: programs.Program, other: programs.Program, records: Records) -> None:
    pid = leader.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    goes_on(other, records)
    stop([leader.process], 30)


def family(process: int) -> list[int]:
    """A process, its children, and theirs."""
    members, pending = [], [process]
    while pending:
        pid = pending.pop()
        members.append(pid)
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pending += map(int, (thread / "children").read_text().split())
    return members
