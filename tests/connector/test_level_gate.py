"""Which change goes on at which level, what the driver keeps of those that wait, and what becomes of them."""

from __future__ import annotations

import gc
import json
import pickle
import struct
import tracemalloc
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.metadata import NetworkTopologyStrategy, SimpleStrategy
from connector.staged import EVENTS, Staged, int32, table

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate import levels
from helenus_connector.gate._topic_waits import weight
from helenus_connector.gate.cache import Caches
from helenus_connector.gate.gate import ChangeGate
from helenus_connector.gate.replicas import Replicas
from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, Nodes, WaitingChange
from helenus_connector.interfaces.gate import NOTHING_WAITS, GateBatch, GateState, GateWaits, Intake
from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Change, Effect, Scope, column_bit
from helenus_schemas.event.wire import encode
from helenus_schemas.settings.properties import ConfigError

NODES = [str(uuid.UUID(int=n)) for n in range(1, 7)]
DIGEST = "1" * 32


def settings(**more: str) -> ConnectorSettings:
    defaults = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json", "gate": "local_quorum"}
    return ConnectorSettings.from_properties({**defaults, **{k.replace("_", "."): v for k, v in more.items()}}, "test")


def hosts(*dcs: str) -> list[Any]:
    return [Host(uuid.UUID(int=n), dc) for n, dc in enumerate(dcs, 1)]


TWO = ("one", "one", "one", "two", "two", "two")
BY_DC = {"one": 3, "two": 3}


@pytest.mark.parametrize(
    ("level", "enough", "too_few"),
    [
        ("one", [[1], [4]], [[]]),
        ("local_quorum", [[1, 2], [1, 3, 4]], [[1], [1, 4, 5, 6], []]),
        ("quorum", [[1, 2, 3, 4], [1, 4, 5, 6]], [[1, 2, 3], [1, 4, 5]]),
        ("each_quorum", [[1, 2, 4, 5]], [[1, 2, 3, 4], [1, 4, 5, 6]]),
        ("all", [[1, 2, 3, 4, 5, 6]], [[1, 2, 3, 4, 5]]),
    ],
)
def test_levels_count_the_right_replicas(level: str, enough: list[list[int]], too_few: list[list[int]]) -> None:
    replicas_by_dc = {"one": set(NODES[:3]), "two": set(NODES[3:])}

    def is_met(nodes: list[int]) -> bool:
        return levels.is_met(level, BY_DC, "one", replicas_by_dc, [NODES[n - 1] for n in nodes])

    assert [is_met(nodes) for nodes in enough] == [True] * len(enough)
    assert [is_met(nodes) for nodes in too_few] == [False] * len(too_few)


def test_a_node_that_was_replaced_counts_no_more() -> None:
    """The factor is the one of now, and so are the replicas: its successor has another host id."""
    replicas_by_dc = {"one": {NODES[1], NODES[2], NODES[3]}}
    assert not levels.is_met("local_quorum", {"one": 3}, "one", replicas_by_dc, NODES[:2])
    assert levels.is_met("local_quorum", {"one": 1}, "one", replicas_by_dc, NODES[:2]), "of one replica one is enough"


@pytest.mark.parametrize(
    ("gate", "dcs", "strategy", "message"),
    [
        ("local_quorum", TWO, NetworkTopologyStrategy({"two": "3"}), "no replicas in one, the local data centre"),
        ("local_quorum", TWO, SimpleStrategy({"replication_factor": "3"}), "knows no data centres"),
        ("each_quorum", ("one",), SimpleStrategy({"replication_factor": "1"}), "knows no data centres"),
        ("all", ("one", "one"), NetworkTopologyStrategy({"one": "3"}), "reports of 3 replicas, and 2 nodes"),
        ("quorum", ("one",), SimpleStrategy({"replication_factor": "3"}), "reports of 2 replicas, and 1 node can"),
        (
            "each_quorum",
            TWO[:4],
            NetworkTopologyStrategy({"one": "3", "two": "3"}),
            "2 replicas in two, and 1 node can",
        ),
    ],
)
def test_a_level_that_the_keyspace_cannot_give(gate: str, dcs: Sequence[str], strategy: Any, message: str) -> None:
    connector_settings = settings(gate=gate, cassandra_local_dc="one")
    with pytest.raises(HelenusError, match=message) as caught:
        levels.check_level(
            connector_settings, Replicas(MemorySession(hosts(*dcs), {"ks": strategy}), connector_settings)
        )
    assert caught.value.kind is Kind.CONFIG
    assert f"gate={gate}, keyspace ks" in str(caught.value)


@pytest.mark.parametrize("gate", ["one", "local_quorum", "quorum", "all"])
def test_levels_that_a_keyspace_of_one_replica_gives(gate: str) -> None:
    connector_settings = settings(gate=gate)
    levels.check_level(connector_settings, Replicas(MemorySession(hosts("dc"), {"ks": 1}), connector_settings))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="gate=two"):
        settings(gate="two")


@pytest.mark.parametrize(
    ("gate", "consistency", "level"),
    [
        ("local_quorum", "LOCAL_ONE", ConsistencyLevel.LOCAL_QUORUM),
        ("local_quorum", "ALL", ConsistencyLevel.ALL),
        ("each_quorum", "LOCAL_QUORUM", ConsistencyLevel.EACH_QUORUM),
    ],
)
def test_what_is_verified_is_read_at_both_levels(gate: str, consistency: str, level: int) -> None:
    assert levels.read_level(settings(gate=gate, query_consistency=consistency)) == level


INT = table(("k", "int", "partition_key"))


class Gated:
    """A gate of its own, and events for it; three nodes hold each row."""

    def __init__(self, directory: Path, **more: str) -> None:
        self.hosts = hosts("dc", "dc", "dc")
        connector_settings = settings(**more)
        self.caches = Caches(directory, 1000, 600)
        self.gate = ChangeGate(
            Replicas(MemorySession(self.hosts, {"ks": 3}), connector_settings), self.caches, connector_settings
        )
        self.codec = KeyCodec(INT)
        self.offset = 0
        self.batch: GateBatch

    def event(self, node: str, key: int = 1, digest: str = DIGEST, position: int = 0, partition: int = 0) -> Event:
        self.offset += 1
        change = Change(digest, node, segment=1, position=position or self.offset, write_time=5)
        return Event(EVENTS, partition, self.offset, 1000, self.codec.encode((int32(key),)), encode(change))

    def admit(self, *events: Event, waits: GateWaits = NOTHING_WAITS) -> list[AdmittedChange]:
        self.gate._replicas.check()  # as a stage does
        self.batch = self.gate.begin_batch(self.codec, 0.0, waits)
        return list(self.batch.admit(events))

    def publish(self, admitted: Sequence[AdmittedChange]) -> None:
        for admitted_change in admitted:
            self.gate.mark(EVENTS, admitted_change.event.partition, [admitted_change.id or b""], True)
        self.batch.save()

    @property
    def intake(self) -> Intake:
        return self.batch.intake

    @property
    def gate_state(self) -> GateState:
        return self.intake.at_gate


def waits(
    *waiting_changes: WaitingChange, overdue: Sequence[WaitingChange] = (), room: float = float("inf")
) -> GateWaits:
    reports: dict[int, dict[bytes, tuple[Nodes, int]]] = {}
    for waiting in waiting_changes:
        reports.setdefault(waiting.event.partition, {})[waiting.id] = waiting.nodes, waiting.copies
    return GateWaits(reports, overdue, room)


def test_the_second_of_three_reports_completes_a_change(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    first, second, third = (gated.event(node) for node in NODES[:3])
    assert gated.admit(first) == []
    (waiting_change,) = gated.gate_state.waits
    assert (waiting_change.nodes, waiting_change.copies, waiting_change.event) == ((NODES[0],), 1, first)
    (admitted,) = gated.admit(second, waits=waits(waiting_change))
    assert (admitted.event, admitted.copies, admitted.nodes) == (second, 2, (NODES[0], NODES[1]))
    assert (gated.gate_state.gone, gated.gate_state.waits, gated.gate_state.completed) == (
        [(0, waiting_change.id)],
        [],
        1,
    )
    gated.publish([admitted])
    assert gated.admit(third) == []
    assert (gated.intake.confirmed, gated.gate_state.waits) == (1, [])


def test_a_node_counts_once_however_often_it_reports(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    assert gated.admit(*(gated.event(NODES[0]) for _ in range(3))) == []
    (waiting_change,) = gated.gate_state.waits
    assert (waiting_change.nodes, waiting_change.copies) == ((NODES[0],), 3)
    assert gated.admit(gated.event(NODES[0]), waits=waits(waiting_change)) == []
    assert gated.gate_state.waits[0].copies == 4


def test_copies_of_a_range_delete_in_one_batch_go_on_once(tmp_path: Path) -> None:
    """They are no event of a key, which is recognised by its bytes: each is decoded."""
    gated = Gated(tmp_path)
    gated.codec = KeyCodec(table(("a", "int", "partition_key"), ("c", "int", "clustering")))
    key, bound = gated.codec.encode((int32(1), None)), Bound(True, (int32(2),))
    gone = Change(DIGEST, None, Scope.RANGE, segment=1, position=1, write_time=5, start=bound)
    events = [Event(EVENTS, 0, n, 1000, key, encode(gone._replace(node=node))) for n, node in enumerate(NODES[:3])]
    (admitted,) = gated.admit(*events)
    assert (admitted.event, admitted.copies) == (events[1], 3)


def test_nodes_that_hold_no_replica_do_not_count(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    assert gated.admit(gated.event(NODES[0]), gated.event(NODES[4]), gated.event(NODES[5])) == []
    (admitted,) = gated.admit(gated.event(NODES[2]), waits=waits(*gated.gate_state.waits))
    assert admitted.copies == 4


def test_nodes_that_share_a_bit_of_the_cache_count_each(tmp_path: Path) -> None:
    """Of more than 64 nodes the cache tells some apart no more; the gate does."""
    gated = Gated(tmp_path)
    ids = [uuid.UUID(int=n) for n in range(100, 229)]
    gated.hosts[:] = [Host(host_id, "dc") for host_id in ids[:1] + ids[64:65] + ids[128:129]]
    for n, host_id in enumerate(ids):
        gated.admit(gated.event(str(host_id), digest=f"{n:032x}"))
        gated.batch.save()
    cache = gated.caches.cache_for(EVENTS, 0)
    assert cache.reporter(str(ids[0]).encode()).bit == cache.reporter(str(ids[64]).encode()).bit
    assert gated.admit(gated.event(str(ids[0]))) == []
    (admitted,) = gated.admit(gated.event(str(ids[64])), waits=waits(*gated.gate_state.waits))
    assert admitted.copies == 2


def test_a_batch_that_is_done_again_gives_the_same(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    first, second = gated.event(NODES[0]), gated.event(NODES[1])
    for _ in range(2):
        assert len(gated.admit(first, second)) == 1
    gated.publish(gated.admit(first, second))
    assert gated.admit(first, second) == []
    assert gated.intake.confirmed == 2


def test_what_was_published_by_a_batch_that_the_driver_did_not_hear_of(tmp_path: Path) -> None:
    """The driver still has it wait: it says that it went on, and its events are accounted for."""
    gated = Gated(tmp_path)
    gated.admit(gated.event(NODES[0]))
    (waiting_change,) = gated.gate_state.waits
    second = gated.event(NODES[1])
    gated.publish(gated.admit(second, waits=waits(waiting_change)))
    assert gated.admit(second, waits=waits(waiting_change)) == []
    assert (gated.gate_state.gone, gated.intake.confirmed) == ([(0, waiting_change.id)], 2)


def test_a_truncation_goes_on_and_takes_its_nodes_reports(tmp_path: Path) -> None:
    """Node 1 holds nothing any more of what it reported before; with the same bytes written again, it does."""
    gated = Gated(tmp_path)
    gated.admit(gated.event(NODES[0]))
    (waiting_change,) = gated.gate_state.waits
    truncation = Event(
        EVENTS, 0, 50, 1000, None, encode(Change("2" * 32, NODES[0], Scope.TABLE, segment=1, position=60))
    )
    admitted = gated.admit(truncation, gated.event(NODES[1], position=70), waits=waits(waiting_change))
    assert [admitted_change.change.scope for admitted_change in admitted] == [Scope.TABLE]
    assert gated.gate_state.truncated == [(0, NODES[0])]
    assert gated.gate_state.waits[0].nodes == (NODES[1],)
    (completed,) = gated.admit(gated.event(NODES[0], position=80), waits=waits(*gated.gate_state.waits))
    assert completed.copies == 3


def test_every_report_around_a_truncation_is_counted(tmp_path: Path) -> None:
    """Of a change that node 1 reports, and twice more once node 2 has truncated, in one batch."""
    gated = Gated(tmp_path)
    change = Change("2" * 32, NODES[1], Scope.TABLE, segment=1, position=60)
    truncation = Event(EVENTS, 0, 50, 1000, None, encode(change))
    admitted = gated.admit(gated.event(NODES[0]), truncation, gated.event(NODES[0]), gated.event(NODES[0]))
    assert [admitted_change.change.scope for admitted_change in admitted] == [Scope.TABLE]
    (waiting_change,) = gated.gate_state.waits
    assert (waiting_change.nodes, waiting_change.copies, gated.intake.read) == ((NODES[0],), 3, 4)


def test_events_of_no_commit_log_go_on(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    key = gated.codec.encode((int32(1),))
    assert len(gated.admit(Event(EVENTS, 0, 1, 1000, key, encode(Change(None, None))))) == 1


def test_a_partition_is_read_no_further_when_no_more_may_wait(tmp_path: Path) -> None:
    """What completes a change is taken, and what waits already; the rest is read again."""
    gated = Gated(tmp_path)
    gated.admit(gated.event(NODES[0], key=1))
    (waiting_change,) = gated.gate_state.waits
    completing, stopping = gated.event(NODES[1], key=1), gated.event(NODES[0], key=2, digest="2" * 32)
    later = gated.event(NODES[1], key=2, digest="2" * 32)
    other = gated.event(NODES[0], key=3, digest="3" * 32, partition=1)
    admitted = gated.admit(completing, stopping, later, other, waits=waits(waiting_change, room=weight(stopping) - 1))
    assert [admitted_change.event for admitted_change in admitted] == [completing]
    assert gated.gate_state.stopped == {0: stopping.offset, 1: other.offset}
    assert (gated.intake.read, gated.gate_state.waits) == (1, [])


def test_an_event_larger_than_all_that_may_wait_waits_alone(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    assert gated.admit(gated.event(NODES[0]), waits=waits(room=10.0)) == []
    assert (len(gated.gate_state.waits), gated.gate_state.stopped) == (1, {})


def test_a_level_that_is_lower_now_lets_go_what_waited(tmp_path: Path) -> None:
    gated = Gated(tmp_path, gate_expired="drop")
    gated.admit(gated.event(NODES[0]))
    (waiting_change,) = gated.gate_state.waits
    gated.hosts[:] = gated.hosts[:1]
    gated.gate._replicas._metadata.keyspaces["ks"].replication_strategy = SimpleStrategy({"replication_factor": "1"})
    assert len(gated.admit(waits=waits(waiting_change, overdue=[waiting_change]))) == 1
    assert (gated.gate_state.completed, gated.gate_state.dropped) == (1, 0)


LIMITS = WaitingLimits(100.0, 1 << 20, True, 30.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def changes(tmp_path: Path, clock: Clock) -> WaitingChanges:
    return driver(tmp_path, clock)


def driver(directory: Path, clock: Clock, limits: WaitingLimits = LIMITS) -> WaitingChanges:
    changes = WaitingChanges(directory / "gate.waiting", clock)
    assert changes.load()
    changes.use({EVENTS: limits})
    return changes


def change(n: int, partition: int = 0, timestamp: float = 0.0, nodes: tuple[str, ...] = (NODES[0],)) -> WaitingChange:
    event = Event(EVENTS, partition, n, int(timestamp * 1000), b"k%d" % n, b"v")
    return WaitingChange(struct.pack(">16x")[:12] + struct.pack(">I", n), event, nodes, 1)


def pass_by(changes: WaitingChanges, clock: Clock, seconds: float, read_until: float | None = None) -> None:
    """So many seconds of batches that read all there is, or up to a time."""
    while seconds > 0:
        step = min(seconds, 20.0)
        clock.now, seconds = clock.now + step, seconds - step
        changes.tick(EVENTS, clock.now, read_until)


def overdue(changes: WaitingChanges) -> list[int]:
    """Those whose time is over; not those that are only counted again."""
    return [waiting.event.offset for waiting in changes.hand_out(1000)[EVENTS].overdue if not waiting.is_recount]


def add(changes: WaitingChanges, clock: Clock, *new_changes: WaitingChange, read_from: float | None = None) -> None:
    changes.apply(EVENTS, GateState(waits=list(new_changes)), read_from, clock.now)
    changes.tick(EVENTS, clock.now)


def test_a_change_is_overdue_after_its_time(changes: WaitingChanges, clock: Clock) -> None:
    add(changes, clock, change(1))
    pass_by(changes, clock, 99)
    assert overdue(changes) == []
    assert changes.next_due(1000.0) == 1001.0
    pass_by(changes, clock, 1)
    assert overdue(changes) == [1]
    assert overdue(changes) == [], "it is handed out again only after a while"
    pass_by(changes, clock, 10)
    assert overdue(changes) == [1]
    changes.apply(EVENTS, GateState(gone=[(0, change(1).id)]), None, clock.now)
    assert changes.counts(EVENTS) == (0, 0, 0, 0.0)


def test_time_in_which_a_topic_is_not_read_does_not_count(changes: WaitingChanges, clock: Clock) -> None:
    """For an hour nothing ran, or what was read did not get newer: what other nodes reported is still in the topic."""
    add(changes, clock, change(1))
    clock.now += 3600
    changes.tick(EVENTS, clock.now)
    pass_by(changes, clock, 300, read_until=clock.now - 1000)
    assert overdue(changes) == []
    pass_by(changes, clock, 100)
    assert overdue(changes) == [1]


def test_only_what_a_restart_does_not_step_back_to_is_kept(
    tmp_path: Path, changes: WaitingChanges, clock: Clock
) -> None:
    add(changes, clock, change(1, timestamp=0.0, nodes=(NODES[0], NODES[1])))
    pass_by(changes, clock, 60)
    add(changes, clock, change(2, timestamp=clock.now))
    changes.save(clock.now)
    clock.now += 1e6
    after = driver(tmp_path, clock)
    assert after.counts(EVENTS)[0] == 1
    gate_waits = after.hand_out(10)[EVENTS]
    assert list(gate_waits.reports[0].values()) == [((NODES[0], NODES[1]), 1)]
    after.tick(EVENTS, clock.now)
    pass_by(after, clock, 39)
    assert overdue(after) == []
    pass_by(after, clock, 2)
    assert overdue(after) == [1], "it has waited for 60 s before"


def test_starts_that_come_sooner_than_the_timeout_do_not_keep_a_change_for_ever(tmp_path: Path, clock: Clock) -> None:
    """Nothing else happens at the table: for how long a change waits is kept all the same."""
    first = driver(tmp_path, clock)
    add(first, clock, change(1))
    for _ in range(3):
        now = driver(tmp_path, clock) if clock.now else first
        now.tick(EVENTS, clock.now)
        for _ in range(9):
            pass_by(now, clock, 5)
            now.save(clock.now)
        assert overdue(now) == ([1] if clock.now > 100 else [])


def test_what_was_old_when_it_came_is_kept_at_once(tmp_path: Path, changes: WaitingChanges, clock: Clock) -> None:
    clock.now = 1000.0
    for n in range(3):
        add(changes, clock, change(n, timestamp=100.0), read_from=100.0)
        changes.save(clock.now)
        assert driver(tmp_path, clock).counts(EVENTS)[0] == n + 1


def test_a_damaged_file_is_said(tmp_path: Path, changes: WaitingChanges, clock: Clock) -> None:
    add(changes, clock, change(1, timestamp=-100.0))
    changes.save(clock.now)
    file = tmp_path / "gate.waiting"
    file.write_text(file.read_text().replace("6b31", "6b32"))
    assert not WaitingChanges(file, clock).load()


def test_the_oldest_are_verified_early_when_many_wait(tmp_path: Path, clock: Clock) -> None:
    room = weight(change(1).event) * 10
    changes = driver(tmp_path, clock, WaitingLimits(100.0, room, True, 30.0))
    add(changes, clock, *(change(n) for n in range(5)))
    assert changes.hand_out(1000)[EVENTS].overdue == []
    add(changes, clock, *(change(n) for n in range(5, 8)))
    assert changes.next_due(1000.0) == 1000.0
    gate_waits = changes.hand_out(3)[EVENTS]
    assert [(w.event.offset, w.is_early) for w in gate_waits.overdue] == [(0, True), (1, True), (2, True)]
    assert gate_waits.room == pytest.approx(2 * room / 10, abs=20)
    assert [w.event.offset for w in changes.hand_out(3)[EVENTS].overdue] == [3, 4, 5]
    pass_by(changes, clock, 100)
    assert {(w.event.offset, w.is_early) for w in changes.hand_out(20)[EVENTS].overdue} == {
        (n, False) for n in range(8)
    }


def test_waiting_changes_of_many_nodes_take_no_more_than_counted(changes: WaitingChanges, clock: Clock) -> None:
    """Each was reported by another three of 256 nodes, and comes with a batch of its own from another process."""
    nodes = [str(uuid.UUID(int=n)) for n in range(256)]
    batches = [
        pickle.dumps(
            [change(n, nodes=(nodes[n % 251], nodes[n % 241], nodes[n % 239])) for n in range(start, start + 50)]
        )
        for start in range(0, 2_000, 50)
    ]
    changes.use({EVENTS: replace(LIMITS, bytes=1 << 30)})
    gc.collect()
    tracemalloc.start()
    for batch in batches:
        add(changes, clock, *pickle.loads(batch))
    gc.collect()
    bytes_taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert bytes_taken <= changes.counts(EVENTS)[2] * 1.1
    handed = changes.hand_out(0)[EVENTS]
    assert len({id(node) for reports in handed.reports.values() for r, _ in reports.values() for node in r}) <= 256


def test_changes_go_along_to_another_query(tmp_path: Path, changes: WaitingChanges, clock: Clock) -> None:
    add(changes, clock, change(1), change(2, partition=1))
    pass_by(changes, clock, 50)
    other = WaitingChanges(tmp_path / "other" / "gate.waiting", clock)
    for _ in range(2):  # the first time it died before the other query let go
        other.import_changes(changes.export_changes([EVENTS]))
    changes.drop(["events-ks.u", EVENTS])
    assert (changes.counts(EVENTS)[0], other.counts(EVENTS)[0]) == (0, 2)
    reloaded = WaitingChanges(tmp_path / "other" / "gate.waiting", clock)
    assert reloaded.load()
    assert reloaded.counts(EVENTS)[3] == 50.0
    assert other.shrink(EVENTS, [0]) == 1


def test_what_an_earlier_run_has_read_is_counted_once(tmp_path: Path, changes: WaitingChanges, clock: Clock) -> None:
    """Its outcome is counted by this run: read = outcomes + what waits."""
    add(changes, clock, change(1, timestamp=0.0), change(2, timestamp=0.0))
    changes.apply(EVENTS, GateState(waits=[WaitingChange(b"1", change(1).event, (NODES[0],), 3)]), None, clock.now)
    clock.now += 1000.0
    changes.save(clock.now)
    waits = changes.counts(EVENTS)[1]
    after = driver(tmp_path, clock)
    assert after.counts(EVENTS)[1] == waits
    assert after.take_loaded(["events-ks.other"]) == {}
    assert after.take_loaded([EVENTS, "events-ks.other"]) == {EVENTS: waits}
    assert after.take_loaded([EVENTS]) == {}
    assert changes.take_loaded([EVENTS]) == {}, "what it read itself is counted already"


def test_level_one_lets_all_go_that_waited_at_another(tmp_path: Path, changes: WaitingChanges, clock: Clock) -> None:
    add(changes, clock, change(1), change(2))
    changes.use({EVENTS: WaitingLimits.from_settings(settings(gate="one"))})
    assert overdue(changes) == [1, 2]


TIMED = TimedColumns.from_columns(INT.regulars, [])
LIVE = int(Effect.LIVE | column_bit("v"))


class Waited(Staged):
    """A stage of three replicas at which a write waits, that one node reported; the driver finds it overdue."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, definition: Any = INT, **more: str) -> None:
        self.now: Any = None
        properties = {"gate": "local_quorum", **{k.replace("_", "."): v for k, v in more.items()}}
        super().__init__(definition, directory, monkeypatch, **properties)
        self.session.hosts[:] = hosts("dc", "dc", "dc")
        self.stage.session.cluster.metadata.keyspaces["ks"].replication_strategy = SimpleStrategy(
            {"replication_factor": "3"}
        )

    def report(
        self, change: Change, key: bytes | None, gate_waits: GateWaits = NOTHING_WAITS, offset: int = 7
    ) -> BatchOutcome:
        return self.stage.run([Event(EVENTS, 0, offset, 1000, key, encode(change))], (), True, gate_waits=gate_waits)

    def expire(self, *overdue_changes: WaitingChange, early: bool = False) -> BatchOutcome:
        for overdue_change in overdue_changes:
            overdue_change.is_early = early
        return self.stage.run([], (), True, gate_waits=waits(*overdue_changes, overdue=overdue_changes))


def write(node: str = NODES[0], time: int = 5, digest: str = DIGEST) -> Change:
    return Change(digest, node, segment=1, position=1, write_time=time, effect=LIVE)


def row(value: int, time: int) -> Image:
    return Image((int32(value),), time, [time.to_bytes(8, "big", signed=True)], TIMED)


@pytest.fixture
def waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waited:
    return Waited(tmp_path, monkeypatch)


KEY = (int32(1),)


def records(staged: Staged) -> list[tuple[Any, Any]]:
    return staged.records_of("data-ks.t")


def test_a_change_that_a_read_shows_is_published_when_it_expires(waited: Waited) -> None:
    outcome = waited.report(write(), waited.codec.encode(KEY))
    assert (records(waited), outcome.published) == ([], 0)
    (waiting_change,) = outcome.at_gate.waits
    waited.live[KEY] = row(3, 5)
    outcome = waited.expire(waiting_change)
    assert records(waited) == [({"k": 1}, {"v": 3})]
    assert (outcome.published, outcome.dropped, outcome.at_gate.verified) == (1, 0, 1)
    assert (outcome.at_gate.gone, outcome.at_gate.waits) == ([(0, waiting_change.id)], [])
    assert len(outcome.waiting) == 1, "one replica reported it: its key waits to be confirmed"


def test_a_change_that_a_read_does_not_show_is_dropped_when_it_expires(waited: Waited) -> None:
    (waiting_change,) = waited.report(write(), waited.codec.encode(KEY)).at_gate.waits
    waited.live[KEY] = row(3, 4)
    outcome = waited.expire(waiting_change)
    assert (records(waited), outcome.waiting) == ([], [])
    assert (outcome.published, outcome.dropped, outcome.at_gate.dropped) == (0, 1, 1)
    assert outcome.at_gate.gone == [(0, waiting_change.id)]


def test_a_change_that_is_verified_early_and_not_shown_waits_on(waited: Waited) -> None:
    (waiting_change,) = waited.report(write(), waited.codec.encode(KEY)).at_gate.waits
    waited.live[KEY] = row(3, 4)
    outcome = waited.expire(waiting_change, early=True)
    assert (records(waited), outcome.dropped, outcome.at_gate.gone) == ([], 0, [])
    waited.live[KEY] = row(3, 5)
    assert waited.expire(waiting_change, early=True).at_gate.verified == 1


def test_of_two_changes_of_a_key_the_one_that_is_shown_is_published(waited: Waited) -> None:
    key = waited.codec.encode(KEY)
    (first,) = waited.report(write(), key).at_gate.waits
    (second,) = waited.report(write(time=9, digest="2" * 32), key).at_gate.waits
    waited.live[KEY] = row(3, 5)
    outcome = waited.expire(first, second)
    assert records(waited) == [({"k": 1}, {"v": 3})]
    assert (outcome.published, outcome.dropped, outcome.at_gate.verified, outcome.at_gate.dropped) == (1, 1, 1, 1)


def test_what_cannot_be_read_stays_at_the_gate(waited: Waited, monkeypatch: pytest.MonkeyPatch) -> None:
    from helenus_connector.cassandra_rows.row_reader import UnreadReason

    (waiting_change,) = waited.report(write(), waited.codec.encode(KEY)).at_gate.waits
    away = UnreadReason(HelenusError(Kind.CASSANDRA_READ, "away"), True)
    reader: Any = waited.stage._resolver.reader  # type: ignore[attr-defined]
    monkeypatch.setattr(reader, "read_rows", lambda keys, consistency: iter([(key, away) for key in keys]))
    outcome = waited.expire(waiting_change)
    assert (outcome.at_gate.gone, outcome.waiting, outcome.unread, records(waited)) == ([], [], 0, [])


def test_at_level_one_all_goes_on_that_waited_at_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = Waited(tmp_path, monkeypatch, gate="one")
    waited.live[KEY] = row(3, 5)
    waiting_change = WaitingChange(
        bytes(16), Event(EVENTS, 0, 7, 1000, waited.codec.encode(KEY), encode(write())), (NODES[0],), 2
    )
    outcome = waited.expire(waiting_change)
    assert records(waited) == [({"k": 1}, {"v": 3})]
    assert (outcome.published, outcome.at_gate.completed, outcome.at_gate.gone) == (2, 1, [(0, bytes(16))])


def test_a_change_that_is_released_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = Waited(tmp_path, monkeypatch, gate_expired="release")
    (waiting_change,) = waited.report(write(), waited.codec.encode(KEY)).at_gate.waits
    waited.live[KEY] = row(3, 5)
    outcome = waited.expire(waiting_change)
    (record,) = [record for record in waited.appended if record.topic == "data-ks.t"]
    assert dict(record.headers)["gate"] == b"released"
    assert json.loads(record.value or b"") == {"v": 3}
    assert (outcome.published, outcome.at_gate.released) == (1, 1)


def test_a_change_that_is_dropped_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = Waited(tmp_path, monkeypatch, gate_expired="drop")
    (waiting_change,) = waited.report(write(), waited.codec.encode(KEY)).at_gate.waits
    waited.live[KEY] = row(3, 5)
    outcome = waited.expire(waiting_change)
    assert (records(waited), outcome.dropped, outcome.at_gate.dropped) == ([], 1, 1)


def test_a_deletion_of_rows_that_expires_is_published_with_what_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker and the rows of a read at the level are true at the level, whoever reported the deletion."""
    clustered = table(("a", "int", "partition_key"), ("c", "int", "clustering"))
    waited = Waited(tmp_path, monkeypatch, definition=clustered)
    bound = Bound(True, (int32(2),))
    gone = Change(DIGEST, NODES[0], Scope.RANGE, segment=1, position=1, write_time=5, start=bound, end=None)
    (waiting_change,) = waited.report(gone, waited.codec.encode((int32(1), None))).at_gate.waits
    waited.live[int32(1), int32(3)] = Image((int32(7),), 9)
    outcome = waited.expire(waiting_change)
    assert records(waited) == [({"a": 1, "c": None}, None), ({"a": 1, "c": 3}, {"v": 7})]
    assert outcome.at_gate.verified == 1


def test_an_expired_static_change_that_a_read_does_not_show_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = table(("a", "int", "partition_key"), ("c", "int", "clustering"))
    static = Column("s", parse("int"), "static")
    waited = Waited(tmp_path, monkeypatch, definition=replace(keys, columns=(*keys.columns, static)))
    effect = int(Effect.LIVE | column_bit("s"))
    change = Change(DIGEST, NODES[0], Scope.STATIC, segment=1, position=1, write_time=5, effect=effect)
    (waiting_change,) = waited.report(change, waited.codec.encode((int32(1), None))).at_gate.waits
    timed = TimedColumns.from_columns([static], [])
    for write_time, outcomes in ((4, (0, 1)), (5, (1, 0))):
        image = Image((None, int32(3)), write_time, [write_time.to_bytes(8, "big", signed=True)], timed)
        monkeypatch.setattr(
            waited.stage._resolver.reader,  # type: ignore[attr-defined]
            "read_scopes",
            lambda scopes, consistency, image=image: iter([(index, (image, None)) for index in range(len(scopes))]),
        )
        outcome = waited.expire(waiting_change)
        assert (outcome.at_gate.verified, outcome.at_gate.dropped) == outcomes
        assert len(records(waited)) == outcomes[0]
