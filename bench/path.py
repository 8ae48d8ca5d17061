"""Latency of the path at steady rates of writes, and reads per event.

    python -m bench path [--rates 50] [--log kafka] [--set resolver=none --set output.format=debezium]
    python -m bench path --rates 20 --compare exactly.once.support=disabled exactly.once.support=required
    python -m bench path --rates 20 --compare-agents read.mode=marker read.mode=auto
    python -m bench path --rates 20 --nodes 3 --set gate=local_quorum

- write → event: from the driver's acknowledgement to the event in a consumer on this machine.
- write → record: to the first record of the key that shows the write or a later one.
- The same against an empty stage: the same source, query and settings, but the stage only appends the event to a topic.
- Reads per event: a backlog of events over 5,000 keys, uniform and zipf 0.99, read by the connector.

`--set` is for the file of the connector whose latencies are measured. With `resolver=none` and `state=rows` the events
have cells, and reads are not counted, as there are none. With `--compare` only latencies are measured: of the connector
with each of these settings, in turns. `--compare-agents` is the same for the agents' files: several settings go with a
comma between. With `--nodes 3` each of three nodes has all rows, and an agent; a write waits for two of them, and its
event is the first of the three.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.concurrent import execute_concurrent_with_args

from helenus_stack import programs, watchdog
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.process import stop
from helenus_stack.progress import Terminal
from helenus_stack.readers import reader
from helenus_stack.stack import Stack
from helenus_stack.status import Status

SECONDS = 40
WARM_UP_SECONDS = 25
TURNS = 3
KEYS = 5_000
EVENTS = 20_000
OF_WORKER = "worker."
EXACTLY_ONCE_LIMIT_MS = 20
WITH_CELLS = {"resolver=none", "state=rows"}
"""Settings of connectors that are given what was written, and read no rows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="*", default=[50], help="writes a second; none: no latencies")
    parser.add_argument("--log", choices=["kafka", "pulsar"], default="kafka")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for the connector's file, worker.KEY for its worker's",
    )
    parser.add_argument("--compare", nargs="*", default=[], metavar="KEY=VALUE", help="for the same file, in turns")
    parser.add_argument("--compare-agents", nargs="*", default=[], metavar="KEY=VALUE", help="for the agent's file")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--nodes", type=int, default=1, choices=[1, 2, 3], help="of Cassandra, each with all rows")
    options = parser.parse_args()
    rates, has_cells = options.rates, not WITH_CELLS.isdisjoint(options.set)
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", nodes=options.nodes, log=options.log, brief=False, progress=Terminal()) as stack,
    ):
        status = stack.status()
        java = {"JAVA_HOME": str(spark_java_home(Terminal()))}
        with session(status) as cassandra:
            cassandra.execute(
                "CREATE KEYSPACE bench WITH replication ="
                f" {{'class': 'SimpleStrategy', 'replication_factor': {options.nodes}}}"
            )
            for table in ("latency", "uniform", "skewed"):
                cassandra.execute(f"CREATE TABLE bench.{table} (k int PRIMARY KEY, v text) WITH cdc = true")
            if options.compare_agents:
                compare_agents(
                    stack, status, cassandra, java, rates, options.set, options.compare_agents, options.turns
                )
                return
            of_cells = ["cells.include.list=bench\\\\.latency"] if has_cells else []
            with running_agents(stack, status, of_cells):
                topics_exist(status, "events-bench.latency", "events-bench.uniform", "events-bench.skewed")
                if options.compare:
                    compare(stack, status, cassandra, java, rates, options.set, options.compare, options.turns)
                    return
                if rates:
                    latency(stack, status, cassandra, java, rates, options.set)
                if not has_cells:
                    reads(stack, status, cassandra, java)


def add(file: Path, lines: list[str]) -> None:
    """Lines at the end of a properties file: they count more than those above."""
    with file.open("a") as properties:
        properties.write("\n" + "".join(f"{line}\n" for line in lines))


@contextmanager
def running(program: programs.Program, environment: dict[str, str]) -> Iterator[programs.Program]:
    """Run a program until the end of the block, or until this process is killed."""
    run = program.process.pid_file.parent
    run.mkdir(parents=True, exist_ok=True)
    guard = watchdog.start(run, run / "watchdog.lock")
    try:
        program.start(environment)
        yield program
    finally:
        stop([program.process], 15)
        guard.terminate()
        guard.wait()


def own_port(file: Path) -> None:
    """Have a program listen where the system has room: usual ports may be another's by the time it starts."""
    lines = file.read_text().splitlines()
    listeners = f"listeners=http://127.0.0.1:{programs.free_port(0)}"
    file.write_text("\n".join(listeners if line.startswith("listeners=") else line for line in lines) + "\n")


@contextmanager
def running_agents(stack: Stack, status: Status, more: list[str]) -> Iterator[None]:
    """Run the agent of each node, with `more` in its file."""
    with ExitStack() as running_all:
        for node in status.nodes:
            folder = stack.directory / "bench" / node.name
            agent = programs.Program("agent", folder, programs.agent(status, folder, node).files)
            own_port(agent.files[0])
            add(agent.files[0], more)
            running_all.enter_context(running(agent, {}))
        yield


def topics_exist(status: Status, *topics: str) -> None:
    with closing(reader(status)) as log:
        wait(lambda: set(topics) <= log.topics(), f"topics {topics}")


def is_ready(connector: programs.Program) -> bool:
    """Return whether a worker has done a batch, and nothing is wrong. Raises StackError if it has ended."""
    connector.check()
    address = connector.files[0].read_text().split("listeners=")[1].split()[0]
    try:
        with urllib.request.urlopen(f"{address}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait(is_over: Callable[[], bool], condition: str, seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not is_over():
        if time.monotonic() > limit:
            raise TimeoutError(condition)
        time.sleep(0.2)


class Arrivals:
    """Consumes topics in a thread and notes when each write (by key and write time) was first seen in each."""

    def __init__(self, status: Status, *topics: str) -> None:
        self.seen: dict[str, list[tuple[bytes, int, float]]] = {t: [] for t in topics}
        self._reader = reader(status)
        for topic in topics:
            self._reader.follow(topic, whole=False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._reader.arrival(0.1)
            if message is None:
                continue
            now = time.time()
            topic, key = message.topic(), message.key() or b""
            if topic.startswith("data-"):
                written = int(dict(message.headers() or ())["writetime"] or 0)
                key = key[self._reader.frame :]
            else:
                written = self._reader.change(message).write_time or 0
            self.seen[topic].append((key, written, now))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.close()


def write(cassandra: Any, seconds: float, rate: int) -> list[tuple[bytes, int, float]]:
    """Write at a rate; returns key, write time in µs and the moment of the acknowledgement of each."""
    from helenus_schemas.codec.avro_long import long_bytes

    statement = cassandra.prepare("INSERT INTO bench.latency (k, v) VALUES (?, ?) USING TIMESTAMP ?")
    statement.consistency_level = ConsistencyLevel.QUORUM
    writes = []
    start = time.monotonic()
    for i in range(int(rate * seconds)):
        time.sleep(max(0.0, start + i / rate - time.monotonic()))
        key, written = random.randrange(KEYS), time.time_ns() // 1000
        cassandra.execute(statement, (key, "x" * 100, written))
        writes.append((long_bytes(key), written, time.time()))
    return writes


def latency(
    stack: Stack, status: Status, cassandra: Any, java: dict[str, str], rates: list[int], more: list[str]
) -> None:
    """The connector, with `more` in its file, meets all rates, and then the empty stage does."""
    worker = latency_of_connector(stack, status, cassandra, java, rates, more)
    from bench import empty_stage

    empty = empty_stage.program(stack.directory, worker, "events-bench.latency", "empty-bench.latency")
    with running(empty, java):
        topics_exist(status, "empty-bench.latency")
        write(cassandra, WARM_UP_SECONDS, 50)
        for rate in rates:
            writes, seen = measured(status, cassandra, rate, "empty-bench.latency")
            report(f"{rate}/s, write → empty stage", delays(writes, seen["empty-bench.latency"]))


def compare(
    stack: Stack,
    status: Status,
    cassandra: Any,
    java: dict[str, str],
    rates: list[int],
    more: list[str],
    settings: list[str],
    turns: int,
) -> None:
    """The connector, with `more` and one of these settings in its file, meets all rates, in turns; each second turn is
    the other way round. Of each setting after the first it shows what it adds to the p50.
    """
    p50s: dict[str, list[float]] = {setting: [] for setting in settings}
    for turn in range(turns):
        for setting in settings if turn % 2 == 0 else reversed(settings):
            print(f"{setting}, turn {turn + 1}")
            latency_of_connector(stack, status, cassandra, java, rates, [*more, setting], p50s[setting])
    first, *others = (statistics.median(p50s[setting]) for setting in settings)
    for setting, p50 in zip(settings[1:], others, strict=True):
        limit = f" (at most {EXACTLY_ONCE_LIMIT_MS})" if setting.startswith("exactly.once.support=") else ""
        print(f"{setting} adds {(p50 - first) * 1000:.0f} ms to the p50{limit}; load {os.getloadavg()[0]:.1f}")


def compare_agents(
    stack: Stack,
    status: Status,
    cassandra: Any,
    java: dict[str, str],
    rates: list[int],
    more: list[str],
    settings: list[str],
    turns: int,
) -> None:
    """As `compare`, of the agent with each of these settings."""
    for turn in range(turns):
        for setting in settings if turn % 2 == 0 else reversed(settings):
            print(f"{setting}, turn {turn + 1}")
            with running_agents(stack, status, setting.split(",")):
                topics_exist(status, "events-bench.latency", "events-bench.uniform", "events-bench.skewed")
                latency_of_connector(stack, status, cassandra, java, rates, more)


def latency_of_connector(
    stack: Stack,
    status: Status,
    cassandra: Any,
    java: dict[str, str],
    rates: list[int],
    more: list[str],
    p50s: list[float] | None = None,
) -> Path:
    """The connector, with `more` in its file, meets all rates: those that begin with `worker.` are in its worker's,
    without that. Returns its worker's file; `p50s` gets the median of write → record of each rate, s.
    """
    connector = programs.connector(status, stack.directory / "bench", "bench", "latency")
    add(connector.files[0], [line.removeprefix(OF_WORKER) for line in more if line.startswith(OF_WORKER)])
    add(connector.files[1], ["snapshot.mode=never", *(line for line in more if not line.startswith(OF_WORKER))])
    with running(connector, java):
        topics_exist(status, "data-bench.latency")
        wait(lambda: is_ready(connector), "the connector is ready")
        write(cassandra, WARM_UP_SECONDS, 50)
        for rate in rates:
            before = batches(connector)
            writes, seen = measured(status, cassandra, rate, "events-bench.latency", "data-bench.latency")
            count, spent_s = (now - then for now, then in zip(batches(connector), before, strict=True))
            report(f"{rate}/s, write → event", delays(writes, seen["events-bench.latency"]))
            to_record = delays(writes, seen["data-bench.latency"])
            report(f"{rate}/s, write → record", to_record)
            if p50s is not None:
                p50s.append(statistics.median(to_record))
            each_ms = spent_s / count * 1000
            print(f"{rate}/s, {count / SECONDS:.1f} batches a second, the driver's part {each_ms:.0f} ms each")
    return connector.files[0]


def batches(connector: programs.Program) -> tuple[float, float]:
    """How many batches a worker has done, and in how many seconds; Spark's planning and commits are not in them."""
    metrics = read_metrics(port_of(connector))
    return metrics["helenus_connector_batch_seconds_count"], metrics["helenus_connector_batch_seconds_sum"]


def port_of(connector: programs.Program) -> str:
    return connector.files[0].read_text().split("listeners=http://127.0.0.1:")[1].split()[0]


def measured(
    status: Status, cassandra: Any, rate: int, *topics: str
) -> tuple[list[tuple[bytes, int, float]], dict[str, list[tuple[bytes, int, float]]]]:
    """What was written at a rate, and what arrived in each topic."""
    arrivals = Arrivals(status, *topics)
    time.sleep(1)
    writes = write(cassandra, SECONDS, rate)
    try:
        wait(lambda: all(has_arrived(writes, list(times)) for times in arrivals.seen.values()), "all writes arrive")
    finally:
        arrivals.close()
    return writes, arrivals.seen


def delays(writes: list[tuple[bytes, int, float]], seen: list[tuple[bytes, int, float]]) -> list[float]:
    """Seconds from each acknowledgement to the first arrival that shows the write or a later one of its key."""
    by_key: dict[bytes, list[tuple[int, float]]] = {}
    for key, written, arrived_at in seen:
        by_key.setdefault(key, []).append((written, arrived_at))
    latencies = []
    for key, written, acknowledged in writes:
        arrived = [arrived_at for shown, arrived_at in by_key.get(key, ()) if shown >= written]
        if not arrived:
            raise AssertionError(f"the write at {written} never arrived")
        latencies.append(min(arrived) - acknowledged)
    return latencies


def has_arrived(writes: list[tuple[bytes, int, float]], seen: list[tuple[bytes, int, float]]) -> bool:
    """Whether each write has, or a later one of its key."""
    latest: dict[bytes, int] = {}
    for key, written, _ in seen:
        latest[key] = max(written, latest.get(key, written))
    return all(latest.get(key, written - 1) >= written for key, written, _ in writes)


def report(label: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(
        f"{label:28} p50 {statistics.median(ordered) * 1000:6.0f} ms   p99 {p99 * 1000:6.0f} ms   n {len(ordered)}",
        flush=True,
    )


def reads(stack: Stack, status: Status, cassandra: Any, java: dict[str, str]) -> None:
    weights = [1 / (i + 1) ** 0.99 for i in range(KEYS)]
    for table, chosen in (
        ("uniform", random.choices(range(KEYS), k=EVENTS)),
        ("skewed", random.choices(range(KEYS), weights, k=EVENTS)),
    ):
        statement = cassandra.prepare(f"INSERT INTO bench.{table} (k, v) VALUES (?, ?)")
        execute_concurrent_with_args(cassandra, statement, [(k, "x" * 100) for k in chosen], concurrency=64)
        connector = programs.connector(status, stack.directory / f"bench-{table}", "bench", table)
        add(connector.files[1], ["snapshot.mode=never"])  # its events would count too
        with running(connector, java):
            port = port_of(connector)
            metric = labels(table)
            wait(
                lambda p=port, m=metric: read_metrics(p).get(f"helenus_connector_events_read_total{m}", 0) >= EVENTS,
                table,
            )
            metrics = read_metrics(port)
            events = metrics[f"helenus_connector_events_read_total{metric}"]
            statements = metrics[f"helenus_connector_statements_total{metric}"]
            keys = metrics[f"helenus_connector_keys_read_total{metric}"]
        print(f"reads per event, {table}: {statements / events:.4f} statements, {keys / events:.3f} keys", flush=True)


def labels(table: str) -> str:
    """Of the metrics of a table's connector, as `programs.connector` names it."""
    return f'{{connector="bench-{table}",keyspace="bench",table="{table}"}}'


def read_metrics(port: str) -> dict[str, float]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}


if __name__ == "__main__":
    main()
