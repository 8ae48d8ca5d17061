"""A Log on Kafka of a producer of one run: the brokers refuse its records from when another run owns their topics.

Each `flush` is a transaction, since only transactional producers can be fenced. Where a batch is to be published
exactly once, `deliver` and `commit` take its place: the positions of what was read are in the records' transaction.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import broker_error, new_client, text_of, topic_error
from helenus_sinks.kafka.groups import send_positions
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.owners import FENCED, Made, NotOwner, RecordsOwner, owners, transactional_id
from helenus_sinks.kafka.settings import client_settings

_ANSWER_TIMEOUT_S = 30.0
_ABORT_TIMEOUT_S = 5.0
_SLICE_S = 0.2
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Of records that were dropped since their transaction failed."""
_TRANSACTION_TIMEOUT_MS = 300_000
"""After which the brokers abort a transaction by themselves. A claim aborts those of the former owner at once: this is
for a run that nobody follows.
"""
_MAX_TRANSACTION_TIMEOUT_MS = 900_000  # brokers' transaction.max.timeout.ms, unless set
_LONGEST_TRANSACTION_S = 60.0
"""A batch may take longer, as with `query.max.rate`: then it is several transactions."""


_NO_LOGGER = logging.getLogger("librdkafka.fenced")
"""librdkafka prints what is fatal to a producer at each `log_level`: it is one of our errors, too."""
_NO_LOGGER.addHandler(logging.NullHandler())
_NO_LOGGER.propagate = False


class NotCommitted(HelenusError):
    """The brokers did not say whether they committed a transaction."""


class OwnedKafkaLog(KafkaLog):
    """A `KafkaLog` of the producer `number` of an `owner`, or of its DRIVER.

    Call `own` before other records than before are appended. The methods raise NotOwner where another run owns those
    that it got last: then no record since the last `flush` is committed.
    """

    def __init__(self, config: Mapping[str, str], owner: RecordsOwner, number: int | str) -> None:
        # librdkafka takes none that is shorter than this, which an operator may have set.
        message_ms = config.get("message.timeout.ms", config.get("delivery.timeout.ms", "0"))
        timeout_ms = min(max(_TRANSACTION_TIMEOUT_MS, int(message_ms)), _MAX_TRANSACTION_TIMEOUT_MS)
        timeouts = {"transaction.timeout.ms": str(timeout_ms), **config}
        for key in ("message.timeout.ms", "delivery.timeout.ms"):
            if key in config:
                timeouts[key] = str(min(int(config[key]), int(timeouts["transaction.timeout.ms"])))
        super().__init__({**timeouts, "transactional.id": transactional_id(owner.run, number)})
        self._config["logger"] = _NO_LOGGER
        self._owner = owner
        self._settings = dict(config)
        self._owned: set[Made] = set()
        self._made: Made | None = None
        self._idle: Producer | None = None
        """The producer while no transaction is open; `_producer` has it while one is."""
        self._ends_at = self._begun_at = math.inf
        self._groups: dict[str, Any] = {}
        """What a transaction names a consumer group by."""
        self._is_fenced = self._is_purged = False
        self._cause: KafkaError | None = None
        self.is_replaced = False
        """Whether another producer of the run has its number, or its transaction took too long: use another number."""

    def own(self, made: Made) -> None:
        """The next records are these: append them only while this run owns them."""
        self._made = made
        if made not in self._owned:
            self._owned.add(made)
            if (self._idle or self._producer) is not None:  # otherwise the start of one asks
                self._check_owners({made})

    def check_together(self, records: Collection[Made]) -> None:
        """Ask in one request who owns records of which `own` would ask one after the other. It raises for those that
        this run does not own, still.

        Raises HelenusError if the brokers do not say.
        """
        new = set(records) - self._owned
        if not new:
            return
        self._made = None
        self._owned |= new
        if (self._idle or self._producer) is not None:  # otherwise the start of one asks
            self._check_owners(new)

    def keep_short(self, timeout: float) -> None:
        if self._producer is not None and time.monotonic() > self._ends_at:
            self.flush(timeout)

    def flush(self, timeout: float) -> None:
        if self._producer is None:
            return
        self.deliver(timeout)
        self._commit(timeout)

    def deliver(self, timeout: float) -> None:
        """Wait until the brokers have all records, in a transaction that stays open. Raises as `flush`: then all
        records since the last commit are dropped.
        """
        try:
            super().flush(timeout)
        except HelenusError:
            self._raise_if_fenced()
            if self._cause is not None:
                raise topic_error(self._cause, self._where, self._failed_topic) from None
            raise

    def commit(self, positions: Mapping[str, Sequence[TopicPartition]], timeout: float) -> None:
        """Commit what was delivered since the last commit, and with it positions by consumer group.

        Raises HelenusError. Before the brokers are asked to commit, what was delivered is dropped, as by `deliver`.
        After that it is NotCommitted, if nobody knows whether they did: whoever reads the group's positions once
        another producer with this transactional id began, learns it.
        """
        producer = self._producer or self._start()
        try:
            for group, group_positions in positions.items():
                send_positions(producer, self._group(group), group_positions, _ANSWER_TIMEOUT_S)
        except KafkaException as failure:
            try:
                raise self._producer_error(failure) from None
            finally:
                self.close()
        try:
            self._commit(timeout)
        except NotOwner:
            raise
        except HelenusError as error:
            raise NotCommitted(error.kind, error.what, error.where, error.advice) from None

    def _group(self, group: str) -> Any:
        if group not in self._groups:
            settings = {**client_settings(self._settings), "group.id": group}
            consumer = new_client(Consumer, settings, self._reports, self._where)
            with contextlib.closing(consumer):
                self._groups[group] = consumer.consumer_group_metadata()
        return self._groups[group]

    def close(self) -> None:
        """Abort the transaction that is open, if one is, and close all connections."""
        producer, self._producer, self._idle = self._producer, None, None
        if producer is not None:
            if self._is_purged and self._cause is None:
                self._cause = _transaction_error(producer)
            # Drops what is queued, and waits for what is in flight. If the brokers don't answer, they abort it when a
            # producer with this transactional id begins.
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(max(0.0, min(_ABORT_TIMEOUT_S, self._deadline - time.monotonic())))
        super().close()

    def _commit(self, timeout: float) -> None:
        """Commit the open transaction. Raises as `flush`."""
        producer = self._producer
        assert producer is not None
        deadline = min(time.monotonic() + timeout, self._deadline)
        while True:
            try:
                producer.commit_transaction(_SLICE_S)  # no longer: meanwhile no signal handler runs
                break
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    continue
                self._note_error(error)
                self.close()
                self._raise_if_fenced()
                problem = f"Kafka did not commit the transaction: {text_of(error)}"
                raise HelenusError(Kind.APPEND_FAILED, problem, self._where) from None
        self._idle, self._producer = producer, None

    def _start(self) -> Producer:
        """Begin a transaction. Raises as `append`."""
        producer = self._idle or self._make_producer()
        try:
            producer.begin_transaction()
        except KafkaException as failure:
            self.close()
            raise self._producer_error(failure) from None
        self._idle, self._producer, self._error = None, producer, None
        self._cause, self._is_purged = None, False
        self._begun_at = time.monotonic()
        self._ends_at = self._begun_at + _LONGEST_TRANSACTION_S
        return producer

    def _make_producer(self) -> Producer:
        """Return a producer that was begun before the owners were read."""
        self._is_fenced = False
        producer = super()._start()
        self._producer = None  # no transaction is open
        try:
            producer.init_transactions(_ANSWER_TIMEOUT_S)
        except KafkaException as failure:
            raise broker_error(failure.args[0], self._where) from None
        if self._owned:
            self._check_owners(set(self._owned))
        return producer

    def _check_owners(self, owned: set[Made]) -> None:
        """Ask who owns records. Raise NotOwner if another run has those that come next; others are asked for again when
        they come.
        """
        try:
            noted_owners = owners(self._settings, owned)
        except HelenusError:
            self._owned -= owned
            raise
        lost = {made: owner for made, owner in noted_owners.items() if owner is None or owner.run != self._owner.run}
        self._owned -= lost.keys()
        if self._made in lost:
            other = lost[self._made]
            if other is None:
                problem = "the owner of these records is noted no more, as of a topic that was made anew: claimed again"
                raise HelenusError(Kind.APPEND_FAILED, problem, f"{self._where}, topic {self._made.topic}")
            raise not_owner(self._made, other, self._where)

    def _raise_if_fenced(self) -> None:
        """Where this producer was fenced, raise NotOwner if another run owns the records now, or else APPEND_FAILED."""
        if not self._is_fenced:
            return
        self._is_fenced = False
        self._check_owners({*self._owned, *filter(None, [self._made])})
        self.is_replaced = True
        where = f"{self._where}, {self._config['transactional.id']}"
        open_s, timeout_s = time.monotonic() - self._begun_at, int(str(self._config["transaction.timeout.ms"])) / 1000
        if open_s > timeout_s:
            problem = (
                f"Kafka aborted the transaction: it was open for {open_s:.0f} s, where {timeout_s:.0f} are allowed"
            )
            raise HelenusError(Kind.APPEND_FAILED, problem, where, "lower max.batch.size, if this comes again")
        problem = "Kafka refuses records of this producer: another one with its transactional id began"
        raise HelenusError(Kind.APPEND_FAILED, problem, where)

    def _producer_error(self, failure: KafkaException, topic: str = "") -> HelenusError:
        """Return the error for which the transaction failed: after one the producer only says that it did. It may be of
        an earlier record: so it is never RECORD_TOO_LARGE, which concerns the record that is appended.
        """
        error = failure.args[0]
        self._note_error(error)
        producer = self._producer
        if error.code() not in (KafkaError._STATE, KafkaError._FATAL) or producer is None:
            passing = super()._producer_error(failure, topic)
            self._raise_if_fenced()
            return passing
        try:
            producer.poll(0)  # delivery reports, or the fatal error
        except KafkaException as fatal:
            self._note_error(fatal.args[0])
            error = fatal.args[0]
        cause = (
            self._error if self._error is not None and not self._is_purged else _transaction_error(producer) or error
        )
        self._note_error(cause)
        failed_topic = self._failed_topic or topic
        self.close()
        self._raise_if_fenced()
        if cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._read_limit(failed_topic)
            problem = "a record is larger than its topic takes: the batch is done again, and finds it"
            return HelenusError(Kind.APPEND_FAILED, problem, f"{self._where}, topic {failed_topic}")
        return topic_error(cause, self._where, failed_topic)

    def _on_delivery_error(self, error: KafkaError | None, record: Any) -> None:
        self._note_error(error)
        self._is_purged |= error is not None and error.code() in _PURGED and self._error is None
        super()._on_delivery_error(error, record)

    def _note_error(self, error: KafkaError | None) -> None:
        self._is_fenced |= error is not None and error.code() in FENCED


def _transaction_error(producer: Producer) -> KafkaError | None:
    """Return why the transaction of a producer failed that can't be committed any more: a commit says it."""
    try:
        producer.commit_transaction(_SLICE_S)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        return None if error.code() == KafkaError._STATE else error
    return None


def not_owner(made: Made, owner: RecordsOwner, where: str) -> NotOwner:
    """Return the error of a run that does not own records, as `owner` does."""
    problem = f"another worker writes these records: {owner.who}"
    return NotOwner(Kind.NOT_OWNER, problem, f"{where}, connector {made.connector}, topic {made.topic}")
