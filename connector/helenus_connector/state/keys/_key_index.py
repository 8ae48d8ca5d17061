"""The keys that live on a data topic, as far as one partition of it says: the index of `state=keys`.

    record of key (1, 2), expires 60      the key lives; it is looked at again at 60
    record of key (1, 2) without value    it does no longer
    marker of partition 1                 every key of the partition that is known is asked: its row is to be read again

Keys are those of events, in Avro. All keys of one Cassandra partition are a group, named by the partition's own key. A
small group is one value in the store; a large one is spread over pages by a hash, which grow in number one by one
(linear hashing: Litwin 1980). What a marker asks of a large group or of the whole table is done in portions, over as
many batches as it takes; it lies in the store until then.

A key that was asked stays until its record comes. If none does, it is asked again, after longer and longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, Protocol
from zlib import crc32

from helenus_connector.state.store.calendar import Calendar
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_connector.state.store.packing import pack_items, unpack_items

_VERSION = b"\1"
_OF_KEYS = b"\2"
"""Of groups and pages: entries of version 1 have no `later`."""
_PAGE = 100  # keys, when a page is divided
_ENTRY = Struct(">16sqqBI")  # as _Entry
_ENTRY_1 = Struct(">16sqqB")
_WORK = b"w"
_KNOWN = b"n"
_NUMBER = Struct(">Q")
_GROUP, _PAGE_OF = b"g", b"p"
_NEVER = -1
_ASKED_AGAIN_S = 60
_MOST_LATER = (1 << 32) - 1
_MOST_DOUBLED = 11  # 60 s doubled so often is more than a day
_PARTS = Struct(">I")


class KeyReport(NamedTuple):
    """What a record says, in the order of the topic. `group` is the key of its partition, `name` that of the row;
    `at` is its place, 16 bytes that compare as offsets do.

    A record `lives` or not, and `expires` in s since the epoch. A marker has a `scope`: `partition`, `range` with
    `bounds` as `RangeTest` takes them, or `table`, which has no group. Where markers lie on a topic of their own, `at`
    is None: all that is known by then came before it.
    """

    group: bytes
    name: bytes
    at: bytes | None
    lives: bool = False
    expires: int | None = None
    scope: str | None = None
    bounds: bytes | None = None


class RangeTest(Protocol):
    """Whether a key, as an event has it, lies within the bounds of a range."""

    def __call__(self, name: bytes, bounds: bytes) -> bool: ...


@dataclass(slots=True)
class _Entry:
    """Of a live key: where its record is, when it expires, for when it is in the calendar, how often it was asked.
    `later`: for how long after `expires` a record of before had it live, as that of a column that ends sooner does not
    say when the row does.
    """

    at: bytes
    expires: int = _NEVER
    armed: int = _NEVER
    asked: int = 0
    later: int = 0


@dataclass(slots=True)
class _Group:
    """The pages of a group; `parts` is how many there are, 0 if the group itself is the page."""

    parts: int = 0
    pages: dict[int, dict[bytes, _Entry]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    is_new: bool = True


@dataclass(slots=True)
class IndexCounts:
    """What a batch did: keys that came to live and that live no longer; keys that were asked, and why; how many markers
    are not done. `known` is how many keys live after it,
    `waiting` how many times are noted at which one expires, or is asked again.
    """

    added: int = 0
    removed: int = 0
    expired: int = 0
    deleted: int = 0
    repeated: int = 0
    working: int = 0
    known: int = 0
    waiting: int = 0


class KeyIndex:
    """The index of one place in one batch, at the batch's time `now`, s since the epoch. At most about `most` keys are
    asked. What it asks depends on the store, what is said and `now` alone.
    """

    def __init__(self, store: KeyedStore, now: float, within: RangeTest, most: int = 20_000) -> None:
        self._store = store
        self._now = int(now)
        self._within = within
        self._most = most
        self._calendar = Calendar(store)
        self._groups: dict[bytes, _Group] = {}
        self._arm: dict[int, list[bytes]] = {}
        self._works: list[list[bytes]] = []
        self.asked: dict[bytes, bytes] = {}
        """Keys that were asked, and the group of each."""
        self.counts = IndexCounts()

    def take(self, said: Iterable[KeyReport]) -> None:
        """Do a batch: first what records say, in order, then what markers and times ask. Call it once."""
        work, known = self._store.get_many([_WORK, _KNOWN])
        self.counts.known = before = 0 if known is None else _NUMBER.unpack_from(known, 1)[0]
        self._works = [] if work is None else [unpack_items(one) for one in unpack_items(work, 1)]
        found = list(said)
        self._load({one.group for one in found if one.scope != "table"}, found)
        for one in found:
            if one.scope is None:
                self._record(one)
            else:
                self._works.append([one.scope.encode(), one.group, one.bounds or b"", one.at or b"", _PARTS.pack(0)])
        self._work()
        self._due()
        self._calendar.add(self._arm)
        self.counts.known += self.counts.added - self.counts.removed
        values = {} if self.counts.known == before else {_KNOWN: _VERSION + _NUMBER.pack(self.counts.known)}
        self._save(values, is_working=work is not None)

    def next_due(self) -> float | None:
        """When the place is to be looked at without a record, s since the epoch; None: not at all."""
        return float(self._now) if self._works else self._calendar.next_due()

    def _record(self, one: KeyReport) -> None:
        group = self._groups[one.group]
        number = _page_of(one.name, group.parts)
        page = group.pages[number]
        entry = page.get(one.name)
        if not one.lives:
            if entry is not None:
                del page[one.name]
                group.changed.add(number)
                self.counts.removed += 1
            return
        group.changed.add(number)
        at, expires = one.at or b"", _NEVER if one.expires is None else one.expires
        if entry is None:
            entry = page[one.name] = _Entry(at, expires)
            self.counts.added += 1
        else:
            last = _NEVER if entry.expires == _NEVER else entry.expires + entry.later
            if expires == _NEVER and last > self._now:
                expires = last
            entry.later = 0 if expires == _NEVER else min(max(0, last - expires), _MOST_LATER)
            entry.at, entry.expires, entry.asked = at, expires, 0
        self._armed(one.group, one.name, entry, expires)
        if len(page) > _PAGE * (1 if group.parts else 2):
            self._divide(one.group, group)

    def _armed(self, group: bytes, name: bytes, entry: _Entry, when: int) -> None:
        """Have an entry in the calendar at that time, or before it: then it is put there again."""
        if when == _NEVER or (entry.armed != _NEVER and entry.armed <= when):
            return
        entry.armed = when
        self._arm.setdefault(when, []).append(_PARTS.pack(len(group)) + group + name)

    def _ask(self, group: bytes, name: bytes, entry: _Entry, why: str) -> None:
        self.asked[name] = group
        setattr(self.counts, why, getattr(self.counts, why) + 1)
        wait = _ASKED_AGAIN_S << min(entry.asked, _MOST_DOUBLED)
        entry.asked = min(entry.asked + 1, 255)
        entry.armed = _NEVER
        self._armed(group, name, entry, self._now + wait)

    def _due(self) -> None:
        """Ask what expired, and what was asked and has no record yet."""
        left = self._most - len(self.asked)
        items = self._calendar.take_due(self._now, left) if left > 0 else []
        places = []
        for item in items:
            (size,) = _PARTS.unpack_from(item)
            places.append((item[4 : 4 + size], item[4 + size :]))
        self._load({group for group, _ in places}, [KeyReport(group, name, None) for group, name in places])
        for name_of_group, name in places:
            group = self._groups[name_of_group]
            number = _page_of(name, group.parts)
            entry = group.pages[number].get(name)
            if entry is None or entry.armed == _NEVER or entry.armed > self._now or name in self.asked:
                continue  # it lives no longer, or is there another time
            entry.armed = _NEVER
            group.changed.add(number)
            if entry.asked:
                self._ask(name_of_group, name, entry, "repeated")
            elif entry.expires != _NEVER and entry.expires <= self._now:
                self._ask(name_of_group, name, entry, "expired")
            else:
                self._armed(name_of_group, name, entry, entry.expires)

    def _work(self) -> None:
        """Go on with markers, the oldest first."""
        while self._works and len(self.asked) < self._most:
            scope, name, bounds, at, start = self._works[0]
            if scope == b"table":
                if not self._truncate(at):
                    break
            elif (page := self._delete(name, bounds, at, _PARTS.unpack(start)[0])) is not None:
                self._works[0][4] = _PARTS.pack(page)
                break
            self._works.pop(0)
        self.counts.working = len(self._works)

    def _delete(self, name: bytes, bounds: bytes, at: bytes, page: int) -> int | None:
        """Ask a group's keys, from a page on; None if all are, else the page to go on from."""
        self._load({name}, ())
        group = self._groups[name]
        while page < max(1, group.parts):
            if len(self.asked) >= self._most:
                return page
            if page not in group.pages:
                self._load_pages([(name, page)])
            self._ask_page(name, group, page, at, bounds)
            page += 1
        return None

    def _ask_page(self, name: bytes, group: _Group, page: int, at: bytes, bounds: bytes = b"") -> None:
        for key, entry in group.pages[page].items():
            if (at and entry.at >= at) or key in self.asked:
                continue
            if bounds and not self._within(key, bounds):
                continue
            group.changed.add(page)
            self._ask(name, key, entry, "deleted")

    def _truncate(self, at: bytes) -> bool:
        """Ask the keys of the whole place that came before a marker, and were not asked for it yet. Each time from the
        first on: of those that were asked, most are gone by then.
        """
        some: list[bytes] = []
        for key in self._store.all_keys():
            if key[:1] == _GROUP:
                some.append(key[1:])
                if len(some) == _PAGE:
                    if not self._truncate_groups(some, at):
                        return False
                    some = []
        new = [name for name, group in self._groups.items() if group.is_new]
        return self._truncate_groups(some, at) and self._truncate_groups(new, at)

    def _truncate_groups(self, names: list[bytes], at: bytes) -> bool:
        self._load(set(names), ())
        for name in names:
            group = self._groups[name]
            for page in range(max(1, group.parts)):
                if len(self.asked) >= self._most:
                    return False
                if page not in group.pages:
                    self._load_pages([(name, page)])
                self._ask_page_once(name, group, page, at)
            if not group.changed and not group.is_new:
                del self._groups[name]  # there may be millions
        return True

    def _ask_page_once(self, name: bytes, group: _Group, page: int, at: bytes) -> None:
        for key, entry in group.pages[page].items():
            if (at and entry.at >= at) or entry.asked:
                continue
            group.changed.add(page)
            self._ask(name, key, entry, "deleted")

    def _load(self, names: set[bytes], said: Iterable[KeyReport]) -> None:
        """Have these groups at hand, and the pages of what is said."""
        wanted = sorted(names - self._groups.keys())
        for name, value in zip(wanted, self._store.get_many([_GROUP + name for name in wanted]), strict=True):
            self._groups[name] = _group(value)
        places = {
            (one.group, page)
            for one in said
            if one.scope is None
            and (group := self._groups[one.group]).parts
            and (page := _page_of(one.name, group.parts)) not in group.pages
        }
        self._load_pages(sorted(places))

    def _load_pages(self, places: list[tuple[bytes, int]]) -> None:
        values = self._store.get_many([_page_name(*place) for place in places])
        for (name, page), value in zip(places, values, strict=True):
            self._groups[name].pages[page] = {} if value is None else _entries(value, 1)

    def _divide(self, name: bytes, group: _Group) -> None:
        """One page more, with some of the keys of an older one."""
        if not group.parts:
            group.parts = 1
        old, new = group.parts - _floor(group.parts), group.parts
        if old not in group.pages:
            self._load_pages([(name, old)])
        group.parts += 1
        page = group.pages[old]
        group.pages[new] = {key: page.pop(key) for key in list(page) if _page_of(key, group.parts) == new}
        group.changed |= {old, new}
        group.is_new = True

    def _save(self, values: dict[bytes, bytes], is_working: bool) -> None:
        removed: list[bytes] = []
        for name, group in self._groups.items():
            if not group.parts:
                if 0 in group.changed:
                    page = group.pages[0]
                    if page:
                        values[_GROUP + name] = _OF_KEYS + _PARTS.pack(0) + _packed(page)
                    else:
                        removed.append(_GROUP + name)
                continue
            if group.is_new:
                values[_GROUP + name] = _OF_KEYS + _PARTS.pack(group.parts)
            for number in group.changed:
                page = group.pages[number]
                if page:
                    values[_page_name(name, number)] = _OF_KEYS + _packed(page)
                else:
                    removed.append(_page_name(name, number))
        if self._works:
            values[_WORK] = _VERSION + pack_items(map(pack_items, self._works))
        elif is_working:
            removed.append(_WORK)
        self._store.put_many(values)
        self._store.remove_many(removed)
        self._calendar.save()
        self.counts.waiting = self._calendar.count_waiting()


def _floor(parts: int) -> int:
    """The largest power of two that is not more."""
    return 1 << (parts.bit_length() - 1)


def _page_of(name: bytes, parts: int) -> int:
    """The page of a key among so many."""
    if parts < 2:
        return 0
    code, half = crc32(name), _floor(parts)
    number = code % (half * 2)
    return number if number < parts else code % half


def _page_name(group: bytes, page: int) -> bytes:
    return _PAGE_OF + _PARTS.pack(page) + group


def _group(value: bytes | None) -> _Group:
    if value is None:
        return _Group(0, {0: {}})
    (parts,) = _PARTS.unpack_from(value, 1)
    return _Group(parts, {} if parts else {0: _entries(value, 5)}, is_new=False)


def _packed(page: dict[bytes, _Entry]) -> bytes:
    pack = _ENTRY.pack
    return pack_items(pack(e.at, e.expires, e.armed, e.asked, e.later) + name for name, e in page.items())


def _entries(value: bytes, at: int) -> dict[bytes, _Entry]:
    if value[:1] > _OF_KEYS:
        raise ValueError(f"keys of version {value[0]} in the state, where {_OF_KEYS[0]} is known")
    entry = _ENTRY if value[:1] == _OF_KEYS else _ENTRY_1
    unpack, size = entry.unpack_from, entry.size
    return {item[size:]: _Entry(*unpack(item)) for item in unpack_items(value, at)}
