"""The interface of a resolver, which determines the current row of each changed key.

    UPDATE and DELETE of one key in one batch → one ResolvedKey, whose `after` is None: there is no row any more.

A resolver is responsible for everything that makes its result correct: it coalesces changes, chooses reads and their
consistency levels, and names the keys that wait until a read confirms their result.
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
    """The table was altered: the caller reads its definition again, and calls `resolve` once more."""


class RowsFailed(Exception):
    """Raised by `ResolvedKey.rows`; `cause` is why no more rows can be read."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class ResolverOutcome:
    """The result of a batch: the numbers of events by outcome, and the keys that the driver has to remember.

    `waiting_keys` wait to be confirmed from now on, `settled_keys` no longer wait, and `published_keys` has by topic
    and partition which keys were published; their element types are the resolver's own. `unread` counts keys that wait
    because they can't be read, and `error` is why the first of them can't. `contradicted` counts changes that are
    accepted although their row contradicted them to the end. Of the changes with `verifying` set, a read at the gate's
    level shows the `verified_changes`, and does not show the `unseen_changes`; the others could not be read.
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
    verified_changes: list[AdmittedChange] = field(default_factory=list)
    unseen_changes: list[AdmittedChange] = field(default_factory=list)
    waiting_keys: list[Any] = field(default_factory=list)
    settled_keys: list[Any] = field(default_factory=list)
    published_keys: dict[tuple[str, int], Any] = field(default_factory=dict)


class ResolverBatch(Protocol):
    """One batch of one table. All methods are called by the thread that runs the batch.

    `resolve` is called until one call succeeds, and then `confirm` once, after the flush. A failed batch is dropped.
    """

    def use_table(self, table: Table, codec: KeyCodec) -> None:
        """Use this definition from now on.

        Called after SchemaChanged, and whenever the definition may be outdated, before `resolve` is called (again). The
        definition was read just now: a key that Cassandra refuses from now on is invalid.
        """
        ...

    def resolve(self, trusts_digests: bool, may_wait: int) -> Iterator[Sequence[ResolvedKey]]:
        """Yield the keys and markers of the batch: rows in groups, as they are read; each marker alone, and before the
        rows in its scope.

        The stage appends the records of one group before it requests the next one. It calls `note_publishing` before
        the first record of each ResolvedKey, and `note_failure` if the rows of a marker can't be read. A repeated call
        starts again from the first key. `trusts_digests` says that no earlier attempt at this batch can have published
        anything newer than what `last_digest` describes. At most `may_wait` keys with events of this batch may be left
        to wait because they can't be read.

        Raises SchemaChanged, and HelenusError CASSANDRA_READ or CASSANDRA_AUTH: then the batch has failed.
        """
        ...

    def note_publishing(self, resolved: Iterable[ResolvedKey]) -> None:
        """Note that records of these keys are about to be appended: what was published before is no longer the latest.

        Called once per group that `resolve` yields, or per marker. It says nothing yet of the records being durable.
        """
        ...

    def note_failure(self, error: RowsFailed) -> None:
        """Note that the rows of the marker that was yielded last could not be read.

        Called at most once per marker. The resolver decides what follows when the stage requests the next group.
        """
        ...

    def confirm(self) -> ResolverOutcome:
        """Mark at the gate what is published and confirmed, and return which keys wait.

        Called once, after the log has acknowledged the flush: every appended record is durable by then, or it is in a
        transaction, which is committed before the marks are saved. The returned keys are durable only once the driver
        has applied and saved them, or with that transaction.
        """
        ...


class Resolver(Protocol):
    """The resolver of one table in one process. All methods are called by the thread that runs the table's batches."""

    def begin_batch(
        self,
        table: Table,
        codec: KeyCodec,
        changes: Iterable[AdmittedChange],
        due_keys: Sequence[Any],
        created_at: float,
    ) -> ResolverBatch:
        """Take over a batch's changes, in order, and `due_keys`, the keys of earlier batches that are to be read again.

        Called once per batch; it consumes `changes` to the end. Changes of one key become one ResolvedKey. `table` is
        the definition to begin with, which may be outdated; the table was created at `created_at`, s since the epoch.
        """
        ...

    def note_past(self, admitted: AdmittedChange) -> bool:
        """Note a change that an earlier run has done, before any batch that follows it. Return whether its read may
        have been believed for its age alone.
        """
        ...

    def close(self) -> None:
        """Close files. Called once, between two batches."""
        ...
