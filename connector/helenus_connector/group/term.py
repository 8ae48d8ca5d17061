"""The term of a worker that leads its group: what lies in `checkpoint.dir` of an earlier one is older than what the
brokers have, if another worker led in between.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from helenus_connector.group._leader import Leader
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_FILE = "term"
_STATE = "state"
"""Spark's, of a query that keeps state: it is of no group."""
_FENCE = "writers"
"""A lock in the directory of each query: tasks of before may still have it."""


def begin_term(directory: Path, former: Leader | None, leader: Leader) -> None:
    """Begin the term of a `leader` in its `checkpoint.dir`, after that of the `former` leader. Raises
    HelenusError(STATE).
    """
    file = directory / _FILE
    try:
        own = file.read_text().strip()
    except OSError:
        own = ""
    if former is not None and former.term != own:
        try:
            _forget_queries(directory.iterdir())
        except OSError as error:
            problem = f"cannot remove the positions of an earlier time: {error.strerror}"
            raise HelenusError(Kind.STATE, problem, error.filename or str(directory)) from None
    durable.write(file, f"{leader.term}\n", "the worker's term", "term.after-write", 0o600)


def _forget_queries(entries: Iterable[Path]) -> None:
    """Remove the positions of queries that lie in these directories."""
    for entry in entries:
        if not (entry / _FENCE).is_file() or (entry / _STATE).exists():
            continue
        for part in entry.iterdir():
            if part.is_dir():
                shutil.rmtree(part)
            elif part.name != _FENCE:
                part.unlink(missing_ok=True)
