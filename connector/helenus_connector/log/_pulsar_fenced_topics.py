"""Topics on Pulsar, each of one partition, that only the owner of the highest epoch appends to, in transactions.

    own      have brokers refuse all earlier owners → the end does not move any more
    read     all records of complete transactions, since the last trim
    commit   records, of which the last one says that the transaction is complete
    trim     let brokers drop what came before

Pulsar's own transactions fence nobody. So a record says in its headers which transaction of which epoch it belongs to,
which of its records it is, and the last one that it is. One that was cut off by a kill, or sent twice after a lost
connection, is told by that. Brokers keep what the subscription `helenus-journal` has not acknowledged, whatever the
topic's retention is, and `trim` moves it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from helenus_connector.log._pulsar_offsets import offset, parts
from helenus_connector.log._pulsar_planner import PulsarPlanner
from helenus_connector.log._pulsar_reader import PulsarMessage, read, records
from helenus_connector.log.events import FencedContent, FencedRecord, OffsetRange
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import pulsar_error
from helenus_sinks.pulsar.log import PulsarLog
from helenus_sinks.pulsar.owners import claim

PARTITION = 0
SUBSCRIPTION = "helenus-journal"
_CONFIG = {"retention.ms": "60000"}
"""What is not needed any more, the subscription keeps no longer; infinite, it would fill disks."""
_TRANSACTION, _INDEX, _LAST = "t", "i", "last"
_DAMAGED = "delete the topic while no worker runs: what it has is lost then"


@dataclass
class Transactions:
    """The records of complete transactions, from messages in their order, each with the offset of its transaction's
    first.
    """

    records: list[FencedRecord] = field(default_factory=list)
    _open: list[FencedRecord] = field(default_factory=list)
    _open_id: tuple[int, int] = (-1, -1)
    _last_id: tuple[int, int] = (-1, -1)

    def add(self, message: FencedRecord, headers: Mapping[str, bytes | None]) -> None:
        """Add the next message. Raises ValueError for one of another program."""
        epoch, _, number = (headers.get(_TRANSACTION) or b"").partition(b"-")
        transaction, index = (int(epoch), int(number)), int(headers.get(_INDEX) or b"")
        if transaction <= self._last_id:
            return  # sent twice, since its acknowledgement was lost
        if transaction != self._open_id:
            self._open, self._open_id = [], transaction
        if index < len(self._open):
            return
        if index > len(self._open):
            raise ValueError("a record of a transaction is missing")
        self._open.append(message._replace(offset=self._open[0].offset) if self._open else message)
        if _LAST in headers:
            self.records += self._open
            self._open, self._last_id = [], transaction


class FencedTopics:
    """The writer of such topics. Any thread may use it; one transaction is committed at a time."""

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._lock = threading.RLock()
        self._log = PulsarLog(config)
        self._epochs: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._is_closed = False

    def create(self, topics: Collection[str]) -> None:
        """Create topics that are not there, with the subscription. Raises HelenusError: CONFIG for one of several
        partitions, and the brokers' errors.
        """
        for topic in topics:
            with self._lock:
                count = self._log.create(topic, 1, _CONFIG)
            if count != 1:
                problem = f"the topic has {count} partitions, where it has to have one"
                raise HelenusError(Kind.CONFIG, problem, self._where(topic), "delete it, or set another name")
        with closing(PulsarPlanner(self._config)) as planner:
            for topic in topics:
                planner.unread(SUBSCRIPTION, topic, PARTITION)

    def own(self, topics: Collection[str], epoch: int) -> None:
        """Have brokers refuse whoever has a lower epoch. Raises HelenusError: NOT_OWNER if there is a higher one, and
        the brokers' errors.
        """
        errors = claim(self._config, dict.fromkeys(topics, epoch), (), lambda: self._is_closed)
        for error in errors.values():
            raise error
        self.note_owned(topics, epoch)

    def note_owned(self, topics: Collection[str], epoch: int) -> None:
        """Note that brokers refuse lower epochs than this already."""
        with self._lock:
            for topic in topics:
                self._epochs[topic], self._counts[topic] = epoch, 0
                self._log.keep(topic, epoch)

    def owns(self, topic: str) -> bool:
        """Return whether it can commit without an `own`: not after a commit of which nobody knows whether it
        happened.
        """
        return topic in self._epochs

    def disown(self, topic: str) -> None:
        """Commit nothing more before the next `own`."""
        self._epochs.pop(topic, None)

    def ends(self, topics: Collection[str]) -> dict[str, int]:
        """Return the offset after each topic's last record."""
        with closing(PulsarPlanner(self._config)) as planner:
            return {topic: planner.unread(SUBSCRIPTION, topic, PARTITION).end for topic in topics}

    def read(self, topics: Collection[str]) -> dict[str, FencedContent]:
        """Return the content of each topic since the last trim. The end stays where it is while the topic is owned.
        Raises the brokers' errors.
        """
        with closing(PulsarPlanner(self._config)) as planner:
            ranges = [planner.unread(SUBSCRIPTION, topic, PARTITION) for topic in topics]
        transactions = {topic: Transactions() for topic in topics}
        errors: list[HelenusError] = []

        def note_lost(_: OffsetRange, __: int) -> None:
            """The end of what was trimmed: nothing is there."""

        def note_failed(_: OffsetRange, error: HelenusError) -> None:
            errors.append(error)

        damaged: dict[str, HelenusError] = {}
        for chunk in read(self._config, ranges, "continue", note_lost, note_failed, records):
            topic = chunk[0].topic()
            try:
                _add_all(transactions[topic], chunk, self._where(topic))
            except HelenusError as error:
                damaged.setdefault(topic, error)
        if errors:
            raise errors[0]
        # Whoever trims leaves what it wrote since: a subscription at the end was moved by something else.
        return {
            r.topic: FencedContent(transactions[r.topic].records, r.end, damaged.get(r.topic), 0 < r.end <= r.start)
            for r in ranges
        }

    def commit(self, records_by_topic: Mapping[str, Sequence[FencedRecord]], timeout_s: float) -> None:
        """Append the records of each topic as a transaction of its own, and wait until brokers have them. Raises
        HelenusError: NOT_OWNER if somebody has a higher epoch, and the brokers' errors: then nobody knows which topics
        have theirs, and they need an `own`.
        """
        with self._lock:
            if missing := [topic for topic in records_by_topic if not self.owns(topic)]:
                raise pulsar_error(Kind.BROKER_UNREACHABLE, "an earlier write failed", self._where(missing[0]))
            epochs = {topic: self._epochs.pop(topic) for topic in records_by_topic}
            try:
                for topic, topic_records in records_by_topic.items():
                    self._append(topic, epochs[topic], topic_records)
                self._log.flush(timeout_s)
            except HelenusError:
                self._log.close()  # or what waits in it goes out later, once all was read and is believed to be known
                raise
            self._epochs |= epochs

    def _append(self, topic: str, epoch: int, records: Sequence[FencedRecord]) -> None:
        """Append the next transaction of a topic."""
        self._counts[topic] += 1
        name, last = f"{epoch}-{self._counts[topic]}".encode(), len(records) - 1
        for index, record in enumerate(records):
            headers = [(_TRANSACTION, name), (_INDEX, str(index).encode())]
            headers += [(_LAST, b"1")] if index == last else []
            self._log.append(topic, PARTITION, record.key, record.value, headers)

    def trim(self, offsets: Mapping[str, int]) -> None:
        """Let brokers drop what is before these begins, or ends, of transactions. Raises HelenusError: what is not
        dropped is read again.
        """
        positions = {topic: {str(PARTITION): _entry_begin(number)} for topic, number in offsets.items() if number}
        with closing(PulsarPlanner(self._config)) as planner:
            planner.commit(SUBSCRIPTION, positions)

    def close(self) -> None:
        """Append nothing more. Any thread may call this."""
        self._is_closed = True
        self._log.hurry(0.0)
        with self._lock:
            self._epochs.clear()
            self._log.close()

    def _where(self, topic: str) -> str:
        return f"{self._config.service_url}, topic {topic}"


def _entry_begin(number: int) -> int:
    """Return where the entry begins that a transaction begins, or the one after that which ends a transaction."""
    ledger, entry, index = parts(number)
    return offset(ledger, entry + 1, 0) if index else number


def _add_all(transactions: Transactions, chunk: Sequence[PulsarMessage], where: str) -> None:
    for message in chunk:
        record = FencedRecord(message.key() or b"", message.value(), message.offset())
        try:
            transactions.add(record, dict(message.headers()))
        except ValueError:
            problem = "a record is not of this group's workers: another program writes the topic, or has its name"
            raise HelenusError(Kind.STATE, problem, f"{where}, offset {record.offset}", _DAMAGED) from None
