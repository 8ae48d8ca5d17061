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
from helenus_schemas.names import counted

_log = structlog.get_logger(__name__)
_SHORT_S = 30.0
"""How long a topic may end before its connector's position until that is an error. A new leader may not know its end
for a moment after an election, which takes seconds.
"""
Lineages = dict[str, dict[str, Any]]
"""By topic, as of `lineage`."""


def lineage(ids: Mapping[str, str], leaders: Mapping[str, Mapping[str, int]], epochs: Mapping[str, int]) -> Lineages:
    """Return what distinguishes the records of each topic from others at the same offsets, as JSON: the topic's `id`,
    its partitions' leader epochs as `leaders`, and the `epoch` in which an operator moved it. Where a topic goes on
    after a loss of records, that is `cut`, in the batch that counts it.
    """
    return {
        topic: {"id": ids.get(topic, ""), "leaders": dict(leaders.get(topic, {})), "epoch": epochs.get(topic, 0)}
        for topic in {*ids, *leaders}
    }


def text_of(lineages: Lineages) -> str:
    """Encode lineages as an offset has them: compressed JSON in Base64. An offset is parsed five times a batch, and
    lineages hardly change: as plain JSON, those of hundreds of topics were three quarters of it.
    """
    return base64.b64encode(zlib.compress(json.dumps(lineages).encode(), 1)).decode()


def lineages_in(offset: Mapping[str, Any]) -> Lineages:
    """Return the lineages in an offset, which are not to be changed; earlier versions had them as JSON. Raises
    HelenusError(STATE).
    """
    lineages = offset.get("logs", {})
    return _parse_lineages(lineages) if isinstance(lineages, str) else dict(lineages)


def cuts_in(offset: Mapping[str, Any]) -> Offsets:
    """Return where topics go on that lost events according to an offset; not to be changed. Raises as `lineages_in`."""
    lineages = offset.get("logs", {})
    return _parse_cuts(lineages) if isinstance(lineages, str) else _cuts_in_lineages(lineages)


@functools.lru_cache(maxsize=8)  # a batch asks for those of its start and its end some times
def _parse_lineages(text: str) -> Lineages:
    try:
        lineages: Lineages = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
    except (ValueError, zlib.error):
        problem = "Spark's checkpoint is damaged: an offset does not say which topics it is of"
        where = "the last file of offsets, in the directory of the query.group in checkpoint.dir"
        advice = "delete it, and the file of this name in commits, to go on from the batch before"
        raise HelenusError(Kind.STATE, problem, where, advice) from None
    return lineages


@functools.lru_cache(maxsize=8)
def _parse_cuts(text: str) -> Offsets:
    return _cuts_in_lineages(_parse_lineages(text))


def _cuts_in_lineages(lineages: Lineages) -> Offsets:
    return {topic: lineage["cut"] for topic, lineage in lineages.items() if "cut" in lineage}


def other_partitions(topic: str, start: Offsets, latest: Offsets) -> HelenusError | None:
    """Return PARTITIONS_CHANGED if a topic does not have the partitions it had: order per key would be lost."""
    before, now = start.get(topic), latest[topic]
    if not before or before.keys() == now.keys():
        return None
    return HelenusError(Kind.PARTITIONS_CHANGED, f"{topic} has {counted(len(now), 'partition')}, and had {len(before)}")


class TopicLosses:
    """Finds lost events between two batches. A topic that is shorter than it was gets some time to recover."""

    def __init__(self) -> None:
        self._short_since: dict[str, float] = {}
        self._compared: tuple[Lineages, Lineages, set[str]] = {}, {}, set()

    @property
    def may_recover(self) -> bool:
        """Return whether, when last compared, a topic was shorter than it had been."""
        return bool(self._short_since)

    def find(
        self,
        plan: QueryPlan,
        planner: Planner,
        former_lineages: Lineages,
        former_ends: Offsets,
        begin: Offsets,
        latest: Offsets,
        current_lineages: Lineages,
    ) -> tuple[Offsets, dict[str, HelenusError]]:
        """Return the partitions that lost records, by topic, each with the offset where it goes on; and the errors of
        topics, which stop their connectors.

        `former_ends` is where the last batch ended, `former_lineages` are the topics' lineages there. `begin` is where
        they are to be read from, `current_lineages` those of now.
        """
        cut: Offsets = {}
        errors: dict[str, HelenusError] = {}
        now = time.monotonic()
        # Of hundreds of topics, most are as they were.
        moved = {topic for topic, ends in latest.items() if ends != begin.get(topic)}
        for topic in latest.keys() & (
            moved | self._changed_topics(former_lineages, current_lineages) | self._short_since.keys()
        ):
            if error := other_partitions(topic, begin, latest):
                errors[topic] = error
                continue
            try:
                loss_offsets = (
                    _find_loss(
                        plan,
                        planner,
                        topic,
                        begin[topic],
                        former_ends.get(topic, {}),
                        former_lineages,
                        current_lineages,
                    )
                    if topic in begin
                    else {}
                )
            except HelenusError as error:
                self._short_since.pop(topic, None)
                errors[topic] = error
                continue
            if loss_offsets:
                self._short_since.pop(topic, None)
                cut[topic] = loss_offsets
            elif any(
                0 <= end_offset < begin.get(topic, {}).get(partition, 0)
                for partition, end_offset in latest[topic].items()
            ):
                # A new leader may not know its end for a moment.
                if now - self._short_since.setdefault(topic, now) > _SHORT_S:
                    problem = f"{topic} ends before the position of its connector: was it recreated?"
                    errors[topic] = HelenusError(Kind.OFFSETS_LOST, problem, advice=_advice(plan, topic))
            else:
                self._short_since.pop(topic, None)
        return cut, errors

    def noted(
        self,
        former_lineages: Lineages,
        current_lineages: Lineages,
        cut: Offsets,
        latest: Offsets,
        failed_topics: Collection[str],
    ) -> Lineages:
        """Return the lineages to note with the end of a batch, given those noted with the batch before: that very
        mapping, if they are the same. A topic with an error keeps its former one.
        """
        formerly_cut = {topic for topic, lineage in former_lineages.items() if "cut" in lineage}
        changed = (
            (self._changed_topics(former_lineages, current_lineages) | cut.keys())
            & latest.keys()
            & current_lineages.keys() - set(failed_topics)
        )
        if not (formerly_cut or changed):
            return former_lineages
        noted_lineages = dict(former_lineages)
        for topic in formerly_cut:
            noted_lineages[topic] = {field: value for field, value in former_lineages[topic].items() if field != "cut"}
        for topic in changed:
            # A topic that can't be asked just now keeps its former one.
            current, former = current_lineages[topic], noted_lineages.get(topic, {"id": "", "leaders": {}})
            is_same_topic = not (current["id"] and former["id"]) or current["id"] == former["id"]
            leaders = {**former["leaders"], **current["leaders"]} if is_same_topic else current["leaders"]
            noted_lineages[topic] = {**current, "id": current["id"] or former["id"], "leaders": leaders}
            if topic in cut:
                noted_lineages[topic]["cut"] = cut[topic]
        return {topic: lineage for topic, lineage in noted_lineages.items() if lineage["id"] or lineage["leaders"]}

    def _changed_topics(self, former_lineages: Lineages, current_lineages: Lineages) -> set[str]:
        """Return the topics whose lineage changed; as a rule these were compared already."""
        if self._compared[0] is not former_lineages or self._compared[1] is not current_lineages:
            changed = {topic for topic, lineage in current_lineages.items() if lineage != former_lineages.get(topic)}
            self._compared = former_lineages, current_lineages, changed
        return self._compared[2]


def _advice(plan: QueryPlan, topic: str) -> str:
    """Return what to do when events were lost before they were read. Rows that a state keeps belong to the positions
    that it has read up to, so these can't be moved.
    """
    settings = plan.connectors.get(topic)
    if settings is not None and settings.state == "rows":
        return f"{begin_anew(settings.query_group)}; then re-snapshot the table"
    return "reset the connector's offsets over REST, and re-snapshot the table"


def _leaders_of(lineage: Mapping[str, Any], ends: Mapping[str, int], offsets: Mapping[str, int]) -> dict[str, int]:
    """Return the leader epochs of the partitions in which `offsets` are not after the lineage's `ends`."""
    return {p: epoch for p, epoch in lineage["leaders"].items() if offsets.get(p, 0) <= ends.get(p, 0)}


def _find_loss(
    plan: QueryPlan,
    planner: Planner,
    topic: str,
    offsets: dict[str, int],
    former_ends: Mapping[str, int],
    former_lineages: Lineages,
    current_lineages: Lineages,
) -> dict[str, int]:
    """Return the partitions of a topic that lost records, each with the offset where it goes on. Raises HelenusError if
    the loss must stop the topic's connector.

    Of a partition that another worker has read further since the last batch here, the former leader epoch says nothing:
    that its records end before the position is no loss.
    """
    former, current = former_lineages.get(topic), current_lineages.get(topic)
    if former is None or current is None or former["epoch"] != current["epoch"]:
        return {}  # it joins, or an operator moved it to where it is now
    if former["id"] and current["id"] and former["id"] != current["id"]:
        problem, loss_offsets = f"{topic} was deleted and recreated", planner.earliest({topic: len(offsets)})[topic]
    elif loss_offsets := planner.cut(topic, _leaders_of(former, former_ends, offsets), offsets):
        where = ", ".join(f"partition {partition} from offset {first}" for partition, first in loss_offsets.items())
        problem = f"{topic} has lost events, as by an unclean leader election, or as it was recreated: {where}"
    if not loss_offsets:
        return {}
    if plan.connectors[topic].data_loss == "fail":
        raise HelenusError(Kind.OFFSETS_LOST, problem, f"topic {topic}", _advice(plan, topic))
    _log.warning("source.lost", topic=topic, reason=problem, goes_on=loss_offsets)
    return loss_offsets
