"""Find the last delete marker over a key, among those of one Cassandra partition in one topic partition.

Ranges are kept as segments that do not overlap, each with the newest marker over it. So a partition of which a range is
deleted again and again, as in a queue, has few.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import total_ordering
from typing import Any

from helenus_connector.verify._entry import NEVER
from helenus_schemas.codec import from_json
from helenus_schemas.cql.order import Order, order
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.values import Malformed

Position = tuple[Any, ...]
"""A position between, or of, clustering keys; they compare as tuples do."""
_BAD_BOUNDS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, struct.error)
_BEFORE, _AT, _AFTER = (-1,), (0,), (1,)
"""What ends a position: before all keys that begin so, a key itself, after all that begin so."""


@total_ordering
class _Descending:
    """A value of a column whose order is reversed."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.value == other.value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __hash__(self) -> int:
        return hash(self.value)


class Clustering:
    """The order of a table's clustering keys."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._orders: list[tuple[Order, bool]] = [(order(c.type), c.reversed) for c in columns]
        self._decoders = [from_json.decoder(c.type) for c in columns]

    def position(self, values: Iterable[bytes | None], end: tuple[int] = _AT) -> Position:
        """Return the position of a clustering key; with another `end`, before or after those that begin with these
        values.
        """
        parts: list[Any] = []
        for (order_of, is_reversed), value in zip(self._orders, values, strict=False):
            sort_key = order_of(value)
            parts.append((0, _Descending(sort_key) if is_reversed else sort_key))
        return (*parts, end)

    def limits(self, bounds: bytes) -> tuple[Position, Position]:
        """Return where a range begins and ends, by a marker's headers `start` and `end`, a line each. Raises
        Malformed.
        """
        try:
            start, end = bounds.split(b"\n")
            return self._limit(start, is_start=True), self._limit(end, is_start=False)
        except (*_BAD_BOUNDS, RecursionError) as error:
            raise Malformed(f"not the bounds of a range: {error}") from None

    def _limit(self, text: bytes, is_start: bool) -> Position:
        if not text:
            return (_BEFORE if is_start else _AFTER,)
        bound = dict(json.loads(text, object_pairs_hook=from_json.Pairs))
        # By their places: a column may have another name since.
        values = [decode(value) for decode, (_, value) in zip(self._decoders, bound["values"], strict=False)]
        includes = bool(bound["inclusive"])
        return self.position(values, _BEFORE if includes == is_start else _AFTER)


class MarkerScopes:
    """Markers of one partition; they are added newest first."""

    def __init__(self, clustering: Clustering) -> None:
        self._clustering = clustering
        self._all = NEVER
        self._unclear = NEVER
        self._starts: list[Position] = []
        self._ends: list[Position] = []
        self._newest: list[bytes] = []

    def add(self, offset: bytes, bounds: bytes | None) -> None:
        """Add a marker of the partition, or of a range of it."""
        if offset <= self._all:
            return  # all of its rows are gone since
        if bounds is None:
            self._all = offset
            return
        try:
            start, end = self._clustering.limits(bounds)
        except Malformed:
            self._unclear = max(self._unclear, offset)
            return
        self._paint(start, end, offset)

    def over(self, values: Iterable[bytes | None]) -> tuple[bytes, bytes]:
        """Return the newest marker over a clustering key, and the newest that may be: NEVER if there is none."""
        newest = self._all
        if self._starts:
            position = self._clustering.position(values)
            i = bisect_right(self._starts, position) - 1
            if i >= 0 and position < self._ends[i]:
                newest = max(newest, self._newest[i])
        return newest, max(newest, self._unclear)

    def _paint(self, start: Position, end: Position, offset: bytes) -> None:
        """Add a marker to the segments of a range that no newer marker covers."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        free: list[tuple[Position, Position, bytes]] = []
        reached = start
        for i in range(first, last):
            if reached < self._starts[i]:
                free.append((reached, self._starts[i], offset))
            free.append((self._starts[i], self._ends[i], self._newest[i]))
            reached = max(reached, self._ends[i])
        if reached < end:
            free.append((reached, end, offset))
        self._starts[first:last] = [segment[0] for segment in free]
        self._ends[first:last] = [segment[1] for segment in free]
        self._newest[first:last] = [segment[2] for segment in free]
