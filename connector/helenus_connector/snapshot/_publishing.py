"""Follows a snapshot's events until the connector has processed them, and completes it then."""

from __future__ import annotations

import time
from collections.abc import Mapping

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.status import Task
from helenus_connector.log.choice import planner
from helenus_connector.log.events import Planner, behind, ends
from helenus_connector.snapshot._run import SnapshotRun, append_last_event, end_snapshot
from helenus_connector.snapshot.snapshot_store import SnapshotStore

ASK_S = 0.2
"""Between two reads of a topic's ends for one snapshot."""
_LOST = "the events topic is shorter than it was: events of the snapshot were lost before they were published"


class SnapshotPublishing:
    """The part of snapshots that comes after the scan. Used by one thread. Raises HelenusError if a broker does not
    answer; then call `disconnect`.
    """

    def __init__(self, worker: WorkerSettings, connectors: Connectors, store: SnapshotStore) -> None:
        self._worker = worker
        self._connectors = connectors
        self._store = store
        self._planner: Planner | None = None

    def partitions(self, task: Task) -> int:
        """Return how many partitions a table's events topic has; 0 if there is no such topic."""
        return self._broker().partitions([task.events])[task.events]

    def begin(self, run: SnapshotRun) -> None:
        """Note where a snapshot's events end, since all are appended."""
        snapshot, ends = run.snapshot, self.ends(run)
        with self._store.changing():
            if not snapshot.is_over:  # stopped meanwhile
                snapshot.ends, snapshot.state = ends, "PUBLISHING"

    def advance(self, run: SnapshotRun) -> None:
        """Complete a snapshot once the connector is past its events; then its last one once more, marked as such."""
        snapshot = run.snapshot
        if time.monotonic() - run.measured_at < ASK_S:
            return
        run.measured_at = time.monotonic()
        ends = self.ends(run)
        if run.is_short(ends):
            with self._store.changing():
                if run.task.settings.snapshot_mode == "when_needed":
                    self._store.for_table(snapshot.connector, snapshot.table).needed = _LOST
                end_snapshot(snapshot, "FAILED", _LOST)
            return
        if not self.is_past(run, snapshot.ends):
            return
        if run.needs_mark:
            append_last_event(self._worker, run)
            ends = self.ends(run)
            with self._store.changing():
                snapshot.ends, snapshot.marked = ends, True
            return
        with self._store.changing():
            if snapshot.is_whole and not snapshot.is_over:
                self._store.for_table(snapshot.connector, snapshot.table).complete = snapshot.table_id
            end_snapshot(snapshot, "COMPLETE")

    def behind(self, run: SnapshotRun) -> int:
        """Return how many events of the table are not processed."""
        unread = behind(run.task.events, self._connectors.offsets_of_task(run.task), self.ends(run))
        return sum(map(self._broker().size, unread))

    def is_past(self, run: SnapshotRun, ends: Mapping[str, int]) -> bool:
        """Return whether the connector has processed the events up to these ends, by partition."""
        return not behind(run.task.events, self._connectors.offsets_of_task(run.task), ends)

    def ends(self, run: SnapshotRun) -> dict[str, int]:
        """Return where the partitions of the table's events topic end now."""
        return ends(self._broker(), run.task.events, run.partitions)

    def disconnect(self) -> None:
        """Close the connection to the broker; the next call makes another."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _broker(self) -> Planner:
        self._planner = self._planner or planner(self._worker)
        return self._planner
