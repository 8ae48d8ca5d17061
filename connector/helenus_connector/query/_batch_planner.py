"""Plans batches, in a process of the driver's host: what of the events topics each reads, shared out among tasks.

An offset is `{"tick": n, "topics": {topic: {partition: next offset}}, "logs": text of lineages}`. The tick moves when
there is work without a new event: keys are due, a topic goes on from a held position, a topic has an error, a run
begins; and once in a while on quiet topics, because Spark ends workers that idle for a minute. Of a query with state it
has `now`, too: the batch's time, which stays the same when the batch is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import structlog
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import overlaid
from helenus_connector.log.choice import planner
from helenus_connector.log.events import OffsetRange, Offsets, Planner, pace_s
from helenus_connector.query._batch_limits import TaskRanges, TopicRanges, limited, shared_out
from helenus_connector.query._restart import RestartPositions
from helenus_connector.query._topic_losses import Lineages, TopicLosses, cuts_in, lineage, lineages_in, text_of
from helenus_schemas.errors import HelenusError, Kind

_POLL_S = 0.02
_LONGEST_POLL_S = 0.4
_WAIT_S = 0.8
_KEEP_WARM_S = 25.0
_COMMIT_ALL_S = 20.0


class BatchPlanner:
    """The batches of one query. With `prepare_available_now` it plans what is there by then, in batches of the usual
    size, and no more.
    """

    def __init__(self, plan_file: str) -> None:
        self.plan = QueryPlan.load(plan_file)
        self._plan_file, self._due_file = self.plan.file, self.plan.due_file  # looked at fifty times a second
        self._seen: object = None
        self._planner: Planner | None = None
        self._partitions: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._counted = 0.0
        self._resume = RestartPositions()
        self._losses = TopicLosses()
        self._wrong: dict[str, HelenusError] = {}
        self._away: str | None = ""  # an earlier planner may have left its file
        self._target: Offsets | None = None
        self._last_batch = self._last_event = time.time()
        self._known_by: tuple[object, Lineages] = None, {}
        self._done: Offsets = {}
        self._all_done_at = 0.0
        self._idle: tuple[dict[str, Any], Offsets, Lineages, QueryPlan] | None = None

    def prepare_available_now(self) -> None:
        self._target = self._broker().latest(self._known())

    def latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """What a batch from `start` may read. Waits a little for events, so that an idle query hardly spins."""
        until = time.monotonic() + _WAIT_S
        while True:
            self._refresh()
            now = time.time()
            try:
                latest = self._broker().latest(self._known())
                if self._target is not None:
                    latest = {t: self._target[t] for t in latest if t in self._target}
                lineages = self._lineages()
                seen = start, latest, lineages, self.plan
                # With many tables, the rest takes some ms.
                if seen == self._idle and now < self._due() and self._target is None:
                    if time.monotonic() > until:
                        return start
                    self._pause(now)
                    continue
                self._idle = None
                begin = overlaid(start["topics"], self.plan.held)
                # Deleted, or not made yet.
                self._partitions = {topic: n for topic, n in self._partitions.items() if topic in latest}
                before = lineages_in(start)
                cut, self._wrong = self._losses.find(self.plan, self._broker(), before, begin, latest, lineages)
                begin.update({topic: {**begin[topic], **lost} for topic, lost in cut.items()})
                self._resume.forget(cut)
                # A topic that joins is added at its current start, and read by the next batch.
                if new := {t: n for t, n in self._partitions.items() if t in latest and t not in begin}:
                    first = self._broker().earliest(new)
                    begin.update(first)
                    latest.update(first)
                    # A new topic may have no first offset yet, only a last.
                    latest = {t: ends for t, ends in latest.items() if t in begin}
                failed = self._resume.step_back(self.plan, self._broker(), start, begin, self._known())
                if self._target is not None and failed:
                    raise next(iter(failed.values()))
                self._wrong.update(failed)
                fresh = self._resume.fresh(start)
                stood, begin = begin, {**begin, **fresh}
                readable = {t: ends for t, ends in latest.items() if t not in self._wrong}
                if not isinstance(limit, ReadAllAvailable):
                    limit = ReadMaxRows(self.plan.max_batch_size)
                topics = limited(begin, readable, limit, self._broker(), self._wrong)
                if self._target is not None and self._wrong:
                    raise next(iter(self._wrong.values()))
            except HelenusError as error:
                # A silent end would mean that all is done. And a damaged checkpoint does not pass.
                if self._target is not None or error.kind is Kind.STATE:
                    raise
                # No broker, no batch. The client is closed: it may use the leaders from before the broker's restart for
                # ever.
                self._broker_is(str(error))
                self.stop()
                time.sleep(1)
                return start
            self._broker_is(None)
            wake = self._target is None and (bool(self._wrong or self.plan.held) or now >= self._due())
            if self._target is not None:
                # The part of a batch beyond a task's limit of bytes is read by the next one.
                held = self.plan.held.items()
                wake |= any(0 <= at < self._target.get(t, {}).get(p, 0) for t, ats in held for p, at in ats.items())
            if topics == start["topics"]:
                # What a run began with is done at once: its first batch shows what else waits. One that is to read
                # what is there, reads again only what was there when the last one ended.
                wake |= begin != stood or (self._target is None and bool(fresh))
            wake |= self.plan.has_state and bool(fresh)  # so that all partitions are in a repeated batch, too
            end = {"tick": start["tick"] + wake, "topics": topics}
            known = self._losses.noted(before, lineages, cut, latest, self._wrong.keys())
            if known:
                is_same = known is before and isinstance(start["logs"], str)
                end["logs"] = start["logs"] if is_same else text_of(known)
            if "now" in start:
                end["now"] = start["now"]
            if end != start:
                if self.plan.has_state:
                    end["now"] = max(now, start.get("now", 0.0))
                self._last_batch = now
                if end["topics"] != start["topics"]:
                    self._last_event = now
                return end
            self._idle = None if self._losses.may_recover else seen
            if self._target is not None or isinstance(limit, ReadAllAvailable) or time.monotonic() > until:
                return start
            self._pause(now)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = overlaid(start["topics"], self.plan.held)
        cut = cuts_in(end)
        begin.update({topic: {**begin.get(topic, {}), **lost} for topic, lost in cut.items()})
        again = self._resume.again(self.plan, begin) | cut.keys()
        # A batch in which a run was killed is repeated as it is. The next one steps back to what was unconfirmed then.
        fresh = self._resume.fresh(start)
        # Of hundreds of topics, most have nothing to be read.
        anyhow = cut.keys() | fresh.keys() | self._wrong.keys()
        topics = [
            topic
            for topic in self.plan.connectors
            if topic in anyhow or start["tick"] != end["tick"] or end["topics"].get(topic) != begin.get(topic)
        ]
        asked = [topic for topic in topics if topic in begin and topic in end["topics"] and topic not in again]
        gone = self._gone({topic: begin[topic] for topic in asked})
        gone.update({topic: list(partitions) for topic, partitions in cut.items()})
        begin.update(fresh)
        parts: list[TopicRanges] = []
        for topic in topics:
            connector, ends, starts = self.plan.connectors[topic], end["topics"].get(topic, {}), begin.get(topic, {})
            loss, epoch = connector.data_loss, self.plan.epochs.get(topic, 0)
            error, lost = self._wrong.get(topic), gone.get(topic, [])
            if lost and loss == "fail" and error is None:
                what = f"events were dropped before helenus-{connector.name} had read them"
                error = HelenusError(Kind.OFFSETS_LOST, what, f"topic {topic}, partition {', '.join(lost)}")
            everything = start["tick"] != end["tick"] or topic in fresh or error is not None or bool(lost)
            ranges = [
                OffsetRange(topic, int(p), starts.get(p, last), last)
                for p, last in sorted(ends.items(), key=lambda item: int(item[0]))
            ]
            # A range may lie before what is held, if that was moved since the batch was planned.
            ranges = [r for r in ranges if r.start < r.end or (everything and r.start == r.end)]
            read = {int(p): at for p, at in self._resume.read(self.plan, topic).items() if starts.get(p, at) < at}
            shares = min(connector.tasks_max, len(ranges))
            for i in range(shares):
                share = tuple(ranges[i::shares])
                events = sum(map(self._broker().size, share))
                parts.append(TopicRanges(share, loss, epoch, error, events, 0 if i else len(lost), read))
        tasks = shared_out(parts, max(self.plan.tasks_max, self.plan.slots))
        return [TaskRanges(task, self.plan.max_batch_bytes // len(tasks), end.get("now", 0.0)) for task in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        # A part of the batch may be held: that is not done. `latest_offset` alone takes the plan over: Spark commits a
        # batch before it plans the next one, whose end is written already and has the topics of the plan before.
        plan, _ = self._changed() or (self.plan, None)
        done = overlaid(end["topics"], plan.held)
        for topic in self._resume.again(self.plan, done):
            del done[topic]
        if time.monotonic() - self._all_done_at > _COMMIT_ALL_S:  # the broker may not have taken them all
            self._done, self._all_done_at = {}, time.monotonic()
        moved, self._done = {topic for topic, at in done.items() if at != self._done.get(topic)}, done
        for group in {f"helenus-{plan.connectors[topic].name}" for topic in moved & plan.connectors.keys()}:
            offsets = {topic: done[topic] for topic in plan.groups[group] if topic in done}
            try:
                self._broker().commit(group, offsets)
            # Also errors that the clients' libraries raise for a position that no topic can have.
            except (HelenusError, ValueError, OverflowError) as error:
                structlog.get_logger(__name__).warning("source.commit_failed", group=group, error=str(error))
                for topic in plan.groups[group]:
                    self._done.pop(topic, None)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _pause(self, now: float) -> None:
        """The longer nothing comes, the less often it is asked, where the broker does not say when it comes: the first
        event of a while waits a little longer.
        """
        due = max(_POLL_S, self._due() - now)
        pace = min(max(_POLL_S, (now - self._last_event) / 50), _LONGEST_POLL_S, due)
        self._broker().wait(pace, min(_WAIT_S, due))

    def _refresh(self) -> None:
        """Apply the driver's changes of the plan: a topic that left may come again with other partitions."""
        if changed := self._changed():
            self.plan, self._seen = changed
            self._partitions = {t: n for t, n in self._partitions.items() if t in self.plan.connectors}
            if self._planner is not None:
                self._planner.keep(self.plan.groups)

    def _changed(self) -> tuple[QueryPlan, object] | None:
        """The plan in its file, and its identity, if it changed since it was applied."""
        stat = self._plan_file.stat()
        seen = (stat.st_mtime_ns, stat.st_ino)
        return None if seen == self._seen else (QueryPlan.load(str(self._plan_file)), seen)

    def _broker_is(self, away: str | None) -> None:
        """Log, once each time, that the broker is away or back; the driver too, which would not notice."""
        if away is not None and not self._away:
            structlog.get_logger(__name__).warning("source.broker_away", error=away)
            self.plan.away_file.write_text(away)
        elif away is None and self._away is not None:
            if self._away:
                structlog.get_logger(__name__).info("source.broker_back")
            self.plan.away_file.unlink(missing_ok=True)
        self._away = away

    def _lineages(self) -> Lineages:
        """`lineage`, which is made anew only if something of it changed."""
        of = self._ids, self._broker().leaders(), self.plan.epochs
        if of != self._known_by[0]:
            self._known_by = of, lineage(*of)
        return self._known_by[1]

    def _broker(self) -> Planner:
        if self._planner is None:
            self._planner = planner(self.plan.worker, watches=True)
        return self._planner

    def _known(self) -> dict[str, int]:
        """How many partitions each existing topic has. A topic may get more: once in a while all are counted."""
        asked = [t for t in self.plan.connectors if not self._partitions.get(t)]
        now = time.monotonic()
        if now - self._counted > pace_s(sum(self._partitions.values())):
            asked, self._counted = list(self.plan.connectors), now
        try:
            if asked:
                # A topic without a leader just now keeps its former count. The request for its end shows if it is gone.
                found = self._broker().partitions(asked)
                # Before the ends: what is noted with a position is never newer than it.
                self._ids = {**self._ids, **self._broker().ids(asked)}
                self._partitions.update({t: n for t, n in found.items() if n or t not in self._partitions})
        except HelenusError:
            if not any(self._partitions.values()):
                raise
            # The error may concern these topics alone; if the brokers are away, the next request shows it.
        return {t: n for t, n in self._partitions.items() if n}

    def _due(self) -> float:
        """When to make a batch without events, s since the epoch."""
        warm = self._last_batch + _KEEP_WARM_S
        try:
            return min(warm, float(self._due_file.read_text() or warm))
        except FileNotFoundError:
            return warm

    def _gone(self, begin: Offsets) -> dict[str, list[str]]:
        """By topic the partitions that no longer have all events from where they are to be read."""
        found: dict[str, list[str]] = {}
        for topic in begin.keys() & self.plan.connectors.keys() & self._partitions.keys():
            try:
                gone = self._broker().gone(f"helenus-{self.plan.connectors[topic].name}", {topic: begin[topic]})
            except HelenusError as error:  # the next batch asks again
                structlog.get_logger(__name__).warning("source.not_checked", topic=topic, error=error.what)
                continue
            if gone:
                found[topic] = [partition for _, partition in gone]
        return found
