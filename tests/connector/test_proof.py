"""What a row says of a Change, and when that is a proof."""

import math

import pytest
from cassandra import ConsistencyLevel as CL  # noqa: N817
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_connector.reread._proof import (
    ALL_COLUMNS,
    ReportedDeletion,
    RowEvidence,
    Verdict,
    is_proven,
    judge_row,
    lowest_level,
    meets_reporter,
    required_replicas,
)
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, pack_changes, stamp_changes, unpack_changes
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse
from helenus_schemas.event.change import Effect, column_bit

V, W = column_bit("v"), column_bit("w")
COLUMNS = [Column("v", parse("int")), Column("w", parse("int"))]
TIMED = TimedColumns.from_columns(COLUMNS, [])
LIVE, DELETES, ROW, GONE = Effect.LIVE, Effect.DELETES, Effect.ROW, Effect.GONE
SHOWN, ABSENT, SILENT, AGAINST = Verdict


def witness_of(
    effect: int, time: int, *times: "int | None", deletion: ReportedDeletion | None = None, timed: TimedColumns = TIMED
) -> Verdict:
    """Of a row with these write times; without any there is none."""
    row = RowEvidence(True, times, timed) if times else RowEvidence(False)
    return judge_row(UnprovenChange(time, effect=int(effect)), row, [deletion] if deletion else [], 1000.0)


@given(
    rf=st.integers(1, 9),
    nodes=st.integers(0, 9),
    cl=st.sampled_from([CL.LOCAL_ONE, CL.LOCAL_QUORUM, CL.QUORUM, CL.ALL]),
)
def test_a_read_that_is_a_proof_meets_a_replica_that_reported(rf: int, nodes: int, cl: int) -> None:
    assert meets_reporter(cl, nodes, rf) == (nodes + required_replicas(cl, rf) > rf or cl == CL.ALL)


@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from([CL.LOCAL_ONE, CL.LOCAL_QUORUM]))
def test_the_level_of_a_second_read_is_enough(rf: int, nodes: int, cl: int) -> None:
    chosen = lowest_level(cl, min(nodes, rf), rf)
    assert chosen == (cl if min(nodes, rf) + required_replicas(cl, rf) > rf else CL.ALL)


def test_a_row_shows_the_times_of_its_own_cells_alone() -> None:
    image = Image((b"", b"", None), 9, [n.to_bytes(8, "big", signed=True) for n in (-5, 9)] + [None])
    assert [n for n in (None, -5, 0, 8, 9, 10) if image.shows_write(n)] == [-5, 9]
    assert not Image((), None).shows_write(0)


@pytest.mark.parametrize(
    ("effect", "times", "expected"),
    [
        (LIVE | V, (5, None), SHOWN),
        (LIVE | V | W, (9, 5), SHOWN),
        (LIVE | V, (9, 1), SHOWN),  # all that it wrote is newer now
        (LIVE | V | W, (9, 9), SHOWN),
        (LIVE | V | W, (9, 1), AGAINST),
        (LIVE | V, (1, 9), AGAINST),  # a newer cell of another column says nothing
        (LIVE | V, (None, 9), AGAINST),
        (LIVE | V, (), AGAINST),
        (LIVE | V | W | ROW | DELETES, (5, None), SHOWN),
        (LIVE | V | W | ROW | DELETES, (9, None), SILENT),  # w may be what it deleted
        (LIVE | V | W | ROW | DELETES, (None, None), SILENT),  # both may be what it deleted
        (LIVE | V | W | ROW | DELETES, (), AGAINST),
        (LIVE | V | W | ROW | DELETES, (3, None), AGAINST),
        (LIVE | V | W | DELETES, (None, None), AGAINST),
        (LIVE | ROW, (None, None), SHOWN),  # a key alone, and it is there
        (LIVE | ROW, (3, None), SILENT),  # for its own sake, or for a cell's?
        (LIVE | ROW, (), AGAINST),
        (GONE, (), ABSENT),
        (GONE, (9, None), ABSENT),  # it lives again
        (GONE, (9, 3), AGAINST),
        (GONE, (5, 9), AGAINST),
        (GONE, (None, None), SILENT),
        (DELETES | V, (), ABSENT),
        (DELETES | V, (None, 3), ABSENT),
        (DELETES | V, (9, 3), ABSENT),
        (DELETES | V, (4, None), AGAINST),
        (0, (5, None), SHOWN),
        (0, (9, 9), SILENT),
        (0, (), SILENT),
        (LIVE | V | Effect.COUNTER, (9, 9), SILENT),
    ],
)
def test_how_a_row_shows_a_change_of_time_5(effect: int, times: tuple[int | None, ...], expected: Verdict) -> None:
    assert witness_of(effect, 5, *times) is expected


@pytest.mark.parametrize(
    ("deletion", "times", "expected"),
    [
        (ReportedDeletion(6, ALL_COLUMNS), (), ABSENT),
        (ReportedDeletion(5, ALL_COLUMNS), (), ABSENT),
        (ReportedDeletion(4, ALL_COLUMNS), (), AGAINST),
        (ReportedDeletion(6, V), (None, 3), ABSENT),
        (ReportedDeletion(6, W), (None, 3), AGAINST),
        (ReportedDeletion(6, V), (), ABSENT),
    ],
)
def test_a_later_deletion_explains_why_a_write_is_not_there(
    deletion: ReportedDeletion, times: tuple[int | None, ...], expected: Verdict
) -> None:
    assert witness_of(LIVE | V, 5, *times, deletion=deletion) is expected


def test_an_inserted_row_outlives_its_cells() -> None:
    assert witness_of(LIVE | ROW | V, 5, deletion=ReportedDeletion(6, V)) is AGAINST
    assert witness_of(LIVE | ROW | V, 5, None, None, deletion=ReportedDeletion(6, V)) is ABSENT
    assert witness_of(LIVE | ROW | V, 5, deletion=ReportedDeletion(6, ALL_COLUMNS)) is ABSENT


def test_a_row_with_deleted_values_will_change() -> None:
    row = RowEvidence(True, (4, 9), TIMED)
    assert ReportedDeletion(4, ALL_COLUMNS).shadows_cells_of(row)
    assert ReportedDeletion(4, V).shadows_cells_of(row)
    assert not ReportedDeletion(3, ALL_COLUMNS).shadows_cells_of(row)
    assert not ReportedDeletion(4, W).shadows_cells_of(row)
    assert not ReportedDeletion(4, ALL_COLUMNS).shadows_cells_of(RowEvidence(True, (9, None), TIMED))


def test_what_has_expired_is_no_contradiction() -> None:
    change = UnprovenChange(5, effect=int(LIVE | V), all_expired_at=999)
    assert judge_row(change, RowEvidence(False), [], 1000.0) is SILENT
    assert judge_row(change, RowEvidence(False), [], 998.0) is AGAINST


def test_columns_of_many_cells_and_those_without_times_say_little() -> None:
    many = TimedColumns.from_columns([Column("v", parse("set<int>")), COLUMNS[1]], [])
    assert witness_of(LIVE | V, 5, 5, None, timed=many) is SHOWN
    assert witness_of(LIVE | V, 5, 9, None, timed=many) is SILENT, "another element's time"
    assert witness_of(LIVE | V, 5, 3, None, timed=many) is SILENT, "the element may have been deleted since"
    assert witness_of(LIVE | V, 5, None, 9, timed=many) is AGAINST
    assert witness_of(DELETES | V, 5, 9, None, timed=many) is SILENT
    assert witness_of(GONE, 5, 9, None, timed=many) is SILENT
    hidden = TimedColumns.from_columns(COLUMNS[1:], [Column("v", parse("set<int>"))])
    assert witness_of(LIVE | V | W, 5, 5, timed=hidden) is SHOWN
    assert witness_of(LIVE | V, 5, 9, timed=hidden) is SILENT
    assert witness_of(LIVE | V | W, 5, 9, timed=hidden) is SILENT


def test_the_deletion_of_one_element_takes_no_column_away() -> None:
    many = TimedColumns.from_columns([Column("v", parse("map<text, int>")), COLUMNS[1]], [])
    row = RowEvidence(True, (4, 9), many)
    assert not ReportedDeletion(6, V).shadows_cells_of(row), "others of its elements stay"
    assert ReportedDeletion(6, ALL_COLUMNS).shadows_cells_of(row)
    assert witness_of(LIVE | V, 5, None, 9, timed=many, deletion=ReportedDeletion(6, V)) is not ABSENT, (
        "it may be of another one"
    )
    assert witness_of(LIVE | V, 5, None, 9, timed=many, deletion=ReportedDeletion(6, ALL_COLUMNS)) is ABSENT


def test_a_second_write_of_the_same_time_is_another_change() -> None:
    """As clients set times of their own."""
    assert witness_of(LIVE | V, 5, None, 5) is AGAINST
    assert witness_of(LIVE | V, 5, 5, 5) is SHOWN
    image = Image((b"", b""), 5, [None, (5).to_bytes(8, "big")], TIMED)
    assert (image.shows_write(5), image.shows_write(5, LIVE | V), image.shows_write(5, LIVE | W)) == (True, False, True)


def test_columns_that_share_a_bit_count_as_one() -> None:
    names = [f"c{n}" for n in range(60)]
    first, second = next((a, b) for a in names for b in names if a < b and column_bit(a) == column_bit(b))
    shared = TimedColumns.from_columns([Column(first, parse("int")), Column(second, parse("int"))], [])
    effect = LIVE | column_bit(first)
    assert witness_of(effect, 5, 9, 9, timed=shared) is SHOWN
    assert witness_of(effect, 5, 9, 3, timed=shared) is SILENT
    assert witness_of(effect, 5, 9, None, timed=shared) is SILENT
    assert witness_of(DELETES | column_bit(first), 5, None, 3, timed=shared) is SILENT
    assert witness_of(GONE, 5, 9, 3, timed=shared) is AGAINST
    assert not ReportedDeletion(5, column_bit(first)).shadows_cells_of(RowEvidence(True, (3, None), shared))


@pytest.mark.parametrize("kind", ["map<text, int>", "list<int>", "frozen<list<int>>"])
def test_a_newer_cell_says_nothing_of_a_collection_that_shares_its_bit(kind: str) -> None:
    """A replica may have logged an entry that its memtable does not show yet; another column's cell proves nothing."""
    first, second = next(
        (f"a{i}", f"a{j}") for i in range(99) for j in range(i) if column_bit(f"a{i}") == column_bit(f"a{j}")
    )
    columns, collection = [Column(first, parse("int"))], Column(second, parse(kind))
    bit = column_bit(first)
    is_frozen = kind.startswith("frozen")
    timed = TimedColumns.from_columns([*columns, collection], [])
    assert witness_of(LIVE | bit, 100, 101, 90, timed=timed) is SILENT, "an older one of the collection"
    assert witness_of(LIVE | bit, 100, 101, 102, timed=timed) is (SHOWN if is_frozen else SILENT)
    assert witness_of(LIVE | bit, 100, 101, 100, timed=timed) is SHOWN
    untimed = TimedColumns.from_columns(columns, [collection])  # as Cassandra before 5.0 shows it
    assert witness_of(LIVE | bit, 100, 101, timed=untimed) is SILENT


def test_time_alone_proves_what_a_row_cannot_say() -> None:
    assert is_proven(SHOWN, 0, 60)
    assert is_proven(ABSENT, 0, 60)
    assert (is_proven(SILENT, 59, 60), is_proven(SILENT, 60, 60)) == (False, True)
    assert (is_proven(AGAINST, 599, 60), is_proven(AGAINST, 600, 60)) == (False, True)


@given(
    st.dictionaries(
        st.binary(min_size=16, max_size=16),
        st.builds(
            UnprovenChange,
            st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
            st.floats(0, 1e9) | st.just(math.nan),
            st.integers(0, 2**32 - 1),
            st.none() | st.integers(1, 2**32 - 1),
        ),
        max_size=5,
    )
)
def test_awaited_changes_as_bytes(awaited: dict[bytes, UnprovenChange]) -> None:
    unpacked = unpack_changes(stamp_changes(pack_changes(awaited), 7.0))
    assert unpacked == {name: a._replace(seen=7.0) if math.isnan(a.seen) else a for name, a in awaited.items()}
    assert all(a.waited(a.seen + 3) == pytest.approx(3, abs=1e-3) for a in unpacked.values())
    assert UnprovenChange(None).waited(1e9) == 0
