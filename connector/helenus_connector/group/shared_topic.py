"""The topic of a group, compacted and of one partition: what its workers share, as JSON by key.

    lead     fence the former leader's producer → read all → note who leads now
    update   one transaction: all of a change is there, or nothing

A producer that was fenced, or failed, is made anew, and then reads who leads. If another worker does, it never writes
again; and where it has fenced that one's producer by this, the other one makes its own anew in the same way.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._leader import KEY, Leader
from helenus_connector.log.choice import data_log, data_planner, read_data
from helenus_connector.log.events import OffsetRange, ends
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.owners import FENCED, PREFIX
from helenus_sinks.kafka.settings import client_settings

PARTITION = 0
_CONFIG = {"cleanup.policy": "compact"}
_LONGEST_S = 20.0
"""Of a change, or of the begin to lead: locks of others are held meanwhile. Then it fails, and may be tried again."""
_SLICE_S = 0.2
_TRANSACTION_TIMEOUT_MS = 10_000
"""Of a leader that was killed while it wrote: for so long nobody can read on, unless another one begins to lead."""

Values = Mapping[str, Any]
"""JSON values by key."""
Positions = Mapping[str, Sequence[TopicPartition]]
"""What is to be committed, by consumer group."""


class _Fenced(HelenusError):
    """Another producer with the same transactional id began."""


class SharedTopic:
    """The topic of the worker's group. `former` is who led before this worker did, None if nobody; `is_replaced` says
    that another worker has led since.

    Any thread may call `update` and `values`. The methods raise HelenusError: NOT_OWNER if another worker leads, STATE
    for a record that is none of ours, and the brokers' errors: then nobody knows whether something was written, and the
    next `update` reads what was.
    """

    def __init__(self, worker: WorkerSettings) -> None:
        self._worker = worker
        self._name = worker.group_topic
        self._where = f"{worker.bootstrap_servers}, topic {self._name}"
        self._lock = threading.RLock()
        self._producer: Producer | None = None
        self._values: dict[str, Any] = {}
        self._leader: Leader | None = None
        self._is_closed = False
        self.former: Leader | None = None
        self.is_replaced = False

    def create(self) -> None:
        """Create the topic if it is not there. Raises HelenusError CONFIG for one of several partitions."""
        with contextlib.closing(data_log(self._worker)) as log:
            count = log.create(self._name, 1, _CONFIG, self._worker.config_storage_replication_factor)
        if count != 1:
            problem = f"the topic of the group has {count} partitions, where it has to have one"
            raise HelenusError(Kind.CONFIG, problem, self._where, "delete it, or set another config.storage.topic")

    def lead(self, term: str, first_values: Callable[[], Values]) -> Leader:
        """Begin to lead in this `term`. If nobody led before, the topic gets the `first_values`. Returns the note of
        it.
        """
        with self._lock:
            deadline = time.monotonic() + _LONGEST_S
            self._start_producer(deadline)
            self.former = Leader.from_value(self._values.get(KEY))
            number = 1 if self.former is None else self.former.number + 1
            leader = Leader(self._worker.worker_id, self._worker.advertised_url, number, term)
            self._commit({**(first_values() if self.former is None else {}), KEY: leader.to_value()}, {}, deadline)
            self._leader = leader
            return leader

    def values(self) -> dict[str, Any]:
        """Return all values that the topic has, as far as this worker knows: it alone writes while it leads."""
        with self._lock:
            return dict(self._values)

    def update(self, change: Callable[[Values], Values], positions: Positions | None = None) -> None:
        """Write what `change` returns for the values that are there: values by key, None where there is to be none. In
        the same transaction commit `positions` of consumer groups.
        """
        deadline = time.monotonic() + _LONGEST_S
        with self._lock:
            while True:
                if self.is_replaced:
                    raise self._not_leader(None)
                try:
                    if self._producer is None:
                        self._start_again(deadline)
                    changes = change(self._values)
                    if changes or positions:
                        self._commit(changes, positions or {}, deadline)
                    return
                except _Fenced:
                    # A worker that led before may have fenced this one: the topic says who leads.
                    if time.monotonic() > deadline:
                        raise

    def close(self) -> None:
        """Write no more."""
        self._is_closed = True
        self._producer = None

    def _start_again(self, deadline: float) -> None:
        """Make a producer, unless another worker leads."""
        self._start_producer(deadline)
        leader = Leader.from_value(self._values.get(KEY))
        if leader is None or self._leader is None or leader.term != self._leader.term:
            self._producer, self.is_replaced = None, True
            raise self._not_leader(leader)

    def _not_leader(self, leader: Leader | None) -> HelenusError:
        other = "another worker" if leader is None else f"the worker {leader.worker_id}"
        problem = f"{other} leads the group {self._worker.group_id} by now"
        return HelenusError(Kind.NOT_OWNER, problem, self._where, "ask that one")

    def _start_producer(self, deadline: float) -> None:
        """Fence all former producers, and read what the topic has by then."""
        settings: dict[str, object] = {
            **client_settings(self._worker.producer_config),
            "transactional.id": f"{PREFIX}group-{self._worker.group_name}",
            "transaction.timeout.ms": str(_TRANSACTION_TIMEOUT_MS),
            "compression.type": "lz4",
        }
        producer: Producer = new_client(Producer, settings, DeliveryReports(), self._where)
        self._retry(lambda: producer.init_transactions(_SLICE_S), deadline)
        self._values = self._read(deadline)
        self._producer = producer

    def _read(self, deadline: float) -> dict[str, Any]:
        def wait(seconds: float) -> None:
            if self._is_closed or time.monotonic() > deadline:
                raise HelenusError(Kind.BROKER_UNREACHABLE, "the end of the topic is not known", self._where)
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
                    continue
                try:
                    values[key] = json.loads(value)
                except (ValueError, RecursionError):
                    problem = "a record of the group's topic is no JSON: another program writes it, or has its name"
                    where = f"{self._where}, offset {message.offset()}"
                    advice = "give config.storage.topic another name; or delete the topic, and with it the connectors"
                    raise HelenusError(Kind.STATE, problem, where, advice) from None
        if errors:
            raise errors[0]
        return values

    def _commit(self, changes: Values, positions: Positions, deadline: float) -> None:
        """Write in one transaction. Raises _Fenced if another producer began."""
        producer, self._producer = self._producer, None  # one that fails is not used again
        assert producer is not None
        try:
            producer.begin_transaction()
            for key, value in changes.items():
                text = None if value is None else json.dumps(value, separators=(",", ":"))
                producer.produce(self._name, text, key.encode(), PARTITION)
            for group, group_positions in positions.items():
                self._send_positions(producer, group, group_positions)
        except KafkaException as failure:
            raise self._error(failure) from None
        self._retry(lambda: producer.commit_transaction(_SLICE_S), deadline)
        self._values = {key: value for key, value in {**self._values, **changes}.items() if value is not None}
        self._producer = producer

    def _send_positions(self, producer: Producer, group: str, positions: Sequence[TopicPartition]) -> None:
        settings = {**client_settings(self._worker.consumer_config), "group.id": group}
        consumer = new_client(Consumer, settings, DeliveryReports(), self._where)
        with contextlib.closing(consumer):
            producer.send_offsets_to_transaction(list(positions), consumer.consumer_group_metadata(), _LONGEST_S)

    def _retry(self, call: Callable[[], object], deadline: float) -> None:
        """Call what goes on where it was, each time for a moment: meanwhile no signal handler runs. Raises _Fenced, and
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
        error = broker_error(failure.args[0], self._where)
        if failure.args[0].code() in FENCED:
            return _Fenced(Kind.NOT_OWNER, error.what, self._where)
        # What failed for another reason is tried again: only the topic says that another worker leads.
        return error if error.action is Action.RETRY or error.kind is Kind.BROKER_REFUSED else _passing(error)


def _passing(error: HelenusError) -> HelenusError:
    return HelenusError(Kind.BROKER_UNREACHABLE, error.what, error.where, error.advice)
