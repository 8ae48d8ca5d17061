"""The journals of a group's connectors on Pulsar: the driver of the worker that leads writes what a batch left after
its records are there. So a batch of which it did not is done again, and its records are repeated.

    entry        how what waits of an events topic changed, or all of it
    positions    where the connector stands in events topics
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.positions import KnownPosition
from helenus_connector.journal._entry import JournalEntry
from helenus_connector.journal._positions import GroupPosition as GroupPosition
from helenus_connector.journal._positions import Positions
from helenus_connector.journal._topic import JournalContent
from helenus_connector.log.choice import fenced_topics
from helenus_connector.log.events import FencedContent, FencedRecord
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.epochs import TermEpochs

_log = structlog.get_logger(__name__)
_COMMIT_TIMEOUT_S = 30.0
_ENTRY, _POSITIONS = b"entry", b"positions"
_VERSION = 1


@dataclass
class _Journal:
    """What this leader knows of a connector's journal, to which it alone writes: the positions by topic."""

    content: JournalContent
    positions: dict[str, dict[str, GroupPosition]] = field(default_factory=dict)


class PulsarJournals:
    """A `recovery.JournalStore` of a leader, in the term of these `epochs`. Any thread may use it."""

    publishes_once = False

    def __init__(self, worker: WorkerSettings, epochs: TermEpochs) -> None:
        self._worker = worker
        self.epochs = epochs
        self._topics = fenced_topics(worker)
        self._lock = threading.RLock()
        self._journals: dict[str, _Journal] = {}
        self._unread: set[str] = set()

    def prepare(self, connectors: Collection[str]) -> None:
        """Take journals over before they are read, which then takes no time. Raises HelenusError."""
        with self._lock:
            new = [connector for connector in connectors if connector not in self._journals]
            if new:
                self.create(new)
                self._read(new)
                self._unread.update(new)

    def create(self, connectors: Collection[str]) -> None:
        new = [connector for connector in connectors if connector not in self._journals]
        self._topics.create([self._worker.journal_topic(connector) for connector in new])

    def read(
        self,
        connectors: Collection[str],
        wait: Callable[[float], None] = time.sleep,  # noqa: ARG002
    ) -> dict[str, JournalContent]:
        """Take the journals over from whoever wrote them, and return what they have."""
        with self._lock:
            topics = {connector: self._worker.journal_topic(connector) for connector in connectors}
            self._read([name for name in topics if name not in self._unread or not self._topics.owns(topics[name])])
            self._unread.difference_update(connectors)
            contents = {connector: self._journals[connector].content for connector in connectors}
            for connector, content in contents.items():
                self._journals[connector].content = JournalContent(content.end)  # it may have many MB
            return contents

    def _read(self, connectors: Collection[str]) -> None:
        names = {self._worker.journal_topic(connector): connector for connector in connectors}
        if names:
            self._topics.own(names, self.epochs.take())
            for topic, content in self._topics.read(names).items():
                self._journals[names[topic]] = _journal(content, topic)

    def ends(self, connectors: Collection[str]) -> dict[str, int]:
        ends = self._topics.ends([self._worker.journal_topic(connector) for connector in connectors])
        return {connector: ends[self._worker.journal_topic(connector)] for connector in connectors}

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        """Delete what is before these offsets; journals that keep it take longer to read: that is no error."""
        try:
            self._topics.trim({self._worker.journal_topic(name): offset for name, offset in offsets.items()})
        except HelenusError as error:
            _log.warning("journal.not_deleted", topics=len(offsets), error=error.what, advice=error.advice)

    def read_positions(self, partitions: Mapping[str, Mapping[str, int]]) -> Positions:
        positions: dict[str, Mapping[str, GroupPosition]] = {}
        with self._lock:
            self._take_over(partitions)
            for connector, counts in partitions.items():
                for topic, of_topic in self._journals[connector].positions.items():
                    if topic in counts:
                        positions[topic] = {p: position for p, position in of_topic.items() if int(p) < counts[topic]}
        return {topic: of_topic for topic, of_topic in positions.items() if of_topic}

    def commit(self, connectors: Mapping[str, str], entries: Mapping[str, JournalEntry], positions: Positions) -> None:
        records = {topic: list(entry.to_records()) for topic, entry in entries.items()}
        is_whole = any(entry.is_whole for entry in entries.values())
        self.commit_records(connectors, records, positions, is_whole)

    def commit_records(
        self,
        connectors: Mapping[str, str],
        entries: Mapping[str, Iterable[bytes]],
        positions: Positions,
        is_whole: bool = False,
    ) -> int:
        """Write entries, as their bytes, and positions by topic, each topic of a connector. Where entries are whole,
        what is before them may be deleted: so all positions are written again. Returns how many bytes were written.
        """
        by_connector: dict[str, list[FencedRecord]] = {}
        changed: dict[str, dict[str, dict[str, GroupPosition]]] = {}
        with self._lock:
            for topic, connector in connectors.items():
                by_connector.setdefault(connector, []).extend(
                    FencedRecord(_ENTRY, entry) for entry in entries.get(topic, ())
                )
                if positions.get(topic):
                    changed.setdefault(connector, {})[topic] = dict(positions[topic])
            for connector, records in by_connector.items():
                new = changed.get(connector, {})
                if is_whole:
                    new = _merged(self._journals[connector].positions, new)
                records += [FencedRecord(_POSITIONS, _to_text(topic, of_topic)) for topic, of_topic in new.items()]
            written = {self._worker.journal_topic(name): records for name, records in by_connector.items() if records}
            self._unread.difference_update(by_connector)
            if written:
                self._topics.commit(written, _COMMIT_TIMEOUT_S)
            for connector, new in changed.items():
                self._journals[connector].positions = _merged(self._journals[connector].positions, new)
        return sum(len(record.value or b"") for records in written.values() for record in records)

    def known_positions(self, connector: str) -> Mapping[str, Mapping[str, GroupPosition]]:
        """Return the positions of a connector."""
        with self._lock:
            self._take_over([connector])
            return dict(self._journals[connector].positions)

    def move(self, connector: str, topic: str, offsets: Mapping[str, int], epoch: int) -> None:
        """Have a connector that does not run go on here in a topic, from this `epoch` on."""
        now_ms = int(time.time() * 1000)
        position = {partition: GroupPosition(offset, epoch, now_ms) for partition, offset in offsets.items()}
        with self._lock:
            self._take_over([connector])
            self.commit_records({topic: connector}, {}, {topic: position})

    def close(self) -> None:
        """Write nothing more."""
        self._topics.close()

    def _take_over(self, connectors: Iterable[str]) -> None:
        """Read journals that this leader has not read, or of which the last write failed."""
        unknown = [
            name
            for name in connectors
            if name not in self._journals or not self._topics.owns(self._worker.journal_topic(name))
        ]
        if unknown:
            self.create(unknown)
            self.read(unknown)


class PulsarPositions:
    """A `control.positions.BrokerPositions` of the worker that leads a group."""

    def __init__(self, journals: PulsarJournals) -> None:
        self._journals = journals

    def has(self, settings: ConnectorSettings) -> bool:
        """Return whether the brokers have a connector's positions. Those of a state of rows are Spark's."""
        return settings.state != "rows"

    def read(self, settings: ConnectorSettings, partitions: Mapping[str, int]) -> dict[str, KnownPosition]:
        """Return where a connector stands, by topic; `partitions` says how many each has."""
        topic_positions = self._journals.read_positions({settings.name: partitions})
        return {
            topic: KnownPosition(
                {partition: position.offset for partition, position in of_topic.items()},
                max((position.epoch for position in of_topic.values() if position.epoch is not None), default=None),
            )
            for topic, of_topic in topic_positions.items()
        }

    def move(self, settings: ConnectorSettings, topic: str, offsets: Mapping[str, int], epoch: int) -> None:
        """Have a connector that does not run go on here in a topic, from this `epoch` on."""
        self._journals.move(settings.name, topic, offsets, epoch)

    def renew(self, settings: ConnectorSettings, partitions: Mapping[str, int]) -> None:
        """Do nothing: a journal keeps positions for as long as it is there."""


def _journal(content: FencedContent, topic: str) -> _Journal:
    journal = _Journal(JournalContent(content.end, error=content.error))
    for record in content.records:
        where = f"topic {topic}, offset {record.offset}"
        try:
            if record.key == _POSITIONS:
                events, positions = _from_text(record.value or b"", where)
                journal.positions.setdefault(events, {}).update(positions)
            else:
                entry = JournalEntry.from_record(record.value or b"", where)
                journal.content.take(entry, record.offset)
        except HelenusError as error:
            journal.content.error = error
    return journal


def _merged(
    former: Mapping[str, Mapping[str, GroupPosition]], new: Mapping[str, Mapping[str, GroupPosition]]
) -> dict[str, dict[str, GroupPosition]]:
    """Return positions by topic and partition, the new ones in place of former ones."""
    return {topic: {**former.get(topic, {}), **new.get(topic, {})} for topic in {**former, **new}}


def _to_text(topic: str, positions: Mapping[str, GroupPosition]) -> bytes:
    content = {
        partition: [position.offset, position.epoch or 0, position.at_ms or 0]
        for partition, position in positions.items()
    }
    return json.dumps({"v": _VERSION, "topic": topic, "positions": content}, separators=(",", ":")).encode()


def _from_text(text: bytes, where: str) -> tuple[str, dict[str, GroupPosition]]:
    """Return a topic and its positions. Raises HelenusError(STATE)."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        content: Any = json.loads(text)
        if content["v"] == _VERSION:
            positions = {
                str(int(partition)): GroupPosition(int(offset), int(epoch), int(at_ms))
                for partition, (offset, epoch, at_ms) in content["positions"].items()
            }
            return str(content["topic"]), positions
    problem = "positions are of a version that this worker does not know, or damaged"
    raise HelenusError(Kind.STATE, problem, where, "run the version that wrote them")
