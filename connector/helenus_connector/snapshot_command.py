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

_TURN_S = 0.5
_SAY_S = 10.0
_OVER = ("COMPLETE", "STOPPED", "FAILED")
Shown = Mapping[str, Any]
"""A snapshot as REST shows it."""


def chosen(actions: Mapping[str, bool], more: Mapping[str, Any]) -> str | None:
    """The one of show, stop, pause and resume that is given, None if a snapshot is to begin. Raises UsageError for two
    of them, and for one with an option that it does not use.
    """
    given = [f"--{name}" for name, is_given in actions.items() if is_given]
    if len(given) > 1:
        raise click.UsageError(f"give one of {', '.join(given)}")
    if not given:
        return None
    unused = ["token_range", "key", "where"]
    if given[0] in ("--stop", "--pause"):
        unused.append("wait")
    for name in unused:
        if more[name] not in (None, False):
            raise click.UsageError(f"{given[0]} takes no --{name.replace('_', '-')}")
    if more["tables"] and given[0] in ("--pause", "--resume"):
        raise click.UsageError(f"{given[0]} takes no --table: it is of all the connector's snapshots")
    return given[0][2:]


def snapshot(
    worker: WorkerClient,
    name: str,
    tables: Sequence[str] = (),
    token_range: str | None = None,
    key: str | None = None,
    where: str | None = None,
    wait: bool = False,
    what: str | None = None,
) -> int:
    """Begin snapshots of a connector, or do `what` with those that are there. Returns the exit status.

    Raises HelenusError CONFIG for what the worker refuses, and WORKER_UNREACHABLE.
    """
    place = f"/connectors/{quote(name, safe='')}/snapshots"
    if what in ("pause", "resume"):
        shown = worker.ask("PUT", f"{place}/{what}", has="snapshots")
    elif what in ("show", "stop"):
        places = [f"{place}/{quote(table, safe='')}" for table in dict.fromkeys(tables)] or [place]
        # An unknown table is refused before any is stopped.
        shown = [one for of in places for one in worker.ask("GET", of, has="snapshots")]
        if what == "stop":
            shown = [one for of in places for one in worker.ask("DELETE", of, has="snapshots")]
    else:
        asked = {"tables": list(tables), "token_range": token_range, "key": _key(key), "where": where}
        body = {field: value for field, value in asked.items() if value is not None}
        shown = worker.ask("POST", place, body, has="snapshots")
    if wait and shown:
        try:
            return _wait(worker, name, place, shown)
        except KeyboardInterrupt:
            click.echo(f"{name}: the snapshot goes on; --stop ends it", err=True)
            return 1
    if not shown:
        click.echo(f"{name}: no snapshot" if what in (None, "show") else f"{name}: no snapshot is under way")
    for one in shown:
        click.echo(line(name, one))
    return 0


def line(name: str, one: Shown) -> str:
    """A snapshot in a line."""
    parts = [f"{name} {one['table']}: {one['state']}, {one['rows']} rows"]
    if one["state"] not in _OVER:
        parts.append(f"{one['done']:.0%} scanned, {one['rate']:.0f} rows/s")
        if one.get("eta_s") is not None:
            parts.append(f"about {_duration(one['eta_s'])} left")
    parts += [str(one[field]) for field in ("waiting", "error") if one.get(field)]
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


def _wait(worker: WorkerClient, name: str, place: str, begun: Sequence[Shown]) -> int:
    """Show these tables' snapshots until they are over: a bar each in a terminal, else a line now and then."""
    names = [one["table"] for one in begun]
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TextColumn("{task.fields[left]}"),
    )
    said = 0.0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {table: progress.add_task(table, total=1.0, rows=0, left="") for table in names}
        while True:
            there = [one for one in worker.ask("GET", place, has="snapshots") if one["table"] in bars]
            for one in there:
                progress.update(bars[one["table"]], completed=one["done"], rows=one["rows"], left=_left(one))
            if all(one["state"] in _OVER for one in there):
                break
            if not console.is_terminal and time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                for one in there:
                    click.echo(line(name, one))
            time.sleep(_TURN_S)
    for one in there:
        click.echo(line(name, one))
    return 0 if all(one["state"] == "COMPLETE" for one in there) else 1


def _left(one: Shown) -> str:
    """How long the scan may take, or what the snapshot does in its place."""
    if one["state"] != "SCANNING":
        return str(one["state"]).lower()
    if one.get("waiting"):
        return "waiting"
    return "" if one.get("eta_s") is None else f"{_duration(one['eta_s'])} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
