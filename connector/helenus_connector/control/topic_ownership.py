"""Which run of a query owns the records of its tables, with the brokers: `helenus_sinks.kafka.owners` says what for.

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
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.status import Task
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.owned_log import not_owner
from helenus_sinks.kafka.owners import PREFIX, Claim, Made, RecordsOwner, Unavailable, claim

_log = structlog.get_logger(__name__)
_LEAST_PRODUCERS, _PRODUCERS_PER_SLOT = 4, 2
"""A process that takes another's place has an id of its own, while nobody knows whether the other one ended."""
_CLAIM_AGAIN_S = 3600.0
"""Kafka keeps who the owner is for a week, or until the topic is deleted."""
_one_claim = threading.Lock()
"""Queries of a worker would fence each other's claims."""
_ADVICE = "or set fence.writers=false, if nothing but checkpoint.dir is to keep two workers apart"


class TopicOwnership:
    """The events topics whose records one query owns. `owner` is its current run, None where nothing is fenced.

    One thread uses it at a time.
    """

    def __init__(self, worker: WorkerSettings, group: str) -> None:
        self.owner: RecordsOwner | None = None
        self._worker = worker
        self._group = group
        self._is_used = worker.fence_writers and worker.log == worker.log_of_data == "kafka"
        self._has_warned = False
        # Begins the names of all its runs: so a claim that failed halfway is told from another worker's.
        self._runs = f"{PREFIX}{group}-{secrets.token_hex(6)}"
        self._run_count = 0
        self._had: set[str] = set()
        self._claim_next_at: dict[str, float] = {}

    def begin_run(self, slots: int) -> None:
        """Begin a run, of which Spark runs so many tasks at once. It owns nothing yet."""
        self._claim_next_at = {}
        if self._is_used:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            directory = self._worker.checkpoint_dir.absolute()
            who = f"host {socket.gethostname()}, process {os.getpid()}, since {since}, checkpoint.dir {directory}"
            self._run_count += 1
            self.owner = RecordsOwner(f"{self._runs}-{self._run_count}", _producers(slots), who)

    def claim(
        self, tasks: Iterable[Task], slots: int, stopping: Callable[[], bool] = lambda: False
    ) -> dict[str, HelenusError]:
        """Own the records of running tasks. Returns by events topic the errors of those that can't run now: another
        worker has their records, or the topic is gone. Raises HelenusError BROKER_UNREACHABLE, soon if it is
        `stopping`.
        """
        if self.owner is None:
            return {}
        if _producers(slots) > self.owner.producers:  # executors joined
            self.owner, self._claim_next_at = replace(self.owner, producers=_producers(slots)), {}
        now = time.monotonic()
        claimed = [
            Made(task.connector, task.events) for task in tasks if self._claim_next_at.get(task.events, now) <= now
        ]
        if not claimed:
            return {}
        expected = {made: f"{self._runs}-" for made in claimed if made.topic in self._had}
        try:
            with _one_claim:
                answer = claim(self._worker.producer_config, claimed, self.owner, expected, stopping)
        except Unavailable as error:
            self.owner = None
            self._warn(error)
            return {}
        self._note(claimed, answer, now)
        where = self._worker.bootstrap_servers
        errors: dict[str, HelenusError] = {
            made.topic: not_owner(made, other, where) for made, other in answer.lost.items()
        }
        for topic in answer.missing:
            errors[topic] = HelenusError(Kind.TOPIC_MISSING, "there is no events topic", f"{where}, topic {topic}")
        return errors

    def _note(self, claimed: Iterable[Made], answer: Claim, now: float) -> None:
        """Note what is owned now, and log the workers that had it before this one."""
        former = {(made.connector, owner.who) for made, owner in answer.former.items() if made.topic not in self._had}
        for connector, who in sorted(former):
            _log.info("writers.fenced", connector=connector, former_worker=who)
        for made in claimed:
            if made not in answer.lost and made.topic not in answer.missing:
                self._had.add(made.topic)
                self._claim_next_at[made.topic] = now + _CLAIM_AGAIN_S * random.uniform(0.5, 1)

    def _warn(self, error: Unavailable) -> None:
        """Warn once that nothing is fenced."""
        if not self._has_warned:
            self._has_warned = True
            reason, advice = f"{error.what} ({error.where})", f"{error.advice}; {_ADVICE}"
            _log.warning("writers.not_fenced", group=self._group, reason=reason, advice=advice)

    def owns(self, topics: Iterable[str]) -> bool:
        """Return whether this run owns the records of all these topics, or nothing is fenced."""
        return self.owner is None or self._claim_next_at.keys() >= {*topics}

    def claim_again(self, topic: str) -> None:
        """Claim a topic's records once more before the next batch: the topic may have been made anew, without notes."""
        self._claim_next_at.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Have the next claim of a topic's records take them from whoever has them: another worker has, and only an
        operator lets the task run again.
        """
        self._claim_next_at.pop(topic, None)
        self._had.discard(topic)


def _producers(slots: int) -> int:
    return max(_LEAST_PRODUCERS, _PRODUCERS_PER_SLOT * slots)
