"""The connector's metrics: names and units, all in one place."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_LABELS = ("connector",)

EVENTS_READ = Counter("helenus_connector_events_read_total", "Events read from the events topic", _LABELS)
EVENTS = Counter(
    "helenus_connector_events_total",
    "Events by what became of them: published, unchanged, settled, outdated or dead_lettered; the others are pending",
    (*_LABELS, "outcome"),
)
EVENTS_LOST = Counter(
    "helenus_connector_events_lost_total",
    "Events that the topic no longer had when they were to be read (errors.data.loss=continue)",
    _LABELS,
)
EVENTS_PENDING = Gauge("helenus_connector_events_pending", "Events whose outcome is open", _LABELS)
KEYS_PENDING = Gauge("helenus_connector_keys_pending", "Keys that will be read again", _LABELS)
RECORDS = Counter("helenus_connector_records_total", "Records written to the data topic", _LABELS)
RECORDS_TOO_LARGE = Counter(
    "helenus_connector_records_too_large_total",
    "Records too large for their topic: dead-lettered, or written without their largest columns",
    _LABELS,
)
KEYS_READ = Counter("helenus_connector_keys_read_total", "Keys read from Cassandra", _LABELS)
STATEMENTS = Counter("helenus_connector_statements_total", "Read statements sent to Cassandra", _LABELS)
REPLICATION_SECONDS = Gauge(
    "helenus_connector_replication_latency_seconds", "Time from the newest write to its record's batch", _LABELS
)
ERRORS = Counter("helenus_connector_errors_total", "Failed attempts by kind of error", ("kind",))
BATCH_SECONDS = Histogram(
    "helenus_connector_batch_seconds",
    "Time of a batch in foreachBatch",
    buckets=(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60),
)
