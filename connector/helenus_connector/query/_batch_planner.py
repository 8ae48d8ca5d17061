"""Plan batches, on the driver's host: what each reads of the events topics, divided among tasks.

An offset is `{"tick": n, "topics": {topic: {partition: next offset}}, "logs": text of lineages}`; `logs` is the name of
the lineages (`_topic_losses`) in the checkpoints of all versions. The tick moves when
there is work without a new event: keys are due, a topic goes on from a held position, a topic has an error, a run
begins; and once in a while on quiet topics, because Spark ends workers that idle for a minute. Of a query with state it
has `now` and `rules`, too: the batch's time, and what its operator goes by. Both stay the same when the batch is
repeated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import overlaid
from helenus_connector.log.choice import planner
from helenus_connector.log.events import OffsetRange, Offsets, Planner, pace_s
from helenus_connector.query._batch_limits import limited, shared_out
from helenus_connector.query._restart import RestartPositions
from helenus_connector.query._topic_losses import Lineages, TopicLosses, cuts_in, lineage, lineages_in, text_of
from helenus_connector.query.batch_parts import TaskRanges, TopicRanges
from helenus_schemas.errors import HelenusError, Kind

_POLL_S = 0.02
"""Between two looks at the topics while events come: an event waits for so long at most."""
_IDLE_POLLS = 50
"""A look follows after this part of the time since the last event: so an event that comes after a pause waits for 2 %
of the pause, and at most for `_LONGEST_POLL_S`, which is reached after 20 s.
"""
_LONGEST_POLL_S = 0.4
_WAIT_S = 0.8
"""How long a call of `latest_offset` waits for events. Each call goes through Spark's JVM, whose thread waits as long:
an idle query makes about one a second. Of `_MANY_TOPICS` it waits twice as long: 64 kB of JSON go along for a thousand.
"""
_MANY_TOPICS = 500
_KEEP_WARM_S = 25.0  # less than the minute after which Spark ends idle workers
_WARM_TOPICS = 50
"""About so many topics, in turns, are in a batch that is there to keep workers alone: one of a thousand topics takes
half a second of CPU.
"""
_MAX_WARM_TURNS = 12
"""Each topic is in one of so many of these batches, so within five minutes: a restart steps back from the last batch
that it was in.
"""
_COMMIT_ALL_S = 20.0
"""After which positions that did not move are committed again, too: the broker may not have taken them all. For so long
monitoring may show a lag that is none.
"""


class BatchDraft:
    """The batch from the offset `start`, planned by its methods, which are called once each, in their order here.

    `begin` is where its topics are read from, `latest` where they end, `topics` where the batch ends. `lineages` are
    those noted at `start`. `cut` are the partitions that lost events, with the offsets where they go on. `errors` are
    the errors of topics that cannot be read. `restart_offsets` are where topics begin whose first batch in this run it
    is.
    """

    def __init__(self, plan: QueryPlan, broker: Planner, start: dict[str, Any], latest: Offsets) -> None:
        self.start = start
        self.latest = latest
        self.begin = overlaid(start["topics"], plan.held)
        self.lineages = lineages_in(start)
        self.cut: Offsets = {}
        self.errors: dict[str, HelenusError] = {}
        self.restart_offsets: Offsets = {}
        self.steps_back = False
        self.topics: Offsets = {}
        self._plan = plan
        self._broker = broker

    def find_losses(self, topic_losses: TopicLosses, lineages: Lineages) -> None:
        """Find topics that lost events since `start`, given their lineages now: they go on where events are left."""
        self.cut, self.errors = topic_losses.find(
            self._plan, self._broker, self.lineages, self.start["topics"], self.begin, self.latest, lineages
        )
        self.begin.update({topic: {**self.begin[topic], **offsets} for topic, offsets in self.cut.items()})

    def add_topics(self, partitions: Mapping[str, int]) -> None:
        """Add topics that join the query, at their current start: the next batch reads them."""
        new = {t: count for t, count in partitions.items() if t in self.latest and t not in self.begin}
        if not new:
            return
        earliest = self._broker.earliest(new)
        self.begin.update(earliest)
        latest = {**self.latest, **earliest}
        # A new topic may have no first offset yet, only a last.
        self.latest = {topic: ends for topic, ends in latest.items() if topic in self.begin}

    def step_back(self, restart_positions: RestartPositions, partitions: Mapping[str, int]) -> dict[str, HelenusError]:
        """Have topics whose first batch in this run is this one read again what was unconfirmed when the last run
        ended. Returns the errors of topics of which the broker does not say where that is.
        """
        failed = restart_positions.step_back(self._plan, self._broker, self.start, self.begin, partitions)
        self.restart_offsets = restart_positions.restart_offsets(self.start)
        begin = {**self.begin, **self.restart_offsets}
        self.steps_back = begin != self.begin
        self.begin = begin
        return failed

    def limit_rows(self, limit: ReadLimit) -> None:
        """Set where the batch ends: after at most `max.batch.size` events, unless all that is there is to be read."""
        readable = {topic: ends for topic, ends in self.latest.items() if topic not in self.errors}
        if not isinstance(limit, ReadAllAvailable):
            limit = ReadMaxRows(self._plan.max_batch_size)
        self.topics = limited(self.begin, readable, limit, self._broker, self.errors)


class BatchPlanner:
    """Plans the batches of one query, and keeps the broker's client, a `Planner`, for that. After
    `prepare_available_now` it plans what is there by then, in batches of the usual size, and no more.
    """

    def __init__(self, plan_file: str) -> None:
        self.plan = QueryPlan.load(plan_file)
        self._plan_file, self._due_file = self.plan.file, self.plan.due_file  # looked at fifty times a second
        self._plan_identity: object = None
        self._client: Planner | None = None  # of the broker
        self._partitions: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._counted_at = 0.0
        self._restart_positions = RestartPositions()
        self._topic_losses = TopicLosses()
        self._errors: dict[str, HelenusError] = {}  # by topic, in the batch planned last
        self._broker_error: str | None = ""  # an earlier planner may have left its file
        self._target: Offsets | None = None
        self._last_batch = self._last_event = time.time()
        self._cached_lineages: tuple[object, Lineages] = None, {}
        self._committed: Offsets = {}
        self._all_committed_at = 0.0
        self._idle: tuple[dict[str, Any], Offsets, Lineages, QueryPlan] | None = None
        self._warm_batch: tuple[dict[str, Any], dict[str, Any]] | None = None  # the last one: where it starts and ends
        self._warm_turn = 0
        self.is_retired = False
        """Whether its run has ended. Another run has another planner, and the files are that one's."""

    def prepare_available_now(self) -> None:
        """Let the query end where its topics end now."""
        self._target = self._broker().latest(self._partition_counts())

    def latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where a batch from `start` ends. Waits a little for events, so that an idle query hardly spins."""
        deadline = time.monotonic() + _WAIT_S * (1 if len(self.plan.connectors) < _MANY_TOPICS else 2)
        while True:
            self._refresh()
            now = time.time()
            if now < self._last_batch:  # the clock was set back: what is due would wait for so long
                self._last_batch = self._last_event = now
            try:
                latest = self._latest()
                lineages = self._lineages()
                inputs = start, latest, lineages, self.plan
                # With many tables, the following steps take some ms.
                if inputs == self._idle and now < self._next_due_s() and self._target is None:
                    if time.monotonic() > deadline:
                        return start
                    self._pause(now)
                    continue
                self._idle = None
                draft = self._draft(start, latest, lineages, limit)
            except HelenusError as error:
                # A silent end would mean that all is done. And a damaged checkpoint does not pass.
                if self._target is not None or error.kind is Kind.STATE:
                    raise
                # No broker, no batch. The client is closed: it may use the leaders from before the broker's restart for
                # ever.
                self._note_broker_error(str(error))
                self.stop()
                time.sleep(1)
                return start
            self._note_broker_error(None)
            end = self._end_of(draft, lineages, now)
            if end != start:
                if self.plan.has_state:
                    end["now"], end["rules"] = max(now, start.get("now", 0.0)), self.plan.rules
                self._last_batch = now
                if end["topics"] != start["topics"]:
                    self._last_event = now
                elif end["tick"] != start["tick"] and self._keeps_workers_alone(draft, now):
                    self._warm_batch, self._warm_turn = (start, end), self._warm_turn + 1
                return end
            self._idle = None if self._topic_losses.may_recover else inputs
            if self._target is not None or isinstance(limit, ReadAllAvailable) or time.monotonic() > deadline:
                return start
            self._pause(now)

    def _latest(self) -> Offsets:
        """Return the ends of the topics, or where they ended at `prepare_available_now`."""
        latest = self._broker().latest(self._partition_counts())
        if self._target is None:
            return latest
        return {topic: self._target[topic] for topic in latest if topic in self._target}

    def _draft(self, start: dict[str, Any], latest: Offsets, lineages: Lineages, limit: ReadLimit) -> BatchDraft:
        """Plan a batch from `start`. Raises HelenusError if there is no broker, and with a target any topic's error."""
        draft = BatchDraft(self.plan, self._broker(), start, latest)
        # Topics without an end were deleted, or are not created yet.
        self._partitions = {topic: count for topic, count in self._partitions.items() if topic in latest}
        draft.find_losses(self._topic_losses, lineages)
        self._restart_positions.forget(draft.cut)
        draft.add_topics(self._partitions)
        failed = draft.step_back(self._restart_positions, self._partition_counts())
        if self._target is not None and failed:
            raise next(iter(failed.values()))
        draft.errors.update(failed)
        draft.limit_rows(limit)  # which may add errors
        self._errors = draft.errors
        if self._target is not None and self._errors:
            raise next(iter(self._errors.values()))
        return draft

    def _end_of(self, draft: BatchDraft, lineages: Lineages, now: float) -> dict[str, Any]:
        """Return the offset at which a planned batch ends: that of its start, if there is nothing to do."""
        start = draft.start
        end = {"tick": start["tick"] + self._is_wanted(draft, now), "topics": draft.topics}
        noted = self._topic_losses.noted(draft.lineages, lineages, draft.cut, draft.latest, draft.errors.keys())
        if noted:
            is_same = noted is draft.lineages and isinstance(start["logs"], str)
            end["logs"] = start["logs"] if is_same else text_of(noted)
        return end | {name: start[name] for name in ("now", "rules") if name in start}

    def _is_wanted(self, draft: BatchDraft, now: float) -> bool:
        """Return whether a batch is wanted even without a new event."""
        if self._target is None:
            wanted = bool(draft.errors or self.plan.held) or now >= self._next_due_s()
        else:
            # The part of a batch beyond a task's limit of bytes is read by the next one.
            wanted = any(
                0 <= offset < self._target.get(topic, {}).get(partition, 0)
                for topic, offsets in self.plan.held.items()
                for partition, offset in offsets.items()
            )
        if draft.topics == draft.start["topics"]:
            # What a run began with is done at once: its first batch shows what else waits. One that is to read what is
            # there, reads again only what was there when the last one ended.
            wanted |= draft.steps_back or (self._target is None and bool(draft.restart_offsets))
        # With state: so that all partitions are in a repeated batch, too.
        return wanted or (self.plan.has_state and bool(draft.restart_offsets))

    def _keeps_workers_alone(self, draft: BatchDraft, now: float) -> bool:
        """Return whether a batch without events has nothing to do. If it is repeated in another process, it has all
        topics.
        """
        has_work = draft.errors or draft.cut or draft.restart_offsets or self.plan.held or self.plan.has_state
        return not has_work and self._target is None and now < self._read_due_s()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks of the batch from `start` to `end` read."""
        begin = overlaid(start["topics"], self.plan.held)
        cut = cuts_in(end)
        begin.update({topic: {**begin.get(topic, {}), **offsets} for topic, offsets in cut.items()})
        # Events that an earlier run has read may be gone by now, and a cut is counted as a loss already.
        unchecked = self._restart_positions.reread_topics(self.plan, begin) | cut.keys()
        # A batch in which a run was killed is repeated as it is. The next one steps back to what was unconfirmed then.
        restart_offsets = self._restart_positions.restart_offsets(start)
        # Of hundreds of topics, most have nothing to be read.
        always = cut.keys() | restart_offsets.keys() | self._errors.keys()
        topics = [
            topic
            for topic in self.plan.connectors
            if (topic in always or start["tick"] != end["tick"] or end["topics"].get(topic) != begin.get(topic))
            # A repeated batch comes before the step back: it would not know copies of what is published.
            and (
                topic not in self.plan.topics_with_past
                or topic in self._errors
                or topic in cut  # it was made anew, and has no past
                or self._restart_positions.has_begun(topic)
            )
        ]
        if self._warm_batch == (start, end):
            turns = max(1, min(len(topics) // _WARM_TOPICS, _MAX_WARM_TURNS))
            topics = topics[self._warm_turn % turns :: turns]
        checked = [topic for topic in topics if topic in begin and topic in end["topics"] and topic not in unchecked]
        expired = self._expired_partitions({topic: begin[topic] for topic in checked})
        expired.update({topic: list(partitions) for topic, partitions in cut.items()})
        begin.update(restart_offsets)
        parts: list[TopicRanges] = []
        for topic in topics:
            is_complete = start["tick"] != end["tick"] or topic in restart_offsets
            starts, ends = begin.get(topic, {}), end["topics"].get(topic, {})
            parts += self._topic_parts(topic, starts, ends, expired.get(topic, []), is_complete)
        tasks = shared_out(parts, max(self.plan.tasks_max, self.plan.slots))
        most_bytes, now, rules = self.plan.max_batch_bytes, end.get("now", 0.0), end.get("rules", self.plan.rules)
        return [TaskRanges(task, most_bytes // len(tasks), now, rules) for task in tasks]

    def _topic_parts(
        self, topic: str, starts: dict[str, int], ends: dict[str, int], expired: list[str], is_complete: bool
    ) -> Iterator[TopicRanges]:
        """Divide what a batch reads of a topic among as many tasks as its connector has. A batch that `is_complete` has
        the partitions without new events too, and so has one with an error or a loss.
        """
        connector, epoch = self.plan.connectors[topic], self.plan.epochs.get(topic, 0)
        error = self._errors.get(topic)
        if expired and connector.data_loss == "fail" and error is None:
            problem = f"events were dropped before helenus-{connector.name} had read them"
            error = HelenusError(Kind.OFFSETS_LOST, problem, f"topic {topic}, partition {', '.join(expired)}")
        is_complete |= error is not None or bool(expired)
        ranges = [
            OffsetRange(topic, int(partition), starts.get(partition, end), end)
            for partition, end in sorted(ends.items(), key=lambda item: int(item[0]))
        ]
        # A range may lie before what is held, if that was moved since the batch was planned.
        ranges = [r for r in ranges if r.start < r.end or (is_complete and r.start == r.end)]
        already_read = {
            int(partition): offset
            for partition, offset in self._restart_positions.read_offsets(self.plan, topic).items()
            if starts.get(partition, offset) < offset
        }
        shares = min(connector.tasks_max, len(ranges))
        for i in range(shares):
            share = tuple(ranges[i::shares])
            events = sum(map(self._broker().size, share))
            lost = 0 if i else len(expired)  # counted once
            yield TopicRanges(share, connector.data_loss, epoch, error, events, lost, already_read)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit to the broker what is done with the batch that ended at `end`."""
        # A part of the batch may be held: that is not done. `latest_offset` alone takes the plan over: Spark commits a
        # batch before it plans the next one, whose end is written already and has the topics of the plan before.
        plan, _ = self._changed_plan() or (self.plan, None)
        offsets = overlaid(end["topics"], plan.held)
        for topic in self._restart_positions.reread_topics(self.plan, offsets) | plan.exactly_once.keys():
            offsets.pop(topic, None)  # or the tasks commit them
        if time.monotonic() - self._all_committed_at > _COMMIT_ALL_S:
            self._committed, self._all_committed_at = {}, time.monotonic()
        moved_topics = {
            topic for topic, topic_offsets in offsets.items() if topic_offsets != self._committed.get(topic)
        }
        self._committed = offsets
        for group in {f"helenus-{plan.connectors[topic].name}" for topic in moved_topics & plan.connectors.keys()}:
            group_offsets = {topic: offsets[topic] for topic in plan.groups[group] if topic in offsets}
            try:
                self._broker().commit(group, group_offsets)
            # Also errors that the clients' libraries raise for a position that no topic can have.
            except (HelenusError, ValueError, OverflowError) as error:
                structlog.get_logger(__name__).warning("source.commit_failed", group=group, error=str(error))
                for topic in plan.groups[group]:
                    self._committed.pop(topic, None)

    def stop(self) -> None:
        """Close the connections to the broker; the next call opens others."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _pause(self, now: float) -> None:
        """Wait for the next look at the topics. Where the broker does not report new events, the pauses become longer
        while none come: the first event after a while waits a little longer.
        """
        until_due_s = max(_POLL_S, self._next_due_s() - now)
        interval_s = min(max(_POLL_S, (now - self._last_event) / _IDLE_POLLS), _LONGEST_POLL_S, until_due_s)
        self._broker().wait(interval_s, min(_WAIT_S, until_due_s))

    def _refresh(self) -> None:
        """Apply the driver's changes of the plan: a topic that left may come again with other partitions."""
        if changed := self._changed_plan():
            self.plan, self._plan_identity = changed
            self._partitions = {t: n for t, n in self._partitions.items() if t in self.plan.connectors}
            if self._client is not None:
                self._client.keep(self.plan.groups)

    def _changed_plan(self) -> tuple[QueryPlan, object] | None:
        """Return the plan in its file, and the file's identity, if it changed since it was applied."""
        file_stat = self._plan_file.stat()
        identity = (file_stat.st_mtime_ns, file_stat.st_ino)
        return None if identity == self._plan_identity else (QueryPlan.load(str(self._plan_file)), identity)

    def _note_broker_error(self, error: str | None) -> None:
        """Log, once each time, that the broker is away or back, and tell the driver, which would not notice."""
        if self.is_retired:
            return
        if error is not None and not self._broker_error:
            structlog.get_logger(__name__).warning("source.broker_away", error=error)
            self.plan.away_file.write_text(error)
        elif error is None and self._broker_error is not None:
            if self._broker_error:
                structlog.get_logger(__name__).info("source.broker_back")
            self.plan.away_file.unlink(missing_ok=True)
        self._broker_error = error

    def _lineages(self) -> Lineages:
        """Return the lineages of the topics, computed again only if something in them changed."""
        inputs = self._topic_ids, self._broker().leaders(), self.plan.epochs
        if inputs != self._cached_lineages[0]:
            self._cached_lineages = inputs, lineage(*inputs)
        return self._cached_lineages[1]

    def _broker(self) -> Planner:
        if self._client is None:
            self._client = planner(self.plan.worker, watches=True)
        return self._client

    def _partition_counts(self) -> dict[str, int]:
        """Return how many partitions each existing topic has. A topic may get more: once in a while all are counted."""
        topics = [topic for topic in self.plan.connectors if not self._partitions.get(topic)]
        now = time.monotonic()
        if now - self._counted_at > pace_s(sum(self._partitions.values())):
            topics, self._counted_at = list(self.plan.connectors), now
        try:
            if topics:
                # A topic without a leader just now keeps its former count. The request for its end shows if it is gone.
                counts = self._broker().partitions(topics)
                # Before the ends: what is noted with a position is never newer than it.
                self._topic_ids = {**self._topic_ids, **self._broker().ids(topics)}
                self._partitions.update(
                    {topic: count for topic, count in counts.items() if count or topic not in self._partitions}
                )
        except HelenusError:
            if not any(self._partitions.values()):
                raise
            # The error may concern these topics alone; if the brokers are away, the next request shows it.
        return {topic: count for topic, count in self._partitions.items() if count}

    def _next_due_s(self) -> float:
        """Return when to run a batch without events, s since the epoch."""
        return min(self._last_batch + _KEEP_WARM_S, self._read_due_s())

    def _read_due_s(self) -> float:
        """Return when something is due, as the driver says, s since the epoch."""
        try:
            return float(self._due_file.read_text() or math.inf)
        except FileNotFoundError:
            return math.inf

    def _expired_partitions(self, begin: Offsets) -> dict[str, list[str]]:
        """Return by topic the partitions that no longer have all events from where they are to be read."""
        expired: dict[str, list[str]] = {}
        for topic in begin.keys() & self.plan.connectors.keys() & self._partitions.keys():
            try:
                expired_partitions = self._broker().gone(
                    f"helenus-{self.plan.connectors[topic].name}", {topic: begin[topic]}
                )
            except HelenusError as error:  # the next batch asks again
                structlog.get_logger(__name__).warning("source.not_checked", topic=topic, error=error.what)
                continue
            if expired_partitions:
                expired[topic] = [partition for _, partition in expired_partitions]
        return expired
