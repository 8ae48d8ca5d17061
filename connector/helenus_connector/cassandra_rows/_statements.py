"""The reads of a table as CQL: what stands after WHERE, and the values that are bound there."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helenus_connector.cassandra_rows._key_groups import Span
from helenus_connector.cassandra_rows._slices import ClusteringSlice
from helenus_connector.cassandra_rows.raw_rows import collection, tuple_value
from helenus_connector.gate.replicas import routing_key
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import quote
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN, STRIPES


@dataclass(slots=True)
class RowQuery:
    """A read of `keys`: each of them once if there is a `span` in which they differ.

    `statics` asks for the static columns alone. `is_paged` says that its rows may be more than its keys; `rows` is how
    many its first page may have, None for all. `hung` says that a node did not answer what it is a part of. `statement`
    is what was `sent` at that time.
    """

    where: str
    values: list[bytes]
    keys: list[Key]
    routing_key: bytes | None = None
    span: Span | None = None
    width: int = 0
    statics: bool = False
    is_paged: bool = False
    rows: int | None = None
    hung: bool = False
    sent: float = 0.0
    statement: Any = None
    parts: Sequence[RowQuery] = ()

    @property
    def count(self) -> int:
        """How many statements it is."""
        return len(self.parts) or 1


class Statements:
    """Makes the queries of one version of a table; they are filled up to at most `most` keys."""

    def __init__(self, table: Table, most: int) -> None:
        self._columns = [quote(c.name) for c in table.primary_key]
        self._reversed = [c.reversed for c in table.primary_key]
        self._partition = len(table.partition_key)
        self.most = most
        self._by_span: dict[tuple[Span | None, int, int], str] = {}

    def group(self, span: Span, keys: list[Key], width: int, statics: bool = False) -> RowQuery:
        """Keys of which the first `width` columns are asked for, and agree but for a span.

        Values go each for itself, those of the span filling up to one of a few numbers. A list of them Cassandra takes
        apart and makes again: it would ask for other bytes than it was given, of a mapped inet say, or refuse what it
        holds. Lists of tuples it leaves as they are.
        """
        is_paged = width < len(self._columns) and not statics
        first = [v or b"" for v in keys[0][:width]]
        if len(keys) == 1:
            return RowQuery(self._where(None, 1, width), first, keys, None, span, width, statics, is_paged)
        before, after = first[: span.start], first[span.end :]
        if span.end - span.start > 1:
            asked = [tuple([v or b"" for v in k[span.start : span.end]]) for k in keys]
            values, size = [collection([tuple_value(v) for v in asked])], 0
        else:
            size = max(len(keys), min(1 << (len(keys) - 1).bit_length(), self.most))
            values = [k[span.start] or b"" for k in keys]
            values += values[-1:] * (size - len(keys))
        place = routing_key(tuple(first[: self._partition]))
        where = self._where(span, size, width)
        return RowQuery(where, [*before, *values, *after], keys, place, span, width, statics, is_paged)

    def halves(self, query: RowQuery) -> list[RowQuery]:
        """The same in two."""
        half = len(query.keys) // 2
        assert query.span is not None  # of what is more than one key
        parts = query.keys[:half], query.keys[half:]
        return [self.group(query.span, keys, query.width, query.statics) for keys in parts]

    def statics(self, key: Key) -> RowQuery:
        """The static columns of a key's partition."""
        width = self._partition
        return RowQuery(self._where(None, 1, width), [v or b"" for v in key[:width]], [key], statics=True)

    def slice(self, key: Key, one: ClusteringSlice) -> RowQuery:
        """Some rows of a key's partition."""
        columns = self._columns[: self._partition + len(one.equal)]
        conditions = [f"{column} = ?" for column in columns]
        values = [*(value or b"" for value in key[: self._partition]), *one.equal]
        for limit, ascending, descending in ((one.low, ">", "<"), (one.high, "<", ">")):
            if limit is not None:
                at = len(columns)
                sign = (descending if self._reversed[at] else ascending) + ("=" if limit.inclusive else "")
                conditions.append(f"{self._columns[at]} {sign} ?")
                values += limit.values
        return RowQuery(" AND ".join(conditions), values, [key], is_paged=True)

    def stripes(self, first: int, last: int) -> RowQuery:
        """The partitions of these stripes of the ring, and of those between."""
        return self.tokens((first - STRIPES // 2) << 48, ((last + 1 - STRIPES // 2) << 48) - 1)

    def tokens(self, first: int, last: int) -> RowQuery:
        """The partitions with these tokens, and those between."""
        token = f"token({', '.join(self._columns[: self._partition])})"
        limits = [(">=", first)] if first > LEAST_TOKEN else []
        limits += [("<=", last)] if last < MOST_TOKEN else []
        values = [struct.pack(">q", limit) for _, limit in limits]
        return RowQuery(" AND ".join(f"{token} {sign} ?" for sign, _ in limits), values, [()], is_paged=True)

    def nowhere(self) -> RowQuery:
        """No partition: what a node says of the statement, whatever the key."""
        return RowQuery(f"token({', '.join(self._columns[: self._partition])}) = ?", [bytes(8)], [])

    def _where(self, span: Span | None, size: int, width: int) -> str:
        """The conditions for one key, or for so many that differ in a span; 0 for any number of tuples."""
        made = self._by_span.get((span, size, width))
        if made is None:
            where = [f"{column} = ?" for column in self._columns[:width]]
            if span is not None:
                several = f"IN ({', '.join('?' * size)})" if size else "IN ?"
                differing = ", ".join(self._columns[span.start : span.end])
                where[span.start : span.end] = [f"{differing} {several}" if size else f"({differing}) {several}"]
            made = self._by_span[span, size, width] = " AND ".join(where)
        return made


def together(parts: list[RowQuery], keys: list[Key]) -> RowQuery:
    """Queries as one, of all of their keys."""
    first = parts[0]
    return RowQuery(first.where, first.values, keys, first.routing_key, first.span, first.width, parts=parts)
