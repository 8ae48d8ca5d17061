"""`group.id` on Pulsar: one worker of a group runs the connectors, and another one goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.counting import Counting, check_order, stored_pulsar_counts
from integration.pipeline import Command, Pipeline
from integration.test_exactly_once import set_properties
from integration.test_two_workers import lines, stopped
from integration.worker_group import CLASS, WorkerGroup
from patience import eventually

from helenus_connector.log._pulsar_planner import PulsarPlanner
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

TABLE, OTHER, OLD = "pgroup.read", "pgroup.other", "pgroup.old"
MERGED, KEYED = "pgroup.merged", "pgroup.keyed"
STATES = {MERGED: {"state": "rows", "query.group": "m", "snapshot.mode": "never"}, KEYED: {"state": "keys"}}
NAME = "pgroup-other"
KEYS = 40
GROUP = "helenus-workers"
STOPPED_S = 25


@pytest.fixture(scope="module")
def pipeline(stack: Stack, status: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    stack.start("pulsar")
    session.execute("CREATE KEYSPACE pgroup WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in (TABLE, OTHER, OLD, *STATES):
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(stack.status().only("pulsar"), directory)
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=pgroup\\.merged\n")
        pipeline.agent.start().ready()
        pipeline.connect(TABLE, output_format="json", settle_timeout_ms=1000)
        yield pipeline
    finally:
        pipeline.agent.stop()
        stack.stop("pulsar")


@pytest.fixture(scope="module")
def group(pipeline: Pipeline) -> Iterator[WorkerGroup]:
    group = WorkerGroup(pipeline, GROUP, 2, {})
    try:
        yield group.start()
    finally:
        group.stop()


def pulsar_of(pipeline: Pipeline) -> PulsarConfig:
    return PulsarConfig(str(pipeline.status.pulsar_url), pipeline.status.pulsar_admin_url)


def topic_ends(pipeline: Pipeline, topic: str) -> Mapping[str, int]:
    with closing(PulsarPlanner(pulsar_of(pipeline))) as planner:
        return planner.latest(planner.partitions([topic]))[topic]


def seconds_to_record(pipeline: Pipeline) -> float:
    """How long it takes until the data topic gets a record."""
    begun, topic = time.monotonic(), f"data-{TABLE}"
    with closing(PulsarPlanner(pulsar_of(pipeline))) as planner:
        partitions = planner.partitions([topic])
        ends = planner.latest(partitions)
        eventually(lambda: planner.latest(partitions) != ends, f"a record in {topic}", every=0.1)
    return time.monotonic() - begun


def note(group: WorkerGroup, fault: str, seconds: float) -> None:
    """Note after how many seconds the next record came, for people."""
    with (group.pipeline.directory / "seconds").open("a") as file:
        file.write(f"{fault} {seconds:.1f}\n")


def pair(group: WorkerGroup) -> tuple[Command, Command]:
    """The one that leads, and the other, which stands by."""
    leader = group.await_leader()
    (standby,) = group.others(leader)
    group.await_standby(standby)
    return leader, standby


@contextmanager
def in_order(group: WorkerGroup, session: Any) -> Iterator[None]:
    """What happens within loses nothing, and no record shows an older row than one before it."""
    with Counting(session, TABLE, KEYS):
        yield
    group.pipeline.connector = group.await_leader()
    eventually(
        lambda: not group.pipeline.differences(TABLE),
        lambda: "\n\n".join([*map(str, group.pipeline.differences(TABLE)[:5]), *(w.tail() for w in group.workers)]),
        every=1,
    )
    check_order(stored_pulsar_counts(pulsar_of(group.pipeline), f"data-{TABLE}"), KEYS)


@pytest.mark.long  # the test below kills a leader
def test_one_leads_and_the_other_stands_by(group: WorkerGroup, session: Any) -> None:
    with in_order(group, session):
        leader, standby = pair(group)
        time.sleep(3)
    assert group.health(standby) == f"standby: 127.0.0.1:{leader.port} leads the group {GROUP}"
    assert standby.health() == (200, f"{group.health(standby)}\n")
    for path in ("/connectors", "/connectors/pgroup-read/status", "/connectors/pgroup-read/config"):
        assert group.ask(standby, "GET", path) == group.ask(leader, "GET", path)
    assert leader.total("helenus_connector_records_total") > 0
    assert standby.total("helenus_connector_records_total") == 0


@pytest.mark.long  # connector/test_pulsar_group_live.py elects on Pulsar
def test_the_leader_is_killed(group: WorkerGroup, session: Any) -> None:
    leader, standby = pair(group)
    with in_order(group, session):
        time.sleep(3)
        leader.kill()
        seconds = seconds_to_record(group.pipeline)
        note(group, "killed", seconds)
        assert group.await_leader([standby]) is standby
        leader.start()
        group.await_standby(leader)
        time.sleep(2)
    assert len(lines(standby, "worker.leads")) == 1


@pytest.mark.long
def test_the_leader_hangs_and_goes_on(group: WorkerGroup, session: Any) -> None:
    leader, standby = pair(group)
    assert leader.process is not None
    pid, replaced = leader.process.pid, len(lines(leader, "worker.replaced"))
    with in_order(group, session):
        time.sleep(3)
        with stopped(leader):
            seconds = seconds_to_record(group.pipeline)
            note(group, "stopped", seconds)
            assert group.await_leader([standby]) is standby
            time.sleep(STOPPED_S)
        group.await_standby(leader)
        assert group.leader() is standby
        time.sleep(2)
    assert len(lines(leader, "worker.replaced")) == replaced + 1
    assert leader.process.poll() is None, "a supervisor has nothing to start"
    assert leader.process.pid == pid


@pytest.mark.long  # connector/test_pulsar_group_live has a leader leave
def test_workers_are_restarted_one_after_the_other(group: WorkerGroup, session: Any) -> None:
    leader, standby = pair(group)
    longest = 0.0
    with in_order(group, session):
        for worker in (standby, leader):
            time.sleep(2)
            assert worker.stop() == 0
            longest = max(longest, seconds_to_record(group.pipeline))
            worker.start()
            eventually(lambda w=worker: w.health()[0] == 200, worker.tail)  # type: ignore[misc]
    note(group, "restarted", longest)


@pytest.mark.long  # test_worker_group has the same on Kafka, connector/test_pulsar_journal the topics
def test_what_is_done_over_rest_is_known_to_the_next_leader(group: WorkerGroup, session: Any) -> None:
    """A connector that the standby was asked for, its wanted state, its snapshot, and where an operator moved it; all
    that though the disks of the leader are lost.
    """
    for k in range(50):
        session.execute(f"INSERT INTO {OTHER} (k, n) VALUES ({k}, {k})")
    leader, standby = pair(group)
    config = {**group.pipeline.connector_properties(OTHER), "output.format": "json", "snapshot.mode": "initial"}
    group.ask(standby, "PUT", f"/connectors/{NAME}/config", {**CLASS, **{k: str(v) for k, v in config.items()}})
    eventually(lambda: snapshot_state(group, standby) == "COMPLETE", leader.tail)
    eventually(lambda: not group.pipeline.differences(OTHER), leader.tail, every=1)
    topic = f"events-{OTHER}"
    events = topic_ends(group.pipeline, topic)
    group.ask(standby, "PUT", f"/connectors/{NAME}/stop")
    moved = [{"partition": {"topic": topic, "partition": int(p)}, "offset": {"offset": 0}} for p in events]
    group.ask(standby, "PATCH", f"/connectors/{NAME}/offsets", {"offsets": moved})
    group.ask(standby, "PUT", "/connectors/pgroup-read/pause")

    group.lose_disks(leader)
    assert group.await_leader([standby]) is standby
    leader.start()
    group.await_standby(leader)
    assert group.ask(leader, "GET", f"/connectors/{NAME}/config")["name"] == NAME
    assert group.ask(leader, "GET", f"/connectors/{NAME}/status")["connector"]["state"] == "STOPPED"
    assert group.ask(leader, "GET", "/connectors/pgroup-read/status")["connector"]["state"] == "PAUSED"
    assert snapshot_state(group, leader) == "COMPLETE"
    offsets = group.ask(leader, "GET", f"/connectors/{NAME}/offsets")["offsets"]
    assert {entry["offset"]["offset"] for entry in offsets} == {0}
    group.ask(leader, "PUT", f"/connectors/{NAME}/resume")
    group.ask(leader, "PUT", "/connectors/pgroup-read/resume")
    eventually(
        lambda: standby.total("helenus_connector_events_read_total", connector=NAME) >= 50,
        lambda: f"its events are read again\n{standby.tail()}",
    )
    eventually(lambda: not group.pipeline.differences(TABLE), standby.tail, every=1)
    assert topic_ends(group.pipeline, topic) == events, "no snapshot began anew"


@pytest.mark.long
def test_the_next_leader_has_the_state(pipeline: Pipeline, session: Any) -> None:
    """Of rows and of keys: what it publishes of rows that end after the takeover, only they can know."""
    own = Pipeline(pipeline.status, pipeline.directory / "states")
    own.directory.mkdir(exist_ok=True)
    shared = own.directory / "shared"
    shared.mkdir(mode=0o700)
    own.connect(*STATES, output_format="json", settle_timeout_ms=1000)
    for table, state in STATES.items():
        set_properties(own.directory / f"{table}.properties", state)
    group = WorkerGroup(own, "helenus-states", 2, {"state.checkpoint.dir": shared})
    try:
        leader, standby = pair(group.start())
        for table in STATES:
            for k in range(KEYS):
                session.execute(f"INSERT INTO {table} (k, n) VALUES ({k}, {k}) USING TTL {100 if k % 2 else 0}")
        for table in STATES:
            eventually(lambda t=table: live(own, t) == {*range(KEYS)}, leader.tail, every=1)  # type: ignore[misc]
        leader.kill()
        assert group.await_leader([standby]) is standby
        for table in STATES:
            eventually(lambda t=table: live(own, t) == {*range(0, KEYS, 2)}, standby.tail, every=1)  # type: ignore[misc]
    finally:
        group.stop()
    assert len(lines(standby, "state.taken_over")) == len(STATES)
    assert not lines(standby, "state.begun_anew")


def live(pipeline: Pipeline, table: str) -> set[int]:
    """The keys whose last record is a row."""
    rows = {int(record.key["k"]): record.value for record in pipeline.records(table)}
    return {k for k, value in rows.items() if value is not None}


def snapshot_state(group: WorkerGroup, worker: Command) -> str:
    snapshots = group.ask(worker, "GET", f"/connectors/{NAME}/snapshots")["snapshots"]
    return str(snapshots[0]["state"]) if snapshots else ""
