"""The agent on a directory of written segments, with a Log that can refuse and a Cassandra that can be away."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent.fakes import FakeCassandra, FakeLog, Raw, agent_on, write_of
from agent.writer import Cell, Row, Update, entry, mutation, table_of
from cassandra.metadata import Murmur3Token
from prometheus_client import REGISTRY

from helenus_agent import agent as module
from helenus_agent import look_pauses
from helenus_agent.agent import Agent
from helenus_agent.node.cassandra import Schema
from helenus_agent.state import StateDirectory
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import placement, wire
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import decode

TABLE = table_of("t", "pk int pk, v int")


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"helenus_agent_{name}", labels) or 0.0


class Bench:
    """An agent and all around it. `run_agent` runs it until there is nothing more to do."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.raw = Raw(tmp_path / "cdc_raw")
        self.cassandra = FakeCassandra(TABLE)
        self.log = FakeLog()
        self.state = StateDirectory(tmp_path / "state")
        self.agent: Agent | None = None

    def start(self, **properties: str) -> Agent:
        """Start it, as another process would after the one before is gone."""
        self.log.waiting.clear()
        self.agent = agent_on(self.tmp_path, self.raw, self.cassandra, self.log, self.state, **properties)
        self.agent.start()
        return self.agent

    def run_agent(self) -> None:
        assert self.agent is not None
        while True:
            self.agent._listed_at = 0.0
            worked = self.agent.step()
            committed = self.agent.commit()
            if not worked and not committed:
                return

    def run(self, seconds: float = 20.0, until: int | None = None) -> None:
        """Run it in a thread until so many records are acknowledged."""
        assert self.agent is not None
        stop = threading.Event()
        failure: list[BaseException] = []

        def target() -> None:
            assert self.agent is not None
            try:
                self.agent.run(stop)
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        for _ in range(int(seconds * 100)):
            if not thread.is_alive() or (until is not None and len(self.log.acknowledged) >= until):
                break
            thread.join(0.01)
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
        if failure:
            raise failure[0]

    @property
    def keys(self) -> list[int]:
        """Keys of the acknowledged events of rows, in the order of the commit log: a topic has one per partition."""
        return [int.from_bytes(self.number(key), "big") for _, key in self._sorted]

    @property
    def events(self) -> list[Change]:
        """Those events."""
        return [event for event, _ in self._sorted]

    @property
    def _sorted(self) -> list[tuple[Change, bytes]]:
        events = [(wire.decode(value or b""), key) for _, _, key, value, _ in self.log.acknowledged if key is not None]
        return sorted(events, key=lambda event: (event[0].segment or 0, event[0].position or 0, event[0].part))

    @staticmethod
    def number(key: bytes | None) -> bytes:
        from helenus_schemas.codec.key import KeyCodec

        assert key is not None
        return KeyCodec(TABLE).decode(key)[0] or b""

    @property
    def saved(self) -> Any:
        return self.state.load("ad310466-96a7-4cb2-acf4-59535a960812")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    bench = Bench(tmp_path)
    yield bench
    bench.state.close()
    if bench.agent is not None:
        bench.agent._queue.close()
        for segment in bench.agent._queue.finished:
            segment.close()


def test_changes_become_events(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(50)))
    bench.start(topic_partitions="7")
    before = metric("events_total", table="ks.t")
    bench.run_agent()
    assert bench.keys == list(range(50))
    for topic, partition, key, value, _ in bench.log.acknowledged:
        assert topic == "events-ks.t"
        token = Murmur3Token.hash_fn(bench.number(key))
        assert partition == placement.partition(token, 7)
        assert value is not None
        change = wire.decode(value)
        assert (change.node, change.segment, change.parts) == (bench.state.load(change.node or "").host_id, 10, 1)
    positions_of: dict[int, list[int]] = {}
    for _, partition, _, value, _ in bench.log.acknowledged:
        positions_of.setdefault(partition, []).append(wire.decode(value or b"").position)
    assert all(positions == sorted(positions) for positions in positions_of.values())
    assert max(max(positions) for positions in positions_of.values()) == bench.raw.ends[10]
    assert bench.saved.segments[10].offset == bench.raw.ends[10]
    assert metric("events_total", table="ks.t") == before + 50


def test_a_segment_goes_only_when_complete_and_acknowledged(bench: Bench) -> None:
    path = bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.raw.index(10)
    agent = bench.start()
    bench.run_agent()
    assert path.exists()

    bench.raw.write(10, write_of(TABLE, 2))
    bench.raw.index(10, complete=True)
    assert agent.step()
    assert not agent.step()
    assert path.exists()  # read to its end, but nothing is acknowledged
    bench.log.refuse_flush = 1
    with pytest.raises(HelenusError):
        agent.commit()
    assert path.exists()
    assert bench.saved.done == []
    bench.log.waiting.clear()
    agent._queue.rewind()
    bench.run_agent()
    assert bench.raw.names == []
    assert bench.saved.done == [10]
    assert bench.keys == [1, 2]


def test_saved_only_after_the_acknowledgement(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    agent = bench.start()
    steps: list[str] = []
    flush, save = bench.log.flush, bench.state.save
    monkeypatch.setattr(bench.log, "flush", lambda timeout: (steps.append("flush"), flush(timeout)))
    monkeypatch.setattr(bench.state, "save", lambda positions: (steps.append("save"), save(positions)))
    agent.step()
    assert steps == []
    agent.commit()
    assert steps == ["flush", "save"]


def test_a_refused_flush_loses_nothing(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(10)))
    bench.log.refuse_flush = 2
    before = metric("retries_total", kind="append-failed")
    bench.start()
    bench.run(until=10)
    assert bench.keys == list(range(10))
    assert metric("retries_total", kind="append-failed") == before + 2
    assert bench.agent is not None
    assert bench.agent.ready() is None


def test_a_refused_append_loses_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVENTS", 3)
    bench.raw.segment(10)
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(10)))
    bench.log.refuse_append = 3
    bench.start()
    bench.run(until=10)
    assert set(bench.keys) == set(range(10))


def test_a_broker_that_refuses_for_good_stops_the_agent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start()

    def append(*_: object) -> None:
        raise HelenusError(Kind.BROKER_REFUSED, "no", "fake")

    monkeypatch.setattr(bench.log, "append", append)
    with pytest.raises(HelenusError, match="no"):
        bench.run()


def test_not_ready_while_the_broker_is_away(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.log.refuse_flush = 10**9
    agent = bench.start()
    bench.run(seconds=0.3)
    assert "not acknowledged" in (agent.ready() or "")
    assert bench.log.acknowledged == []
    assert not bench.saved.segments


def test_goes_on_after_a_restart(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1), write_of(TABLE, 2))
    bench.start()
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 3))
    bench.start()
    bench.run_agent()
    assert bench.keys == [1, 2, 3]


def test_stops_within_a_section_and_goes_on_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVENTS", 2)
    bench.raw.segment(10)
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(7)))
    agent = bench.start()
    agent.step()
    agent.commit()
    assert bench.keys == [0, 1]
    bench.start()
    bench.run_agent()
    assert bench.keys == list(range(7))


def test_an_entry_larger_than_a_piece(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 64)
    wide = table_of("t", "pk int pk, v int, w text")
    bench.cassandra.set(wide)
    big = mutation(Update(wide, b"\0\0\0\2", [Row((), {"w": Cell(b"x" * 5000)}, time=5)]))
    bench.raw.segment(10)
    bench.raw.write(10, write_of(wide, 1), big, write_of(wide, 3))
    bench.start()
    bench.run_agent()
    assert bench.keys == [1, 2, 3]


def test_a_corrupt_segment_is_quarantined_and_the_rest_goes_on(bench: Bench) -> None:
    for number in (10, 11, 12):
        bench.raw.segment(number)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.raw.index(10, complete=True)
    bench.raw.write(11, write_of(TABLE, 2), raw=b"\0\0\0\x20garbage that is no entry at all, and long")
    bench.raw.write(11, write_of(TABLE, 3))
    bench.raw.index(11)
    bench.raw.write(12, write_of(TABLE, 4))
    agent = bench.start()
    bench.run_agent()
    assert bench.keys == [1, 2, 3, 4]
    assert "could not be read" in (agent.ready() or "")
    # Cassandra still writes to it: it stays where it is.
    assert "CommitLog-7-11.log" in bench.raw.names
    bench.raw.write(11, write_of(TABLE, 5))
    bench.raw.index(11, complete=True)
    bench.run_agent()
    quarantined = bench.tmp_path / "state" / "quarantine"
    assert sorted(p.name for p in quarantined.iterdir()) == ["CommitLog-7-11.log", "CommitLog-7-11_cdc.idx"]
    assert bench.raw.names == ["CommitLog-7-12.log"]
    assert bench.keys == [1, 2, 3, 5, 4]
    assert metric("quarantined_segments") == 1
    # It stays unhealthy through a restart, until someone has looked at it.
    agent = bench.start()
    bench.run_agent()
    assert str(quarantined) in (agent.ready() or "")
    for path in quarantined.iterdir():
        path.unlink()
    bench.run_agent()
    assert agent.ready() is None


def test_the_log_says_how_much_is_not_read(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing after an entry with a wrong CRC; the rest of the section, where it is not known how long one is."""
    bench.raw.segment(10)
    garbage = b"\0\0\0\x20garbage that is no entry at all, and long"
    bench.raw.write(10, raw=entry(write_of(TABLE, 1))[:-4] + b"\0\0\0\0" + entry(write_of(TABLE, 2)))
    bench.raw.write(10, raw=garbage)
    bench.start()
    capsys.readouterr()
    bench.run_agent()
    sizes = re.findall(r"segment\.corrupt .*left_unread_bytes=(\d+)", capsys.readouterr().out)
    assert sizes == ["0", str(len(garbage))]
    assert bench.keys == [2]


def test_a_bad_segment_is_remembered_through_a_restart(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, raw=b"\0\0\0\x20garbage that is no entry at all, and long")
    bench.raw.index(10)
    bench.start()
    bench.run_agent()
    assert bench.agent is not None
    bench.agent._commit(1.0)
    bench.raw.index(10, complete=True)
    bench.start()
    bench.run_agent()
    assert (bench.tmp_path / "state" / "quarantine" / "CommitLog-7-10.log").exists()


def test_a_crash_after_quarantine(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, raw=b"\0\0\0\x20garbage that is no entry at all, and long")
    bench.raw.index(10, complete=True)
    agent = bench.start()
    while list(bench.raw.path.glob("*.log")):
        agent.step()
        agent.commit()
    assert 10 in bench.saved.segments  # it is moved, but that is not in the saved positions
    before = metric("lost_segments_total")
    for _ in range(2):
        bench.start()
        bench.run_agent()
        assert metric("lost_segments_total") == before
        (change,) = (decode(value or b"") for _, partition, _, value, _ in bench.log.acknowledged if not partition)
        assert change.scope is Scope.GAP


def test_a_new_table_is_followed_from_its_first_change(bench: Bench) -> None:
    other = table_of("other", "pk int pk, v int")
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start()
    bench.run_agent()
    bench.cassandra.set(TABLE, other)
    bench.raw.write(10, write_of(other, 2), write_of(TABLE, 3))
    bench.run_agent()
    assert [(topic, bench.number(key)[-1]) for topic, _, key, _, _ in bench.log.acknowledged] == [
        ("events-ks.t", 1),
        ("events-ks.other", 2),
        ("events-ks.t", 3),
    ]


def test_a_table_that_gets_cdc_is_followed_from_then_on(bench: Bench) -> None:
    """The schema's own mutation in the log says when: nothing waits for the driver."""
    schema = table_of("tables", "pk int pk, v int", cdc=False, keyspace="system_schema")
    off = replace(TABLE, cdc=False)
    bench.cassandra.set(off, schema)
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start()
    bench.run_agent()
    bench.cassandra.set(TABLE, schema)
    bench.raw.write(10, write_of(TABLE, 2), write_of(schema, 0), write_of(TABLE, 3), write_of(TABLE, 4))
    bench.run_agent()
    assert bench.keys == [3, 4]


@pytest.mark.parametrize("applied", [True, False])
def test_schema_mutations_that_the_agent_knows_cost_one_query(bench: Bench, applied: bool) -> None:
    """They show nothing new, so one question is enough for all of them; unless the node had not applied them yet."""
    schema = table_of("tables", "pk int pk, v int", cdc=False, keyspace="system_schema")
    bench.cassandra.set(replace(TABLE, cdc=False), schema)
    bench.raw.segment(10)
    bench.start()
    answer = bench.cassandra.schema

    def late() -> Schema:
        answered_schema = answer()
        if not applied and bench.cassandra.asked == 2:
            bench.cassandra.set(TABLE, schema)
            bench.cassandra.is_changed = True
        return answered_schema

    bench.cassandra.schema = late  # type: ignore[method-assign]
    bench.raw.write(10, write_of(schema, 0), *(write_of(schema, n) for n in range(30)), write_of(TABLE, 1))
    bench.run_agent()
    assert bench.cassandra.asked == 2 + (not applied)
    assert bench.keys == ([] if applied else [1])
    bench.cassandra.set(TABLE, schema)
    bench.raw.write(10, write_of(schema, 0), write_of(TABLE, 2))
    bench.run_agent()
    assert bench.keys == ([2] if applied else [1, 2])


def test_a_table_that_loses_cdc_is_read_to_the_end_of_the_existing_segments(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start()
    bench.cassandra.set(replace(TABLE, cdc=False))
    bench.cassandra.is_changed = True
    bench.run_agent()
    bench.raw.segment(11)
    bench.raw.write(10, write_of(TABLE, 2))
    bench.run_agent()
    bench.raw.write(11, write_of(TABLE, 3))
    bench.run_agent()
    assert bench.keys == [1, 2]


def test_a_table_that_lost_cdc_while_the_agent_was_down(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start()
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 2))
    bench.cassandra.set(replace(TABLE, cdc=False))
    bench.start()
    bench.run_agent()
    bench.raw.segment(11)
    bench.raw.write(11, write_of(TABLE, 3))
    bench.run_agent()
    assert bench.keys == [1, 2]


def test_an_unknown_table_is_counted(bench: Bench) -> None:
    dropped = table_of("dropped", "pk int pk, v int")
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1), write_of(dropped, 2), write_of(dropped, 2), write_of(TABLE, 3))
    bench.start()
    before, queries_before = metric("skipped_total", reason="unknown_table"), bench.cassandra.asked
    bench.run_agent()
    assert bench.keys == [1, 3]
    assert metric("skipped_total", reason="unknown_table") == before + 2
    assert bench.cassandra.asked == queries_before + 1
    assert bench.agent is not None
    assert bench.agent.ready() is None


def test_waits_for_cassandra_where_only_it_knows(bench: Bench) -> None:
    other = table_of("other", "pk int pk, v int")
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1), write_of(other, 2), write_of(TABLE, 3))
    bench.start()
    bench.cassandra.set(TABLE, other)
    bench.cassandra.away = 2
    bench.run(until=3)
    assert [bench.number(key)[-1] for _, _, key, _, _ in bench.log.acknowledged] == [1, 2, 3]


def test_waits_for_the_topic(bench: Bench) -> None:
    other = table_of("other", "pk int pk, v int")
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1), write_of(other, 2))
    bench.start()
    bench.cassandra.set(TABLE, other)
    bench.log.refuse_create = 2
    bench.run(until=2)
    assert {topic for topic, *_ in bench.log.acknowledged} == {"events-ks.t", "events-ks.other"}


def test_no_table_has_cdc(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.cassandra.set(replace(TABLE, cdc=False))
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start()
    assert "ALTER TABLE" in capsys.readouterr().out
    bench.run_agent()
    assert bench.log.acknowledged == []


def test_excluded_tables_are_counted_and_their_segments_go(bench: Bench) -> None:
    before = metric("skipped_total", reason="excluded")
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.raw.index(10, complete=True)
    bench.start(table_exclude_list=r"ks\.t")
    bench.run_agent()
    assert (bench.log.acknowledged, bench.raw.names) == ([], [])
    assert metric("skipped_total", reason="excluded") == before + 1


def test_stopping_commits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMMIT", 1e9)
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    agent = bench.start()
    agent._committed_at = module.time.monotonic()
    bench.run(seconds=0.2)
    assert bench.keys == [1]
    assert bench.saved.segments[10].offset == bench.raw.ends[10]


def test_stopping_while_the_broker_is_away_is_no_error(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start()
    bench.log.refuse_flush = 10**9
    bench.run(seconds=0.2)
    bench.log.refuse_flush = 0
    bench.start()
    bench.run_agent()
    assert bench.keys == [1]


def test_quiet_segments_are_saved_seldom(bench: Bench) -> None:
    off = replace(TABLE, cdc=False)
    bench.cassandra.set(off)
    bench.raw.segment(10)
    bench.start()
    bench.run_agent()
    flushes = bench.log.flushes
    for n in range(5):
        bench.raw.write(10, write_of(off, n))
        bench.run_agent()
    assert bench.log.flushes == flushes + 1  # the first, long after the last commit


def test_the_agent_polls_less_often_while_nothing_is_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.raw.segment(10)
    agent = bench.start()
    bench.run_agent()
    agent._listed_at = time.monotonic()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if slept == [0.08] * 3:
            bench.raw.write(10, write_of(TABLE, 0))

    monkeypatch.setattr(module.time, "sleep", sleep)
    agent._sleep_while_idle(threading.Event())  # until something is written
    assert slept == [0.08, 0.08, 0.08]
    bench.run_agent()
    assert bench.keys == [0]
    slept.clear()
    agent._sleep_while_idle(threading.Event())
    assert set(slept) == {0.02}  # until cdc_raw is to be listed, in 0.5 s
    slept[:] = [0.02]
    monkeypatch.setattr(look_pauses, "_QUIET_S", 0.0)
    agent._listed_at = 0.0
    agent._sleep_while_idle(threading.Event())  # until cdc_raw is to be listed
    assert slept == [0.02, 0.08]
    agent._listed_at = time.monotonic()
    queries_before = bench.cassandra.asked
    asked_rarely: list[bool] = []

    def changed(rarely: bool = False) -> bool:
        asked_rarely.append(rarely)
        return len(asked_rarely) in (3, 5)

    monkeypatch.setattr(bench.cassandra, "changed", changed)
    agent._sleep_while_idle(threading.Event())  # until the node says, once, that its schema has changed
    assert slept == [0.02, 0.08, 0.08, 0.08, 0.08]
    assert asked_rarely == [False] * 3  # without reading ahead the log shows a change late
    agent.step()
    assert bench.cassandra.asked == queries_before + 1
    agent._queue.mode, agent._listed_at = "eager", time.monotonic()
    agent.step()
    agent._sleep_while_idle(threading.Event())
    assert asked_rarely[3:] == [False, True]


def test_events_linger_only_while_there_is_more_to_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMMIT", 1e9)
    bench.raw.segment(10)
    for key in range(3):
        bench.raw.write(10, write_of(TABLE, key))
    agent = bench.start()
    while agent.step():
        assert bench.log.sends == 0
    assert len(bench.log.waiting) == 3
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    for _ in range(3):
        agent._listed_at = 0.0  # it is time to list: no more to sleep
        agent._sleep_while_idle(threading.Event())
        assert bench.log.sends == 1, "once for what was read, not at each look"
    bench.raw.write(10, write_of(TABLE, 3))
    agent.step()
    agent._listed_at = 0.0
    agent._sleep_while_idle(threading.Event())
    assert (len(bench.log.waiting), bench.log.sends) == (4, 2)
    bench.raw.write(10, write_of(TABLE, 4))
    agent.step()
    agent._commit(1.0)
    agent._listed_at = 0.0
    agent._sleep_while_idle(threading.Event())
    assert (len(bench.log.waiting), bench.log.sends) == (0, 2), "a flush has sent it"


def test_pauses_grow_with_the_time_since_the_last_change(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where entries show at once; the setting bounds them."""
    bench.cassandra.settings = {"commitlog_sync": "periodic"}
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    agent = bench.start(poll_interval_ms="15")
    bench.run_agent()
    now, slept = time.monotonic(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        bench.raw.unmarked(10, write_of(TABLE, len(slept)))

    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for since, pause in ((0.0, 0.002), (0.1, 0.002), (0.5, 0.005), (1.4, 0.014), (3.0, 0.015), (5.1, 0.08)):
        agent._listed_at, agent._pauses._changed_at, agent._pauses._read_at = now, now - since, now - since
        slept.clear()
        agent._sleep_while_idle(threading.Event())
        assert slept == [pytest.approx(pause)]
    # Where much is written, what comes in a longer pause is read together.
    for changes, pause in ((3, 0.006), (5, 0.01), (5000, 0.01)):
        agent._pauses.note_read(changes)
        assert agent._pauses.pause_s(now, True, True) == pytest.approx(pause)


def test_the_age_of_waiting_segments(bench: Bench) -> None:
    bench.raw.segment(10)
    agent = bench.start()
    bench.run_agent()
    assert metric("oldest_unsent_seconds") == 0
    bench.raw.write(10, write_of(TABLE, 1))
    agent.step()
    segment = agent._queue.segments[0]
    assert 0 <= metric("oldest_unsent_seconds") < 5
    segment.since -= 100
    agent._oldest = segment.since
    assert 100 <= metric("oldest_unsent_seconds") < 105
    agent.commit()
    assert metric("oldest_unsent_seconds") == 0


def test_keyspaces_without_log_are_named(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.cassandra.not_durable = ("ks", "other")
    bench.start()
    assert capsys.readouterr().out.count("durable_writes = false") == 1
    bench.cassandra.is_changed = True
    bench.run_agent()
    assert "durable_writes" not in capsys.readouterr().out


def test_not_ready_before_it_is_started(bench: Bench) -> None:
    agent = agent_on(bench.tmp_path, bench.raw, bench.cassandra, bench.log, bench.state)
    assert "starting" in (agent.ready() or "")
    agent.start()
    assert agent.ready() is None


def test_a_bad_segment_that_is_deleted_is_lost(bench: Bench) -> None:
    for number in (10, 11):
        bench.raw.segment(number)
    bench.raw.write(10, raw=b"\0\0\0\x20garbage that is no entry at all, and long")
    bench.raw.index(10)
    before = metric("lost_segments_total")
    agent = bench.start()
    agent.step()
    (bench.raw.path / "CommitLog-7-10.log").unlink()
    bench.run_agent()
    assert metric("lost_segments_total") == before + 1


def test_a_segment_deleted_between_listing_and_reading(bench: Bench) -> None:
    for number in (10, 11):
        bench.raw.segment(number)
        bench.raw.write(number, write_of(TABLE, number))
        bench.raw.index(number)
    before = metric("lost_segments_total")
    agent = bench.start()
    assert agent._queue.next() is not None
    (bench.raw.path / "CommitLog-7-10.log").unlink()
    agent._queue.segments[0].close()
    bench.run_agent()
    assert bench.keys == [11]
    assert metric("lost_segments_total") == before + 1
    assert agent.ready() is None


@pytest.mark.parametrize("dropped", [False, True])
def test_a_refused_flush_forgets_that_a_table_retired(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    """Its last segment and the next one are read in one go, and then read again: what it logged still gets out."""
    bench.raw.segment(1)
    agent = bench.start()
    bench.run_agent()
    bench.raw.write(1, write_of(TABLE, 1))
    bench.raw.index(1, complete=True)
    other = table_of("other", "pk int pk, v int", cdc=False)
    bench.cassandra.set(*([] if dropped else [replace(TABLE, cdc=False)]), other)
    agent._followed.learn()
    bench.raw.segment(2)
    bench.raw.write(2, write_of(other, 9))
    monkeypatch.setattr(module, "_COMMIT", 0.25)
    agent._committed_at = time.monotonic()
    bench.log.refuse_flush = 1
    bench.run(until=1)
    assert bench.keys == [1]


def test_updates_of_several_views_in_one_mutation(bench: Bench) -> None:
    views = [table_of(name, "pk int pk, c int ck, v int", cdc=False) for name in ("v1", "v2")]
    bench.cassandra.views = tuple(view.id for view in views)
    bench.raw.segment(1)
    agent = bench.start()
    key = (1).to_bytes(4, "big")
    rows = [Row((key,), {"v": Cell(b"1234")}, time=1)]
    bench.raw.write(1, mutation(*(Update(view, key, rows) for view in views)), write_of(TABLE, 1))
    bench.run_agent()
    assert (bench.keys, agent.ready()) == ([1], None)


def test_a_closed_segment_deleted_before_its_acknowledgement_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMMIT", 60.0)
    for number in (1, 2):
        bench.raw.segment(number)
    bench.raw.write(1, write_of(TABLE, 1))
    bench.raw.index(1)
    bench.raw.write(2, write_of(TABLE, 2))
    agent = bench.start()
    before = metric("lost_segments_total")
    agent._committed_at = time.monotonic()
    while agent.step():
        pass
    for segment in agent._queue.segments:
        segment.close()
    bench.raw.find(1).unlink()
    agent.step()
    assert metric("lost_segments_total") == before + 1


def test_headers_as_datastax_has_them(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1, time=77))
    bench.start(headers="datastax")
    bench.run_agent()
    token = Murmur3Token.hash_fn((1).to_bytes(4, "big"))
    position = bench.raw.ends[10]
    assert [dict(record.headers) for record in bench.log.appended] == [
        {"segpos": b"10:%d" % position, "token": b"%d" % token, "writetime": b"77"},
    ]
    assert bench.keys == [1]


def test_the_age_of_the_oldest_data_grows_while_the_broker_is_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it goes away under way or is away at the start, and however often all is read again meanwhile."""
    bench.raw.segment(10)
    agent = bench.start()
    bench.run_agent()
    now = time.time()
    monkeypatch.setattr("helenus_agent.agent.time.time", lambda: now)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.log.refuse_flush = 10**9
    for waited in range(0, 300, 100):
        now += 100 if waited else 0
        bench.raw.write(10, write_of(TABLE, waited))
        with pytest.raises(HelenusError):
            bench.run_agent()
        agent._rewind()
        assert waited <= metric("oldest_unsent_seconds") < waited + 5
    bench.log.refuse_create = 10**9
    for _ in range(3):
        with pytest.raises(HelenusError):
            bench.start()
    now += 1000
    assert bench.agent is not None
    assert 1000 <= metric("oldest_unsent_seconds") < 1500
    bench.log.refuse_flush = bench.log.refuse_create = 0
    bench.agent.start()
    bench.run_agent()
    assert metric("oldest_unsent_seconds") == 0


@pytest.mark.parametrize("crashed", [False, True])
def test_no_mutation_is_sent_with_two_names_of_one_node(bench: Bench, crashed: bool) -> None:
    """An upgrade to Cassandra 6.0 renames the node while the agent runs, or while it is down and its last events were
    appended but not acknowledged: consumers that count nodes must not count it twice.
    """
    renamed = "6d194555-f6eb-41d0-c000-000000000001"
    bench.raw.segment(10)
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(5)))
    agent = bench.start()
    bench.run_agent()
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(5, 10)))
    agent._listed_at = 0.0
    agent.step()
    sent = [message for message in bench.log.waiting if message[2] is not None]
    assert len(sent) == 5, "appended, not acknowledged"
    bench.cassandra.host_id, bench.cassandra.is_changed = renamed, True
    if crashed:
        agent._queue.close()
        bench.start()
        bench.log.acknowledged += sent  # they had arrived all the same
    bench.run_agent()
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(10, 15)))
    bench.run_agent()
    assert bench.state.load(renamed, "c").host_id == renamed
    nodes: dict[int, set[str]] = {}
    for key, event in zip(bench.keys, bench.events, strict=True):
        nodes.setdefault(key, set()).add(str(event.node))
    assert {key: len(names) for key, names in nodes.items()} == dict.fromkeys(range(15), 1)
    assert nodes[14] == {renamed}
    assert nodes[4] == {"ad310466-96a7-4cb2-acf4-59535a960812"}
