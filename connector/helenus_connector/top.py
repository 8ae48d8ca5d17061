"""`helenus-connector top`: how the tables of a worker fare, from its `/metrics` and its REST API."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from helenus_connector.metrics import Labels
from helenus_connector.rest.client import WorkerClient
from helenus_schemas.errors import HelenusError, Kind

_PREFIX = "helenus_connector_"
_HEADINGS = (
    *("connector", "table", "state", "lag", "latency", "behind", "waiting"),
    *("events/s", "records/s", "copies", "query", "errors", "dead", "lost"),
)
_DROPPABLE = ("query", "copies", "dead", "lost", "waiting", "errors", "records/s", "behind", "events/s")
"""The columns that a narrow terminal leaves out, in this order: lag and latency matter most."""
_SNAPSHOT_HEADINGS = ("connector", "snapshot of", "state", "scanned", "rows/s", "rows", "left")
_GATE_HEADINGS = ("connector", "at the gate of", "changes", "oldest", "memory", "complete/s", "dropped")
_STATE_HEADINGS = ("connector", "state of", "live", "kept", "size", "waiting", "batch", "expired/s")
_MAX_ROWS = 10
_WIDE = 10_000
_STYLES = {
    "RUNNING": "green",
    "SCANNING": "green",
    "PUBLISHING": "green",
    "FAILED": "bold red",
    "PAUSED": "yellow",
    "STOPPED": "yellow",
}


@dataclass
class TableRates:
    """How a table fares at a moment: the values of its metrics by name, summed up, and its task's state."""

    state: str = ""
    values: dict[str, float] = field(default_factory=dict)

    def get(self, name: str) -> float:
        return self.values.get(name, 0.0)


@dataclass
class SnapshotProgress:
    """How a table's last snapshot fares: as its metrics say. `done_ratio` is a share, from 0 to 1."""

    state: str = ""
    rows: float = 0.0
    done_ratio: float = 0.0
    seconds: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.state not in ("SCANNING", "PUBLISHING", "PAUSED")


@dataclass(frozen=True)
class Moment:
    """What a worker showed at a time, s: its tables, why connectors or tasks failed, what others wait for, and the last
    snapshots by connector and table.
    """

    taken_at: float
    tables: Mapping[Labels, TableRates]
    failures: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    snapshots: Mapping[tuple[str, str], SnapshotProgress] = field(default_factory=dict)


def look(worker: WorkerClient) -> Moment:
    """Return what a worker shows of its tables now. Raises HelenusError WORKER_UNREACHABLE."""
    text = worker.get("/metrics")
    tables: dict[Labels, TableRates] = {}
    snapshots: dict[tuple[str, str], SnapshotProgress] = {}
    try:
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        status = json.loads(worker.get("/connectors?expand=status"))
        failures, waiting = tuple(_reasons(status, failed=True)), tuple(_reasons(status, failed=False))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"that is no worker of Helenus: {type(error).__name__} {error}"
        raise HelenusError(Kind.WORKER_UNREACHABLE, problem, worker.url) from None
    for sample in samples:
        labels = sample.labels
        if sample.name.startswith(f"{_PREFIX}snapshot_") and "table" in labels:
            _note_sample(snapshots.setdefault((labels["connector"], labels["table"]), SnapshotProgress()), sample)
        if not sample.name.startswith(_PREFIX) or not {"connector", "keyspace", "table"} <= labels.keys():
            continue
        if not labels["table"]:  # why a connector as a whole waits: its status says it in words
            continue
        fares = tables.setdefault((labels["connector"], labels["keyspace"], labels["table"]), TableRates())
        name = sample.name[len(_PREFIX) :]
        if name == "task_state":
            fares.state = labels["state"] if sample.value else fares.state
            continue
        for key in (name, f"{name}/{labels.get('outcome', labels.get('why', ''))}"):
            fares.values[key] = fares.get(key) + sample.value
    return Moment(time.monotonic(), tables, failures, waiting, snapshots)


def _note_sample(scan: SnapshotProgress, sample: Any) -> None:
    """Note a metric of a snapshot."""
    match sample.name.removeprefix(f"{_PREFIX}snapshot_"):
        case "state":
            scan.state = sample.labels["state"] if sample.value else scan.state
        case "rows":
            scan.rows = sample.value
        case "done_ratio":
            scan.done_ratio = sample.value
        case "seconds":
            scan.seconds = sample.value


def _reasons(status: Mapping[str, Any], failed: bool) -> Iterator[str]:
    """Yield why connectors and tasks are FAILED, or what the others wait for."""
    for name, connector in sorted(status.items()):
        connector_trace = connector["status"]["connector"].get("trace")
        for part in (connector["status"]["connector"], *connector["status"]["tasks"]):
            number = f" task {part['id']}" if "id" in part else ""
            trace = part.get("trace", "failed" if part["state"] == "FAILED" else None)
            if trace is None or failed is not (part["state"] == "FAILED") or (number and trace == connector_trace):
                continue
            yield f"{name}{number}: {trace.splitlines()[0]}"


def view(before: Moment, now: Moment) -> RenderableType:
    """Return the table of the changes between two moments, with the columns that fit the terminal."""
    seconds = now.taken_at - before.taken_at
    rows = [
        tuple(_table_row(labels, before.tables.get(labels, TableRates()), fares, seconds))
        for labels, fares in sorted(now.tables.items())
    ]
    tables = _Fitting(rows) if rows else Text("The worker has no tables yet.")
    running = {table_name: scan for table_name, scan in sorted(now.snapshots.items()) if not scan.is_over}
    shown = [
        (*table_name, *_snapshot_row(before.snapshots.get(table_name), scan, seconds))
        for table_name, scan in running.items()
    ]
    waiting = sorted(
        (item for item in now.tables.items() if item[1].get("gate_waiting_changes")),
        key=lambda item: -item[1].get("gate_waiting_changes"),
    )
    gates = [
        tuple(_gate_row(labels, before.tables.get(labels, TableRates()), fares, seconds)) for labels, fares in waiting
    ]
    states = [
        tuple(_state_row(labels, before.tables.get(labels, TableRates()), fares, seconds))
        for labels, fares in sorted(now.tables.items())
        if "live_keys" in fares.values or "rows_kept" in fares.values
    ]
    parts = [
        *_section(gates, _GATE_HEADINGS, ("memory",)),
        *_section(states, _STATE_HEADINGS, ("expired/s",)),
        *_section(shown, _SNAPSHOT_HEADINGS, ("rows",)),
    ]
    lines = [*(Text(line, style="red") for line in now.failures), *(Text(line, style="yellow") for line in now.waiting)]
    return Group(tables, *parts, *lines)


def _section(rows: Sequence[tuple[Text | str, ...]], headings: Sequence[str], least: Sequence[str]) -> Iterator[Any]:
    """Yield a table below the tables', of the first rows; nothing if there is none."""
    if rows:
        yield from (Text(), _Fitting(rows[:_MAX_ROWS], headings, least))
    if len(rows) > _MAX_ROWS:
        yield Text(f"and {len(rows) - _MAX_ROWS} more", style="dim")


@dataclass(frozen=True)
class _Fitting:
    """Rows as a table that leaves out columns where it would be too wide, and then shortens names."""

    rows: Sequence[tuple[Text | str, ...]]
    headings: Sequence[str] = _HEADINGS
    least: Sequence[str] = _DROPPABLE

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out: list[str] = []
        for heading in (*self.least, ""):
            grid = self._grid(left_out)
            spare_width = options.max_width - Measurement.get(console, options.update(max_width=_WIDE), grid).maximum
            if spare_width >= 0 or not heading:
                break
            if not any(isinstance(cell := row[self.headings.index(heading)], Text) and cell.style for row in self.rows):
                left_out.append(heading)  # a number in red stays
        if spare_width < 0:
            names = [max(len(str(row[column])) for row in self.rows) for column in (0, 1)]
            width = max(sum(names) + spare_width, 8)
            connector = min(names[0], max(width // 3, width - names[1]))
            grid = self._grid(left_out, (connector, width - connector))
        yield grid

    def _grid(self, left_out: Sequence[str], names: Sequence[int | None] = (None, None)) -> Table:
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        shown = [column for column, heading in enumerate(self.headings) if heading not in left_out]
        for column in shown:
            width = names[column] if column < len(names) else None
            is_text = column < 2 or self.headings[column] == "state"
            justify: Literal["left", "right"] = "left" if is_text else "right"
            grid.add_column(self.headings[column], justify=justify, no_wrap=True, overflow="ellipsis", width=width)
        for row in self.rows:
            grid.add_row(*(row[column] for column in shown))
        return grid


def _table_row(labels: Labels, before: TableRates, now: TableRates, seconds: float) -> Iterator[Text | str]:
    def more(name: str) -> float:
        change = now.get(name) - before.get(name)
        return change if change >= 0 else now.get(name)  # the worker was started again

    read, statements = more("events_read_total"), more("statements_total")
    latency = now.get("replication_latency_seconds")
    yield labels[0]
    yield f"{labels[1]}.{labels[2]}"
    yield Text(now.state or "?", style=_STYLES.get(now.state, ""))
    yield _number(now.get("lag_events"))
    yield _duration(latency) if latency else "-"
    yield _duration(now.get("lag_seconds"))
    yield _number(now.get("events_unconfirmed"))
    yield _number(read / seconds)
    yield _number(more("records_total") / seconds)
    yield f"{more('events_total/confirmed') / read:.0%}" if read else "-"
    yield _duration(more("query_seconds_total") / statements) if statements else "-"
    for name in ("table_errors_total", "events_total/dead_lettered", "events_lost_total"):
        yield Text(_number(now.get(name)), style="red" if now.get(name) else "")


def _gate_row(labels: Labels, before: TableRates, now: TableRates, seconds: float) -> Iterator[Text | str]:
    """Yield the cells of what waits at the gate for reports of more replicas."""
    completed, dropped = (f"gate_changes_total/{outcome}" for outcome in ("completed", "dropped"))
    yield labels[0]
    yield f"{labels[1]}.{labels[2]}"
    yield _number(now.get("gate_waiting_changes"))
    yield _duration(now.get("gate_oldest_seconds"))
    yield f"{_number(now.get('gate_waiting_bytes'))}B"
    yield _number(max(0.0, now.get(completed) - before.get(completed)) / seconds)
    yield Text(_number(now.get(dropped)), style="red" if now.get(dropped) else "")


def _state_row(labels: Labels, before: TableRates, now: TableRates, seconds: float) -> Iterator[Text | str]:
    """Yield the cells of what is kept of a table: live keys with `state=keys`, rows with `state=rows`."""
    expired = "live_keys_asked_total/expired"
    yield labels[0]
    yield f"{labels[1]}.{labels[2]}"
    yield _number(now.get("live_keys")) if "live_keys" in now.values else "-"
    yield _number(now.get("rows_kept")) if "rows_kept" in now.values else "-"
    yield f"{_number(now.get('state_bytes'))}B"
    yield _number(now.get("state_waiting"))
    yield _duration(now.get("state_batch_seconds"))
    yield _number(max(0.0, now.get(expired) - before.get(expired)) / seconds) if "live_keys" in now.values else "-"


def _snapshot_row(before: SnapshotProgress | None, now: SnapshotProgress, seconds: float) -> Iterator[Text | str]:
    remaining_s = (
        now.seconds * (1 - now.done_ratio) / now.done_ratio if now.done_ratio and now.state == "SCANNING" else 0.0
    )
    yield Text(now.state, style=_STYLES.get(now.state, ""))
    yield f"{now.done_ratio:.0%}"
    yield _number((now.rows - before.rows) / seconds) if before and now.rows >= before.rows else "-"
    yield _number(now.rows)
    yield f"~{_duration(remaining_s)}" if remaining_s else "-"


def _number(value: float) -> str:
    if math.isnan(value):
        return "?"
    for unit, size, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if value >= least:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else f"{value:.0f}"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "?"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def show(worker: WorkerClient, interval: float, once: bool) -> None:
    """Print what happens within `interval` seconds, `once` or until interrupted.

    Raises HelenusError if no worker answers at first; a worker that goes away later is waited for.
    """
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE  # a file or a pipe is not narrow
    before = look(worker)
    if once:
        time.sleep(interval)
        console.print(view(before, look(worker)))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            title = Text(f"{worker.url}  {time.strftime('%H:%M:%S')}  every {interval:g} s, Ctrl-C ends", style="dim")
            try:
                now = look(worker)
                live.update(Group(title, view(before, now)), refresh=True)
                before = now
            except HelenusError as error:
                live.update(Group(title, Text(str(error), style="red")), refresh=True)
