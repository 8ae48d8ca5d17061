"""Topics that lost unread events: recreated, truncated by another leader, or with other partitions."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import structlog

from helenus_connector.control.plan import Plan
from helenus_connector.log.events import Offsets, Planner
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
_SHORT_S = 30.0
Lineages = dict[str, dict[str, Any]]
"""By topic, as of `lineage`."""


def lineage(ids: Mapping[str, str], leaders: Mapping[str, Mapping[str, int]], epochs: Mapping[str, int]) -> Lineages:
    """What distinguishes the records of each topic from others at the same offsets, as JSON: the topic's `id`, its
    partitions' leader epochs as `leaders`, and in which `epoch` an operator moved it. Where a topic goes on after a
    loss of records, that is `cut`, in the batch that counts it.
    """
    return {
        topic: {"id": ids.get(topic, ""), "leaders": dict(leaders.get(topic, {})), "epoch": epochs.get(topic, 0)}
        for topic in {*ids, *leaders}
    }


def other_partitions(topic: str, start: Offsets, latest: Offsets) -> HelenusError | None:
    """PARTITIONS_CHANGED if a topic has not the partitions it had: order per key would be lost."""
    before, now = start.get(topic), latest[topic]
    if not before or before.keys() == now.keys():
        return None
    return HelenusError(Kind.PARTITIONS_CHANGED, f"{topic} has {len(now)} partitions, and had {len(before)}")


class Losses:
    """Finds lost events between two batches. A topic that is shorter than it was gets some time to recover."""

    def __init__(self) -> None:
        self._short: dict[str, float] = {}

    @property
    def may_recover(self) -> bool:
        """Whether a topic was shorter than it had been, at the last look."""
        return bool(self._short)

    def find(
        self, plan: Plan, broker: Planner, start: Mapping[str, Any], begin: Offsets, latest: Offsets, now_is: Lineages
    ) -> tuple[Offsets, dict[str, HelenusError]]:
        """The partitions that lost records, by topic, each with the offset where it goes on; and the errors of topics,
        which stop their connectors.

        `begin` is where topics are to be read from, given the last batch's end `start`; `now_is` their lineage.
        """
        cut: Offsets = {}
        wrong: dict[str, HelenusError] = {}
        now = time.monotonic()
        before = start.get("logs", {})
        for topic in latest:
            is_same = latest[topic] == begin.get(topic) and before.get(topic) == now_is.get(topic)
            if is_same and topic not in self._short:
                continue  # as most of hundreds
            if error := other_partitions(topic, begin, latest):
                wrong[topic] = error
                continue
            try:
                lost = _lost(plan, broker, topic, begin[topic], start, now_is) if topic in begin else {}
            except HelenusError as failure:
                self._short.pop(topic, None)
                wrong[topic] = failure
                continue
            if lost:
                self._short.pop(topic, None)
                cut[topic] = lost
            elif any(0 <= last < begin.get(topic, {}).get(p, 0) for p, last in latest[topic].items()):
                # A new leader may not know its end for a moment.
                if now - self._short.setdefault(topic, now) > _SHORT_S:
                    what = f"{topic} ends before the position of its connector: was it recreated?"
                    advice = "reset the connector's offsets over REST, and re-snapshot the table"
                    wrong[topic] = HelenusError(Kind.OFFSETS_LOST, what, advice=advice)
            else:
                self._short.pop(topic, None)
        return cut, wrong


def _lost(
    plan: Plan, broker: Planner, topic: str, at: dict[str, int], start: Mapping[str, Any], now_is: Lineages
) -> dict[str, int]:
    """The partitions of a topic that lost records, each with the offset where it goes on. Raises HelenusError if the
    loss must stop the topic's connector.
    """
    before, now = start.get("logs", {}).get(topic), now_is.get(topic)
    if before is None or now is None or before["epoch"] != now["epoch"]:
        return {}  # it joins, or an operator moved it to where it is now
    if before["id"] and now["id"] and before["id"] != now["id"]:
        what, lost = f"{topic} was deleted and recreated", broker.earliest({topic: len(at)})[topic]
    elif lost := broker.cut(topic, before["leaders"], at):
        where = ", ".join(f"partition {p} from offset {first}" for p, first in lost.items())
        what = f"{topic} has lost events, as by an unclean leader election, or as it was recreated: {where}"
    if not lost:
        return {}
    if plan.connectors[topic].data_loss == "fail":
        what = f"{what}; reset the connector's offsets, and re-snapshot the table"
        raise HelenusError(Kind.OFFSETS_LOST, what, f"topic {topic}")
    _log.warning("source.lost", topic=topic, reason=what, goes_on=lost)
    return lost


def noted(before: Lineages, now_is: Lineages, cut: Offsets, latest: Offsets, wrong: Collection[str]) -> Lineages:
    """The lineages to note with the end of a batch, given those of the batch `before`. A topic with an error
    keeps its former one.
    """
    known = dict(before)
    for topic in [topic for topic, lineage in before.items() if "cut" in lineage]:
        known[topic] = {k: v for k, v in before[topic].items() if k != "cut"}
    changed = {topic for topic, lineage in now_is.items() if lineage != known.get(topic)} | cut.keys()
    for topic in (latest.keys() & changed & now_is.keys()).difference(wrong):
        # A topic that can't be asked just now keeps its former one.
        now, older = now_is[topic], known.get(topic, {"id": "", "leaders": {}})
        same = not (now["id"] and older["id"]) or now["id"] == older["id"]
        leaders = {**older["leaders"], **now["leaders"]} if same else now["leaders"]
        known[topic] = {**now, "id": now["id"] or older["id"], "leaders": leaders}
        if topic in cut:
            known[topic]["cut"] = cut[topic]
    return {topic: lineage for topic, lineage in known.items() if lineage["id"] or lineage["leaders"]}
