"""How long a worker takes to start: with an archive of Java's classes, and without one.

    python -m bench starts [--tables 1] [--rounds 4]

A worker with a connector for each table starts and is ended again and again, in turns with an archive and without. Rows
are written all the time. Shown is how long it took from its start to the first record and until it was ready, the CPU
of its processes until then, and what memory they take half a minute later.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.backlog import by_kind, memory_by_kind
from bench.path import add, is_ready, running, topics_exist, wait
from bench.tables import memory_of
from helenus_stack import programs
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

RATE = 20.0
SETTLED_SECONDS = 30
POLL_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    tables = [f"t{i:02}" for i in range(options.tables)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
    ):
        cassandra.execute(
            "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        for table in tables:
            cassandra.execute(f"CREATE TABLE bench.{table} (k int PRIMARY KEY, v bigint) WITH cdc = true")
        status = stack.status()
        java = {"JAVA_HOME": str(spark_java_home(Terminal()))}
        cache = Path(folder) / "cache"
        with running(programs.agent(status, stack.directory / "bench"), {}):
            topics_exist(status, *(f"events-bench.{table}" for table in tables))
            worker = worker_of(status, stack.directory, tables)
            with running(worker, {**java, "CACHE_DIRECTORY": str(cache)}):
                wait(lambda: is_ready(worker), "the topics are there", 300)
            make_archive(java, cache)
            with writes(cassandra, tables):
                for turn in range(options.rounds):
                    for name in sorted(("archive", "none"), reverse=turn % 2 == 1):
                        where = {"CACHE_DIRECTORY": str(cache if name == "archive" else Path(folder) / "empty")}
                        show_start(worker, status, tables, {**java, **where}, f"{len(tables)} tables, {name}")


def make_archive(java: dict[str, str], cache: Path) -> None:
    """Make the archive in the cache of a worker, and show what that takes."""
    command = [sys.executable, "-m", "helenus_connector.install_archive", str(cache / "class-archives")]
    begun, before = time.monotonic(), os.times()
    subprocess.run(command, env={**os.environ, **java, "CACHE_DIRECTORY": str(cache)}, check=True)
    spent = sum(os.times()[2:4]) - sum(before[2:4])
    size = sum(file.stat().st_size for file in cache.glob("*/*.jsa")) >> 20
    print(f"an archive of {size} MB: {time.monotonic() - begun:.1f} s, {spent:.1f} CPU s", flush=True)


def worker_of(status: Status, directory: Path, tables: list[str]) -> programs.Program:
    """A worker with a connector for each table, in a JVM as users have it."""
    folder = directory / "starts"
    made = [programs.connector(status, folder, "bench", table) for table in tables]
    for program in made:
        add(program.files[1], ["snapshot.mode=never"])
    add(made[-1].files[0], ["spark.driver.extraJavaOptions=-Dhelenus.worker=bench"])
    return programs.Program("connector", folder, [made[-1].files[0], *(program.files[1] for program in made)])


@contextmanager
def writes(cassandra: Any, tables: list[str]) -> Iterator[None]:
    """Writes to one table after the other meanwhile."""
    ended = threading.Event()
    inserts = [cassandra.prepare(f"INSERT INTO bench.{table} (k, v) VALUES (?, ?)") for table in tables]

    def write() -> None:
        number = 0
        while not ended.wait(1 / RATE):
            number += 1
            cassandra.execute(inserts[number % len(inserts)], (number % 500, number))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def show_start(
    worker: programs.Program, status: Status, tables: list[str], environment: dict[str, str], label: str
) -> None:
    consumer = Consumer({"bootstrap.servers": status.bootstrap_servers, "group.id": "bench-starts"})
    ends = []
    for table in tables:
        for partition in consumer.list_topics(f"data-bench.{table}", 30).topics[f"data-bench.{table}"].partitions:
            at_end = TopicPartition(f"data-bench.{table}", partition)
            at_end.offset = consumer.get_watermark_offsets(at_end, 30)[1]
            ends.append(at_end)
    consumer.assign(ends)
    begun = time.monotonic()
    with running(worker, environment):
        pid = worker.process.pid
        assert pid is not None
        first = ready = 0.0
        while not (first and ready):
            message = consumer.poll(POLL_S)
            if not first and message is not None and message.error() is None:
                first = time.monotonic() - begun
            if not ready and is_ready(worker):
                ready, cpu = time.monotonic() - begun, by_kind(pid)
            if time.monotonic() - begun > 300:
                raise TimeoutError("the worker does not start")
        spent = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in cpu.items())
        load = os.getloadavg()[0]
        print(f"{label}: record {first:.1f} s, ready {ready:.1f} s, CPU s {spent}, load {load:.1f}", flush=True)
        consumer.close()
        time.sleep(SETTLED_SECONDS)
        print(f"{label}: {memory_of(pid):.0f} MB; for themselves {memory_by_kind(pid)}", flush=True)
