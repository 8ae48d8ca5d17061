"""A batch of few events with `state=rows`, without a job of Spark's: read, merged and published by the worker's process
for small batches, which asks the driver for what the state holds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control.checkpoint import planned_end
from helenus_connector.control.plan import QueryPlan
from helenus_connector.journal.batch_marks import BatchMarks
from helenus_connector.query import worker_process
from helenus_connector.query.batch_parts import TaskRanges, read_planned
from helenus_connector.query.garbage import freeze
from helenus_connector.query.placed_reader import PlacedRow, read_places
from helenus_connector.query.small_batches import SmallBatches, ask
from helenus_connector.query.source import PLACE
from helenus_connector.state.rows._operator import MergedRow, PlaceMerge, in_turn
from helenus_connector.state.rows._publish_task import CurrentTable, PublishResult, publish_rows
from helenus_connector.state.store.driver_stores import AskedStore, DriverStores
from helenus_schemas.service.failpoints import reach

_MOST_BYTES = 16 << 20
"""Of events: they are read before the first is merged, as a job's are, which may write them to files."""
_LARGE_S = 60.0
"""After a batch of few events that were too large, for so long all are jobs."""


class SmallRowsBatches:
    """The driver's side, for the batches of one run of a query. `state_bytes` is how many the state has, in files and
    in memory, after the last one.
    """

    def __init__(self, small_batches: SmallBatches, stores: DriverStores, checkpoint: Path) -> None:
        self.state_bytes = 0
        self._checkpoint = checkpoint
        self._small_batches = small_batches
        self._stores = stores
        self._jobs_until = 0.0  # monotonic s

    @classmethod
    def of_run(cls, small_batches: SmallBatches, context: Any, query: Any, checkpoint: Path) -> SmallRowsBatches | None:
        """Return it for a query that runs; None where all its batches are to be jobs. The `checkpoint` is Spark's."""
        stores = DriverStores.of_query(context, query, PLACE) if small_batches.are_taken else None
        return None if stores is None else cls(small_batches, stores, checkpoint)

    def run(
        self,
        plan: QueryPlan,
        settings: ConnectorSettings,
        marks: BatchMarks | None,
        batch: int,
        is_wanted: Callable[[], bool],
    ) -> list[PublishResult] | None:
        """Do a batch that Spark has planned, and return its results; None if it is to be a job. Raises as
        `SmallBatches.run`, and Py4JError: then nobody knows what is published, and the state is as it was.
        """
        parts: Sequence[TaskRanges] | None = None
        if time.monotonic() > self._jobs_until:
            with suppress(FileNotFoundError):
                parts = read_planned(plan.parts_file, planned_end(self._checkpoint, batch))
        if parts is None:
            return None
        try:
            results = self._small_batches.run(
                parts, partial(do_batch, plan, settings, marks, batch), 0, is_wanted, self._stores
            )
            if results is None:
                return None
            if None in results:
                self._jobs_until = time.monotonic() + _LARGE_S
                self._stores.abort()
                return None
            reach("state.before-store-commit")
            self.state_bytes = self._stores.commit()
        except BaseException:
            self._stores.abort()
            raise
        return [result for result in results if result is not None]


def do_batch(
    plan: QueryPlan, settings: ConnectorSettings, marks: BatchMarks | None, batch: int, parts: Iterator[TaskRanges]
) -> Iterator[PublishResult | None]:
    """Do a batch of a plan of this one table, as one part of it: yield its result, where it has one, or None if it is
    too large, and nothing was done. Raises HelenusError.
    """
    table = CurrentTable(settings)
    rows_by_place: defaultdict[int, list[PlacedRow]] = defaultdict(list)
    size = 0
    for part in parts:
        for row in read_places(plan, part):
            rows_by_place[row.place].append(row)
            size += len(row.events or b"")
            if size > _MOST_BYTES:
                yield None
                return
    table.request()
    read_table = cache(table)  # once, after the events: for the merge and for what is published

    merge = PlaceMerge(read_table, table.is_cassandra_3)

    def merged() -> Iterator[MergedRow]:
        for number, rows in rows_by_place.items():
            yield from merge.merge(in_turn((row.turn, row.notes, row.events) for row in rows), AskedStore(ask, number))

    result = publish_rows(plan, settings, None if marks is None else marks.batch(batch), merged(), read_table)
    if result is not None:
        yield result
    freeze(("state", worker_process.count("stage"), worker_process.count("definition")))
