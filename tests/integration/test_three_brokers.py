"""A cluster of three brokers, topics of which two replicas must be in sync, and two workers of one group: whatever of
them is killed, stopped, cut off or lost, `read_committed` readers get each record once.

`HELENUS_FAULTS`, `HELENUS_WRITES` and `HELENUS_SEED` say how many faults and writes, and which. A fault has
SLOT_S; the writes take all slots together. At `HELENUS_UNTIL` (s since the epoch) the writes end, and no fault begins
later, for machines that are too busy for the slots.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Pipeline
from integration.test_exactly_once import ENVELOPES, ROWS, SUPPORT, check_by_tools, set_properties
from integration.worker_faults import WorkerFaults, start_broker
from integration.worker_group import WorkerGroup
from integration.write_log import Counts, WriteLog, each_change_once, each_once, last_differing, read_counts
from patience import eventually
from three_brokers import ThreeBrokers

from helenus_stack.status import Status

FAULTS = int(os.environ.get("HELENUS_FAULTS", 8))
WRITES = int(os.environ.get("HELENUS_WRITES", 12_000))
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
SLOT_S = 20.0
UNTIL = float(os.environ.get("HELENUS_UNTIL", "inf"))
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900 + 4 * FAULTS * SLOT_S)]

WRITTEN, READ, PASSING = TABLES = ("brokers.written", "brokers.read", "brokers.passing")
"""Tables of which a record is a change; the row as it is read; a row that now and then expires or is deleted."""
OWN = {WRITTEN: ENVELOPES, READ: ROWS, PASSING: ROWS}
GROUP = "helenus-three"
KEYS = range(200)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with ThreeBrokers(tmp_path_factory.mktemp("brokers")) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, brokers: ThreeBrokers, directory: Path) -> Iterator[Pipeline]:
    """The agent, and the files of a worker that is not started."""
    session.execute("CREATE KEYSPACE brokers WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(replace(status, bootstrap_servers=brokers.bootstrap_servers), directory / "brokers")
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=brokers\\.written\ntopic.creation.default.replication.factor=3\n")
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES)
        set_properties(pipeline.directory / "worker.properties", {"bootstrap.servers": brokers.relayed_servers})
        for table, own in OWN.items():
            more = {**own, **SUPPORT, "max.batch.size": 500, "settle.timeout.ms": 1000}
            set_properties(pipeline.directory / f"{table}.properties", more)
        yield pipeline
    finally:
        pipeline.stop()


@pytest.fixture(scope="module")
def workers(pipeline: Pipeline) -> Iterator[WorkerGroup]:
    """Two workers of a group, that stand by for each other."""
    workers = WorkerGroup(pipeline, GROUP, 2, {})
    try:
        workers.start().await_leader()
        yield workers
    finally:
        workers.stop()


def test_many_faults(pipeline: Pipeline, brokers: ThreeBrokers, workers: WorkerGroup, session: Any) -> None:
    """Each kind, in an order and at times that the seed says. Some happen while a worker still starts."""
    chance = random.Random(SEED)
    faults = WorkerFaults(brokers.stacks, brokers.relays, workers.workers, chance)

    def start_another_worker() -> None:
        """By mistake: it is none of the group, and has a checkpoint.dir of its own."""
        another = pipeline.connector.start()
        try:
            eventually(lambda: another.health()[0] == 200, another.tail)
            time.sleep(chance.uniform(0, 8))
        finally:
            another.kill() if chance.random() < 0.5 else another.stop()
        restart_tasks(workers, faults)

    def move_leaders() -> None:
        """A broker is away until others lead its partitions, and a worker is killed meanwhile."""
        broker = chance.choice(brokers.stacks)
        broker.kill("kafka")
        time.sleep(chance.uniform(6, 15))
        faults.kill()
        faults.revive()
        start_broker(broker)

    writes = WriteLog(session, TABLES, KEYS, WRITES / (FAULTS * SLOT_S), passing=[PASSING])
    kinds = [*faults.kinds, start_another_worker, move_leaders]
    try:
        with writes:
            begun_at = time.monotonic()
            for slot, fault in enumerate(draw_faults(kinds, chance)):
                wait_until(begun_at + (slot + chance.uniform(0, 0.5)) * SLOT_S)
                if time.time() > UNTIL:
                    break
                faults.happen(fault)
            writes.wait_written(WRITES, UNTIL - time.time())
        faults.wait_ready()
        restart_tasks(workers, faults)
        workers.wait_quiet(TABLES)
        counts = check_records(pipeline, writes, session)
        check_by_tools(brokers.bootstrap_servers, TABLES)
    except AssertionError as error:
        raise AssertionError(f"HELENUS_SEED={SEED}: {error}\n{faults}") from error
    happened = dict(Counter(name for name in faults.happened if name.isidentifier()))
    records = {table: sum(map(len, of_table.values())) for table, of_table in counts.items()}
    report = f"HELENUS_SEED={SEED}: {writes.count} writes, records {records}, faults {happened}; load {os.getloadavg()}"
    logging.getLogger(__name__).info("%s\n%s", report, faults)


def draw_faults(kinds: list[Callable[[], None]], chance: random.Random) -> list[Callable[[], None]]:
    """So many faults that none happens again before all have."""
    faults: list[Callable[[], None]] = []
    while len(faults) < FAULTS:
        faults += chance.sample(kinds, len(kinds))
    return faults[:FAULTS]


def wait_until(due_at: float) -> None:
    time.sleep(max(0.0, due_at - time.monotonic()))


def restart_tasks(workers: WorkerGroup, faults: WorkerFaults) -> None:
    """Do as an operator does after another worker took the records: restart the tasks until all run."""

    def run() -> bool:
        faults.revive()
        leader = workers.leader()
        if leader is None:
            return False
        try:
            for table in TABLES:
                name = table.replace(".", "-")
                tasks = workers.ask(leader, "GET", f"/connectors/{name}/status")["tasks"]
                if [task["state"] for task in tasks] != ["RUNNING"]:
                    workers.ask(leader, "POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true")
                    return False
        except OSError:
            return False
        return True

    eventually(run, lambda: f"all tasks run\n{faults.tails()}", every=2)


def check_records(pipeline: Pipeline, writes: WriteLog, session: Any) -> dict[str, Counts]:
    """Each change has its record, once, and none is before an older one."""
    brokers = str(pipeline.status.bootstrap_servers)
    counts = {table: read_counts(brokers, f"data-{table}", KEYS) for table in TABLES}
    errors = [f"{WRITTEN}: {error}" for error in each_once(counts[WRITTEN], writes.written[WRITTEN])]
    for table in TABLES:
        rows = {row.k: row.n for row in session.execute(f"SELECT k, n FROM {table}")}
        table_errors = last_differing(counts[table], rows, writes.gone[table])
        if table != WRITTEN:
            table_errors += each_change_once(counts[table], has_deletes=table == PASSING)
        errors += [f"{table}: {error}" for error in table_errors]
    assert not errors, f"{len(errors)} errors\n" + "\n".join(errors[:20])
    return counts
