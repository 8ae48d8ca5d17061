"""State on a Spark cluster: executors that are killed take none of it with them, and a naive sink has the rows; with
`exactly.once.support` each change of rows has one record.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Pipeline, write_properties
from integration.test_exactly_once import STATE, SUPPORT
from integration.test_spark_cluster import SparkCluster
from integration.test_state import agrees
from integration.test_state_rows import write
from integration.write_log import WriteLog, each_once, read_counts
from patience import eventually

from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

TABLES = {"clustered.keys": {"state": "keys"}, "clustered.rows": {"state": "rows", "query.group": "rows"}}
ONCE, ONCE_KEYS, ONCE_RATE = "clustered.once", range(100), 30.0


@pytest.fixture(scope="module")
def spark(directory: Path) -> Iterator[SparkCluster]:
    with SparkCluster(directory / "spark") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, spark: SparkCluster, directory: Path) -> Iterator[Pipeline]:
    strategy = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE clustered WITH replication = {strategy}")
    for table in TABLES:
        session.execute(
            f"CREATE TABLE {table} (p int, c int, d text, v text, n int, m map<text, int>,"
            " l list<int>, st int static, sm map<text, int> static, PRIMARY KEY (p, c, d))"
            " WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"
        )
    session.execute(f"CREATE TABLE {ONCE} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status.only("kafka"), directory)
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=clustered.(rows|once)\n")
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES, ONCE)
        once = {**STATE, **SUPPORT, "query.group": "once"}
        for table, more in {**TABLES, ONCE: once}.items():
            write_properties(directory / f"{table}.properties", {**pipeline.connector_properties(table), **more})
        spark.serve(directory / "worker.properties")
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def test_executors_killed(pipeline: Pipeline, spark: SparkCluster, session: Any) -> None:
    def kill(executors: list[int]) -> None:
        for pid in executors:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(set(spark.executors()) - set(executors)) == 2, "two executors are there")

    eventually(lambda: len(spark.executors()) == 2, "two executors are there")
    with WriteLog(session, [ONCE], ONCE_KEYS, ONCE_RATE) as writes:
        for seed, kill_count in enumerate((0, 1, 2, 1)):
            for table in TABLES:
                write(session, table, 40, seed)
            kill(spark.executors()[:kill_count])
            for table in TABLES:
                session.execute(f"DELETE FROM {table} WHERE p = {seed}")
    for table in TABLES:
        agrees(pipeline, session, table)
    brokers = str(pipeline.status.bootstrap_servers)

    def wrong() -> list[str]:
        return each_once(read_counts(brokers, f"data-{ONCE}", ONCE_KEYS), writes.written[ONCE])

    eventually(lambda: not wrong(), lambda: f"{wrong()[:5]}\n{pipeline.connector.tail()}", every=2)
