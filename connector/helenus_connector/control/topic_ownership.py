"""Which run of a query owns the records of its tables, with the brokers: `helenus_sinks.kafka.owners` says what for,
and how Kafka refuses those of others; `helenus_sinks.pulsar.owners` how Pulsar does.

A worker that starts, and a task that somebody restarts, takes the records from whoever had them. Later runs of the same
worker don't take them back: their tasks fail instead, or two workers would take them from each other for ever.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import claim_epochs, next_epochs
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.open_transactions import find_held_back
from helenus_sinks.kafka.owned_log import not_owner
from helenus_sinks.kafka.owners import Made, RecordsOwner, Unavailable, claim, run_name
from helenus_sinks.pulsar.epochs import EpochOwner, TermEpochs, first_epoch, run_epoch, since

_log = structlog.get_logger(__name__)
_LEAST_PRODUCERS, _PRODUCERS_PER_SLOT = 4, 2
"""A process that takes another's place has an id of its own, while nobody knows whether the other one ended."""
_CLAIM_AGAIN_S = 3600.0
"""Kafka keeps who the owner is for a week, or until the topic is deleted. And a task that writes nothing learns by it
that another worker has its records.
"""
_one_claim = threading.Lock()
"""Queries of a worker would fence each other's claims."""
_ADVICE = "or set fence.writers=false, if nothing but checkpoint.dir is to keep two workers apart"
_OPEN_S = 2.0
"""Longer than a batch has its transaction open, as a rule: that of a table which shares its data topic."""
_END_IT = "the brokers left a transaction open: end it with kafka-transactions.sh abort, as docs/failures.md has it"
Owner = RecordsOwner | EpochOwner
Stopping = Callable[[], bool]


@dataclass(frozen=True)
class Claimed:
    """What a claim brought: the former workers, each with its connector, of topics that this one did not have; and by
    events topic the errors of those that are not owned.
    """

    former: set[tuple[str, str]] = field(default_factory=set)
    errors: dict[str, HelenusError] = field(default_factory=dict)


class Written(Protocol):
    """Records that are to be owned: those that a connector makes of the topic `events`, and writes to `data_topics`, of
    which `data` is the first. A `Task` has them.
    """

    @property
    def connector(self) -> str: ...
    @property
    def events(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def data_topics(self) -> list[str]: ...


class _Ownership(Protocol):
    """One query's ownership with brokers of a kind. `had` are the events topics that an earlier claim got."""

    @property
    def owner(self) -> Owner: ...

    def begin_run(self, run: int, slots: int, who: str) -> None:
        """Begin a run, which owns nothing yet."""

    def needs_claims(self, slots: int) -> bool:
        """Return whether all has to be claimed again, since Spark runs so many tasks at once now."""

    def claim(self, tasks: Sequence[Written], had: Collection[str], stopping: Stopping) -> Claimed:
        """Own the records of tasks. Raises HelenusError BROKER_UNREACHABLE, and Unavailable."""


class TopicOwnership:
    """The events topics whose records one query owns. `owner` is its current run, None where nothing is fenced. `term`
    is that of a worker that leads its group: it takes records from earlier leaders, and none from later ones. On Pulsar
    it does so by its `epochs`.

    One thread uses it at a time.
    """

    def __init__(self, worker: WorkerSettings, group: str, term: str = "", epochs: TermEpochs | None = None) -> None:
        self._worker = worker
        self._group = group
        self._brokers = _brokers(worker, group, term, epochs)
        self._is_fenced = False
        self._has_warned = False
        self._run_count = 0
        self._had: set[str] = set()
        self._claim_next_at: dict[str, float] = {}

    @property
    def owner(self) -> Owner | None:
        return self._brokers.owner if self._brokers is not None and self._is_fenced else None

    def begin_run(self, slots: int) -> None:
        """Begin a run, of which Spark runs so many tasks at once. It owns nothing yet."""
        self._claim_next_at = {}
        if self._brokers is not None:
            begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            directory = self._worker.checkpoint_dir.absolute()
            who = f"host {socket.gethostname()}, process {os.getpid()}, since {begun}, checkpoint.dir {directory}"
            self._run_count += 1
            self._brokers.begin_run(self._run_count, slots, who)
            self._is_fenced = True

    def claim(
        self, tasks: Iterable[Written], slots: int, stopping: Stopping = lambda: False
    ) -> dict[str, HelenusError]:
        """Own the records of running tasks. Returns by events topic the errors of those that can't run now: another
        worker has their records, or the topic is gone. Raises HelenusError BROKER_UNREACHABLE, soon if it is
        `stopping`.
        """
        if self._brokers is None or not self._is_fenced:
            return {}
        if self._brokers.needs_claims(slots):
            self._claim_next_at = {}
        now = time.monotonic()
        claimed = [task for task in tasks if self._claim_next_at.get(task.events, now) <= now]
        if not claimed:
            return {}
        try:
            answer = self._brokers.claim(claimed, self._had, stopping)
        except Unavailable as error:
            self._is_fenced = False
            self._warn(error)
            return {}
        for connector, who in sorted(answer.former):
            _log.info("writers.fenced", connector=connector, former_worker=who)
        for task in claimed:
            if task.events not in answer.errors:
                self._had.add(task.events)
                self._claim_next_at[task.events] = now + _CLAIM_AGAIN_S * random.uniform(0.5, 1)
        return answer.errors

    def _warn(self, error: Unavailable) -> None:
        """Warn once that nothing is fenced."""
        if not self._has_warned:
            self._has_warned = True
            reason, advice = f"{error.what} ({error.where})", f"{error.advice}; {_ADVICE}"
            _log.warning("writers.not_fenced", group=self._group, reason=reason, advice=advice)

    def owns(self, topics: Iterable[str]) -> bool:
        """Return whether this run owns the records of all these topics, or nothing is fenced."""
        return not self._is_fenced or self._claim_next_at.keys() >= {*topics}

    def claim_again(self, topic: str) -> None:
        """Claim a topic's records once more before the next batch: the topic may have been made anew, without notes."""
        self._claim_next_at.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Have the next claim of a topic's records take them from whoever has them: another worker has, and only an
        operator lets the task run again.
        """
        self._claim_next_at.pop(topic, None)
        self._had.discard(topic)

    def forget_others(self, topics: Iterable[str]) -> None:
        """Forget all topics but these: their connectors left the query. When one comes back, its records may have been
        those of another query meanwhile.
        """
        for topic in self._had.difference(topics):
            self.forget(topic)


class _KafkaOwnership:
    """Owns the records of events topics by notes of runs, each with its transactional ids."""

    owner: RecordsOwner

    def __init__(self, worker: WorkerSettings, group: str, term: str) -> None:
        self._worker = worker
        # Begins the names of all its runs: so a claim that failed halfway is told from another worker's.
        self._runs = run_name(group, secrets.token_hex(6), term)

    def begin_run(self, run: int, slots: int, who: str) -> None:
        self.owner = RecordsOwner(f"{self._runs}-{run}", _producers(slots), who)

    def needs_claims(self, slots: int) -> bool:
        if _producers(slots) <= self.owner.producers:
            return False
        self.owner = replace(self.owner, producers=_producers(slots))  # executors joined
        return True

    def claim(self, tasks: Sequence[Written], had: Collection[str], stopping: Stopping) -> Claimed:
        claimed = [Made(task.connector, task.events) for task in tasks]
        expected = {made: f"{self._runs}-" for made in claimed if made.topic in had}
        with _one_claim:
            answer = claim(self._worker.producer_config, claimed, self.owner, expected, stopping)
        where = self._worker.bootstrap_servers
        errors: dict[str, HelenusError] = {
            made.topic: not_owner(made, other, where) for made, other in answer.lost.items()
        }
        for topic in answer.missing:
            errors[topic] = HelenusError(Kind.TOPIC_MISSING, "there is no events topic", f"{where}, topic {topic}")
        of_others = [task for task in tasks if Made(task.connector, task.events) in answer.former]
        self._report_held_back({topic for task in of_others for topic in task.data_topics})
        former = {(made.connector, owner.who) for made, owner in answer.former.items() if made.topic not in had}
        return Claimed(former, errors)

    def _report_held_back(self, topics: Collection[str]) -> None:
        """Report what transactions of former owners, which are fenced by now, keep from readers of data topics."""
        try:
            held_back = find_held_back(self._worker.producer_config, topics, _OPEN_S) if topics else []
        except HelenusError as error:  # the next run looks again
            _log.debug("topic.not_looked_at", error=str(error))
            return
        for topic, partition, offset, end in held_back:
            _log.error("topic.held_back", topic=topic, partition=partition, offset=offset, end=end, advice=_END_IT)


def _producers(slots: int) -> int:
    return max(_LEAST_PRODUCERS, _PRODUCERS_PER_SLOT * slots)


class _PulsarOwnership:
    """Owns data topics by their epochs. Not those of dead letters: several connectors may write to one."""

    owner: EpochOwner

    def __init__(self, worker: WorkerSettings, term: TermEpochs | None) -> None:
        self._worker = worker
        self._term = term
        self._run = 0
        self._first_epochs: dict[str, int] = {}
        """By events topic, of when this worker took its records."""
        self._proven: set[str] = set()
        """The data topics of which this run has found that former ones are refused."""

    def begin_run(self, run: int, slots: int, who: str) -> None:  # noqa: ARG002
        self._run, self.owner, self._proven = run, EpochOwner(who, {}), set()
        self._term_epoch = self._term.take() if self._term is not None else 0

    def needs_claims(self, slots: int) -> bool:  # noqa: ARG002
        return False

    def claim(self, tasks: Sequence[Written], had: Collection[str], stopping: Stopping) -> Claimed:
        if self._term is not None:
            # Only the group says who leads: a leader that hung takes nothing from a later one.
            new = [task for task in tasks if task.events not in had]
            self._proven.difference_update(topic for task in new for topic in task.data_topics)
            return self._claim(tasks, {task.events: self._term_epoch for task in tasks}, {}, stopping)
        # 1. Whoever had a topic that this worker did not have: its first epoch here is higher.
        new = [task for task in tasks if task.events not in had]
        next_of = next_epochs(self._worker, [task.data for task in new], stopping) if new else {}
        now_ms = time.time_ns() // 1_000_000
        former: dict[str, tuple[str, str]] = {}
        for task in new:
            next_epoch = next_of.get(task.data, 0)
            begun = since(next_epoch - 1)
            if begun and begun != since(self._first_epochs.get(task.events, 0)):  # not by a claim that failed halfway
                former[task.events] = task.connector, begun
            self._first_epochs[task.events] = first_epoch(now_ms, secrets.randbits(32), next_epoch)
            self._proven.difference_update(task.data_topics)
        # 2. The run's epochs: those of earlier runs of this worker are lower, those of workers that took over are not.
        epochs = {task.events: run_epoch(self._first_epochs[task.events], self._run) for task in tasks}
        return self._claim(tasks, epochs, former, stopping)

    def _claim(
        self,
        tasks: Sequence[Written],
        epochs: Mapping[str, int],
        former: Mapping[str, tuple[str, str]],
        stopping: Stopping,
    ) -> Claimed:
        topics = {topic: task.events for task in tasks for topic in task.data_topics}
        wanted = {topic: epochs[events] for topic, events in topics.items()}
        refused = claim_epochs(self._worker, wanted, self._proven, stopping)
        errors = {topics[topic]: error for topic, error in refused.items()}
        # 3. Tasks write with these epochs from the next plan on.
        self._proven.update(topic for topic, events in topics.items() if events not in errors)
        owned = {events: epoch for events, epoch in epochs.items() if events not in errors}
        self.owner = replace(self.owner, epochs={**self.owner.epochs, **owned})
        return Claimed({who for events, who in former.items() if events not in errors}, errors)


def _brokers(worker: WorkerSettings, group: str, term: str, epochs: TermEpochs | None) -> _Ownership | None:
    """Return how the brokers of records refuse those of others, or None if they don't: on Kafka the notes of owners are
    with the events.
    """
    if not worker.fence_writers:
        return None
    if worker.log_of_data == "pulsar":
        return _PulsarOwnership(worker, epochs)
    return _KafkaOwnership(worker, group, term) if worker.log == "kafka" else None
