"""`helenus-connector lost-node`: has a running worker say what a lost node may not have sent, and publish it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from helenus_connector.rest.client import WorkerClient
from helenus_connector.snapshot_command import OVER, snapshot
from helenus_connector.verify_command import verify
from helenus_schemas.errors import HelenusError
from helenus_schemas.names import counted

_SEARCH_S = 120.0
"""The search for the node's last event reads some samples of each events topic."""
_SHOWN_RANGES = 4
Shown = Mapping[str, Any]
"""A loss as REST shows it."""


def lost_node(
    worker: WorkerClient,
    name: str,
    node: str,
    tables: Sequence[str] = (),
    replaced_by: str | None = None,
    since: str | None = None,
    until: str | None = None,
    dry_run: bool = False,
    repair: bool = False,
    as_json: bool = False,
) -> int:
    """Show the losses of a connector's tables, by default of all; with `repair` publish what is missing. Returns the
    exit status: 0, or that of the repairs.

    Raises HelenusError CONFIG for what the worker refuses, and WORKER_UNREACHABLE.
    """
    words = {"node": node, "replaced_by": replaced_by, "since": since, "until": until}
    body = {
        "tables": list(tables),
        "dry_run": dry_run,
        **{key: word for key, word in words.items() if word is not None},
    }
    path = f"/connectors/{quote(name, safe='')}/losses"
    losses = worker.ask("POST", path, body, has="losses", timeout=_SEARCH_S)
    if not losses:
        click.echo(f"{name}: node {node} was a replica of none of its rows")
    for loss in losses:
        click.echo(json.dumps(loss, ensure_ascii=False) if as_json else "\n".join(lines(name, loss, repair)))
    return max((_repair(worker, name, loss, as_json) for loss in losses), default=0) if repair else 0


def lines(name: str, loss: Shown, repairs: bool = False) -> list[str]:
    """Return a loss for a terminal."""
    ranges = loss["token_ranges"]
    center = f" of {loss['data_center']}" if loss["data_center"] else ""
    texts = [
        f"{name} {loss['table']}: node {loss['node']}{center}",
        f"  its last event was sent {loss['last_event']}" if loss["last_event"] else "  no event of it is left",
        "  may be missing, where no other replica logged it:",
        f"  written  {loss['since'] or 'at any time'} to {loss['until']}",
    ]
    if loss["ring_known"]:
        more = f", and {len(ranges) - _SHOWN_RANGES} more" if len(ranges) > _SHOWN_RANGES else ""
        share = f"{counted(len(ranges), 'range')}, {loss['share']:.0%} of the ring"
        texts += [f"  tokens   {share}:", *(f"             {range_}" for range_ in ranges[:_SHOWN_RANGES])]
        texts[-1] += more
    else:
        texts.append("  tokens   all: the node has left the ring (--replaced-by names its successor)")
    if not repairs:
        does = "compares these tokens" if loss["repair"] == "verify" else "takes a snapshot of these tokens"
        texts.append(f"  --repair {does}, and publishes what is missing")
    return texts


def _repair(worker: WorkerClient, name: str, loss: Shown, as_json: bool) -> int:
    table, token_range = loss["table"], ",".join(loss["token_ranges"])
    if loss["repair"] == "verify":
        return verify(worker, name, [table], as_json, repair=True, token_range=token_range)
    try:
        return snapshot(worker, name, [table], token_range=token_range, wait=True)
    except HelenusError:
        path = f"/connectors/{quote(name, safe='')}/snapshots/{quote(table, safe='')}"
        if all(shown["state"] in OVER for shown in worker.ask("GET", path, has="snapshots")):
            raise
    # The gap began one of the whole table, by snapshot.mode=when_needed, say. What it scanned before may be missing.
    snapshot(worker, name, [table], action="show", wait=True)
    return snapshot(worker, name, [table], token_range=token_range, wait=True)
