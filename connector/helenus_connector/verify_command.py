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
_REPORT_S = 10.0
_OVER = ("DONE", "FAILED", "STOPPED")
Shown = Mapping[str, Any]
"""A verification as REST shows it."""


def verify(worker: WorkerClient, name: str, tables: Sequence[str], as_json: bool, **options: Any) -> int:
    """Verify tables of a connector, by default all. Returns the exit status: 0 where each is equal, 3 where one is not,
    1 where one could not be verified.

    Raises HelenusError CONFIG for what the worker refuses, and WORKER_UNREACHABLE.
    """
    path = f"/connectors/{quote(name, safe='')}/verifications"
    fields = {"tables": list(tables), **{key: value for key, value in options.items() if value is not None}}
    numbers = {verification["id"] for verification in worker.ask("POST", path, fields, has="verifications")}
    try:
        verifications = _wait(worker, path, numbers)
    except KeyboardInterrupt:
        worker.ask("DELETE", path, has="verifications")
        click.echo(f"{name}: the verification was stopped", err=True)
        return 1
    for verification in verifications:
        click.echo(json.dumps(verification, ensure_ascii=False) if as_json else "\n".join(lines(name, verification)))
    if len(verifications) < len(numbers) or any(verification["state"] != "DONE" for verification in verifications):
        return 1
    return 0 if all(verification["report"]["equal"] for verification in verifications) else DIFFERENT


def lines(name: str, verification: Shown) -> list[str]:
    """Return the result for a table, for a terminal."""
    if verification["state"] != "DONE":
        error = f", {verification['error']}" if verification.get("error") else ""
        return [f"{name} {verification['table']}: {verification['state']}{error}"]
    report = verification["report"]
    scanned = f"{counted(report['rows'], 'row')}, {counted(report['records'], 'record')}, {report['seconds']:.1f} s"
    result = "topic and table are equal" if report["equal"] else "topic and table differ"
    texts = [f"{name} {verification['table']}: {result} ({scanned})"]
    for kind, difference in {**report["differences"], **report["apart"]}.items():
        if difference["count"]:
            more = ", …" if difference["count"] > len(difference["keys"]) else ""
            note = "" if kind in report["differences"] else ", no difference"
            keys = f": {', '.join(difference['keys'])}" if difference["keys"] else ""
            texts.append(f"  {kind}: {difference['count']}{note}{keys}{more}")
    if report["repaired"]:
        texts.append(f"  {counted(report['repaired'], 'event')} appended: the connector reads these keys again")
    if report["behind"]:
        texts.append(f"  {report['behind']}: what it has not published yet is shown as a difference")
    return texts


def _wait(worker: WorkerClient, path: str, numbers: set[int]) -> Sequence[Shown]:
    """Show how far these verifications are, until all are over."""
    console = Console(stderr=True)
    last_text = ""
    said_at = time.monotonic() - _REPORT_S
    with Status("", console=console) if console.is_terminal else _Silent() as status:
        while True:
            verifications = [
                verification
                for verification in worker.ask("GET", path, has="verifications")
                if verification["id"] in numbers
            ]
            running = [verification for verification in verifications if verification["state"] not in _OVER]
            if not running:
                return verifications
            text = "; ".join(
                _progress_text(verification) for verification in running if verification["state"] == "RUNNING"
            )
            if console.is_terminal:
                status.update(text)
            elif text != last_text and time.monotonic() - said_at >= _REPORT_S:
                last_text, said_at = text, time.monotonic()
                click.echo(text, err=True)
            time.sleep(_TURN_S)


def _progress_text(verification: Shown) -> str:
    progress = verification["progress"]
    share = f", {progress['done']} of {counted(progress['tasks'], 'task')}" if progress["tasks"] else ""
    return f"{verification['table']}: {progress['does']}{share}, {progress['seconds']:.0f} s"


class _Silent:
    """In place of a status line."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, text: str) -> None:
        """Show nothing."""
