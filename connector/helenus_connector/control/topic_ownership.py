"""Which run of a query owns the records of its tables, with the brokers: `helenus_sinks.kafka.owners` says what for.

A worker that starts, and a task that somebody restarts, takes the records from whoever had them. Later runs of the same
worker don't take them back: their tasks fail instead, or two workers would take them from each other for ever.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import replace

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.status import Task
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.owned_log import not_owner
from helenus_sinks.kafka.owners import RecordsOwner, Unavailable, claim

_log = structlog.get_logger(__name__)
_LEAST_PRODUCERS, _PRODUCERS_PER_SLOT = 4, 2
"""A process that takes another's place has an id of its own, while nobody knows whether the other one ended."""
_CLAIM_AGAIN_S = 86_400.0
"""Kafka keeps who the owner is for a week."""
_ADVICE = "or set fence.writers=false, if nothing but checkpoint.dir is to keep two workers apart"


def owner_group(connector: str) -> str:
    """Return the consumer group in which the owner of a connector's records is noted."""
    return f"helenus-{connector}-owner"


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
        self._last_runs: dict[str, str] = {}
        self._claimed_at: dict[str, float] = {}

    def begin_run(self, slots: int) -> None:
        """Begin a run, of which Spark runs so many tasks at once. It owns nothing yet."""
        self._claimed_at = {}
        if self._is_used:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            directory = self._worker.checkpoint_dir.absolute()
            who = f"host {socket.gethostname()}, process {os.getpid()}, since {since}, checkpoint.dir {directory}"
            self.owner = RecordsOwner(f"helenus-{self._group}-{secrets.token_hex(6)}", _producers(slots), who)

    def claim(self, tasks: Iterable[Task], slots: int) -> dict[str, HelenusError]:
        """Own the records of running tasks. Returns by events topic the errors of those that can't run now: another
        worker has their records, or the topic is gone. Raises HelenusError BROKER_UNREACHABLE.
        """
        if self.owner is None:
            return {}
        if _producers(slots) > self.owner.producers:  # executors joined
            self.owner, self._claimed_at = replace(self.owner, producers=_producers(slots)), {}
        now = time.monotonic()
        topics_by_connector: dict[str, list[str]] = {}
        for task in tasks:
            if now - self._claimed_at.get(task.events, now - _CLAIM_AGAIN_S) >= _CLAIM_AGAIN_S:
                topics_by_connector.setdefault(task.connector, []).append(task.events)
        errors: dict[str, HelenusError] = {}
        try:
            for connector, topics in topics_by_connector.items():
                errors.update(self._claim(connector, topics, self.owner, now))
        except Unavailable as error:
            self.owner = None
            if not self._has_warned:
                self._has_warned = True
                advice = f"{error.advice}; {_ADVICE}"
                _log.warning(
                    "writers.not_fenced", group=self._group, reason=f"{error.what} ({error.where})", advice=advice
                )
            return {}
        return errors

    def owns(self, topics: Iterable[str]) -> bool:
        """Return whether this run owns the records of all these topics, or nothing is fenced."""
        return self.owner is None or self._claimed_at.keys() >= {*topics}

    def forget(self, topic: str) -> None:
        """Have the next claim of a topic's records take them from whoever has them: its task failed, and only an
        operator lets it run again.
        """
        self._claimed_at.pop(topic, None)
        self._last_runs.pop(topic, None)

    def _claim(self, connector: str, topics: list[str], owner: RecordsOwner, now: float) -> dict[str, HelenusError]:
        expected = {topic: self._last_runs[topic] for topic in topics if topic in self._last_runs}
        group = owner_group(connector)
        try:
            former, lost = claim(self._worker.producer_config, group, topics, owner, expected)
        except HelenusError as error:
            if error.kind is not Kind.TOPIC_MISSING:
                raise
            if len(topics) == 1:
                return {topics[0]: error}
            errors: dict[str, HelenusError] = {}
            for topic in topics:
                errors.update(self._claim(connector, [topic], owner, now))
            return errors
        own = {topic: owner.run for topic in topics if topic not in lost}
        for who in {former[topic].who for topic in former.keys() - self._last_runs.keys()}:
            _log.info("writers.fenced", connector=connector, former_worker=who)
        self._last_runs.update(own)
        self._claimed_at.update(dict.fromkeys(own, now))
        where = f"{self._worker.bootstrap_servers}, group {group}"
        return {topic: not_owner(topic, other, where) for topic, other in lost.items()}


def _producers(slots: int) -> int:
    return max(_LEAST_PRODUCERS, _PRODUCERS_PER_SLOT * slots)
