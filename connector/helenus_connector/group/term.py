"""The terms of a worker that leads its group now and then: what lies in `checkpoint.dir` of an earlier one is older
than what the brokers have, if another worker led in between.

    fence the former leader → remove what is of an earlier time → note the term here → note in the topic who leads

The file has terms of this worker alone: at the end of each of them, nothing here was older than what the brokers had.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from helenus_connector.group._leader import Leader
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_FILE = "term"
_OF_QUERIES = ("offsets", "held", "epochs", "owners", "unconfirmed", "gate.waiting")
"""What is in the directory of a query, or of one that is to come."""
_FENCE = "writers"
"""A lock in the directory of each query: tasks of before may still have it."""


def begin_term(directory: Path, former: Leader | None, term: str) -> None:
    """Have `checkpoint.dir` be that of a term, which the brokers do not know of yet: what is there is of the term of
    the `former` leader, or is removed. A term that they never learn of changes nothing: a worker that ends before the
    brokers know, or after, has the same begin. Raises HelenusError(STATE).
    """
    is_own = former is None or former.term in _read(directory)
    if not is_own:
        try:
            for query in directory.iterdir():
                _forget(query)
        except OSError as error:
            problem = f"cannot remove the positions of an earlier time: {error.strerror}"
            raise HelenusError(Kind.STATE, problem, error.filename or str(directory)) from None
    own_terms = [former.term] if former is not None and is_own else []
    _save(directory, list(dict.fromkeys([*own_terms, term])))


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
