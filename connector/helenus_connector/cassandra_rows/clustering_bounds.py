"""Compares rows with the bounds of ranges, in the order of a table's clustering values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from helenus_connector.interfaces.image import Bounds
from helenus_schemas.cql.order import order
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Bound

Covers = Callable[[Sequence[bytes | None], Bounds], bool]
"""Returns whether a row's clustering values lie within bounds."""
Within = Callable[[Bounds, Bounds], bool]
"""Returns whether the first bounds lie within the others, as far as that can be known without a row."""


def covering(table: Table) -> tuple[Covers, Within]:
    """Return two tests that compare by the table's order of clustering values: a row with bounds, and bounds with
    others.
    """
    columns = [(order(column.type), column.reversed) for column in table.clustering]

    def is_past(clustering: Sequence[bytes | None], bound: Bound | None, is_start: bool) -> bool:
        if bound is None:
            return True
        for (key, is_reversed), value, bound_value in zip(columns, clustering, bound.values, strict=False):
            inner: Any = key(value)
            outer: Any = key(bound_value)
            if inner != outer:
                return bool(inner > outer) == (is_start != is_reversed)
        return bound.inclusive

    def covers(clustering: Sequence[bytes | None], bounds: Bounds) -> bool:
        return is_past(clustering, bounds[0], True) and is_past(clustering, bounds[1], False)

    def is_no_further(inner: Bound | None, outer: Bound | None, is_start: bool) -> bool:
        if inner is None or outer is None or inner == outer:
            return outer is None or inner == outer
        # A bound of fewer values is before or after all rows that begin with them.
        return len(inner.values) >= len(outer.values) and is_past(inner.values, outer, is_start)

    def is_within(inner: Bounds, outer: Bounds) -> bool:
        return is_no_further(inner[0], outer[0], True) and is_no_further(inner[1], outer[1], False)

    return covers, is_within
