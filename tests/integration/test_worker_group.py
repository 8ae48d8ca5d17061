"""`group.id`: one worker of a group runs the connectors, and another one goes on where it was."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from integration.group_offsets import end_offsets, group_offsets
from integration.pipeline import Command, Pipeline
from integration.test_exactly_once import ENVELOPES, ROWS, set_properties
from integration.test_two_workers import lines, stopped
from integration.worker_group import CLASS, WorkerGroup, await_record
from integration.write_log import WriteLog, each_change_once, each_once, last_differing, read_counts
from patience import eventually

from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

WRITTEN, READ = TABLES = ("grouped.written", "grouped.read")
"""Tables of which a record is a change, and the row as it is read."""
OTHER, OLD = "grouped.other", "grouped.old"
KEYS, RATE = 100, 60.0
GROUP = "helenus-workers"
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
STOPPED_S = 15
AWAY_S = 90
BACK_S = 60
"""How long it takes at most, on a busy machine, until all is as before; clients wait up to 10 s between attempts."""
NAME = "grouped-other"


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE grouped WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in (*TABLES, OTHER, OLD):
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=grouped\\.written\n")
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES)
        for table in TABLES:
            own = ENVELOPES if table == WRITTEN else ROWS
            set_properties(directory / f"{table}.properties", {**own, "settle.timeout.ms": 1000})
        yield pipeline
    finally:
        pipeline.agent.stop()


@pytest.fixture(scope="module")
def group(pipeline: Pipeline) -> Iterator[WorkerGroup]:
    group = WorkerGroup(pipeline, GROUP, 2, {})
    try:
        yield group.start()
    finally:
        group.stop()


@pytest.fixture
def writes(session: Any) -> WriteLog:
    first_key = random.Random(time.time_ns()).randrange(1 << 20) * KEYS
    return WriteLog(session, TABLES, range(first_key, first_key + KEYS), RATE)


@contextmanager
def exactly_once(group: WorkerGroup, writes: WriteLog, session: Any) -> Iterator[None]:
    """What happens within leaves each table with each record once, when it is over."""
    with writes:
        yield
    group.wait_quiet(TABLES)
    brokers = str(group.pipeline.status.bootstrap_servers)
    counts = {table: read_counts(brokers, f"data-{table}", writes.keys) for table in TABLES}
    assert each_once(counts[WRITTEN], writes.written[WRITTEN]) == []
    rows = {row.k: row.n for row in session.execute(f"SELECT k, n FROM {READ}") if row.k in writes.keys}
    assert each_change_once(counts[READ]) == []
    assert last_differing(counts[READ], rows, ()) == []


def test_one_leads_and_the_other_stands_by(group: WorkerGroup, writes: WriteLog, session: Any) -> None:
    with exactly_once(group, writes, session):
        leader = group.await_leader()
        (standby,) = group.others(leader)
        group.await_standby(standby)
    assert group.health(standby) == f"standby: 127.0.0.1:{leader.port} leads the group {GROUP}"
    assert standby.health() == (200, f"{group.health(standby)}\n")
    for path in ("/connectors", "/connectors/grouped-read/status", "/connectors/grouped-read/config", "/top"):
        assert answer(group, standby, path) == answer(group, leader, path)
    # What each shows of itself alone:
    assert leader.total("helenus_connector_records_total") > 0
    assert standby.total("helenus_connector_records_total") == 0


def answer(group: WorkerGroup, worker: Command, path: str) -> Any:
    try:
        return group.ask(worker, "GET", path)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_leader_is_killed(group: WorkerGroup, writes: WriteLog, session: Any) -> None:
    """The other one goes on where it was, and the one that was killed stands by when it is there again."""
    leader = group.await_leader()
    (standby,) = group.others(leader)
    group.await_standby(standby)
    with exactly_once(group, writes, session):
        time.sleep(3)
        leader.kill()
        await_record(group.pipeline, WRITTEN)
        assert group.await_leader([standby]) is standby
        leader.start()
        group.await_standby(leader)
        time.sleep(2)
    assert len(lines(standby, "worker.leads")) == 1


@pytest.mark.long  # the test above kills it; test_two_workers.py has one that hangs
def test_the_leader_hangs_and_goes_on(group: WorkerGroup, writes: WriteLog, session: Any) -> None:
    """As of a virtual machine that is moved. What it then sends the brokers refuse; it says so once, and stands by."""
    leader = group.await_leader()
    (standby,) = group.others(leader)
    group.await_standby(standby)
    assert leader.process is not None
    pid, replaced = leader.process.pid, len(lines(leader, "worker.replaced"))
    with exactly_once(group, writes, session):
        time.sleep(3)
        with stopped(leader):
            await_record(group.pipeline, WRITTEN)
            assert group.await_leader([standby]) is standby
            time.sleep(STOPPED_S)
        group.await_standby(leader)
        assert group.leader() is standby
        time.sleep(2)
    assert len(lines(leader, "worker.replaced")) == replaced + 1
    assert leader.process.poll() is None, "a supervisor has nothing to start"
    assert leader.process.pid == pid


@pytest.mark.long
def test_workers_are_restarted_one_after_the_other(group: WorkerGroup, writes: WriteLog, session: Any) -> None:
    leader = group.await_leader()
    for other in group.others(leader):
        group.await_standby(other)
    with exactly_once(group, writes, session):
        for worker in (*group.others(leader), leader):
            time.sleep(2)
            assert worker.stop() == 0
            await_record(group.pipeline, WRITTEN)
            worker.start()
            eventually(lambda w=worker: w.health()[0] == 200, worker.tail)  # type: ignore[misc]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["hang", "are killed"])
def test_brokers_that_are_away_for_longer_than_a_session(
    fault: str, group: WorkerGroup, writes: WriteLog, stack: Stack, session: Any
) -> None:
    """Every member has lost the group by then. When the brokers are back one of them leads, and has lost nothing."""
    first = group.await_leader()
    for other in group.others(first):
        group.await_standby(other)
    with exactly_once(group, writes, session):
        time.sleep(3)
        with brokers_away(stack, fault):
            time.sleep(AWAY_S / 2)
            for worker in group.workers:
                status = answer(group, worker, "/connectors/grouped-read/status")
                assert status["connector"]["worker_id"] == f"127.0.0.1:{first.port}", "REST answers"
            time.sleep(AWAY_S / 2)
        back_at = time.monotonic()
        ends = eventually(lambda: ends_once_led(group, WRITTEN), "its data topic has leaders", every=0.1)
        eventually(lambda: ends_once_led(group, WRITTEN) not in (ends, {}), "a record comes", every=0.1)
        record_s = time.monotonic() - back_at
        eventually(lambda: all(saves(group, worker) for worker in group.workers), "a change over REST is kept")
        rest_s = time.monotonic() - back_at
        assert max(record_s, rest_s) < BACK_S, f"a record after {record_s:.1f} s, REST after {rest_s:.1f} s"
        time.sleep(2)
    # It may be the other one, once the group has assigned anew what all had lost.
    eventually(lambda: one_leads(group), lambda: "\n\n".join(worker.tail() for worker in group.workers))


def ends_once_led(group: WorkerGroup, table: str) -> dict[int, int]:
    """The ends of a table's data topic; none while brokers that have just come back elect its leaders."""
    try:
        return end_offsets(str(group.pipeline.status.bootstrap_servers), f"data-{table}")
    except KafkaException:
        return {}


def one_leads(group: WorkerGroup) -> bool:
    """Whether one of the workers runs, and the others stand by for it."""
    running = [worker for worker in group.workers if group.leader([worker]) is not None]
    if len(running) != 1 or running[0].health()[0] != 200:
        return False
    standby = f"standby: 127.0.0.1:{running[0].port} leads the group {GROUP}"
    return all(group.health(other) == standby for other in group.others(running[0]))


@contextmanager
def brokers_away(stack: Stack, fault: str) -> Iterator[None]:
    if fault == "hang":
        stack.pause("kafka")
    else:
        stack.kill("kafka")
    try:
        yield
    finally:
        if fault == "hang":
            stack.resume("kafka")
        else:
            stack.start("kafka")


def saves(group: WorkerGroup, worker: Command) -> bool:
    """Whether a change over REST is kept by now, asked of this worker."""
    try:
        group.ask(worker, "PUT", "/connectors/grouped-read/resume")
        return bool(group.ask(worker, "GET", "/connectors/grouped-read/status")["connector"]["state"] == "RUNNING")
    except OSError:
        return False


def test_what_is_done_over_rest_is_known_to_the_next_leader(group: WorkerGroup, session: Any) -> None:
    """A connector that the standby was asked for, its wanted state, its snapshot, and where an operator moved it; all
    that though the disks of the leader are lost.
    """
    for k in range(50):
        session.execute(f"INSERT INTO {OTHER} (k, n) VALUES ({k}, {k})")
    leader = group.await_leader()
    (standby,) = group.others(leader)
    group.await_standby(standby)
    config = {**group.pipeline.connector_properties(OTHER), "output.format": "json", "snapshot.mode": "initial"}
    group.ask(standby, "PUT", f"/connectors/{NAME}/config", {**CLASS, **{k: str(v) for k, v in config.items()}})
    eventually(lambda: snapshot_state(group, standby) == "COMPLETE", leader.tail)
    group.wait_quiet([OTHER])
    brokers, topic = str(group.pipeline.status.bootstrap_servers), f"events-{OTHER}"
    events = end_offsets(brokers, topic)
    group.ask(standby, "PUT", f"/connectors/{NAME}/stop")
    moved = [{"partition": {"topic": topic, "partition": p}, "offset": {"offset": 1}} for p in events]
    group.ask(standby, "PATCH", f"/connectors/{NAME}/offsets", {"offsets": moved})
    assert group_offsets(brokers, f"helenus-{NAME}", topic) == dict.fromkeys(events, 1)
    group.ask(standby, "PUT", "/connectors/grouped-read/pause")

    group.lose_disks(leader)
    assert group.await_leader([standby]) is standby
    leader.start()
    group.await_standby(leader)
    assert group.ask(leader, "GET", f"/connectors/{NAME}/config")["name"] == NAME
    assert group.ask(leader, "GET", f"/connectors/{NAME}/status")["connector"]["state"] == "STOPPED"
    assert group.ask(leader, "GET", "/connectors/grouped-read/status")["connector"]["state"] == "PAUSED"
    assert snapshot_state(group, leader) == "COMPLETE"
    group.ask(leader, "PUT", f"/connectors/{NAME}/resume")
    group.ask(leader, "PUT", "/connectors/grouped-read/resume")
    repeated = sum(events.values()) - len(events)
    eventually(
        lambda: standby.total("helenus_connector_events_read_total", connector=NAME) >= repeated,
        lambda: f"{repeated} events are read again\n{standby.tail()}",
    )
    group.wait_quiet([OTHER])
    assert end_offsets(brokers, topic) == events, "no snapshot began anew"


def snapshot_state(group: WorkerGroup, worker: Command) -> str:
    snapshots = group.ask(worker, "GET", f"/connectors/{NAME}/snapshots")["snapshots"]
    return str(snapshots[0]["state"]) if snapshots else ""


def test_connects_own_tools_read_the_topic(group: WorkerGroup) -> None:
    """It has the records of Kafka Connect's workers, and Kafka shows who is in the group."""
    values = read_topic(group, "configs")
    assert values["connector-grouped-read"]["properties"]["name"] == "grouped-read"
    assert values["target-state-grouped-read"] == {"state": "STARTED", "state.v2": "STARTED"}
    leader = group.await_leader()
    assert values["helenus-leader"]["worker_id"] == f"127.0.0.1:{leader.port}"
    own = {"worker_id": f"127.0.0.1:{leader.port}", "generation": values["helenus-leader"]["number"]}
    running = {"state": "RUNNING", "trace": None, **own}

    def statuses() -> dict[str, Any]:
        return {key: value for key, value in read_topic(group, "status").items() if value is not None}

    expected = {f"status-{kind}": running for kind in ("connector-grouped-read", "task-grouped-read-0")}
    eventually(lambda: expected.items() <= statuses().items(), lambda: str(statuses()))


def read_topic(group: WorkerGroup, kind: str) -> dict[str, Any]:
    topic = f"helenus-{kind}-{group.name}"
    settings = {"bootstrap.servers": group.pipeline.status.bootstrap_servers, "group.id": "reader"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: dict[str, Any] = {}
    while messages := consumer.consume(1000, 2):
        for message in messages:
            key = (message.key() or b"").decode()
            values[key] = json.loads(message.value() or b"null")
    consumer.close()
    return values


@contextmanager
def alone(pipeline: Pipeline, name: str, more: Mapping[str, object]) -> Iterator[Command]:
    """A worker of one connector, without a group; it is not started."""
    other = Pipeline(pipeline.status, pipeline.directory / name)
    other.connect(OLD, output_format="json", headers="digest", **more)
    try:
        yield other.connector
    finally:
        other.connector.stop()


@pytest.mark.long  # two starts of a worker
def test_a_worker_of_before_becomes_one_of_a_group(pipeline: Pipeline, session: Any) -> None:
    """What it has in its checkpoint.dir is the group's then: also a connector that was made over REST and is paused."""
    with alone(pipeline, "before", {}) as worker:
        worker.start().ready()
        for k in range(30):
            session.execute(f"INSERT INTO {OLD} (k, n) VALUES ({k}, 1)")
        file, old = Path(worker.arguments[1]), Pipeline(pipeline.status, pipeline.directory / "before")
        old.connector = worker
        old.converges(OLD)
        old.call_rest("PUT", "grouped-old/pause")
        worker.stop()
        brokers = str(pipeline.status.bootstrap_servers)
        records = end_offsets(brokers, f"data-{OLD}")
        set_properties(file, {"group.id": "helenus-old"})
        worker.start()
        group = WorkerGroup(old, "helenus-old", 1, {})
        group.workers.insert(0, worker)
        assert group.await_leader([worker]) is worker
        group.workers[1].start()
        group.await_standby(group.workers[1])
        worker.kill()
        assert group.await_leader([group.workers[1]]) is group.workers[1]
        status = group.ask(group.workers[1], "GET", "/connectors/grouped-old/status")
        assert status["connector"]["state"] == "PAUSED"
        assert end_offsets(brokers, f"data-{OLD}") == records
        group.ask(group.workers[1], "PUT", "/connectors/grouped-old/resume")
        for k in range(30):
            session.execute(f"INSERT INTO {OLD} (k, n) VALUES ({k}, 2)")
        group.wait_quiet([OLD])
        rows = {row.k: row.n for row in session.execute(f"SELECT k, n FROM {OLD}")}
        counts = read_counts(brokers, f"data-{OLD}", range(30))
        assert last_differing(counts, rows, ()) == []
        group.stop()
