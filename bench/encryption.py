"""What authentication and encryption cost on a Spark cluster: jobs as a batch has them, shuffles as a state has them.

    python -m bench encryption [--jobs 200] [--shuffles 6]

Each way has a master and two workers of its own, and they take turns. A job has four tasks, of which each returns
20 kB; a shuffle moves 40 MB. Without a cluster nothing goes over a network.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.spark_session import settled_task_slots
from helenus_connector.query.spark_session import start_session as start_spark
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.spark_cluster import SparkCluster

ROUNDS = 2  # of each way, in turns: what else the machine does meanwhile meets all of them
TASKS, RESULT_BYTES = 4, 20_000
SHUFFLE_ROWS, ROW_BYTES = 400, 100_000
ENCRYPTED = {"spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
WAYS = {"neither": {"spark.authenticate": "false"}, "authentication": {}, "both": ENCRYPTED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--shuffles", type=int, default=6)
    options = parser.parse_args()
    os.environ["JAVA_HOME"] = str(spark_java_home(Terminal()))
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, settings in WAYS.items():
            with (
                tempfile.TemporaryDirectory() as folder,
                SparkCluster(Path(folder) / "spark", settings=settings) as cluster,
                ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own,
            ):
                arguments = cluster.settings, folder, options.jobs, options.shuffles
                times[way].append(own.submit(measure, *arguments).result())
                job, shuffle = times[way][-1]
                print(f"{way}: job {job:.1f} ms, shuffle {shuffle:.0f} ms; load {os.getloadavg()[0]:.1f}", flush=True)
    job, shuffle = (min(column) for column in zip(*times["neither"], strict=True))
    for way, durations in times.items():
        of_job, of_shuffle = (min(column) for column in zip(*durations, strict=True))
        print(
            f"{way}: a job takes {of_job / job:.2f} times as long as with neither, a shuffle {of_shuffle / shuffle:.2f}"
        )


def measure(spark_settings: dict[str, str], folder: str, jobs: int, shuffles: int) -> tuple[float, float]:
    """The median time in ms of a job, and of a shuffle. The first tenth of each warms up."""
    least = {"bootstrap.servers": "none:9092", "checkpoint.dir": folder, "spark.executor.memory": "512m"}
    spark = start_spark(WorkerSettings.from_properties({**least, **spark_settings}, "worker"), Path(folder))
    try:
        assert settled_task_slots(spark, lambda: False) == 2
        context = spark.sparkContext
        numbers = context.parallelize(range(TASKS), TASKS)
        job = timed(lambda: numbers.map(lambda _: os.urandom(RESULT_BYTES)).collect(), jobs)
        rows = context.parallelize(range(SHUFFLE_ROWS), 2).map(lambda n: (n, os.urandom(ROW_BYTES))).cache()
        shuffle = timed(lambda: rows.partitionBy(2).map(lambda row: len(row[1])).sum(), shuffles)
        return job, shuffle
    finally:
        spark.stop()


def timed(call: object, times: int) -> float:
    """The median of so many calls, ms."""
    assert callable(call)
    durations = []
    for _ in range(times + times // 10 + 1):
        start = time.monotonic()
        call()
        durations.append((time.monotonic() - start) * 1000)
    return statistics.median(durations[times // 10 + 1 :])


if __name__ == "__main__":
    main()
