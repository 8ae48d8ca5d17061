"""`/overview` of the REST API: what the worker's page shows, and why each part that waits or failed does.

It is not Kafka Connect's. What it says is in `/connectors?expand=status` and `/metrics` too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse, Response

from helenus_connector import metrics
from helenus_connector.control.connectors import Connectors, UnknownConnector
from helenus_connector.control.status import Connector
from helenus_connector.history import STEP_S, History
from helenus_connector.metrics import Labels
from helenus_connector.rest._call import Resources, RestCall
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_schemas import __version__
from helenus_schemas.service.monitoring import Ready

Json = dict[str, Any]
_VALUES = {
    "lag_events": metrics.LAG,
    "lag_s": metrics.LAG_SECONDS,
    "latency_s": metrics.REPLICATION_SECONDS,
    "events": metrics.EVENTS_READ,
    "records": metrics.RECORDS,
    "unconfirmed_events": metrics.EVENTS_UNCONFIRMED,
    "unconfirmed_keys": metrics.KEYS_UNCONFIRMED,
    "unread_keys": metrics.KEYS_UNREAD,
    "gate_changes": metrics.GATE_WAITING,
    "gate_oldest_s": metrics.GATE_OLDEST_SECONDS,
    "errors": metrics.TABLE_ERRORS,
    "lost_events": metrics.EVENTS_LOST,
    "gaps": metrics.GAPS,
}


class OverviewResources:
    """`/overview`. `writable` says whether a browser may change connectors."""

    def __init__(
        self, connectors: Connectors, snapshots: Snapshots, history: History, ready: Ready, writable: bool
    ) -> None:
        self._connectors = connectors
        self._snapshots = snapshots
        self._history = history
        self._ready = ready
        self._writable = writable

    def resources(self) -> Resources:
        return {"/overview": {"GET": self._overview}}

    def _overview(self, call: RestCall) -> Response:
        """Answer with all connectors and tables; with `?history=true` also with the points of the last hour."""
        values = {name: metrics.by_table(metric) for name, metric in _VALUES.items()}
        dead = metrics.by_table(metrics.EVENTS, outcome="dead_lettered")
        values["dead_letters"] = dead
        rates = self._history.rates()
        shown, own = [], set(self._connectors.names())
        for name, connector in sorted(self._connectors.all_with_files().items()):
            snapshots: list[Json] = []
            with suppress(UnknownConnector):  # of a file of several keyspaces, or deleted meanwhile
                snapshots = [snapshot.shown() for snapshot in self._snapshots.last_snapshots(name)]
            entry = self._connector(name, connector, values, rates, snapshots)
            shown.append({**entry, "is_file": name not in own})
        answer: Json = {
            "version": __version__,
            "writable": self._writable,
            "trouble": self._ready(),
            "connectors": shown,
        }
        if call.wants("history"):
            answer["history"] = {
                "step_s": STEP_S,
                "tables": [[*labels, points] for labels, points in self._history.points().items()],
            }
        return JSONResponse(answer)

    def _connector(
        self,
        name: str,
        connector: Connector,
        values: Mapping[str, Mapping[Labels, float]],
        rates: Mapping[Labels, tuple[float, float]],
        snapshots: list[Json],
    ) -> Json:
        with self._connectors.lock:
            status = connector.status()
            tasks = {task.id: task for task in connector.tasks.values()}
        states = {task.id: task for task in status.tasks}
        tables = []
        for number, task in sorted(tasks.items()):
            now, rate = states.get(number), rates.get(task.labels)
            last = task.last_error
            tables.append(
                {
                    "task": number,
                    "keyspace": task.settings.keyspace,
                    "table": task.settings.table,
                    "topic": task.data,
                    "state": now.state if now else status.state,
                    "reason": now.trace if now else None,
                    "last_error": None if last is None else {"at": last[0], "text": last[1]},
                    "events_rate": None if rate is None else round(rate[0], 2),
                    "records_rate": None if rate is None else round(rate[1], 2),
                    **{key: _rounded(by_table.get(task.labels)) for key, by_table in values.items()},
                }
            )
        return {
            "name": name,
            "state": status.state,
            "reason": status.trace,
            "tables": tables,
            "snapshots": snapshots,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 3)
