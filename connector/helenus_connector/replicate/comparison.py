"""Compares the tables of two clusters, cell by cell, with write times and expiries: `helenus-connector compare`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from helenus_connector.config.replication import ReplicationSettings
from helenus_connector.replicate._cluster_table import RowKey
from helenus_connector.replicate._differences import RowDifference, compare_rows
from helenus_connector.replicate._requests import Patience
from helenus_connector.replicate._table_copy import TableCopy
from helenus_schemas.codec import to_json
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

_SPAN_ROWS = 2_000
_RECHECK_S = 1.0
_MAX_DIFFERENCES = 100_000  # of which the keys are kept, some 50 MB
_KINDS = frozenset({Kind.CASSANDRA_WRITE, Kind.CASSANDRA_READ})


@dataclass
class ComparedTable:
    """What a comparison found of a table: differences that did not pass, and the columns of one side alone."""

    name: str
    table: Table
    rows: int = 0
    columns: list[str] = field(default_factory=list)
    differences: list[RowDifference] = field(default_factory=list)
    repaired: int = 0
    is_complete: bool = True

    @property
    def is_equal(self) -> bool:
        """Return whether all was compared, and nothing differs."""
        return self.is_complete and not (self.columns or self.differences)


def compare(
    settings: ReplicationSettings,
    sessions: tuple[Any, Any],
    level: str,
    patience_s: float,
    repair: bool,
    tokens: tuple[int, int],
    note: Callable[[str, float, int], None],
) -> Iterator[ComparedTable]:
    """Compare each table, reading at a consistency level, and yield the results. A difference counts if it is still
    there after `patience_s`, so that clients may go on writing. Partitions count whose `tokens` are above the first, up
    to the second. `note` gets a table's name, the share of its ring that
    is read, from 0 to 1, and the number of rows. Raises HelenusError.
    """
    for name in settings.table:
        copy = TableCopy(settings, name, sessions, Patience(once=True), level)
        result = ComparedTable(
            name, copy.source.table, columns=list(_other_columns(copy.source.table, copy.target.table))
        )
        suspects = _scan(copy, result, tokens, note)
        deadline = time.monotonic() + patience_s
        while suspects and time.monotonic() < deadline:
            time.sleep(min(_RECHECK_S, max(0.0, deadline - time.monotonic())))
            suspects = _differences(copy, [difference.key for difference in suspects])
        if suspects and repair:
            result.repaired = copy.make_equal([difference.key for difference in suspects])
            suspects = _differences(copy, [difference.key for difference in suspects])
        result.differences = suspects
        yield result


def _scan(
    copy: TableCopy, result: ComparedTable, tokens: tuple[int, int], note: Callable[[str, float, int], None]
) -> list[RowDifference]:
    """Read both tables, and return where they differ."""
    suspects: list[RowDifference] = []
    first, last = tokens
    after = first
    columns = _common_columns(copy)

    def read_spans() -> tuple[Any, Any]:
        source = copy.source.span(after, last, _SPAN_ROWS)
        target = copy.target.span(after, source.until, _SPAN_ROWS)
        return source, target

    while after < last:
        source, target = copy.patience.retry(read_spans, _KINDS)
        until = min(source.until, target.until)
        for key in dict.fromkeys([*source.rows, *target.rows]):
            if copy.source.token(key[0]) <= until:
                result.rows += key in source.rows
                pair = source.rows.get(key), target.rows.get(key)
                if difference := compare_rows(key, *pair, copy.lists, columns):
                    suspects.append(difference)
        after = until
        note(result.name, (after - first) / (last - first), result.rows)
        if len(suspects) > _MAX_DIFFERENCES:
            result.is_complete = False
            break
    return suspects


def _differences(copy: TableCopy, keys: list[RowKey]) -> list[RowDifference]:
    """Read rows in both clusters, and return which still differ."""
    differences = []
    for first in range(0, len(keys), _SPAN_ROWS):
        chunk = keys[first : first + _SPAN_ROWS]
        source, target = copy.source.read(chunk), copy.target.read(chunk)
        columns = _common_columns(copy)
        differences += [
            difference
            for key in chunk
            if (difference := compare_rows(key, source.get(key), target.get(key), copy.lists, columns))
        ]
    return differences


def _common_columns(copy: TableCopy) -> set[str]:
    return {c.name for c in copy.source.table.values} & {c.name for c in copy.target.table.values}


def _other_columns(source: Table, target: Table) -> Iterator[str]:
    """Yield what is to be said of columns that only one side has, or that have another type."""
    types = [{c.name: f"{c.type}{' static' if c.kind == 'static' else ''}" for c in t.values} for t in (source, target)]
    for name in sorted(types[0].keys() | types[1].keys()):
        kinds = [of_side.get(name, "not there") for of_side in types]
        if kinds[0] != kinds[1]:
            yield f"column {name}: {kinds[0]} in the source, {kinds[1]} in the target"


def key_text(table: Table, key: RowKey) -> str:
    """Return a key as JSON; of static columns that of the partition."""
    columns = table.partition_key if key[1] is Scope.STATIC else table.primary_key
    text = to_json.objects([c.name for c in columns], [c.type for c in columns], keys=len(columns))
    try:
        return text(key[0][: len(columns)])
    except (ValueError, HelenusError):
        return ",".join((value or b"").hex() for value in key[0])
