"""What is done to many rows of a topic partition at once: deletes of a partition, a range or the table, and proofs.

    DELETE … WHERE k = 1      a marker, then a `d` for each row that lived, by write times, as Cassandra deletes
    TRUNCATE                  a marker, then a `d` for each row that was written long before; others are read
    rows not proven           after a truncation, a gap or lost events: what the snapshot did not show is read

Cassandra truncates by what was logged before, not by write times. Which rows a node logged after its TRUNCATE is not
known here, so those of about its time are read. A row that was taken away wrongly, as its client wrote with a time long
past, comes back with the snapshot that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_connector.interfaces.merged_change import MergedChange
from helenus_connector.state.rows._partition import covering
from helenus_connector.state.rows._partition_history import PartitionHistory
from helenus_connector.state.rows._read_requests import ReadRequests
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_image import RowImages
from helenus_connector.state.rows._row_store import OF_PAGE, OF_PARTITION, OF_ROW, OF_STATIC, RowStore
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import Deletion
from helenus_schemas.event.change import Scope

_RECENT_US = 600_000_000
"""Rows whose newest write time is not older than a TRUNCATE by more than this are read before they are said to be gone.
It bounds by how much clocks may differ without a `d` that is taken back; what is true in the end does not depend on it.
"""


class ScopeMerge:
    """Of one topic partition and one batch. `markers`: whether delete markers are on the data topic, where the rows of
    their scope that live follow them. `has_snapshots`: whether a snapshot shows rows that were taken away wrongly.
    """

    def __init__(
        self,
        table: Table,
        kept: RowStore,
        showing: RowImages,
        requests: ReadRequests,
        markers: bool,
        has_snapshots: bool,
    ) -> None:
        self._table, self._kept, self._showing, self._requests = table, kept, showing, requests
        self._markers, self._has_snapshots = markers, has_snapshots
        self._covers, self._is_within = covering(table)

    def delete(
        self, key: bytes, scope: Scope, bounds: Bounds | None, deletion: Deletion, event: Event
    ) -> Iterator[MergedChange] | None:
        """Delete a partition, or a range of it; None if that is known."""
        home, _ = self._kept.home(key)
        partition = self._kept.partition(home)
        if not partition.delete(deletion, bounds, self._is_within):
            return None
        self._kept.changed_partitions[home] = None
        return self._deleted(home, key, scope, bounds, deletion, event)

    def _deleted(
        self, home: bytes, key: bytes, scope: Scope, bounds: Bounds | None, deletion: Deletion, event: Event
    ) -> Iterator[MergedChange]:
        after = None
        if bounds is not None and self._table.statics and self._markers:
            # The marker has the key of the static columns' own record, which it must not take away.
            name = OF_STATIC + home
            statics = self._showing.show(name, self._kept.row(name))
            after = None if statics is None else statics.values
        yield MergedChange(
            self._showing.partition, key, scope, bounds, "d", None, after, deletion.write_time, None, event
        )
        if bounds is None and self._table.statics:
            yield from self._shadow([OF_STATIC + home], home, deletion.write_time, None, event)
        for names in self._kept.rows_of(home):
            yield from self._shadow(names, home, deletion.write_time, bounds, event)

    def _shadow(
        self, names: Sequence[bytes], home: bytes, floor: int, bounds: Bounds | None, event: Event
    ) -> Iterator[MergedChange]:
        """What a deletion takes of these rows."""
        for name, row in self._loaded(names):
            clustering = self._kept.clustering(name)
            if bounds is not None and not self._covers(clustering or (), bounds):
                continue
            before, merged = self._showing.show(name, row), None
            in_doubt = row.doubts(floor)
            if row.shadow(floor):
                in_doubt |= self._requests.is_in_doubt(row)
                self._kept.put(name, row, home)
                merged = self._showing.said(name, name[1:], before, event, floor)
            if merged is None and before is not None and self._markers:
                merged = self._showing.record(name, name[1:], before, before, event, floor)
            if merged is not None:
                yield merged
            if in_doubt:
                yield self._requests.for_row(name)

    def truncate(self, time: int, event: Event) -> Iterator[MergedChange]:
        """A node has truncated the table at a time, µs, and no other has reported it."""
        self._kept.save()
        yield MergedChange(
            self._showing.partition, event.key or b"", Scope.TABLE, None, "d", None, None, time, None, event
        )
        for home, names in self._all_rows():
            yield from self._drop(home, names, time, event)
        for names in self._kept.listed(OF_PARTITION) if self._kept.has_partitions else ():
            for name in names:
                partition = self._kept.partition(name[1:])
                self._kept.history.raise_horizon(partition.newest_deletion())
                partition.deletion, partition.ranges = None, {}
                self._kept.changed_partitions[name[1:]] = None
            self._let_go()

    def _drop(self, home: bytes, names: Sequence[bytes], time: int, event: Event) -> Iterator[MergedChange]:
        """Take rows away that were written long before a TRUNCATE, and have the others read."""
        for name, row in self._loaded(names):
            before = self._showing.show(name, row)
            self._kept.history.raise_horizon(row.newest_deletion(self._kept.now))
            is_recent = not self._has_snapshots or row.newest() > time - _RECENT_US
            if before is None or not is_recent:
                row.clear()
                self._kept.put(name, row, home)
                merged = self._showing.said(name, name[1:], before, event, time)
                if merged is not None:
                    yield merged
                continue
            row.seen = b""
            if row.liveness is not None and row.bound is None:
                row.bound = max(time, row.liveness.write_time)  # a column that was written since may have outlived it
            if self._markers:
                yield self._showing.record(name, name[1:], before, before, event, time)
            yield from self._proof(home, name, row, time)

    def doubt(self, key: bytes, bounds: Bounds | None, write_time: int) -> Iterator[MergedChange]:
        """Have the rows of a partition, or of a range, read: a delete of this write time may have been dropped by a
        TRUNCATE, so that it takes nothing away.
        """
        home, _ = self._kept.home(key)
        self._kept.history.raise_horizon(write_time)
        statics = [[OF_STATIC + home]] if bounds is None and self._table.statics else []
        for names in (*statics, *self._kept.rows_of(home)):
            for name, row in self._loaded(names):
                if bounds is None or self._covers(self._kept.clustering(name) or (), bounds):
                    yield from self._proof(home, name, row, None)

    def sweep(self) -> Iterator[MergedChange]:
        """Have the rows read that were not proven since the last disturbance, now that those that live were."""
        history = self._kept.history
        for home, names in self._all_rows():
            for name, row in self._loaded(names):
                if row.proven < history.disturbances and not row.read_at:
                    yield from self._proof(home, name, row, None)
        history.swept = history.disturbances

    def forget(self, filter_key: Callable[[bytes], bool]) -> Iterator[MergedChange]:
        """The table was recreated: none of its rows is one of now. Keys that `filter_key` refuses have no record."""
        for kind in (OF_ROW, OF_STATIC, OF_PARTITION, OF_PAGE):
            for names in self._kept.listed(kind):
                self._kept.remove(names)
                for name in names if kind in (OF_ROW, OF_STATIC) else ():
                    if filter_key(name[1:]):
                        scope = Scope.ROW if kind == OF_ROW else Scope.STATIC
                        gone = None, "d", None, None, None, None, None
                        yield MergedChange(self._showing.partition, name[1:], scope, *gone)
        self._kept.history = PartitionHistory(self._table.id.bytes, self._kept.now)

    def _proof(self, home: bytes, name: bytes, row: CellRow, since: int | None) -> Iterator[MergedChange]:
        if row.is_empty():
            return
        request = self._requests.prove(name, row, since)
        self._kept.put(name, row, home)
        if request is not None:
            yield request

    def _all_rows(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """All rows, then all static columns, some at a time, each with the key of their partition. What changed of them
        is saved, and let go of, in between.
        """
        if not self._kept.has_partitions:
            for names in self._kept.listed(OF_ROW):
                yield b"", names
                self._let_go()
            return
        for names in self._kept.listed(OF_PARTITION):
            for name in names:
                for rows in self._kept.rows_of(name[1:]):
                    yield name[1:], rows
            self._let_go()
        for names in self._kept.listed(OF_STATIC) if self._table.statics else ():
            for name in names:
                yield name[1:], [name]
            self._let_go()

    def _let_go(self) -> None:
        self._kept.save()
        self._kept.let_go()

    def _loaded(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, CellRow]]:
        """Rows by their names. They are saved, and those that were not at hand let go of, in the end."""
        at_hand = self._kept.rows.keys() | self._kept.raw.keys()
        self._kept.fetch(names)
        for name in names:
            yield name, self._kept.row(name)
        self._kept.save()
        for name in names:
            if name not in at_hand:
                self._kept.drop(name)
