"""Keys that can't be read now: each waits alone with its events, and is never lost."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ReadFailure, ReadTimeout, Unavailable
from connector.staged import CLUSTERED, DATA, DEAD_LETTERS, EVENTS, NODE, Staged, int32, rows, table
from structlog.testing import capture_logs

from helenus_connector.cassandra_rows.row_reader import UnreadReason, stripe_of
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.reread import _batch, _live_rows, _marker_reads, _read_pass, _read_turns, _row_answers
from helenus_connector.reread._unread_keys import MOST_READS, key_text
from helenus_connector.testing.cassandra import MemoryReader
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_schemas.codec.key import Key
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode

AWAY = Unavailable("not enough replicas", consistency=6, required_replicas=2, alive_replicas=1)
TOMBSTONES = ReadFailure("too many tombstones", consistency=6, required_responses=2, received_responses=0, failures=2)
SLOW = ReadTimeout("as the server says it", consistency=6, required_responses=2, received_responses=1)
SIMPLE = table(("k", "int", "partition_key"))


class Driven(Staged):
    """With the driver's unconfirmed keys. `failing`: why keys can't be read, by the value of their first column."""

    def __init__(self, definition: Any, directory: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        super().__init__(definition, directory, monkeypatch, **more)
        self.unconfirmed = UnconfirmedKeys({EVENTS: 2.0}, {EVENTS: 30.0}, directory / "unconfirmed")
        self.failing: dict[int, Exception] = {}
        self.asked: list[int] = []
        self.now = 0.0
        self.offset = 0
        self.totals: dict[str, int] = dict.fromkeys(("read", "published", "unchanged", "confirmed", "dead_lettered"), 0)
        driven = self

        def refused(key: Key) -> UnreadReason | None:
            (number,) = struct.unpack(">i", key[0] or b"")
            driven.asked.append(number)
            error = driven.failing.get(number)
            failure = HelenusError(Kind.CASSANDRA_READ, f"cannot read rows: {error}", "ks.t")
            return UnreadReason(failure, isinstance(error, Unavailable)) if error else None

        def read(self: MemoryReader, keys: Sequence[Key], consistency: int) -> Iterator[tuple[Key, Any]]:
            yield from ((key, refused(key) or self.live.get(key)) for key in keys)

        def scopes(self: MemoryReader, scope_reads: Sequence[Any], consistency: int) -> Iterator[tuple[int, Any]]:
            for index, (_, key, bounds) in enumerate(scope_reads):
                yield index, refused(key) or (None, self.read_range(key, bounds, consistency))

        monkeypatch.setattr(MemoryReader, "read_rows", read)
        monkeypatch.setattr(MemoryReader, "read_scopes", scopes)

    def batch(self, *keys: int, scope: Scope = Scope.ROW, may_wait: int = 100) -> BatchOutcome:
        """Events of keys, without a digest: confirmed when they are published."""
        events = []
        for key in keys:
            self.offset += 1
            values = (int32(key),) if len(self.codec_columns) == 1 else (int32(key), None)
            value = encode(Change(None, None, scope, write_time=self.offset))
            events.append(Event(EVENTS, 0, self.offset, 1000, self.codec.encode(values), value))
        due_keys = self.unconfirmed.select_due(self.now, 100)
        outcome = self.stage.run(events, due_keys, True, may_wait)
        self.unconfirmed.apply(outcome.done, outcome.waiting, self.now, outcome.places)
        for name in self.totals:
            self.totals[name] += getattr(outcome, name)
        return outcome

    @property
    def codec_columns(self) -> Sequence[Any]:
        return (
            self.stage.versions.current.table.primary_key
            if hasattr(self.stage.versions, "current")
            else SIMPLE.columns[:1]
        )

    def last(self) -> dict[int, Any]:
        return {key["k"]: value and value["v"] for key, value in self.records_of(DATA)}

    def check_sum(self) -> None:
        """Promise 5: every event has an outcome, or waits."""
        _, waiting = self.unconfirmed.counts(EVENTS)
        handled = sum(value for name, value in self.totals.items() if name != "read")
        assert self.totals["read"] == handled + waiting


Make = Callable[..., Driven]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda definition=SIMPLE, **more: Driven(definition, tmp_path, monkeypatch, **more)


def live(driven: Driven, **values: int) -> None:
    driven.live.update(rows(*(((int32(int(k[1:])),), int32(v)) for k, v in values.items())))


def test_a_key_whose_replicas_are_away_waits_alone(make: Make) -> None:
    driven = make()
    live(driven, k1=1, k2=2)
    driven.failing[2] = AWAY
    outcome = driven.batch(1, 2, 2)
    assert (outcome.published, outcome.unread, driven.last()) == (1, 1, {1: 1})
    assert outcome.error is not None
    assert "k = 2" in str(outcome.error)
    assert driven.unconfirmed.counts(EVENTS) == (1, 2)
    live(driven, k1=11)
    driven.batch(1)
    driven.now += 2
    driven.batch()  # it is still away
    assert driven.last() == {1: 11}
    driven.check_sum()
    driven.failing.clear()
    driven.now += 10
    outcome = driven.batch()
    assert (driven.last(), outcome.published, len(driven.unconfirmed)) == ({1: 11, 2: 2}, 2, 0)
    driven.check_sum()


def test_events_of_a_key_that_waits_are_read_at_once(make: Make) -> None:
    """And what waits is published once more at most, never an older row."""
    driven = make()
    live(driven, k1=1)
    driven.failing[1] = AWAY
    driven.batch(1)
    driven.failing.clear()
    live(driven, k1=2)
    driven.batch(1)
    assert driven.last() == {1: 2}
    live(driven, k1=3)
    driven.now += 10
    driven.batch()
    assert ([value["v"] for _, value in driven.records_of(DATA)], len(driven.unconfirmed)) == ([2, 3], 0)
    driven.check_sum()


def test_a_key_that_was_never_read_is_asked_for_at_the_level_of_reads(make: Make, monkeypatch: Any) -> None:
    """One replica reported it: a proof would ask for all of three. But it has to be published before."""
    driven = make()
    monkeypatch.setattr(driven.stage._replicas, "factor", lambda: 3)
    live(driven, k1=1)
    driven.failing[1] = AWAY
    levels: list[int] = []
    read = MemoryReader.read_rows

    def rows_at(self: MemoryReader, keys: Any, consistency: int) -> Any:
        levels.append(consistency)
        return read(self, keys, consistency)

    monkeypatch.setattr(MemoryReader, "read_rows", rows_at)
    change = Change(uuid.uuid4().hex, NODE, Scope.ROW, write_time=5)
    driven.stage.run([], [], True)
    event = Event(EVENTS, 0, 1, 1000, driven.codec.encode((int32(1),)), encode(change))
    outcome = driven.stage.run([event], [], True)
    driven.unconfirmed.apply(outcome.done, outcome.waiting, 0.0, outcome.places)
    second_outcome = driven.stage.run([], driven.unconfirmed.select_due(10.0, 10), True)
    assert levels == [driven.stage._resolver.consistency] * 2
    assert [p.attempts for p in second_outcome.waiting] == [1]


def test_more_keys_than_may_wait_fail_the_batch(make: Make) -> None:
    """They are held in the driver's memory: with no replica there, the topic holds them better."""
    driven = make()
    driven.failing.update(dict.fromkeys(range(5), AWAY))
    with pytest.raises(HelenusError) as error:
        driven.batch(*range(5), may_wait=4)
    assert error.value.kind is Kind.CASSANDRA_READ
    assert len(driven.unconfirmed) == 0
    assert driven.batch(*range(5), may_wait=5).unread == 5


@pytest.mark.parametrize("failure", [TOMBSTONES, SLOW])
def test_a_key_that_cassandra_fails_to_read_is_a_dead_letter_in_the_end(make: Make, failure: Exception) -> None:
    driven = make(**{"errors.tolerance": "all"})
    live(driven, k1=1, k2=2)
    driven.failing[2] = failure
    with capture_logs() as logs:
        assert driven.batch(1, 2).published == 1
        for turn in range(1, MOST_READS):
            assert driven.records_of(DEAD_LETTERS) == []
            live(driven, k1=turn)
            driven.now += 61
            outcome = driven.batch(1)
            assert driven.last() == {1: turn}, "others go on"
    assert (outcome.dead_lettered, len(driven.unconfirmed), len(logs)) == (
        1,
        0,
        MOST_READS,
    )
    assert all("k = 2" in entry["error"] and "ks.t" in entry["error"] for entry in logs)
    assert "tombstone_failure_threshold" in logs[0]["error"]
    (dead_letter,) = [key for topic, _, key, *_ in driven.appended if topic == DEAD_LETTERS]
    assert dead_letter == driven.codec.encode((int32(2),))
    driven.check_sum()


def test_without_tolerance_an_unreadable_key_waits_for_ever_and_is_named(make: Make) -> None:
    driven = make()
    live(driven, k1=1, k2=2)
    driven.failing[2] = TOMBSTONES
    for turn in range(2 * MOST_READS):
        driven.batch(1, *([2] if turn == 0 else []))
        driven.now += 61
    assert (len(driven.unconfirmed), driven.last()) == (1, {1: 1})
    driven.failing.clear()
    driven.batch()
    assert (len(driven.unconfirmed), driven.last()) == (0, {1: 1, 2: 2})
    driven.check_sum()


def test_an_outage_counts_against_no_key(make: Make) -> None:
    """However long it was: what comes back slowly is no dead letter at once."""
    driven = make(**{"errors.tolerance": "all"})
    live(driven, k1=1)
    driven.failing[1] = AWAY
    driven.batch(1)
    for _ in range(3 * MOST_READS):
        driven.now += 61
        driven.batch()
    driven.failing[1] = SLOW
    driven.now += 61
    driven.batch()
    assert (driven.records_of(DEAD_LETTERS), len(driven.unconfirmed)) == ([], 1)


def test_a_key_that_failed_is_read_apart_from_others(make: Make, monkeypatch: Any) -> None:
    """A key that times out costs others its time once, not in every batch."""
    driven = make()
    live(driven, k1=1, k2=2)
    driven.failing[2] = SLOW
    reads: list[tuple[list[int], bool]] = []
    read = MemoryReader.read_rows

    def noted(self: Any, keys: Any, consistency: int) -> Any:
        reads.append((sorted(int.from_bytes(key[0], "big") for key in keys), self.reads_singly))
        return read(self, keys, consistency)

    monkeypatch.setattr(MemoryReader, "read_rows", noted)
    driven.batch(2, 1)
    driven.batch(2, 1)
    assert reads == [([1, 2], False), ([1], False), ([2], True)]
    driven.failing.clear()
    driven.batch(2, 1)
    driven.batch(2, 1)
    assert reads[-1] == ([1, 2], False)
    driven.now += 61
    driven.batch()
    driven.check_sum()
    assert driven.last() == {1: 1, 2: 2}


def test_a_marker_that_cannot_be_read_waits_alone(make: Make) -> None:
    driven = make(CLUSTERED)
    driven.stage.run([], [], True)
    driven.live.update(rows(((int32(1), int32(1)), int32(5))))
    driven.failing[1] = TOMBSTONES
    outcome = driven.batch(1, 2, scope=Scope.PARTITION)
    assert (outcome.published, outcome.unread) == (1, 1)
    assert {key["a"] for key, value in driven.records_of(DATA) if value is None} == {2}
    driven.failing.clear()
    driven.now += 10
    driven.appended.clear()
    outcome = driven.batch()
    assert (outcome.published, len(driven.unconfirmed)) == (1, 0)
    assert driven.records_of(DATA) == [({"a": 1, "c": None}, None), ({"a": 1, "c": 1}, {"v": 5})]
    driven.check_sum()


def test_a_marker_whose_rows_fail_midway_waits_after_the_next_attempt(make: Make, monkeypatch: Any) -> None:
    """Its published part would hide the other rows: that batch is repeated without it."""
    driven = make(CLUSTERED)
    driven.stage.run([], [], True)
    driven.live.update(rows(((int32(1), int32(1)), int32(5))))
    whole = MemoryReader.read_range

    def fails(self: MemoryReader, key: Key, *args: Any) -> Iterator[tuple[Key, Image]]:
        yield from whole(self, key, *args)
        if key[0] == int32(1):
            raise HelenusError(Kind.CASSANDRA_READ, "the second page fails")

    monkeypatch.setattr(MemoryReader, "read_range", fails)
    with pytest.raises(HelenusError, match="second page"):
        driven.batch(1, 2, scope=Scope.PARTITION)
    driven.appended.clear()
    outcome = driven.batch(1, 2, scope=Scope.PARTITION)
    assert (outcome.published, outcome.unread) == (1, 1)
    assert {key["a"] for key, value in driven.records_of(DATA) if value is None} == {2}
    monkeypatch.setattr(MemoryReader, "read_range", whole)
    driven.now += 10
    assert driven.batch().published == 1
    assert len(driven.unconfirmed) == 0
    driven.check_sum()


class Truncated:
    """A table of one topic partition with some rows, of which `part` reads `read` many until it fails."""

    def __init__(self, driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driven = driven
        self.seconds = 0.0
        self.fails_after = 10**6
        self.starts: list[int] = []
        values = ((int32(n),) for n in range(50))
        self.keys = sorted(values, key=lambda key: stripe_of(key))
        driven.live.update(rows(*((key, key[0]) for key in self.keys)))
        driven.stage.run([], [], True)
        driven.log.log.counts[DATA] = 1
        for module in (_read_pass, _batch, _live_rows, _marker_reads, _read_turns, _row_answers):
            monkeypatch.setattr(module, "time", SimpleNamespace(time=time.time, monotonic=lambda: self.seconds))
        truncated = self

        def part(
            self: MemoryReader, partition: int, parts: int, level: int, first: int = 0
        ) -> Iterator[tuple[Key, Image]]:
            assert (partition, parts) == (0, 1)
            truncated.starts.append(first)
            for read, key in enumerate(key for key in truncated.keys if stripe_of(key) >= first):
                if read == truncated.fails_after:
                    raise HelenusError(Kind.CASSANDRA_READ, "a node is away")
                truncated.seconds += 1.0
                yield key, self.live[key]

        monkeypatch.setattr(MemoryReader, "read_topic_partition", part)

    def event(self) -> Event:
        change = Change(uuid.uuid4().hex, NODE, Scope.TABLE, write_time=5)
        return Event(EVENTS, 0, 7, 1000, None, encode(change))

    def run(self, *events: Event) -> BatchOutcome:
        driven = self.driven
        driven.now += 61
        outcome = driven.stage.run(events, driven.unconfirmed.select_due(driven.now, 10), True)
        driven.unconfirmed.apply(outcome.done, outcome.waiting, driven.now, outcome.places)
        return outcome

    def published(self) -> list[Any]:
        """The marker as None, and the rows' keys, in their order."""
        return [key.get("k") for key, _ in self.driven.records_of(DATA)]


@pytest.fixture
def truncated(make: Make, monkeypatch: pytest.MonkeyPatch) -> Truncated:
    return Truncated(make(), monkeypatch)


def test_a_truncation_of_a_refilled_table_is_published_over_several_batches(truncated: Truncated) -> None:
    """A batch gives it some seconds, so others of the group go on; then it goes on where it stood."""
    outcome = truncated.run(truncated.event())
    assert (outcome.published, len(truncated.published())) == (1, 11), "the marker and ten seconds"
    assert len(truncated.driven.unconfirmed) == 1
    batches = 1
    while len(truncated.driven.unconfirmed):
        truncated.run()
        batches += 1
    assert batches <= 6
    assert truncated.published() == [None, *(int.from_bytes(key[0] or b"", "big") for key in truncated.keys)]
    assert truncated.starts == sorted(truncated.starts)


def test_a_partly_published_truncation_is_published_again_with_its_batch(truncated: Truncated) -> None:
    """What the driver is to go on with did not reach it."""
    event = truncated.event()
    (waiting_key,) = truncated.driven.stage.run([event], [], True).waiting
    second_outcome = truncated.driven.stage.run([event], [], False)
    assert (second_outcome.confirmed, second_outcome.published) == (0, 1)
    assert [(p.scope, p.stripe) for p in second_outcome.waiting] == [(waiting_key.scope, waiting_key.stripe)]


def test_a_truncation_whose_scan_fails_resumes_at_its_position(truncated: Truncated) -> None:
    truncated.fails_after = 5
    assert truncated.run(truncated.event()).published == 1
    assert len(truncated.published()) == 6
    truncated.fails_after = 0
    assert truncated.run().unread == 1
    truncated.fails_after = 10**6
    while len(truncated.driven.unconfirmed):
        truncated.run()
    published = truncated.published()
    assert published.count(None) == 1
    assert set(published) == {None, *range(50)}


def test_a_truncation_whose_first_read_fails_is_not_published(truncated: Truncated) -> None:
    truncated.fails_after = 0
    with pytest.raises(HelenusError, match="a node is away"):
        truncated.run(truncated.event())
    assert len(truncated.driven.unconfirmed) == 0


def test_a_truncation_during_an_earlier_one_is_published_completely(truncated: Truncated) -> None:
    """Another node's: what the first marker was followed by is gone again."""
    truncated.run(truncated.event())
    truncated.run(truncated.event())
    while len(truncated.driven.unconfirmed):
        truncated.run()
    published = truncated.published()
    assert published.count(None) == 2
    last = len(published) - published[::-1].index(None)
    assert set(published[last:]) == set(range(50))


def test_a_truncation_interrupted_by_a_restart_is_published_from_the_start(
    truncated: Truncated, tmp_path: Path
) -> None:
    driven = truncated.driven
    truncated.run(truncated.event())
    driven.now = 5000.0
    driven.unconfirmed.save(5000.0, [EVENTS])
    driven.unconfirmed = UnconfirmedKeys({EVENTS: 2.0}, {EVENTS: 30.0}, tmp_path / "unconfirmed")
    driven.unconfirmed.load(5000.0)
    driven.appended.clear()
    truncated.run()
    while len(driven.unconfirmed):
        truncated.run()
    assert truncated.published()[0] is None
    assert set(truncated.published()) == {None, *range(50)}


def test_a_restart_reads_unread_keys_at_the_level_of_reads(tmp_path: Path, make: Make) -> None:
    driven = make()
    live(driven, k1=1)
    driven.failing[1] = AWAY
    driven.batch(1)
    driven.now = 5000.0
    driven.unconfirmed.save(5000.0, [EVENTS])
    driven.unconfirmed = UnconfirmedKeys({EVENTS: 2.0}, {EVENTS: 30.0}, tmp_path / "unconfirmed")
    driven.unconfirmed.load(5000.0)
    driven.failing.clear()
    driven.now += 10
    driven.batch()
    assert driven.last() == {1: 1}


def test_a_key_as_text() -> None:
    definition = table(
        ("a", "text", "partition_key"), ("b", "frozen<list<int>>", "clustering"), ("c", "int", "clustering")
    )
    assert key_text(definition, (b"x", b"\0\1", int32(5))) == "a = x AND b = 0x0001 AND c = 5"
    assert key_text(definition, (b"x" * 500, None, None)) == f"a = {'x' * 200}..."
    assert key_text(definition, (b"x", b"", b"\1")) == "a = x AND b = 0x AND c = 0x01"
