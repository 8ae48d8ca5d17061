"""The range of a deletion as CEP-44 says one: predicates of single clustering columns, all of which hold.

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
    """The ranges that a range of the table's order is, each as its predicates."""
    first, last = start.values if start else (), end.values if end else ()
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    starts = [_after(clustering, i, first, start) for i in range(shared, len(first))]
    ends = [_before(clustering, i, last, end) for i in range(shared, len(last))]
    equal = tuple(Predicate(i, "EQ", value) for i, value in enumerate(first[:shared]))
    for i in reversed(range(1, len(starts))):
        yield (*equal, *_equal(first, shared, shared + i), starts[i])
    yield (*equal, *starts[:1], *ends[:1])
    for i in range(1, len(ends)):
        yield (*equal, *_equal(last, shared, shared + i), ends[i])


def _equal(values: Sequence[bytes], first: int, end: int) -> tuple[Predicate, ...]:
    return tuple(Predicate(i, "EQ", values[i]) for i in range(first, end))


def _after(clustering: Sequence[Column], at: int, values: Sequence[bytes], bound: Bound | None) -> Predicate:
    is_in = bound is not None and bound.inclusive and at == len(values) - 1
    greater = "GTE" if is_in else "GT"
    return Predicate(at, greater.replace("G", "L") if clustering[at].reversed else greater, values[at])


def _before(clustering: Sequence[Column], at: int, values: Sequence[bytes], bound: Bound | None) -> Predicate:
    is_in = bound is not None and bound.inclusive and at == len(values) - 1
    less = "LTE" if is_in else "LT"
    return Predicate(at, less.replace("L", "G") if clustering[at].reversed else less, values[at])
