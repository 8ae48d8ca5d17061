"""The topic of a group, compacted and of one partition: what its workers share, as JSON by key.

    lead     fence the former leader's producer → read all → note who leads now
    write    one transaction: all of a change is there, or nothing

A producer that was fenced, or failed, is made anew, and then reads who leads. If another worker does, it writes no
more; and where it has fenced that one's producer by that, the other one makes its own anew in the same way.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._leader import KEY, Leader
from helenus_connector.log.choice import data_log, data_planner, read_data
from helenus_connector.log.events import OffsetRange, ends
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client, text_of
from helenus_sinks.kafka.owners import FENCED, PREFIX
from helenus_sinks.kafka.settings import client_settings

PARTITION = 0
_CONFIG = {"cleanup.policy": "compact"}
_ANSWER_TIMEOUT_S = 30.0
_SLICE_S = 0.2
_TRANSACTION_TIMEOUT_MS = 10_000
"""Of a leader that was killed while it wrote: for so long nobody can read on, unless another one begins to lead."""

Values = Mapping[str, Any]
"""JSON values by key."""


class SharedTopic:
    """The topic of the worker's group. `values` are those that it had when this worker began to lead, with what it has
    written since; `former` is who led before, None if nobody did.

    Any thread may call `write`. The methods raise HelenusError: NOT_OWNER if another worker leads, STATE for a record
    that is none of ours, and the brokers' errors: then nobody knows whether it was written, and the next `write` reads
    again.
    """

    def __init__(self, worker: WorkerSettings) -> None:
        self._worker = worker
        self._name = worker.group_topic
        self._where = f"{worker.bootstrap_servers}, topic {self._name}"
        self._lock = threading.RLock()
        self._producer: Producer | None = None
        self._leader: Leader | None = None
        self.former: Leader | None = None
        self.values: dict[str, Any] = {}

    def create(self) -> None:
        """Create the topic if it is not there."""
        with contextlib.closing(data_log(self._worker)) as log:
            log.create(self._name, 1, _CONFIG, self._worker.config_storage_replication_factor)

    def lead(self, term: str, first_values: Callable[[], Values]) -> Leader:
        """Begin to lead in this `term`. If nobody led before, the topic gets the `first_values`. Returns the note of
        it.
        """
        with self._lock:
            self._start_producer()
            self.former = Leader.from_value(self.values.get(KEY))
            number = 1 if self.former is None else self.former.number + 1
            leader = Leader(self._worker.worker_id, self._worker.advertised_url, number, term)
            self._commit({**(first_values() if self.former is None else {}), KEY: leader.to_value()})
            self._leader = leader
            return leader

    def write(self, changes: Values) -> None:
        """Write values by key, None where there is to be none."""
        if not changes:
            return
        with self._lock:
            if self._producer is None:
                self._start_again()
            try:
                self._commit(changes)
            except HelenusError as error:
                if error.kind is not Kind.NOT_OWNER:
                    raise
                self._start_again()  # a worker that led before may have fenced this one
                self._commit(changes)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._producer = None

    def _start_again(self) -> None:
        """Make a producer, unless another worker leads."""
        self._start_producer()
        leader = Leader.from_value(self.values.get(KEY))
        if leader is None or self._leader is None or leader.term != self._leader.term:
            self._producer = None
            raise self._not_leader(leader)

    def _not_leader(self, leader: Leader | None) -> HelenusError:
        other = "another worker" if leader is None else f"the worker {leader.worker_id}"
        problem = f"{other} leads the group {self._worker.group_id} by now"
        return HelenusError(Kind.NOT_OWNER, problem, self._where, "ask that one")

    def _start_producer(self) -> None:
        """Fence all former producers, and read what the topic has by then."""
        settings: dict[str, object] = {
            **client_settings(self._worker.producer_config),
            "transactional.id": f"{PREFIX}group-{self._worker.group_id}",
            "transaction.timeout.ms": str(_TRANSACTION_TIMEOUT_MS),
            "compression.type": "lz4",
        }
        producer: Producer = new_client(Producer, settings, DeliveryReports(), self._where)
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while True:
            try:
                producer.init_transactions(_SLICE_S)
                break
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise broker_error(failure.args[0], self._where) from None
        self.values = self._read()
        self._producer = producer

    def _read(self) -> dict[str, Any]:
        with contextlib.closing(data_planner(self._worker)) as planner:
            end = ends(planner, self._name, 1, time.sleep)[str(PARTITION)]
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

    def _commit(self, changes: Values) -> None:
        """Write in one transaction. Raises NOT_OWNER if the producer is fenced."""
        producer, self._producer = self._producer, None  # one that fails is not used again
        assert producer is not None
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        try:
            producer.begin_transaction()
            for key, value in changes.items():
                text = None if value is None else json.dumps(value, separators=(",", ":"))
                producer.produce(self._name, text, key.encode(), PARTITION)
            while True:
                try:
                    producer.commit_transaction(_SLICE_S)  # no longer: meanwhile no signal handler runs
                    break
                except KafkaException as failure:
                    if not failure.args[0].retriable() or time.monotonic() > deadline:
                        raise
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in FENCED:
                raise HelenusError(Kind.NOT_OWNER, f"Kafka: {text_of(error)}", self._where) from None
            raise broker_error(error, self._where) from None
        for key, value in changes.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        self._producer = producer
