"""The worker on a YARN cluster, by `spark-submit`: its driver beside the command, and in a container that dies."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import processes
from integration.counting import Counting, check_order
from integration.pipeline import Command, Pipeline
from integration.submitted import ENVIRONMENT, PACKAGES, pack_environment, submitted
from integration.yarn_cluster import SPARK_HOME, YarnCluster, application_id
from patience import eventually

from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long]

TABLE = "yarn.t"
KEYS = 40
PYTHON = "./environment/bin/python"
JAR = f"{PACKAGES}/helenus_connector/query/helenus.jar"
SETTINGS = {
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",  # nothing is sent: the node has Spark
    "spark.pyspark.python": PYTHON,
    "spark.driver.extraClassPath": JAR,
    # Beside Java, a container has Python's processes: YARN ends it where they take more.
    "spark.driver.memory": "512m",
    "spark.driver.memoryOverhead": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.executor.instances": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.authenticate": "true",
}


@pytest.fixture(scope="module")
def yarn(directory: Path) -> Iterator[YarnCluster]:
    with YarnCluster(directory / "yarn") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def archive(directory: Path) -> Path:
    return pack_environment(directory)


@pytest.fixture
def pipeline(status: Status, session: Any, directory: Path, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS yarn WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(f"DROP TABLE IF EXISTS {TABLE}")
    session.execute(f"CREATE TABLE {TABLE} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory / request.node.name)
    try:
        pipeline.agent.start().ready()
        pipeline.connect(TABLE, tasks_max=2)
        yield pipeline
    finally:
        pipeline.stop()


def submit(pipeline: Pipeline, yarn: YarnCluster, archive: Path, mode: str) -> Command:
    """Have `spark-submit` start the worker on YARN, in a directory without anything but the packages."""
    worker = pipeline.directory / "worker.properties"
    lines = [line for line in worker.read_text().splitlines() if not line.startswith("spark.master=")]
    worker.write_text("\n".join([*lines, "spark.master=yarn"]) + "\n")
    options = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    options += ["--archives", f"{archive}#environment"]
    pipeline.connector = submitted(pipeline.connector, options, in_container=mode == "cluster")
    pipeline.connector.folder = pipeline.directory / "submits"
    pipeline.connector.folder.mkdir(exist_ok=True)
    return pipeline.connector.start(**{**ENVIRONMENT, **yarn.variables})


def in_order(pipeline: Pipeline) -> None:
    """No record of a key shows an older row than one before it."""
    records = pipeline.records(TABLE)
    check_order([(record.key["k"], record.value["n"]) for record in records if record.value is not None], KEYS)


def in_archive(pid: int) -> bool:
    """Return whether a process, or one below it, is the archive's Python."""
    commands = [processes.contents(path, "cmdline") for path in processes.family(pid)]
    return any(command.startswith(PYTHON.encode()) for command in commands)


def test_a_driver_beside_the_command(pipeline: Pipeline, yarn: YarnCluster, archive: Path, session: Any) -> None:
    (pipeline.directory / "submits").mkdir()
    (pipeline.directory / "submits/environment").symlink_to(archive.with_name("packed"))
    submit(pipeline, yarn, archive, "client").ready()
    with Counting(session, TABLE, KEYS):
        eventually(lambda: len(yarn.executors()) == 1, "an executor")
        time.sleep(3)
    pipeline.converges(TABLE)
    in_order(pipeline)
    assert in_archive(*yarn.executors())
    log = pipeline.connector.log.read_text()
    assert "spark.public_api" not in log
    assert pipeline.connector.stop() in (0, 128 + signal.SIGTERM), pipeline.connector.tail()
    eventually(lambda: not yarn.processes(), "no container is left")


def test_a_driver_in_a_container_that_dies(pipeline: Pipeline, yarn: YarnCluster, archive: Path, session: Any) -> None:
    """YARN starts the next attempt, in a new container, which goes on from `checkpoint.dir`."""
    submit(pipeline, yarn, archive, "cluster").ready()
    with Counting(session, TABLE, KEYS):
        time.sleep(2)
        (driver,) = yarn.drivers()
        os.kill(driver, signal.SIGKILL)
        eventually(lambda: yarn.drivers() not in ([], [driver]), "the next attempt")
        pipeline.connector.ready()
        time.sleep(3)
    pipeline.converges(TABLE)
    in_order(pipeline)
    assert in_archive(*yarn.drivers())
    assert in_archive(*yarn.executors())
    logs = yarn.container_logs("stdout") + yarn.container_logs("stderr")
    assert "spark.public_api" not in logs
    application = application_id(pipeline.connector.log.read_text())
    status = yarn.call("application", "-status", application)
    assert re.search(r"AM Host : [\d.]+\n", status), "where REST is"
    yarn.call("application", "-kill", application)
    assert pipeline.connector.dies() == 1, pipeline.connector.tail()
    eventually(lambda: not yarn.processes(), "no container is left")
