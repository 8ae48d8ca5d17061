"""What a lost node may not have sent: since when, of which tokens, and how it is said."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy, SimpleStrategy
from click.testing import CliRunner
from connector.test_ring import MURMUR, rings
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector import lost_node_command
from helenus_connector.cli import main
from helenus_connector.gate._ring import Ring, RingNode
from helenus_connector.interfaces.event import Event, parse_gap
from helenus_connector.log.events import OffsetRange, Offsets
from helenus_connector.node_loss import _last_report
from helenus_connector.node_loss._last_report import NodeReport, find_last_report
from helenus_connector.node_loss.gap_events import _gaps
from helenus_connector.node_loss.loss import LossQuery, NodeLoss, _unsent_since, shown_time
from helenus_connector.rest.client import WorkerClient
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN, token_ranges
from helenus_schemas.event.wire import decode, encode

A, B, C = (str(uuid.UUID(int=n)) for n in (1, 2, 3))
NOW = 1_790_000_000_000


@given(rings(), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4), min_size=1), st.integers(1, 4), st.data())
def test_token_ranges_are_those_of_the_replicas(
    tokens: dict[RingNode, list[str]], factors: dict[str, int], factor: int, data: st.DataObject
) -> None:
    ring = Ring(MURMUR, tokens)
    by_dc = NetworkTopologyStrategy({dc: str(n) for dc, n in factors.items()})
    for strategy in (by_dc, SimpleStrategy({"replication_factor": str(factor)})):
        for key in data.draw(st.lists(st.binary(), min_size=1, max_size=5)):
            token = Murmur3Token.hash_fn(key)
            replicas = {node.host_id for node in ring.replicas(strategy, key)}
            for node in tokens:
                ranges = ring.token_ranges(strategy, node.host_id)
                assert any(after < token <= until for after, until in ranges) == (node.host_id in replicas)
                assert all(first[1] < second[0] for first, second in pairwise(ranges))


def test_token_ranges_of_other_rings() -> None:
    nodes = {RingNode(str(n), "dc", "rack"): [str(n)] for n in range(2)}
    once = SimpleStrategy({"replication_factor": "1"})
    assert Ring("RandomPartitioner", nodes).token_ranges(once, "0") == [(LEAST_TOKEN, MOST_TOKEN)]
    assert Ring(MURMUR, nodes).token_ranges(once, "0") == [(LEAST_TOKEN, 0), (1, MOST_TOKEN)]
    assert Ring(MURMUR, nodes).token_ranges(once, "another") == []
    assert Ring(MURMUR, {}).token_ranges(once, "0") == []


def test_several_ranges_are_parsed() -> None:
    assert token_ranges("5:9,-7:-1, 20:") == [(-7, -1), (5, 9), (20, MOST_TOKEN)]
    assert token_ranges(":") == [(LEAST_TOKEN, MOST_TOKEN)]
    for wrong in ("5:9,8:10", "5:9,", "", "5:9;8:9"):
        with pytest.raises(ValueError, match=r"range|tokens"):
            token_ranges(wrong)


class MemoryTopics:
    """Events topics in memory; `events` are by partition, each a time in ms and a change, in order of time."""

    def __init__(self, events: Mapping[tuple[str, int], Sequence[tuple[int, Change]]]) -> None:
        self.events = events
        self.reads = 0

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        offsets: Offsets = {}
        for (topic, partition), events in self.events.items():
            if topic in partitions:
                later = [offset for offset, (time_, _) in enumerate(events) if time_ >= timestamp_ms]
                offsets.setdefault(topic, {})[str(partition)] = later[0] if later else -1
        return offsets

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        ends: Offsets = {}
        for (topic, partition), events in self.events.items():
            if topic in partitions:
                ends.setdefault(topic, {})[str(partition)] = len(events)
        return ends

    def advance(self, offset_range: OffsetRange, events: int) -> int:
        return min(offset_range.end, offset_range.start + events)

    def close(self) -> None:
        pass

    def read(self, _: Any, ranges: Sequence[OffsetRange], *more: Any, has_transactions: bool) -> Iterator[list[Any]]:
        for r in ranges:
            events = self.events[r.topic, r.partition][r.start : r.end]
            self.reads += len(events)
            yield [Message(r.topic, r.partition, time_, encode(change)) for time_, change in events]


class Message:
    def __init__(self, topic: str, partition: int, time_: int, value: bytes) -> None:
        self.topic, self.partition, self.timestamp = lambda: topic, lambda: partition, lambda: (1, time_)
        self.key, self.value = lambda: b"k", lambda: value


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NodeReport | None]:
    def run(topics: MemoryTopics, node: str = A, until: int = NOW) -> NodeReport | None:
        monkeypatch.setattr(_last_report, "planner", lambda _: topics)
        monkeypatch.setattr(_last_report, "read", topics.read)
        names = {topic for topic, _ in topics.events}
        return find_last_report(None, dict.fromkeys(names, 2), node, until)  # type: ignore[arg-type]

    return run


def report(node: str, time_: int, position: int = 0, write_time: int | None = None) -> tuple[int, Change]:
    digest = f"{position:032x}"
    return time_, Change(digest, node, Scope.ROW, segment=1, position=position, write_time=write_time)


@pytest.mark.parametrize("seed", range(20))
def test_the_last_event_is_found(
    search: Callable[..., NodeReport | None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never later than it is, and to a second where the node reported as often as others did."""
    monkeypatch.setattr(_last_report, "_SAMPLE_EVENTS", 400)
    chance = random.Random(seed)
    died_at = NOW - chance.choice([25_000, 400_000, 7_200_000, 86_400_000 * 5])
    step = chance.choice([50, 2_000, 300_000]) * (1 + (NOW - died_at) // 3_000_000)
    partitions: dict[tuple[str, int], list[tuple[int, Change]]] = {}
    times = range(died_at - 200 * step, NOW, step)
    last = 0
    for position, time_ in enumerate(times):
        events = partitions.setdefault((f"t{chance.randrange(3)}", chance.randrange(2)), [])
        events.append(report(B, time_, position))
        if time_ <= died_at:
            events.append(report(A, time_, position, time_ * 1000 - 5))
            last = time_
    topics = MemoryTopics(partitions)
    last_report = search(topics)
    assert last_report is not None
    assert last - 1000 <= last_report.timestamp <= last
    assert last_report.position == (last_report.timestamp - times[0]) // step
    assert last_report.write_time is not None
    assert 0 <= last_report.timestamp * 1000 - 5 - last_report.write_time <= 400 * step * 1000
    assert search(topics, C) is None


def test_a_sample_that_misses_the_node_makes_the_loss_larger(search: Callable[..., NodeReport | None]) -> None:
    """It was silent for long, and reported a last time among many events of others."""
    others = [report(B, NOW - 4_000_000 + n) for n in range(0, 3_900_000, 100)]
    rare = [report(A, NOW - 4_000_000, 1), report(A, NOW - 200_000, 2)]
    topics = MemoryTopics({("t", 0): sorted([*others, *rare], key=lambda event: event[0])})
    last_report = search(topics)
    assert last_report is not None
    assert last_report.timestamp in (NOW - 4_000_000, NOW - 200_000)
    assert topics.reads < 60 * 5_000


def test_what_comes_after_the_loss_does_not_count(search: Callable[..., NodeReport | None]) -> None:
    """As of a node that was replaced at its address, with its host id; and a gap of the lost node is no event of it."""
    events = [report(A, NOW - 500_000 + n * 1000, n) for n in range(100)]
    gap = Change("0" * 32, A, Scope.GAP, write_time=1)
    events += [(NOW - 100_000, gap), report(A, NOW + 1000, 500), report(A, NOW + 9000, 501)]
    last_report = search(MemoryTopics({("t", 0): events}))
    assert last_report == NodeReport(NOW - 401_000, 1, 99, None)


def test_the_earliest_of_the_last_write_times_counts(search: Callable[..., NodeReport | None]) -> None:
    """A client sets one, far ahead, and the agent lags."""
    events = [report(A, NOW - 90_000 + n * 100, n, NOW * 900 + n) for n in range(30)]
    events.append(report(A, NOW - 80_000, 30, NOW * 2000))
    last_report = search(MemoryTopics({("t", 0): events}))
    assert last_report == NodeReport(NOW - 80_000, 1, 30, NOW * 900 + 11)


def test_a_search_ends_in_time(search: Callable[..., NodeReport | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has by then, which is earlier."""
    topics = MemoryTopics({("t", 0): [report(A, NOW - 5_000_000 + n * 1000, n) for n in range(4000)]})
    monkeypatch.setattr(_last_report, "_SEARCH_S", 0.0)
    assert search(topics) is None
    monkeypatch.setattr(_last_report, "_SAMPLE_EVENTS", 20)
    monkeypatch.setattr(_last_report, "_SEARCH_S", 45.0)
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(_last_report.time, "monotonic", lambda: next(clock))
    last_report = search(topics)
    assert last_report is not None
    assert NOW - 5_000_000 <= last_report.timestamp <= NOW - 1_000_000


def test_many_partitions_are_sampled(search: Callable[..., NodeReport | None]) -> None:
    partitions = {
        (f"t{n}", p): [report(A, NOW - 400_000 + 5 * i, i) for i in range(20)] for n in range(300) for p in (0, 1)
    }
    topics = MemoryTopics(partitions)
    last_report = search(topics)
    assert last_report is not None
    assert last_report.timestamp == NOW - 400_000 + 95
    assert topics.reads < 40 * 48 * 20


def test_unsent_since() -> None:
    """Agents that lag, and clients with times of their own, make it earlier, not later."""
    sent = NodeReport(NOW, 1, 1, None)
    minute = 60_000_000
    assert _unsent_since(None) is None
    assert _unsent_since(sent) == NOW * 1000 - minute
    assert _unsent_since(sent._replace(write_time=NOW * 1000 - 3600_000_000)) == NOW * 1000 - 3600_000_000 - minute
    assert _unsent_since(sent._replace(write_time=NOW * 2000)) == NOW * 1000 - minute
    assert _unsent_since(sent._replace(write_time=-5)) == 0
    assert _unsent_since(sent._replace(segment=-1)) is None, "another program's agent"


def test_a_query_is_parsed() -> None:
    query = LossQuery.from_words(
        {"node": f" {A} ", "until": "2026-11-29T09:02:11Z", "since": "2026-11-29 10:00:00+01:00"}
    )
    assert query.node == A
    assert (query.until, query.since) == (1_795_942_931_000_000, 1_795_942_800_000_000)
    assert shown_time(1_795_942_931_000_000) == "2026-11-29T09:02:11Z"
    wrong = [
        ({}, "node"),
        ({"node": 5}, "node"),
        ({"node": A, "until": "soon"}, "until: soon is no time"),
        ({"node": A, "since": ""}, "since"),
        ({"node": A, "nod": A}, "nod is not known"),
        ({"node": A, "until": "1970-01-01T00:00:00Z"}, "until: .* before 2000"),
        ({"node": A, "until": "9999-01-01"}, "until: .* to come"),
    ]
    for words, message in wrong:
        with pytest.raises(ValueError, match=message):
            LossQuery.from_words(words)


def loss(*ranges: tuple[int, int], **more: Any) -> NodeLoss:
    return NodeLoss("orders", "lines", A, "dc1", NOW, NOW * 1000, NOW * 1000 + 9, ranges, True, "verify", **more)


def test_gaps_name_tokens() -> None:
    class OneTable:
        id = uuid.UUID(int=7)

    table: Any = OneTable()
    ranges = [(LEAST_TOKEN, -1), (7, MOST_TOKEN)]
    for partition in range(3):
        changes = [decode(encode(change)) for change in _gaps(table, loss(*ranges), partition, 3)]
        assert [(c.scope, c.node, c.part, c.parts, c.write_time) for c in changes] == [
            (Scope.GAP, A, partition, 3, NOW * 1000 + 9)
        ] * 2
        gaps = [parse_gap(Event("t", partition, 0, 0, None, None), change) for change in changes]
        assert [gap.token_range for gap in gaps] == ranges
    many = [(n * 10, n * 10 + 5) for n in range(100)]
    assert [change.start for change in _gaps(table, loss(*many), 0, 1)] == [None], "of all tokens"
    assert [change.start for change in _gaps(table, loss((LEAST_TOKEN, MOST_TOKEN)), 0, 1)] == [None]


def test_bounds_that_are_no_tokens_are_none() -> None:
    event = Event("t", 0, 0, 0, None, None)
    for start, end in ((b"", b""), (b"1234567", b"12345678"), (b"12345678", b"")):
        change = Change(None, A, Scope.GAP, start=Bound(False, (start,)), end=Bound(True, (end,)))
        assert parse_gap(event, change).token_range is None
    assert parse_gap(event, Change(None, A, Scope.GAP)).token_range is None


class AnsweringWorker(WorkerClient):
    """A worker that answers with losses."""

    last_request: Any = None
    losses: Any = ()

    def ask(self, method: str, path: str, body: Any = None, *, has: str, timeout: float = 0) -> list[dict[str, Any]]:
        type(self).last_request = method, path, body
        return list(self.losses)


def test_lines_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helenus_connector.rest.client.WorkerClient", AnsweringWorker)
    third = (MOST_TOKEN - LEAST_TOKEN) // 3
    wide = [(LEAST_TOKEN + third * n, LEAST_TOKEN + third * n + third // 2) for n in range(3)]
    shown = loss(*wide, *((n, n + 1) for n in range(0, 40, 4))).shown()
    AnsweringWorker.losses = [shown, {**shown, "ring_known": False, "since": None, "last_event": None}]
    answer = CliRunner().invoke(main, ["lost-node", "orders", A, "--dry-run", "--until", "2026-11-29T09:02:11Z"])
    assert answer.exit_code == 0, answer.output
    assert AnsweringWorker.last_request == (
        "POST",
        "/connectors/orders/losses",
        {"tables": [], "dry_run": True, "node": A, "until": "2026-11-29T09:02:11Z"},
    )
    assert all(len(line) <= 80 for line in answer.output.splitlines()), answer.output
    assert "13 ranges, 50% of the ring" in answer.output
    assert "and 9 more" in answer.output
    assert "at any time" in answer.output


def test_a_repair_has_the_status_of_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifications of what can be verified, snapshots of what can not."""
    calls: list[Any] = []

    def verify(worker: Any, name: str, tables: Any, as_json: bool, **options: Any) -> int:
        calls.append(("verify", tables, options))
        return 3

    def snapshot(worker: Any, name: str, tables: Any, token_range: str, wait: bool) -> int:
        assert wait
        calls.append(("snapshot", tables, token_range))
        return 0

    monkeypatch.setattr("helenus_connector.rest.client.WorkerClient", AnsweringWorker)
    monkeypatch.setattr(lost_node_command, "verify", verify)
    monkeypatch.setattr(lost_node_command, "snapshot", snapshot)
    shown = loss((1, 2), (5, 6)).shown()
    AnsweringWorker.losses = [shown, {**shown, "table": "cells", "repair": "snapshot"}]
    answer = CliRunner().invoke(main, ["lost-node", "orders", A, "--repair"])
    assert answer.exit_code == 3, answer.output
    assert calls == [
        ("verify", ["lines"], {"repair": True, "token_range": "1:2,5:6"}),
        ("snapshot", ["cells"], "1:2,5:6"),
    ]


def test_a_snapshot_that_the_gap_began_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def snapshot(worker: Any, name: str, tables: Any, **how: Any) -> int:
        calls.append(how)
        if len(calls) == 1:
            raise HelenusError(Kind.CONFIG, "a snapshot of cells is under way")
        return 0

    class SnapshottingWorker(AnsweringWorker):
        def ask(self, method: str, path: str, *more: Any, has: str, timeout: float = 0) -> list[dict[str, Any]]:
            if has == "losses":
                return [{**loss((1, 2)).shown(), "repair": "snapshot"}]
            return [{"table": "lines", "state": state}]

    monkeypatch.setattr("helenus_connector.rest.client.WorkerClient", SnapshottingWorker)
    monkeypatch.setattr(lost_node_command, "snapshot", snapshot)
    state = "SCANNING"
    answer = CliRunner().invoke(main, ["lost-node", "orders", A, "--repair"])
    assert answer.exit_code == 0, answer.output
    assert [how.get("action") for how in calls] == [None, "show", None]
    calls.clear()
    state = "COMPLETE"
    answer = CliRunner().invoke(main, ["lost-node", "orders", A, "--repair"])
    assert (answer.exit_code, len(calls)) == (2, 1), "it was refused for another reason"
