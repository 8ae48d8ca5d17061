"""The driver's side of a batch: run the stage; keep positions, unconfirmed keys and errors by table; count.

A `Task` here is a table of a connector, and how it fares; what Spark calls a task is in `_worker_task`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from helenus_connector import metrics
from helenus_connector.config.run_directory import replace
from helenus_connector.control.checkpoint import committed, latest, planned
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import HeldPositions, overlaid
from helenus_connector.control.status import Task
from helenus_connector.gate.waiting import NOTHING, WaitingChanges, WaitingLimits
from helenus_connector.interfaces.gate import GateWaits
from helenus_connector.journal.transaction import outcome_entry
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.batch_trace import TracedBatch
from helenus_connector.query import _spark_job as job
from helenus_connector.query._spark_job import SparkJobs
from helenus_connector.query._worker_task import TopicResult, WaitingOfTopic, topic_task
from helenus_connector.query.batch_metrics import GapLog, count_outcome, note_failed_attempt
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.batch_spans import BatchSpans
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import MOST_WAITING, TopicPartition, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import counted
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
RunSmall = Callable[[Sequence[TaskRanges], Callable[[Iterator[TaskRanges]], Iterator[TopicResult]], int], Any]
_WAITING = (
    *(metrics.KEYS_UNCONFIRMED, metrics.EVENTS_UNCONFIRMED, metrics.KEYS_UNREAD, metrics.GATE_WAITING),
    *(metrics.GATE_WAITING_EVENTS, metrics.GATE_WAITING_BYTES, metrics.GATE_OLDEST_SECONDS),
)


class DriverBatches:
    """Processes the micro-batches of one streaming query, from one of its starts to its end.

    `refresh_plan` returns the plan as it is now and the tasks by events topic, and saves the plan for the planner. So
    does `begin_batch`, with which a batch begins; `refresh_plan` follows its outcome, so that the planner never goes by
    a plan from before that. `unconfirmed` and what is `waiting` at the gates outlive the query. `lost` is called with a
    task and why changes of its table are missing, before the batch ends; `note_journal` with how many bytes a batch has
    written to the query's journal, after its outcome is applied. `spans` has traces of the batches, if they are wanted.
    `commit_outcomes` is called with a batch's number, and by topic the entries of a journal that the driver is to write
    before Spark commits the batch. `run_small` is as `SmallBatches.run`, without `is_wanted`.
    """

    def __init__(
        self,
        refresh_plan: Callable[[], tuple[QueryPlan, Mapping[str, Task]]],
        begin_batch: Callable[[], tuple[QueryPlan, Mapping[str, Task]]],
        held_positions: HeldPositions,
        unconfirmed: UnconfirmedKeys,
        waiting: WaitingChanges,
        lost: Callable[[Task, str], None],
        note_journal: Callable[[int], None] = lambda _: None,
        spans: BatchSpans | None = None,
        commit_outcomes: Callable[[int, Mapping[str, list[bytes]]], None] | None = None,
        run_small: RunSmall = lambda *_: None,
    ) -> None:
        self._refresh_plan = refresh_plan
        self._begin_batch = begin_batch
        self._held_positions = held_positions
        self.unconfirmed = unconfirmed
        self.waiting = waiting
        self._lost = lost
        self._note_journal = note_journal
        self._spans = spans
        self._commit_outcomes = commit_outcomes
        self._run_small = run_small
        self._used_plan: QueryPlan | None = None
        self._written_due: tuple[float | None, Path | None] = None, None
        plan, _ = refresh_plan()
        self._plan = plan
        # What a failed batch published is not known, unless it was a transaction.
        unconfirmed.forget_images(keeps=plan.exactly_once)
        self._last_batch_id = latest(plan.checkpoint)
        # Gaps before that were counted by an earlier run.
        self._start_offsets = overlaid(committed(plan.checkpoint), held_positions.offsets())
        self._gaps = GapLog()
        self._shown_counts: dict[str, tuple[float, ...]] = {}
        # Of due keys and overdue changes of the last batch, which it lacked:
        self._absent_partitions: set[TopicPartition] = set()
        # By topic the partitions of which events are read that an earlier run has read; none before the first batch:
        self._past_partitions: dict[str, set[str]] = {}
        self._is_first = True

    def process(self, jobs: SparkJobs, batch_id: int) -> dict[str, HelenusError]:
        """Process a batch: the function for `foreachBatch`. An error of a table concerns that table alone: its part of
        the batch is held and repeated, or its task fails; the others go on. Returns the errors by topic. Raises when
        Spark could not run the batch at all.
        """
        if self._spans is None:
            return self._process(jobs, batch_id, None)
        return self._spans.run(self._plan.group, batch_id, lambda traced: self._process(jobs, batch_id, traced))

    def _process(self, jobs: SparkJobs, batch_id: int, traced_batch: TracedBatch | None) -> dict[str, HelenusError]:
        start = time.monotonic()
        plan, tasks = self._begin_batch()
        self._use(plan)
        self._held_positions.begin_batch()
        results = self._run(jobs, plan, traced_batch)
        for result in results:
            if result.is_uncertain and result.error is not None:
                raise result.error  # the next run learns from the broker what was committed
        if self._is_first:
            self._keep_absent(plan, batch_id, {result.topic for result in results})
        # A repeated batch of an earlier run did not step back to what that run left unconfirmed.
        entries = self._entries(tasks, results) if self._commit_outcomes is not None else {}
        self._apply(tasks, results, stepped_back=batch_id > self._last_batch_id)
        if self._commit_outcomes is not None and entries:
            reach("connector.before-journal")
            self._commit_outcomes(batch_id, entries)
        plan, _ = self._refresh_plan()
        self._note_journal(sum(result.journal_bytes for result in results))
        self._wake(plan)
        self._is_first = False
        reach("connector.before-commit")
        seconds = time.monotonic() - start
        metrics.BATCH_SECONDS.observe(seconds)
        _log.debug("batch.done", group=plan.group, batch=batch_id, seconds=round(seconds, 3))
        return {result.topic: result.error for result in results if result.error is not None}

    def _use(self, plan: QueryPlan) -> None:
        self._plan = plan
        if plan is self._used_plan:
            return
        self.unconfirmed.use(
            {t: c.settle_timeout_ms / 1000 for t, c in plan.connectors.items()},
            {t: c.settle_replay_ms / 1000 for t, c in plan.connectors.items()},
        )
        self.waiting.use({t: WaitingLimits.from_settings(c) for t, c in plan.connectors.items()})
        self._used_plan = plan

    def _run(self, jobs: SparkJobs, plan: QueryPlan, traced_batch: TracedBatch | None) -> list[TopicResult]:
        now = time.time()
        due_keys: dict[str, list[UnconfirmedKey]] = {}
        due_keys_now = self.unconfirmed.select_due(now, plan.max_batch_size)
        for unconfirmed in due_keys_now:
            due_keys.setdefault(unconfirmed.topic, []).append(unconfirmed)
        may_wait = max(0, MOST_WAITING - len(self.unconfirmed))
        gate_waits = self.waiting.hand_out(plan.max_batch_size)

        def task_for(topics: set[str]) -> Callable[[Iterator[TaskRanges]], Iterator[TopicResult]]:
            once = topics & plan.exactly_once.keys()
            with_keys = self.unconfirmed.waiting_topics() if once else set()
            waiting = {topic: self._waiting_of(topic, topic in with_keys) for topic in once}
            return topic_task(plan.for_topics(topics), due_keys, may_wait, gate_waits, waiting, traced_batch)

        waits = len(due_keys_now) + sum(len(topic_waits.overdue) for topic_waits in gate_waits.values())
        results = job.run(
            jobs, plan.parts_file, task_for, lambda parts, function: self._run_small(parts, function, waits)
        )
        if self._spans is not None:
            self._spans.add_results(results)
        for result in results:
            past = self._past_partitions.setdefault(result.topic, set())
            past -= result.starts.keys()
            past |= {str(partition) for partition in result.read}
        self._hand_back(due_keys, gate_waits, results, now)
        return results

    def _waiting_of(self, topic: str, has_keys: bool) -> WaitingOfTopic:
        """Return what waits of a topic that is published exactly once: the changes, while events are read that an
        earlier run has read.
        """
        if self._past_partitions.get(topic) == set():
            return WaitingOfTopic(has_keys=has_keys)
        published, at_gate = self.unconfirmed.awaited_changes(topic), self.waiting.awaited_changes(topic)
        return WaitingOfTopic(frozenset(published), frozenset(at_gate), has_keys)

    def _forget_images(self, topic: str) -> None:
        """Forget what was published of a topic of which a batch failed: some of it may be durable, unless it was a
        transaction.
        """
        if topic not in self._plan.exactly_once:
            self.unconfirmed.forget_images(topic)

    def _hand_back(
        self,
        due_keys: Mapping[str, list[UnconfirmedKey]],
        gate_waits: Mapping[str, GateWaits],
        results: list[TopicResult],
        selected_at: float,
    ) -> None:
        """Have keys, and changes at the gate, that no task took be due still: they fell due when the batch was planned
        already, without their partitions. The next batch has all partitions, since something is due. Where it has not,
        as of a topic that is gone, they wait as after any read: or batches would follow each other at once.
        """
        read_partitions = {(result.topic, int(partition)) for result in results for partition in result.starts}
        keys = [(key.topic_partition, key) for topic_keys in due_keys.values() for key in topic_keys]
        changes = [((w.event.topic, w.event.partition), w) for waits in gate_waits.values() for w in waits.overdue]
        formerly_absent = self._absent_partitions
        self._absent_partitions = {topic_partition for topic_partition, _ in [*keys, *changes]} - read_partitions
        first_absent = self._absent_partitions - formerly_absent
        if first_absent:
            self.unconfirmed.hand_back(
                [u for topic_partition, u in keys if topic_partition in first_absent], selected_at
            )
            self.waiting.hand_back(w for topic_partition, w in changes if topic_partition in first_absent)

    def _keep_absent(self, plan: QueryPlan, batch: int, present: set[str]) -> None:
        """Keep the positions of topics that are in the first batch and not in the plan: a run that died may have
        planned it.
        """
        committed_offsets = committed(plan.checkpoint)
        for topic, ends in planned(plan.checkpoint, batch).items():
            if topic not in present and ends != committed_offsets.get(topic):
                # The earlier run may have done it from a held position, which may lie before where Spark has it. In a
                # topic that joins with the batch, this was to read nothing.
                former = committed_offsets.get(topic, {})
                self._held_positions.hold_unless_held(
                    topic, {p: min(former.get(p, end), end) for p, end in ends.items()}
                )

    def _entries(self, tasks: Mapping[str, Task], results: list[TopicResult]) -> dict[str, list[bytes]]:
        """Return the entries of a journal that the results are, by topic, before they are applied, which changes
        them.
        """
        with_keys = self.unconfirmed.waiting_topics()
        entries: dict[str, list[bytes]] = {}
        for result in results:
            topic, task = result.topic, tasks.get(result.topic)
            if result.outcome is None or task is None or result.epoch != self._held_positions.epoch(topic):
                continue
            entry = outcome_entry(task.connector, topic, result.outcome, topic in with_keys)
            entries.setdefault(topic, []).extend(() if entry.is_empty else entry.to_records())
        return entries

    def _apply(self, tasks: Mapping[str, Task], results: list[TopicResult], stepped_back: bool) -> None:
        """Apply the results to positions, unconfirmed keys, waiting changes and tasks, and save them."""
        now = time.time()
        self._tick(tasks, results, now)
        # An operator may move a topic at any time: then a batch's positions of it no longer count.
        current: list[TopicResult] = []
        for result in results:
            if result.epoch == self._held_positions.epoch(result.topic):
                current.append(result)
            else:
                self.unconfirmed.forget_images(result.topic)  # what it published is not applied
        errors = {result.topic: result.error for result in current if result.error is not None}
        for result in current:
            task = tasks.get(result.topic)
            if result.outcome is None or task is None:
                self._held_positions.hold(result.topic, result.starts, result.epoch)
                self._forget_images(result.topic)
                continue
            self._apply_outcome(result, result.outcome, task, now)
            if _is_stuck(result.outcome):
                where = f"topic {result.topic}, partition {', '.join(map(str, sorted(result.outcome.at_gate.stopped)))}"
                problem = "as many changes wait at the gate as gate.max.waiting.bytes allows"
                errors.setdefault(result.topic, HelenusError(Kind.GATE_FULL, problem, where))
        # After all results: of a topic in several shares, any may have an error.
        for topic in {result.topic for result in current if result.outcome is not None} - errors.keys():
            if topic in tasks:
                tasks[topic].note_success()
        for topic, error in errors.items():
            if topic in tasks:
                note_failed_attempt(tasks[topic], error)
        self.waiting.save(now)
        self.unconfirmed.save(now, {result.topic for result in current if result.outcome is not None and stepped_back})
        for result in current:
            # Its unconfirmed keys are saved by now.
            is_done = result.outcome is not None and result.topic in tasks
            if is_done and not self._held_positions.release(result.topic, result.starts, result.epoch, result.ends):
                self._forget_images(result.topic)
        self._show(tasks)

    def _apply_outcome(self, result: TopicResult, outcome: BatchOutcome, task: Task, now: float) -> None:
        """Take over the keys and changes that wait now, count the outcome, and report losses."""
        self.unconfirmed.apply(outcome.done, outcome.waiting, now, outcome.places)
        self.waiting.apply(result.topic, outcome.at_gate, outcome.read_from, now)
        count_outcome(task, outcome, now)
        if outcome.lost:
            self._lost(task, f"{counted(outcome.lost, 'event')} expired before being read")
        task.unread = outcome.error or task.unread
        self._count_gaps(result, outcome, task)

    def _tick(self, tasks: Mapping[str, Task], results: list[TopicResult], now: float) -> None:
        """Move the clocks on by which changes wait at the gate: those of topics of which nothing failed."""
        by_topic: dict[str, list[BatchOutcome | None]] = {}
        for result in results:
            by_topic.setdefault(result.topic, []).append(result.outcome)
        for topic in self.waiting.topics & tasks.keys():
            outcomes = [outcome for outcome in by_topic.get(topic, ()) if outcome is not None]
            if len(outcomes) < len(by_topic.get(topic, ())):
                continue
            # One that may not be read further has its clock run: what waits must expire, for it to go on.
            read_until = [
                outcome.read_until
                for outcome in outcomes
                if outcome.read_until is not None and not outcome.at_gate.stopped
            ]
            self.waiting.tick(topic, now, min(read_until, default=None))

    def _show(self, tasks: Mapping[str, Task]) -> None:
        """Set the gauges of what waits, where it changed: to set them for hundreds of tables takes some ms."""
        unconfirmed_counts, former_counts = self.unconfirmed.all_counts(), self._shown_counts
        at_gate = {topic: self.waiting.counts(topic) for topic in self.waiting.topics}
        self._shown_counts = {}
        for topic, events in self.waiting.take_loaded(tasks.keys()).items():
            # Read by an earlier run, of which this one says the outcome: else more would come out than was read.
            metrics.EVENTS_READ.labels(*tasks[topic].labels).inc(events)
        for topic, task in tasks.items():
            keys, copies, unread = unconfirmed_counts.get(topic, (0, 0, 0))
            if not unread:
                task.unread = None
            counts = keys, copies, unread, *at_gate.get(topic, NOTHING)
            self._shown_counts[topic] = counts
            if counts != former_counts.get(topic):
                for metric, value in zip(_WAITING, counts, strict=True):
                    metric.labels(*task.labels).set(value)

    def _count_gaps(self, result: TopicResult, outcome: BatchOutcome, task: Task) -> None:
        """Count and report the gaps that no earlier run has counted."""
        start_offset = self._start_offsets.get(result.topic, {}).get("0", 0)
        if outcome.lost or result.starts.get("0", -1) >= start_offset:
            # From now on every event is new; so it is in a recreated topic.
            self._start_offsets.pop(result.topic, None)
            start_offset = 0
        for node in self._gaps.note(task, outcome.gaps, start_offset):
            self._lost(task, f"a gap in the commit log of node {node}")

    def _wake(self, plan: QueryPlan) -> None:
        now = time.time()
        due_times = [
            next_due for next_due in (self.unconfirmed.next_due(), self.waiting.next_due(now)) if next_due is not None
        ]
        next_due = min(due_times, default=None)
        if (next_due, plan.due_file) != self._written_due:
            replace(plan.due_file, b"" if next_due is None else repr(next_due).encode())
            self._written_due = next_due, plan.due_file


def _is_stuck(outcome: BatchOutcome) -> bool:
    """Return whether no more events may wait at the gate, and none of the waiting ones went on."""
    return bool(outcome.at_gate.stopped) and not outcome.at_gate.gone
