"""The connector's metrics: a table's series come and go with it, and others' names have the same values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from helenus_connector import metrics
from helenus_connector.metrics import Labels
from helenus_connector.snapshot._metrics import show as show_snapshots
from helenus_connector.snapshot.request import SnapshotRequest
from helenus_connector.snapshot.snapshot_store import new_snapshot

ORDERS: Labels = ("shop", "ks", "orders")
LABELS = ("connector", "keyspace", "table")
VISITS: Labels = ("shop", "ks", "visits")


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    metrics.begin(ORDERS, 0)
    metrics.begin(VISITS, 3)
    yield
    metrics.forget(ORDERS)
    metrics.forget(VISITS)


def read(name: str, /, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def as_labels(labels: Labels) -> dict[str, str]:
    return dict(zip(("connector", "keyspace", "table"), labels, strict=True))


def test_each_series_of_a_table_ends_with_it() -> None:
    of_tables = [m for m in vars(metrics).values() if isinstance(m, MetricWrapperBase) and m._labelnames[:3] == LABELS]
    of_tables.remove(metrics.REASON)  # it goes with the reason
    assert len(of_tables) > 20
    for metric in of_tables:
        metric.labels(*ORDERS, *("x" for _ in metric._labelnames[3:]))
    metrics.forget(ORDERS)
    labels = as_labels(ORDERS).items()
    ended = {m for m in of_tables if not any(labels <= s.labels.items() for f in m.collect() for s in f.samples)}
    assert [metric._name for metric in of_tables if metric not in ended] == []


def test_series_start_at_zero_and_end_with_their_table() -> None:
    for name in ("records_total", "lag_events", "events_lost_total", "query_seconds_total", "keys_unconfirmed"):
        assert read(f"helenus_connector_{name}", **as_labels(ORDERS)) == 0
    for outcome in metrics.OUTCOMES:
        assert read("helenus_connector_events_total", **as_labels(ORDERS), outcome=outcome) == 0
    metrics.TABLE_ERRORS.labels(*ORDERS, "cassandra-read").inc()
    metrics.state(ORDERS, "RUNNING")
    metrics.forget(ORDERS)
    assert b'table="orders"' not in generate_latest()
    assert b'table="visits"' in generate_latest()


def test_a_task_has_one_state_at_a_time() -> None:
    for now in ("RUNNING", "FAILED"):
        metrics.state(ORDERS, now)
        states = {s: read("helenus_connector_task_state", **as_labels(ORDERS), state=s) for s in metrics.STATES}
        assert [name for name, value in states.items() if value] == [now]


def test_a_state_that_did_not_change_is_set_again_after_its_series_ended() -> None:
    """As when a connector is deleted and made again. Of hundreds, those that did not change are left as they are."""
    for _ in range(2):
        metrics.state(ORDERS, "RUNNING")
        metrics.connector_state("shop", "RUNNING")
        assert read("helenus_connector_task_state", **as_labels(ORDERS), state="RUNNING") == 1
        assert read("helenus_connector_state", connector="shop", state="RUNNING") == 1
        metrics.forget(ORDERS)
        metrics.connector_state("shop", None)
        assert read("helenus_connector_task_state", **as_labels(ORDERS), state="RUNNING") is None
        assert read("helenus_connector_state", connector="shop", state="RUNNING") is None


def test_names_of_kafka_connect() -> None:
    metrics.EVENTS_READ.labels(*VISITS).inc(5)
    metrics.RECORDS.labels(*VISITS).inc(4)
    metrics.EVENTS.labels(*VISITS, "dead_lettered").inc(1)
    metrics.EVENTS_UNCONFIRMED.labels(*VISITS).set(2)
    metrics.TABLE_ERRORS.labels(*VISITS, "cassandra-read").inc(2)
    metrics.TABLE_ERRORS.labels(*VISITS, "append-failed").inc(1)
    metrics.state(ORDERS, "FAILED")
    metrics.state(VISITS, "RUNNING")
    task = {"connector": "shop", "task": "3"}
    assert read("kafka_connect_source_task_metrics_source_record_poll_total", **task) == 5
    assert read("kafka_connect_source_task_metrics_source_record_write_total", **task) == 4
    assert read("kafka_connect_source_task_metrics_source_record_active_count", **task) == 2
    assert read("kafka_connect_task_error_metrics_total_record_errors", **task) == 3
    assert read("kafka_connect_task_error_metrics_deadletterqueue_produce_requests", **task) == 1
    assert read("kafka_connect_task_error_metrics_total_record_errors", connector="shop", task="0") == 0
    worker = "kafka_connect_connect_worker_metrics"
    assert (read(f"{worker}_connector_count"), read(f"{worker}_task_count")) == (1, 2)
    assert read(f"{worker}_connector_failed_task_count", connector="shop") == 1
    assert read(f"{worker}_connector_running_task_count", connector="shop") == 1
    assert read(f"{worker}_connector_paused_task_count", connector="shop") == 0


def test_names_of_datastax() -> None:
    metrics.EVENTS_READ.labels(*ORDERS).inc(10)
    metrics.EVENTS.labels(*ORDERS, "confirmed").inc(6)
    metrics.STATEMENTS.labels(*ORDERS).inc(4)
    metrics.QUERY_SECONDS.labels(*ORDERS).inc(0.02)
    metrics.REPLICATION_SECONDS.labels(*ORDERS).set(0.25)
    expected = {"cache_hits": 6, "cache_misses": 4, "query_latency": 5, "replication_latency": 250}
    for name, value in expected.items():
        labels = {"name": "shop", "table": "ks.orders", "metric": name, "quantile": "0.5"}
        assert read("pulsar_source_user_metric_", **labels) == pytest.approx(value)


def test_names_of_debezium() -> None:
    server = {"plugin": "cassandra", "name": "shop", "context": "streaming"}
    metrics.REPLICATION_SECONDS.labels(*ORDERS).set(0.25)
    metrics.REPLICATION_SECONDS.labels(*VISITS).set(0.5)
    metrics.EVENTS_READ.labels(*ORDERS).inc(1)
    metrics.EVENTS_READ.labels(*VISITS).inc(2)
    metrics.EVENTS.labels(*VISITS, "confirmed").inc(1)
    assert read("debezium_metrics_MilliSecondsBehindSource", **server) == 500
    assert read("debezium_metrics_TotalNumberOfEventsSeen", **server) == 3
    assert read("debezium_metrics_NumberOfEventsFiltered", **server) == 1
    assert read("debezium_metrics_NumberOfErroneousEvents", **server) == 0


def test_names_of_debezium_s_snapshots() -> None:
    tables = {table: new_snapshot("shop", table, "id", "asked", SnapshotRequest(), False) for table in ("a", "b")}
    tables["a"].rows, tables["a"].state, tables["a"].ended = 7, "COMPLETE", tables["a"].started + 30
    server = {"plugin": "cassandra", "name": "shop", "context": "snapshot"}
    names = ("TotalTableCount", "RemainingTableCount", "SnapshotRunning", "SnapshotAborted", "SnapshotCompleted")

    def values() -> list[float | None]:
        show_snapshots(tables.values(), {("shop", "a"), ("shop", "b")})
        return [read(f"debezium_metrics_{name}", **server) for name in names]

    assert values() == [2, 1, 1, 0, 0]
    assert read("debezium_metrics_RowsScanned", **server, table="a") == 7
    assert (read("debezium_metrics_SnapshotDurationInSeconds", **server) or 0) >= 30
    tables["b"].state, tables["b"].ended = "COMPLETE", tables["b"].started
    assert values() == [2, 0, 0, 0, 1]
    tables["b"].state = "FAILED"
    assert values() == [2, 0, 0, 1, 0]
    show_snapshots([], set())
    assert read("debezium_metrics_TotalTableCount", **server) is None


def test_other_products_names_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ("kafka_connect_", "debezium_", "com_datastax_", "org_apache_")

    def names() -> set[str]:
        lines = generate_latest().decode().splitlines()
        return {line.split("{")[0] for line in lines if line.startswith(theirs)}

    assert names()
    monkeypatch.setattr(metrics.TWINS, "is_on", False)
    assert not names()
    assert "helenus_connector_lag_events" in generate_latest().decode()
