"""The part of a topic partition's store that is loaded during a batch: rows, partitions, what changed, the calendar.

A row is read from the store once, held as bytes until it is needed, and written once when it changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct

from helenus_connector.gate.event_content import decode_key
from helenus_connector.state.rows._partition import PAGE_SIZE, PartitionState, keys_of, page_bytes
from helenus_connector.state.rows._row import NO_PAGE, CellRow
from helenus_connector.state.rows._row_bytes import dump_row, load_row
from helenus_connector.state.rows._row_values import ShownRow
from helenus_connector.state.rows._topic_partition_history import TopicPartitionHistory
from helenus_connector.state.store.calendar import Calendar
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table

ROW_PREFIX, STATIC_PREFIX, PARTITION_PREFIX, PAGE_PREFIX = b"r", b"s", b"p", b"g"
"""Prefixes of names in the store. The key follows; of a page its number, and the key of its partition."""
NAMES_AT_ONCE = 1000
"""Rows that are loaded together: more would cost memory, fewer more round trips to Spark."""
_PAGES_AT_ONCE = 16
"""As many pages as list about so many rows (`PAGE_SIZE`)."""
_PAGE_NUMBER = Struct(">I")


class RowStore:
    """The rows of one topic partition in one batch, at the time `now`. `purge_clock` is the time by which tombstones
    are old enough to be purged: `now`, or before in a backlog. `history` is the state of the logs behind the partition;
    it counts the rows of the store.
    """

    def __init__(self, table: Table, codec: KeyCodec, store: KeyedStore, gc_grace: int) -> None:
        self._table, self._codec, self._store, self._gc_grace = table, codec, store, gc_grace
        self._partition_columns = codec.partition_columns
        self._no_clustering = (None,) * (codec.columns - codec.partition_columns)
        self.has_partitions = bool(table.clustering)
        self.calendar = Calendar(store)
        self.now = self.purge_clock = 0
        self.history = TopicPartitionHistory(table.id.bytes)
        self.row_bytes: dict[bytes, bytes | None] = {}
        self.rows: dict[bytes, CellRow] = {}
        self.shown_rows: dict[bytes, ShownRow | None] = {}
        self._partitions: dict[bytes, PartitionState] = {}
        self._resolved_keys: dict[bytes, tuple[bytes, Key]] = {}
        self._changed_rows: dict[bytes, None] = {}
        self._updated_rows: dict[bytes, None] = {}
        self._due_times: dict[int, list[bytes]] = {}
        self.changed_partitions: dict[bytes, None] = {}

    def resolve_key(self, key: bytes) -> tuple[bytes, Key]:
        """Return the key of a key's partition, and the key's values."""
        resolved = self._resolved_keys.get(key)
        if resolved is None:
            values = decode_key(self._codec, key)
            partition_key = key
            if self.has_partitions:
                partition_key = self._codec.encode((*values[: self._partition_columns], *self._no_clustering))
            resolved = self._resolved_keys[key] = partition_key, values
        return resolved

    def get_row(self, name: bytes) -> CellRow:
        """Return a row by its name, empty if there is none."""
        row = self.rows.get(name)
        if row is None:
            if name not in self.row_bytes:
                self.fetch_rows([name])
            row_bytes = self.row_bytes[name]
            row = self.rows[name] = CellRow() if row_bytes is None else load_row(row_bytes)
        return row

    def has_row(self, name: bytes) -> bool:
        """Return whether anything of a row is stored."""
        row = self.rows.get(name)
        if row is not None:
            return not row.is_empty()
        self.fetch_rows([name])
        return self.row_bytes[name] is not None

    def clustering_values(self, name: bytes) -> Key | None:
        """Return the clustering values of a row's name; None of static columns, and where there are no partitions."""
        if name[:1] == STATIC_PREFIX or not self.has_partitions:
            return None
        return self.resolve_key(name[1:])[1][self._partition_columns :]

    def list_rows(self, partition_key: bytes) -> Iterator[list[bytes]]:
        """List the names of a partition's rows, a few pages at a time; not its static columns."""
        partition = self.get_partition(partition_key)
        end = partition.next_page
        yield [ROW_PREFIX + key for key in partition.open_keys]
        for start in range(partition.first_page, end, _PAGES_AT_ONCE):
            pages = self._store.get_many(
                [page_name(partition_key, n) for n in range(start, min(start + _PAGES_AT_ONCE, end))]
            )
            yield [ROW_PREFIX + key for page in pages for key in keys_of(page)]

    def get_partition(self, partition_key: bytes) -> PartitionState:
        """Return a partition by its key, empty if there is none."""
        if partition_key not in self._partitions:
            self.fetch_partitions([partition_key])
        return self._partitions[partition_key]

    def fetch_rows(self, names: Iterable[bytes]) -> None:
        """Read the bytes of these rows, unless they are loaded."""
        missing = [name for name in dict.fromkeys(names) if name not in self.row_bytes and name[:1] != PARTITION_PREFIX]
        self.row_bytes.update(zip(missing, self._store.get_many(missing), strict=True))

    def fetch_partitions(self, keys: Iterable[bytes]) -> None:
        """Read the partitions of these keys, and the bytes of their static columns, unless they are loaded."""
        if not self.has_partitions:
            return
        partition_keys = dict.fromkeys(self.resolve_key(key)[0] for key in keys if key)
        missing = [partition_key for partition_key in partition_keys if partition_key not in self._partitions]
        for partition_key, partition_bytes in zip(
            missing, self._store.get_many([PARTITION_PREFIX + partition_key for partition_key in missing]), strict=True
        ):
            self._partitions[partition_key] = (
                PartitionState() if partition_bytes is None else PartitionState.loads(partition_bytes)
            )
        if self._table.statics:
            self.fetch_rows(STATIC_PREFIX + partition_key for partition_key in missing)

    def put_row(self, name: bytes, row: CellRow, partition_key: bytes) -> None:
        """Have a row written with the next `save`, and listed in its partition."""
        self._changed_rows[name] = None
        if name[:1] != ROW_PREFIX or not self.has_partitions or row.page != NO_PAGE or row.is_empty():
            return
        row.page = self._list_row(name, partition_key)

    def put_row_bytes(self, name: bytes, row_bytes: bytes, due_at: int) -> None:
        """Have the bytes of an ordinary row, which was not loaded as a `CellRow`, written with the next `save`. It is
        put into the calendar for `due_at`, unless that is 0. A new one is listed in its partition.
        """
        if self.row_bytes[name] is None:
            self.history.row_count += 1
            if self.has_partitions:
                self._list_row(name, self.resolve_key(name[1:])[0])
        self.row_bytes[name] = row_bytes
        self._updated_rows[name] = None
        if due_at:
            self._due_times.setdefault(due_at, []).append(name)

    def next_page(self, name: bytes) -> int:
        """Return the page that is to list a new row, -1 where there are no partitions."""
        return self.get_partition(self.resolve_key(name[1:])[0]).next_page if self.has_partitions else -1

    def hides_nothing(self, name: bytes) -> bool:
        """Return whether nothing of wider scope may delete a row: its partition has no deletions."""
        if not self.has_partitions:
            return True
        partition = self.get_partition(self.resolve_key(name[1:])[0])
        return partition.deletion is None and not partition.ranges

    def _list_row(self, name: bytes, partition_key: bytes) -> int:
        """List a new row in its partition. Return the page that has it."""
        partition = self.get_partition(partition_key)
        page = partition.next_page
        partition.open_keys.append(name[1:])
        self.changed_partitions[partition_key] = None
        if len(partition.open_keys) == PAGE_SIZE:
            self._store.put_many({page_name(partition_key, partition.next_page): page_bytes(partition.open_keys)})
            partition.next_page += 1
            partition.open_keys = []
        return page

    def save(self) -> None:
        """Write all that changed."""
        values: dict[bytes, bytes] = {}
        removed: list[bytes] = []
        calendar_items, self._due_times = self._due_times, {}
        unlisted: dict[tuple[bytes, int], set[bytes]] = {}
        for name in self._updated_rows:
            if name not in self._changed_rows:
                row_bytes = self.row_bytes[name]
                assert row_bytes is not None
                values[name] = row_bytes
        for name in self._changed_rows:
            row = self.rows[name]
            is_new = self.row_bytes.get(name) is None
            if row.is_empty():
                if not is_new:
                    removed.append(name)
                    self.row_bytes[name] = None
                    self.history.row_count -= name[:1] == ROW_PREFIX
                if row.page != NO_PAGE:
                    unlisted.setdefault((self.resolve_key(name[1:])[0], row.page), set()).add(name[1:])
                self.rows[name] = CellRow()
                continue
            self.history.row_count += is_new and name[:1] == ROW_PREFIX
            row.scheduled_at = _schedule(
                calendar_items, name, row.scheduled_at, row.next_due(self.now, self._gc_grace, self.purge_clock)
            )
            values[name] = self.row_bytes[name] = dump_row(row)
        self._unlist_rows(unlisted)
        for partition_key in self.changed_partitions:
            partition, name = self._partitions[partition_key], PARTITION_PREFIX + partition_key
            if partition.is_empty():
                removed.append(name)
                continue
            due_at = partition.next_due(self.now, self._gc_grace, self.purge_clock)
            partition.scheduled_at = _schedule(calendar_items, name, partition.scheduled_at, due_at)
            values[name] = partition.dumps()
        if values:
            self._store.put_many(values)
        if removed:
            self._store.remove_many(removed)
        if calendar_items:
            self.calendar.add(calendar_items)
        self._changed_rows.clear()
        self._updated_rows.clear()
        self.changed_partitions.clear()

    def _unlist_rows(self, unlisted: Mapping[tuple[bytes, int], set[bytes]]) -> None:
        """Remove rows from the pages that list them."""
        shrunk: dict[bytes, None] = {}
        for (partition_key, number), keys in unlisted.items():
            partition = self.get_partition(partition_key)
            if number == partition.next_page:
                partition.open_keys = [key for key in partition.open_keys if key not in keys]
                self.changed_partitions[partition_key] = shrunk[partition_key] = None
                continue
            name = page_name(partition_key, number)
            (page,) = self._store.get_many([name])
            remaining = [key for key in keys_of(page) if key not in keys]
            if remaining:
                self._store.put_many({name: page_bytes(remaining)})
            else:
                self._store.remove_many([name])
                shrunk[partition_key] = None
        for partition_key in shrunk:
            self._trim_pages(partition_key)

    def _trim_pages(self, partition_key: bytes) -> None:
        """Skip a partition's first and last pages, if they have no rows left."""
        partition = self.get_partition(partition_key)
        first, pages = partition.first_page, partition.next_page
        while first < pages and not self._has_page(partition_key, first):
            first += 1
        while first < pages and not partition.open_keys and not self._has_page(partition_key, pages - 1):
            pages -= 1
        if (first, pages) != (partition.first_page, partition.next_page):
            partition.first_page, partition.next_page = first, pages
            self.changed_partitions[partition_key] = None

    def _has_page(self, partition_key: bytes, number: int) -> bool:
        return self._store.get_many([page_name(partition_key, number)])[0] is not None

    def remove_names(self, names: Sequence[bytes]) -> None:
        """Remove names from the store, whatever their values are."""
        self._store.remove_many(names)

    def release_row(self, name: bytes) -> None:
        """Release a saved row from memory."""
        for cache in (self.row_bytes, self.rows, self.shown_rows):
            cache.pop(name, None)
        self._resolved_keys.pop(name[1:], None)

    def release_all(self) -> None:
        """Release all rows and partitions from memory. They are saved."""
        for cache in (self.row_bytes, self.rows, self.shown_rows, self._partitions, self._resolved_keys):
            cache.clear()

    def list_names(self, prefix: bytes) -> Iterator[list[bytes]]:
        """List the names of a prefix in the store, some at a time."""
        names: list[bytes] = []
        for name in self._store.all_keys():
            if name[:1] == prefix:
                names.append(name)
                if len(names) == NAMES_AT_ONCE:
                    yield names
                    names = []
        if names:
            yield names


def _schedule(calendar_items: dict[int, list[bytes]], name: bytes, scheduled_at: int, due_at: int) -> int:
    """Put a name into the calendar, unless it is there for that time or earlier. Return for when it is there."""
    if not due_at or (scheduled_at and scheduled_at <= due_at):
        return scheduled_at
    calendar_items.setdefault(due_at, []).append(name)
    return due_at


def page_name(partition_key: bytes, number: int) -> bytes:
    """Return the name of a partition's full page in the store."""
    return PAGE_PREFIX + _PAGE_NUMBER.pack(number) + partition_key
