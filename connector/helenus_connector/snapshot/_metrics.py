"""Export the progress of snapshots to Prometheus, with the meanings of Debezium's snapshot metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Set
from contextlib import suppress

from prometheus_client import Gauge

from helenus_connector.snapshot.snapshot_store import Snapshot

_LABELS = ("connector", "table")
ROWS = Gauge("helenus_connector_snapshot_rows", "Keys that the table's last snapshot scanned.", _LABELS)
DONE = Gauge("helenus_connector_snapshot_done_ratio", "Share of the table that it scanned, from 0 to 1.", _LABELS)
SECONDS = Gauge("helenus_connector_snapshot_seconds", "How long it took, or takes.", _LABELS)
STATE = Gauge("helenus_connector_snapshot_state", "1 for the state that it is in.", (*_LABELS, "state"))
TABLES = Gauge("helenus_connector_snapshot_tables", "Tables that the connector has a snapshot of.", ("connector",))
REMAINING = Gauge("helenus_connector_snapshot_tables_remaining", "Those whose snapshot is not over.", ("connector",))
STATES = ("SCANNING", "PUBLISHING", "PAUSED", "COMPLETE", "STOPPED", "FAILED")
_shown: set[tuple[str, str]] = set()


def show(snapshots: Iterable[Snapshot], tables: Set[tuple[str, str]]) -> None:
    """Set the series of the last snapshots of these tables; those of others end."""
    now = time.time()
    present_snapshots = [snapshot for snapshot in snapshots if (snapshot.connector, snapshot.table) in tables]
    for snapshot in present_snapshots:
        labels = (snapshot.connector, snapshot.table)
        shown = snapshot.shown()
        ROWS.labels(*labels).set(snapshot.rows)
        DONE.labels(*labels).set(snapshot.scanned_share)
        SECONDS.labels(*labels).set((snapshot.ended or now) - snapshot.started)
        for state in STATES:
            STATE.labels(*labels, state).set(state == shown["state"])
    for name in {snapshot.connector for snapshot in present_snapshots}:
        connector_snapshots = [snapshot for snapshot in present_snapshots if snapshot.connector == name]
        TABLES.labels(name).set(len(connector_snapshots))
        REMAINING.labels(name).set(sum(not snapshot.is_over for snapshot in connector_snapshots))
    present_tables = {(snapshot.connector, snapshot.table) for snapshot in present_snapshots}
    for labels in _shown - present_tables:
        for metric in (ROWS, DONE, SECONDS):
            with suppress(KeyError):
                metric.remove(*labels)
        STATE.remove_by_labels(dict(zip(_LABELS, labels, strict=True)))
    for name in {name for name, _ in _shown} - {name for name, _ in present_tables}:
        for metric in (TABLES, REMAINING):
            with suppress(KeyError):
                metric.remove(name)
    _shown.clear()
    _shown.update(present_tables)
