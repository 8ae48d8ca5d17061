"""Topics that lost unread events: recreated, truncated by another leader, or with other partitions."""

from __future__ import annotations

import base64
import functools
import json
import time
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import structlog

from helenus_connector.config.state import begin_anew
from helenus_connector.control.plan import QueryPlan
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


def text_of(lineages: Lineages) -> str:
    """Lineages as an offset has them: compressed JSON in Base64. An offset is parsed five times a batch, and lineages
    hardly change: as plain JSON, those of hundreds of topics were three quarters of it.
    """
    return base64.b64encode(zlib.compress(json.dumps(lineages).encode(), 1)).decode()


def lineages_in(offset: Mapping[str, Any]) -> Lineages:
    """The lineages in an offset, which are not to be changed; earlier versions had them as JSON. Raises
    HelenusError(STATE).
    """
    found = offset.get("logs", {})
    return _parsed(found) if isinstance(found, str) else dict(found)


def cuts_in(offset: Mapping[str, Any]) -> Offsets:
    """Where topics go on, of those that an offset counts a loss of; not to be changed. Raises as `lineages_in`."""
    found = offset.get("logs", {})
    return _cuts(found) if isinstance(found, str) else _cuts_of(found)


@functools.lru_cache(maxsize=8)  # a batch asks for those of its start and its end some times
def _parsed(text: str) -> Lineages:
    try:
        found: Lineages = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
    except (ValueError, zlib.error):
        what = "Spark's checkpoint is damaged: an offset does not say which topics it is of"
        where = "the last file of offsets, in the directory of the query.group in checkpoint.dir"
        advice = "delete it, and the file of this name in commits, to go on from the batch before"
        raise HelenusError(Kind.STATE, what, where, advice) from None
    return found


@functools.lru_cache(maxsize=8)
def _cuts(text: str) -> Offsets:
    return _cuts_of(_parsed(text))


def _cuts_of(lineages: Lineages) -> Offsets:
    return {topic: lineage["cut"] for topic, lineage in lineages.items() if "cut" in lineage}


def other_partitions(topic: str, start: Offsets, latest: Offsets) -> HelenusError | None:
    """PARTITIONS_CHANGED if a topic has not the partitions it had: order per key would be lost."""
    before, now = start.get(topic), latest[topic]
    if not before or before.keys() == now.keys():
        return None
    return HelenusError(Kind.PARTITIONS_CHANGED, f"{topic} has {len(now)} partitions, and had {len(before)}")


class TopicLosses:
    """Finds lost events between two batches. A topic that is shorter than it was gets some time to recover."""

    def __init__(self) -> None:
        self._short: dict[str, float] = {}
        self._compared: tuple[Lineages, Lineages, set[str]] = {}, {}, set()

    @property
    def may_recover(self) -> bool:
        """Whether a topic was shorter than it had been, at the last look."""
        return bool(self._short)

    def find(
        self, plan: QueryPlan, broker: Planner, before: Lineages, begin: Offsets, latest: Offsets, now_is: Lineages
    ) -> tuple[Offsets, dict[str, HelenusError]]:
        """The partitions that lost records, by topic, each with the offset where it goes on; and the errors of topics,
        which stop their connectors.

        `begin` is where topics are to be read from, `before` their lineage at the end of the last batch, `now_is` what
        it is now.
        """
        cut: Offsets = {}
        wrong: dict[str, HelenusError] = {}
        now = time.monotonic()
        # Of hundreds of topics, most are as they were.
        apart = {topic for topic, ends in latest.items() if ends != begin.get(topic)}
        for topic in latest.keys() & (apart | self._changed(before, now_is) | self._short.keys()):
            if error := other_partitions(topic, begin, latest):
                wrong[topic] = error
                continue
            try:
                lost = _lost(plan, broker, topic, begin[topic], before, now_is) if topic in begin else {}
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
                    wrong[topic] = HelenusError(Kind.OFFSETS_LOST, what, advice=_advice(plan, topic))
            else:
                self._short.pop(topic, None)
        return cut, wrong

    def noted(
        self, before: Lineages, now_is: Lineages, cut: Offsets, latest: Offsets, wrong: Collection[str]
    ) -> Lineages:
        """The lineages to note with the end of a batch, given those of the batch `before`: that very mapping, if they
        are the same. A topic with an error keeps its former one.
        """
        cut_before = {topic for topic, lineage in before.items() if "cut" in lineage}
        changed = (self._changed(before, now_is) | cut.keys()) & latest.keys() & now_is.keys() - set(wrong)
        if not (cut_before or changed):
            return before
        known = dict(before)
        for topic in cut_before:
            known[topic] = {k: v for k, v in before[topic].items() if k != "cut"}
        for topic in changed:
            # A topic that can't be asked just now keeps its former one.
            now, older = now_is[topic], known.get(topic, {"id": "", "leaders": {}})
            same = not (now["id"] and older["id"]) or now["id"] == older["id"]
            leaders = {**older["leaders"], **now["leaders"]} if same else now["leaders"]
            known[topic] = {**now, "id": now["id"] or older["id"], "leaders": leaders}
            if topic in cut:
                known[topic]["cut"] = cut[topic]
        return {topic: lineage for topic, lineage in known.items() if lineage["id"] or lineage["leaders"]}

    def _changed(self, before: Lineages, now_is: Lineages) -> set[str]:
        """Which topics have another lineage now; as a rule these were compared already."""
        if self._compared[0] is not before or self._compared[1] is not now_is:
            changed = {topic for topic, lineage in now_is.items() if lineage != before.get(topic)}
            self._compared = before, now_is, changed
        return self._compared[2]


def _advice(plan: QueryPlan, topic: str) -> str:
    """What to do when events are gone that were not read. Rows that a state keeps are of the positions that it has read
    up to, so these can't be moved.
    """
    settings = plan.connectors.get(topic)
    if settings is not None and settings.state == "rows":
        return f"{begin_anew(settings.query_group)}; then re-snapshot the table"
    return "reset the connector's offsets over REST, and re-snapshot the table"


def _lost(
    plan: QueryPlan, broker: Planner, topic: str, at: dict[str, int], noted: Lineages, now_is: Lineages
) -> dict[str, int]:
    """The partitions of a topic that lost records, each with the offset where it goes on. Raises HelenusError if the
    loss must stop the topic's connector.
    """
    before, now = noted.get(topic), now_is.get(topic)
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
        raise HelenusError(Kind.OFFSETS_LOST, what, f"topic {topic}", _advice(plan, topic))
    _log.warning("source.lost", topic=topic, reason=what, goes_on=lost)
    return lost
