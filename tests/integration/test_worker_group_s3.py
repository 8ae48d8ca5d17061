"""A group whose connectors have their state in a bucket: whoever is killed, and while the store is away, each change is
published once.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docs.s3_server import BUCKET, S3Server, running_s3
from integration.pipeline import Command, Pipeline
from integration.test_exactly_once import KEYED, MERGED, OWN, set_properties
from integration.test_two_workers import lines, stopped
from integration.worker_group import WorkerGroup, await_record
from integration.write_log import WriteLog, each_change_once, each_once, last_differing, nulls_again, read_counts
from patience import eventually

from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long]  # connector/test_hadoop_files.py has the store alone

ROWS_TABLE, KEYS_TABLE = TABLES = ("gbucket.merged", "gbucket.keyed")
GROUP = "helenus-buckets"
KEYS, RATE = 60, 20.0
AWAY_S, STOPPED_S = 8, 12
BETWEEN = "state.before-commit"
"""The driver has published a batch, and Spark does not know."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE gbucket WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=gbucket\\.merged\n")
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES)
        for table, own in {ROWS_TABLE: OWN[MERGED], KEYS_TABLE: OWN[KEYED]}.items():
            set_properties(directory / f"{table}.properties", {**own, "settle.timeout.ms": 1000})
        yield pipeline
    finally:
        pipeline.agent.stop()


@pytest.fixture(scope="module")
def group(pipeline: Pipeline, s3: S3Server) -> Iterator[WorkerGroup]:
    bucket = {"state.checkpoint.dir": f"s3a://{BUCKET}/helenus", **s3.of_spark}
    group = WorkerGroup(pipeline, GROUP, 2, bucket)
    try:
        yield group
    finally:
        group.stop()


@contextmanager
def published_once(group: WorkerGroup, session: Any) -> Iterator[WriteLog]:
    """What is written within has each change of a row as a record once, and each expired row one null."""
    first_key = random.Random(time.time_ns()).randrange(1 << 20) * KEYS
    writes = WriteLog(session, TABLES, range(first_key, first_key + KEYS), RATE, passing=[KEYS_TABLE])
    with writes:
        yield writes
    brokers = str(group.pipeline.status.bootstrap_servers)
    tails = lambda: "\n\n".join(worker.tail() for worker in group.workers)  # noqa: E731

    def differing() -> list[str]:
        errors = []
        for table in TABLES:
            rows = {row.k: row.n for row in session.execute(f"SELECT k, n FROM {table}") if row.k in writes.keys}
            errors += last_differing(read_counts(brokers, f"data-{table}", writes.keys), rows, ())
        return errors

    group.wait_quiet(TABLES)
    eventually(lambda: not differing(), lambda: f"{differing()[:8]}\n{tails()}", every=2)
    merged, keyed = (read_counts(brokers, f"data-{table}", writes.keys) for table in TABLES)
    assert each_once(merged, writes.written[ROWS_TABLE]) == [], tails()
    assert each_change_once(keyed, has_deletes=True) == []
    assert nulls_again(keyed) == []
    assert not [line for worker in group.workers for line in lines(worker, "state.begun_anew")]
    assert not [worker for worker in group.workers if "s3cret" in worker.log.read_text()], "no log has the password"


def taken_over(worker: Command) -> int:
    return len([line for line in lines(worker, "state.taken_over") if "rows/" in line])


def test_a_bucket_has_the_state(group: WorkerGroup, s3: S3Server, session: Any) -> None:
    """The leader is killed once a batch is published, and its disk is lost; then the store is away for a while."""
    first, second = group.workers
    point = group.pipeline.directory / "killed"
    first.start(HELENUS_FAILPOINT=f"{BETWEEN}:8@{point}")
    group.await_leader([first])
    second.start()
    group.await_standby(second)
    with published_once(group, session):
        eventually(lambda: first.process is not None and first.process.poll() is not None, first.tail)
        shutil.rmtree(group.checkpoint(first))
        group.await_leader([second])
        await_record(group.pipeline, ROWS_TABLE)
        s3.stop()
        time.sleep(AWAY_S)
        s3.start()
        await_record(group.pipeline, ROWS_TABLE)
    assert point.exists()
    assert taken_over(second) == 1
    of_group = s3.directory / "data" / BUCKET / "helenus" / GROUP
    leaders = {path.relative_to(of_group).parts[0] for path in of_group.rglob("rows/**/*") if path.is_file()}
    assert len(leaders) == 1, "what the former one had is removed"


@pytest.mark.long
def test_a_leader_that_hangs(group: WorkerGroup, s3: S3Server, session: Any) -> None:
    """It goes on with what it did, and the next one has a state of its own. A takeover waits for a store."""
    for worker in group.workers:
        if worker.process is None or worker.process.poll() is not None:
            worker.start()
    leader = group.await_leader()
    (standby,) = group.others(leader)
    group.await_standby(standby)
    before = taken_over(standby)
    with published_once(group, session):
        await_record(group.pipeline, ROWS_TABLE)
        s3.stop()
        with stopped(leader):
            time.sleep(STOPPED_S)
            s3.start()
            await_record(group.pipeline, ROWS_TABLE)
            assert group.await_leader([standby]) is standby
        group.await_standby(leader)
    assert taken_over(standby) == before + 1
