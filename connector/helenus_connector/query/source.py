"""The streaming source: events topics as a Spark Python Data Source. Queries with state have it, and all where our
classes of Java can't be used; others have that of `_planning_thread`.

Spark takes it through three short-lived processes before a query starts, which need its names alone. So this module
imports neither settings nor clients: what uses them does, in the process that plans and in those that read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

    from helenus_connector.query._batch_planner import BatchPlanner

PLACE = "place"
PLACED = f"{PLACE} int, turn int, notes binary, events binary"
"""What an operator with state gets: each row is of one partition, which `place` names, and has
`PartitionNote`s of it or events, as `event_packs.pack_events`; `turn` counts its rows from 0.
"""


class EventsSource(DataSource):
    """`spark.readStream.format("helenus-events")`; the option `plan` is a saved `QueryPlan`'s path. With the option
    `placed` it has rows of `PLACED`. Otherwise it has none: `_spark_job.run` runs the tasks, which read their events
    themselves.
    """

    @classmethod
    def name(cls) -> str:
        return "helenus-events"

    def schema(self) -> str:
        return PLACED

    def streamReader(self, schema: object) -> EventsReader:  # noqa: ARG002, N802
        return EventsReader(self.options["plan"], "placed" in self.options)


class EventsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the driver's planner process. The workers read ranges for an operator with state.

    Spark makes one in its planner process, and pickles it for the workers, which call `read` alone.
    """

    def __init__(self, plan_file: str, placed: bool = False) -> None:
        self._plan_file = plan_file
        self._placed = placed
        self._plan = Path(plan_file).read_bytes()  # for workers, on other hosts too
        self._batch_planner: BatchPlanner | None = None  # in the process that plans, from its first call on

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for the workers. The planner's connections stay in the process that opened them.
        return {**self.__dict__, "_batch_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Without topics: each joins with a batch, whose end says where it began. Spark keeps no batch's start."""
        return {"tick": 0, "topics": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._open_planner().plan.max_batch_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._open_planner().prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        from helenus_connector.query.garbage import freeze

        end = self._open_planner().latest_offset(start, limit)
        freeze("planning")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from helenus_connector.query.batch_parts import note_planned, offer

        planner = self._open_planner()
        parts = planner.partitions(start, end)
        if self._placed:
            note_planned(planner.plan.parts_file, end, parts)  # for a batch that is no job
            return parts
        offer(planner.plan.parts_file, parts)
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from helenus_connector.control.plan import QueryPlan
        from helenus_connector.query.batch_parts import TaskRanges
        from helenus_connector.query.garbage import freeze
        from helenus_connector.query.placed_reader import read_arrow

        assert isinstance(partition, TaskRanges)
        yield from read_arrow(QueryPlan.loads(self._plan), partition)
        freeze("source")

    def commit(self, end: dict[str, Any]) -> None:
        self._open_planner().commit(end)

    def stop(self) -> None:
        if self._batch_planner is not None:
            self._batch_planner.stop()

    def _open_planner(self) -> BatchPlanner:
        if self._batch_planner is None:
            from helenus_connector.query._batch_planner import BatchPlanner

            self._batch_planner = BatchPlanner(self._plan_file)
        return self._batch_planner
