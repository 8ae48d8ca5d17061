"""Slices of a range hold just what its bounds hold, each row once and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.cassandra_rows._slices import ClusteringSlice, slices
from helenus_connector.interfaces.image import Bounds
from helenus_schemas.event.change import Bound

VALUES = [bytes((n,)) for n in range(3)]
ROWS = [(a, b, c) for a in VALUES for b in VALUES for c in VALUES]
bound = st.one_of(
    st.none(),
    st.builds(Bound, st.booleans(), st.lists(st.sampled_from(VALUES), min_size=1, max_size=3).map(tuple)),
)


@st.composite
def ranges(draw: st.DrawFn) -> Bounds:
    """Cassandra logs none whose end comes before its start."""
    start, end = draw(bound), draw(bound)
    if start and end:
        size = min(len(start.values), len(end.values))
        if start.values[:size] > end.values[:size]:
            return end, start
    return start, end


def within(row: tuple[bytes, ...], start: Bound | None, end: Bound | None) -> bool:
    """Compared as tuples: a bound takes in, or leaves out, all rows that begin with it."""
    if start is not None:
        prefix = row[: len(start.values)]
        if prefix < start.values or (prefix == start.values and not start.inclusive):
            return False
    if end is not None:
        prefix = row[: len(end.values)]
        if prefix > end.values or (prefix == end.values and not end.inclusive):
            return False
    return True


def holds(clustering_slice: ClusteringSlice, row: tuple[bytes, ...]) -> bool:
    width = len(clustering_slice.equal)
    return row[:width] == clustering_slice.equal and within(row[width:], clustering_slice.low, clustering_slice.high)


@given(ranges())
def test_slices_hold_the_same_rows_as_the_range(bounds: Bounds) -> None:
    rows_of_slices = [row for clustering_slice in slices(bounds) for row in ROWS if holds(clustering_slice, row)]
    assert rows_of_slices == [row for row in ROWS if within(row, *bounds)]


@given(ranges())
def test_a_slice_limits_one_column(bounds: Bounds) -> None:
    for clustering_slice in slices(bounds):
        assert all(limit is None or len(limit.values) == 1 for limit in (clustering_slice.low, clustering_slice.high))


def test_every_cql_range_delete_is_one_slice() -> None:
    bounds = Bound(True, (b"a", b"b")), Bound(False, (b"a", b"c"))
    assert slices(bounds) == [ClusteringSlice((b"a",), Bound(True, (b"b",)), Bound(False, (b"c",)))]
    assert slices((Bound(True, (b"a",)), Bound(True, (b"a",)))) == [ClusteringSlice((b"a",))]
    assert slices((Bound(False, (b"a", b"b")), Bound(True, (b"a",)))) == [
        ClusteringSlice((b"a",), Bound(False, (b"b",)))
    ]
