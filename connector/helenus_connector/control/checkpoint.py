"""Spark's checkpoint of a query, as far as we read it: which batches it planned, which are done, and where they end.

The format is Spark's own: `commits/N` says that batch N is done, the last line of `offsets/N` has the source's offset.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from helenus_connector.log.events import Offsets
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable


def committed(checkpoint: Path) -> Offsets:
    """Return where the last batch ended that Spark has committed; empty if there was none."""
    batches = sorted((int(f.name) for f in checkpoint.glob("commits/*") if f.name.isdigit()), reverse=True)
    for batch in batches:
        with contextlib.suppress(FileNotFoundError):  # it was cleaned up meanwhile
            return planned(checkpoint, batch)
    return {}


def latest(checkpoint: Path) -> int:
    """Return the number of the last batch that was planned, done or not; -1 if there was none."""
    return max((int(f.name) for f in checkpoint.glob("offsets/*") if f.name.isdigit()), default=-1)


def latest_committed(checkpoint: Path) -> int:
    """Return the number of the last batch that Spark has committed; -1 if there was none."""
    return max((int(f.name) for f in checkpoint.glob("commits/*") if f.name.isdigit()), default=-1)


def sync_planned(checkpoint: Path, batch: int) -> None:
    """Have the disk keep where a batch ends, which Spark leaves to the system."""
    file = checkpoint / "offsets" / str(batch)
    with contextlib.suppress(FileNotFoundError):
        durable.sync(file)
        durable.sync(file.parent)


def planned(checkpoint: Path, batch: int) -> Offsets:
    """Return where a batch ends, done or not. Raises FileNotFoundError if Spark has no such batch, and
    HelenusError(STATE).
    """
    topics: Offsets = planned_end(checkpoint, batch)["topics"]
    return topics


def planned_end(checkpoint: Path, batch: int) -> dict[str, Any]:
    """Return the source's offset at which a batch ends, done or not. Raises as `planned`."""
    file = checkpoint / "offsets" / str(batch)
    try:
        end: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
        if not isinstance(end["topics"], dict):
            raise ValueError
    except (ValueError, IndexError, KeyError, TypeError):
        problem = (
            "Spark's checkpoint is damaged: this file does not say where a batch ends. Delete it, and the file of this "
            "name in commits, to go on from the batch before"
        )
        raise HelenusError(Kind.STATE, problem, str(file)) from None
    return end
