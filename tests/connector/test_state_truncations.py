"""What Cassandra does not decide by write times: TRUNCATE, purged tombstones, gaps, repairs, and rows of before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from agent.writer import Cell, Complex, Marker, Row, Update, entry, mutation
from connector.celled import NODE, OTHER, op
from connector.test_state_index import DictStore
from connector.test_state_rows import CODEC, DAY_S, NOW, TABLE, i, truncation

from helenus_agent.commitlog import decoder
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange, ReadRequest, RowChange
from helenus_connector.state.rows._cell_rules import NEVER
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_read import ReadMerger, RowRead
from helenus_connector.state.rows._topic_partition_history import NodeHistory, TopicPartitionHistory, TruncationReport
from helenus_schemas.event.cells import Cell as ReadCell
from helenus_schemas.event.cells import Cells, Deletion, Liveness
from helenus_schemas.event.cells_writer import encode_cells
from helenus_schemas.event.change import Change, Effect, Origin, Scope
from helenus_schemas.event.wire import encode, request

US = 1_000_000
THIRD = "ad310466-96a7-4cb2-acf4-59535a960814"
TYPES = {c.name: c.type for c in TABLE.values}


class State:
    """The rows of one topic partition, batch after batch."""

    def __init__(self, gc_grace: int = 10 * DAY_S, *, trusts_absence: bool = True, is_new: bool = False) -> None:
        self.store, self.gc_grace, self.trusts_absence, self.proven_up_to = DictStore(), gc_grace, trusts_absence, 0
        if not is_new:
            self.store.put_many({b"m": TopicPartitionHistory(TABLE.id.bytes).dumps()})
        self.seen: dict[int | None, Any] = {}
        self.rows: TopicPartitionMerger

    def take(self, *events: Event, now: int = NOW) -> list[MergedChange]:
        whole: dict[str, Any] = {"trusts_absence": self.trusts_absence, "proven_up_to": self.proven_up_to}
        self.rows = TopicPartitionMerger(TABLE, CODEC, self.store, 0, self.gc_grace, **whole)
        merged = list(self.rows.take(events, now))
        for m in merged:
            if isinstance(m, RowChange) and m.scope in (Scope.ROW, Scope.STATIC):
                clustering = CODEC.decode(m.key)[1]
                self.seen[None if clustering is None else int.from_bytes(clustering, "big")] = m.after
        return merged

    def prove(self) -> None:
        """The snapshot that follows a disturbance is complete."""
        self.trusts_absence, self.proven_up_to = True, self.rows.disturbances


def logged(
    update: Update, position: int, node: str = NODE, appended_at: int = NOW, *, cells: bool = True
) -> list[Event]:
    """The events of a mutation at a position of a node's log, appended at a time."""
    plans: Any = {TABLE.id.bytes: decoder.plan_table(TABLE, 0, cells=cells)}
    batch: Any = decoder.decode(entry(mutation(update)), position, True, plans, node, 1, 8, 10**6)
    return [Event("t", 0, 0, appended_at * 1000, key, value) for _, _, key, value in batch.changes]


def insert(time: int, c: int = 1, **values: int) -> Update:
    columns: dict[str, Any] = {name: Cell(i(value), time) for name, value in values.items()}
    return Update(TABLE, i(1), [Row((i(c),), columns, time)])


def update(time: int, c: int = 1, **values: int | None) -> Update:
    columns: dict[str, Any] = {
        name: Cell(None, time, deleted_at=NOW) if value is None else Cell(i(value), time)
        for name, value in values.items()
    }
    return Update(TABLE, i(1), [Row((i(c),), columns)])


def delete(time: int, c: int = 1, deleted_at: int = NOW) -> Update:
    return Update(TABLE, i(1), [Row((i(c),), deletion=(time, deleted_at))])


def answer(
    ask: ReadRequest,
    read_at: int,
    values: dict[str, tuple[int, int]] | None,
    origin: Origin = Origin.STATE,
    *,
    more: Sequence[ReadCell] = (),
    deletion: Deletion | None = None,
) -> Event:
    """What the stage appends: columns with their values and write times; None: there is no row."""
    cells_read = [*(ReadCell(name, time, i(value)) for name, (value, time) in (values or {}).items()), *more]
    liveness = None if values is None else Liveness(max([time for _, time in values.values()], default=read_at * US))
    cells = Cells(TABLE.id.bytes, bytes.fromhex(TABLE.schema_id), TYPES, liveness, deletion, cells=tuple(cells_read))
    effect = int(Effect.LIVE) if ask.deleted_to is None else 0
    change = Change(None, None, ask.scope, part=ask.disturbances, origin=origin, effect=effect, segment=read_at * 1000)
    change = change._replace(position=ask.requested_at * 1000, write_time=ask.deleted_to, cells=encode_cells(cells))
    return Event("t", 0, 0, read_at * 1000, ask.key, encode(change))


def asks(merged: Sequence[MergedChange]) -> list[ReadRequest]:
    return [m for m in merged if isinstance(m, ReadRequest)]


def values(after: Any) -> dict[str, int] | None:
    if after is None:
        return None
    return {name: int.from_bytes(value, "big") for name, value in after.items() if value is not None}


def test_what_one_node_logged_after_its_truncation_outlives_that_of_others() -> None:
    """A reload with write times of long ago, while two agents are stopped."""
    state = State()
    past = (NOW - 3600) * US
    state.take(*logged(insert(NOW * US, v=1), 100))
    (ask,) = asks(state.take(truncation(NOW, NODE, 1, 500)))
    state.take(*logged(insert(past, v=7), 600), *logged(update(NOW * US + 5, w=8), 700), now=NOW + 1)
    state.take(answer(ask, NOW + 1, {"v": (7, past), "w": (8, NOW * US + 5)}), now=NOW + 1)
    assert values(state.seen[1]) == {"v": 7, "w": 8}
    for node in (OTHER, THIRD):
        state.take(*logged(insert(NOW * US, v=1), 100, node), now=NOW + 2)
        state.take(truncation(NOW, node, 1, 900), now=NOW + 3)
        state.take(*logged(insert(past, v=7), 1000, node), now=NOW + 4)
        state.take(*logged(update(NOW * US + 5, w=8), 1100, node), now=NOW + 5)
    assert values(state.seen[1]) == {"v": 7, "w": 8}
    assert state.rows.disturbances == 3


def test_what_was_written_while_a_truncation_ran_is_read_and_not_dropped() -> None:
    """Its event comes before that of the truncation, whose time is later, and it was logged after it."""
    state = State()
    state.take(*logged(insert(NOW * US - 9, v=1), 600))
    merged = state.take(truncation(NOW, NODE, 1, 500))
    (ask,) = asks(merged)
    assert [m.op for m in merged if isinstance(m, RowChange) and m.scope is Scope.ROW] == ["u"], (
        "markers are followed by what lives"
    )
    state.take(answer(ask, NOW, {"v": (1, NOW * US - 9)}))
    assert values(state.seen[1]) == {"v": 1}
    (last,) = asks(state.take(now=NOW + 61))
    state.take(answer(last, NOW + 61, {"v": (1, NOW * US - 9)}), now=NOW + 62)
    assert values(state.seen[1]) == {"v": 1}


def test_a_row_of_about_the_time_of_a_truncation_is_gone_once_a_read_says_so() -> None:
    state = State()
    state.take(*logged(insert(NOW * US - 9, v=1), 400))
    (ask,) = asks(state.take(truncation(NOW, NODE, 1, 500)))
    merged = state.take(answer(ask, NOW, None), now=NOW + 1)
    assert [m.op for m in merged] == ["d"], "what was written up to the truncation is gone at once"


def test_rows_of_the_future_are_read_too() -> None:
    state = State()
    state.take(*logged(insert((NOW + 10**6) * US, v=1), 400))
    (ask,) = asks(state.take(truncation(NOW, NODE, 1, 500)))
    assert not state.take(answer(ask, NOW, None), now=NOW + 1), "it may have been written since"
    (last,) = asks(state.take(now=NOW + 61))
    assert [m.op for m in state.take(answer(last, NOW + 61, None), now=NOW + 62)] == ["d"]


def test_later_writes_to_truncated_cells_of_the_future_are_shown() -> None:
    """Their write times are older. They are read once the row was not written for a minute."""
    state = State()
    state.take(*logged(insert((NOW + 10**6) * US, v=1), 400))
    (ask,) = asks(state.take(truncation(NOW, NODE, 1, 500)))
    state.take(answer(ask, NOW, None), now=NOW + 1)
    written = {"v": (2, (NOW + 5) * US)}
    assert not state.take(*logged(insert((NOW + 5) * US, v=2), 600), now=NOW + 5)
    (last,) = asks(state.take(now=NOW + 66))
    assert [m.op for m in state.take(answer(last, NOW + 66, written), now=NOW + 67)] == ["u"]
    assert values(state.seen[1]) == {"v": 2}
    assert [m.op for m in state.take(*logged(insert((NOW + 70) * US, v=3), 700), now=NOW + 70)] == ["u"]
    assert values(state.seen[1]) == {"v": 3}


@pytest.mark.parametrize("is_light", [False, True])
def test_a_node_that_is_behind_is_not_believed(is_light: bool) -> None:
    """What it reports may be of before: it is no record, and the row is read."""
    state = State()
    state.take(
        *logged(insert((NOW - 7200) * US, c=9, v=9), 100), *logged(insert((NOW - 7200) * US, c=9, v=9), 90, OTHER)
    )
    state.take(truncation(NOW, NODE, 1, 500))
    state.prove()
    merged = state.take(*logged(insert((NOW - 60) * US, v=1), 300, OTHER, cells=not is_light), now=NOW + 9)
    assert [op(m) for m in merged] == [ReadRequest]
    assert not state.take(answer(merged[0], NOW + 9, None), now=NOW + 10)
    state.take(truncation(NOW + 1, OTHER, 1, 700), now=NOW + 11)
    assert not state.take(*logged(insert((NOW - 50) * US, v=1), 500, OTHER), now=NOW + 12), "sent again: it was dropped"
    state.prove()
    merged = state.take(*logged(insert((NOW + 20) * US, v=2), 800, OTHER), now=NOW + 21)
    assert [m.op for m in merged if isinstance(m, RowChange)] == ["c"]


def test_the_next_truncation_of_the_same_node_is_another() -> None:
    history = TopicPartitionHistory(TABLE.id.bytes)
    assert history.truncate(NODE, (1, 500), NOW * US, True) is TruncationReport.FIRST
    assert history.truncate(NODE, (1, 500), NOW * US, True) is TruncationReport.KNOWN
    history.nodes[OTHER] = NodeHistory(0)
    assert history.truncate(NODE, (1, 600), (NOW + 60) * US, True) is TruncationReport.FIRST
    assert history.truncate(OTHER, (7, 1), NOW * US, True) is TruncationReport.FOLLOWING
    assert history.is_behind(OTHER), "it has one more to report"
    assert history.truncate(OTHER, (7, 2), (NOW + 60) * US, True) is TruncationReport.FOLLOWING
    assert not history.is_behind(OTHER)
    history.note_node(THIRD, True)
    assert not history.is_behind(THIRD), "one that joined since has nothing of before"
    assert TopicPartitionHistory.loads(history.dumps()) == history


def test_histories_of_version_1_are_read() -> None:
    """Never change these bytes: a later version of Helenus finds them in checkpoints."""
    data = bytes.fromhex("01" + "00112233445566778899aabbccddeeff" + "000000006553f100" + "0000000000000007")
    history = TopicPartitionHistory.loads(data)
    assert (history.now, history.row_count, history.horizon) == (NOW, 7, NOW * US)
    with pytest.raises(ValueError, match="version 3"):
        TopicPartitionHistory.loads(b"\3" + data[1:])


def test_an_answer_of_before_a_truncation_is_read_again() -> None:
    """Neither what it read nor what its event wrote or deleted may outlive the truncation."""
    state = State(trusts_absence=False)
    *_, ask = asks(state.take(*logged(insert((NOW - 7200) * US, v=1), 100)))
    merged = state.take(truncation(NOW, NODE, 1, 500), answer(ask, NOW, {"v": (1, (NOW - 7200) * US)}), now=NOW + 1)
    assert [op(m) for m in merged] == ["d", ReadRequest], "the marker, and the row is read"
    assert merged[1].disturbances == 1
    assert not state.take(answer(merged[1], NOW + 2, None), now=NOW + 2)


def test_a_tombstone_that_may_be_purged_hides_nothing_for_sure() -> None:
    """INSERT at 10, DELETE at 20, purged, the same INSERT once more: it lives, and has the same bytes."""
    state = State(gc_grace=0)
    ten, twenty = (NOW - 100) * US, (NOW - 90) * US
    state.take(*logged(insert(ten, v=1), 100))
    assert [m.op for m in state.take(*logged(delete(twenty), 200))] == ["d"]
    (ask,) = asks(state.take(*logged(insert(ten, v=1), 300, appended_at=NOW + 5), now=NOW + 5))
    assert not state.take(answer(ask, NOW + 5, {"v": (1, ten)}), now=NOW + 6), "that read may be older than the delete"
    (last,) = asks(state.take(now=NOW + 66))
    assert [m.op for m in state.take(answer(last, NOW + 66, {"v": (1, ten)}), now=NOW + 67)] == ["c"]
    assert values(state.seen[1]) == {"v": 1}


def test_a_late_copy_of_what_a_purged_tombstone_took_is_no_newer_value() -> None:
    """Though its write time is newer than that of what was written since."""
    state = State(gc_grace=0)
    ten, thirty, forty = ((NOW - 100 + seconds) * US for seconds in (10, 30, 40))
    state.take(*logged(insert(thirty, v=3), 100), *logged(delete(forty), 200))
    (ask,) = asks(state.take(*logged(insert(ten, v=1), 300, appended_at=NOW + 5), now=NOW + 5))
    state.take(answer(ask, NOW + 5, {"v": (1, ten)}), now=NOW + 6)
    (last,) = asks(state.take(now=NOW + 66))
    state.take(answer(last, NOW + 66, {"v": (1, ten)}), now=NOW + 67)
    late = state.take(*logged(insert(thirty, v=3), 100, OTHER, appended_at=NOW + 70), now=NOW + 70)
    assert {op(m) for m in late} == {ReadRequest}
    assert values(state.seen[1]) == {"v": 1}


@pytest.mark.parametrize("stored", [None, 2])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_read_of_an_older_cell_is_followed_by_the_last_word(stored: int | None, is_lost: bool) -> None:
    """The stored one is not visible yet, or it is a tombstone that was purged, or lost events dropped it."""
    state = State()
    ten, twenty = (NOW - 100) * US, (NOW - 90) * US
    state.take(*logged(insert(ten, v=1, w=1), 100), *logged(update(twenty, v=stored), 200))
    snapshot_request = ReadRequest(0, CODEC.encode((i(1), i(1))), Scope.ROW, NOW)
    older = {"v": (3, ten + 1), "w": (1, ten)}
    assert not state.take(answer(snapshot_request, NOW, older, Origin.SNAPSHOT), now=NOW + 1)
    (last,) = asks(state.take(now=NOW + 61))
    visible = {"w": (1, ten)} | ({} if stored is None else {"v": (stored, twenty)})
    state.take(answer(last, NOW + 61, older if is_lost else visible), now=NOW + 62)
    expected = {name: value for name, (value, _) in (older if is_lost else visible).items()}
    assert values(state.seen[1]) == expected
    assert not asks(state.take(now=NOW + 200))
    # A copy of what the last word replaced, by an agent that is behind, is in doubt.
    copied = state.take(*logged(update(twenty, v=stored), 200, OTHER, appended_at=NOW + 201), now=NOW + 201)
    assert bool(asks(copied)) is is_lost


def test_a_row_that_was_gone_and_is_read_again_lives_until_the_last_word() -> None:
    """Its INSERT is older than what a read showed to be gone, as Cassandra has purged what deleted that."""
    ten, twenty = (NOW - 100) * US, (NOW - 90) * US
    row, schema = CellRow(implied_deletion=Deletion(twenty, NOW)), bytes.fromhex(TABLE.schema_id)
    cells = Cells(TABLE.id.bytes, schema, TYPES, Liveness(ten))
    read = RowRead(cells, (NOW + 1) * US, NOW + 1, None, int(Effect.LIVE | Effect.ROW))
    assert ReadMerger(Scope.ROW, schema, TYPES.keys(), set(), {}, 60).merge(row, read, NEVER, NOW + 1)
    assert row.liveness == Liveness(ten)
    assert row.reread_at == NOW + 61


LATE_DELETIONS: dict[str, Callable[[int], Update]] = {
    "cell": lambda time: update(time, v=None),
    "collection": lambda time: Update(TABLE, i(1), [Row((i(1),), {"m": Complex([], (time, NOW))})]),
    "row": lambda time: delete(time),
    "range": lambda time: Update(TABLE, i(1), [Marker(1, (i(0),), ((time, NOW),)), Marker(6, (), ((time, NOW),))]),
    "partition": lambda time: Update(TABLE, i(1), deletion=(time, NOW)),
}


@pytest.mark.parametrize("kind", LATE_DELETIONS)
def test_a_late_copy_of_a_forgotten_deletion_deletes_nothing_for_sure(kind: str) -> None:
    """Cassandra has purged it, and an older write since, USING TIMESTAMP, lives."""
    state = State(gc_grace=DAY_S)
    ten, twenty = (NOW - 100) * US, (NOW - 90) * US
    state.take(*logged(LATE_DELETIONS[kind](twenty), 100))
    later = NOW + 2 * DAY_S
    state.take(now=later)
    assert state.rows._row_store.history.horizon == twenty
    written = Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(1), ten), "m": Complex([Cell(i(2), ten, path=i(1))])})])
    (ask,) = asks(state.take(*logged(written, 200, appended_at=later), now=later))

    def visible(ask: ReadRequest, now: int) -> Event:
        return answer(ask, now, {"v": (1, ten)}, more=[ReadCell("m", ten, i(2), i(1))])

    state.take(visible(ask, later), now=later + 1)
    (last,) = asks(state.take(now=later + 61))
    state.take(visible(last, later + 61), now=later + 62)
    before = state.seen[1]
    assert before["v"]
    assert before["m"]
    late = state.take(*logged(LATE_DELETIONS[kind](twenty), 100, OTHER, appended_at=later + 70), now=later + 70)
    assert len(asks(late)) == 1
    assert state.seen[1] != before
    (last,) = asks(state.take(now=later + 131))
    state.take(visible(last, later + 131), now=later + 132)
    assert state.seen[1] == before


@pytest.mark.parametrize("is_row", [False, True])
def test_a_late_deletion_without_cells_is_as_old_as_its_write_time(is_row: bool) -> None:
    """Its event does not say when it deleted, so Cassandra may have purged the tombstone when the event comes."""
    state = State()
    ten, twenty, later = (NOW - 100) * US, (NOW - 90) * US, NOW + 11 * DAY_S
    late = LATE_DELETIONS["row" if is_row else "partition"](twenty)
    read_request = asks(state.take(*logged(late, 100, appended_at=later, cells=False), now=later))
    if is_row:
        deletion = Deletion(twenty, later)
        state.take(answer(read_request[0], later, None, deletion=deletion), now=later)
    (ask,) = asks(state.take(*logged(insert(ten, v=1), 200, appended_at=later), now=later + 1))
    state.take(answer(ask, later + 1, {"v": (1, ten)}), now=later + 2)
    (last,) = asks(state.take(now=later + 62))
    state.take(answer(last, later + 62, {"v": (1, ten)}), now=later + 63)
    assert values(state.seen[1]) == {"v": 1}


def test_a_tombstone_that_cassandra_keeps_hides_what_is_late() -> None:
    state = State()
    state.take(*logged(insert((NOW - 100) * US, v=1), 100))
    state.take(*logged(delete((NOW - 90) * US), 200))
    assert not state.take(*logged(insert((NOW - 100) * US, v=1), 300, OTHER), now=NOW + 9)


@pytest.mark.parametrize("days", [2, 400])
def test_what_is_older_than_a_forgotten_tombstone_is_read(days: int) -> None:
    state = State(gc_grace=DAY_S)
    state.take(*logged(insert((NOW - 100) * US, v=1), 100))
    state.take(*logged(delete((NOW - 90) * US), 200))
    later = NOW + days * DAY_S
    state.take(now=later)
    assert not any(name[:1] in b"rsgp" for name in state.store.values)
    (ask,) = state.take(*logged(insert((NOW - 95) * US, v=2), 300, appended_at=later), now=later)
    assert isinstance(ask, ReadRequest)
    assert [m.op for m in state.take(*logged(insert(later * US, c=2, v=2), 400, appended_at=later), now=later)] == ["c"]


def test_a_tombstone_of_the_future_is_kept_until_then() -> None:
    state = State(gc_grace=0)
    state.take(*logged(delete((NOW + 30 * DAY_S) * US), 100))
    later = NOW + 20 * DAY_S
    state.take(now=later)
    merged = state.take(*logged(insert(later * US, v=1), 200, appended_at=later), now=later)
    assert [op(m) for m in merged] == [ReadRequest], "gc_grace_seconds are over, so it is read"
    assert state.rows.row_count == 1


def test_what_was_deleted_before_the_first_event_is_read() -> None:
    state = State(is_new=True)
    late = logged(insert((NOW - 3600) * US, v=1), 100)
    assert [op(m) for m in state.take(*late)] == [ReadRequest]
    assert [m.op for m in state.take(*logged(insert(NOW * US, c=2, v=1), 200))] == ["c"]


def gap() -> Event:
    change = Change("2" * 32, NODE, Scope.GAP, segment=1, position=1, write_time=NOW * US)
    return Event("t", 0, 0, NOW * 1000, None, encode(change))


def test_after_a_gap_rows_that_the_snapshot_does_not_show_are_read() -> None:
    state = State()
    state.take(*logged(insert(NOW * US, v=1), 100), *logged(insert(NOW * US, c=2, v=2), 200))
    state.take(gap())
    unknown = state.take(*logged(insert(NOW * US, c=3, v=3), 300))
    assert {op(m) for m in unknown} == {ReadRequest}, "it may have been there"
    key = CODEC.encode((i(1), i(1)))
    ask = ReadRequest(0, key, Scope.ROW, NOW, disturbances=1)
    state.take(answer(ask, NOW, {"v": (1, NOW * US)}, Origin.SNAPSHOT))
    state.prove()
    (swept,) = asks(state.take(now=NOW + 1))
    assert CODEC.decode(swept.key)[1] == i(2), "it may have been deleted meanwhile"
    assert not asks(state.take(now=NOW + 2))
    (last,) = asks(state.take(now=NOW + 62))
    assert [m.op for m in state.take(answer(last, NOW + 62, None), now=NOW + 63)] == ["d"]


def test_lost_events_are_a_gap() -> None:
    state = State()
    state.take(*logged(insert(NOW * US, v=1), 100))
    rows = TopicPartitionMerger(TABLE, CODEC, state.store, 0)
    list(rows.take([], NOW, has_lost=True))
    assert rows.disturbances == 1


@pytest.mark.parametrize("row_read", [None, {"v": (7, (NOW - 500) * US)}])
def test_a_repair_wins(row_read: dict[str, tuple[int, int]] | None) -> None:
    """Over what the state has, and over a tombstone that it believes in."""
    state = State()
    if row_read is None:
        state.take(*logged(insert(NOW * US, v=1), 100))
    else:
        state.take(*logged(insert((NOW - 500) * US, v=7), 100), *logged(delete(NOW * US), 200))
    repair = Event("t", 0, 0, NOW * 1000, CODEC.encode((i(1), i(1))), request(Scope.ROW, Origin.REPAIR))
    (ask,) = asks(state.take(repair, now=NOW + 9))
    merged = state.take(answer(ask, NOW + 9, row_read, Origin.REPAIR), now=NOW + 10)
    assert [m.op for m in merged] == ["d" if row_read is None else "c"]
    assert values(state.seen[1]) == (None if row_read is None else {"v": 7})


def test_a_repair_does_not_win_over_a_delete_that_came_meanwhile() -> None:
    state = State()
    state.take(*logged(insert((NOW - 500) * US, v=7), 100))
    repair = Event("t", 0, 0, NOW * 1000, CODEC.encode((i(1), i(1))), request(Scope.ROW, Origin.REPAIR))
    (ask,) = asks(state.take(repair, now=NOW + 9))
    state.take(*logged(delete((NOW + 9) * US, deleted_at=NOW + 9), 200), now=NOW + 9)
    state.take(answer(ask, NOW + 9, {"v": (7, (NOW - 500) * US)}, Origin.REPAIR), now=NOW + 10)
    assert state.seen[1] is None


def test_what_could_not_be_read_is_read_later() -> None:
    state = State()
    key = CODEC.encode((i(1), i(1)))
    assert not state.take(Event("t", 0, 0, NOW * 1000, key, request(Scope.ROW, Origin.STATE)))
    (ask,) = asks(state.take(now=NOW + 61))
    assert ask.key == key


def test_before_has_the_static_columns_of_before() -> None:
    state = State()
    static = Row((), {"st": Cell(i(1), NOW * US)})
    state.take(*logged(Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(1), NOW * US)}, NOW * US)], static=static), 100))
    static = Row((), {"st": Cell(i(2), NOW * US + 1)})
    both = Update(TABLE, i(1), [Row((i(1),), {"v": Cell(i(2), NOW * US + 1)}, NOW * US + 1)], static=static)
    merged = [m for m in state.take(*logged(both, 200)) if m.scope is Scope.ROW]
    assert [(values(m.before), values(m.after)) for m in merged] == [({"st": 1, "v": 1}, {"st": 2, "v": 2})]
    gone = Update(TABLE, i(1), deletion=(NOW * US + 5, NOW))
    merged = [m for m in state.take(*logged(gone, 300)) if m.scope is Scope.ROW]
    assert [(values(m.before), values(m.after)) for m in merged] == [({"st": 2, "v": 2}, None)]


def test_the_horizon_begins_with_what_is_known() -> None:
    assert TopicPartitionHistory(TABLE.id.bytes).horizon == NEVER


def test_nodes_times_and_positions_of_anybodys_events_are_kept_within_bounds() -> None:
    history = TopicPartitionHistory(TABLE.id.bytes)
    history.raise_horizon(1 << 80)
    assert history.truncate("x" * 70_000, (1 << 62, 1 << 62), 1 << 90, True) is TruncationReport.FIRST
    for number in range(20_000):
        history.note_node(str(number), True)
    history.note_node("another one", True)
    assert history.is_behind("another one"), "it is not kept, so what it reports is read"
    assert TopicPartitionHistory.loads(history.dumps()) == history
    assert len(history.dumps()) < 1 << 20


@pytest.mark.parametrize("time_ms", [-(1 << 63), (1 << 63) - 1])
def test_a_row_is_stored_whatever_times_its_answer_and_a_truncation_have(time_ms: int) -> None:
    """Anybody who may write to the topic may say so: the table must not stop for it, at each start."""
    ids, read_cells = (TABLE.id.bytes, bytes.fromhex(TABLE.schema_id)), (ReadCell("v", NOW * US, i(1)),)
    cells = encode_cells(Cells(*ids, TYPES, Liveness(NOW * US), cells=read_cells))
    answer = Change(None, None, Scope.ROW, segment=time_ms, position=time_ms, origin=Origin.STATE, cells=cells)
    state = State()
    key = CODEC.encode((i(1), i(1)))
    assert [op(m) for m in state.take(Event("t", 0, 0, NOW * 1000, key, encode(answer)))] == ["c"]
    without_time = Change("0" * 32, OTHER, Scope.TABLE, segment=1, position=1)
    rows = TopicPartitionMerger(TABLE, CODEC, state.store, 0, has_snapshots=False)
    assert list(rows.take([Event("t", 0, 0, time_ms, None, encode(without_time))], NOW))
    state.take(*logged(insert(NOW * US + 1, v=1), 100))
