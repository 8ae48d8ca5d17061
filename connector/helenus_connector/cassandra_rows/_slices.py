"""Translates a deleted range of clustering keys to CQL: slices of one column after columns that are equal.

A range's bounds are prefixes of the clustering key, compared as tuples in the table's order. CQL compares tuples by
value, which is another order where some columns are descending: so a range is taken apart into slices that are right
for any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helenus_connector.interfaces.image import Bounds
from helenus_schemas.event.change import Bound


@dataclass(frozen=True, slots=True)
class ClusteringSlice:
    """Rows whose first clustering columns are `equal`, and the next one between `low` and `high`, in the table's order.

    None is no limit.
    """

    equal: tuple[bytes, ...]
    low: Bound | None = None
    high: Bound | None = None


def slices(bounds: Bounds) -> list[ClusteringSlice]:
    """Return the slices that make up the bounds, in the table's order, without overlaps. A limit has one value."""
    start, end = bounds
    first, last = start.values if start else (), end.values if end else ()
    common = 0
    while common < min(len(first), len(last)) and first[common] == last[common]:
        common += 1
    if common in (len(first), len(last)) and _excludes(start, common) + _excludes(end, common):
        return []  # all that has the common prefix is left out
    middle = ClusteringSlice(first[:common])
    before: list[ClusteringSlice] = []
    after: list[ClusteringSlice] = []
    if start and common < len(first):
        middle = replace(middle, low=_limit(start, common))
        before = [ClusteringSlice(first[:n], low=_limit(start, n)) for n in range(len(first) - 1, common, -1)]
    if end and common < len(last):
        middle = replace(middle, high=_limit(end, common))
        after = [ClusteringSlice(last[:n], high=_limit(end, n)) for n in range(common + 1, len(last))]
    return [*before, middle, *after]


def _excludes(bound: Bound | None, common: int) -> bool:
    return bound is not None and not bound.inclusive and len(bound.values) == common


def _limit(bound: Bound, column: int) -> Bound:
    """Return the limit on one column. It is exclusive before the bound's last column: other slices have those rows."""
    return Bound(bound.inclusive and column == len(bound.values) - 1, bound.values[column : column + 1])
