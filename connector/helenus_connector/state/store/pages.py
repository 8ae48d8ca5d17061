"""A store whose keys lie eight to a page, and that remembers a batch's pages: the store that has the pages is asked
seldom, since each answer of Spark's has its price, however little is in it.

    put_many({b"r1": b"a", b"r2": b"b"}) → in the store below: page 5 → {r1: a, r9: …}, page 7 → {r2: b}, at `flush`

A key's hash gives its page, and pages grow in number one by one as keys do (linear hashing: Litwin 1980). So a batch
that changes many keys of a place reads and writes each of its pages once; one that changes few of many reads and
writes eight keys for each.

In the store below, version 1, big-endian: the key n has u8 version, u32 pages, u64 keys; a page's key is its number,
u32; its value is u8 version, and keys and values in turns, each after its u32 size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from zlib import crc32

from helenus_connector.interfaces.store import Store
from helenus_connector.state.store.packing import pack_items, unpack_items

_VERSION = 1
_ABOUT = b"n"
_ABOUT_OF = Struct(">BIQ")
_NUMBER = Struct(">I")
_KEYS = 8
"""In a page, on average."""
_MOST_BYTES = 16 << 20
"""That are remembered: then what changed is written, and all is forgotten."""
_AT_ONCE = 500


class Pages:
    """The keys of one place in one batch. `flush` is to be called at its end. Raises ValueError for pages that a newer
    version wrote.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        (about,) = store.get_many([_ABOUT])
        self._parts, self._count = 1, 0
        if about is not None:
            _check(about[0])
            _, self._parts, self._count = _ABOUT_OF.unpack(about)
        self._before = self._parts, self._count
        self._pages: dict[int, dict[bytes, bytes]] = {}
        self._changed: set[int] = set()
        self._size = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As of `Store`."""
        places = [_page_of(key, self._parts) for key in keys]
        self._load(places)
        pages = self._pages
        return [pages[place].get(key) for key, place in zip(keys, places, strict=True)]

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """As of `Store`."""
        places = [_page_of(key, self._parts) for key in values]
        self._load(places)
        for (key, value), place in zip(values.items(), places, strict=True):
            page = self._pages[place]
            self._count += key not in page
            page[key] = value
            self._size += len(value)
        self._changed.update(places)
        self._divide()

    def remove_many(self, keys: Iterable[bytes]) -> None:
        """As of `Store`."""
        wanted = list(keys)
        places = [_page_of(key, self._parts) for key in wanted]
        self._load(places)
        for key, place in zip(wanted, places, strict=True):
            if self._pages[place].pop(key, None) is not None:
                self._count -= 1
                self._changed.add(place)

    def all_keys(self) -> Iterator[bytes]:
        """All keys, page by page. If keys are put meanwhile, some may come twice."""
        start = 0
        while start < self._parts:
            places = range(start, min(start + _AT_ONCE, self._parts))
            self._load(places)
            yield from [key for place in places for key in self._pages[place]]
            start = places.stop

    def flush(self) -> None:
        """Write what changed."""
        about = self._parts, self._count
        values = {} if about == self._before else {_ABOUT: _ABOUT_OF.pack(_VERSION, *about)}
        removed = []
        for place in sorted(self._changed):
            page = self._pages[place]
            if page:
                values[_NUMBER.pack(place)] = bytes((_VERSION,)) + pack_items(
                    part for of in page.items() for part in of
                )
            else:
                removed.append(_NUMBER.pack(place))
        if values:
            self._store.put_many(values)
        if removed:
            self._store.remove_many(removed)
        self._before = about
        self._changed.clear()

    def _load(self, places: Iterable[int]) -> None:
        """Have these pages at hand; others may be let go."""
        wanted = [place for place in dict.fromkeys(places) if place not in self._pages]
        if not wanted:
            return
        if self._size > _MOST_BYTES:
            self.flush()
            kept = set(places)
            self._pages = {place: page for place, page in self._pages.items() if place in kept}
            self._size = sum(len(value) for page in self._pages.values() for value in page.values())
        names = [_NUMBER.pack(place) for place in wanted]
        for place, value in zip(wanted, self._store.get_many(names), strict=True):
            self._pages[place] = {} if value is None else entries(value)
            self._size += 0 if value is None else len(value)

    def _divide(self) -> None:
        """As many pages as there are to be, each new one with some of the keys of an older one."""
        parts = max(self._parts, -(-self._count // _KEYS))
        if parts == self._parts:
            return
        olds = {_older(new) for new in range(self._parts, parts)}
        self._load({place for place in olds if place < self._parts})
        for new in range(self._parts, parts):
            old = self._pages[_older(new)]
            page = self._pages[new] = {key: old[key] for key in old if _page_of(key, new + 1) == new}
            for key in page:
                del old[key]
            self._changed |= {_older(new), new}
        self._parts = parts


def entries(page: bytes) -> dict[bytes, bytes]:
    """The keys and values of a page. Raises ValueError for one that a newer version wrote."""
    _check(page[0])
    items = unpack_items(page, 1)
    return dict(zip(items[::2], items[1::2], strict=True))


def is_page(name: bytes) -> bool:
    """Whether this key of the store below is a page's."""
    return len(name) == _NUMBER.size


def _check(version: int) -> None:
    if version != _VERSION:
        raise ValueError(f"a page of version {version} in the state, where {_VERSION} is known")


def _older(page: int) -> int:
    """The page that a page's keys were in before there was it."""
    return page - (1 << (page.bit_length() - 1))


def _page_of(key: bytes, parts: int) -> int:
    """The page of a key among so many."""
    half = 1 << (parts.bit_length() - 1)
    code = crc32(key)
    number = code % (half * 2)
    return number if number < parts else code % half
