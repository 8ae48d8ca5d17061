"""Builds the reads of a table as CQL: the conditions after WHERE, and the values that are bound there."""

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
    """A read of `keys`: of each of them once, if there is a `span` in which they differ.

    `statics` reads the static columns alone. `is_paged` says that there may be more rows than keys; `rows` is the size
    of the first page, None for all rows. `has_hung` says that a node did not answer the query that this one is a part
    of. `statement` is the statement that was sent at `sent_at`, monotonic s. A query with `parts` is sent as several
    statements together.
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
    has_hung: bool = False
    sent_at: float = 0.0
    statement: Any = None
    parts: Sequence[RowQuery] = ()

    @property
    def count(self) -> int:
        """Return the number of its statements."""
        return len(self.parts) or 1


class Statements:
    """Builds the queries of one version of a table, of at most `max_keys` keys each."""

    def __init__(self, table: Table, max_keys: int) -> None:
        self._columns = [quote(c.name) for c in table.primary_key]
        self._reversed = [c.reversed for c in table.primary_key]
        self._partition = len(table.partition_key)
        self.max_keys = max_keys
        self._by_span: dict[tuple[Span | None, int, int], str] = {}

    def group(self, span: Span, keys: list[Key], width: int, statics: bool = False) -> RowQuery:
        """Build the query of keys whose first `width` columns are given, and which agree in all of them but a span.

        Each value is bound by itself, and the span is padded to one of a few sizes, so that few statements are
        prepared. A list of values would be decoded and encoded again by Cassandra: it would look for other bytes than
        it was given, of an IPv4-mapped inet for example, or refuse a value that it stores. Lists of tuples it leaves
        unchanged.
        """
        is_paged = width < len(self._columns) and not statics
        first = [v or b"" for v in keys[0][:width]]
        if len(keys) == 1:
            return RowQuery(self._where(None, 1, width), first, keys, None, span, width, statics, is_paged)
        before, after = first[: span.start], first[span.end :]
        if span.end - span.start > 1:
            tuples = [tuple([v or b"" for v in k[span.start : span.end]]) for k in keys]
            values, size = [collection([tuple_value(v) for v in tuples])], 0
        else:
            size = max(len(keys), min(1 << (len(keys) - 1).bit_length(), self.max_keys))
            values = [k[span.start] or b"" for k in keys]
            values += values[-1:] * (size - len(keys))
        group_routing_key = routing_key(tuple(first[: self._partition]))
        where = self._where(span, size, width)
        return RowQuery(where, [*before, *values, *after], keys, group_routing_key, span, width, statics, is_paged)

    def halves(self, query: RowQuery) -> list[RowQuery]:
        """Divide a query of several keys into two."""
        half = len(query.keys) // 2
        assert query.span is not None  # of what is more than one key
        parts = query.keys[:half], query.keys[half:]
        return [self.group(query.span, keys, query.width, query.statics) for keys in parts]

    def statics(self, key: Key) -> RowQuery:
        """Build the query of the static columns of a key's partition."""
        width = self._partition
        return RowQuery(self._where(None, 1, width), [v or b"" for v in key[:width]], [key], statics=True)

    def slice(self, key: Key, clustering_slice: ClusteringSlice) -> RowQuery:
        """Build the query of a slice of a key's partition."""
        columns = self._columns[: self._partition + len(clustering_slice.equal)]
        conditions = [f"{column} = ?" for column in columns]
        values = [*(value or b"" for value in key[: self._partition]), *clustering_slice.equal]
        for limit, ascending, descending in ((clustering_slice.low, ">", "<"), (clustering_slice.high, "<", ">")):
            if limit is not None:
                index = len(columns)
                sign = (descending if self._reversed[index] else ascending) + ("=" if limit.inclusive else "")
                conditions.append(f"{self._columns[index]} {sign} ?")
                values += limit.values
        return RowQuery(" AND ".join(conditions), values, [key], is_paged=True)

    def stripes(self, first: int, last: int) -> RowQuery:
        """Build the query of the partitions in the stripes of the ring from `first` to `last`, inclusive."""
        return self.tokens((first - STRIPES // 2) << 48, ((last + 1 - STRIPES // 2) << 48) - 1)

    def tokens(self, first: int, last: int) -> RowQuery:
        """Build the query of the partitions with tokens from `first` to `last`, inclusive."""
        token = f"token({', '.join(self._columns[: self._partition])})"
        limits = [(">=", first)] if first > LEAST_TOKEN else []
        limits += [("<=", last)] if last < MOST_TOKEN else []
        values = [struct.pack(">q", limit) for _, limit in limits]
        return RowQuery(" AND ".join(f"{token} {sign} ?" for sign, _ in limits), values, [()], is_paged=True)

    def nowhere(self) -> RowQuery:
        """Build a query of no partition: it shows whether a node accepts the statement, whatever the key."""
        return RowQuery(f"token({', '.join(self._columns[: self._partition])}) = ?", [bytes(8)], [])

    def _where(self, span: Span | None, size: int, width: int) -> str:
        """Return the conditions for one key, or for `size` keys that differ in a span; 0 for any number of tuples."""
        conditions = self._by_span.get((span, size, width))
        if conditions is None:
            where = [f"{column} = ?" for column in self._columns[:width]]
            if span is not None:
                several = f"IN ({', '.join('?' * size)})" if size else "IN ?"
                differing = ", ".join(self._columns[span.start : span.end])
                where[span.start : span.end] = [f"{differing} {several}" if size else f"({differing}) {several}"]
            conditions = self._by_span[span, size, width] = " AND ".join(where)
        return conditions


def together(parts: list[RowQuery], keys: list[Key]) -> RowQuery:
    """Join queries to one that is sent together."""
    first = parts[0]
    return RowQuery(first.where, first.values, keys, first.routing_key, first.span, first.width, parts=parts)
