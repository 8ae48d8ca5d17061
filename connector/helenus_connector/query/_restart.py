"""How far a restart steps back: its first batch reads again what may have been unconfirmed when the last run ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from helenus_connector.control.plan import QueryPlan
from helenus_connector.log.events import Offsets, Planner
from helenus_connector.unconfirmed.files import begins
from helenus_schemas.errors import HelenusError

_PARALLEL_REQUESTS = 16  # topics at a time: each answer may take a while


class RestartPositions:
    """The start positions of topics that have their first batch in this process."""

    def __init__(self) -> None:
        self._begun_topics: set[str] = set()
        # The start offset of a batch, and where the topics begin whose first batch it is.
        self._first_batch: tuple[dict[str, Any], Offsets] = {}, {}
        # By topic the epoch, and up to where an earlier run has read it, until this one is past that.
        self._read_offsets: dict[str, tuple[int, dict[str, int]]] = {}
        self._recorded_topics: set[str] = set()  # of which the last run's end, and what it left unconfirmed, is on disk

    def has_begun(self, topic: str) -> bool:
        """Return whether a topic had its first batch in this process, or it is planned."""
        return topic in self._begun_topics

    def restart_offsets(self, start: dict[str, Any]) -> Offsets:
        """Return the start positions of topics whose first batch is the one from `start`."""
        return self._first_batch[1] if self._first_batch[0] == start else {}

    def step_back(
        self, plan: QueryPlan, planner: Planner, start: dict[str, Any], begin: Offsets, partitions: Mapping[str, int]
    ) -> dict[str, HelenusError]:
        """Move the start of topics that are new in the batch from `start` back: `restart_offsets` returns it from then
        on. Return the errors of topics for which the broker does not answer; they are requested again with the next
        batch.
        """
        if self._first_batch[0] != start:
            self._first_batch = start, {}
            # A batch is done. Topics that are past where they stood are not repeated; of hundreds, soon all are. Of
            # one that is not in the plan now, as after a failure, what is held is not in `begin`.
            self._read_offsets = {
                topic: (epoch, read_offsets)
                for topic, (epoch, read_offsets) in self._read_offsets.items()
                if topic not in plan.connectors or _is_before(begin.get(topic, {}), read_offsets)
            }
        topics = (partitions.keys() & plan.connectors.keys() & begin.keys()) - self._begun_topics
        for topic in topics.intersection(plan.topics_with_past):
            self._step_into_past(plan, topic, begin[topic])
        for topic in (
            topics & plan.restored
        ):  # what waits is in the driver's memory: the first batch reads nothing again
            self._begun_topics.add(topic)
            self._first_batch[1][topic] = dict(begin[topic])
        topics = topics.difference(plan.topics_with_past, plan.restored)
        if not topics:
            return {}
        # Topics may join long after the start; their unconfirmed keys are nevertheless of an earlier run, or of another
        # query.
        begin_at = begins(plan.unconfirmed_file)

        def offsets_since(topic: str) -> tuple[int, dict[str, int]]:
            if plan.has_state:  # it has no unconfirmed changes
                return 0, {}
            replay_s = plan.connectors[topic].settle_replay_ms / 1000
            since_ms = int(begin_at(topic, replay_s, time.time()) * 1000)
            return since_ms, planner.since({topic: partitions.get(topic, 0)}, since_ms).get(topic, {})

        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            requests = {topic: pool.submit(offsets_since, topic) for topic in topics}
        errors: dict[str, HelenusError] = {}
        for topic, request in requests.items():
            try:
                since_ms, earlier_offsets = request.result()
            except HelenusError as error:
                errors[topic] = error
                continue
            self._begun_topics.add(topic)
            self._read_offsets[topic] = plan.epochs.get(topic, 0), begin[topic]
            if since_ms:  # else it is not known what waited when the last run ended: all counts
                self._recorded_topics.add(topic)
            self._first_batch[1][topic] = {
                partition: min(offset, earlier_offsets[partition])
                if earlier_offsets.get(partition, -1) >= 0
                else offset
                for partition, offset in begin[topic].items()
            }
        return errors

    def _step_into_past(self, plan: QueryPlan, topic: str, begin: Mapping[str, int]) -> None:
        """Move the start of a topic that is published exactly once back to its past events."""
        self._begun_topics.add(topic)
        past = plan.exactly_once[topic]
        if not past:
            return
        self._read_offsets[topic] = plan.epochs.get(topic, 0), dict(begin)
        self._recorded_topics.add(topic)
        self._first_batch[1][topic] = {p: min(offset, past.get(p, offset)) for p, offset in begin.items()}

    def read_offsets(self, plan: QueryPlan, topic: str) -> dict[str, int]:
        """Return up to which offsets an earlier run has read the partitions of a topic, of which it kept what it left
        unread.
        """
        epoch, offsets = self._read_offsets.get(topic, (0, {}))
        return offsets if topic in self._recorded_topics and epoch == plan.epochs.get(topic, 0) else {}

    def forget(self, topics: Iterable[str]) -> None:
        """Forget what an earlier run has read of these topics: they have other events at its offsets now."""
        self._recorded_topics.difference_update(topics)

    def reread_topics(self, plan: QueryPlan, offsets: Offsets) -> set[str]:
        """Return the topics of which these offsets lie before where an earlier run has read to. Events of them that are
        gone by now are not lost: it has read them.
        """
        return {
            topic
            for topic, (epoch, read_offsets) in self._read_offsets.items()
            if epoch == plan.epochs.get(topic, 0) and _is_before(offsets.get(topic, {}), read_offsets)
        }


def _is_before(offsets: Mapping[str, int], other_offsets: Mapping[str, int]) -> bool:
    return any(offsets.get(partition, other_offset) < other_offset for partition, other_offset in other_offsets.items())
