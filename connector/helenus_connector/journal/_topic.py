"""The topics of connectors' journals: one partition each, so that the entries of a journal have one order."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import structlog
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.journal._entry import JournalEntry
from helenus_connector.log.choice import data_log, data_planner, read_data
from helenus_connector.log.events import Message, OffsetRange, Planner, ends
from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka.errors import DeliveryReports, new_client, text_of
from helenus_sinks.kafka.kept_topics import find_forgetful
from helenus_sinks.kafka.settings import client_settings

_log = structlog.get_logger(__name__)
PARTITION = 0
_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""What is not needed any more is deleted by a run's start, and by nobody else."""
_DELETE_TIMEOUT_S = 10.0


@dataclass
class JournalContent:
    """The entries that count, by events topic, in their order; of each topic, a whole one begins them, at the offset in
    `begins`. The journal ends at `end`. `error` is why it can't be read.
    """

    end: int
    entries: dict[str, list[JournalEntry]] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    error: HelenusError | None = None

    def add(self, message: Message, where: str) -> None:
        """Take an entry over. Raises HelenusError(STATE) for a damaged one."""
        self.take(JournalEntry.from_record(message.value() or b"", where), message.offset())

    def take(self, entry: JournalEntry, offset: int) -> None:
        """Take an entry over that is at an offset."""
        if entry.is_whole:
            self.entries[entry.topic], self.begins[entry.topic] = [entry], offset
        elif entry.topic in self.entries:
            self.entries[entry.topic].append(entry)


class Journals:
    """The journals of a worker's connectors, by the connector's name. The methods raise HelenusError: the broker's
    errors.
    """

    def __init__(self, worker: WorkerSettings) -> None:
        self._worker = worker

    def create(self, connectors: Collection[str]) -> None:
        """Create the topics that are not there."""
        with closing(data_log(self._worker)) as log:
            for connector in connectors:
                factor = self._worker.offset_storage_replication_factor
                log.create(self._worker.journal_topic(connector), 1, _CONFIG, factor)

    def ends(self, connectors: Collection[str], wait: Callable[[float], None] = time.sleep) -> dict[str, int]:
        """Return the offset after each journal's last entry. An election of leaders is waited for, with `wait`."""
        with closing(data_planner(self._worker)) as planner:
            return self._ends(planner, connectors, wait)

    def read(
        self, connectors: Collection[str], wait: Callable[[float], None] = time.sleep
    ) -> dict[str, JournalContent]:
        """Return the journals' contents, while their owners have no transaction open. `wait` as in `ends`. Of a topic
        that forgets what it gets they can't be believed.
        """
        names = {self._worker.journal_topic(connector): connector for connector in connectors}
        with closing(data_planner(self._worker)) as planner:
            contents = {name: JournalContent(end) for name, end in self._ends(planner, connectors, wait).items()}
            starts = planner.earliest(dict.fromkeys(names, 1))
        ranges = [
            OffsetRange(topic, PARTITION, starts.get(topic, {}).get(str(PARTITION), 0), contents[connector].end)
            for topic, connector in names.items()
        ]

        def note_failed(journal: OffsetRange, error: HelenusError) -> None:
            contents[names[journal.topic]].error = error

        client = client_settings(self._worker.producer_config)
        for topic, error in find_forgetful(client, self._worker.bootstrap_servers, names, _CONFIG).items():
            contents[names[topic]].error = error
        for chunk in read_data(self._worker, ranges, note_failed):
            content = contents[names[str(chunk[0].topic())]]
            for message in chunk:
                try:
                    content.add(message, f"topic {message.topic()}, offset {message.offset()}")
                except HelenusError as error:
                    content.error = error
        return contents

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        """Delete the entries before an offset of each journal. Topics that keep them take longer to read: that is no
        error.
        """
        settings = client_settings(self._worker.producer_config)
        admin: AdminClient = new_client(AdminClient, settings, DeliveryReports(), self._worker.bootstrap_servers)
        names = {self._worker.journal_topic(connector): offset for connector, offset in offsets.items()}
        try:
            requests = admin.delete_records([TopicPartition(name, PARTITION, end) for name, end in names.items()])
            for request in requests.values():
                request.result(_DELETE_TIMEOUT_S)
        except (KafkaException, TimeoutError) as failure:
            error = text_of(failure.args[0]) if isinstance(failure, KafkaException) else "no answer"
            advice = f"grant Delete on topics that begin with {self._worker.offset_storage_topic}"
            _log.warning("journal.not_deleted", topics=len(names), error=error, advice=advice)

    def _ends(self, planner: Planner, connectors: Collection[str], wait: Callable[[float], None]) -> dict[str, int]:
        return {
            connector: ends(planner, self._worker.journal_topic(connector), 1, wait)[str(PARTITION)]
            for connector in connectors
        }
