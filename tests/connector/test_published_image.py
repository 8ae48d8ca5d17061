"""The known image of an unconfirmed key is what was published of it last, by whichever read."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from connector.staged import CLUSTERED, DATA, EVENTS, NODE, Staged, int32, rows

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.reread._key_read import KeyRead
from helenus_connector.testing.cassandra import MemoryReader
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.codec.key import Key
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.wire import encode


class Driven(Staged):
    """With the driver's unconfirmed keys, and a row of key 1, 1."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(CLUSTERED, directory, monkeypatch)
        self.unconfirmed = UnconfirmedKeys({EVENTS: 2.0}, {EVENTS: 30.0}, directory / "unconfirmed")
        self.whole = self.codec.encode((int32(1), None))
        self.row = self.codec.encode((int32(1), int32(1)))
        self.now = 0.0
        self.shows(1)

    def shows(self, value: int) -> None:
        self.live.update(rows(((int32(1), int32(1)), int32(value))))

    def batch(self, *changes: tuple[bytes, Change], due_keys: Sequence[UnconfirmedKey] = ()) -> BatchOutcome:
        events = [Event(EVENTS, 0, 7, 1000, key, encode(change)) for key, change in changes]
        outcome = self.stage.run(events, due_keys, trust_images=True)
        self.unconfirmed.apply(outcome.done, outcome.waiting, self.now, outcome.places)
        return outcome

    def due_keys(self) -> list[UnconfirmedKey]:
        self.now = max(self.now + 10, self.unconfirmed.next_due() or 0)
        return self.unconfirmed.select_due(self.now, 10)

    @property
    def values(self) -> list[Any]:
        return [value and value["v"] for _, value in self.records_of(DATA)]


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driven:
    return Driven(tmp_path, monkeypatch)


def change(scope: Scope, **more: Any) -> Change:
    """Whose read does not show its time: it waits."""
    return Change(uuid.uuid4().hex, NODE, scope, write_time=99, **more)


def confirmed() -> Change:
    """Of an unknown node or digest: confirmed at once."""
    return Change(None, None, Scope.ROW)


MARKED = [change(Scope.PARTITION), change(Scope.RANGE, start=Bound(True, (int32(0),)))]


class Reads:
    """What is done before each read of rows, and while a marker's scope is read, from when they are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before_rows: Callable[[], None] = lambda: None
        self.after_range: Callable[[], None] = lambda: None
        rows, scope = MemoryReader.read_rows, MemoryReader.read_range

        def read_rows(reader: MemoryReader, *args: Any) -> Iterator[tuple[Key, Image | None]]:
            self.before_rows()
            yield from rows(reader, *args)

        def read_scope(reader: MemoryReader, *args: Any) -> Iterator[tuple[Key, Image]]:
            yield from scope(reader, *args)
            self.after_range()

        monkeypatch.setattr(MemoryReader, "read_rows", read_rows)
        monkeypatch.setattr(MemoryReader, "read_range", read_scope)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


each_marker = pytest.mark.parametrize("marked", MARKED, ids=["partition", "range"])


@each_marker
def test_an_unconfirmed_marker_while_other_keys_are_published(driven: Driven, marked: Change) -> None:
    driven.batch((driven.whole, marked))
    driven.batch((driven.codec.encode((int32(2), int32(1))), confirmed()))
    driven.batch(due_keys=driven.due_keys())
    assert driven.values == [None, 1, None], "the row of another partition, that is not there"


@each_marker
@pytest.mark.parametrize("at_once", [True, False])
def test_a_row_published_while_a_marker_is_unconfirmed(
    driven: Driven, reads: Reads, marked: Change, at_once: bool
) -> None:
    """A replica shows it that lacks what the marker's read met, and will meet again."""
    if at_once:
        reads.before_rows = lambda: driven.shows(2)
        driven.batch((driven.whole, marked), (driven.row, confirmed()))
    else:
        driven.batch((driven.whole, marked))
        driven.shows(2)
        driven.batch((driven.row, confirmed()))
    assert driven.values == [None, 1, 2]
    driven.shows(1)
    driven.batch(due_keys=driven.due_keys())
    assert driven.values == [None, 1, 2, None, 1]


@each_marker
@pytest.mark.parametrize("at_once", [True, False])
def test_an_unconfirmed_row_published_by_a_marker(driven: Driven, reads: Reads, marked: Change, at_once: bool) -> None:
    driven.batch((driven.row, change(Scope.ROW)))
    driven.shows(2)
    if at_once:
        reads.before_rows = lambda: driven.shows(1)
        driven.batch((driven.whole, marked), due_keys=driven.due_keys())
    else:
        driven.batch((driven.whole, marked))
        driven.shows(1)
        driven.batch(due_keys=[p for p in driven.due_keys() if p.key == driven.row])
    assert driven.values == [1, None, 2, 1]


@each_marker
def test_a_row_whose_read_fails_while_a_marker_publishes_it(
    driven: Driven, reads: Reads, marked: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own read, at a higher level, fails."""
    monkeypatch.setattr(driven.stage._gate._replicas, "factor", lambda: 3)
    driven.batch((driven.row, change(Scope.ROW)))
    driven.shows(2)

    def fails() -> None:
        reads.before_rows = lambda: None
        raise HelenusError(Kind.CASSANDRA_READ, "a node is away")

    reads.before_rows = fails
    driven.batch((driven.whole, marked), due_keys=driven.due_keys())
    driven.shows(1)
    driven.batch(due_keys=[p for p in driven.due_keys() if p.key == driven.row])
    assert driven.values == [1, None, 2, 1]


def test_a_marker_whose_scope_has_another_row_of_the_same_value(driven: Driven) -> None:
    driven.batch((driven.whole, MARKED[0]))
    driven.live.clear()
    driven.live.update(rows(((int32(1), int32(2)), int32(1))))
    driven.batch(due_keys=driven.due_keys())
    assert [(key["c"], value) for key, value in driven.records_of(DATA)] == [
        (None, None),
        (1, {"v": 1}),
        (None, None),
        (2, {"v": 1}),
    ]


def test_a_copy_of_another_agents_partition_delete_waits_as_one(driven: Driven) -> None:
    """Spark's query began again: the driver's unconfirmed keys are new, the host's cache is not."""
    gone = Change(uuid.uuid4().hex, NODE, foreign=True)
    driven.batch((driven.whole, gone))
    driven.unconfirmed = UnconfirmedKeys({EVENTS: 2.0}, {EVENTS: 30.0}, driven.unconfirmed._file)
    driven.batch((driven.whole, gone))
    (waiting_key,) = driven.due_keys()
    assert waiting_key.scope is Scope.PARTITION
    driven.batch(due_keys=[waiting_key])
    assert [key["c"] for key, _ in driven.records_of(DATA)] == [None, 1, None, 1]


@each_marker
def test_a_marker_that_is_published_in_part(driven: Driven, reads: Reads, marked: Change) -> None:
    """The read that its proof asks for fails in the middle: its published part would hide the other rows."""
    driven.batch((driven.whole, marked))
    driven.shows(2)
    due_keys = driven.due_keys()

    def fails() -> None:
        reads.after_range = lambda: None
        raise HelenusError(Kind.CASSANDRA_READ, "a node is away")

    driven.unconfirmed.forget_images(EVENTS)
    reads.after_range = fails
    driven.batch(due_keys=due_keys)
    assert driven.values == [None, 1, None, 2, None, 2], "published again, completely, from the replicas that are there"
    driven.shows(1)
    driven.batch(due_keys=driven.due_keys())
    assert driven.values == [None, 1, None, 2, None, 2, None, 1], "and it waits on"


@each_marker
def test_a_marker_published_in_part_publishes_no_other_key_again(driven: Driven, reads: Reads, marked: Change) -> None:
    other = driven.codec.encode((int32(2), int32(1)))
    driven.batch((driven.whole, marked), (other, change(Scope.ROW)))
    before, due_keys = len(driven.values), driven.due_keys()
    assert {waits.key for waits in due_keys} == {driven.whole, other}
    (of_marker,) = (waits for waits in due_keys if waits.key == driven.whole)
    of_marker.image = None

    def fails() -> None:
        reads.after_range = lambda: None
        raise HelenusError(Kind.CASSANDRA_READ, "a node is away")

    reads.after_range = fails
    driven.batch(due_keys=due_keys)
    assert driven.values[before:] == [None, 1, None, 1], "the marker again, and not the other row, which is as it was"


@each_marker
def test_nothing_of_a_batch_is_held_when_it_is_over(driven: Driven, marked: Change) -> None:
    """Where Python searches for no cycles, as it does not in what is frozen after a batch."""
    gc.collect()
    gc.disable()
    try:
        driven.batch((driven.whole, marked), (driven.row, change(Scope.ROW)))
        assert [
            type(live_object) for live_object in gc.get_objects() if isinstance(live_object, (KeyRead, AdmittedChange))
        ] == []
    finally:
        gc.enable()


@each_marker
@pytest.mark.parametrize("is_known", [True, False])
def test_a_marker_whose_read_is_refused(driven: Driven, reads: Reads, marked: Change, is_known: bool) -> None:
    """A guardrail does not allow its level: it waits, and its rows follow if it was published."""
    driven.batch((driven.whole, marked))
    if not is_known:
        driven.shows(2)
        driven.unconfirmed.forget_images(EVENTS)
    calls = iter([True, True])

    def refused() -> None:
        if next(calls, False):
            raise SchemaChanged("guardrail: ALL is not allowed")

    reads.after_range = refused
    driven.batch(due_keys=driven.due_keys())
    assert driven.values[-2:] == [None, 1 if is_known else 2]
    assert len(driven.unconfirmed) == 1


@each_marker
def test_a_marker_published_at_the_lower_level_is_published_once(driven: Driven, reads: Reads, marked: Change) -> None:
    driven.batch((driven.whole, marked))
    driven.unconfirmed.forget_images(EVENTS)
    for _ in range(3):
        before, calls = len(driven.values), iter([True])

        def fails(calls: Iterator[bool] = calls) -> None:
            if next(calls, False):
                raise HelenusError(Kind.CASSANDRA_READ, "a node is away")

        reads.after_range = fails
        driven.batch(due_keys=driven.due_keys())
    assert len(driven.values) == before, "its image is known"


@each_marker
def test_a_marker_that_cannot_be_published_completely(driven: Driven, reads: Reads, marked: Change) -> None:
    """No replicas are there: nothing of it is done."""
    driven.batch((driven.whole, marked))
    driven.shows(2)
    due_keys = driven.due_keys()

    def fails() -> None:
        raise HelenusError(Kind.CASSANDRA_READ, "all nodes are away")

    driven.unconfirmed.forget_images(EVENTS)
    reads.after_range = fails
    with pytest.raises(HelenusError, match="all nodes"):
        driven.batch(due_keys=due_keys)


def test_records_of_a_purged_attempt_do_not_count_as_published(
    driven: Driven, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is too large takes the others along; then the row is not read again."""
    monkeypatch.setattr(driven.stage._gate._replicas, "factor", lambda: 3)
    driven.batch((driven.row, change(Scope.ROW)))
    driven.shows(2)
    due_keys, flushes = driven.due_keys(), iter([True])

    def flush(timeout: float) -> None:
        if next(flushes, False):
            del driven.appended[1:]
            reads.before_rows = fails
            raise HelenusError(Kind.RECORD_TOO_LARGE, "of another key")

    def fails() -> None:
        reads.before_rows = lambda: None
        raise HelenusError(Kind.CASSANDRA_READ, "a node is away")

    monkeypatch.setattr(driven.stage.log, "flush", flush)
    monkeypatch.setattr(driven.stage.log, "close", lambda: None, raising=False)
    driven.batch(due_keys=due_keys)
    assert driven.values == [1]
    driven.batch(due_keys=driven.due_keys())
    assert driven.values == [1, 2]


def test_a_read_that_is_refused_for_the_proof_alone(driven: Driven, reads: Reads) -> None:
    """Its level may not be allowed: the key waits, and nothing stops."""
    driven.batch((driven.row, change(Scope.ROW)))
    driven.shows(2)

    def refused() -> None:
        raise SchemaChanged("guardrail: ALL is not allowed")

    reads.before_rows = refused
    with pytest.raises(HelenusError, match="refuses to read rows: guardrail"):
        driven.batch((driven.row, confirmed()))
    driven.batch(due_keys=driven.due_keys())
    assert driven.values == [1]
    reads.before_rows = lambda: None
    driven.batch(due_keys=driven.due_keys())
    assert driven.values == [1, 2]
