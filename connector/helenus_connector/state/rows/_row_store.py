"""What is at hand of a place's store while a batch is done: rows, partitions, what changed of them, and the calendar.

A row is read from the store once, kept as bytes until it is asked for, and written once when it changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct

from helenus_connector.gate.event_content import decode_key
from helenus_connector.state.rows._partition import PAGE, PartitionState, keys_of, page_bytes
from helenus_connector.state.rows._partition_history import PartitionHistory
from helenus_connector.state.rows._row import NO_PAGE, CellRow
from helenus_connector.state.rows._row_bytes import dump_row, load_row
from helenus_connector.state.rows._row_values import ShownRow
from helenus_connector.state.store.calendar import Calendar
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table

OF_ROW, OF_STATIC, OF_PARTITION, OF_PAGE = b"r", b"s", b"p", b"g"
"""What a name in the store begins with. The key follows; of a page its number, and the key of its partition."""
AT_ONCE = 1000
_PAGES = 16
_NUMBER = Struct(">I")


class RowStore:
    """Of one place and one batch, at the time `now`. By `purged_to`, which is `now` or before, gc_grace is counted.
    `history` is what is known of the logs behind the place; it counts the rows of the store.
    """

    def __init__(self, table: Table, codec: KeyCodec, store: KeyedStore, gc_grace: int) -> None:
        self._table, self._codec, self._store, self._gc_grace = table, codec, store, gc_grace
        self._partition_columns = codec.partition_columns
        self._no_clustering = (None,) * (codec.columns - codec.partition_columns)
        self.has_partitions = bool(table.clustering)
        self.calendar = Calendar(store)
        self.now = self.purged_to = 0
        self.history = PartitionHistory(table.id.bytes)
        self.raw: dict[bytes, bytes | None] = {}
        self.rows: dict[bytes, CellRow] = {}
        self.shown: dict[bytes, ShownRow | None] = {}
        self._partitions: dict[bytes, PartitionState] = {}
        self._keys: dict[bytes, tuple[bytes, Key]] = {}
        self._changed: dict[bytes, None] = {}
        self.changed_partitions: dict[bytes, None] = {}

    def home(self, key: bytes) -> tuple[bytes, Key]:
        """The key of a key's partition, and its values."""
        found = self._keys.get(key)
        if found is None:
            values = decode_key(self._codec, key)
            home = key
            if self.has_partitions:
                home = self._codec.encode((*values[: self._partition_columns], *self._no_clustering))
            found = self._keys[key] = home, values
        return found

    def row(self, name: bytes) -> CellRow:
        row = self.rows.get(name)
        if row is None:
            if name not in self.raw:
                self.fetch([name])
            raw = self.raw[name]
            row = self.rows[name] = CellRow() if raw is None else load_row(raw)
        return row

    def knows(self, name: bytes) -> bool:
        """Whether anything is kept of a row."""
        row = self.rows.get(name)
        if row is not None:
            return not row.is_empty()
        self.fetch([name])
        return self.raw[name] is not None

    def clustering(self, name: bytes) -> Key | None:
        """The clustering values of a row's name; None of static columns, and where there are no partitions."""
        if name[:1] == OF_STATIC or not self.has_partitions:
            return None
        return self.home(name[1:])[1][self._partition_columns :]

    def rows_of(self, home: bytes) -> Iterator[list[bytes]]:
        """The names of a partition's rows, some at a time; not its static columns."""
        partition = self.partition(home)
        last = partition.pages
        yield [OF_ROW + key for key in partition.open]
        for start in range(partition.first, last, _PAGES):
            pages = self._store.get_many([page_name(home, n) for n in range(start, min(start + _PAGES, last))])
            yield [OF_ROW + key for page in pages for key in keys_of(page)]

    def partition(self, home: bytes) -> PartitionState:
        if home not in self._partitions:
            self.fetch_partitions([home])
        return self._partitions[home]

    def fetch(self, names: Iterable[bytes]) -> None:
        wanted = [name for name in dict.fromkeys(names) if name not in self.raw and name[:1] != OF_PARTITION]
        self.raw.update(zip(wanted, self._store.get_many(wanted), strict=True))

    def fetch_partitions(self, keys: Iterable[bytes]) -> None:
        if not self.has_partitions:
            return
        homes = dict.fromkeys(self.home(key)[0] for key in keys if key)
        wanted = [home for home in homes if home not in self._partitions]
        for home, raw in zip(wanted, self._store.get_many([OF_PARTITION + home for home in wanted]), strict=True):
            self._partitions[home] = PartitionState() if raw is None else PartitionState.loads(raw)
        if self._table.statics:
            self.fetch(OF_STATIC + home for home in wanted)

    def put(self, name: bytes, row: CellRow, home: bytes) -> None:
        """Have a row written, and listed in its partition."""
        self._changed[name] = None
        if name[:1] != OF_ROW or not self.has_partitions or row.page != NO_PAGE or row.is_empty():
            return
        partition = self.partition(home)
        row.page = partition.pages
        partition.open.append(name[1:])
        self.changed_partitions[home] = None
        if len(partition.open) == PAGE:
            self._store.put_many({page_name(home, partition.pages): page_bytes(partition.open)})
            partition.pages += 1
            partition.open = []

    def save(self) -> None:
        """Write what changed."""
        values: dict[bytes, bytes] = {}
        removed: list[bytes] = []
        due: dict[int, list[bytes]] = {}
        unlisted: dict[tuple[bytes, int], set[bytes]] = {}
        for name in self._changed:
            row = self.rows[name]
            is_new = self.raw.get(name) is None
            if row.is_empty():
                if not is_new:
                    removed.append(name)
                    self.raw[name] = None
                    self.history.count -= name[:1] == OF_ROW
                if row.page != NO_PAGE:
                    unlisted.setdefault((self.home(name[1:])[0], row.page), set()).add(name[1:])
                self.rows[name] = CellRow()
                continue
            self.history.count += is_new and name[:1] == OF_ROW
            row.armed = _armed(due, name, row.armed, row.next_due(self.now, self._gc_grace, self.purged_to))
            values[name] = self.raw[name] = dump_row(row)
        self._unlist(unlisted)
        for home in self.changed_partitions:
            partition, name = self._partitions[home], OF_PARTITION + home
            if partition.is_empty():
                removed.append(name)
                continue
            when = partition.next_due(self.now, self._gc_grace, self.purged_to)
            partition.armed = _armed(due, name, partition.armed, when)
            values[name] = partition.dumps()
        if values:
            self._store.put_many(values)
        if removed:
            self._store.remove_many(removed)
        if due:
            self.calendar.add(due)
        self._changed.clear()
        self.changed_partitions.clear()

    def _unlist(self, unlisted: Mapping[tuple[bytes, int], set[bytes]]) -> None:
        """Take rows out of their pages."""
        emptied: dict[bytes, None] = {}
        for (home, number), keys in unlisted.items():
            partition = self.partition(home)
            if number == partition.pages:
                partition.open = [key for key in partition.open if key not in keys]
                self.changed_partitions[home] = emptied[home] = None
                continue
            name = page_name(home, number)
            (page,) = self._store.get_many([name])
            left = [key for key in keys_of(page) if key not in keys]
            if left:
                self._store.put_many({name: page_bytes(left)})
            else:
                self._store.remove_many([name])
                emptied[home] = None
        for home in emptied:
            self._trim(home)

    def _trim(self, home: bytes) -> None:
        """Let go of a partition's first and last pages, if they have no rows left."""
        partition = self.partition(home)
        first, pages = partition.first, partition.pages
        while first < pages and not self._has_page(home, first):
            first += 1
        while first < pages and not partition.open and not self._has_page(home, pages - 1):
            pages -= 1
        if (first, pages) != (partition.first, partition.pages):
            partition.first, partition.pages = first, pages
            self.changed_partitions[home] = None

    def _has_page(self, home: bytes, number: int) -> bool:
        return self._store.get_many([page_name(home, number)])[0] is not None

    def remove(self, names: Sequence[bytes]) -> None:
        """Take values out of the store, whatever they are."""
        self._store.remove_many(names)

    def drop(self, name: bytes) -> None:
        """Forget what is at hand of a row that is saved."""
        for known in (self.raw, self.rows, self.shown):
            known.pop(name, None)
        self._keys.pop(name[1:], None)

    def let_go(self) -> None:
        """Forget what is at hand: it is saved."""
        for known in (self.raw, self.rows, self.shown, self._partitions, self._keys):
            known.clear()

    def listed(self, kind: bytes) -> Iterator[list[bytes]]:
        """The names of a kind in the store, some at a time."""
        some: list[bytes] = []
        for name in self._store.all_keys():
            if name[:1] == kind:
                some.append(name)
                if len(some) == AT_ONCE:
                    yield some
                    some = []
        if some:
            yield some


def _armed(due: dict[int, list[bytes]], name: bytes, armed: int, when: int) -> int:
    """For when a name is in the calendar, having put it there if that was not early enough."""
    if not when or (armed and armed <= when):
        return armed
    due.setdefault(when, []).append(name)
    return when


def page_name(home: bytes, number: int) -> bytes:
    return OF_PAGE + _NUMBER.pack(number) + home
