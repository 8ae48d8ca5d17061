"""The same properties files on a Spark cluster of two workers: what dies there loses nothing and mixes up no order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from integration.pipeline import Pipeline, free_port
from patience import eventually
from spark_start import java_options

from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

TABLE = "cluster.t"
KEYS = 40


class SparkCluster:
    """A standalone master and two workers of one core each, started from pip's Spark."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._home = Path(pyspark.__file__).parent
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        self._web = free_port()

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def _start(self, *arguments: str) -> None:
        environment = {
            **os.environ,
            "JAVA_HOME": str(spark_java_home(Silent())),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._directory / "spark.log").open("ab") as log:
            command = [str(self._home / "bin" / "spark-class"), *arguments]
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

    def __enter__(self) -> SparkCluster:
        self._directory.mkdir(parents=True, exist_ok=True)
        here = ("--host", "127.0.0.1")
        master = ("--port", str(self._port), "--webui-port", str(self._web))
        self._start("org.apache.spark.deploy.master.Master", *here, *master)
        for number in range(2):
            work = ("-d", str(self._directory / f"work{number}"), "--webui-port", str(free_port()))
            size = ("--cores", "1", "--memory", "1g")
            self._start("org.apache.spark.deploy.worker.Worker", *here, *size, *work, self.url)
        eventually(lambda: self._alive() == 2, "two Spark workers are there")
        return self

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=5) as answer:
                return str(answer.read()).count("ALIVE") - 1  # the master itself is
        except OSError:
            return 0

    def executors(self) -> list[int]:
        """The process ids of the executors, which are children of the workers."""
        workers = {process.pid for process in self._processes}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in workers and b"CoarseGrainedExecutorBackend" in command:
                found.append(int(path.name))
        return found

    def serve(self, worker: Path) -> None:
        """Let a worker's file name this cluster."""
        cluster = {
            "spark.master": self.url,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": java_options(),
            "spark.executor.cores": "1",
            # An executor of a test may die more often than one of a cluster in years.
            "spark.deploy.maxExecutorRetries": "-1",
        }
        lines = [line for line in worker.read_text().splitlines() if not line.startswith("spark.master=")]
        worker.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in cluster.items())]) + "\n")

    def __exit__(self, *_: object) -> None:
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def spark(directory: Path) -> Iterator[SparkCluster]:
    with SparkCluster(directory / "spark") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, spark: SparkCluster, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE cluster WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute(f"CREATE TABLE {TABLE} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    try:
        pipeline.agent.start().ready()
        pipeline.connect(TABLE, tasks_max=2)
        spark.serve(directory / "worker.properties")
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


class Counting:
    """Counts up in every key, as fast as it can, while it is entered."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._insert = session.prepare(f"INSERT INTO {TABLE} (k, n) VALUES (?, ?)")

    def _run(self) -> None:
        n = time.time_ns()
        while not self._stop.wait(0.005):
            n += 1
            self._session.execute(self._insert, (n % KEYS, n))

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def in_order(pipeline: Pipeline) -> None:
    """No record of a key shows an older row than one before it."""
    latest: dict[int, int] = {}
    for record in pipeline.records(TABLE):
        assert record.value is not None
        key, n = record.key["k"], record.value["n"]
        assert n >= latest.get(key, 0), f"key {key} goes back at offset {record.offset}"
        latest[key] = n
    assert len(latest) == KEYS


def test_both_workers_take_part(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    with Counting(session):
        eventually(lambda: len(spark.executors()) == 2, "two executors")
        time.sleep(3)
    pipeline.converges(TABLE)
    in_order(pipeline)


def test_an_executor_killed_in_mid_batch(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    with Counting(session):
        time.sleep(2)
        os.kill(spark.executors()[0], signal.SIGKILL)
        eventually(lambda: len(spark.executors()) == 2, "the executor is replaced")
    pipeline.converges(TABLE)
    in_order(pipeline)


@pytest.mark.long
def test_the_driver_killed_and_started_again(pipeline: Pipeline, session: Any) -> None:
    with Counting(session):
        time.sleep(1)
        pipeline.connector.kill()
        time.sleep(1)
        pipeline.connector.start().ready()
        time.sleep(1)
    pipeline.converges(TABLE)
    in_order(pipeline)
