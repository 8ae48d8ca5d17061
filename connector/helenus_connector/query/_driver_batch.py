"""The driver's side of a batch: run the stage; keep positions, unconfirmed keys and errors by table; count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import structlog

from helenus_connector import metrics
from helenus_connector.config.run_directory import replace
from helenus_connector.control.checkpoint import committed, latest, planned
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import HeldPositions, overlaid
from helenus_connector.control.status import Task
from helenus_connector.gate.waiting import NOTHING, WaitingChanges, WaitingLimits
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.query import _spark_job as job
from helenus_connector.query._batch_limits import TaskRanges
from helenus_connector.query._spark_job import SparkJobs
from helenus_connector.query._worker_task import TopicResult, topic_task
from helenus_connector.query.batch_metrics import ADVICE, count, failed_once
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import MOST_WAITING, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
_WAITING = (
    *(metrics.KEYS_UNCONFIRMED, metrics.EVENTS_UNCONFIRMED, metrics.KEYS_UNREAD, metrics.GATE_WAITING),
    *(metrics.GATE_WAITING_EVENTS, metrics.GATE_WAITING_BYTES, metrics.GATE_OLDEST_SECONDS),
)


class DriverBatches:
    """Processes the micro-batches of one streaming query, from one of its starts to its end.

    `planned` gives the plan as it is now and the tasks by events topic, and so does `begun`, which is called when a
    batch begins. They are called before and after each batch, so that the planner never goes by a plan from before a
    batch's outcome. `unconfirmed` and what is `waiting` at the gates outlive the query. `lost` is called with a task
    and why changes of its table are missing, before the batch ends. `failure` holds the error that ended the query.
    """

    def __init__(
        self,
        planned: Callable[[], tuple[QueryPlan, Mapping[str, Task]]],
        begun: Callable[[], tuple[QueryPlan, Mapping[str, Task]]],
        held: HeldPositions,
        unconfirmed: UnconfirmedKeys,
        waiting: WaitingChanges,
        lost: Callable[[Task, str], None],
    ) -> None:
        self._planned = planned
        self._begun = begun
        self._held = held
        self.unconfirmed = unconfirmed
        self.waiting = waiting
        self._lost = lost
        self._used: QueryPlan | None = None
        self._due: tuple[float | None, Path | None] = None, None
        unconfirmed.forget_images()  # what a failed batch published is not known
        plan, _ = planned()
        self._before = latest(plan.checkpoint)
        # Gaps before that were counted by an earlier run.
        self._stood = overlaid(committed(plan.checkpoint), held.offsets())
        self._gaps: set[tuple[str, str | None, int | None]] = set()
        self._shown: dict[str, tuple[float, ...]] = {}
        self.failure: BaseException | None = None
        self.has_begun = False
        self.done = 0

    def process(self, jobs: SparkJobs, batch_id: int) -> None:
        """The function for `foreachBatch`. An error of a table concerns that table alone: its part of the batch is held
        and done again, or its task fails; the others go on. Raises when Spark could not run the batch at all.
        """
        start = time.monotonic()
        self.has_begun = True
        try:
            plan, tasks = self._begun()
            self._use(plan)
            self._held.begin()
            all_done = self._run(jobs, plan)
            if not self.done:
                self._keep_absent(plan, batch_id, {done.topic for done in all_done})
            # A repeated batch of an earlier run did not step back to what that run left unconfirmed.
            self._apply(tasks, all_done, stepped_back=batch_id > self._before)
            plan, _ = self._planned()
            self._wake(plan)
        except BaseException as error:
            self.failure = error
            raise
        self.done += 1
        reach("connector.before-commit")
        seconds = time.monotonic() - start
        metrics.BATCH_SECONDS.observe(seconds)
        _log.debug("batch.done", group=plan.group, batch=batch_id, seconds=round(seconds, 3))

    def _use(self, plan: QueryPlan) -> None:
        if plan is self._used:
            return
        self.unconfirmed.use(
            {t: c.settle_timeout_ms / 1000 for t, c in plan.connectors.items()},
            {t: c.settle_replay_ms / 1000 for t, c in plan.connectors.items()},
        )
        self.waiting.use({t: WaitingLimits.from_settings(c) for t, c in plan.connectors.items()})
        self._used = plan

    def _run(self, jobs: SparkJobs, plan: QueryPlan) -> list[TopicResult]:
        due: dict[str, list[UnconfirmedKey]] = {}
        for unconfirmed in self.unconfirmed.due(time.time(), plan.max_batch_size):
            due.setdefault(unconfirmed.topic, []).append(unconfirmed)
        may_wait = max(0, MOST_WAITING - len(self.unconfirmed))
        waits = self.waiting.hand_out(plan.max_batch_size)

        def of(topics: set[str]) -> Callable[[Iterator[TaskRanges]], Iterator[TopicResult]]:
            return topic_task(plan.only(topics), due, may_wait, waits)

        return job.run(jobs, plan.parts_file, of)

    def _keep_absent(self, plan: QueryPlan, batch: int, present: set[str]) -> None:
        """The first batch may have been planned by a run that died. Topics that are not in the plan now are not
        processed by it.
        """
        before = committed(plan.checkpoint)
        for topic, ends in planned(plan.checkpoint, batch).items():
            if topic not in present and ends != before.get(topic):
                # The earlier run may have done it from a held position, which may lie before where Spark has it. In a
                # topic that joins with the batch, this was to read nothing.
                self._held.keep(topic, {p: min(before.get(topic, {}).get(p, end), end) for p, end in ends.items()})

    def _apply(self, tasks: Mapping[str, Task], all_done: list[TopicResult], stepped_back: bool) -> None:
        now = time.time()
        self._tick(tasks, all_done, now)
        # An operator may move a topic at any time: then a batch's positions of it no longer count.
        current: list[TopicResult] = []
        for done in all_done:
            if done.epoch == self._held.epoch(done.topic):
                current.append(done)
            else:
                self.unconfirmed.forget_images(done.topic)
        failed = {done.topic: done.error for done in current if done.error is not None}
        for done in current:
            of_topic = tasks.get(done.topic)
            if done.outcome is None or of_topic is None:
                self._held.hold(done.topic, done.starts, done.epoch)
                self.unconfirmed.forget_images(done.topic)
                continue
            self.unconfirmed.apply(done.outcome.done, done.outcome.waiting, now, done.outcome.places)
            self.waiting.apply(done.topic, done.outcome.at_gate, done.outcome.read_from, now)
            count(of_topic, done.outcome, now)
            if done.outcome.lost:
                self._lost(of_topic, f"{done.outcome.lost} events expired before they were read")
            of_topic.unread = done.outcome.error or of_topic.unread
            self._count_gaps(done, done.outcome, of_topic)
            if _is_stuck(done.outcome):
                where = f"topic {done.topic}, partition {', '.join(map(str, sorted(done.outcome.at_gate.stopped)))}"
                what = "as many changes wait at the gate as gate.max.waiting.bytes allows"
                failed.setdefault(done.topic, HelenusError(Kind.GATE_FULL, what, where))
            if done.topic not in failed:
                of_topic.succeeded()
        for topic, error in failed.items():
            if topic in tasks:
                failed_once(tasks[topic], error, now)
        self.waiting.save(now)
        self.unconfirmed.save(now, {done.topic for done in current if done.outcome is not None and stepped_back})
        for done in current:
            # Its unconfirmed keys are saved by now.
            is_done = done.outcome is not None and done.topic in tasks
            if is_done and not self._held.release(done.topic, done.starts, done.epoch, done.ends):
                self.unconfirmed.forget_images(done.topic)
        self._show(tasks)

    def _tick(self, tasks: Mapping[str, Task], all_done: list[TopicResult], now: float) -> None:
        """Move the clocks on by which changes wait at the gate: those of topics of which nothing failed."""
        by_topic: dict[str, list[BatchOutcome | None]] = {}
        for done in all_done:
            by_topic.setdefault(done.topic, []).append(done.outcome)
        for topic in self.waiting.topics & tasks.keys():
            outcomes = [one for one in by_topic.get(topic, ()) if one is not None]
            if len(outcomes) < len(by_topic.get(topic, ())):
                continue
            # One that may not be read further has its clock run: what waits must expire, for it to go on.
            read = [one.read_until for one in outcomes if one.read_until is not None and not one.at_gate.stopped]
            self.waiting.tick(topic, now, min(read, default=None))

    def _show(self, tasks: Mapping[str, Task]) -> None:
        """What waits of each table. Of most it is what it was, and to set the gauges of hundreds takes some ms."""
        waiting, before = self.unconfirmed.all_counts(), self._shown
        at_gate = {topic: self.waiting.counts(topic) for topic in self.waiting.topics}
        self._shown = {}
        for topic, events in self.waiting.take_loaded(tasks.keys()).items():
            # Read by an earlier run, of which this one says the outcome: else more would come out than was read.
            metrics.EVENTS_READ.labels(*tasks[topic].labels).inc(events)
        for topic, of_topic in tasks.items():
            keys, copies, unread = waiting.get(topic, (0, 0, 0))
            if not unread:
                of_topic.unread = None
            now = keys, copies, unread, *at_gate.get(topic, NOTHING)
            self._shown[topic] = now
            if now != before.get(topic):
                for metric, value in zip(_WAITING, now, strict=True):
                    metric.labels(*of_topic.labels).set(value)

    def _count_gaps(self, done: TopicResult, outcome: BatchOutcome, of_topic: Task) -> None:
        """Count and report each gap once: it is in every partition, and read again where a run steps back."""
        stood = self._stood.get(done.topic, {}).get("0", 0)
        if outcome.lost or done.starts.get("0", -1) >= stood:
            # From now on every event is new; so it is in a recreated topic.
            self._stood.pop(done.topic, None)
            stood = 0
        for gap in outcome.gaps:
            known = done.topic, gap.node, gap.until
            if gap.partition or gap.offset < stood or known in self._gaps:
                continue
            self._gaps.add(known)
            self._lost(of_topic, f"a gap in the commit log of node {gap.node}")
            metrics.GAPS.labels(*of_topic.labels).inc()
            where = {"connector": of_topic.connector, "topic": done.topic, "node": gap.node, "until_us": gap.until}
            _log.warning("events.gap", **where, advice=ADVICE)

    def _wake(self, plan: QueryPlan) -> None:
        now = time.time()
        found = [due for due in (self.unconfirmed.next_due(), self.waiting.next_due(now)) if due is not None]
        due = min(found, default=None)
        if (due, plan.due_file) != self._due:
            replace(plan.due_file, b"" if due is None else repr(due).encode())
            self._due = due, plan.due_file


def _is_stuck(outcome: BatchOutcome) -> bool:
    """Whether no more events may wait at the gate, and none of those that wait went on."""
    return bool(outcome.at_gate.stopped) and not outcome.at_gate.gone
