"""A `TopicWriter` on Pulsar: a topic that has the epoch of the leader that writes to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._topic_writer import Positions, Values
from helenus_connector.log.choice import fenced_topics
from helenus_connector.log.events import FencedContent, FencedRecord
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
_BEGIN = b"helenus-begin"
"""The key of a record after which all values follow."""
_LEAST_S = 1.0
_LOST = (
    "see that no message TTL, backlog quota or command moves the subscription helenus-journal; restore the topic, or "
    "delete it, and with it the connectors"
)


class PulsarTopicWriter:
    """The writer of a `topic`. `take_epoch` returns the epoch to write with from a `start` on, and whether the topic
    has it already; it raises HelenusError NOT_OWNER where the worker does not lead. `parse` is as in
    `KafkaTopicWriter`.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        topic: str,
        take_epoch: Callable[[str], tuple[int, bool]],
        parse: Callable[[bytes, str], Any],
    ) -> None:
        self._name = topic
        self._take_epoch = take_epoch
        self._parse = parse
        self._topics = fenced_topics(worker)
        self.where = f"{worker.pulsar_service_url}, topic {topic}"
        self.values: dict[str, Any] = {}

    def create(self, replication_factor: int, key: str) -> None:  # noqa: ARG002
        """Create the topic if it is not there. Raises as `TopicWriter.create`."""
        self._topics.create([self._name])

    @property
    def is_started(self) -> bool:
        """Return whether it can write without a `start`."""
        return self._topics.owns(self._name)

    def start(self, deadline: float) -> None:
        """Fence all former writers, and read what the topic has by then. All of it is written anew, and what came
        before is dropped: so the topic stays short.
        """
        epoch, is_owned = self._take_epoch(self._name)
        if is_owned:
            self._topics.note_owned([self._name], epoch)
        else:
            self._topics.own([self._name], epoch)
        try:
            content = self._topics.read([self._name])[self._name]
            if content.error is not None:
                raise content.error
            self.values = self._values(content)
        except HelenusError:
            self._topics.disown(self._name)
            raise
        whole = [FencedRecord(_BEGIN, b"{}"), *(_record(key, value) for key, value in self.values.items())]
        self._topics.commit({self._name: whole}, _seconds(deadline))
        try:
            self._topics.trim({self._name: content.end})
        except HelenusError as error:  # the next start reads more
            _log.warning("journal.not_deleted", topics=1, error=error.what, advice=error.advice)

    def commit(self, changes: Values, deadline: float, positions: Positions | None = None) -> None:
        """Write values by key, None where there is to be none. Positions are in journals on Pulsar."""
        assert not positions
        records = [_record(key, value) for key, value in changes.items()]
        if records:
            self._topics.commit({self._name: records}, _seconds(deadline))
        self.values = {key: value for key, value in {**self.values, **changes}.items() if value is not None}

    def stop(self) -> None:
        """Write no more, until the next `start`."""
        self._topics.disown(self._name)

    def close(self) -> None:
        """Write no more. Any thread may call this: what waits for brokers ends."""
        self._topics.close()

    def _values(self, content: FencedContent) -> dict[str, Any]:
        values: dict[str, Any] = {}
        is_whole = False
        for record in content.records:
            key = record.key.decode(errors="replace")
            if record.key == _BEGIN:
                values, is_whole = {}, True
            elif record.value is None:
                values.pop(key, None)
            else:
                values[key] = self._parse(record.value, f"{self.where}, offset {record.offset}")
        if content.is_expired or (content.records and not is_whole):
            raise HelenusError(Kind.STATE, "the topic has lost the begin of what it had", self.where, _LOST)
        return values


def _record(key: str, value: Any) -> FencedRecord:
    text = None if value is None else json.dumps(value, separators=(",", ":")).encode()
    return FencedRecord(key.encode(), text)


def _seconds(deadline: float) -> float:
    return max(_LEAST_S, deadline - time.monotonic())
