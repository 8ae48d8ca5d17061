"""The path by PySpark's public API alone, with the worker's own command, and with `spark-submit`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.counting import Counting, check_order
from integration.pipeline import Pipeline
from integration.submitted import ENVIRONMENT, submitted
from patience import eventually

from helenus_stack.status import Status

pytestmark = pytest.mark.integration

KEYS = 20
PLAIN, ROWS = "anyspark.plain", "anyspark.kept"


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE anyspark WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in (PLAIN, ROWS):
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    with Path(pipeline.agent.arguments[1]).open("a") as file:
        file.write(f"cells.include.list={ROWS.replace('.', '[.]')}\n")
    try:
        pipeline.agent.start().ready()
        pipeline.connect(PLAIN, ROWS)
        with (directory / f"{ROWS}.properties").open("a") as file:
            file.write("state=rows\nquery.group=kept\n")
        yield pipeline
    finally:
        pipeline.stop()


def converge(pipeline: Pipeline) -> None:
    """Each record shows a row not older than the one before it, and the last ones are the tables'."""
    for table in (PLAIN, ROWS):
        pipeline.converges(table)
        records = pipeline.records(table)
        check_order([(record.key["k"], record.value["n"]) for record in records if record.value is not None], KEYS)


def write(session: Any) -> None:
    with Counting(session, PLAIN, KEYS), Counting(session, ROWS, KEYS):
        time.sleep(2)


@pytest.mark.long  # test_by_spark_submit uses the public API, too
def test_by_the_public_api_alone(pipeline: Pipeline, session: Any, directory: Path) -> None:
    """With a worker that is killed while it has batches."""
    with (directory / "worker.properties").open("a") as file:
        file.write("public.spark.api=true\n")
    pipeline.connector.start().ready()
    with Counting(session, PLAIN, KEYS), Counting(session, ROWS, KEYS):
        time.sleep(2)
        pipeline.connector.kill()
        pipeline.connector.start()
        time.sleep(2)
    pipeline.connector.ready()
    converge(pipeline)
    assert "spark.public_api" in pipeline.connector.log.read_text()
    assert pipeline.connector.stop() == 0


@pytest.mark.long
def test_by_spark_submit(pipeline: Pipeline, session: Any, directory: Path) -> None:
    """It goes on where the worker's own command was, and ends with the command's Java process."""
    pipeline.connector = submitted(pipeline.connector, ["--conf", "spark.ui.enabled=true", "--conf", "spark.ui.port=0"])
    pipeline.connector.start(**ENVIRONMENT).ready()
    log = pipeline.connector.log.read_text()
    assert "helenus.jar is not on the class path" in log, "by the public API, too"
    assert "spark.ui_open" in log, "the command's settings count"
    write(session)
    converge(pipeline)
    assert pipeline.connector.process is not None
    pipeline.connector.process.send_signal(signal.SIGTERM)
    pipeline.connector.dies()
    eventually(lambda: pipeline.connector.health()[0] == 0, "the worker has ended, too")
