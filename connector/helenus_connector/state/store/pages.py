"""A store whose keys lie eight to a page, and that caches a batch's pages: so the store that has the pages is called
less often, since each call to Spark costs much, however little it transfers.

    put_many({b"r1": b"a", b"r2": b"b"}) → in the store below: page 5 → {r1: a, r9: …}, page 7 → {r2: b}, at `flush`

A key's hash gives its page, and pages are added one by one as keys are (`linear_hashing`). So a batch that changes many
keys of a topic partition reads and writes each of its pages once; one that changes few of many reads and writes eight
keys for each.

In the store below, version 1, big-endian: the key n has u8 version, u32 pages, u64 keys; a page's key is its number,
u32; its value is u8 version, and keys and values in turns, each after its u32 size.

It runs as it is, and compiled by Cython with the types of `pages.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct

from helenus_connector.interfaces.store import Store
from helenus_connector.state.store.linear_hashing import pages_of_keys, parent_page, split_page
from helenus_connector.state.store.packing import pack_items, unpack_items
from helenus_connector.state.store.versions import UnknownVersion

COMPILED = not __file__.endswith(".py")
_VERSION = 1
_VERSION_BYTE = bytes((_VERSION,))
_HEADER_KEY = b"n"
_HEADER = Struct(">BIQ")
_PAGE_NUMBER = Struct(">I")
_KEYS_PER_PAGE = 8
"""On average. More would rewrite more bytes for one changed key, fewer would need more calls to Spark."""
_MAX_BYTES = 16 << 20
"""Cached bytes. Beyond that, changes are written and the cache is cleared."""
_PAGES_AT_ONCE = 500


class Pages:
    """The keys of one topic partition in one batch. The caller calls `flush` at its end. Raises ValueError for pages
    that a newer version wrote.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        (header,) = store.get_many([_HEADER_KEY])
        self._page_count, self._key_count = 1, 0
        if header is not None:
            _check_version(header[0])
            _, self._page_count, self._key_count = _HEADER.unpack(header)
        self._saved_header = self._page_count, self._key_count
        self._loaded_pages: dict[int, dict[bytes, bytes]] = {}
        self._changed: set[int] = set()
        self._size = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of these keys, as `Store` does."""
        numbers = pages_of_keys(keys, self._page_count)
        self._load_pages(numbers)
        pages = self._loaded_pages
        values: list[bytes | None] = []
        for key, number in zip(keys, numbers, strict=True):
            page = pages[number]
            values.append(page.get(key))
        return values

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """Put these values, as `Store` does."""
        numbers = pages_of_keys(values, self._page_count)
        self._load_pages(numbers)
        pages = self._loaded_pages
        for (key, value), number in zip(values.items(), numbers, strict=True):
            page = pages[number]
            self._key_count += key not in page
            page[key] = value
            self._size += len(value)
        self._changed.update(numbers)
        self._add_pages()

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, as `Store` does."""
        key_list = list(keys)
        numbers = pages_of_keys(key_list, self._page_count)
        self._load_pages(numbers)
        for key, number in zip(key_list, numbers, strict=True):
            if self._loaded_pages[number].pop(key, None) is not None:
                self._key_count -= 1
                self._changed.add(number)

    def all_keys(self) -> Iterator[bytes]:
        """Return all keys, page by page. If keys are put meanwhile, some may come twice."""
        start = 0
        while start < self._page_count:
            numbers = range(start, min(start + _PAGES_AT_ONCE, self._page_count))
            self._load_pages(numbers)
            yield from [key for number in numbers for key in self._loaded_pages[number]]
            start = numbers.stop

    def flush(self) -> None:
        """Write all that changed."""
        header = self._page_count, self._key_count
        values = {} if header == self._saved_header else {_HEADER_KEY: _HEADER.pack(_VERSION, *header)}
        removed = []
        for number in sorted(self._changed):
            page = self._loaded_pages[number]
            if page:
                values[_PAGE_NUMBER.pack(number)] = _VERSION_BYTE + pack_items(_items_of(page))
            else:
                removed.append(_PAGE_NUMBER.pack(number))
        if values:
            self._store.put_many(values)
        if removed:
            self._store.remove_many(removed)
        self._saved_header = header
        self._changed.clear()

    def _load_pages(self, numbers: Iterable[int]) -> None:
        """Load these pages; others may be released."""
        missing = [number for number in dict.fromkeys(numbers) if number not in self._loaded_pages]
        if not missing:
            return
        if self._size > _MAX_BYTES:
            self.flush()
            still_needed = set(numbers)
            self._loaded_pages = {number: page for number, page in self._loaded_pages.items() if number in still_needed}
            self._size = sum(len(value) for page in self._loaded_pages.values() for value in page.values())
        names = [_PAGE_NUMBER.pack(number) for number in missing]
        for number, value in zip(missing, self._store.get_many(names), strict=True):
            self._loaded_pages[number] = {} if value is None else entries(value)
            self._size += 0 if value is None else len(value)

    def _add_pages(self) -> None:
        """Add as many pages as the keys need, each new one with some of the keys of an older one."""
        page_count = max(self._page_count, -(-self._key_count // _KEYS_PER_PAGE))
        if page_count == self._page_count:
            return
        parents = {parent_page(number) for number in range(self._page_count, page_count)}
        self._load_pages({number for number in parents if number < self._page_count})
        for number in range(self._page_count, page_count):
            parent = parent_page(number)
            self._loaded_pages[number] = split_page(self._loaded_pages[parent], number)
            self._changed |= {parent, number}
        self._page_count = page_count


def entries(page: bytes) -> dict[bytes, bytes]:
    """Return the keys and values of a page. Raises ValueError for one that a newer version wrote."""
    _check_version(page[0])
    items = unpack_items(page, 1)
    if len(items) % 2:
        raise ValueError("a page of the state ends with a key: its checkpoint is damaged")
    values: dict[bytes, bytes] = {}
    for index in range(0, len(items), 2):
        values[items[index]] = items[index + 1]
    return values


def _items_of(page: dict[bytes, bytes]) -> list[bytes]:
    """Return the keys and values of a page in turns."""
    items: list[bytes] = []
    for key, value in page.items():
        items.append(key)
        items.append(value)
    return items


def is_page(name: bytes) -> bool:
    """Return whether this key of the store below is a page's."""
    return len(name) == _PAGE_NUMBER.size


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise UnknownVersion("a page", version, _VERSION)
