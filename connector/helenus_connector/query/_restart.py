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

_ASKED = 16  # topics at a time: each answer may take a while


class RestartPositions:
    """The start positions of topics that have their first batch in this process."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._fresh: tuple[dict[str, Any], Offsets] = {}, {}
        self._stood: dict[str, tuple[int, dict[str, int]]] = {}
        self._kept: set[str] = set()  # topics of which it is known what the last run left unconfirmed

    def fresh(self, start: dict[str, Any]) -> Offsets:
        """The start positions of topics whose first batch is the one from `start`."""
        return self._fresh[1] if self._fresh[0] == start else {}

    def step_back(
        self, plan: QueryPlan, broker: Planner, start: dict[str, Any], begin: Offsets, partitions: Mapping[str, int]
    ) -> dict[str, HelenusError]:
        """Have new topics of `begin` be `fresh` in the batch from `start`. Topics without an answer from the broker are
        returned with its error, and asked for when they come again.
        """
        if self._fresh[0] != start:
            self._fresh = start, {}
            # A batch is done. Topics that are past where they stood are not read `again`; of hundreds, soon all are. Of
            # one that is not in the plan now, as after a failure, what is held is not in `begin`.
            self._stood = {
                topic: of
                for topic, of in self._stood.items()
                if topic not in plan.connectors or _is_before(begin.get(topic, {}), of[1])
            }
        topics = (partitions.keys() & plan.connectors.keys() & begin.keys()) - self._begun
        if not topics:
            return {}
        # Topics may join long after the start; their unconfirmed keys are nevertheless of an earlier run, or of another
        # query.
        begin_at = begins(plan.unconfirmed_file)

        def since(topic: str) -> tuple[int, dict[str, int]]:
            if plan.has_state:  # it has no unconfirmed changes
                return 0, {}
            replay_s = plan.connectors[topic].settle_replay_ms / 1000
            then = int(begin_at(topic, replay_s, time.time()) * 1000)
            return then, broker.since({topic: partitions.get(topic, 0)}, then).get(topic, {})

        with ThreadPoolExecutor(_ASKED) as pool:
            asked = {topic: pool.submit(since, topic) for topic in topics}
        failed: dict[str, HelenusError] = {}
        for topic, answer in asked.items():
            try:
                then, found = answer.result()
            except HelenusError as error:
                failed[topic] = error
                continue
            self._begun.add(topic)
            self._stood[topic] = plan.epochs.get(topic, 0), begin[topic]
            if then:  # else it is not known what waited when the last run ended: all counts
                self._kept.add(topic)
            self._fresh[1][topic] = {
                p: min(at, found[p]) if found.get(p, -1) >= 0 else at for p, at in begin[topic].items()
            }
        return failed

    def read(self, plan: QueryPlan, topic: str) -> dict[str, int]:
        """Up to which offsets an earlier run has read the partitions of a topic, and kept what it left to be read."""
        epoch, stood = self._stood.get(topic, (0, {}))
        return stood if topic in self._kept and epoch == plan.epochs.get(topic, 0) else {}

    def forget(self, topics: Iterable[str]) -> None:
        """These topics have other events now at the offsets that an earlier run has read."""
        self._kept.difference_update(topics)

    def again(self, plan: QueryPlan, offsets: Offsets) -> set[str]:
        """The topics that are read again there: events of them that are gone by now were read by an earlier run."""
        return {
            topic
            for topic, (epoch, stood) in self._stood.items()
            if epoch == plan.epochs.get(topic, 0) and _is_before(offsets.get(topic, {}), stood)
        }


def _is_before(offsets: Mapping[str, int], stood: Mapping[str, int]) -> bool:
    return any(offsets.get(p, at) < at for p, at in stood.items())
