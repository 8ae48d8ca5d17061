"""Copies the rows that tables have, by token range; where it is stays in a file, so that a restart goes on there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from helenus_connector.replicate._requests import Patience
from helenus_connector.replicate._table_copy import TableCopy
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN
from helenus_schemas.service import durable

_SPAN_ROWS = 1_000
_VERSION = 1
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class InitialCopy:
    """Which rows are copied: of partitions with tokens above `after`, up to `until`. `file` notes how far that is."""

    file: Path
    after: int = LEAST_TOKEN
    until: int = MOST_TOKEN


class RowScan:
    """A scan of all tables, one after the other. Raises HelenusError STATE for a file that can't be used. `begun_anew`
    are the names of the tables that no earlier run has copied rows of.
    """

    def __init__(self, request: InitialCopy, copies: Mapping[str, TableCopy], patience: Patience) -> None:
        self._file = file = request.file
        self._after, self._until = request.after, request.until
        self._copies = copies
        self._patience = patience
        self.rows = 0
        self._tokens = dict.fromkeys(copies, self._after)
        tables = {name: str(copy.source.table.id) for name, copy in copies.items()}
        try:
            for name, (table, after, until, token) in durable.load(file, _VERSION).items():
                if (after, until) != (self._after, self._until):
                    raise ValueError("it is of another range of tokens")
                if tables.get(name) == table:
                    self._tokens[name] = int(token)
        except FileNotFoundError:
            pass
        except (durable.Damaged, ValueError, TypeError, AttributeError) as error:
            advice = "correct --snapshot, or delete the file to copy all rows anew"
            raise HelenusError(Kind.STATE, f"cannot read how far the snapshot is: {error}", str(file), advice) from None
        self.begun_anew = frozenset(name for name, token in self._tokens.items() if token == self._after)
        self._save()

    @property
    def is_complete(self) -> bool:
        """Return whether all tables are copied."""
        return all(token >= self._until for token in self._tokens.values())

    @property
    def share(self) -> float:
        """Return the share of the tables' ranges that is copied, from 0 to 1."""
        width = self._until - self._after
        return sum(token - self._after for token in self._tokens.values()) / width / len(self._tokens)

    def copy_span(self) -> None:
        """Copy the next rows. When this returns the target has acknowledged them, and the file says so."""
        name = next(name for name, token in self._tokens.items() if token < self._until)
        copy = self._copies[name]

        def read_and_write() -> int:
            span = copy.source.span(self._tokens[name], self._until, _SPAN_ROWS)
            self.rows += copy.copy_rows(span.rows.items())
            return span.until

        def attempt() -> int:
            try:
                return read_and_write()
            except HelenusError as error:
                if error.kind is Kind.SCHEMA_BEHIND:
                    copy.refresh()
                raise

        self._tokens[name] = self._patience.retry(attempt, _RETRIED)
        self._save()
        if self._tokens[name] >= self._until:
            _log.info("replicate.snapshot_done", table=name, rows_copied=self.rows)

    def _save(self) -> None:
        tables = {
            name: (str(self._copies[name].source.table.id), self._after, self._until, token)
            for name, token in self._tokens.items()
        }
        durable.save(self._file, tables, _VERSION, "how far the snapshot is", "replicate.snapshot")


_RETRIED = frozenset({Kind.SCHEMA_BEHIND, Kind.CASSANDRA_READ, Kind.CASSANDRA_WRITE})
