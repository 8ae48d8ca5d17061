"""What twenty connectors on one worker cost, against one.

    python -m bench tables [--tables 20] [--rate 20] [--rounds 3] [--alone]
    python -m bench tables --starts exactly.once.support=disabled exactly.once.support=required [--tables 200] [--log …]

In one run on one stack, first a worker with one connector, then one with a connector for each table (with `--alone`
only that one):

- How long the worker takes to be ready: with new topics, and when it starts again.
- write → record at so many writes a second, over all tables, and the CPU of the worker's processes meanwhile: by half
  minutes, as in the first ones Java still compiles, and a Python worker meets tables for the first time.
- Idle: their CPU over half a minute without writes, their memory and threads.

With `--starts` only how long a worker with all tables takes to be ready, once with new topics, and then by turns with
each of these settings.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.backlog import by_kind, cpu_of, memory_by_kind
from bench.path import Arrivals, add, delays, has_arrived, is_ready, report, running, topics_exist, wait
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.codec.avro_long import long_bytes
from helenus_stack import programs
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

SECONDS = 30
WARM_UP_SECONDS = 20
RATE = 20
KEYS = 1_000
HEAP, HEAP_OF_MANY, MANY = "512m", "2g", 300  # of Cassandra, which ends with a thousand tables in the former


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--rate", type=float, default=20, help="writes a second")
    parser.add_argument("--rounds", type=int, default=3, help="half minutes of writes")
    parser.add_argument("--alone", action="store_true", help="not with one connector first")
    parser.add_argument("--starts", nargs="*", default=[], metavar="KEY=VALUE", help="only starts, with each of these")
    parser.add_argument("--log", choices=["kafka", "pulsar"], default="kafka", help="of --starts")
    options = parser.parse_args()
    tables = [f"t{i:02}" for i in range(options.tables)]
    heap = HEAP_OF_MANY if len(tables) > MANY else HEAP
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, heap=heap, log=options.log, progress=Terminal()) as stack,
    ):
        status = stack.status()
        with session(status) as cassandra:
            cassandra.execute(
                "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            for table in tables:
                cassandra.execute(f"CREATE TABLE bench.{table} (k int PRIMARY KEY, v text) WITH cdc = true")
            with running(programs.agent(status, stack.directory / "bench"), {}):
                topics_exist(status, *(f"events-bench.{table}" for table in tables))
                if options.starts:
                    compare_starts(stack, status, tables, options.starts, options.rounds)
                    return
                for group in [tables] if options.alone else [tables[:1], tables]:
                    measure(stack, status, cassandra, group, options.rate, options.rounds)


def measure(stack: Stack, status: Status, cassandra: Any, tables: list[str], rate: float, rounds: int) -> None:
    """A worker with a connector for each of some tables."""
    folder = stack.directory / f"bench{len(tables)}"
    made = [programs.connector(status, folder, "bench", table) for table in tables]
    for program in made:
        add(program.files[1], ["snapshot.mode=never"])
    worker = programs.Program("connector", Path(status.directory), [made[-1].files[0], *(p.files[1] for p in made)])
    java = {"JAVA_HOME": str(spark_java_home(Terminal()))}
    with running(worker, java):
        started(worker, f"{len(tables)} tables, new topics")
    with running(worker, java):
        topics = [f"data-bench.{table}" for table in tables]
        started(worker, f"{len(tables)} tables, once more")
        pid = worker.process.pid
        assert pid is not None
        arrivals = Arrivals(status, *topics)
        time.sleep(1)
        first = write(cassandra, tables, WARM_UP_SECONDS, RATE)
        # A new table's first event costs all servers most: many at once on two cores are seen seconds later.
        seen = arrivals.seen
        wait(lambda: all(has_arrived(first[t], seen[f"data-bench.{t}"]) for t in tables), "the first records", 300)
        report(
            f"{len(tables)} tables, write → first record",
            [next(iter(delays(first[t], seen[f"data-bench.{t}"]))) for t in tables if first[t]],
        )
        written = []
        for _ in range(rounds):
            before = by_kind(pid)
            written.append(write(cassandra, tables, SECONDS, rate))
            spent(pid, before, f"{len(tables)} tables, {rate:g} writes/s")
        wait(
            lambda: all(has_arrived(writes[t], seen[f"data-bench.{t}"]) for writes in written for t in tables),
            "all records",
            300,
        )
        arrivals.close()
        for writes in written:
            latencies = [d for t in tables for d in delays(writes[t], arrivals.seen[f"data-bench.{t}"])]
            report(f"{len(tables)} tables, write → record", latencies)
        time.sleep(10)
        before = by_kind(pid)
        time.sleep(SECONDS)
        spent(pid, before, f"{len(tables)} tables, idle")
        kinds = memory_by_kind(pid)
        print(f"{len(tables)} tables: {memory_of(pid):.0f} MB resident; for themselves {kinds}", flush=True)


def compare_starts(stack: Stack, status: Status, tables: list[str], settings: list[str], rounds: int) -> None:
    """The starts of workers that differ in a setting, each with a connector for each table."""
    java = {"JAVA_HOME": str(spark_java_home(Terminal()))}
    workers = {}
    for number, setting in enumerate(settings):
        folder = stack.directory / f"starts{number}"
        made = [programs.connector(status, folder, "bench", table) for table in tables]
        of_worker = WorkerSettings.knows(setting.partition("=")[0])
        for program in made:
            add(program.files[1], ["snapshot.mode=never", *([] if of_worker else [setting])])
        worker_file = made[-1].files[0]
        add(worker_file, [setting] if of_worker else [])
        files = [worker_file, *(program.files[1] for program in made)]
        workers[setting] = programs.Program("connector", Path(status.directory), files)
    for setting, worker in workers.items():
        with running(worker, java):
            started(worker, f"{len(tables)} tables, {setting}, the first start")
    for turn in range(rounds):
        for setting, worker in sorted(workers.items(), reverse=turn % 2 == 1):
            with running(worker, java):
                started(worker, f"{len(tables)} tables, {setting}")


def started(worker: programs.Program, label: str) -> None:
    """Wait until a worker is ready that was just started."""
    start = time.monotonic()
    wait(lambda: is_ready(worker), "the connectors are ready", 600)
    seconds = time.monotonic() - start
    pid = worker.process.pid
    assert pid is not None
    print(f"{label}: ready after {seconds:.1f} s, {cpu_of(pid):.1f} CPU s, load {os.getloadavg()[0]:.1f}", flush=True)


def spent(process: int, before: dict[str, float], label: str) -> None:
    """What a worker's processes took since `before`, `SECONDS` ago."""
    shares = {kind: (now - before.get(kind, 0.0)) / SECONDS for kind, now in by_kind(process).items()}
    each = ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
    print(f"{label}: {sum(shares.values()):.1%} of a core ({each}), load {os.getloadavg()[0]:.1f}", flush=True)


def write(cassandra: Any, tables: list[str], seconds: float, rate: float) -> dict[str, list[tuple[bytes, int, float]]]:
    """Write at a rate, to one table after the other; key, write time in µs and acknowledgement of each, by table."""
    statements = {t: cassandra.prepare(f"INSERT INTO bench.{t} (k, v) VALUES (?, ?) USING TIMESTAMP ?") for t in tables}
    writes: dict[str, list[tuple[bytes, int, float]]] = {t: [] for t in tables}
    start = time.monotonic()
    for i in range(int(rate * seconds)):
        time.sleep(max(0.0, start + i / rate - time.monotonic()))
        table, key, written = tables[i % len(tables)], random.randrange(KEYS), time.time_ns() // 1000
        cassandra.execute(statements[table], (key, "x" * 100, written))
        writes[table].append((long_bytes(key), written, time.time()))
    return writes


def memory_of(process: int) -> float:
    """MB that a process and those below it share out among them: pages of several count once."""
    total, waiting = 0, [process]
    while waiting:
        pid = waiting.pop()
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, StopIteration):
            continue
    return total / 1024
