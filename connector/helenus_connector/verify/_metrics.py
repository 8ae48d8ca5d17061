"""Export the result of each table's last verification to Prometheus."""

from __future__ import annotations

from prometheus_client import Gauge

from helenus_connector.verify.report import VerifyReport

_LABELS = ("connector", "keyspace", "table")
DIFFERENCES = Gauge(
    "helenus_connector_verify_differences",
    "Keys in which data topic and table differed at the last verification; the kinds expired, changing and "
    "unpublishable are no differences.",
    (*_LABELS, "kind"),
)
ROWS = Gauge("helenus_connector_verify_rows", "Rows that the last verification looked at.", _LABELS)
RECORDS = Gauge("helenus_connector_verify_records", "Records that it looked at.", _LABELS)
SECONDS = Gauge("helenus_connector_verify_seconds", "How long it took.", _LABELS)
ENDED = Gauge("helenus_connector_verify_ended_timestamp_seconds", "When it ended, s since the epoch.", _LABELS)


def show(report: VerifyReport) -> None:
    """Set the series of a table."""
    labels = (report.connector, report.keyspace, report.table)
    for kind, keys in report.found.items():
        DIFFERENCES.labels(*labels, kind).set(keys.count)
    ROWS.labels(*labels).set(report.rows)
    RECORDS.labels(*labels).set(report.records)
    SECONDS.labels(*labels).set(report.seconds)
    ENDED.labels(*labels).set(report.started + report.seconds)


def forget(labels: tuple[str, str, str]) -> None:
    """End the series of a table."""
    for metric in (DIFFERENCES, ROWS, RECORDS, SECONDS, ENDED):
        metric.remove_by_labels(dict(zip(_LABELS, labels, strict=True)))
