"""The terms of a worker that leads its group now and then: what lies in `checkpoint.dir` of an earlier one is older
than what the brokers have, if another worker led in between.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from helenus_connector.group._leader import Leader
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_FILE = "term"
_MOST_TERMS = 20
_OF_QUERIES = ("offsets", "held", "epochs", "owners", "unconfirmed", "gate.waiting")
"""What is in the directory of a query, or of one that is to come."""
_FENCE = "writers"
"""A lock in the directory of each query: tasks of before may still have it."""


def announce_term(directory: Path, term: str) -> None:
    """Note in `checkpoint.dir` that a term may begin, before the brokers know of it. Raises HelenusError(STATE)."""
    if term not in (terms := _read(directory)):
        _save(directory, [*terms, term][-_MOST_TERMS:])


def begin_term(directory: Path, former: Leader | None, leader: Leader) -> None:
    """Begin the announced term of a `leader`, after that of the `former` leader. Raises HelenusError(STATE)."""
    if former is not None and former.term not in _read(directory):
        try:
            for query in directory.iterdir():
                _forget(query)
        except OSError as error:
            problem = f"cannot remove the positions of an earlier time: {error.strerror}"
            raise HelenusError(Kind.STATE, problem, error.filename or str(directory)) from None
    _save(directory, [leader.term])


def _forget(query: Path) -> None:
    """Remove what the directory of a query has."""
    if not any((query / name).exists() for name in _OF_QUERIES):
        return
    for part in query.iterdir():
        if part.is_dir():
            shutil.rmtree(part)
        elif part.name != _FENCE:
            part.unlink(missing_ok=True)


def _read(directory: Path) -> list[str]:
    try:
        return (directory / _FILE).read_text().splitlines()
    except OSError:
        return []


def _save(directory: Path, terms: list[str]) -> None:
    durable.write(directory / _FILE, "\n".join(terms) + "\n", "the worker's term", "term.after-write", 0o600)
