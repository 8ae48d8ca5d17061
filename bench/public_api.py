"""What a batch costs by PySpark's public API, against Helenus's classes of Java and PySpark's internals.

    python -m bench public_api [--batches 150] [--turns 3]

A stream whose batches run a job of two empty tasks each, as those of a connector that has little to read: the time of
a batch, which follows the one before at once, and the CPU time of Python and Java for it. Each way in a process of its
own, in turns, after as many batches to warm up. No server is needed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

from bench.backlog import cpu_of
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query import _spark_job as job
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.handover import MicroBatch, start_query
from helenus_connector.query.spark_session import start_session
from helenus_schemas.service.logs import setup
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal

WAYS = {"internals": "false", "public API": "true"}
TASKS = [TaskRanges([], 0), TaskRanges([], 0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=150, help="that are measured, after as many others")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    os.environ["JAVA_HOME"] = str(spark_java_home(Terminal()))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':12} {'ms a batch, p50':>16} {'p99':>6} {'CPU ms a batch':>15}")
    for turn in range(options.turns):
        for way in sorted(WAYS, reverse=turn % 2 == 1):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
                times, cpu = own.submit(measure, WAYS[way], options.batches).result()
            p99 = statistics.quantiles(times, n=100)[98]
            print(f"{way:12} {statistics.median(times):>16.0f} {p99:>6.0f} {cpu:>15.0f}", flush=True)


def nothing(_: Iterator[TaskRanges]) -> Iterator[None]:
    yield None


def measure(public: str, batches: int) -> tuple[list[float], float]:
    """Return how long each batch took from the end of the one before, ms, and the CPU time of one, ms."""
    setup()
    ended_at: list[float] = []
    cpu_s: list[float] = []
    is_done = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        properties = {"bootstrap.servers": "none:9092", "checkpoint.dir": folder, "spark.master": "local[2,4]"}
        worker = WorkerSettings.from_properties({**properties, "public.spark.api": public}, "bench")
        spark = start_session(worker, Path(folder))
        jobs, file = job.SparkJobs(spark.sparkContext), Path(folder) / "parts"

        def process(_: MicroBatch) -> None:
            job.offer(file, TASKS)
            job.run(jobs, file, lambda _: nothing)
            ended_at.append(time.monotonic())
            if len(ended_at) in (batches, 2 * batches):
                cpu_s.append(cpu_of(os.getpid()))
            if len(ended_at) == 2 * batches:
                is_done.set()

        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()  # always has a next batch
        writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        query = start_query(spark.sparkContext, writer, process)
        while not is_done.wait(1):
            if not query.isActive:
                raise RuntimeError(f"the query has ended: {query.exception()}")
        query.stop()
        spark.stop()
    measured = ended_at[batches - 1 : 2 * batches]
    return [(after - before) * 1000 for before, after in pairwise(measured)], (cpu_s[1] - cpu_s[0]) / batches * 1000


if __name__ == "__main__":
    main()
