"""Signals from a topic, Debezium's habit: a message whose key is a connector's name begins or stops snapshots of it.

Positions are kept with the snapshots, once a signal is acted on. After a kill between the two it is read again; then
what it began is under way, and it changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import pause
from helenus_connector.control.connectors import Connectors, UnknownConnector
from helenus_connector.log.choice import planner, read_signals
from helenus_connector.log.events import Message, OffsetRange, Offsets, Planner
from helenus_connector.snapshot import _signal
from helenus_connector.snapshot._signal import EXECUTE, PAUSE, STOP
from helenus_connector.snapshot.request import SnapshotRequest
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_schemas.errors import Action, HelenusError, Kind, reason

_log = structlog.get_logger(__name__)
_TURN_S = 1.0
_COUNT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_GRACE_S = 3.0


class Signals:
    """Reads the signal topics of all connectors, in a thread of its own from `start` on."""

    def __init__(self, worker: WorkerSettings, connectors: Connectors, snapshots: Snapshots) -> None:
        self._worker = worker
        self._connectors = connectors
        self._snapshots = snapshots
        self._planner: Planner | None = None
        self._counts: dict[str, int] = {}
        self._counted_at = 0.0
        self._failures = 0
        self._missing: set[str] = set()
        self._held: dict[str, tuple[int, float]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Act on signals from now on."""
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End within seconds."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_GRACE_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._wait()):
            try:
                self.turn()
                self._failures = 0
            except Exception as error:  # no broker, a full disk; and a bug of ours must not end all signals
                self._forget()
                if self._stopping.is_set():
                    break
                self._failures += 1
                if self._failures == 1:
                    _log.warning("signals.waiting", reason=reason(error))
        self._forget()

    def _wait(self) -> float:
        return pause(self._failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S) if self._failures else _TURN_S

    def turn(self) -> None:
        """Act on what the topics have now. Raises HelenusError if brokers are away, or positions can't be kept."""
        topics: dict[str, list[str]] = {}
        for name, connector in self._connectors.all().items():
            topic = connector.settings.signal_topic
            _, retry_at = self._held.get(name, (0, 0.0))
            if (
                topic
                and time.monotonic() >= retry_at
                and connector.wanted == "RUNNING"
                and connector.is_scanned
                and not connector.error
            ):
                topics.setdefault(topic, []).append(name)
        if not topics:
            return
        failed: list[tuple[OffsetRange, HelenusError]] = []
        for topic, ends in self._ends(list(topics)).items():
            failed += self._read_topic(topic, topics[topic], ends)
        for _, error in failed:
            raise error

    def _ends(self, topics: list[str]) -> Offsets:
        """Return the ends of these topics' partitions, without the topics that do not exist."""
        self._planner = self._planner or planner(self._worker)
        now = time.monotonic()
        if now - self._counted_at > _COUNT_S or not all(self._counts.get(topic) for topic in topics):
            self._counts, self._counted_at = self._planner.partitions(topics), now
        known_counts = {topic: self._counts[topic] for topic in topics if self._counts[topic]}
        for topic in topics:
            if topic not in known_counts and topic not in self._missing:
                _log.warning(
                    "signals.waiting", reason=f"there is no topic {topic}, or one of its partitions has no leader"
                )
        self._missing = set(topics) - known_counts.keys()
        return self._planner.latest(known_counts) if known_counts else {}

    def _read_topic(
        self, topic: str, names: list[str], ends: Mapping[str, int]
    ) -> list[tuple[OffsetRange, HelenusError]]:
        """Read a topic to its end. Return the ranges that can't be read, and why."""
        offsets_by_connector = {name: self._snapshots.store.signalled(name, topic) for name in names}
        offsets_before = {name: dict(offsets) for name, offsets in offsets_by_connector.items()}
        ranges = _unread_ranges(topic, ends, list(offsets_by_connector.values()))
        failed: list[tuple[OffsetRange, HelenusError]] = []
        for chunk in read_signals(
            self._worker, ranges, lambda offset_range, error: failed.append((offset_range, error))
        ):
            for message in chunk:
                if self._stopping.is_set():
                    return []
                self._take_message(topic, message, offsets_by_connector)
        # What is of other connectors is read too now.
        failed_partitions = {offset_range.partition for offset_range, _ in failed}
        for offset_range in ranges:
            if offset_range.partition not in failed_partitions:
                partition = str(offset_range.partition)
                for offsets in offsets_by_connector.values():
                    offsets[partition] = max(offset_range.end, offsets.get(partition, 0))
        self._save_offsets(
            topic, {name: offsets for name, offsets in offsets_by_connector.items() if offsets != offsets_before[name]}
        )
        return failed

    def _take_message(self, topic: str, message: Message, offsets_by_connector: dict[str, dict[str, int]]) -> None:
        """Act on a message for one of these connectors, unless its offset says that this was done. A connector whose
        signals have to wait is removed.
        """
        name, partition = (message.key() or b"").decode(errors="replace"), str(message.partition())
        offsets = offsets_by_connector.get(name)
        if offsets is None or message.offset() < offsets.get(partition, 0):
            return
        if not self._try_message(name, message):
            del offsets_by_connector[name]
            return
        offsets[partition] = message.offset() + 1
        self._save_offsets(topic, {name: offsets})

    def _try_message(self, name: str, message: Message) -> bool:
        """Act on a message; False if the connector's signals have to wait: Cassandra does not answer."""
        try:
            self._apply_message(name, message)
        except UnknownConnector:
            return False
        except HelenusError as error:
            failures, _ = self._held.get(name, (0, 0.0))
            self._held[name] = failures + 1, time.monotonic() + pause(failures + 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            if not failures:
                _log.warning("signals.waiting", connector=name, reason=str(error))
            return False
        self._held.pop(name, None)
        return True

    def _save_offsets(self, topic: str, offsets_by_connector: Mapping[str, dict[str, int]]) -> None:
        if offsets_by_connector:
            store = self._snapshots.store
            with store.changing():
                for name, offsets in offsets_by_connector.items():
                    store.signals[name, topic] = dict(offsets)

    def _apply_message(self, name: str, message: Message) -> None:
        """Do what a message says, or log why not. Raises UnknownConnector, and HelenusError for what has to be
        tried again.
        """
        value = message.value()
        if not value:
            return
        origin = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
        with self._connectors.lock:
            tasks = self._connectors.get(name).tasks.values()
            tables = {task.table: task.settings.table for task in tasks}
        try:
            signal = _signal.parse_signal(value)
            conditions = {tables[full]: signal.where(full) for full in signal.tables(list(tables))}
            if not conditions:
                raise ValueError(f"no table of the connector matches: it has {', '.join(tables) or 'none yet'}")
        except ValueError as error:
            _log.warning("signal.skipped", connector=name, **origin, reason=str(error))
            return
        if signal.type == EXECUTE:
            changed_tables = [
                table for table, where in conditions.items() if self._begin_snapshot(name, table, where, origin)
            ]
            if not changed_tables:
                return
        elif signal.type == STOP:
            changed_tables = [snapshot.table for snapshot in self._snapshots.stop(name, list(conditions))]
        else:
            changed_tables = [snapshot.table for snapshot in self._snapshots.pause(name, signal.type == PAUSE)]
        _log.info("signal.done", connector=name, type=signal.type, tables=",".join(changed_tables), **origin)

    def _begin_snapshot(self, name: str, table: str, where: str, origin: Mapping[str, object]) -> bool:
        """Begin a snapshot of a table; False, and a line in the log, if it can't be."""
        try:
            self._snapshots.begin(name, [table], SnapshotRequest(where=where))
        except HelenusError as error:
            if error.action is Action.RETRY or error.kind is Kind.STATE:
                raise
            _log.warning("signal.skipped", connector=name, table=table, **origin, reason=str(error))
            return False
        return True

    def _forget(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None
        self._counts = {}


def _unread_ranges(
    topic: str, ends: Mapping[str, int], offsets_by_partition: Sequence[dict[str, int]]
) -> list[OffsetRange]:
    """Return the ranges of a topic that some connector has not read, by the offsets of each. Those of another topic of
    the same name are set to 0.
    """
    ranges = []
    for partition, end in ends.items():
        for offsets in offsets_by_partition:
            if 0 <= end < offsets.get(partition, 0):
                offsets[partition] = 0
        start = min(offsets.get(partition, 0) for offsets in offsets_by_partition)
        if start < end:
            ranges.append(OffsetRange(topic, int(partition), start, end))
    return ranges
