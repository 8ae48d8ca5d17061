"""Export the progress of snapshots to Prometheus, also under the names of Debezium's snapshot metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress

from prometheus_client import REGISTRY, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from helenus_connector.metrics import TWINS
from helenus_connector.snapshot.snapshot_store import Snapshot

_LABELS = ("connector", "table")
ROWS = Gauge("helenus_connector_snapshot_rows", "Keys that the table's last snapshot scanned.", _LABELS)
DONE = Gauge("helenus_connector_snapshot_done_ratio", "Share of the table that it scanned, from 0 to 1.", _LABELS)
SECONDS = Gauge("helenus_connector_snapshot_seconds", "How long it took, or takes.", _LABELS)
STATE = Gauge("helenus_connector_snapshot_state", "1 for the state that it is in.", (*_LABELS, "state"))
TABLES = Gauge("helenus_connector_snapshot_tables", "Tables that the connector has a snapshot of.", ("connector",))
REMAINING = Gauge("helenus_connector_snapshot_tables_remaining", "Those whose snapshot is not over.", ("connector",))
STATES = ("SCANNING", "PUBLISHING", "PAUSED", "COMPLETE", "STOPPED", "FAILED")
_ABORTED = {"STOPPED", "FAILED"}
_OVER = {"COMPLETE", *_ABORTED}
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


class DebeziumSnapshotMetrics(Collector):
    """Gives the last snapshots' metrics the names of Debezium's (`SnapshotChangeEventSourceMetricsMXBean`), by
    connector; unless `metrics.other.products` is off.
    """

    def collect(self) -> Iterable[Metric]:
        return self._metrics() if TWINS.is_on else ()

    def _metrics(self) -> Iterator[Metric]:
        states: dict[str, list[str]] = {}
        for sample in _samples(STATE):
            if sample.value:
                states.setdefault(sample.labels["connector"], []).append(sample.labels["state"])
        seconds: dict[str, float] = {}
        for sample in _samples(SECONDS):
            connector = sample.labels["connector"]
            seconds[connector] = max(sample.value, seconds.get(connector, 0.0))
        for name, values in (
            ("TotalTableCount", {sample.labels["connector"]: sample.value for sample in _samples(TABLES)}),
            ("RemainingTableCount", {sample.labels["connector"]: sample.value for sample in _samples(REMAINING)}),
            ("SnapshotRunning", {c: not _OVER.issuperset(of_tables) for c, of_tables in states.items()}),
            ("SnapshotPaused", {c: "PAUSED" in of_tables for c, of_tables in states.items()}),
            ("SnapshotAborted", {c: not _ABORTED.isdisjoint(of_tables) for c, of_tables in states.items()}),
            ("SnapshotCompleted", {c: {*of_tables} == {"COMPLETE"} for c, of_tables in states.items()}),
            ("SnapshotDurationInSeconds", seconds),
        ):
            metric = Metric(f"debezium_metrics_{name}", "Of the last snapshots of the connector's tables.", "unknown")
            for connector, value in values.items():
                metric.add_sample(metric.name, _debezium_labels(connector), float(value))
            yield metric
        metric = Metric("debezium_metrics_RowsScanned", "Keys that the table's last snapshot scanned.", "unknown")
        for sample in _samples(ROWS):
            labels = {**_debezium_labels(sample.labels["connector"]), "table": sample.labels["table"]}
            metric.add_sample(metric.name, labels, sample.value)
        yield metric


def _samples(gauge: Gauge) -> list[Sample]:
    return [sample for family in gauge.collect() for sample in family.samples]


def _debezium_labels(connector: str) -> dict[str, str]:
    return {"plugin": "cassandra", "name": connector, "context": "snapshot"}


REGISTRY.register(DebeziumSnapshotMetrics())
