"""The topic of a connector's journal: one partition, so that its entries have one order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import structlog
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.journal._entry import JournalEntry
from helenus_connector.log.choice import data_log, data_planner, read_data
from helenus_connector.log.events import OffsetRange, ends
from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka.errors import DeliveryReports, new_client, text_of
from helenus_sinks.kafka.settings import client_settings

_log = structlog.get_logger(__name__)
PARTITION = 0
_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""What is not needed any more is deleted by a run's start, and by nobody else."""
_DELETE_TIMEOUT_S = 10.0


@dataclass
class JournalContent:
    """The entries that count, by events topic, in their order; of each topic, a whole one begins them, at the offset in
    `begins`. The journal ends at `end`.
    """

    end: int
    entries: dict[str, list[JournalEntry]] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)


class JournalTopic:
    """The journal of a connector. The methods raise HelenusError: the broker's errors."""

    def __init__(self, worker: WorkerSettings, connector: str) -> None:
        self.name = worker.journal_topic(connector)
        self._worker = worker

    def create(self) -> None:
        """Create the topic, if it is not there."""
        with closing(data_log(self._worker)) as log:
            log.create(self.name, 1, _CONFIG, self._worker.offset_storage_replication_factor)

    def end(self, wait: Callable[[float], None] | None = None) -> int:
        """Return the offset after its last entry. An election of leaders is waited for, with `wait`, as in `ends`."""
        with closing(data_planner(self._worker)) as planner:
            return ends(planner, self.name, wait=wait)[str(PARTITION)]

    def read(self, wait: Callable[[float], None] | None = None) -> JournalContent:
        """Return its content, while its owner has no transaction open. `wait` as in `end`. Raises HelenusError(STATE)
        where an entry is damaged.
        """
        content = JournalContent(self.end(wait))
        with closing(data_planner(self._worker)) as planner:
            start = planner.earliest({self.name: 1}).get(self.name, {}).get(str(PARTITION), 0)
        failures: list[HelenusError] = []
        journal = OffsetRange(self.name, PARTITION, start, content.end)
        for chunk in read_data(self._worker, [journal], lambda _, error: failures.append(error)):
            for message in chunk:
                where = f"topic {self.name}, offset {message.offset()}"
                entry = JournalEntry.from_record(message.value() or b"", where)
                if entry.is_whole:
                    content.entries[entry.topic], content.begins[entry.topic] = [entry], message.offset()
                elif entry.topic in content.entries:
                    content.entries[entry.topic].append(entry)
        if failures:
            raise failures[0]
        return content

    def delete_before(self, offset: int) -> None:
        """Delete the entries before an offset. A topic that keeps them takes longer to read: that is no error."""
        settings = client_settings(self._worker.producer_config)
        admin: AdminClient = new_client(AdminClient, settings, DeliveryReports(), self._worker.bootstrap_servers)
        try:
            requests = admin.delete_records([TopicPartition(self.name, PARTITION, offset)])
            for request in requests.values():
                request.result(_DELETE_TIMEOUT_S)
        except (KafkaException, TimeoutError) as failure:
            error = text_of(failure.args[0]) if isinstance(failure, KafkaException) else "no answer"
            advice = f"grant Delete on topic {self.name}"
            _log.warning("journal.not_deleted", topic=self.name, error=error, advice=advice)
