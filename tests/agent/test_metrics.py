"""The metrics under other names have the same values, and none of them doubles work."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.fakes import Raw, write_of
from agent.test_agent import TABLE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from helenus_agent import metrics
from helenus_agent.positions import Positions
from helenus_agent.segments.segment_queue import SegmentQueue

SERVER = {"plugin": "cassandra", "name": "events-", "context": "streaming"}
AGENT = "org_apache_cassandra_metrics_CdcAgent_Count"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    old = time.time() - 500
    for number in (10, 11):
        path = tmp_path / f"CommitLog-7-{number}.log"
        path.write_bytes(b"x")
        (tmp_path / f"CommitLog-7-{number}_cdc.idx").write_text("1")
    os.utime(tmp_path / "CommitLog-7-10.log", (old, old))
    return tmp_path


@pytest.fixture
def limit() -> Iterator[None]:
    yield
    metrics.RAW_LIMIT.set(0)
    metrics.RAW_BYTES.set(0)


def read(raw: Path, metric: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(metrics.AgentMetricAliases(raw, "events-"))
    return registry.get_sample_value(metric, labels)


def test_counters_of_datastax_s_agent(raw: Path) -> None:
    before = {n: read(raw, AGENT, name=n) or 0 for n in ("SentMutations", "SentErrors", "SkippedMutations")}
    metrics.EVENTS.labels("ks.a").inc(3)
    metrics.EVENTS.labels("ks.b").inc(4)
    metrics.SKIPPED.labels("excluded").inc(2)
    metrics.RETRIES.labels("append-failed").inc()
    metrics.RETRIES.labels("cassandra-unreachable").inc()
    assert read(raw, AGENT, name="SentMutations") == before["SentMutations"] + 7
    assert read(raw, AGENT, name="SentErrors") == before["SentErrors"] + 1
    assert read(raw, AGENT, name="SkippedMutations") == before["SkippedMutations"] + 2
    assert read(raw, AGENT, name="CommitLogReadErrors") is not None


def test_attributes_of_debezium(raw: Path, limit: None) -> None:
    metrics.POSITION_SEGMENT.set(11)
    metrics.POSITION_OFFSET.set(77)
    metrics.RAW_BYTES.set(5)
    assert read(raw, "debezium_metrics_CommitLogFilename", **SERVER, filename="CommitLog-7-11.log") == 1
    assert read(raw, "debezium_metrics_CommitLogPosition", **SERVER) == 77
    assert read(raw, "debezium_metrics_CdcDirectoryTotalBytes", **SERVER) == 5
    for name in ("NumberOfProcessedMutations", "NumberOfUnrecoverableErrors", "MilliSecondsBehindSource"):
        assert read(raw, f"debezium_metrics_{name}", **SERVER) is not None


@pytest.mark.parametrize(
    ("used", "low", "critical", "headroom"), [(79, 0, 0, 21), (80, 1, 0, 20), (95, 1, 1, 5), (120, 1, 1, 0)]
)
def test_metrics_of_cep_44(raw: Path, limit: None, used: int, low: int, critical: int, headroom: int) -> None:
    metrics.RAW_LIMIT.set(100)
    metrics.RAW_BYTES.set(used)
    assert (read(raw, "Cdc_TotalSpaceUsed"), read(raw, "Cdc_MaxSpaceConfigured")) == (used, 100)
    assert (read(raw, "Cdc_LowSpace"), read(raw, "Cdc_CriticalSpace")) == (low, critical)
    assert 500 <= (read(raw, "Cdc_OldestSegmentAgeSeconds") or 0) < 600
    assert next(iter(metrics.RAW_HEADROOM.collect())).samples[0].value == headroom


def test_bytes_and_time_of_reading(raw: Path, tmp_path: Path) -> None:
    log = Raw(tmp_path / "log")
    path = log.segment(10)
    log.write(10, write_of(TABLE, 1), write_of(TABLE, 2))
    queue = SegmentQueue(log.path, Positions())
    queue.refresh()
    segment = queue.next()
    assert segment is not None
    assert segment.path == path
    consumed = read(raw, "Cdc_TotalConsumedBytes") or 0
    seconds = metrics.total(metrics.READ_SECONDS)
    data, _, _ = queue.read(segment, 1 << 20)
    assert read(raw, "Cdc_TotalConsumedBytes") == consumed + len(data)
    assert metrics.total(metrics.READ_SECONDS) > seconds
    queue.close()


def test_without_a_limit_nothing_is_low(raw: Path, limit: None) -> None:
    metrics.RAW_LIMIT.set(0)
    metrics.RAW_BYTES.set(10)
    assert read(raw, "Cdc_LowSpace") == 0
    assert math.isnan(next(iter(metrics.RAW_HEADROOM.collect())).samples[0].value)


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(metrics.AgentMetricAliases(tmp_path / "gone", "x"))
    assert b"Cdc_OldestSegmentAgeSeconds 0.0" in generate_latest(registry)


def test_every_metric_is_documented(raw: Path) -> None:
    documented = (Path(__file__).resolve().parents[2] / "docs" / "monitoring.md").read_text()
    ours = [m for m in vars(metrics).values() if isinstance(m, MetricWrapperBase)]
    names = [m.describe()[0].name for m in ours if list(m.describe())]
    assert len(names) > 15
    assert [name for name in names if f"`{name}" not in documented] == []
    theirs = list(metrics.AgentMetricAliases(raw, "x").collect())
    counters = [sample.labels["name"] for sample in theirs[0].samples]
    attributes = [family.name.rpartition("_")[2] for family in theirs[1:]]
    assert [name for name in counters + attributes if f"`{name}`" not in documented] == []
