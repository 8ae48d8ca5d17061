"""A group whose connectors keep a state: the next leader goes on with it, whatever the one before does to its own."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Command, Pipeline
from integration.test_exactly_once import KEYED, MERGED, OWN, set_properties
from integration.test_two_workers import lines, stopped
from integration.worker_group import WorkerGroup, await_record
from integration.write_log import WriteLog, each_change_once, each_once, last_differing, nulls_again, read_counts
from patience import eventually

from helenus_stack.status import Status

pytestmark = pytest.mark.integration

ROWS_TABLE, KEYS_TABLE = TABLES = ("gstate.merged", "gstate.keyed")
"""Of `state=rows`, of which a record is a change; and of `state=keys`, where an expired row has one null."""
GROUP = "helenus-states"
KEYS, RATE = 60, 20.0
STOPPED_S = 12
BETWEEN = "state.before-commit"
"""The driver has published a batch, and Spark does not know."""


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE gstate WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=gstate\\.merged\n")
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES)
        for table, own in {ROWS_TABLE: OWN[MERGED], KEYS_TABLE: OWN[KEYED]}.items():
            set_properties(directory / f"{table}.properties", {**own, "settle.timeout.ms": 1000})
        yield pipeline
    finally:
        pipeline.agent.stop()


@pytest.fixture(scope="module")
def shared(directory: Path) -> Path:
    """The directory that all workers have."""
    path = directory / "shared"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="module")
def group(pipeline: Pipeline, shared: Path) -> Iterator[WorkerGroup]:
    group = WorkerGroup(pipeline, GROUP, 2, {"state.checkpoint.dir": shared})
    try:
        yield group.start()
    finally:
        group.stop()


@pytest.fixture
def writes(session: Any) -> WriteLog:
    first_key = random.Random(time.time_ns()).randrange(1 << 20) * KEYS
    return WriteLog(session, TABLES, range(first_key, first_key + KEYS), RATE, passing=[KEYS_TABLE])


@contextmanager
def exactly_once(group: WorkerGroup, writes: WriteLog, session: Any, keeps_state: bool = True) -> Iterator[None]:
    """What happens within leaves each change of rows with a record once, and each expired row with one null."""
    with writes:
        yield
    brokers = str(group.pipeline.status.bootstrap_servers)
    tails = lambda: "\n\n".join(worker.tail() for worker in group.workers)  # noqa: E731

    def differing() -> list[str]:
        rows = {table: rows_of(session, table, writes.keys) for table in TABLES}
        return [
            error
            for t in TABLES
            for error in last_differing(read_counts(brokers, f"data-{t}", writes.keys), rows[t], ())
        ]

    group.wait_quiet(TABLES)
    eventually(lambda: not differing(), lambda: f"{differing()[:8]}\n{tails()}", every=2)
    merged, keyed = (read_counts(brokers, f"data-{table}", writes.keys) for table in TABLES)
    if keeps_state:
        assert each_once(merged, writes.written[ROWS_TABLE]) == []
    assert each_change_once(keyed, has_deletes=True) == []
    assert nulls_again(keyed) == []


def rows_of(session: Any, table: str, keys: range) -> dict[int, int]:
    return {row.k: row.n for row in session.execute(f"SELECT k, n FROM {table}") if row.k in keys}


def pair(group: WorkerGroup) -> tuple[Command, Command]:
    """The one that leads, and the other, which stands by."""
    leader = group.await_leader()
    (standby,) = group.others(leader)
    group.await_standby(standby)
    return leader, standby


def await_takeover(group: WorkerGroup, standby: Command) -> None:
    await_record(group.pipeline, ROWS_TABLE)
    assert group.await_leader([standby]) is standby


def taken_over(worker: Command, kind: str) -> int:
    """How many states of a kind the worker has taken from a leader before it."""
    return len([line for line in lines(worker, "state.taken_over") if f"{kind}/" in line])


def begun_anew(group: WorkerGroup) -> int:
    return sum(len(lines(worker, "state.begun_anew")) for worker in group.workers)


@pytest.mark.long
def test_the_next_leader_has_the_state(group: WorkerGroup, shared: Path, writes: WriteLog, session: Any) -> None:
    """One is killed as it is, and one once a batch is published, and Spark has not noted it. Its disk is lost too."""
    leader, standby = pair(group)
    point = group.pipeline.directory / "killed"
    assert standby.stop() == 0
    standby.start(HELENUS_FAILPOINT=f"{BETWEEN}:6@{point}")
    group.await_standby(standby)
    with exactly_once(group, writes, session):
        await_record(group.pipeline, ROWS_TABLE)
        leader.kill()
        eventually(point.exists, standby.tail)
        eventually(lambda: standby.process is not None and standby.process.poll() is not None, "its end")
        shutil.rmtree(group.checkpoint(standby))
        leader.start()
        await_takeover(group, leader)
        standby.start()
        time.sleep(3)
    assert taken_over(standby, "rows") == taken_over(leader, "rows") == 1
    assert begun_anew(group) == 0
    states = [path for path in (shared / GROUP).glob("*-*/rows/*/*") if path.is_dir()]
    assert len(states) == 1, "those of earlier leaders are removed"


@pytest.mark.long  # two workers with a state each
def test_a_leader_that_hangs_in_a_commit(group: WorkerGroup, shared: Path, writes: WriteLog, session: Any) -> None:
    """It goes on with what it did, and changes nothing of the state that the next one has."""
    leader, standby = pair(group)
    before = taken_over(standby, "rows")
    with exactly_once(group, writes, session):
        time.sleep(5)
        (mine,) = (path for path in (shared / GROUP).glob("*-*/rows/*/*") if path.is_dir())
        with stopped(leader):
            await_takeover(group, standby)
            (theirs,) = (path for path in (shared / GROUP).glob("*-*/rows/*/*") if path.is_dir())
            assert theirs != mine
            time.sleep(STOPPED_S)
        group.await_standby(leader)
        time.sleep(3)
    assert taken_over(standby, "rows") == before + 1
    assert begun_anew(group) == 0


@pytest.mark.long
def test_a_state_that_is_lost_is_announced(group: WorkerGroup, shared: Path, writes: WriteLog, session: Any) -> None:
    """Rows are then learned from the events, and keys from the data topic."""
    group.stop()
    for path in (shared / GROUP).glob("*-*"):
        shutil.rmtree(path)
    with exactly_once(group, writes, session, keeps_state=False):
        group.start()
        await_record(group.pipeline, ROWS_TABLE)
        group.await_leader()
    assert begun_anew(group) == 2


@pytest.mark.long
def test_a_worker_with_another_directory(group: WorkerGroup, shared: Path, directory: Path) -> None:
    """It takes nothing over, and says why; the rest of the group does not suffer."""
    leader, standby = pair(group)
    assert leader.stop() == standby.stop() == 0
    elsewhere = directory / "elsewhere"
    (elsewhere / GROUP).mkdir(parents=True, mode=0o700)
    (elsewhere / GROUP / "directory.id").write_text("another\n")
    set_properties(Path(leader.arguments[1]), {"state.checkpoint.dir": elsewhere})
    leader.start()
    status_path = f"/connectors/{ROWS_TABLE.replace('.', '-')}/status"
    eventually(lambda: "another directory" in trace(group, leader, status_path), leader.tail)
    assert leader.stop() == 0
    set_properties(Path(leader.arguments[1]), {"state.checkpoint.dir": shared})
    standby.start()
    assert group.await_leader([standby]) is standby


def trace(group: WorkerGroup, worker: Command, path: str) -> str:
    try:
        return str(group.ask(worker, "GET", path)["tasks"][0].get("trace"))
    except (OSError, IndexError, KeyError):
        return ""
