"""The one writer of a compacted topic, with JSON by key.

    start    fence all former writers' producers → read all that is there
    commit   one transaction: all of a change is there, or nothing

A producer that was fenced, or failed, is not used again: the next write needs a `start`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import data_log, data_planner, read_data
from helenus_connector.log.events import OffsetRange, ends
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.groups import send_positions
from helenus_sinks.kafka.kept_topics import find_forgetful
from helenus_sinks.kafka.owners import FENCED, PREFIX
from helenus_sinks.kafka.settings import client_settings

PARTITION = 0
_CONFIG = {"cleanup.policy": "compact"}
_LONGEST_S = 20.0
_SLICE_S = 0.2
_TRANSACTION_TIMEOUT_MS = 10_000
"""Of a leader that was killed while it wrote: for so long nobody can read on, unless another one begins to lead."""

Values = Mapping[str, Any]
"""JSON values by key."""
Positions = Mapping[str, Sequence[TopicPartition]]
"""What is to be committed, by consumer group."""


class Fenced(HelenusError):
    """Another producer with the same transactional id began."""


class TopicWriter(Protocol):
    """The writer of a compacted topic of one partition. `values` are those that are there, as far as is known, and
    `where` is the topic, for people. One thread uses it at a time. The methods raise HelenusError: the brokers' errors,
    of which a write does not say whether it happened.
    """

    values: dict[str, Any]
    where: str

    def create(self, replication_factor: int, key: str) -> None:
        """Create the topic if it is not there. Raises HelenusError CONFIG for one of several partitions, or that
        forgets what it gets; `key` is the setting with its name.
        """

    @property
    def is_started(self) -> bool:
        """Return whether it can write without a `start`."""

    def start(self, deadline: float) -> None:
        """Fence all former writers, and read what the topic has by then; until `deadline`, monotonic s."""

    def commit(self, changes: Values, deadline: float, positions: Positions | None = None) -> None:
        """Write values by key, None where there is to be none, and `positions` of consumer groups. Raises Fenced, or
        HelenusError NOT_OWNER, if another writer began.
        """

    def stop(self) -> None:
        """Write no more, until the next `start`."""

    def close(self) -> None:
        """Write no more. Any thread may call this: what waits for brokers ends."""


class KafkaTopicWriter:
    """The writer of a `topic` of one partition, with the `transactional_id` that all its writers have.

    `parse` returns the value of a record: it is called with the text, and where the record is. `values` are those that
    are there, as far as is known. One thread uses it at a time. The methods raise HelenusError: the brokers' errors, of
    which a write does not say whether it happened, and what `parse` raises.
    """

    def __init__(
        self, worker: WorkerSettings, topic: str, transactional_id: str, parse: Callable[[bytes, str], Any]
    ) -> None:
        self._worker = worker
        self._name = topic
        self._transactional_id = PREFIX + transactional_id
        self._parse = parse
        self.where = f"{worker.bootstrap_servers}, topic {topic}"
        self._producer: Producer | None = None
        self.values: dict[str, Any] = {}
        self._is_closed = False

    def create(self, replication_factor: int, key: str) -> None:
        """Create the topic if it is not there. Raises HelenusError CONFIG for one of several partitions, or that
        forgets what it gets; `key` is the setting with its name.
        """
        with contextlib.closing(data_log(self._worker)) as log:
            count = log.create(self._name, 1, _CONFIG, replication_factor)
        if count != 1:
            problem = f"the topic of the group has {count} partitions, where it has to have one"
            raise HelenusError(Kind.CONFIG, problem, self.where, f"delete it, or set another {key}")
        client = client_settings(self._worker.producer_config)
        for error in find_forgetful(client, self._worker.bootstrap_servers, [self._name], _CONFIG).values():
            raise error

    @property
    def is_started(self) -> bool:
        """Return whether it can write without a `start`."""
        return self._producer is not None

    def start(self, deadline: float) -> None:
        """Fence all former writers, and read what the topic has by then; until `deadline`, monotonic s."""
        settings: dict[str, object] = {
            **client_settings(self._worker.producer_config),
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": str(_TRANSACTION_TIMEOUT_MS),
            "compression.type": "lz4",
        }
        producer: Producer = new_client(Producer, settings, DeliveryReports(), self.where)
        self._retry(lambda: producer.init_transactions(_SLICE_S), deadline)
        self.values = self._read(deadline)
        self._producer = producer

    def commit(self, changes: Values, deadline: float, positions: Positions | None = None) -> None:
        """Write values by key, None where there is to be none, and `positions` of consumer groups. Raises Fenced if
        another producer began.
        """
        producer, self._producer = self._producer, None  # one that fails is not used again
        assert producer is not None
        try:
            producer.begin_transaction()
            for key, value in changes.items():
                text = None if value is None else json.dumps(value, separators=(",", ":"))
                producer.produce(self._name, text, key.encode(), PARTITION)
            for group, group_positions in (positions or {}).items():
                self._send_positions(producer, group, group_positions)
        except KafkaException as failure:
            raise self._error(failure) from None
        self._retry(lambda: producer.commit_transaction(_SLICE_S), deadline)
        self.values = {key: value for key, value in {**self.values, **changes}.items() if value is not None}
        self._producer = producer

    def stop(self) -> None:
        """Write no more, until the next `start`."""
        self._producer = None

    def close(self) -> None:
        """Write no more. Any thread may call this: what waits for brokers ends."""
        self._is_closed = True
        self._producer = None

    def _read(self, deadline: float) -> dict[str, Any]:
        def wait(seconds: float) -> None:
            if self._is_closed or time.monotonic() > deadline:
                raise HelenusError(Kind.BROKER_UNREACHABLE, "the end of the topic is not known", self.where)
            time.sleep(seconds)

        with contextlib.closing(data_planner(self._worker)) as planner:
            end = ends(planner, self._name, 1, wait)[str(PARTITION)]
            start = planner.earliest({self._name: 1}).get(self._name, {}).get(str(PARTITION), 0)
        values: dict[str, Any] = {}
        errors: list[HelenusError] = []
        ranges = [OffsetRange(self._name, PARTITION, start, end)]
        for chunk in read_data(self._worker, ranges, lambda _, error: errors.append(error)):
            for message in chunk:
                key, value = (message.key() or b"").decode(errors="replace"), message.value()
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = self._parse(value, f"{self.where}, offset {message.offset()}")
        if errors:
            raise errors[0]
        return values

    def _send_positions(self, producer: Producer, group: str, positions: Sequence[TopicPartition]) -> None:
        settings = {**client_settings(self._worker.consumer_config), "group.id": group}
        consumer = new_client(Consumer, settings, DeliveryReports(), self.where)
        with contextlib.closing(consumer):
            send_positions(producer, consumer.consumer_group_metadata(), positions, _LONGEST_S)

    def _retry(self, call: Callable[[], object], deadline: float) -> None:
        """Call what goes on where it was, each time for a moment: meanwhile no signal handler runs. Raises Fenced, and
        the brokers' errors.
        """
        while True:
            try:
                call()
                return
            except KafkaException as failure:
                is_passing = failure.args[0].retriable() and not self._is_closed
                if not is_passing or time.monotonic() > deadline:
                    raise self._error(failure) from None

    def _error(self, failure: KafkaException) -> HelenusError:
        error = broker_error(failure.args[0], self.where)
        if failure.args[0].code() in FENCED:
            return Fenced(Kind.NOT_OWNER, error.what, self.where)
        # What failed for another reason is tried again: only the topic says that another worker leads.
        return error if error.action is Action.RETRY or error.kind is Kind.BROKER_REFUSED else _passing(error)


def _passing(error: HelenusError) -> HelenusError:
    return HelenusError(Kind.BROKER_UNREACHABLE, error.what, error.where, error.advice)
