"""A task of a batch: it reads its events, hands them to each table's `Stage` and yields the outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark import TaskContext

from helenus_connector.cassandra_rows.table_definition import request_version
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import use
from helenus_connector.control.fences import enter
from helenus_connector.control.plan import QueryPlan
from helenus_connector.gate.cache import prune
from helenus_connector.gate.event_content import is_repeated
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import NOTHING_WAITS, GateWaits
from helenus_connector.log.choice import data_log
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.stage import Stage
from helenus_connector.query import cassandra_sessions
from helenus_connector.query._batch_limits import TaskRanges
from helenus_connector.query._task_reader import read_parts
from helenus_connector.query.cassandra_sessions import end_with_parent
from helenus_connector.query.garbage import freeze
from helenus_connector.shape.encoding.registry import registry_memory
from helenus_connector.unconfirmed.unconfirmed_key import MOST_WAITING, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind, reason
from helenus_schemas.service import logs
from helenus_sinks.log import Log


@dataclass(slots=True)
class TopicResult:
    """The result for some partitions of one topic: either its `outcome` or the `error` that stopped it.

    `starts` is where they were read from, by partition as text, as planned in `epoch`. `ends` are the last positions of
    those that were not read to the end of the batch. Without outcome and error the topic had left the plan, and nothing
    was done. Up to the offsets in `read` an earlier run has read them.
    """

    topic: str
    epoch: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    outcome: BatchOutcome | None = None
    error: HelenusError | None = None
    read: dict[int, int] = field(default_factory=dict)


_stages: dict[tuple[str, str, str], tuple[int, Stage]] = {}
_failing: dict[tuple[object, ...], float] = {}
"""Since when a Cassandra session is unused, monotonic s."""
_RECONNECT_AFTER_S = 30.0
_pruned: dict[tuple[str, str], dict[str, int]] = {}
_logs: dict[tuple[str, str], Log] = {}
"""By run and events topic, or "" for the producer that most tables share."""


def topic_task(
    plan: QueryPlan,
    due: dict[str, list[UnconfirmedKey]],
    may_wait: int = MOST_WAITING,
    waits: Mapping[str, GateWaits] | None = None,
) -> Callable[[Iterator[TaskRanges]], Iterator[TopicResult]]:
    """The function for `job.run`, which yields one `TopicResult` a topic. `due` are unconfirmed keys by events topic.
    `may_wait` is how many more may wait. `waits` is what waits at the gates, by events topic too.

    As all functions for Spark, it is one of a module: of a nested one, Spark makes a copy in each task, which has
    copies of the module's variables.
    """
    return partial(_run_parts, plan, due, may_wait, waits)


def _run_parts(
    plan: QueryPlan,
    due: Mapping[str, list[UnconfirmedKey]],
    may_wait: int,
    waits: Mapping[str, GateWaits] | None,
    given: Iterator[TaskRanges],
) -> Iterator[TopicResult]:
    end_with_parent()
    logs.follow(plan.logging)
    _prune(plan)
    context = TaskContext.get()
    first = context is None or context.attemptNumber() == 0
    done: dict[str, TopicResult] = {}
    lost: dict[str, int] = {}
    events: dict[str, list[Event]] = {}
    asked: dict[int, Any] = {}
    for parts in given:
        _ask(plan, parts, asked)
        notes, found = read_parts(plan.worker, parts)
        events.update(found)
        for note in notes:
            about = done.setdefault(note.topic, TopicResult(note.topic))
            about.starts[str(note.partition)] = note.start
            about.epoch = note.epoch
            about.error = about.error or note.error
            if note.read:
                about.read[note.partition] = note.read
            if note.end is not None:
                about.ends[str(note.partition)] = note.end
            lost[note.topic] = lost.get(note.topic, 0) + note.lost
    with enter(plan.checkpoint, plan.start):
        for topic, about in done.items():
            settings = plan.connectors.get(topic)
            if settings is not None and about.error is None:
                again = [p for p in due.get(topic, ()) if str(p.partition) in about.starts]
                at_gate = _within(waits.get(topic), about.starts) if waits else NOTHING_WAITS
                _run(plan, settings, events[topic], again, first, about, may_wait, at_gate, asked)
                if about.outcome is not None:
                    about.outcome.lost = lost[topic]
    yield from done.values()
    freeze(("stages", len(_stages)))


def _run(
    plan: QueryPlan,
    settings: ConnectorSettings,
    events: list[Event],
    due: list[UnconfirmedKey],
    trust_images: bool,
    about: TopicResult,
    may_wait: int = MOST_WAITING,
    waits: GateWaits = NOTHING_WAITS,
    asked: Mapping[int, Any] = MappingProxyType({}),
) -> None:
    """Run a table's stage. Its errors go to the driver, which handles each kind."""
    read = len(events)
    if about.read:
        events = [event for event in events if event.offset >= about.read.get(event.partition, 0) or is_repeated(event)]
    done = read - len(events)
    if not (events or due or waits.overdue):
        about.outcome = BatchOutcome(read=done, confirmed=done)
        return
    own, shared = (plan.directory, settings.events), (plan.directory, "")
    log = _logs.get(own) or _logs.get(shared)
    try:
        if log is None:
            log = _logs[shared] = data_log(plan.worker)
    except HelenusError as error:  # of the client, on this host
        about.error = error
        return
    largest = log.largest
    try:
        stage = _stage(plan, settings, about.epoch, log)
        about.outcome = stage.run(events, due, trust_images, may_wait, waits, asked.get(id(stage.session)))
        about.outcome.read += done
        about.outcome.confirmed += done
        if settings.gate != "one" and events:
            _note_times(about.outcome, events)
            about.ends.update({str(partition): at for partition, at in about.outcome.at_gate.stopped.items()})
        _failing.pop(settings.server, None)
    except HelenusError as error:
        about.error = error
        if error.kind is Kind.CASSANDRA_READ:
            _reconnect(settings)
    except Exception as error:
        # A bug of ours that one table meets must not stop the others.
        about.error = HelenusError(Kind.BATCH_FAILED, reason(error), f"{settings.keyspace}.{settings.table}")
    finally:
        if about.outcome is None:
            # All of it is done again: nothing of this attempt may still be in the producer's queue.
            log.close()
        if log.largest < largest and own not in _logs:
            # This table's topic has a smaller limit than others: it keeps this producer for itself.
            _logs[own] = _logs.pop(shared)


def _ask(plan: QueryPlan, parts: TaskRanges, asked: dict[int, Any]) -> None:
    """Ask for the schema's version while events are read, once for all tables of a session: by its `id`. That is late
    enough: which events are to be read is known, so all of them were written.
    """
    for topic in {place.topic for part in parts.parts for place in part.ranges}:
        _, stage = _stages.get((plan.directory, plan.group, topic), (-1, None))
        if stage is not None and id(stage.session) not in asked:
            asked[id(stage.session)] = request_version(stage.session)


def _within(waits: GateWaits | None, partitions: Mapping[str, int]) -> GateWaits:
    """What waits at the gate of these partitions."""
    if waits is None:
        return NOTHING_WAITS
    return waits._replace(overdue=[waiting for waiting in waits.overdue if str(waiting.event.partition) in partitions])


def _note_times(outcome: BatchOutcome, events: list[Event]) -> None:
    """Note of when the oldest event is, and the oldest of the partitions' last ones."""
    first = {event.partition: event.timestamp for event in reversed(events)}
    last = {event.partition: event.timestamp for event in events}
    outcome.read_from, outcome.read_until = min(first.values()) / 1000, min(last.values()) / 1000


def _stage(plan: QueryPlan, settings: ConnectorSettings, epoch: int, log: Log) -> Stage:
    """This process's stage for a table, recreated when its settings changed.

    Caches belong to a group, since another group may read the same topic for another sink; and to an epoch, since the
    events of a connector that was moved back must be published again.
    """
    name = (plan.directory, plan.group, settings.events)
    made_in, stage = _stages.get(name, (-1, None))
    if stage is None or made_in != epoch or stage.settings != settings:
        shared = use(Path(plan.directory)) / plan.group
        directory = shared / str(epoch)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        session = cassandra_sessions.session_for(settings)
        if stage is not None:
            del _stages[name]  # if the next one can't be created, this one must not be closed again
            stage.close()
        stage = Stage(settings, session, log, directory, shared, registry_memory(plan.worker.checkpoint_dir))
        _stages[name] = epoch, stage
    stage.log = log
    return stage


def _prune(plan: QueryPlan) -> None:
    """When the group's tables change: close the stages of tables that left, and remove their caches from this host."""
    name = (plan.directory, plan.group)
    if _pruned.get(name) == plan.tables:
        return
    for place, (_, stage) in list(_stages.items()):
        if place[:2] == name and place[2] not in plan.tables:
            stage.close()
            del _stages[place]
    prune(use(Path(plan.directory)) / plan.group, plan.tables)
    _pruned[name] = plan.tables


def _reconnect(settings: ConnectorSettings) -> None:
    """Close sessions that were not used for a while: by now all nodes may have other addresses, which the driver learns
    from the nodes alone.
    """
    if time.monotonic() - _failing.setdefault(settings.server, time.monotonic()) < _RECONNECT_AFTER_S:
        return
    del _failing[settings.server]
    session = cassandra_sessions.take_session(settings)
    for name, (_, stage) in list(_stages.items()):
        if stage.session is session:
            stage.close()
            del _stages[name]
    if session is not None:
        with suppress(Exception):
            session.cluster.shutdown()
