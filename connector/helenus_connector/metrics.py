"""What the connector exports to Prometheus: its metrics, and the same values under the names of other products.

Connect's and Debezium's are as the usual rules of the JMX exporter write their beans, DataStax's as Pulsar writes those
of its source. A table's series begin at 0 when its connector starts (`begin`), so that they can be alerted on, and end
when it is deleted (`forget`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

_LABELS = ("connector", "keyspace", "table")
OUTCOMES = ("published", "unchanged", "confirmed", "outdated", "dead_lettered", "dropped")
"""The outcomes of events that do not wait."""
AT_GATE = ("completed", "verified", "released", "dropped")
"""What becomes of changes that have waited at the gate."""
STATES = ("RUNNING", "PAUSED", "STOPPED", "FAILED", "RESTARTING", "UNASSIGNED")
"""Of a connector and of a table's task, as Kafka Connect names them."""

SPANS = Counter(
    "helenus_connector_spans_total",
    "Spans of traces by outcome: exported, failed (the receiver did not take them) or dropped (the queue was full).",
    ["outcome"],
)
EVENTS_READ = Counter("helenus_connector_events_read_total", "Events read from the events topic.", _LABELS)
EVENTS = Counter(
    "helenus_connector_events_total",
    "Events by outcome: published, unchanged (the record before is the same), confirmed (by an earlier read), outdated "
    "(the table is gone), dead_lettered or dropped (too few replicas reported them); the others wait.",
    (*_LABELS, "outcome"),
)
EVENTS_LOST = Counter(
    "helenus_connector_events_lost_total",
    "Events that expired unread (errors.data.loss=continue); on Pulsar one for each loss of a partition.",
    _LABELS,
)
GAPS = Counter(
    "helenus_connector_gaps_total",
    "Gaps in a node's commit log that agents reported (log event events.gap): re-snapshot the table.",
    _LABELS,
)
LAG = Gauge(
    "helenus_connector_lag_events",
    "Events in the topic that are not fully processed, on Pulsar an estimate; NaN while no broker answers.",
    _LABELS,
)
LAG_SECONDS = Gauge(
    "helenus_connector_lag_seconds",
    "How long the worker has seen the oldest event that is not fully processed; measured every 5 s, with 600 "
    "partitions every 30 s, with more than 1,200 every minute.",
    _LABELS,
)
EVENTS_UNCONFIRMED = Gauge(
    "helenus_connector_events_unconfirmed",
    "Events that are not confirmed yet.",
    _LABELS,
)
KEYS_UNCONFIRMED = Gauge(
    "helenus_connector_keys_unconfirmed", "Keys that will be read until a read proves their changes.", _LABELS
)
KEYS_UNREAD = Gauge(
    "helenus_connector_keys_unread",
    "Those of them that could not be read yet: replicas are down, or fail to read them (log event row.unreadable).",
    _LABELS,
)
GATE_WAITING = Gauge(
    "helenus_connector_gate_waiting_changes", "Changes that wait for reports of more replicas (docs/gate.md).", _LABELS
)
GATE_WAITING_EVENTS = Gauge("helenus_connector_gate_waiting_events", "The events of these changes.", _LABELS)
GATE_WAITING_BYTES = Gauge(
    "helenus_connector_gate_waiting_bytes",
    "Driver memory that they take; gate.max.waiting.bytes limits it.",
    _LABELS,
)
GATE_OLDEST_SECONDS = Gauge(
    "helenus_connector_gate_oldest_seconds",
    "How long the oldest of them has waited while the topic was read; above gate.timeout.ms it can't be read at the "
    "gate's level.",
    _LABELS,
)
GATE_CHANGES = Counter(
    "helenus_connector_gate_changes_total",
    "Changes that have waited at the gate, by outcome: completed (enough replicas reported them), verified (a read "
    "shows them), released or dropped.",
    (*_LABELS, "outcome"),
)
SCHEMAS_DEFERRED = Gauge(
    "helenus_connector_schemas_deferred",
    "Schemas of published records that are not in the registry yet, by state: deferred (it is away) or refused "
    "(docs/schemas.md).",
    ("connector", "state"),
)
RECORDS = Counter("helenus_connector_records_total", "Records written to the data topic.", _LABELS)
RECORDS_TOO_LARGE = Counter(
    "helenus_connector_records_too_large_total",
    "Records too large for their topic: dead-lettered, in chunks, or without their largest columns.",
    _LABELS,
)
EVENTS_REPEATED = Counter(
    "helenus_connector_events_repeated_total",
    "Events of changes that a node logs again and again; their keys are read more and more rarely "
    "(docs/failures.md#full-away-or-lost).",
    _LABELS,
)
CONTRADICTED = Counter(
    "helenus_connector_changes_contradicted_total",
    "Changes that count as confirmed although their row contradicted them for ten times settle.min.age.ms (log event "
    "changes.contradicted).",
    _LABELS,
)
ROWS_UNPUBLISHED = Counter(
    "helenus_connector_rows_unpublished_total",
    "Rows without a record, since a value cannot be published (dead letters), or the key after a delete marker "
    "(docs/records.md#keys).",
    _LABELS,
)
KEYS_READ = Counter("helenus_connector_keys_read_total", "Keys read from Cassandra.", _LABELS)
STATEMENTS = Counter(
    "helenus_connector_statements_total", "Read statements sent to Cassandra, each for a group of keys.", _LABELS
)
QUERY_SECONDS = Counter(
    "helenus_connector_query_seconds_total", "Sum of the times from a read statement to its answer.", _LABELS
)
REPLICATION_SECONDS = Gauge(
    "helenus_connector_replication_latency_seconds",
    "Time from the newest write to its record's batch, in the last batch.",
    _LABELS,
)
LIVE_KEYS = Gauge("helenus_connector_live_keys", "Keys that live on the data topic (state=keys).", _LABELS)
LIVE_KEYS_ASKED = Counter(
    "helenus_connector_live_keys_asked_total",
    "Of these, keys whose rows were read again: expired (a TTL), deleted (with their partition, range or table) or "
    "repeated (no record came).",
    (*_LABELS, "why"),
)
ROWS_KEPT = Gauge(
    "helenus_connector_rows_kept", "Rows in the state, with deleted ones until gc_grace_seconds (state=rows).", _LABELS
)
STATE_WAITING = Gauge(
    "helenus_connector_state_waiting",
    "Noted times at which a row or key expires, is forgotten or is to be read.",
    _LABELS,
)
STATE_BYTES = Gauge(
    "helenus_connector_state_bytes",
    "Size of the state, in files and in memory; a connector's tables have equal shares.",
    _LABELS,
)
STATE_BATCH_SECONDS = Gauge(
    "helenus_connector_state_batch_seconds",
    "Time of the last batch of the state's query, which a connector's tables share.",
    _LABELS,
)
TABLE_ERRORS = Counter(
    "helenus_connector_table_errors_total", "Failed attempts at a table's events.", (*_LABELS, "kind")
)
STATE = Gauge(
    "helenus_connector_task_state",
    "1 for the state that a table's task is in; FAILED also if its connector failed.",
    (*_LABELS, "state"),
)
CONNECTOR_STATE = Gauge(
    "helenus_connector_state", "1 for the state that a connector is in as a whole.", ("connector", "state")
)
REASON = Gauge(
    "helenus_connector_reason",
    "1 for the kind of reason (an error's, or waiting) why a table, or a connector (keyspace and table are empty), "
    "waits or failed; REST's `trace` has its text.",
    (*_LABELS, "kind"),
)
ERRORS = Counter(
    "helenus_connector_errors_total",
    "Failed attempts at batches, and at reaching what connectors need (while startup.timeout.ms lasts, not those that "
    "are repeated).",
    ("kind",),
)
BATCH_SECONDS = Histogram(
    "helenus_connector_batch_seconds",
    "Time from a batch's start to its end.",
    buckets=(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60),
)

_OF_TABLE: tuple[MetricWrapperBase, ...] = (
    *(EVENTS_READ, EVENTS_REPEATED, EVENTS_LOST, EVENTS_UNCONFIRMED, GAPS),
    *(LAG, LAG_SECONDS, KEYS_UNCONFIRMED, KEYS_UNREAD),
    *(GATE_WAITING, GATE_WAITING_EVENTS, GATE_WAITING_BYTES, GATE_OLDEST_SECONDS),
    *(RECORDS, RECORDS_TOO_LARGE, ROWS_UNPUBLISHED, CONTRADICTED),
    *(KEYS_READ, STATEMENTS, QUERY_SECONDS, REPLICATION_SECONDS),
)
Labels = tuple[str, str, str]
"""Connector, keyspace and table."""
_tasks: dict[Labels, int] = {}
_states: dict[Labels, str] = {}
_connector_states: dict[str, str] = {}


def begin(labels: Labels, task: int) -> None:
    """Begin a table's series, at 0 where nothing happened; `task` is its number in the connector's status."""
    _tasks[labels] = task
    for metric in _OF_TABLE:
        metric.labels(*labels)
    for outcome in OUTCOMES:
        EVENTS.labels(*labels, outcome)
    for outcome in AT_GATE:
        GATE_CHANGES.labels(*labels, outcome)


def forget(labels: Labels) -> None:
    """Ends a table's series."""
    _tasks.pop(labels, None)
    _states.pop(labels, None)
    of_state = LIVE_KEYS, LIVE_KEYS_ASKED, ROWS_KEPT, STATE_WAITING, STATE_BYTES, STATE_BATCH_SECONDS
    for metric in (*_OF_TABLE, EVENTS, GATE_CHANGES, TABLE_ERRORS, STATE, *of_state):
        metric.remove_by_labels(dict(zip(_LABELS, labels, strict=True)))


def schemas_deferred(connector: str, numbers: tuple[int, int] | None) -> None:
    """Sets how many schemas of a connector are deferred, and refused; None ends its series."""
    for index, state in enumerate(("deferred", "refused")):
        if numbers is None:
            SCHEMAS_DEFERRED.remove_by_labels({"connector": connector, "state": state})
        else:
            SCHEMAS_DEFERRED.labels(connector, state).set(numbers[index])


def schemas_note() -> str:
    """Return what `/health` adds while schemas are not in the registry; empty if all are."""
    samples = [sample for family in SCHEMAS_DEFERRED.collect() for sample in family.samples]
    numbers = {state: sum(s.value for s in samples if s.labels["state"] == state) for state in ("deferred", "refused")}
    shown = ", ".join(f"{number:.0f} {state}" for state, number in numbers.items() if number)
    return f" Schemas that are not in the registry: {shown}." if shown else ""


def state(labels: Labels, now: str) -> None:
    """Sets which of STATES a table's task is in."""
    if _states.get(labels) == now:
        return
    _states[labels] = now
    for name in STATES:
        STATE.labels(*labels, name).set(name == now)


def connector_state(name: str, now: str | None) -> None:
    """Sets which of STATES a connector is in; None ends its series. It has them also without a table."""
    if now is None:
        _connector_states.pop(name, None)
        CONNECTOR_STATE.remove_by_labels({"connector": name})
        return
    if _connector_states.get(name) == now:
        return
    _connector_states[name] = now
    for state in STATES:
        CONNECTOR_STATE.labels(name, state).set(state == now)


def reasons(before: set[tuple[str, ...]], now: set[tuple[str, ...]]) -> None:
    """Sets why connectors and tables wait or failed: connector, keyspace, table and kind of each, then and now."""
    for labels in before - now:
        REASON.remove_by_labels(dict(zip((*_LABELS, "kind"), labels, strict=True)))
    for labels in now:
        REASON.labels(*labels).set(1)


class ConnectorMetricAliases(Collector):
    """The metrics that others have too, made of ours when they are asked for; none unless it `is_on`."""

    is_on = True

    def describe(self) -> Iterable[Metric]:
        return ()  # to be registered, it need not be asked for its values

    def collect(self) -> Iterator[Metric]:
        if not self.is_on:
            return
        yield from self._connects()
        yield from self._datastax()
        yield from self._debeziums()

    def _connects(self) -> Iterator[Metric]:
        """A table is a task here."""
        read, records, errors = by_table(EVENTS_READ), by_table(RECORDS), by_table(TABLE_ERRORS)
        dead = by_table(EVENTS, outcome="dead_lettered")
        for prefix, name, description, values in (
            ("source_task", "source_record_poll_total", "Events read from the events topic.", read),
            ("source_task", "source_record_write_total", "Records written to the data topic.", records),
            (
                "source_task",
                "source_record_active_count",
                "Events that are not confirmed yet.",
                by_table(EVENTS_UNCONFIRMED),
            ),
            ("task_error", "total_record_errors", "Failed attempts at a table's events.", errors),
            ("task_error", "total_retries", "The same: each is tried again, or the task failed.", errors),
            ("task_error", "total_records_skipped", "Dead-lettered events.", dead),
            ("task_error", "deadletterqueue_produce_requests", "The same.", dead),
        ):
            metric = Metric(f"kafka_connect_{prefix}_metrics_{name}", description, "unknown")
            for labels in read:
                if labels in _tasks:
                    of_task = {"connector": labels[0], "task": str(_tasks[labels])}
                    metric.add_sample(metric.name, of_task, values.get(labels, 0.0))
            yield metric
        yield from self._workers(list(read))

    def _workers(self, tables: Sequence[Labels]) -> Iterator[Metric]:
        worker = "kafka_connect_connect_worker_metrics"
        states = [s.labels for family in CONNECTOR_STATE.collect() for s in family.samples if s.value]
        metric = Metric("kafka_connect_connector_status", "1, with the connector's state.", "unknown")
        for state in states:
            metric.add_sample(metric.name, {"connector": state["connector"], "status": state["state"].lower()}, 1)
        yield metric
        names = dict.fromkeys([*(state["connector"] for state in states), *(labels[0] for labels in tables)])
        for count, description, value in (
            ("connector_count", "Connectors of the worker.", len(names)),
            ("task_count", "Tables of the worker.", len(tables)),
        ):
            metric = Metric(f"{worker}_{count}", description, "unknown")
            metric.add_sample(metric.name, {}, value)
            yield metric
        for name in ("RUNNING", "PAUSED", "FAILED"):
            metric = Metric(f"{worker}_connector_{name.lower()}_task_count", f"Tables that are {name}.", "unknown")
            now = by_table(STATE, state=name)
            for connector in names:
                number = sum(value for labels, value in now.items() if labels[0] == connector)
                metric.add_sample(metric.name, {"connector": connector}, number)
            yield metric

    def _datastax(self) -> Iterator[Metric]:
        """Theirs are summaries: each quantile has the one value that we have. Times are in ms."""
        read, confirmed = by_table(EVENTS_READ), by_table(EVENTS, outcome="confirmed")
        statements, seconds = by_table(STATEMENTS), by_table(QUERY_SECONDS)
        latency = by_table(REPLICATION_SECONDS)
        metric = Metric("pulsar_source_user_metric_", "Those of DataStax's source, by name.", "unknown")
        for table, total in read.items():
            queries = statements.get(table, 0.0)
            query = 1e3 * seconds.get(table, 0.0) / queries if queries else 0.0
            for name, value in (
                ("cache_hits", confirmed.get(table, 0.0)),
                ("cache_misses", total - confirmed.get(table, 0.0)),
                ("query_latency", query),
                ("replication_latency", 1e3 * latency.get(table, 0.0)),
            ):
                of_table = {"name": table[0], "table": ".".join(table[1:]), "metric": name, "quantile": "0.5"}
                metric.add_sample(metric.name, of_table, value)
        yield metric

    def _debeziums(self) -> Iterator[Metric]:
        latency = {table: 1e3 * value for table, value in by_table(REPLICATION_SECONDS).items()}
        for name, description, values, together in (
            ("MilliSecondsBehindSource", "Time from the newest write to its record's batch.", latency, max),
            ("TotalNumberOfEventsSeen", "Events read from the events topic.", by_table(EVENTS_READ), sum),
            ("NumberOfEventsFiltered", "Copies of events.", by_table(EVENTS, outcome="confirmed"), sum),
            ("NumberOfErroneousEvents", "Dead letters.", by_table(EVENTS, outcome="dead_lettered"), sum),
        ):
            metric = Metric(f"debezium_metrics_{name}", description, "unknown")
            by_connector: dict[str, list[float]] = {}
            for labels, value in values.items():
                by_connector.setdefault(labels[0], []).append(value)
            for connector, members in by_connector.items():
                of_connector = {"plugin": "cassandra", "name": connector, "context": "streaming"}
                metric.add_sample(metric.name, of_connector, float(together(members)))
            yield metric


def by_table(metric: Collector, **only: str) -> dict[Labels, float]:
    """Return a metric's values by table, summed up over its other labels; those alone that have the labels `only`."""
    values: dict[Labels, float] = {}
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith("_created") or any(sample.labels[name] != value for name, value in only.items()):
                continue
            labels = sample.labels["connector"], sample.labels["keyspace"], sample.labels["table"]
            values[labels] = values.get(labels, 0.0) + sample.value
    return values


TWINS = ConnectorMetricAliases()
"""Those under the names of other products; `is_on` switches them off."""
REGISTRY.register(TWINS)
