"""The journals and positions of a run that publishes exactly once, on Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from confluent_kafka import TopicPartition

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.journal._entry import JournalEntry
from helenus_connector.journal._positions import GroupPosition, Positions, group_of, read_positions, to_commit_again
from helenus_connector.journal._topic import PARTITION, JournalContent, Journals
from helenus_connector.log.choice import owned_data_log
from helenus_sinks.kafka.owners import DRIVER, Made, RecordsOwner

_COMMIT_TIMEOUT_S = 60.0
_PARALLEL_GROUPS = 8


class KafkaStore:
    """A `recovery.JournalStore`: what the driver of an `owner` writes is a transaction of its."""

    publishes_once = True

    def __init__(self, worker: WorkerSettings, owner: RecordsOwner) -> None:
        self._worker = worker
        self._owner = owner
        self._journals = Journals(worker)

    def create(self, connectors: Collection[str]) -> None:
        self._journals.create(connectors)

    def read(
        self, connectors: Collection[str], wait: Callable[[float], None] = time.sleep
    ) -> dict[str, JournalContent]:
        return self._journals.read(connectors, wait)

    def ends(self, connectors: Collection[str]) -> dict[str, int]:
        return self._journals.ends(connectors)

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        self._journals.delete_before(offsets)

    def read_positions(self, partitions: Mapping[str, Mapping[str, int]]) -> Positions:
        positions: dict[str, Mapping[str, GroupPosition]] = {}
        with ThreadPoolExecutor(_PARALLEL_GROUPS) as pool:
            for of_connector in pool.map(partial(read_positions, self._worker), partitions, partitions.values()):
                positions |= of_connector
        return positions

    def commit(self, connectors: Mapping[str, str], entries: Mapping[str, JournalEntry], positions: Positions) -> None:
        groups: dict[str, list[TopicPartition]] = {}
        for topic, connector in connectors.items():
            if committed := to_commit_again(topic, positions.get(topic, {})):
                groups.setdefault(group_of(connector), []).extend(committed)
        log = owned_data_log(self._worker, self._owner, DRIVER, whole_batches=True)
        try:
            for topic, connector in connectors.items():
                log.own(Made(connector, topic))
            log.start()
            for topic, connector in connectors.items():
                log.own(Made(connector, topic))  # raises if another run has them by now
                for record in entries[topic].to_records() if topic in entries else ():
                    log.append(self._worker.journal_topic(connector), PARTITION, connector.encode(), record)
            log.deliver(_COMMIT_TIMEOUT_S)
            log.commit(groups, _COMMIT_TIMEOUT_S)
        finally:
            log.close()
