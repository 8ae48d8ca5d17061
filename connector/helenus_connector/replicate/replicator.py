"""Follows events topics into another cluster: `helenus-connector replicate`.

    consume → write → acknowledged by the target → commit the offsets

Each step may be repeated, or be done by two processes: a cell is the same however often it is written with its write
time. So nothing is fenced, and processes of one consumer group share the partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from helenus_connector.config.replication import ReplicationSettings
from helenus_connector.replicate._cluster_table import open_session, read_table
from helenus_connector.replicate._other_processes import OtherProcesses
from helenus_connector.replicate._requests import Patience
from helenus_connector.replicate._row_scan import InitialCopy as InitialCopy
from helenus_connector.replicate._row_scan import RowScan
from helenus_connector.replicate._table_copy import Batch, TableCopy
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import POLICIES, Action, HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode, without_frames
from helenus_schemas.service.failpoints import reach
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.groups import committed

_MAX_MESSAGES = 500
_POLL_S = 0.5
_ANSWER_TIMEOUT_S = 10.0
_REPORT_S = 10.0
_END_TIMEOUT_S = 60.0
"""For how long --once waits for partitions to be assigned, or for events, before it ends with an error."""
_LOOP_ADVICE = (
    "set target.cdc=allow if nothing replicates the target back to the source; else ALTER TABLE … WITH cdc = false "
    "there"
)
_LOST_ADVICE = (
    "raise the retention of the events topic; then start with --snapshot and a new file, and run compare --repair"
)
_log = structlog.get_logger(__name__)


@contextmanager
def both_sessions(settings: ReplicationSettings, once: bool) -> Iterator[tuple[Any, Any]]:
    """Give sessions of source and target, which end with the context. Unless it is `once`, clusters that can't be
    reached are waited for.
    """
    kinds = frozenset() if once else frozenset({Kind.CASSANDRA_UNREACHABLE})
    patience = Patience(once)
    source = patience.retry(partial(open_session, settings, is_target=False), kinds)
    try:
        target = patience.retry(partial(open_session, settings.target_cassandra, is_target=True), kinds)
        try:
            yield source, target
        finally:
            target.cluster.shutdown()
    finally:
        source.cluster.shutdown()


def refuse_loops(settings: ReplicationSettings, sessions: tuple[Any, Any]) -> None:
    """Raise HelenusError CONFIG if a table would be replicated to itself, or back by another replicator."""
    source_hosts, target_hosts = ({host.host_id for host in s.cluster.metadata.all_hosts()} for s in sessions)
    if source_hosts & target_hosts and settings.target_keyspace_name == settings.keyspace:
        problem = "source and target are the same keyspace of the same cluster"
        raise HelenusError(Kind.CONFIG, problem, settings.keyspace, "correct target.cassandra.contact.points")
    if settings.target_cdc == "allow":
        return
    for name in settings.table:
        table = read_table(sessions[1], settings.target_keyspace_name, name, "target")
        if table.cdc:
            problem = "the target's table has CDC enabled: replicated back, each write would be repeated for ever"
            raise HelenusError(Kind.CONFIG, problem, f"target {table.full_name}", _LOOP_ADVICE)


def begin_patiently(begin: Callable[[], Replicator], once: bool) -> Replicator:
    """Return what `begin` makes, which reads definitions. Clusters that do not answer are waited for; with `once` for
    some attempts. Raises HelenusError.
    """
    replicator: Replicator = Patience(once).retry(begin)
    return replicator


class Replicator:
    """Replicates tables until it is stopped; with `once`, to the end that the topics had. `applied` counts changes."""

    def __init__(
        self, settings: ReplicationSettings, sessions: tuple[Any, Any], once: bool, snapshot: InitialCopy | None
    ) -> None:
        self._settings = settings
        self._once = once
        self._patience = Patience(once, self._wait)
        self._topics = {settings.events_topic_of(name): name for name in settings.table}
        self._copies = {name: TableCopy(settings, name, sessions, self._patience) for name in settings.table}
        self._scan = RowScan(snapshot, self._copies, self._patience) if snapshot else None
        self._reports = DeliveryReports()
        self._assigned: set[tuple[str, int]] = set()
        self._ended: set[tuple[str, int]] = set()
        self._others: OtherProcesses | None = None
        self._has_assignment = False
        self.applied = 0
        self._reported_at = time.monotonic()
        self._consumer: Any = None
        self._unassigned: list[TopicPartition] = []
        self.is_stopping = False

    def run(self) -> int:
        """Replicate; return how many changes were applied. Raises HelenusError."""
        where = self._settings.bootstrap_servers
        self._consumer = new_client(Consumer, self._consumer_settings, self._reports, where)
        try:
            self._patience.retry(self._check_topics, _BROKER_KINDS)
            self._patience.retry(self._pass_removed, _BROKER_KINDS)
            self._consumer.subscribe(list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke)
            self._follow()
        except KafkaException as failure:
            raise broker_error(failure.args[0], where) from None
        finally:
            self._consumer.close()
        return self.applied

    @property
    def _consumer_settings(self) -> dict[str, Any]:
        return {
            "auto.offset.reset": "error",
            "session.timeout.ms": "10000",  # for so long nobody reads what a killed process had
            "log_level": "0",
            **self._settings.consumer_config,
            "group.id": self._settings.group,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }

    def _follow(self) -> None:
        idle_since = time.monotonic()
        while not self.is_stopping:
            messages = self._consume()
            if self._unassigned:
                self._patience.retry(self._begin_reading, _BROKER_KINDS)
            if messages:
                idle_since = time.monotonic()
                self._apply(messages)
                reach("replicate.before-commit")
                self._commit(messages)
            if self._scan is not None and not self._scan.is_complete:
                self._scan.copy_span()
                idle_since = time.monotonic()
            self._report()
            if self._once and self._is_at_end:
                if self._others is None:
                    self._others = OtherProcesses(self._consumer, self._consumer_settings, list(self._topics))
                if self._others.are_at_end(self._assigned):
                    return
                if self._others.have_moved:
                    idle_since = time.monotonic()
            if self._once and time.monotonic() - idle_since > _END_TIMEOUT_S:
                problem = self._reports.last.str() if self._reports.last else "no partition, or no event, came"
                raise HelenusError(Kind.BROKER_UNREACHABLE, f"Kafka: {problem}", self._settings.bootstrap_servers)

    @property
    def _is_at_end(self) -> bool:
        is_scanned = self._scan is None or self._scan.is_complete
        return is_scanned and self._has_assignment and self._assigned <= self._ended

    def _check_topics(self) -> None:
        """Raise HelenusError if the brokers can't be reached, or a topic is missing."""
        where = self._settings.bootstrap_servers
        try:
            topics = self._consumer.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        except KafkaException as failure:
            error = failure.args[0]
            is_silent = error.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
            raise broker_error(self._reports.last if is_silent and self._reports.last else error, where) from None
        for topic, name in self._topics.items():
            if topic not in topics or topics[topic].error is not None:
                advice = f"start the agents with {self._settings.keyspace}.{name} in their tables, which make it"
                raise HelenusError(Kind.TOPIC_MISSING, f"there is no topic {topic}", where, advice)

    def _pass_removed(self) -> None:
        """Commit the first offsets there are where events were removed unread, of tables whose rows are all copied from
        now on: these say what the events said. What is removed later than now is lost.
        """
        begun_anew = self._scan.begun_anew if self._scan is not None else ()
        topics = [topic for topic, name in self._topics.items() if name in begun_anew]
        if not topics:
            return
        try:
            metadata = self._consumer.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
            partitions = [TopicPartition(topic, number) for topic in topics for number in metadata[topic].partitions]
            passed = []
            for position in committed(self._consumer, partitions):
                low, _ = self._consumer.get_watermark_offsets(position, timeout=_ANSWER_TIMEOUT_S)
                if 0 <= position.offset < low:
                    passed.append(TopicPartition(position.topic, position.partition, low))
                    where = {"topic": position.topic, "partition": position.partition}
                    _log.warning("replicate.passed", **where, events=f"{position.offset} to {low - 1}")
            if passed:
                self._consumer.commit(offsets=passed, asynchronous=False)
        except KafkaException as failure:
            raise broker_error(failure.args[0], self._settings.group) from None

    def _consume(self) -> list[Message]:
        """Return the next messages; those that say that a partition has no more are noted."""
        is_scanning = self._scan is not None and not self._scan.is_complete
        messages = []
        consumed = self._consumer.consume(_MAX_MESSAGES, 0.01 if is_scanning else _POLL_S)
        for message in consumed:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add((message.topic(), message.partition()))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise HelenusError(Kind.OFFSETS_LOST, "unread events were removed", message.topic(), _LOST_ADVICE)
            else:
                problem = broker_error(error, self._settings.bootstrap_servers)
                if problem.action is not Action.RETRY or self._once:
                    raise problem
                _log.warning("replicate.retried", error=str(problem))
        return messages

    def _apply(self, messages: Sequence[Message]) -> None:
        """Write the changes of messages. A TRUNCATE or a DROP waits for those before it."""
        run: list[Message] = []
        for message in messages:
            scope = _decoded(message).scope
            if scope is Scope.TABLE:
                self._apply_changes(run)
                run = []
                self._remove_truncated(self._topics[message.topic()], _decoded(message).write_time)
            elif scope is Scope.GAP:
                _log.error(
                    "replicate.gap",
                    topic=message.topic(),
                    node=_decoded(message).node,
                    advice="changes are missing: run helenus-connector replicate --snapshot, then compare --repair",
                )
            else:
                run.append(message)
        self._apply_changes(run)

    def _apply_changes(self, messages: Sequence[Message]) -> None:
        """Write the changes of messages, in any order. If that fails for a cause that may pass, all are written again,
        with definitions that are read anew.
        """
        names = {self._topics[message.topic()] for message in messages}
        is_repeated = False

        def attempt() -> None:
            nonlocal is_repeated
            if is_repeated:
                for name in names:
                    self._copies[name].refresh()
            is_repeated = True
            batches = {name: Batch() for name in names}
            for message in messages:
                name = self._topics[message.topic()]
                key, value = without_frames(message.key(), message.value() or b"")
                try:
                    self._copies[name].add(batches[name], key, decode(value))
                except Malformed as error:
                    raise _unreadable(error, message) from None
            for name, batch in batches.items():
                self._copies[name].apply(batch)

        self._patience.retry(attempt, {Kind.SCHEMA_BEHIND} if self._once else _RETRIED)
        self.applied += len(messages)

    def _remove_truncated(self, name: str, truncated_at: int | None) -> None:
        copy = self._copies[name]
        copy.note_truncation(truncated_at)

        def remove() -> int:
            copy.refresh()
            return copy.remove_truncated()

        removed = self._patience.retry(remove, {Kind.SCHEMA_BEHIND} if self._once else _RETRIED)
        _log.info("replicate.truncated", table=name, rows_deleted=removed)
        self.applied += 1

    def _commit(self, messages: Sequence[Message]) -> None:
        """Commit the offsets of messages that are written, of partitions that this process still has."""
        offsets: dict[tuple[str, int], int] = {}
        for message in messages:
            offsets[message.topic(), message.partition()] = message.offset() + 1
        positions = [TopicPartition(*name, offset) for name, offset in offsets.items() if name in self._assigned]
        if not positions:
            return
        try:
            self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as failure:
            # What is not committed is written once more, by whoever has the partition.
            _log.warning("replicate.commit_failed", error=str(broker_error(failure.args[0], self._settings.group)))

    def _wait(self, seconds: float) -> None:
        """Pause, and stay a member of the consumer group meanwhile, which asks for a poll now and then."""
        deadline = time.monotonic() + seconds
        remaining = seconds
        while remaining >= 0 and not self.is_stopping:
            with suppress(KafkaException):
                self._consumer.pause(self._consumer.assignment())
            self._note_polled(self._consumer.poll(min(remaining, 1.0)))
            remaining = deadline - time.monotonic()
        with suppress(KafkaException):
            self._consumer.resume(self._consumer.assignment())
        if self.is_stopping:
            raise Stopped

    def _note_polled(self, message: Message | None) -> None:
        """Take back a message that a pause met: of a partition that was assigned meanwhile. Its end is noted."""
        if message is None:
            return
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            self._ended.add((message.topic(), message.partition()))
        elif error is None:
            with suppress(KafkaException):
                self._consumer.seek(TopicPartition(message.topic(), message.partition(), message.offset()))

    def _on_assign(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        """Take over partitions. They are read once `_begin_reading` knows from where: that may have to be tried again,
        and a callback must not wait.
        """
        self._has_assignment = True
        self._assigned |= {(p.topic, p.partition) for p in partitions}
        self._unassigned += partitions
        consumer.incremental_assign([])

    def _begin_reading(self) -> None:
        """Begin to read the partitions that came last. Raises HelenusError, and has not begun with any then."""
        partitions = [p for p in self._unassigned if (p.topic, p.partition) in self._assigned]
        try:
            positions = [self._first_unread(self._consumer, partition) for partition in partitions]
            self._consumer.incremental_assign(positions)
        except KafkaException as failure:
            raise broker_error(failure.args[0], self._settings.group) from None
        self._unassigned = []

    def _first_unread(self, consumer: Any, partition: TopicPartition) -> TopicPartition:
        """Return where to begin to read a partition. Raises HelenusError OFFSETS_LOST if events that were not read are
        not there any more.
        """
        position = committed(consumer, [partition])[0]
        low, _ = consumer.get_watermark_offsets(partition, timeout=_ANSWER_TIMEOUT_S)
        if position.offset >= low:
            return TopicPartition(partition.topic, partition.partition, position.offset)
        if position.offset >= 0:
            problem = f"events {position.offset} to {low - 1} were removed before they were read"
            where = f"topic {partition.topic}, partition {partition.partition}"
            raise HelenusError(Kind.OFFSETS_LOST, problem, where, _LOST_ADVICE)
        name = self._topics[partition.topic]
        if low and (self._scan is None or name not in self._scan.begun_anew):
            _log.warning(
                "replicate.begins_late",
                topic=partition.topic,
                partition=partition.partition,
                offset=low,
                advice="rows of before are not copied: give --snapshot",
            )
        return TopicPartition(partition.topic, partition.partition, low)

    def _on_revoke(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        names = {(p.topic, p.partition) for p in partitions}
        self._assigned -= names
        self._ended -= names
        unassigned = {(p.topic, p.partition) for p in self._unassigned}
        self._unassigned = [p for p in self._unassigned if (p.topic, p.partition) not in names]
        consumer.incremental_unassign([p for p in partitions if (p.topic, p.partition) not in unassigned])

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._reported_at < _REPORT_S:
            return
        self._reported_at = now
        lag = 0
        with suppress(KafkaException):
            for position in self._consumer.position(self._consumer.assignment()):
                _, high = self._consumer.get_watermark_offsets(position, cached=True)
                lag += max(0, high - max(position.offset, 0)) if high >= 0 else 0
        copied = {} if self._scan is None else {"rows_copied": self._scan.rows, "scanned": f"{self._scan.share:.1%}"}
        outdated = sum(copy.outdated for copy in self._copies.values())
        _log.info("replicate.progress", changes=self.applied, lag=lag, outdated=outdated, **copied)


class Stopped(Exception):
    """The replicator was stopped while it waited."""


_BROKER_KINDS = frozenset({Kind.BROKER_UNREACHABLE, Kind.TOPIC_MISSING})
_RETRIED = frozenset(kind for kind, policy in POLICIES.items() if policy.action is Action.RETRY)


def _decoded(message: Message) -> Any:
    try:
        return decode(without_frames(message.key(), message.value() or b"")[1])
    except Malformed as error:
        raise _unreadable(error, message) from None


def _unreadable(error: Malformed, message: Message) -> HelenusError:
    advice = "start a newer version if there is one; else commit the next offset to the group, then compare --repair"
    return HelenusError(Kind.POISON_EVENT, str(error), _location(message), advice)


def _location(message: Message) -> str:
    return f"topic {message.topic()}, partition {message.partition()}, offset {message.offset()}"
