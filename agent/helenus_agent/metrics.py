"""The agent's metrics for Prometheus, and the same values under the names of other products.

DataStax's are as the JMX exporter writes the beans of its agent, Debezium's as the rules that its dashboards go with
write them, and those of CEP-44 as its sidecar names them. Where a value counts something else than theirs does, its
description says so.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram, Info, Metric
from prometheus_client.registry import Collector

from helenus_agent.commitlog.segment_name import parse_name
from helenus_schemas.errors import Kind

EVENTS = Counter("helenus_agent_events", "Events acknowledged by the broker.", ["table"])
MUTATIONS = Counter("helenus_agent_mutations_read", "Mutations read from the commit log.")
READ_BYTES = Counter(
    "helenus_agent_log_read_bytes", "Bytes of the commit log that were read to be decoded, those read again too."
)
READ_SECONDS = Counter("helenus_agent_log_read_seconds", "How long reading, and decompressing, them took.")
WITHOUT_CELLS = Counter(
    "helenus_agent_events_without_cells",
    "Events sent without their cells, too large for the topic with them.",
    ["topic"],
)
SKIPPED = Counter("helenus_agent_skipped", "Changes that are not published.", ["reason"])
TRANSACTIONAL = Gauge(
    "helenus_agent_transactional_tables", "CDC tables whose writes are transactions, which are in no commit log."
)
REFUSED = Gauge("helenus_agent_refused_tables", "Tables left out because the broker refuses their topics.")
PROBLEMS = Counter("helenus_agent_undecodable", "Places in the commit log that could not be read.")
QUARANTINED = Gauge(
    "helenus_agent_quarantined_segments", "Segments in quarantine or bound for it (docs/failures.md#quarantine)."
)
LOST = Counter(
    "helenus_agent_lost_segments", "Segments with changes of CDC tables that another program deleted unread."
)
TAKEN_BACK = Counter(
    "helenus_agent_taken_back_bytes",
    "Bytes of log that were read, or may have been, and that the node lost in a crash before its next sync.",
)
POSSIBLE_LOSS = Counter("helenus_agent_possible_loss", "Times that unread segments may have been deleted.")
UNSEEN = Counter(
    "helenus_agent_unseen_segments",
    "Segments that came and went between two listings of cdc_raw; the node itself deletes those without changes.",
)
GAPS = Counter("helenus_agent_gaps", "Gaps reported to the tables' topics.", ["reason"])
TRUNCATIONS = Counter("helenus_agent_truncations", "Published TRUNCATEs.")
DONE = Counter("helenus_agent_segments_done", "Segments read to their end, acknowledged and removed.")
PENDING = Gauge("helenus_agent_segments_pending", "Segments in cdc_raw that are not fully processed.")
RAW_BYTES = Gauge("helenus_agent_cdc_raw_bytes", "Size of the segments in cdc_raw.")
RAW_LIMIT = Gauge(
    "helenus_agent_cdc_raw_limit_bytes",
    "cdc_total_space of the node: at this size it refuses writes, or with cdc_block_writes=false deletes unread "
    "segments.",
)
RAW_HEADROOM = Gauge("helenus_agent_cdc_raw_headroom_bytes", "What is left of the limit; NaN if unknown.")
OLDEST = Gauge("helenus_agent_oldest_unsent_seconds", "Age of the oldest data that is not acknowledged.")
FLUSH = Histogram("helenus_agent_flush_seconds", "How long the broker takes to acknowledge events.")
RETRIES = Counter("helenus_agent_retries", "Retries, by kind of error.", ["kind"])
SPANS = Counter(
    "helenus_agent_spans",
    "Spans of traces by outcome: exported, failed (the receiver did not take them) or dropped (the queue was full).",
    ["outcome"],
)
POSITION_SEGMENT = Gauge("helenus_agent_position_segment", "Id of the newest segment with an acknowledged position.")
POSITION_OFFSET = Gauge("helenus_agent_position_offset_bytes", "Acknowledged position in that segment.")
NODE = Info(
    "helenus_agent_node",
    "The agent's version, and its node's address, host_id, data_center and version (cassandra), as labels.",
)
DISABLED = Gauge(
    "helenus_agent_publishing_disabled", "1 while the configuration in Cassandra has the agent publish nothing."
)
CONFIG_REFUSED = Gauge(
    "helenus_agent_config_refused", "1 while rows of configs are wrong, and the last ones that were right are used."
)
STATE_STORE_FAILING = Gauge(
    "helenus_agent_state_store_failing",
    "1 while the copy of the agent's state in Cassandra can't be written, and its file alone is current.",
)
STATE_STORE_WRITES = Counter("helenus_agent_state_store_writes", "Writes of the agent's state to Cassandra.")
DECODER = Info("helenus_agent_decoder", "Whether the decoder is compiled, as a label.")

LOW = 0.8
CRITICAL = 0.95
"""Parts of its limit from which on cdc_raw is called low and critical, in the names of CEP-44."""

_DATASTAX = "org_apache_cassandra_metrics_CdcAgent_Count"


class AgentMetricAliases(Collector):
    """The metrics that others have too, made of ours when they are asked for.

    `directory` is cdc_raw, `server` what Debezium's are labelled with as `name`.
    """

    def __init__(self, directory: Path, server: str) -> None:
        self._directory = directory
        self._debezium_labels = {"plugin": "cassandra", "name": server, "context": "streaming"}

    def describe(self) -> Iterable[Metric]:
        return ()  # to be registered, it need not be asked for its values

    def collect(self) -> Iterable[Metric]:
        return [*self._collect_datastax(), *self._collect_debezium(), *self._collect_cep44()]

    def _collect_datastax(self) -> Iterable[Metric]:
        """Yield DataStax's counters. Events stand for mutations here: one mutation of theirs may be several."""
        counters = Metric(_DATASTAX, "The counters of DataStax's agent, by name.", "unknown")
        sending_errors = {Kind.APPEND_FAILED.value, Kind.TOPIC_MISSING.value, Kind.BROKER_UNREACHABLE.value}
        sent_errors = total(RETRIES, sending_errors)
        counters.add_sample(_DATASTAX, {"name": "SentMutations"}, total(EVENTS))
        counters.add_sample(_DATASTAX, {"name": "SentErrors"}, sent_errors)
        counters.add_sample(_DATASTAX, {"name": "CommitLogReadErrors"}, total(PROBLEMS))
        counters.add_sample(_DATASTAX, {"name": "SkippedMutations"}, total(SKIPPED))
        yield counters

    def _collect_debezium(self) -> Iterable[Metric]:
        newest = int(total(POSITION_SEGMENT))
        name = next((name for name, _ in self._files() if (parse_name(name) or (0, 0))[1] == newest), "")
        beans: tuple[tuple[str, str, float, dict[str, str]], ...] = (
            ("CommitLogFilename", "1; the newest segment that is read.", 1.0, {"filename": name}),
            ("CommitLogPosition", "Acknowledged position in it, in bytes.", total(POSITION_OFFSET), {}),
            ("NumberOfProcessedMutations", "Events acknowledged by the broker.", total(EVENTS), {}),
            ("NumberOfUnrecoverableErrors", "Places in the log that could not be read.", total(PROBLEMS), {}),
            ("CdcDirectoryTotalBytes", "Size of the segments in cdc_raw.", total(RAW_BYTES), {}),
            ("MilliSecondsBehindSource", "Age of the oldest data that is not acknowledged.", total(OLDEST) * 1e3, {}),
        )
        for attribute, description, value, labels in beans:
            yield _metric(f"debezium_metrics_{attribute}", description, value, {**self._debezium_labels, **labels})

    def _collect_cep44(self) -> Iterable[Metric]:
        age = max((time.time() - modified for _, modified in self._files()), default=0.0)
        limit = total(RAW_LIMIT)
        used = total(RAW_BYTES) / limit if limit else 0.0
        yield _metric("Cdc_TotalSpaceUsed", "Size of the segments in cdc_raw, in bytes.", total(RAW_BYTES))
        yield _metric("Cdc_MaxSpaceConfigured", "cdc_total_space of the node, in bytes; 0 if not known.", limit)
        yield _metric("Cdc_TotalConsumedBytes", "Bytes of the commit log that were read.", total(READ_BYTES))
        yield _metric("Cdc_OldestSegmentAgeSeconds", "Since when the oldest segment is not written to.", age)
        yield _metric("Cdc_DeletedSegment", "Segments fully processed and removed.", total(DONE))
        yield _metric("Cdc_LowSpace", f"1 if {LOW:.0%} of the limit are used.", float(used >= LOW))
        yield _metric("Cdc_CriticalSpace", f"1 if {CRITICAL:.0%} of the limit are used.", float(used >= CRITICAL))

    def _files(self) -> list[tuple[str, float]]:
        """Return name and time of the last write (s since the epoch) of each segment in cdc_raw."""
        try:
            with os.scandir(self._directory) as entries:
                return [(entry.name, entry.stat().st_mtime) for entry in entries if parse_name(entry.name)]
        except OSError:
            return []  # one was deleted meanwhile: the next time


def _metric(name: str, description: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    metric = Metric(name, description, "unknown")
    metric.add_sample(name, dict(labels or {}), value)
    return metric


def total(metric: Collector, kinds: Container[str] | None = None) -> float:
    """Return its value, summed up over its labels; only those labelled with one of `kinds`, if given."""
    samples = (sample for family in metric.collect() for sample in family.samples)
    return sum(
        sample.value
        for sample in samples
        if not sample.name.endswith("_created") and (kinds is None or sample.labels["kind"] in kinds)
    )


def _headroom() -> float:
    limit = total(RAW_LIMIT)
    return max(0.0, limit - total(RAW_BYTES)) if limit else math.nan


RAW_HEADROOM.set_function(_headroom)
