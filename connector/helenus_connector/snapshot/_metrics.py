"""What snapshots export to Prometheus, with the meanings of Debezium's snapshot metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Set
from contextlib import suppress

from prometheus_client import Gauge

from helenus_connector.snapshot.snapshot_store import Snapshot

_LABELS = ("connector", "table")
ROWS = Gauge("helenus_connector_snapshot_rows", "Keys that the table's last snapshot scanned.", _LABELS)
DONE = Gauge("helenus_connector_snapshot_done_ratio", "Which share of the table it scanned, from 0 to 1.", _LABELS)
SECONDS = Gauge("helenus_connector_snapshot_seconds", "How long it took, or takes.", _LABELS)
STATE = Gauge("helenus_connector_snapshot_state", "1 for the state that it is in.", (*_LABELS, "state"))
TABLES = Gauge("helenus_connector_snapshot_tables", "Tables that the connector has a snapshot of.", ("connector",))
LEFT = Gauge("helenus_connector_snapshot_tables_remaining", "Those whose snapshot is not over.", ("connector",))
STATES = ("SCANNING", "PUBLISHING", "PAUSED", "COMPLETE", "STOPPED", "FAILED")
_shown: set[tuple[str, str]] = set()


def show(snapshots: Iterable[Snapshot], tables: Set[tuple[str, str]]) -> None:
    """Set the series of the last snapshots of these tables; those of others end."""
    now = time.time()
    there = [one for one in snapshots if (one.connector, one.table) in tables]
    for one in there:
        labels = (one.connector, one.table)
        shown = one.shown()
        ROWS.labels(*labels).set(one.rows)
        DONE.labels(*labels).set(one.done)
        SECONDS.labels(*labels).set((one.ended or now) - one.started)
        for state in STATES:
            STATE.labels(*labels, state).set(state == shown["state"])
    for name in {one.connector for one in there}:
        own = [one for one in there if one.connector == name]
        TABLES.labels(name).set(len(own))
        LEFT.labels(name).set(sum(not one.is_over for one in own))
    present = {(one.connector, one.table) for one in there}
    for labels in _shown - present:
        for metric in (ROWS, DONE, SECONDS):
            with suppress(KeyError):
                metric.remove(*labels)
        STATE.remove_by_labels(dict(zip(_LABELS, labels, strict=True)))
    for name in {name for name, _ in _shown} - {name for name, _ in present}:
        for of_connector in (TABLES, LEFT):
            with suppress(KeyError):
                of_connector.remove(name)
    _shown.clear()
    _shown.update(present)
