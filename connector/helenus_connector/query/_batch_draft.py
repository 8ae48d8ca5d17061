"""A batch while it is planned: from where each topic is read, up to where, and which topics cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import overlaid
from helenus_connector.log.events import Offsets, Planner
from helenus_connector.query._batch_limits import limited
from helenus_connector.query._restart import RestartPositions
from helenus_connector.query._topic_losses import Lineages, TopicLosses, lineages_in
from helenus_schemas.errors import HelenusError


class BatchDraft:
    """The batch from the offset `start`, planned by its methods, which are called once each, in their order here.

    `begin` is where its topics are read from, `latest` where they end, `topics` where the batch ends. `lineages` are
    those noted at `start`. `cut` are the partitions that lost events, with the offsets where they go on. `errors` are
    the errors of topics that cannot be read. `fresh` are the start offsets of topics that restart with this batch.
    """

    def __init__(self, plan: QueryPlan, planner: Planner, start: dict[str, Any], latest: Offsets) -> None:
        self.start = start
        self.latest = latest
        self.begin = overlaid(start["topics"], plan.held)
        self.lineages = lineages_in(start)
        self.cut: Offsets = {}
        self.errors: dict[str, HelenusError] = {}
        self.fresh: Offsets = {}
        self.steps_back = False
        self.topics: Offsets = {}
        self._plan = plan
        self._planner = planner

    def find_losses(self, topic_losses: TopicLosses, lineages: Lineages) -> None:
        """Find topics that lost events since `start`, given their lineages now: they go on where events are left."""
        self.cut, self.errors = topic_losses.find(
            self._plan, self._planner, self.lineages, self.begin, self.latest, lineages
        )
        self.begin.update({topic: {**self.begin[topic], **offsets} for topic, offsets in self.cut.items()})

    def add_topics(self, partitions: Mapping[str, int]) -> None:
        """Add topics that join the query, at their current start: the next batch reads them."""
        new = {t: count for t, count in partitions.items() if t in self.latest and t not in self.begin}
        if not new:
            return
        earliest = self._planner.earliest(new)
        self.begin.update(earliest)
        self.latest.update(earliest)
        # A new topic may have no first offset yet, only a last.
        self.latest = {topic: ends for topic, ends in self.latest.items() if topic in self.begin}

    def step_back(self, restart_positions: RestartPositions, partitions: Mapping[str, int]) -> dict[str, HelenusError]:
        """Have topics whose first batch in this run is this one read again what was unconfirmed when the last run
        ended. Returns the errors of topics of which the broker does not say where that is.
        """
        failed = restart_positions.step_back(self._plan, self._planner, self.start, self.begin, partitions)
        self.fresh = restart_positions.fresh(self.start)
        begin = {**self.begin, **self.fresh}
        self.steps_back = begin != self.begin
        self.begin = begin
        return failed

    def limit_rows(self, limit: ReadLimit) -> None:
        """Set where the batch ends: after at most `max.batch.size` events, unless all that is there is to be read."""
        readable = {topic: ends for topic, ends in self.latest.items() if topic not in self.errors}
        if not isinstance(limit, ReadAllAvailable):
            limit = ReadMaxRows(self._plan.max_batch_size)
        self.topics = limited(self.begin, readable, limit, self._planner, self.errors)
