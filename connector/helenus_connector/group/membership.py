"""Who leads a group: the member to which its consumer group assigns the one partition of its topic.

A member that heartbeats no more, since it was killed, stopped or cut off, is put out of the group by the brokers after
`session.timeout.ms`, and another one gets the partition. Who can't reach the brokers loses it, too, but nobody may have
it meanwhile: so a leader goes on until it reads that another one leads. What it writes until then, the brokers refuse.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog
from helenus_connector.group._leader import KEY, Leader
from helenus_connector.group._topic_writer import PARTITION
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.settings import client_settings

_log = structlog.get_logger(__name__)
_POLL_S = 0.5
_HANGS_MS = 30_000
"""A Python process in which no thread runs for so long leads no more."""
_HEARTBEATS = 3
"""In a `session.timeout.ms`."""
_LONGEST_FETCH_MS = 5000  # a new note is answered at once
_LEAVE_S = 5.0
_REFUSED = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant this login Read on the group, as docs/security.md says",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant this login Read on the topic, as docs/security.md says",
    KafkaError.INVALID_SESSION_TIMEOUT: "set session.timeout.ms to what brokers allow (group.min.session.timeout.ms)",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "another program has this group: set another group.id",
    KafkaError.GROUP_MAX_SIZE_REACHED: "stop members of the group, or raise the brokers' group.max.size",
}
"""What no waiting mends."""


class GroupMembership:
    """The membership of a worker in its group, from `join` until `leave`. `changed` is called, in other threads, when
    it may have begun or ceased to lead.
    """

    def __init__(self, worker: WorkerSettings, changed: Callable[[], None]) -> None:
        self._worker = worker
        self._changed = changed
        self._where = f"{worker.bootstrap_servers}, group {worker.group_id}"
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._is_assigned = self._is_lost = self._is_replaced = False
        self._wait_reasons = ReasonLog()
        self._noted: Leader | None = None
        self._led: Leader | None = None
        self.error: HelenusError | None = None
        """Why the worker can't be a member."""

    def join(self) -> None:
        """Join the group. Its topic is there by now. Raises HelenusError(CONFIG)."""
        timeout_ms = self._worker.session_timeout_ms
        settings: dict[str, object] = {
            **client_settings(self._worker.consumer_config),
            "group.id": self._worker.group_id,
            "client.id": f"helenus-{self._worker.worker_id}",
            "session.timeout.ms": str(timeout_ms),
            "heartbeat.interval.ms": str(max(1, timeout_ms // _HEARTBEATS)),
            "max.poll.interval.ms": str(max(_HANGS_MS, timeout_ms)),
            "enable.auto.commit": "false",
            # A member that joins takes nothing from the one that leads.
            "partition.assignment.strategy": "cooperative-sticky",
        }
        member: Consumer = new_client(Consumer, settings, DeliveryReports(), self._where)
        reading = {
            **client_settings(self._worker.consumer_config),
            "group.id": self._worker.group_id,  # which it does not join
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
            "fetch.wait.max.ms": str(_LONGEST_FETCH_MS),
            "auto.offset.reset": "earliest",
        }
        reader: Consumer = new_client(Consumer, reading, DeliveryReports(), self._where)
        reader.assign([TopicPartition(self._worker.group_topic, PARTITION, OFFSET_BEGINNING)])
        member.subscribe(
            [self._worker.group_topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        for consumer, note in ((member, lambda _: None), (reader, self._note_record)):
            thread = threading.Thread(target=self._poll, args=(consumer, note), name="group", daemon=True)
            thread.start()
            self._threads.append(thread)

    def leave(self) -> None:
        """Leave the group: another member gets to lead at once. Returns within seconds."""
        self._ending.set()
        for thread in self._threads:
            thread.join(_LEAVE_S)

    @property
    def may_begin(self) -> bool:
        """Return whether this worker is to begin to lead now."""
        return self._is_assigned and not self._is_lost and self._led is None

    def note_begun(self, leader: Leader) -> None:
        """Note that this worker leads. It may have read a later note by then."""
        self._led = leader  # first: a note that is read from now on is held against it
        if self._noted is not None and self._noted.number > leader.number:
            self._is_replaced = True

    @property
    def leads(self) -> bool:
        """Return whether this worker leads, as far as it knows."""
        return self._led is not None and self._is_assigned and not self._is_replaced

    def leader(self) -> Leader | None:
        """Return who leads, as far as it is known."""
        return self._noted

    def _poll(self, consumer: Consumer, note: Callable[[Message], None]) -> None:
        with contextlib.closing(consumer):
            while not self._ending.is_set():
                try:
                    message = consumer.poll(_POLL_S)
                    if message is not None and message.error() is not None:
                        raise KafkaException(message.error())
                    if message is not None:
                        note(message)
                except KafkaException as failure:
                    self._note_error(failure.args[0])
                    self._ending.wait(_POLL_S)
                except Exception as failure:  # as of a log that can't be written: it has to go on
                    self._note_wait(f"{type(failure).__name__}: {failure}")
                    self._ending.wait(_POLL_S)

    def _note_error(self, error: KafkaError) -> None:
        problem = broker_error(error, self._where)
        if error.code() in _REFUSED or problem.action is not Action.RETRY:
            advice = _REFUSED.get(error.code(), problem.advice)
            kind = Kind.BROKER_REFUSED if error.code() in _REFUSED else problem.kind
            self.error = HelenusError(kind, problem.what, problem.where, advice)
            self._changed()
        else:
            self._note_wait(str(problem))  # librdkafka goes on by itself

    def _note_wait(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            if self._wait_reasons.is_due("group", reason):
                _log.warning("group.waiting", group=self._worker.group_id, reason=reason)

    def _note_record(self, message: Message) -> None:
        if message.key() != KEY.encode():
            return
        leader = Leader.from_record(message.value())
        if leader is None or leader == self._noted:
            return
        # Numbers may begin anew with the topic: what counts as well is that it came after this worker's own.
        led = self._led
        if led is not None and leader != led and (leader.number > led.number or self._noted == led):
            self._is_replaced = True
        self._noted = leader
        _log.info("group.leader", group=self._worker.group_id, leader=leader.worker_id, number=leader.number)
        self._changed()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_lost = False
        if partitions:
            consumer.incremental_assign(partitions)
            consumer.pause(partitions)  # the other consumer reads it
        if any(partition.partition == PARTITION for partition in partitions):
            self._is_assigned = True
            self._changed()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            consumer.incremental_unassign(partitions)
            self._is_assigned = False
            self._changed()

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            consumer.incremental_unassign(partitions)
        self._is_lost = True
        if self._led is None:
            self._is_assigned = False
