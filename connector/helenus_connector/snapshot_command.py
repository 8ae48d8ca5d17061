"""`helenus-connector snapshot`: begins snapshots in a running worker, and shows how far they are."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from helenus_connector.rest.client import WorkerClient
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import counted

_TURN_S = 0.5
_REPORT_S = 10.0
OVER = ("COMPLETE", "STOPPED", "FAILED")
Shown = Mapping[str, Any]
"""A snapshot as REST shows it."""


def chosen(actions: Mapping[str, bool], more: Mapping[str, Any]) -> str | None:
    """Return the given one of show, stop, pause and resume, None if a snapshot is to begin. Raises UsageError for two
    of them, and for one with an option that it does not use.
    """
    options = [f"--{name}" for name, is_given in actions.items() if is_given]
    if len(options) > 1:
        raise click.UsageError(f"give one of {', '.join(options)}")
    if not options:
        return None
    unused = ["token_range", "key", "where"]
    if options[0] in ("--stop", "--pause"):
        unused.append("wait")
    for name in unused:
        if more[name] not in (None, False):
            raise click.UsageError(f"{options[0]} takes no --{name.replace('_', '-')}")
    if more["tables"] and options[0] in ("--pause", "--resume"):
        raise click.UsageError(f"{options[0]} takes no --table: it is of all the connector's snapshots")
    return options[0][2:]


def snapshot(
    worker: WorkerClient,
    name: str,
    tables: Sequence[str] = (),
    token_range: str | None = None,
    key: str | None = None,
    where: str | None = None,
    wait: bool = False,
    action: str | None = None,
) -> int:
    """Begin snapshots of a connector, or apply `action` to its existing ones. Returns the exit status.

    Raises HelenusError CONFIG for what the worker refuses, and WORKER_UNREACHABLE.
    """
    path = f"/connectors/{quote(name, safe='')}/snapshots"
    if action in ("pause", "resume"):
        shown = worker.ask("PUT", f"{path}/{action}", has="snapshots")
    elif action in ("show", "stop"):
        paths = [f"{path}/{quote(table, safe='')}" for table in dict.fromkeys(tables)] or [path]
        # An unknown table is refused before any is stopped.
        shown = [
            snapshot_shown for table_path in paths for snapshot_shown in worker.ask("GET", table_path, has="snapshots")
        ]
        if action == "stop":
            shown = [
                snapshot_shown
                for table_path in paths
                for snapshot_shown in worker.ask("DELETE", table_path, has="snapshots")
            ]
    else:
        fields = {"tables": list(tables), "token_range": token_range, "key": _key(key), "where": where}
        body = {field: value for field, value in fields.items() if value is not None}
        shown = worker.ask("POST", path, body, has="snapshots")
    if wait and shown:
        try:
            return _wait(worker, name, path, shown)
        except KeyboardInterrupt:
            click.echo(f"{name}: the snapshot goes on; --stop ends it", err=True)
            return 1
    if not shown:
        click.echo(f"{name}: no snapshot" if action in (None, "show") else f"{name}: no snapshot is under way")
    for snapshot_shown in shown:
        click.echo(line(name, snapshot_shown))
    return 0


def line(name: str, snapshot: Shown) -> str:
    """Return a snapshot as a line."""
    parts = [f"{name} {snapshot['table']}: {snapshot['state']}, {counted(snapshot['rows'], 'row')}"]
    if snapshot["state"] not in OVER:
        parts.append(f"{snapshot['done']:.0%} scanned, {snapshot['rate']:.0f} rows/s")
        if snapshot.get("eta_s") is not None:
            parts.append(f"about {_duration(snapshot['eta_s'])} left")
    parts += [str(snapshot[field]) for field in ("waiting", "error") if snapshot.get(field)]
    return ", ".join(parts)


def _key(text: str | None) -> Any:
    if text is None:
        return None
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, dict) or not key:
        raise HelenusError(Kind.CONFIG, f"--key: {text} is no JSON object", advice="""give it as '{"id": 5}'""")
    return key


def _wait(worker: WorkerClient, name: str, path: str, begun: Sequence[Shown]) -> int:
    """Show these tables' snapshots until they are over: a bar each in a terminal, else a line now and then."""
    names = [snapshot["table"] for snapshot in begun]
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TextColumn("{task.fields[left]}"),
    )
    said_at = 0.0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {table: progress.add_task(table, total=1.0, rows=0, left="") for table in names}
        while True:
            snapshots = [snapshot for snapshot in worker.ask("GET", path, has="snapshots") if snapshot["table"] in bars]
            for snapshot in snapshots:
                progress.update(
                    bars[snapshot["table"]],
                    completed=snapshot["done"],
                    rows=snapshot["rows"],
                    left=_remaining_text(snapshot),
                )
            if all(snapshot["state"] in OVER for snapshot in snapshots):
                break
            if not console.is_terminal and time.monotonic() - said_at > _REPORT_S:
                said_at = time.monotonic()
                for snapshot in snapshots:
                    click.echo(line(name, snapshot))
            time.sleep(_TURN_S)
    for snapshot in snapshots:
        click.echo(line(name, snapshot))
    return 0 if all(snapshot["state"] == "COMPLETE" for snapshot in snapshots) else 1


def _remaining_text(snapshot: Shown) -> str:
    """Return how long the scan may take, or what the snapshot does in its place."""
    if snapshot["state"] != "SCANNING":
        return str(snapshot["state"]).lower()
    if snapshot.get("waiting"):
        return "waiting"
    return "" if snapshot.get("eta_s") is None else f"{_duration(snapshot['eta_s'])} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
