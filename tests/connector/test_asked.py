"""Events without cells: what is appended for what a read finds."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from helenus_connector.cassandra_rows.cell_reader import CellReader, ReadRow
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import ReadRequest
from helenus_connector.pipeline._cell_requests import CellRequests
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.testing.cassandra import MemorySession
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, decode_cells
from helenus_schemas.event.change import Bound, Change, Effect, Origin, Scope, column_bit
from helenus_schemas.event.wire import decode, encode

TABLE = Table(
    "ks",
    "t",
    uuid.UUID(int=1),
    (
        Column("k", parse("int"), "partition_key", 0),
        Column("m", parse("map<text, int>")),
        Column("v", parse("int")),
        Column("w", parse("int")),
    ),
    cdc=True,
)
TYPES = {column.name: column.type for column in TABLE.regulars}
KEY = KeyCodec(TABLE).encode((b"\0\0\0\1",))
SETTINGS = ConnectorSettings.from_properties(
    {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}, "test"
)
NODE, DIGEST = "ad310466-96a7-4cb2-acf4-59535a960812", "0" * 32
W = 1_000
AT = 1_700_000_000_123


class Answers:
    """Answers with events, instead of a Cassandra."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, row: Cells | None) -> None:
        self.events: list[tuple[int, bytes, Change]] = []
        self._asked: CellRequests

        def read(reader: CellReader, keys: Sequence[Any], consistency: int) -> Iterator[ReadRow | None]:
            reader.statements += len(keys)
            return iter([None if row is None else ReadRow(row, AT)] * len(keys))

        monkeypatch.setattr(CellReader, "read", read)
        self._asked = CellRequests(
            SETTINGS, MemorySession([]), TABLE, lambda *event: self.events.append((*event[:2], decode(event[2])))
        )

    def to(self, change: Change | None, age_s: float = 0) -> Change | None:
        event = None
        if change is not None:
            event = Event("events-ks.t", 3, 7, int((time.time() - age_s) * 1000), KEY, encode(change))
        self._asked.answer([ReadRequest(3, KEY, Scope.ROW, AT // 1000, event=event)], BatchOutcome())
        if not self.events:
            return None
        ((partition, key, answer),) = self.events
        assert (partition, key, answer.digest, answer.node) == (3, KEY, None, None)
        return answer


def row(*cells: Cell) -> Cells:
    return Cells(TABLE.id.bytes, bytes(16), TYPES, cells=cells)


def written(effect: Effect, **more: Any) -> Change:
    return Change(DIGEST, NODE, Scope.ROW, segment=5, write_time=W, effect=int(effect), **more)


def cells_of(answer: Change | None) -> Cells:
    assert answer is not None
    return decode_cells(answer.cells or b"", Scope.ROW)


def test_a_row_comes_with_its_cells_and_what_it_was_read_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cells_read = row(Cell("m", 500, b"\0\0\0\1", b"a"), Cell("v", W, b"\0\0\0\2"))
    effect = Effect.LIVE | Effect.DELETES | column_bit("v")
    answer = Answers(monkeypatch, cells_read).to(written(effect))
    assert answer is not None
    assert (answer.origin, answer.segment, answer.write_time, answer.effect) == (Origin.STATE, AT, W, effect)
    assert set(cells_of(answer).cells) == set(cells_read.cells)


def test_a_write_that_a_read_does_not_show_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for cells_read in (None, row(Cell("v", W - 1, b"\0\0\0\2")), row(Cell("w", W, b"\0\0\0\2"))):
        before = time.time()
        repeated = Answers(monkeypatch, cells_read).to(written(Effect.LIVE | column_bit("v")), age_s=10)
        assert repeated is not None
        assert repeated.cells is None
        assert (repeated.effect, repeated.write_time) == (Effect.LIVE | column_bit("v"), W)
        later = Answers(monkeypatch, cells_read)
        assert before - 10.001 <= repeated.segment / 1000 <= time.time() - 10
        # From then on its own time counts, not that of the event that asks again.
        answer = later.to(repeated._replace(segment=repeated.segment - 60_000))
        assert len(cells_of(answer).cells) == (cells_read is not None), "by now it was overwritten, or deleted"


def test_a_row_of_its_key_alone_is_what_its_event_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it was written, and when it expires, is not shown by a read. That it is not there is, in the end: a deletion
    of which nothing is known may take it.
    """
    change = written(Effect.LIVE | Effect.ROW, expires_at=2_000)
    assert cells_of(Answers(monkeypatch, row()).to(change)).liveness == Liveness(W, 2_000, 2_000)
    assert cells_of(Answers(monkeypatch, None).to(change, age_s=100)).liveness == Liveness(W, 2_000, 2_000), "it ended"
    change = written(Effect.LIVE | Effect.ROW)
    assert cells_of(Answers(monkeypatch, row()).to(change)).liveness == Liveness(W)
    repeated = Answers(monkeypatch, None).to(change)
    assert repeated is not None
    assert repeated.cells is None, "it is asked for again"
    assert cells_of(Answers(monkeypatch, None).to(change, age_s=100)).liveness is None
    ahead = Answers(monkeypatch, None).to(change, age_s=-(10**9))
    assert ahead is not None
    assert ahead.segment <= time.time() * 1000, "the agent's clock does not say for how long"


def test_a_delete_is_one_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answers(monkeypatch, None).to(written(Effect.DELETES | Effect.GONE))
    deletion = cells_of(answer).deletion
    assert isinstance(deletion, Deletion)
    assert deletion.write_time == W


def test_a_snapshot_says_nothing_of_a_row_that_was_deleted_since(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Change(None, None, Scope.ROW, origin=Origin.SNAPSHOT_LAST)
    assert Answers(monkeypatch, None).to(change) is None
    answer = Answers(monkeypatch, row(Cell("v", W, b"\0\0\0\2"))).to(change)
    assert answer is not None
    assert (answer.origin, answer.write_time) == (Origin.SNAPSHOT_LAST, None)
    assert [c.column for c in cells_of(answer).cells] == ["v"]


def test_the_state_learns_that_a_row_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answers(monkeypatch, None).to(None)
    assert cells_of(answer) == Cells(TABLE.id.bytes, bytes.fromhex(TABLE.schema_id), {})


def test_a_repair_takes_away_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time()
    answer = Answers(monkeypatch, None).to(Change(None, None, Scope.ROW, origin=Origin.REPAIR))
    deletion = cells_of(answer).deletion
    assert deletion is not None
    assert answer is not None
    assert deletion.write_time == answer.write_time
    assert before - 60.001 <= deletion.write_time / 1e6 <= time.time() - 60


def test_more_than_a_row_can_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Bound(True, (b"\0\0\0\1",))
    change = Change(DIGEST, NODE, Scope.RANGE, start=bound, end=bound)
    with pytest.raises(HelenusError, match=r"set cells\.include\.list"):
        Answers(monkeypatch, None).to(change)


def test_a_row_is_read_once_for_all_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is answered, in their order: a hot key has many."""
    answers, outcome = Answers(monkeypatch, row(Cell("v", W + 2, b"\0\0\0\2"))), BatchOutcome()
    other = KeyCodec(TABLE).encode((b"\0\0\0\2",))
    asks = []
    for number, key in enumerate((KEY, other, KEY, KEY)):
        change = written(Effect.LIVE | column_bit("v"))._replace(write_time=W + number)
        event = Event("events-ks.t", 3, number, int(time.time() * 1000), key, encode(change))
        asks.append(ReadRequest(3, key, Scope.ROW, AT // 1000, event=event))
    answers._asked.answer(asks, outcome)
    assert (outcome.keys_read, outcome.statements) == (2, 2)
    assert [(key, change.write_time) for _, key, change in answers.events if key == KEY] == [
        (KEY, W),
        (KEY, W + 2),
        (KEY, W + 3),
    ]
    assert [key for _, key, _ in answers.events].count(other) == 1
