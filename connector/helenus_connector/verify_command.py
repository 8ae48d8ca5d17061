"""`helenus-connector verify`: has a running worker verify tables, and shows what it found."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console
from rich.status import Status

from helenus_connector.rest.client import WorkerClient
from helenus_connector.verify.report import DIFFERENT
from helenus_schemas.names import counted

_TURN_S = 0.5
_SAY_S = 10.0
_OVER = ("DONE", "FAILED", "STOPPED")
Shown = Mapping[str, Any]
"""A verification as REST shows it."""


def verify(worker: WorkerClient, name: str, tables: Sequence[str], as_json: bool, **options: Any) -> int:
    """Verify tables of a connector, by default all. Returns the exit status: 0 where each is equal, 3 where one is not,
    1 where one could not be verified.

    Raises HelenusError CONFIG for what the worker refuses, and WORKER_UNREACHABLE.
    """
    place = f"/connectors/{quote(name, safe='')}/verifications"
    asked = {"tables": list(tables), **{key: value for key, value in options.items() if value is not None}}
    numbers = {one["id"] for one in worker.ask("POST", place, asked, has="verifications")}
    try:
        found = _wait(worker, place, numbers)
    except KeyboardInterrupt:
        worker.ask("DELETE", place, has="verifications")
        click.echo(f"{name}: the verification was stopped", err=True)
        return 1
    for one in found:
        click.echo(json.dumps(one, ensure_ascii=False) if as_json else "\n".join(lines(name, one)))
    if len(found) < len(numbers) or any(one["state"] != "DONE" for one in found):
        return 1
    return 0 if all(one["report"]["equal"] for one in found) else DIFFERENT


def lines(name: str, one: Shown) -> list[str]:
    """What was found in a table, for a terminal."""
    if one["state"] != "DONE":
        return [f"{name} {one['table']}: {one['state']}{', ' + one['error'] if one.get('error') else ''}"]
    report = one["report"]
    looked = f"{report['rows']} rows, {report['records']} records, {report['seconds']:.1f} s"
    said = "topic and table are equal" if report["equal"] else "topic and table differ"
    found = [f"{name} {one['table']}: {said} ({looked})"]
    for kind, of in {**report["differences"], **report["apart"]}.items():
        if of["count"]:
            more = ", …" if of["count"] > len(of["keys"]) else ""
            note = "" if kind in report["differences"] else ", no difference"
            found.append(f"  {kind}: {of['count']}{note}{': ' if of['keys'] else ''}{', '.join(of['keys'])}{more}")
    if report["repaired"]:
        found.append(f"  {counted(report['repaired'], 'event')} appended: the connector reads these keys again")
    if report["behind"]:
        found.append(f"  {report['behind']}: what it has not published yet is shown as a difference")
    return found


def _wait(worker: WorkerClient, place: str, numbers: set[int]) -> Sequence[Shown]:
    """Show how far these verifications are, until all are over."""
    console = Console(stderr=True)
    said = ""
    at = time.monotonic() - _SAY_S
    with Status("", console=console) if console.is_terminal else _Silent() as status:
        while True:
            there = [one for one in worker.ask("GET", place, has="verifications") if one["id"] in numbers]
            running = [one for one in there if one["state"] not in _OVER]
            if not running:
                return there
            text = "; ".join(_doing(one) for one in running if one["state"] == "RUNNING")
            if console.is_terminal:
                status.update(text)
            elif text != said and time.monotonic() - at >= _SAY_S:
                said, at = text, time.monotonic()
                click.echo(text, err=True)
            time.sleep(_TURN_S)


def _doing(one: Shown) -> str:
    progress = one["progress"]
    share = f", {progress['done']} of {progress['tasks']} tasks" if progress["tasks"] else ""
    return f"{one['table']}: {progress['does']}{share}, {progress['seconds']:.0f} s"


class _Silent:
    """In place of a status line."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, text: str) -> None:
        """Show nothing."""
