"""The live keys of one partition of a data topic, as they are stored: by group, on pages.

    group of 80 keys     one value: "g" + its name → the number of its pages, 0, and its keys
    group of 1,000 keys  "g" + its name → the number of its pages; "p" + page + its name → keys of a page

All keys of one Cassandra partition are a group, named by the partition's own key. A small group is one value in the
store; a large one is spread over pages (`linear_hashing`). What a batch needs of it is loaded once, and what changed is
written at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_connector.state.store.linear_hashing import page_of_key, parent_page, split_page
from helenus_connector.state.store.packing import pack_items, unpack_items
from helenus_connector.state.store.versions import check_version

NEVER = -1
"""Stands for a time that does not come."""
_VERSION = b"\2"
"""The version of groups and pages. Keys of version 1 have no `extended_s`."""
_PAGE_KEYS = 100
"""A page is added when one has more keys: its value stays at some kB."""
_KEY = Struct(">16sqqBI")  # as LiveKey
_KEY_V1 = Struct(">16sqqB")
_GROUP_PREFIX, _PAGE_PREFIX = b"g", b"p"
_UINT32 = Struct(">I")


@dataclass(slots=True)
class LiveKey:
    """A live key: its record's offset, when it expires, the time at which it is in the calendar, and how many reads
    were requested since its record. `extended_s`: for how long after `expires` an earlier record had it live, as the
    record of a column that ends sooner does not say when the row does.
    """

    offset: bytes
    expires: int = NEVER
    scheduled_at: int = NEVER
    requests: int = 0
    extended_s: int = 0


@dataclass(slots=True)
class KeyGroup:
    """The loaded pages of a group. `page_count` is 0 if the group itself is the page. `is_unsaved`: the store has
    another page count, or none. `moved` are pages of which records of keys that live for ever came again, and nothing
    but their offsets is new.
    """

    page_count: int = 0
    pages: dict[int, dict[bytes, LiveKey]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    is_unsaved: bool = True

    @property
    def page_numbers(self) -> range:
        """The numbers of its pages, with those that are not loaded."""
        return range(max(1, self.page_count))


class LiveKeys:
    """The live keys of one topic partition in one batch. `groups` are those that are loaded."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self.groups: dict[bytes, KeyGroup] = {}

    def load(self, groups: Collection[bytes], keys: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Load these groups, and the pages of these keys of them, each with the name of its group."""
        missing = sorted(set(groups) - self.groups.keys())
        for name, value in zip(missing, self._store.get_many([_GROUP_PREFIX + name for name in missing]), strict=True):
            self.groups[name] = _load_group(value)
        pages = {
            (group_name, page)
            for group_name, key in keys
            if (group := self.groups[group_name]).page_count
            and (page := page_of_key(key, group.page_count)) not in group.pages
        }
        self._load_pages(sorted(pages))

    def find_page(self, group_name: bytes, key: bytes) -> tuple[int, dict[bytes, LiveKey]]:
        """Return the number of a key's page, and the page, which is loaded."""
        group = self.groups[group_name]
        number = page_of_key(key, group.page_count)
        return number, group.pages[number]

    def get_page(self, group_name: bytes, number: int) -> dict[bytes, LiveKey]:
        """Return a page of a group, which is loaded if it is not yet."""
        pages = self.groups[group_name].pages
        if number not in pages:
            self._load_pages([(group_name, number)])
        return pages[number]

    def split_full(self, group_name: bytes, number: int) -> None:
        """Add one page to a group, with some of the keys of an older one, if this page of it is full."""
        group = self.groups[group_name]
        if len(group.pages[number]) <= _PAGE_KEYS * (1 if group.page_count else 2):
            return
        new_number = max(1, group.page_count)  # the group itself was page 0
        parent_number = parent_page(new_number)
        group.pages[new_number] = split_page(self.get_page(group_name, parent_number), new_number)
        group.page_count = new_number + 1
        group.changed |= {parent_number, new_number}
        group.is_unsaved = True

    def saved_groups(self) -> Iterator[list[bytes]]:
        """List the names of the groups in the store, some at a time."""
        names: list[bytes] = []
        for key in self._store.all_keys():
            if key[:1] == _GROUP_PREFIX:
                names.append(key[1:])
                if len(names) == _PAGE_KEYS:
                    yield names
                    names = []
        yield names

    def release(self, group_name: bytes) -> None:
        """Release a group that did not change: there may be millions."""
        group = self.groups[group_name]
        if not group.changed and not group.moved and not group.is_unsaved:
            del self.groups[group_name]

    def keep_offsets(self) -> None:
        """Have the offsets of `moved` pages written. They count for markers that are not finished with this batch;
        before later ones come both they and the offsets that the store has.
        """
        for group in self.groups.values():
            group.changed |= group.moved

    def collect_changes(self, values: dict[bytes, bytes], removed: list[bytes]) -> None:
        """Add what changed to the values that are to be written, and to the keys of the store to be removed."""
        for name, group in self.groups.items():
            if not group.page_count:
                if 0 in group.changed:
                    page = group.pages[0]
                    if page:
                        values[_GROUP_PREFIX + name] = _VERSION + _UINT32.pack(0) + _pack_page(page)
                    else:
                        removed.append(_GROUP_PREFIX + name)
                continue
            if group.is_unsaved:
                values[_GROUP_PREFIX + name] = _VERSION + _UINT32.pack(group.page_count)
            for number in group.changed:
                page = group.pages[number]
                if page:
                    values[_page_name(name, number)] = _VERSION + _pack_page(page)
                else:
                    removed.append(_page_name(name, number))

    def _load_pages(self, pages: list[tuple[bytes, int]]) -> None:
        values = self._store.get_many([_page_name(*page_key) for page_key in pages])
        for (name, page), value in zip(pages, values, strict=True):
            self.groups[name].pages[page] = {} if value is None else _unpack_page(value, 1)


def _page_name(group: bytes, page: int) -> bytes:
    return _PAGE_PREFIX + _UINT32.pack(page) + group


def _load_group(value: bytes | None) -> KeyGroup:
    if value is None:
        return KeyGroup(0, {0: {}})
    (page_count,) = _UINT32.unpack_from(value, 1)
    return KeyGroup(page_count, {} if page_count else {0: _unpack_page(value, 5)}, is_unsaved=False)


def _pack_page(page: dict[bytes, LiveKey]) -> bytes:
    pack = _KEY.pack
    return pack_items(
        pack(key.offset, key.expires, key.scheduled_at, key.requests, key.extended_s) + name
        for name, key in page.items()
    )


def _unpack_page(value: bytes, offset: int) -> dict[bytes, LiveKey]:
    check_version(value, _VERSION, "keys")
    key_struct = _KEY if value[:1] == _VERSION else _KEY_V1
    unpack, size = key_struct.unpack_from, key_struct.size
    return {item[size:]: LiveKey(*unpack(item)) for item in unpack_items(value, offset)}
