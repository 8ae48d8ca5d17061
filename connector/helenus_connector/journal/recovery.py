"""Where a run of a query begins: at the positions that the broker has, with what waited then.

first time        positions as they were kept before, and settle.replay.ms back → what waits is as it is in memory
after that        the group's committed positions → what waits is as the journal has it
                  past events, which came before, are read again, only to know copies of them
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.positions import HeldPositions
from helenus_connector.control.status import Task
from helenus_connector.gate.waiting import WaitingChanges
from helenus_connector.journal._entry import JournalEntry, whole_entry
from helenus_connector.journal._kafka_store import KafkaStore
from helenus_connector.journal._positions import GroupPosition, Positions
from helenus_connector.journal._store import JournalStore
from helenus_connector.log.choice import planner
from helenus_connector.log.events import Planner
from helenus_connector.unconfirmed.files import begins
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.owners import RecordsOwner

_log = structlog.get_logger(__name__)
_LONGEST_JOURNAL = 32 << 20
"""Bytes of all journals from which on they are written anew: they are read within two seconds at the next start."""
_MOST_PAST = 4
"""Times as many past events are read as a cache holds changes: where three nodes report each, no more are known."""
_SAME_TIME_MS = 60_000
"""Partitions whose times differ by less are asked for together."""
_NO_LEADER = "a partition of the events topic has no leader, or the topic is not there"
_COMMIT_AGAIN_S = 12 * 3600.0
"""Kafka forgets positions after a week (`offsets.retention.minutes`)."""


@dataclass
class DriverMemory:
    """What the driver keeps of a query's topics in memory."""

    held_positions: HeldPositions
    unconfirmed: UnconfirmedKeys
    waiting: WaitingChanges


@dataclass
class JournalOfRun:
    """The journals of one run of a query. `topics` are those that it publishes exactly once, each with the offsets, by
    partition, from which on past events are read; `connectors` says whose they are. `wait` waits for some seconds, or
    raises. With a `store` that does not publish once, no past events are read.
    """

    worker: WorkerSettings
    owner: RecordsOwner | None
    memory: DriverMemory
    wait: Callable[[float], None] = time.sleep
    store: JournalStore | None = None
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    connectors: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _begins: dict[str, int] = field(default_factory=dict)
    """Where the entries of each topic of the run begin in its connector's journal, or before."""
    _other_begins: dict[str, list[int]] = field(default_factory=dict)
    _bytes: int = 0
    _committed_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.store is None:
            assert self.owner is not None
            self._store: JournalStore = KafkaStore(self.worker, self.owner)
        else:
            self._store = self.store

    def begin(self, tasks: Mapping[str, Task]) -> dict[str, HelenusError]:
        """Have these tasks' topics begin where the broker's positions are. Their records are owned by now, and the
        former owner is fenced. Returns the errors of those that can't begin. Raises HelenusError BROKER_UNREACHABLE.
        """
        with closing(planner(self.worker)) as broker:
            self._counts = broker.partitions(list(tasks))
            errors = {
                topic: HelenusError(Kind.BROKER_UNREACHABLE, _NO_LEADER, f"topic {topic}")
                for topic in tasks
                if not self._counts.get(topic)
            }
            try:
                errors |= self._begin({topic: task for topic, task in tasks.items() if topic not in errors}, broker)
            except HelenusError as error:
                if error.kind is Kind.BROKER_UNREACHABLE:
                    raise
                self.topics, self.connectors = {}, {}
                errors |= dict.fromkeys(tasks.keys() - errors.keys(), error)
        return errors

    def note_batch(self, journal_bytes: int, running: Collection[str] | None = None) -> None:
        """Note how many bytes a batch has written to journals. Where they became long, write all that waits to them
        anew; and now and then, commit positions once more, of the topics that are `running`, or of all: others may be
        moved by an operator just now. Raises as `begin`.
        """
        self._bytes += journal_bytes
        connectors = dict(self.connectors)  # others may leave meanwhile
        if self._bytes > _LONGEST_JOURNAL:
            self._write_whole(connectors, {}, self._store.ends(set(connectors.values())))
            self._bytes = 0
        if time.monotonic() - self._committed_at > _COMMIT_AGAIN_S:
            self._committed_at = time.monotonic()
            of_run = {topic: name for topic, name in connectors.items() if running is None or topic in running}
            self._commit(of_run, {}, self._read_positions(of_run))

    def leave(self, topic: str) -> None:
        """Publish a topic no more in this run. What its journal has stays."""
        self.topics.pop(topic, None)
        connector = self.connectors.pop(topic, None)
        if connector is not None and topic in self._begins:
            self._other_begins.setdefault(connector, []).append(self._begins.pop(topic))

    def _begin(self, tasks: Mapping[str, Task], broker: Planner) -> dict[str, HelenusError]:
        if not tasks:
            return {}
        self.connectors = {topic: task.connector for topic, task in tasks.items()}
        connectors = set(self.connectors.values())
        self._store.create(sorted(connectors))
        contents = self._store.read(connectors, self.wait)
        errors = {topic: error for topic, name in self.connectors.items() if (error := contents[name].error)}
        for topic in errors:
            self.leave(topic)
        committed = self._read_positions(self.connectors)
        positions: dict[str, Mapping[str, GroupPosition]] = {}
        for topic, connector in self.connectors.items():
            topic_positions, entries = committed.get(topic, {}), contents[connector].entries.get(topic)
            is_loose = any(position.is_loose for position in topic_positions.values())
            if entries and topic_positions and not is_loose:
                begun = self._continue(tasks[topic].settings, topic_positions, entries, broker)
                has_past = self._store.publishes_once
                self.topics[topic] = self._past(tasks[topic].settings, begun, broker) if has_past else {}
            else:
                begun = self._begin_first(tasks[topic].settings, topic_positions, broker)
                self.topics[topic] = {}
            epoch = self.memory.held_positions.epoch(topic)
            positions[topic] = {p: GroupPosition(offset, epoch, at_ms) for p, (offset, at_ms) in begun.items()}
        self._other_begins = {
            name: [begin for topic, begin in contents[name].begins.items() if topic not in self.topics]
            for name in connectors
        }
        self._write_whole(self.connectors, positions, {name: content.end for name, content in contents.items()})
        return errors

    def _read_positions(self, connectors: Mapping[str, str]) -> Positions:
        """Return the committed positions of topics, each of a connector, which has a group of its own."""
        partitions: dict[str, dict[str, int]] = {}
        for topic, connector in connectors.items():
            partitions.setdefault(connector, {})[topic] = self._counts[topic]
        return self._store.read_positions(partitions)

    def _continue(
        self,
        settings: ConnectorSettings,
        committed: Mapping[str, GroupPosition],
        entries: Sequence[JournalEntry],
        broker: Planner,
    ) -> dict[str, tuple[int, int]]:
        """Have a topic go on where its last transaction ended. Returns its positions."""
        topic, memory, now = settings.events, self.memory, time.time()
        epochs = [position.epoch for position in committed.values() if position.epoch is not None]
        memory.held_positions.raise_epoch(topic, max(epochs, default=0))
        epoch, current = memory.held_positions.epoch(topic), memory.held_positions.read_offsets().get(topic, {})
        # Of an earlier epoch: an operator has moved the connector since. Without one: with Kafka's own tools.
        counting = {
            partition: position
            for partition, position in committed.items()
            if position.epoch is None or position.epoch >= epoch or partition not in current
        }
        if any(position.epoch is None for position in counting.values()):
            memory.held_positions.raise_epoch(topic, epoch + 1)  # what it publishes again is new to the caches
        earliest = broker.earliest({topic: self._counts[topic]}).get(topic, {})
        offsets = {**earliest, **current, **{partition: position.offset for partition, position in counting.items()}}
        offsets = {partition: offset for partition, offset in offsets.items() if int(partition) < self._counts[topic]}
        if offsets != current:
            memory.held_positions.hold(topic, offsets, memory.held_positions.epoch(topic))
        memory.unconfirmed.restore(topic, [(entry.settled, entry.waiting, entry.published) for entry in entries], now)
        memory.waiting.restore(topic, [entry.at_gate for entry in entries])
        memory.unconfirmed.shrink(topic, range(self._counts[topic]))
        memory.waiting.shrink(topic, range(self._counts[topic]))
        times = {partition: position.at_ms for partition, position in counting.items()}
        return {partition: (offset, times.get(partition) or int(now * 1000)) for partition, offset in offsets.items()}

    def _past(
        self, settings: ConnectorSettings, positions: Mapping[str, tuple[int, int]], broker: Planner
    ) -> dict[str, int]:
        """Return from which offsets on past events are read: as far back as a cache would know them."""
        topic, past = settings.events, {}
        by_time: dict[int, list[str]] = {}
        for partition, (_, at_ms) in positions.items():
            by_time.setdefault(at_ms // _SAME_TIME_MS, []).append(partition)
        for minute, partitions in by_time.items():
            since_ms = max(0, minute * _SAME_TIME_MS - settings.cache_expire_after_ms)
            earlier = broker.since({topic: self._counts[topic]}, since_ms).get(topic, {})
            for partition in partitions:
                offset = positions[partition][0]
                first = earlier.get(partition, -1)
                first = max(first, offset - _MOST_PAST * settings.cache_max_capacity) if first >= 0 else offset
                past[partition] = min(first, offset)
        return past

    def _begin_first(
        self, settings: ConnectorSettings, committed: Mapping[str, GroupPosition], broker: Planner
    ) -> dict[str, tuple[int, int]]:
        """Have a topic begin that was not published exactly once before, or whose journal is gone: what may have waited
        is read again, and published. Returns its positions.
        """
        topic, held_positions, count = settings.events, self.memory.held_positions, self._counts[settings.events]
        current = held_positions.read_offsets().get(topic, {})
        if not current:  # the disk is gone
            current = {partition: position.offset for partition, position in committed.items()}
        if not current:
            return {}
        replay_s, now = settings.settle_replay_ms / 1000, time.time()
        since_ms = int(begins(self.memory.unconfirmed.file)(topic, replay_s, now) * 1000)
        earlier = broker.since({topic: count}, since_ms).get(topic, {})
        offsets = {
            partition: min(offset, earlier[partition]) if earlier.get(partition, -1) >= 0 else offset
            for partition, offset in {**broker.earliest({topic: count}).get(topic, {}), **current}.items()
            if int(partition) < count
        }
        held_positions.hold(topic, offsets, held_positions.epoch(topic))
        _log.info("exactly_once.begins", connector=settings.name, topic=topic)
        return {partition: (offset, int(now * 1000)) for partition, offset in offsets.items()}

    def _write_whole(
        self,
        connectors: Mapping[str, str],
        positions: Positions,
        ends: Mapping[str, int],
    ) -> None:
        """Write all that waits of topics, each of a connector, with their positions, and delete what is older than the
        journals' `ends`.
        """
        entries = {
            topic: whole_entry(
                connector,
                topic,
                self.memory.unconfirmed.of_topic(topic),
                self.memory.waiting.export_changes([topic]),
            )
            for topic, connector in connectors.items()
        }
        self._commit(connectors, entries, positions)
        self._begins.update({topic: ends[name] for topic, name in connectors.items()})
        # Topics that are not in this run have their owners, who write them anew.
        self._store.delete_before(
            {name: min([ends[name], *self._other_begins.get(name, ())]) for name in set(connectors.values())}
        )

    def _commit(self, connectors: Mapping[str, str], entries: Mapping[str, JournalEntry], positions: Positions) -> None:
        """Commit entries and positions, while this run owns the records of all these topics, each of a connector."""
        if connectors:
            self._store.commit(connectors, entries, positions)
