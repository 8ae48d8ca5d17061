"""Changes of many rows of a topic partition at once: deletes of a partition, a range or the table, and proofs.

    DELETE … WHERE k = 1      a marker, then a `d` for each row that lived, by write times, as Cassandra deletes
    TRUNCATE                  a marker, then a `d` for each row that was written long before; others are read
    rows not proven           after a truncation, a gap or lost events: what the snapshot did not show is read

TRUNCATE drops what was logged before it, not what has an older write time. Which rows a node logged after its TRUNCATE
is not known here, so rows written at about that time are read. A row that was deleted wrongly, as its client wrote with
a time long past, comes back with the snapshot that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from helenus_connector.cassandra_rows.clustering_bounds import covering
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_connector.interfaces.merged_change import MergedChange, ReadRequest, RowChange
from helenus_connector.state.rows._read_requests import ReadRequests
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_image import RowImages
from helenus_connector.state.rows._row_store import PAGE_PREFIX, PARTITION_PREFIX, ROW_PREFIX, STATIC_PREFIX, RowStore
from helenus_connector.state.rows._topic_partition_history import TopicPartitionHistory
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import Deletion
from helenus_schemas.event.change import Scope

_RECENT_US = 600_000_000
"""A row whose newest write time is not older than a TRUNCATE by more than ten minutes is read before it is deleted.
Clocks may differ by so much without a `d` that is taken back; the final result does not depend on it.
"""


class ScopeMerger:
    """Merges changes of many rows of one topic partition, in one batch. `markers`: whether delete markers are on the
    data topic, where the live rows of their scope follow them. `has_snapshots`: whether a snapshot shows rows that were
    deleted wrongly.
    """

    def __init__(
        self,
        table: Table,
        row_store: RowStore,
        images: RowImages,
        requests: ReadRequests,
        markers: bool,
        has_snapshots: bool,
    ) -> None:
        self._table, self._row_store, self._images, self._requests = table, row_store, images, requests
        self._markers, self._has_snapshots = markers, has_snapshots
        self._covers_row, self._is_within = covering(table)

    def delete(
        self, key: bytes, scope: Scope, bounds: Bounds | None, deletion: Deletion, event: Event
    ) -> Iterator[MergedChange] | None:
        """Delete a partition, or a range of it; None if that is known."""
        partition_key, _ = self._row_store.resolve_key(key)
        partition_state = self._row_store.get_partition(partition_key)
        if not partition_state.add_deletion(deletion, bounds, self._is_within):
            return None
        self._row_store.changed_partitions[partition_key] = None
        return self._delete_rows(partition_key, key, scope, bounds, deletion, event)

    def _delete_rows(
        self, partition_key: bytes, key: bytes, scope: Scope, bounds: Bounds | None, deletion: Deletion, event: Event
    ) -> Iterator[MergedChange]:
        """Give the marker of a deletion, and the changes of the rows that it deletes."""
        after = None
        if bounds is not None and self._table.statics and self._markers:
            # The marker has the key of the static columns' own record, which it must not delete.
            name = STATIC_PREFIX + partition_key
            statics = self._images.last_shown(name, self._row_store.get_row(name))
            after = None if statics is None else statics.values
        topic_partition, deleted_at = self._images.partition, deletion.write_time
        yield RowChange(
            topic_partition, key, scope, "d", after=after, write_time=deleted_at, event=event, bounds=bounds
        )
        if bounds is None and self._table.statics:
            yield from self._shadow_rows(
                [STATIC_PREFIX + partition_key], partition_key, deletion.write_time, None, event
            )
        for names in self._row_store.list_rows(partition_key):
            yield from self._shadow_rows(names, partition_key, deletion.write_time, bounds, event)

    def _shadow_rows(
        self, names: Sequence[bytes], partition_key: bytes, floor: int, bounds: Bounds | None, event: Event
    ) -> Iterator[MergedChange]:
        """Remove what a deletion deletes of these rows, and give their changes."""
        for name, row in self._load_rows(names):
            clustering = self._row_store.clustering_values(name)
            if bounds is not None and not self._covers_row(clustering or (), bounds):
                continue
            before, merged, proof = self._images.last_shown(name, row), None, None
            in_doubt = row.is_liveness_in_doubt(floor)
            is_unproven = row.is_deletion_unproven(floor, self._row_store.history.horizon)
            if row.drop_shadowed(floor):
                self._requests.postpone_read(row)
                in_doubt |= row.is_guess(self._row_store.now)
                proof = self._requests.request_proof(name, row) if is_unproven else None
                self._row_store.put_row(name, row, partition_key)
                merged = self._images.record_change(name, name[1:], before, event, floor)
            if merged is None and before is not None and self._markers:
                merged = self._images.make_record(name, name[1:], before, before, event, floor)
            if merged is not None:
                yield merged
            if proof is not None:
                yield proof
            elif in_doubt and not is_unproven:
                yield self._requests.for_row(name)

    def truncate(self, time: int, event: Event) -> Iterator[MergedChange]:
        """Truncate the table: the first node has reported a TRUNCATE, at a time, µs."""
        self._row_store.save()
        yield RowChange(self._images.partition, event.key or b"", Scope.TABLE, "d", write_time=time, event=event)
        for partition_key, names in self._all_rows():
            yield from self._drop_rows(partition_key, names, time, event)
        for names in self._row_store.list_names(PARTITION_PREFIX) if self._row_store.has_partitions else ():
            for name in names:
                partition_state = self._row_store.get_partition(name[1:])
                self._row_store.history.raise_horizon(partition_state.newest_deletion_time())
                partition_state.deletion, partition_state.ranges = None, {}
                self._row_store.changed_partitions[name[1:]] = None
            self._save_and_release()

    def _drop_rows(
        self, partition_key: bytes, names: Sequence[bytes], time: int, event: Event
    ) -> Iterator[MergedChange]:
        """Delete rows that were written long before a TRUNCATE, and have the others read."""
        for name, row in self._load_rows(names):
            before = self._images.last_shown(name, row)
            self._row_store.history.raise_horizon(row.newest_deletion_time(self._row_store.now))
            # It may have been logged after its node's TRUNCATE, or no snapshot comes that brings a deleted row back.
            must_be_read = not self._has_snapshots or row.newest_write_time() > time - _RECENT_US
            if before is None or not must_be_read:
                row.clear()
                self._row_store.put_row(name, row, partition_key)
                merged = self._images.record_change(name, name[1:], before, event, time)
                if merged is not None:
                    yield merged
                continue
            row.recent_mutations = b""
            if row.liveness is not None and row.liveness_bound is None:
                # A column that was written since may have outlived it.
                row.liveness_bound = max(time, row.liveness.write_time)
            if self._markers:
                yield self._images.make_record(name, name[1:], before, before, event, time)
            yield from self._request_proof(partition_key, name, row, time)

    def request_scope_reads(self, key: bytes, bounds: Bounds | None, write_time: int) -> Iterator[ReadRequest]:
        """Have the rows of a partition, or of a range, read: a TRUNCATE may have dropped a delete of this write time,
        so that it deletes nothing.
        """
        partition_key, _ = self._row_store.resolve_key(key)
        self._row_store.history.raise_horizon(write_time)
        statics = [[STATIC_PREFIX + partition_key]] if bounds is None and self._table.statics else []
        for names in (*statics, *self._row_store.list_rows(partition_key)):
            for name, row in self._load_rows(names):
                if bounds is None or self._covers_row(self._row_store.clustering_values(name) or (), bounds):
                    yield from self._request_proof(partition_key, name, row, None)

    def request_unproven_reads(self) -> Iterator[ReadRequest]:
        """Have the rows read that were not proven since the last disturbance, now that those that live were."""
        history = self._row_store.history
        for partition_key, names in self._all_rows():
            for name, row in self._load_rows(names):
                if row.proven_up_to < history.disturbances and not row.reread_at:
                    yield from self._request_proof(partition_key, name, row, None)
        history.swept_up_to = history.disturbances

    def forget_all_rows(self, filter_key: Callable[[bytes], bool]) -> Iterator[RowChange]:
        """Forget all rows: the table was recreated. Keys that `filter_key` refuses get no record."""
        for prefix in (ROW_PREFIX, STATIC_PREFIX, PARTITION_PREFIX, PAGE_PREFIX):
            for names in self._row_store.list_names(prefix):
                self._row_store.remove_names(names)
                for name in names if prefix in (ROW_PREFIX, STATIC_PREFIX) else ():
                    if filter_key(name[1:]):
                        scope = Scope.ROW if prefix == ROW_PREFIX else Scope.STATIC
                        yield RowChange(self._images.partition, name[1:], scope, "d")
        self._row_store.history = TopicPartitionHistory(self._table.id.bytes, self._row_store.now)

    def _request_proof(
        self, partition_key: bytes, name: bytes, row: CellRow, deleted_to: int | None
    ) -> Iterator[ReadRequest]:
        if row.is_empty():
            return
        request = self._requests.request_proof(name, row, deleted_to)
        self._row_store.put_row(name, row, partition_key)
        if request is not None:
            yield request

    def _all_rows(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """List the names of all rows, then of all static columns, some at a time, each with the key of their partition.
        In between, what changed of them is saved, and released.
        """
        if not self._row_store.has_partitions:
            for names in self._row_store.list_names(ROW_PREFIX):
                yield b"", names
                self._save_and_release()
            return
        for names in self._row_store.list_names(PARTITION_PREFIX):
            for name in names:
                for row_names in self._row_store.list_rows(name[1:]):
                    yield name[1:], row_names
            self._save_and_release()
        for names in self._row_store.list_names(STATIC_PREFIX) if self._table.statics else ():
            for name in names:
                yield name[1:], [name]
            self._save_and_release()

    def _save_and_release(self) -> None:
        self._row_store.save()
        self._row_store.release_all()

    def _load_rows(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, CellRow]]:
        """Load rows by their names. In the end they are saved, and those that were not loaded before are released."""
        loaded_before = self._row_store.rows.keys() | self._row_store.row_bytes.keys()
        self._row_store.fetch_rows(names)
        for name in names:
            yield name, self._row_store.get_row(name)
        self._row_store.save()
        for name in names:
            if name not in loaded_before:
                self._row_store.release_row(name)
