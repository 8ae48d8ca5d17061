"""Copies unfrozen lists, which CQL can only write as a whole: an element's cell has a name that no statement can give.

    source ['a', 'b'], target ['a']  → SET l = ['a', 'b'] USING TIMESTAMP t

A list is read in both clusters and written if they differ, with a write time `t` that is that of the change, or one
above the newest element's in the target if this is not older. Afterwards it is read again, until the target has what
was written: what changed in the source meanwhile has a change of its own. So a copy may be a few microseconds newer
than its source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import structlog

from helenus_connector.replicate._cluster_table import ClusterTable, RowImage, RowKey
from helenus_connector.replicate._statements import TargetStatements, is_list
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell

ListKey = tuple[RowKey, str]
TTL_TOLERANCE_S = 5
"""By how much clocks, and the time that a write takes, move the expiry of a copy."""
_ATTEMPTS = 8
_NOW_FROM = 3  # attempts after which a tombstone that nobody sees is taken for newer than the elements
_log = structlog.get_logger(__name__)


def list_cells(image: RowImage | None, column: str) -> list[Cell]:
    """Return the elements of a list, in its order."""
    return [] if image is None else [cell for cell in image.cells.cells if cell.column == column]


def are_equal_lists(first: Sequence[Cell], second: Sequence[Cell]) -> bool:
    """Return whether two lists have the same elements, which expire at the same time."""
    if [cell.value for cell in first] != [cell.value for cell in second]:
        return False
    return all(expire_together(a, b) for a, b in zip(first, second, strict=True))


def expire_together(first: Cell, second: Cell) -> bool:
    """Return whether two cells expire at the same time, as far as two clocks say so."""
    if first.expires is None or second.expires is None:
        return first.expires is second.expires
    return abs(first.expires - second.expires) <= TTL_TOLERANCE_S


class ListCopier:
    """Copies lists of one table. `send` executes statements of the target, and sends none of them twice."""

    def __init__(
        self,
        source: ClusterTable,
        target: ClusterTable,
        statements: TargetStatements,
        send: Callable[[Sequence[Any]], None],
    ) -> None:
        self._source = source
        self._target = target
        self._statements = statements
        self._send = send
        self.columns = frozenset(c.name for c in target.table.values if is_list(c))

    def copy(self, requested: Mapping[ListKey, int]) -> int:
        """Make lists of the target equal to those of the source; by each the write time of its newest change, µs,
        or 0.
        Returns how many were written. Raises HelenusError.
        """
        pending = dict(requested)
        written: dict[ListKey, list[Cell]] = {}
        count = 0
        for attempt in range(_ATTEMPTS):
            keys = list(dict.fromkeys(key for key, _ in pending))
            in_source, in_target = self._source.read(keys), self._target.read(keys)
            statements = []
            differing: dict[ListKey, int] = {}
            for (key, column), write_time in pending.items():
                elements, copies = list_cells(in_source.get(key), column), list_cells(in_target.get(key), column)
                # A list that changes all the time is not what it was any more: that change is copied in its turn.
                if are_equal_lists(elements, copies) or are_equal_lists(written.get((key, column), elements), copies):
                    continue
                times = [write_time, *(cell.write_time for cell in elements)]
                times += [cell.write_time + 1 for cell in copies]
                if attempt >= _NOW_FROM:
                    times.append(time.time_ns() // 1000)
                differing[key, column] = newest = max(times)
                written[key, column] = elements
                row, scope = key
                statements.append(
                    self._statements.together(
                        self._statements.for_list(row, scope, column, _runs(elements), newest), is_idempotent=False
                    )
                )
            if not differing:
                return count
            self._send(statements)
            count += len(statements)
            pending = {name: write_time + 1 for name, write_time in differing.items()}
        name = self._target.table.full_name
        raise HelenusError(
            Kind.CASSANDRA_WRITE,
            f"lists that were copied {_ATTEMPTS} times differ from the source's: {sorted({c for _, c in pending})}",
            f"target {name}",
            "they are copied again; if this goes on, see whether other clients write to the target",
        )


def _runs(elements: Sequence[Cell]) -> list[tuple[int, list[bytes]]]:
    """Return the elements of a list in runs with the same TTL."""
    now_s = int(time.time())

    def ttl(cell: Cell) -> int:
        return 0 if cell.expires is None else max(1, cell.expires - now_s)

    return [(ttl_s, [cell.value or b"" for cell in run]) for ttl_s, run in groupby(elements, ttl)]
