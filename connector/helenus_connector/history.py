"""The last hour of each table, for the sparklines of the worker's page: kept in memory, and bounded."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Mapping

from helenus_connector import metrics
from helenus_connector.metrics import Labels

STEP_S = 20.0
POINTS = 180
_TABLES = 2000
"""Of more tables no history is kept: these take 5 MB."""


class _Series:
    """The points of one table: rates per second, events, seconds; NaN where a value was not known."""

    def __init__(self, added_at: float, events: float, records: float) -> None:
        self.added_at, self.events, self.records = added_at, events, records
        self.points = {name: array("f") for name in ("events_rate", "records_rate", "lag", "latency")}

    def add(self, now: float, events: float, records: float, lag: float, latency: float) -> None:
        seconds = now - self.added_at
        rates = (max(0.0, events - self.events) / seconds, max(0.0, records - self.records) / seconds)
        for points, value in zip(self.points.values(), (*rates, lag, latency), strict=True):
            points.append(value)
            del points[:-POINTS]
        self.added_at, self.events, self.records = now, events, records


class History:
    """The points of each table; `note` is called every few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[Labels, _Series] = {}
        self._noted = -math.inf

    def note(self, now: float) -> None:
        """Add a point for each table, if the last one is `STEP_S` old. `now` is monotonic, s."""
        if now - self._noted < STEP_S:
            return
        self._noted = now
        read, records = metrics.by_table(metrics.EVENTS_READ), metrics.by_table(metrics.RECORDS)
        lag, latency = metrics.by_table(metrics.LAG), metrics.by_table(metrics.REPLICATION_SECONDS)
        with self._lock:
            self._series = {labels: series for labels, series in self._series.items() if labels in read}
            for labels, events in read.items():
                written = records.get(labels, 0.0)
                if labels in self._series:
                    lag_and_latency = lag.get(labels, math.nan), latency.get(labels, math.nan)
                    self._series[labels].add(now, events, written, *lag_and_latency)
                elif len(self._series) < _TABLES:
                    self._series[labels] = _Series(now, events, written)

    def points(self) -> Mapping[Labels, Mapping[str, list[float | None]]]:
        """Return each table's series, oldest point first; None where a value was not known."""
        with self._lock:
            return {
                labels: {name: [_rounded(value) for value in points] for name, points in series.points.items()}
                for labels, series in self._series.items()
            }

    def rates(self) -> Mapping[Labels, tuple[float, float]]:
        """Return events read and records written per second, of the last point."""
        with self._lock:
            return {
                labels: (series.points["events_rate"][-1], series.points["records_rate"][-1])
                for labels, series in self._series.items()
                if series.points["events_rate"]
            }


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.4g}")
