"""A cluster of three brokers, topics of which two replicas must be in sync: one broker after the other is killed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Pipeline, dotted, write_properties
from integration.write_log import WriteLog, each_change_once, each_once, last_differing, read_counts
from patience import eventually
from three_brokers import ThreeBrokers

from helenus_schemas.settings.properties import read_properties
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long]
WRITTEN, READ = TABLES = ("brokers.written", "brokers.read")
CONNECT_JSON = "org.apache.kafka.connect.json.JsonConverter"
ENVELOPES = {
    "resolver": "none",
    "output_format": "debezium",
    **{f"{side}_converter": CONNECT_JSON for side in ("key", "value")},
    **{f"{side}_converter_schemas_enable": "false" for side in ("key", "value")},
}
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
FAULTS = 8
KEYS = range(200)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with ThreeBrokers(tmp_path_factory.mktemp("brokers")) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, brokers: ThreeBrokers, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE brokers WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(replace(status, bootstrap_servers=brokers.bootstrap_servers), directory / "brokers")
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=brokers\\.written\ntopic.creation.default.replication.factor=3\n")
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES, exactly_once_support="required", max_batch_size=200, settle_timeout_ms=1000)
        for table, more in ((WRITTEN, ENVELOPES), (READ, {"output_format": "json", "headers": "digest"})):
            file_of_table = pipeline.directory / f"{table}.properties"
            write_properties(file_of_table, {**read_properties(file_of_table), **dotted(more)})
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def test_brokers_and_workers_are_killed(pipeline: Pipeline, brokers: ThreeBrokers, session: Any) -> None:
    """Coordinators and leaders move in the middle of transactions."""
    chance = random.Random(SEED)
    writes = WriteLog(session, TABLES, KEYS, 100.0)
    try:
        with writes:
            for _ in range(FAULTS):
                number = chance.randrange(3)
                brokers.kill(number)
                time.sleep(chance.uniform(0, 12))
                if chance.random() < 0.5:
                    pipeline.connector.kill()
                    pipeline.connector.start()
                brokers.start(number)
                time.sleep(chance.uniform(0, 12))
        check(pipeline, brokers, session, writes)
    except AssertionError as error:
        raise AssertionError(f"HELENUS_SEED={SEED}: {error}") from error


def check(pipeline: Pipeline, brokers: ThreeBrokers, session: Any, writes: WriteLog) -> None:
    """All records are there, each once."""

    def differing() -> list[str]:
        errors = each_once(read_counts(brokers.bootstrap_servers, f"data-{WRITTEN}", KEYS), writes.written[WRITTEN])
        counts = read_counts(brokers.bootstrap_servers, f"data-{READ}", KEYS)
        rows = {row.k: row.n for row in session.execute(f"SELECT k, n FROM {READ}")}
        return errors + each_change_once(counts) + last_differing(counts, rows, ())

    eventually(lambda: not differing(), lambda: f"{differing()[:5]}\n{pipeline.connector.tail()}", every=5)
    time.sleep(5)
    assert differing() == []
