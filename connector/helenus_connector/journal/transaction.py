"""The transaction of one table's part of a batch: its records, what waits after it, and the positions of its events."""

from __future__ import annotations

import time
from dataclasses import dataclass

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.journal._entry import JournalEntry
from helenus_connector.journal._positions import group_of, to_commit
from helenus_connector.journal._topic import PARTITION
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach
from helenus_sinks.kafka.owned_log import NotCommitted, OwnedKafkaLog


@dataclass(slots=True)
class BatchTransaction:
    """A transaction that `log` has open. `ends` is where this part of the batch ends, by events partition, of those
    that go on with it, and `times` when the last events came, ms since the epoch; `epoch` is that of the topic. What
    the batch publishes is noted in the `journal`, a topic, if keys of the topic wait (`has_waiting`). `journal_bytes`
    is how many bytes were. `is_uncertain` says that nobody knows whether the transaction was committed.
    """

    log: OwnedKafkaLog
    journal: str
    settings: ConnectorSettings
    epoch: int
    ends: dict[int, int]
    times: dict[int, int]
    has_waiting: bool
    journal_bytes: int = 0
    is_uncertain: bool = False

    def flush(self, timeout: float) -> None:
        """Wait until the brokers have all records that were appended. Raises as `OwnedKafkaLog.deliver`."""
        self.log.deliver(timeout)

    def abort(self) -> None:
        """Drop all records that were appended."""
        self.log.close()

    def commit(self, outcome: BatchOutcome, timeout: float) -> None:
        """Commit the records with what the batch's outcome is. Raises as `OwnedKafkaLog.commit`."""
        entry = outcome_entry(self.settings.name, self.settings.events, outcome, self.has_waiting)
        if not entry.is_empty:
            self._append(entry, timeout)
        # Changes that find no room at the gate are read again.
        now_ms, stopped = int(time.time() * 1000), outcome.at_gate.stopped
        places = {p: (stopped.get(p, end), self.times.get(p, now_ms)) for p, end in self.ends.items()}
        positions = to_commit(self.settings.events, places, self.epoch)
        reach("connector.before-transaction")
        if outcome.too_large:
            reach("connector.before-transaction-of-large")
        # Also if what follows fails: then the driver would take the batch for one that published nothing.
        self.is_uncertain = True
        try:
            self.log.commit({group_of(self.settings.name): positions} if positions else {}, timeout)
        except HelenusError as error:
            self.is_uncertain = isinstance(error, NotCommitted)
            raise
        reach("connector.after-transaction")

    def _append(self, entry: JournalEntry, timeout: float) -> None:
        try:
            for record in entry.to_records():
                self.log.append(self.journal, PARTITION, entry.connector.encode(), record)
                self.journal_bytes += len(record)
            self.log.deliver(timeout)
        except HelenusError as error:
            self.is_uncertain = error.kind is Kind.TOPIC_MISSING  # the next run makes the journal anew
            raise


def outcome_entry(connector: str, topic: str, outcome: BatchOutcome, has_waiting: bool) -> JournalEntry:
    """Return what a batch of an events topic changed of what waits; what it published, if keys of the topic wait."""
    settled = [(key.partition, key.name_in_partition) for key in outcome.done]
    entry = JournalEntry(connector, topic, False, settled, outcome.waiting)
    entry.at_gate = outcome.at_gate
    if has_waiting:
        entry.published = {partition: keys for (_, partition), keys in outcome.places.items() if keys.keys}
    return entry
