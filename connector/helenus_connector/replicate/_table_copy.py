"""The copy of one table: writes changes into the target, and reads rows anew where a change does not say enough."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from cassandra import ConsistencyLevel

from helenus_connector.config.replication import ReplicationSettings, for_target
from helenus_connector.replicate._cluster_table import (
    ClusterTable,
    RowImage,
    RowKey,
    read_table,
    read_truncation,
    row_key,
)
from helenus_connector.replicate._differences import repair_cells, revived_cells
from helenus_connector.replicate._fit import check_columns, check_keys, check_kinds, without_dropped
from helenus_connector.replicate._list_copies import ListCopier, ListKey, are_equal_lists, list_cells
from helenus_connector.replicate._requests import DRIVER_ERRORS, Patience, RequestSender, request_error
from helenus_connector.replicate._statements import TargetStatements
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import is_newer_table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells, decode_cells
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN

_REMEMBERED = 200_000  # changes, some 30 MB: the copies of other replicas come within seconds
_SPAN_ROWS = 2_000
_SETTLE_S = 1.0
"""A node logs a write before its table has it: a row that is to be deleted in the target is looked for once more after
this time."""
_REPAIRS = 4
_NO_TIME = 1 << 63
_NEWER_ADVICE = (
    "see whether all nodes of the source have the same schema version (nodetool describecluster); if it is gone, "
    "commit the next offset to the group, then compare --repair"
)
_log = structlog.get_logger(__name__)


@dataclass
class Batch:
    """What some changes ask for: statements of the target, lists to copy, rows and partitions to read anew. `deleted`
    are the write times of deletes within partitions that may have lists.
    """

    statements: list[Any] = field(default_factory=list)
    lists: dict[ListKey, int] = field(default_factory=dict)
    rows: set[RowKey] = field(default_factory=set)
    partitions: set[Key] = field(default_factory=set)
    deleted: dict[Key, int] = field(default_factory=dict)
    digests: list[tuple[str, int]] = field(default_factory=list)


class TableCopy:
    """One table, by its name in the source. Raises HelenusError by the cause of a failure. `outdated` counts changes of
    dropped tables of the same name, which are not written.
    """

    def __init__(
        self,
        settings: ReplicationSettings,
        name: str,
        sessions: tuple[Any, Any],
        patience: Patience,
        level: str = "",
    ) -> None:
        self._settings = settings
        self.name = name
        self._sessions = sessions
        self.patience = patience
        self._level = level or settings.query_consistency
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._checked: set[tuple[bytes, tuple[str, ...]]] = set()
        self._definitions: set[bytes] = set()
        self._dropped: set[bytes] = set()
        self.is_light = False
        self.outdated = 0
        self._truncated_at = 0
        self.refresh()

    def refresh(self) -> None:
        """Read both definitions anew."""
        settings, (source_session, target_session) = self._settings, self._sessions
        source = read_table(source_session, settings.keyspace, self.name, "source")
        target = read_table(target_session, settings.target_keyspace_name, self.name, "target")
        check_keys(source, target)
        check_kinds(source, target)
        self.note_truncation(read_truncation(source_session, source))
        patience, names = self.patience, (f"source {source.full_name}", f"target {target.full_name}")
        concurrency = settings.target_concurrency
        read_senders = [
            RequestSender(session, name, patience, concurrency)
            for session, name in zip(self._sessions, names, strict=True)
        ]
        self.source = ClusterTable(source_session, source, read_senders[0], self._level)
        self.target = ClusterTable(target_session, target, read_senders[1], self._level)
        self._writer = RequestSender(target_session, names[1], patience, concurrency, settings.target_writes_per_second)
        level: int = getattr(ConsistencyLevel, settings.target_consistency)
        self._statements = TargetStatements(target_session, target, level)
        self._lists = ListCopier(self.source, self.target, self._statements, self._send_lists)
        self._codec = KeyCodec(source)
        self._checked.clear()

    @property
    def lists(self) -> frozenset[str]:
        """Return the names of unfrozen lists."""
        return self._lists.columns

    def note_truncation(self, truncated_at: int | None) -> None:
        """Note when the source's table was truncated or dropped, µs since the epoch: what is written with older write
        times since then is there, though its copy may be hidden by what was deleted in the target.
        """
        self._truncated_at = max(self._truncated_at, min(truncated_at or 0, time.time_ns() // 1000))

    def add(self, batch: Batch, key_bytes: bytes | None, change: Change) -> None:
        """Add to a batch what a change of a row, a partition or a range asks for. Raises Malformed too."""
        key = self._codec.decode(self._codec.current_key(key_bytes or b"", change.foreign))
        for bound in (change.start, change.end):
            if bound is not None and len(bound.values) > len(self.source.table.clustering):
                raise Malformed("a bound of more values than the table has clustering columns")
        if change.cells is None:
            self._read_anew(batch, key, change)
            return
        cells = decode_cells(change.cells, change.scope)
        if change.scope not in (Scope.ROW, Scope.STATIC) and cells.deletion is None:
            raise Malformed("a deletion that does not say when")
        if self._is_of_dropped_table(cells):
            self.outdated += 1
            return
        self._check(cells)
        cells = without_dropped(cells, self.source.table)
        self._request_lists(batch, key, change, cells)
        if _oldest_time(cells) <= self._truncated_at:
            self._request_rows(batch, key, change)
        digest = change.digest and (change.digest, change.part)
        if digest and digest in self._seen:
            return
        batch.statements += self._statements_of(key, change, cells)
        if digest:
            batch.digests.append(digest)

    def apply(self, batch: Batch) -> None:
        """Write what a batch asks for. When this returns the target has acknowledged it."""
        self._writer.send(batch.statements)
        for digest in batch.digests:
            self._seen[digest] = None
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        if batch.rows or batch.partitions:
            self.patience.wait(_SETTLE_S)
            self.repair(batch.rows, batch.partitions)
        for name, image in self.target.read_partitions(list(batch.deleted)).items():
            for column in {cell.column for cell in image.cells.cells} & self.lists:
                write_time = batch.deleted[name[0][: len(self.source.table.partition_key)] + self._no_row]
                batch.lists.setdefault((name, column), write_time)
        if batch.lists:
            self.patience.retry(lambda: self._lists.copy(batch.lists))

    def copy_rows(self, images: Iterable[tuple[RowKey, RowImage]]) -> int:
        """Write rows as they were read in the source, with their write times and TTLs; returns how many."""
        batch, count = Batch(), 0
        for name, image in images:
            self._add_image(batch, name, image.cells)
            count += 1
        self.apply(batch)
        return count

    def repair(self, rows: Collection[RowKey], partitions: Collection[Key] = ()) -> int:
        """Make rows and partitions of the target equal to the source's, whatever they are; returns how many rows were
        written. The source is read at ALL before anything is deleted.
        """
        repaired = 0
        for attempt in range(_REPAIRS):
            in_source = {**self.source.read(list(rows)), **self.source.read_partitions(list(partitions))}
            in_target = {**self.target.read(list(rows)), **self.target.read_partitions(list(partitions))}
            written = self._repair_images(in_source, in_target, attempt)
            repaired += written
            if not written:
                break
        return repaired

    def make_equal(self, rows: Collection[RowKey]) -> int:
        """Repair rows, and their lists too; returns how many were written."""
        lists = {(key, name): 0 for key in rows for name in self._lists_of(key[1])}
        written = self.repair(rows)
        if lists:
            written += self.patience.retry(lambda: self._lists.copy(lists))
        return written

    def remove_truncated(self) -> int:
        """Delete from the target what the source does not have, after a TRUNCATE, which has no write time. Returns how
        many rows it deleted.
        """
        self._seen.clear()  # a mutation that is written again has the same digest
        removed = 0
        for attempt in range(_REPAIRS):
            after, written = LEAST_TOKEN, 0
            while after < MOST_TOKEN:
                span = self.patience.retry(partial(self.target.span, after, MOST_TOKEN, _SPAN_ROWS))
                if span.rows:
                    written += self._repair_images(self.source.read(list(span.rows)), span.rows, attempt)
                after = span.until
                self.patience.wait(0.0)
            removed += written
            if not written:
                break
        return removed

    def _repair_images(self, in_source: dict[RowKey, RowImage], in_target: Any, attempt: int) -> int:
        """Write what makes rows equal; returns how many rows and lists differed. From the second attempt on, what the
        target hides since a TRUNCATE is written anew; a row without cells is deleted as if it was older than that
        before.
        """
        truncated_at, is_again = self._truncated_at, attempt > 0
        differing = self._differing(in_source, in_target)
        suspects = [key for key in differing if key in in_target]
        if suspects:
            # Nothing is deleted that a node has, but did not say yet.
            self.patience.wait(_SETTLE_S)
            confirmed = self.source.read(suspects, "ALL")
            for key in suspects:
                in_source.pop(key, None)
            in_source |= confirmed
        batch = Batch(lists=dict(self._differing_lists(in_source, in_target)))
        count = len(batch.lists)
        for key in differing:
            images = in_source.get(key), in_target.get(key)
            if is_again and (revived := revived_cells(*images, self.lists, truncated_at)):
                self._add_image(batch, key, revived)
            cells = repair_cells(key, *images, self.lists, 0 if is_again else truncated_at)
            if cells is not None:
                self._add_image(batch, key, cells)
                count += 1
        self._writer.send(batch.statements)
        if batch.lists:
            self.patience.retry(lambda: self._lists.copy(batch.lists))
        return count

    def _differing_lists(self, in_source: Any, in_target: Any) -> Iterator[tuple[ListKey, int]]:
        """Yield the lists that differ in rows that both sides have, and static ones of the target alone: no row's
        deletion takes these.
        """
        for key in in_target:
            if key not in in_source and key[1] is not Scope.STATIC:
                continue
            for column in self._lists_of(key[1]):
                elements, copies = list_cells(in_source.get(key), column), list_cells(in_target[key], column)
                if not are_equal_lists(elements, copies):
                    yield (key, column), max((cell.write_time for cell in elements), default=0)

    def _differing(self, in_source: Any, in_target: Any) -> list[RowKey]:
        keys = dict.fromkeys([*in_source, *in_target])
        return [
            key for key in keys if repair_cells(key, in_source.get(key), in_target.get(key), self.lists) is not None
        ]

    def _add_image(self, batch: Batch, name: RowKey, cells: Cells) -> None:
        """Add the cells of a row that was read."""
        key, scope = name
        check_columns(cells.columns, {cell.column for cell in cells.cells}, self.target.table)
        batch.statements += self._row_statements(key, scope, cells)
        for cell in cells.cells:
            if cell.column in self.lists:
                list_key = name, cell.column
                batch.lists[list_key] = max(batch.lists.get(list_key, cell.write_time), cell.write_time)

    def _statements_of(self, key: Key, change: Change, cells: Cells) -> list[Any]:
        if change.scope in (Scope.ROW, Scope.STATIC):
            return self._row_statements(key, change.scope, cells)

        def make() -> list[Any]:
            assert cells.deletion is not None
            if change.scope is Scope.RANGE:
                return self._statements.for_range(key, cells.deletion, change.start, change.end)
            return self._statements.for_partition(key, cells.deletion)

        statements = self._prepare(make)
        return [self._statements.together(statements)] if statements else []

    def _row_statements(self, key: Key, scope: Scope, cells: Cells) -> list[Any]:
        """Return the statement of a row's cells, or of a partition's static ones; none if there are none. Where cells
        expire it is a function: a target that was away for an hour must not show them for an hour longer.
        """

        def make() -> Any:
            statements = self._prepare(lambda: self._statements.for_row(key, scope, cells, int(time.time())))
            return self._statements.together(statements) if statements else None

        statement = make()
        if statement is None:
            return []
        expires = [cell.expires for cell in cells.cells]
        if cells.liveness is not None:
            expires.append(cells.liveness.expires)
        return [statement if all(end is None for end in expires) else make]

    def _prepare(self, make: Any) -> list[Any]:
        """Return statements, of which some may have to be prepared first."""
        try:
            statements: list[Any] = make()
        except DRIVER_ERRORS as error:
            raise for_target(request_error(error, self.target.table.full_name)) from None
        return statements

    def _request_lists(self, batch: Batch, key: Key, change: Change, cells: Cells) -> None:
        """Ask for the lists that a change may have changed: a delete has to reach a copy that is newer than its
        source.
        """
        if not self.lists:
            return
        scope = change.scope
        if scope in (Scope.ROW, Scope.STATIC):
            times = [(cell.column, cell.write_time) for cell in cells.cells if cell.column in self.lists]
            times += [(name, d.write_time) for name, d in cells.deletions.items() if name in self.lists]
            if cells.deletion is not None:
                times += [(name, cells.deletion.write_time) for name in self._lists_of(scope)]
            for name, write_time in times:
                list_key = row_key(key, scope), name
                batch.lists[list_key] = max(batch.lists.get(list_key, write_time), write_time)
        elif cells.deletion is not None:
            partition_key = key[: len(self.source.table.partition_key)] + self._no_row
            write_time = cells.deletion.write_time
            batch.deleted[partition_key] = max(batch.deleted.get(partition_key, write_time), write_time)

    def _lists_of(self, scope: Scope) -> frozenset[str]:
        columns = self.target.table.statics if scope is Scope.STATIC else self.target.table.regulars
        return frozenset(c.name for c in columns) & self.lists

    @property
    def _no_row(self) -> tuple[None, ...]:
        return (None,) * len(self.source.table.clustering)

    def _read_anew(self, batch: Batch, key: Key, change: Change) -> None:
        """Ask for a read of what a change without cells concerns."""
        if change.digest and not self.is_light:
            self.is_light = True
            _log.warning(
                "replicate.without_cells",
                table=self.name,
                advice="its rows are read instead: name the table in the agents' cells.include.list",
            )
        self._request_rows(batch, key, change)

    def _request_rows(self, batch: Batch, key: Key, change: Change) -> None:
        """Ask for the rows of a change to be made equal."""
        width = len(self.source.table.partition_key)
        partition_key = key[:width] + self._no_row
        if change.scope is Scope.ROW and not change.foreign:
            batch.rows.add(row_key(key, Scope.ROW))
        elif change.scope is Scope.STATIC:
            batch.rows.add((partition_key, Scope.STATIC))
        else:
            batch.partitions.add(partition_key)

    def _check(self, cells: Cells) -> None:
        """Check the columns of a change once for each version of them."""
        version = cells.schema, tuple(cells.columns)
        if version in self._checked:
            return
        if cells.schema not in self._definitions:
            self.refresh()
            if cells.schema.hex() != self.source.table.schema_id:
                # An older definition, or a newer one that the node that was asked does not have yet.
                self.patience.wait(_SETTLE_S)
                self.refresh()
            self._definitions.add(cells.schema)
        present = {c.name for c in self.source.table.values}
        check_columns(cells.columns, [name for name in cells.columns if name in present], self.target.table)
        self._checked.add(version)

    def _is_of_dropped_table(self, cells: Cells) -> bool:
        """Return whether a change is of a table of this name that was dropped since. Raises HelenusError SCHEMA_BEHIND
        for a newer one than the definition is of.
        """
        if cells.table == self.source.table.id.bytes:
            return False
        if cells.table not in self._dropped:
            # The node that was asked for the definition may not have the newest one yet.
            self.refresh()
            other = UUID(bytes=cells.table)
            if is_newer_table(other, self.source.table.id):
                problem = f"a newer table of this name, with the id {other}, has changes that the source does not show"
                raise HelenusError(Kind.SCHEMA_BEHIND, problem, f"source {self.source.table.full_name}", _NEWER_ADVICE)
            if cells.table == self.source.table.id.bytes:
                return False
            self._dropped.add(cells.table)
        return True

    def _send_lists(self, statements: Sequence[Any]) -> None:
        """Send each statement once: one that is repeated would add its elements again. A failure may have written it:
        the next read tells.
        """
        try:
            self._writer.send_unrepeated(statements)
        except HelenusError as error:
            if error.kind is not Kind.CASSANDRA_WRITE:
                raise
            _log.warning("replicate.list_retried", table=self.name, error=str(error))


def _oldest_time(cells: Cells) -> int:
    """Return the oldest write time in a change, µs since the epoch."""
    times = [cell.write_time for cell in cells.cells]
    times += [deletion.write_time for deletion in (cells.deletion, *cells.deletions.values()) if deletion is not None]
    if cells.liveness is not None:
        times.append(cells.liveness.write_time)
    return min(times, default=_NO_TIME)
