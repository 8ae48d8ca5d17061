"""Describe the range of a deletion as CEP-44 does: predicates of single clustering columns, all of which hold.

    DELETE ... WHERE c = 1 AND d > 5     → one: c EQ 1, d GT 5
    DELETE ... WHERE (c, d) > (1, 5)     → two: c EQ 1, d GT 5; and c GT 1

A range of prefixes is compared as a tuple, which predicates of single columns can't say as one. So it is split into
ranges that they can say, which together have the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from helenus_schemas.cql.table import Column
from helenus_schemas.event.change import Bound

SYMBOLS = ("LT", "LTE", "EQ", "GTE", "GT", "IN")


class Predicate(NamedTuple):
    """`column` is the number of a clustering column, `value` its CQL bytes."""

    column: int
    symbol: str
    value: bytes


def ranges(clustering: Sequence[Column], start: Bound | None, end: Bound | None) -> Iterator[tuple[Predicate, ...]]:
    """Split a range of the table's order into ranges that predicates can express, each as its predicates."""
    start_values, end_values = start.values if start else (), end.values if end else ()
    shared_count = 0
    while (
        shared_count < min(len(start_values), len(end_values))
        and start_values[shared_count] == end_values[shared_count]
    ):
        shared_count += 1
    starts = [_start_predicate(clustering, i, start_values, start) for i in range(shared_count, len(start_values))]
    ends = [_end_predicate(clustering, i, end_values, end) for i in range(shared_count, len(end_values))]
    equal = tuple(Predicate(i, "EQ", value) for i, value in enumerate(start_values[:shared_count]))
    for i in reversed(range(1, len(starts))):
        yield (*equal, *_equal_predicates(start_values, shared_count, shared_count + i), starts[i])
    yield (*equal, *starts[:1], *ends[:1])
    for i in range(1, len(ends)):
        yield (*equal, *_equal_predicates(end_values, shared_count, shared_count + i), ends[i])


def _equal_predicates(values: Sequence[bytes], first: int, end: int) -> tuple[Predicate, ...]:
    return tuple(Predicate(i, "EQ", values[i]) for i in range(first, end))


def _start_predicate(
    clustering: Sequence[Column], index: int, values: Sequence[bytes], bound: Bound | None
) -> Predicate:
    is_in = bound is not None and bound.inclusive and index == len(values) - 1
    greater = "GTE" if is_in else "GT"
    return Predicate(index, greater.replace("G", "L") if clustering[index].reversed else greater, values[index])


def _end_predicate(clustering: Sequence[Column], index: int, values: Sequence[bytes], bound: Bound | None) -> Predicate:
    is_in = bound is not None and bound.inclusive and index == len(values) - 1
    less = "LTE" if is_in else "LT"
    return Predicate(index, less.replace("L", "G") if clustering[index].reversed else less, values[index])
