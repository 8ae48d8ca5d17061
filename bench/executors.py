"""How much faster two executors of a Spark cluster scan a table's keys than one, where Cassandra is not the limit.

    python -m bench executors [--rows 400000] [--delay 250]

A Spark master and two workers, whose executors run four tasks at once. As in a worker, one task fewer scans. On a small
machine the servers and the executors want the same cores. So a proxy stands before Cassandra and gives each of its
answers so many ms later, as if it were far away: a scan waits, and the cores are idle. The first scan of each is not
counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import events_log
from helenus_connector.query.spark_session import settled_task_slots
from helenus_connector.query.spark_session import start_session as start_spark
from helenus_connector.snapshot._jobs import SnapshotJobs
from helenus_connector.snapshot._ring import TokenStretch, new_stretch
from helenus_connector.snapshot._scan import ScanSlice
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.service.logs import setup
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.spark_cluster import SparkCluster
from helenus_stack.stack import Stack
from helenus_stack.status import Status

PARTS = 4
CORES = 4
SLICES = 28
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--delay", type=float, default=250, help="ms by which an answer of Cassandra comes later")
    options = parser.parse_args()
    os.environ["JAVA_HOME"] = str(spark_java_home(Terminal()))
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
        SparkCluster(Path(folder) / "spark", cores=CORES) as cluster,
    ):
        table = fill(cassandra, options.rows)
        proxy = Proxy(stack.status().cql_port, options.delay / 1000)
        rates = []
        for executors in (1, 2):
            # Each in a process of its own: what a session was given first stays with its JVM.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
                arguments = stack.status(), cluster.settings, Path(folder), table, options.rows, proxy.port, executors
                rates.append(own.submit(measure, *arguments).result())
        print(f"two executors: {rates[1] / rates[0]:.2f} times as fast as one")


def fill(cassandra: Any, rows: int) -> Table:
    """The table to be scanned."""
    cassandra.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    cassandra.execute("CREATE TABLE bench.t (k int PRIMARY KEY, v text, n int) WITH cdc = true")
    insert = cassandra.prepare("INSERT INTO bench.t (k, v, n) VALUES (?, ?, ?)")
    execute_concurrent_with_args(cassandra, insert, ((n, "x" * 100, n) for n in range(rows)), concurrency=100)
    (table,) = read_tables(cassandra, "bench").values()
    return table


def measure(
    status: Status, spark_settings: dict[str, str], folder: Path, table: Table, rows: int, port: int, executors: int
) -> float:
    """Keys per second with so many executors: the best of some scans of the whole table."""
    worker = WorkerSettings.from_properties(
        {
            "bootstrap.servers": status.bootstrap_servers,
            "checkpoint.dir": str(folder),
            **spark_settings,
            "spark.executor.cores": str(CORES),
            "spark.executor.memory": "512m",
            "spark.cores.max": str(executors * CORES),
        },
        "worker",
    )
    settings = worker.model.read_settings(
        {
            "name": "scan",
            "keyspace": "bench",
            "table": "t",
            "output.format": "json",
            "cassandra.contact.points": "127.0.0.1",
            "cassandra.port": str(port),
            "cassandra.local.dc": status.local_dc,
        },
        "scan",
    )
    events_log(worker).create(settings.events, PARTS, {})
    spark = start_spark(worker, folder)
    try:
        slots = settled_task_slots(spark, lambda: False)
        assert slots == executors * CORES, slots
        jobs, rates = SnapshotJobs(spark), []
        for turn in range(ROUNDS + 1):
            start = time.monotonic()
            slices = [
                ScanSlice(worker, settings, table, s, "", PARTS, rows, 600.0, False, setup()) for s in stretches()
            ]
            with ThreadPoolExecutor(jobs.max_slices) as at_once:
                results = list(at_once.map(lambda slice_: jobs.submit(slice_).result(), slices))
            assert not [result.error for result in results if result.error], results
            assert sum(result.rows for result in results) == rows
            if turn:
                rates.append(rows / (time.monotonic() - start))
        shown = ", ".join(f"{rate:.0f}" for rate in rates)
        print(
            f"{executors} executors, {jobs.max_slices} slices at once: {shown} keys/s; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        return max(rates)
    finally:
        spark.stop()


def stretches() -> list[TokenStretch]:
    """The ring in slices of one width."""
    whole = new_stretch()
    width = (whole.until - whole.after) // SLICES
    ends = [*(whole.after + width * n for n in range(SLICES)), whole.until]
    return [new_stretch(after, until) for after, until in pairwise(ends)]


class Proxy:
    """Gives each piece of a server's answers `seconds` later; in a thread of its own."""

    def __init__(self, server: int, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()
        self._started.wait()

    async def _run(self) -> None:
        listening = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = listening.sockets[0].getsockname()[1]
        self._started.set()
        await listening.serve_forever()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server)
        await asyncio.gather(self._copy(client, to_server, 0.0), self._copy(server, to_client, self._seconds))

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while piece := await source.read(1 << 16):
            if seconds:
                loop.call_later(seconds, to.write, piece)
            else:
                to.write(piece)
        loop.call_later(seconds, to.close)


if __name__ == "__main__":
    main()
