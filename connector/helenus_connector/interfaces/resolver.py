"""The interface of a resolver: what a key's row is now.

    UPDATE and DELETE of one key in one batch → one Resolved, whose `after` is None: the row is gone.

A resolver owns what makes its answer true: coalescing, reads and their levels, and the keys that wait until their
answer is confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError


class SchemaChanged(Exception):
    """The table is not what it was: take its definition again, and resolve once more."""


class RowsFailed(Exception):
    """Raised by `ResolvedKey.rows`; `cause` is why no more rows can be had."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class ResolverOutcome:
    """What a batch leaves: counts of events by outcome, and what the driver is to remember.

    `waiting` are keys that wait from now on, `done` those that no longer do, `places` what was published where: their
    types are the resolver's own. `unread` counts keys that wait because they can't be read, `error` is why the first of
    them can't. `contradicted` counts changes that are believed although their row spoke against them to the end. Of the
    changes that were `verifying`, a read at the gate's level shows those that are `verified`, and not the `unseen`; the
    others could not be read.
    """

    published: int = 0
    unchanged: int = 0
    outdated: int = 0
    dead_lettered: int = 0
    keys_read: int = 0
    statements: int = 0
    query_seconds: float = 0.0
    unread: int = 0
    contradicted: int = 0
    error: HelenusError | None = None
    verified: list[AdmittedChange] = field(default_factory=list)
    unseen: list[AdmittedChange] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)
    places: dict[tuple[str, int], Any] = field(default_factory=dict)


class Resolver(Protocol):
    """The resolver of one table in one process.

    One batch at a time: `use`, `take`, then `resolve` until one call succeeds, then `confirm` after the flush.
    """

    def use(self, table: Table, codec: KeyCodec, is_certain: bool = False) -> None:
        """Go by this definition from now on. `is_certain`: it was read just now, so what is refused is not outdated."""
        ...

    def take(self, changes: Iterable[AdmittedChange], due: Sequence[Any], made_at: float) -> None:
        """Take a batch's changes, in order, and the keys that are `due`: what waits since an earlier batch.

        Changes of one key become one Resolved. The table was created at `made_at`, s since the epoch.
        """
        ...

    def resolve(self, trusts_known: bool, may_wait: int) -> Iterator[Sequence[ResolvedKey]]:
        """Give the keys and markers of the batch: rows in groups, as they are read, each marker alone and before the
        rows within it.

        The stage appends the records of one group before it asks for the next, calls `publishing` before the first of
        a Resolved, and `failed` if its rows can't be had. A repeated call starts again from the first key.
        `trusts_known` says that no earlier attempt at this batch can have published anything newer than what is
        `known`. At most `may_wait` keys of this batch are left to wait because they can't be read.

        Raises SchemaChanged, and HelenusError CASSANDRA_READ or CASSANDRA_AUTH: then the batch is not done.
        """
        ...

    def publishing(self, resolved: Iterable[ResolvedKey]) -> None:
        """Records of these are about to be appended: what was published of their keys before is the last no longer."""
        ...

    def failed(self, error: RowsFailed) -> None:
        """The rows of the last one could not be had: what that means is decided when the next one is asked for."""
        ...

    def confirm(self) -> ResolverOutcome:
        """After the flush: mark at the gate what is published and confirmed, and say what waits. Once per batch."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...
