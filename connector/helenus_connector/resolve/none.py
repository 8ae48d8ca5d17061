"""The resolver `none`: what a change's own cells say. `interfaces.resolver` has the contract.

    UPDATE, UPDATE and DELETE of one key → three Resolved, in the order of the events; no row is read

Changes without cells are resolved as `reread` does: those of agents whose `cells.include.list` lacks the table, events
too large for their cells, tables with counters, snapshots, truncations, and what is read again since. So are changes
that the gate wants verified. They come after all that a batch has in cells: what is read of a key is then no older than
what the batch wrote before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.gate import Gate
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import Resolver, ResolverOutcome, RowsFailed, SchemaChanged
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import has_more_fields
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells, decode_cells, head_of
from helenus_schemas.event.change import Change, Origin, Scope

_log = structlog.get_logger(__name__)
_RANGE, _TABLE, _LOG = Scope.RANGE, Scope.TABLE, Origin.LOG  # an enum's members are slow to look up
_NEVER = -(1 << 63)
_BY_TIME = 1  # the version of an id that says when its table was made
_MOST_HEADS = 1 << 20  # bytes of those that are remembered: some thousand of a usual table
_GROUP = 500  # changes that are shaped together
_is_said: set[str] = set()  # tables of which it was logged that their events have no cells, in this process


class WrittenResolver:
    """The resolver of one table in one process. `columns` is the pattern of those that are published; `reread` resolves
    what has no cells.
    """

    def __init__(self, gate: Gate, reread: Resolver, columns: str = ".*") -> None:
        self._gate = gate
        self._reread = reread
        self._pattern = re.compile(columns)
        self._table: Table
        self._known: Mapping[str, Column] = {}
        self._dropped_at: Mapping[str, int] = {}  # of columns that are there again
        self._latest: bytes | tuple[()] = ()  # the one of them that was met last; nothing begins with none
        self._heads: set[bytes] = set()  # of cells that are those of this table, and name no unknown column
        self._head_bytes = 0
        self._written: list[AdmittedChange] = []
        self._handed = ResolverOutcome()

    def use_table(self, table: Table, codec: KeyCodec, is_certain: bool = False) -> None:
        self._table = table
        columns = {c.name: c for c in table.columns}
        self._known = {**table.dropped, **columns}
        self._dropped_at = {name: dropped_at for name, dropped_at in table.dropped_at.items() if name in columns}
        self._heads.clear()
        self._head_bytes = 0
        self._latest = ()
        self._reread.use_table(table, codec, is_certain)

    def take_changes(self, changes: Iterable[AdmittedChange], due_keys: Sequence[Any], made_at: float) -> None:
        self._written = []
        self._reread.take_changes(self._without_cells(changes), due_keys, made_at)

    def resolve(self, trusts_digests: bool, may_wait: int) -> Iterator[Sequence[ResolvedKey]]:
        outcome = self._handed = ResolverOutcome()
        for start in range(0, len(self._written), _GROUP):
            resolved_changes = [
                (self._resolved(admitted), admitted.copies) for admitted in self._written[start : start + _GROUP]
            ]
            outcome.outdated += sum(copies for resolved, copies in resolved_changes if resolved is None)
            group = [(resolved, copies) for resolved, copies in resolved_changes if resolved is not None]
            yield [resolved for resolved, _ in group]
            for resolved, copies in group:
                if resolved.dead_lettered:
                    outcome.dead_lettered += copies
                else:
                    outcome.published += copies
        # What was published last of a due key may be a change of this batch.
        yield from self._reread.resolve(trusts_digests and not self._written, may_wait)

    def note_publishing(self, resolved: Iterable[ResolvedKey]) -> None:
        self._reread.note_publishing(resolved)

    def note_failure(self, error: RowsFailed) -> None:
        self._reread.note_failure(error)

    def confirm(self) -> ResolverOutcome:
        outcome = self._reread.confirm()
        outcome.published += self._handed.published
        outcome.dead_lettered += self._handed.dead_lettered
        outcome.outdated += self._handed.outdated
        for admitted in self._written:
            if admitted.id is not None:
                self._gate.mark(admitted.event.topic, admitted.event.partition, [admitted.id], True)
        self._written, self._handed = [], ResolverOutcome()
        return outcome

    def close(self) -> None:
        self._reread.close()

    def _without_cells(self, changes: Iterable[AdmittedChange]) -> Iterator[AdmittedChange]:
        """Keep the changes with cells, and give the others. What was published before it is confirmed was read: its
        later copies wait with the key, whatever they have. What the gate wants verified is for a read to decide.

        A gate may let copies of a range deletion through that come in one batch: they are one change.
        """
        first_copies: dict[bytes, AdmittedChange] = {}
        for admitted in changes:
            change = admitted.change
            if change.cells is not None and not admitted.is_published and admitted.verifying is None:
                first = admitted if admitted.id is None else first_copies.setdefault(admitted.id, admitted)
                if first is admitted:
                    self._written.append(admitted)
                else:
                    first.copies += admitted.copies
                continue
            if change.cells is None and change.origin is _LOG and change.scope is not _TABLE:
                self._say(change)
            yield admitted

    def _say(self, change: Change) -> None:
        name = self._table.full_name
        if name not in _is_said:
            _is_said.add(name)
            advice = "list the table in cells.include.list of every agent; a table with counters has no cells"
            _log.warning("cells.missing", table=name, node=change.node, does="the rows are read", advice=advice)

    def _resolved(self, admitted: AdmittedChange) -> ResolvedKey | None:
        """None for a change of a table that was dropped, and made again since. Raises SchemaChanged for one that was
        written by a definition which is not known yet.
        """
        event, change = admitted.event, admitted.change
        bounds = (change.start, change.end) if change.scope is _RANGE else None
        resolved_key = ResolvedKey(
            event.topic, event.partition, admitted.key, admitted.values, change.scope, bounds, event=event
        )
        resolved_key.events, resolved_key.is_confirmed, resolved_key.is_released = (
            admitted.copies,
            True,
            admitted.is_released,
        )
        resolved_key.newest = resolved_key.write_time = change.write_time
        resolved_key.expires = change.expires_at
        resolved_key.cells = cells = change.cells or b""
        try:
            if cells.startswith(self._latest):  # a head says how long it is
                return resolved_key
            head = head_of(cells)
            if head in self._heads:
                self._latest = head
                return resolved_key
            cells_read = decode_cells(cells, change.scope)
        except Malformed as error:
            resolved_key.failure = HelenusError(Kind.POISON_EVENT, str(error), self._table.full_name)
            return resolved_key
        if cells_read.table != self._table.id.bytes and self._is_outdated(cells_read):
            return None
        for name, written_type in cells_read.columns.items():
            column = self._known.get(name)
            if column is None and self._pattern.fullmatch(name):
                raise SchemaChanged(f"a change names the column {name}, which is not known")
            if column is not None and has_more_fields(written_type, column.type):
                raise SchemaChanged(f"a change has fields of the column {name} which are not known")
        if not self._dropped_at.keys().isdisjoint(cells_read.columns):
            resolved_key.written, resolved_key.cells = _since_dropped(cells_read, self._dropped_at), None
            return resolved_key
        if self._head_bytes + len(head) > _MOST_HEADS:
            self._heads.clear()
            self._head_bytes = 0
        self._heads.add(head)
        self._head_bytes += len(head)
        resolved_key.written = cells_read
        return resolved_key

    def _is_outdated(self, cells: Cells) -> bool:
        """Whether a change is of a table that was there before this one. Raises SchemaChanged if it is of a newer."""
        theirs, ours = UUID(bytes=cells.table), self._table.id
        if theirs.version == ours.version == _BY_TIME and theirs.time > ours.time:
            raise SchemaChanged("a change is of a table that was made since")
        return True


def _since_dropped(cells_read: Cells, dropped_at: Mapping[str, int]) -> Cells:
    """The cells without those of columns that were dropped since, and are there again: Cassandra shows them no more."""
    cells = tuple([c for c in cells_read.cells if c.write_time > dropped_at.get(c.column, _NEVER)])
    deletions = {n: d for n, d in cells_read.deletions.items() if d.write_time > dropped_at.get(n, _NEVER)}
    return cells_read._replace(cells=cells, deletions=deletions)
