"""The resolver `none`: what a change's own cells say. `interfaces.resolver` has the contract.

    UPDATE, UPDATE and DELETE of one key → three Resolved, in the order of the events; no row is read

Changes without cells are resolved as `reread` does: those of agents whose `cells.include.list` lacks the table, events
too large for their cells, tables with counters, snapshots, truncations, and what is read again since. So are changes
that the gate wants verified. They come after all that a batch has in cells: what is read of a key is then no older than
what the batch wrote before it.

The module runs as it is, and compiled by Cython with the types of `none.pxd`: the results are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import structlog

from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.gate import Gate
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import Resolver, ResolverBatch, ResolverOutcome, RowsFailed, SchemaChanged
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import has_more_fields
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells, decode_cells, head_of
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.own_format import HAS_EXPIRES, HAS_WRITTEN

COMPILED = not __file__.endswith(".py")
_log = structlog.get_logger(__name__)
_RANGE, _TABLE, _LOG = Scope.RANGE, Scope.TABLE, Origin.LOG  # an enum's members are slow to look up
_NEVER = -(1 << 63)
_WRITTEN, _EXPIRY = HAS_WRITTEN, HAS_EXPIRES  # C integers when compiled
_IDS_BYTES = 33  # what a head begins with: the version and the ids
# Places in an Event: by name they are slow to look up.
_TOPIC: Final = 0
_PARTITION: Final = 1
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

    def begin_batch(
        self,
        table: Table,
        codec: KeyCodec,
        changes: Iterable[AdmittedChange],
        due_keys: Sequence[Any],
        created_at: float,
    ) -> WrittenBatch:
        written: list[AdmittedChange] = []
        without_cells = divide_changes(changes, written, table.full_name)
        reread = self._reread.begin_batch(table, codec, without_cells, due_keys, created_at)
        return WrittenBatch(self._gate, reread, CellResolver(table, self._pattern), written)

    def note_past(self, admitted: AdmittedChange) -> bool:
        return self._reread.note_past(admitted) and admitted.change.cells is None

    def close(self) -> None:
        self._reread.close()


def divide_changes(
    changes: Iterable[AdmittedChange], written: list[AdmittedChange], table: str
) -> Iterator[AdmittedChange]:
    """Yield the changes without cells, and add the others to `written`. What was published before it is confirmed was
    read: its later copies wait with the key, whatever they have. What the gate wants verified is for a read to decide.

    A gate may let copies of a range deletion through that come in one batch: they are one change.
    """
    first_copies: dict[bytes, AdmittedChange] = {}
    for admitted in changes:
        if take_written(admitted, first_copies, written):
            continue
        change = admitted.change
        if change.cells is None and change.origin is _LOG and change.scope is not _TABLE:
            _log_missing_cells(table, change)
        yield admitted


def take_written(
    admitted: AdmittedChange, first_copies: dict[bytes, AdmittedChange], written: list[AdmittedChange]
) -> bool:
    """Add a change to those that are `written`, or to its first copy, if its cells are what is published. Return
    whether they are.
    """
    match = admitted.match
    cells = match.cells if match is not None and match.regex_match is None else admitted.change.cells
    if cells is None or admitted.is_published or admitted.verifying is not None:
        return False
    name = admitted.id
    first = admitted if name is None else first_copies.setdefault(name, admitted)
    if first is admitted:
        written.append(admitted)
    else:
        first.copies += admitted.copies
    return True


def _log_missing_cells(table: str, change: Change) -> None:
    if table not in _is_said:
        _is_said.add(table)
        advice = "list the table in cells.include.list of every agent; a table with counters has no cells"
        _log.warning("cells.missing", table=table, node=change.node, does="the rows are read", advice=advice)


class WrittenBatch:
    """One batch: `written` are its changes with cells, and `reread` resolves the others."""

    def __init__(
        self, gate: Gate, reread: ResolverBatch, cells: CellResolver, written: Sequence[AdmittedChange]
    ) -> None:
        self._gate = gate
        self._reread = reread
        self._cells = cells
        self._written = written
        self._outcome = ResolverOutcome()  # of the last attempt

    def use_table(self, table: Table, codec: KeyCodec) -> None:
        self._cells = CellResolver(table, self._cells.pattern)
        self._reread.use_table(table, codec)

    def resolve(self, trusts_digests: bool, may_wait: int) -> Iterator[Sequence[ResolvedKey]]:
        outcome = self._outcome = ResolverOutcome()
        for start in range(0, len(self._written), _GROUP):
            group, outdated = resolve_group(self._cells, self._written[start : start + _GROUP])
            outcome.outdated += outdated
            yield group
            published, dead_lettered = count_copies(group)
            outcome.published += published
            outcome.dead_lettered += dead_lettered
        # What was published last of a due key may be a change of this batch.
        yield from self._reread.resolve(trusts_digests and not self._written, may_wait)

    def note_publishing(self, resolved: Iterable[ResolvedKey]) -> None:
        self._reread.note_publishing(resolved)

    def note_failure(self, error: RowsFailed) -> None:
        self._reread.note_failure(error)

    def confirm(self) -> ResolverOutcome:
        outcome = self._reread.confirm()
        outcome.published += self._outcome.published
        outcome.dead_lettered += self._outcome.dead_lettered
        outcome.outdated += self._outcome.outdated
        for (topic, partition), names in ids_by_partition(self._written).items():
            self._gate.mark(topic, partition, names, True)
        return outcome


def resolve_group(cells: CellResolver, changes: Sequence[AdmittedChange]) -> tuple[list[ResolvedKey], int]:
    """Return the keys of changes, and how many events are of an earlier table. Raises as `CellResolver.resolve`."""
    group: list[ResolvedKey] = []
    outdated = 0
    for admitted in changes:
        resolved = cells.resolve(admitted)
        if resolved is None:
            outdated += admitted.copies
        else:
            group.append(resolved)
    return group, outdated


def count_copies(group: Sequence[ResolvedKey]) -> tuple[int, int]:
    """Return how many events were published, and how many dead-lettered, of these changes."""
    published = dead_lettered = 0
    for resolved in group:
        if resolved.dead_lettered:
            dead_lettered += resolved.events
        else:
            published += resolved.events
    return published, dead_lettered


def ids_by_partition(changes: Sequence[AdmittedChange]) -> dict[tuple[str, int], list[bytes]]:
    """Return the ids of changes by topic and partition."""
    ids: dict[tuple[str, int], list[bytes]] = {}
    for admitted in changes:
        name = admitted.id
        if name is not None:
            topic_partition = admitted.event[_TOPIC], admitted.event[_PARTITION]
            names = ids.get(topic_partition)
            if names is None:
                names = ids[topic_partition] = []
            names.append(name)
    return ids


class CellResolver:
    """Resolves changes with cells by one version of a table; `pattern` is that of the columns that are published."""

    def __init__(self, table: Table, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self._table = table
        columns = {column.name: column for column in table.columns}
        self._known: Mapping[str, Column] = {**table.dropped, **columns}
        # of columns that are there again
        self._dropped_at = {name: dropped_at for name, dropped_at in table.dropped_at.items() if name in columns}
        self._latest: bytes | None = None  # the head that was met last
        self._heads: set[bytes] = set()  # of cells that are those of this table, and name no unknown column
        self._head_bytes = 0

    def resolve(self, admitted: AdmittedChange) -> ResolvedKey | None:
        """Return the key of a change with its cells; None if the table was dropped, and made again, since. Raises
        SchemaChanged for a change that was written by a definition which is not known yet.
        """
        resolved_key = begin_resolved(admitted)
        cells: bytes = resolved_key.cells or b""
        try:
            if self._latest is not None and cells.startswith(self._latest):  # a head says how long it is
                return resolved_key
            head = quick_head(cells)
            if head in self._heads:
                self._latest = head
                return resolved_key
            cells_read = decode_cells(cells, resolved_key.scope)
        except Malformed as error:
            resolved_key.failure = HelenusError(Kind.POISON_EVENT, str(error), self._table.full_name)
            return resolved_key
        if cells_read.table != self._table.id.bytes and self._is_outdated(cells_read):
            return None
        for name, written_type in cells_read.columns.items():
            column = self._known.get(name)
            if column is None and self.pattern.fullmatch(name):
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
        """Return whether a change is of an earlier table of this name. Raises SchemaChanged if it is of a later one."""
        theirs, ours = UUID(bytes=cells.table), self._table.id
        if theirs.version == ours.version == _BY_TIME and theirs.time > ours.time:
            raise SchemaChanged("a change is of a table that was made since")
        return True


def begin_resolved(admitted: AdmittedChange) -> ResolvedKey:
    """Return the key of a change, with its cells as they are."""
    event, match = admitted.event, admitted.match
    bounds = write_time = expires = None
    if match is not None and match.regex_match is None:
        scope, cells = match.decode_scope(), match.cells
        if match.present_times & _WRITTEN:
            write_time = match.write_time
        if match.present_times & _EXPIRY:
            expires = match.expires_at
    else:
        change = admitted.change
        scope, cells, write_time, expires = change.scope, change.cells, change.write_time, change.expires_at
        if scope is _RANGE:
            bounds = change.start, change.end
    resolved = ResolvedKey(event[_TOPIC], event[_PARTITION], admitted.key, admitted.values, scope, bounds, event=event)
    resolved.events, resolved.is_confirmed, resolved.is_released = admitted.copies, True, admitted.is_released
    resolved.newest = resolved.write_time = write_time
    resolved.expires = expires
    resolved.cells = b"" if cells is None else cells
    return resolved


def quick_head(cells: bytes) -> bytes:
    """Return what `head_of` does. Raises Malformed."""
    try:
        size, offset = read_long(cells, _IDS_BYTES)
    except IndexError:
        return head_of(cells)  # which raises
    if not 0 <= size <= len(cells) - offset:
        return head_of(cells)
    return cells[: offset + size]


def _since_dropped(cells_read: Cells, dropped_at: Mapping[str, int]) -> Cells:
    """Return cells without those of columns that were dropped since, and are there again: Cassandra hides them."""
    cells = tuple([c for c in cells_read.cells if c.write_time > dropped_at.get(c.column, _NEVER)])
    deletions = {n: d for n, d in cells_read.deletions.items() if d.write_time > dropped_at.get(n, _NEVER)}
    return cells_read._replace(cells=cells, deletions=deletions)
