"""The live keys of one partition of a data topic: the index of `state=keys`.

    record of key (1, 2), expires 60      the key is live; it is looked at again at 60
    record of key (1, 2) without value    it is no longer live
    marker of partition 1                 a read of the row is requested for every live key of the partition

Keys are those of events, in Avro. All keys of one Cassandra partition are a group, named by the partition's own key. A
small group is one value in the store; a large one is spread over pages by a hash, and pages are added one by one
(`linear_hashing`). The reads for a marker of a large group or of the whole table are requested in portions,
over as many batches as it takes; until then the marker is in the store.

A key whose read was requested stays until its record comes. If none does, the read is requested again, at intervals
that double.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, Protocol

from helenus_connector.state.store.calendar import Calendar
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_connector.state.store.linear_hashing import page_of_key, parent_page, split_page
from helenus_connector.state.store.packing import pack_items, unpack_items

_VERSION = b"\1"
_ENTRIES_VERSION = b"\2"
"""The version of groups and pages. Entries of version 1 have no `extended_s`."""
_PAGE_KEYS = 100
"""A page is added when one has more keys: its value stays at some kB."""
_ENTRY = Struct(">16sqqBI")  # as _Entry
_ENTRY_V1 = Struct(">16sqqB")
_MARKERS_KEY = b"w"
_COUNT_KEY = b"n"
_UINT64 = Struct(">Q")
_GROUP_PREFIX, _PAGE_PREFIX = b"g", b"p"
_NEVER = -1
_FIRST_RETRY_S = 60
_MAX_EXTENDED_S = (1 << 32) - 1
_MAX_DOUBLINGS = 11  # 60 s doubled so often is more than a day
_UINT32 = Struct(">I")


class KeyReport(NamedTuple):
    """A record's report of a key, in the order of the topic. `group` is the key of its partition, `name` that of the
    row; `offset` is 16 bytes that compare as offsets do.

    A record `is_live` or not, and `expires` in s since the epoch. A marker has a `scope`: `partition`, `range` with
    `bounds` as `RangeTest` takes them, or `table`, which has no group. Where markers lie on a topic of their own,
    `offset` is None: all keys that are indexed by then came before it.
    """

    group: bytes
    name: bytes
    offset: bytes | None
    is_live: bool = False
    expires: int | None = None
    scope: str | None = None
    bounds: bytes | None = None


class RangeTest(Protocol):
    """Tests whether a key, as an event has it, lies within the bounds of a range."""

    def __call__(self, name: bytes, bounds: bytes) -> bool: ...


@dataclass(slots=True)
class _Entry:
    """A live key: its record's offset, when it expires, the time at which it is in the calendar, and how many reads
    were requested since its record. `extended_s`: for how long after `expires` an earlier record had it live, as the
    record of a column that ends sooner does not say when the row does.
    """

    offset: bytes
    expires: int = _NEVER
    scheduled_at: int = _NEVER
    requests: int = 0
    extended_s: int = 0


@dataclass(slots=True)
class _Group:
    """The pages of a group; `page_count` is 0 if the group itself is the page. `is_unsaved`: the store has another page
    count, or none.
    """

    page_count: int = 0
    pages: dict[int, dict[bytes, _Entry]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    is_unsaved: bool = True


@dataclass(slots=True)
class IndexCounts:
    """The counts of a batch: keys that came to live and that are no longer live; keys whose reads were requested, by
    reason; markers that are not finished. `live` is how many keys are live after it, `waiting` how many times are in
    the calendar at which one expires, or is requested again.
    """

    added: int = 0
    removed: int = 0
    expired: int = 0
    deleted: int = 0
    repeated: int = 0
    pending_markers: int = 0
    live: int = 0
    waiting: int = 0


class KeyIndex:
    """The index of one topic partition in one batch, at the batch's time `now`, s since the epoch. Reads of about
    `max_requests` keys at most are requested. Which ones depends on the store, the reports and `now` alone.
    """

    def __init__(self, store: KeyedStore, now: float, is_within: RangeTest, max_requests: int = 20_000) -> None:
        self._store = store
        self._now = int(now)
        self._is_within = is_within
        self._max_requests = max_requests
        self._calendar = Calendar(store)
        self._groups: dict[bytes, _Group] = {}
        self._scheduled: dict[int, list[bytes]] = {}
        self._pending_markers: list[list[bytes]] = []
        self.requested_keys: dict[bytes, bytes] = {}
        """Keys whose rows are to be read, and the group of each."""
        self.counts = IndexCounts()

    def take(self, reports: Iterable[KeyReport]) -> None:
        """Process a batch: first the reports of records, in order, then the requests of markers and of times. Call it
        once.
        """
        marker_bytes, count_bytes = self._store.get_many([_MARKERS_KEY, _COUNT_KEY])
        self.counts.live = count_before = 0 if count_bytes is None else _UINT64.unpack_from(count_bytes, 1)[0]
        self._pending_markers = (
            [] if marker_bytes is None else [unpack_items(marker) for marker in unpack_items(marker_bytes, 1)]
        )
        report_list = list(reports)
        self._load_groups({report.group for report in report_list if report.scope != "table"}, report_list)
        for report in report_list:
            if report.scope is None:
                self._index_record(report)
            else:
                self._pending_markers.append(
                    [report.scope.encode(), report.group, report.bounds or b"", report.offset or b"", _UINT32.pack(0)]
                )
        self._apply_markers()
        self._request_due()
        self._calendar.add(self._scheduled)
        self.counts.live += self.counts.added - self.counts.removed
        values = {} if self.counts.live == count_before else {_COUNT_KEY: _VERSION + _UINT64.pack(self.counts.live)}
        self._save(values, had_markers=marker_bytes is not None)

    def next_due(self) -> float | None:
        """Return when the partition is to be looked at without a record, s since the epoch; None: not at all."""
        return float(self._now) if self._pending_markers else self._calendar.next_due()

    def _index_record(self, report: KeyReport) -> None:
        """Add, change or remove the key of a record."""
        group = self._groups[report.group]
        page_number = page_of_key(report.name, group.page_count)
        page = group.pages[page_number]
        entry = page.get(report.name)
        if not report.is_live:
            if entry is not None:
                del page[report.name]
                group.changed.add(page_number)
                self.counts.removed += 1
            return
        group.changed.add(page_number)
        offset, expires = report.offset or b"", _NEVER if report.expires is None else report.expires
        if entry is None:
            entry = page[report.name] = _Entry(offset, expires)
            self.counts.added += 1
        else:
            last_expiry = _NEVER if entry.expires == _NEVER else entry.expires + entry.extended_s
            if expires == _NEVER and last_expiry > self._now:
                expires = last_expiry
            entry.extended_s = 0 if expires == _NEVER else min(max(0, last_expiry - expires), _MAX_EXTENDED_S)
            entry.offset, entry.expires, entry.requests = offset, expires, 0
        self._schedule(report.group, report.name, entry, expires)
        if len(page) > _PAGE_KEYS * (1 if group.page_count else 2):
            self._add_page(report.group, group)

    def _schedule(self, group: bytes, name: bytes, entry: _Entry, due_at: int) -> None:
        """Put an entry into the calendar, unless it is there for that time or earlier."""
        if due_at == _NEVER or (entry.scheduled_at != _NEVER and entry.scheduled_at <= due_at):
            return
        entry.scheduled_at = due_at
        self._scheduled.setdefault(due_at, []).append(_UINT32.pack(len(group)) + group + name)

    def _request_read(self, group: bytes, name: bytes, entry: _Entry, reason: str) -> None:
        """Request a read of a key's row, and schedule the next one, in case no record comes."""
        self.requested_keys[name] = group
        setattr(self.counts, reason, getattr(self.counts, reason) + 1)
        retry_s = _FIRST_RETRY_S << min(entry.requests, _MAX_DOUBLINGS)
        entry.requests = min(entry.requests + 1, 255)
        entry.scheduled_at = _NEVER
        self._schedule(group, name, entry, self._now + retry_s)

    def _request_due(self) -> None:
        """Request reads of the keys that expired, and of those that were requested and have no record yet."""
        limit = self._max_requests - len(self.requested_keys)
        items = self._calendar.take_due(self._now, limit) if limit > 0 else []
        due_keys = []
        for item in items:
            (size,) = _UINT32.unpack_from(item)
            due_keys.append((item[4 : 4 + size], item[4 + size :]))
        self._load_groups({group for group, _ in due_keys}, [KeyReport(group, name, None) for group, name in due_keys])
        for group_name, name in due_keys:
            group = self._groups[group_name]
            page_number = page_of_key(name, group.page_count)
            entry = group.pages[page_number].get(name)
            if (
                entry is None
                or entry.scheduled_at == _NEVER
                or entry.scheduled_at > self._now
                or name in self.requested_keys
            ):
                continue  # it is no longer live, or in the calendar for another time
            entry.scheduled_at = _NEVER
            group.changed.add(page_number)
            if entry.requests:
                self._request_read(group_name, name, entry, "repeated")
            elif entry.expires != _NEVER and entry.expires <= self._now:
                self._request_read(group_name, name, entry, "expired")
            else:
                self._schedule(group_name, name, entry, entry.expires)

    def _apply_markers(self) -> None:
        """Request the reads of markers, the oldest first."""
        while self._pending_markers and len(self.requested_keys) < self._max_requests:
            scope, name, bounds, offset, first_page = self._pending_markers[0]
            if scope == b"table":
                if not self._request_all(offset):
                    break
            elif (next_page := self._request_group(name, bounds, offset, _UINT32.unpack(first_page)[0])) is not None:
                self._pending_markers[0][4] = _UINT32.pack(next_page)
                break
            self._pending_markers.pop(0)
        self.counts.pending_markers = len(self._pending_markers)

    def _request_group(self, name: bytes, bounds: bytes, offset: bytes, page: int) -> int | None:
        """Request reads of a group's keys, from a page on. Return the page to go on from, None if all are requested."""
        self._load_groups({name}, ())
        group = self._groups[name]
        while page < max(1, group.page_count):
            if len(self.requested_keys) >= self._max_requests:
                return page
            if page not in group.pages:
                self._load_pages([(name, page)])
            self._request_page(name, group, page, offset, bounds)
            page += 1
        return None

    def _request_page(self, name: bytes, group: _Group, page: int, offset: bytes, bounds: bytes = b"") -> None:
        """Request reads of a page's keys that came before a marker, and are within its bounds."""
        for key, entry in group.pages[page].items():
            if (offset and entry.offset >= offset) or key in self.requested_keys:
                continue
            if bounds and not self._is_within(key, bounds):
                continue
            group.changed.add(page)
            self._request_read(name, key, entry, "deleted")

    def _request_all(self, offset: bytes) -> bool:
        """Request reads of all keys that came before a marker, and were not requested for it yet. Return whether all
        are. Each call starts from the first key: most of those that were requested are gone by then.
        """
        names: list[bytes] = []
        for key in self._store.all_keys():
            if key[:1] == _GROUP_PREFIX:
                names.append(key[1:])
                if len(names) == _PAGE_KEYS:
                    if not self._request_groups(names, offset):
                        return False
                    names = []
        new_names = [name for name, group in self._groups.items() if group.is_unsaved]
        return self._request_groups(names, offset) and self._request_groups(new_names, offset)

    def _request_groups(self, names: list[bytes], offset: bytes) -> bool:
        """Request reads of these groups' keys, as `_request_all` does."""
        self._load_groups(set(names), ())
        for name in names:
            group = self._groups[name]
            for page in range(max(1, group.page_count)):
                if len(self.requested_keys) >= self._max_requests:
                    return False
                if page not in group.pages:
                    self._load_pages([(name, page)])
                self._request_page_once(name, group, page, offset)
            if not group.changed and not group.is_unsaved:
                del self._groups[name]  # there may be millions
        return True

    def _request_page_once(self, name: bytes, group: _Group, page: int, offset: bytes) -> None:
        """Request reads of a page's keys, but for those that were requested and have no record yet."""
        for key, entry in group.pages[page].items():
            if (offset and entry.offset >= offset) or entry.requests:
                continue
            group.changed.add(page)
            self._request_read(name, key, entry, "deleted")

    def _load_groups(self, names: set[bytes], reports: Iterable[KeyReport]) -> None:
        """Load these groups, and the pages of these reports' keys."""
        missing = sorted(names - self._groups.keys())
        for name, value in zip(missing, self._store.get_many([_GROUP_PREFIX + name for name in missing]), strict=True):
            self._groups[name] = _load_group(value)
        pages = {
            (report.group, page)
            for report in reports
            if report.scope is None
            and (group := self._groups[report.group]).page_count
            and (page := page_of_key(report.name, group.page_count)) not in group.pages
        }
        self._load_pages(sorted(pages))

    def _load_pages(self, pages: list[tuple[bytes, int]]) -> None:
        values = self._store.get_many([_page_name(*page_key) for page_key in pages])
        for (name, page), value in zip(pages, values, strict=True):
            self._groups[name].pages[page] = {} if value is None else _unpack_entries(value, 1)

    def _add_page(self, name: bytes, group: _Group) -> None:
        """Add one page, with some of the keys of an older one."""
        new_number = max(1, group.page_count)  # the group itself was page 0
        parent_number = parent_page(new_number)
        if parent_number not in group.pages:
            self._load_pages([(name, parent_number)])
        group.pages[new_number] = split_page(group.pages[parent_number], new_number)
        group.page_count = new_number + 1
        group.changed |= {parent_number, new_number}
        group.is_unsaved = True

    def _save(self, values: dict[bytes, bytes], had_markers: bool) -> None:
        """Write all that changed, with these values."""
        removed: list[bytes] = []
        for name, group in self._groups.items():
            if not group.page_count:
                if 0 in group.changed:
                    page = group.pages[0]
                    if page:
                        values[_GROUP_PREFIX + name] = _ENTRIES_VERSION + _UINT32.pack(0) + _pack_entries(page)
                    else:
                        removed.append(_GROUP_PREFIX + name)
                continue
            if group.is_unsaved:
                values[_GROUP_PREFIX + name] = _ENTRIES_VERSION + _UINT32.pack(group.page_count)
            for number in group.changed:
                page = group.pages[number]
                if page:
                    values[_page_name(name, number)] = _ENTRIES_VERSION + _pack_entries(page)
                else:
                    removed.append(_page_name(name, number))
        if self._pending_markers:
            values[_MARKERS_KEY] = _VERSION + pack_items(map(pack_items, self._pending_markers))
        elif had_markers:
            removed.append(_MARKERS_KEY)
        self._store.put_many(values)
        self._store.remove_many(removed)
        self._calendar.save()
        self.counts.waiting = self._calendar.count_waiting()


def _page_name(group: bytes, page: int) -> bytes:
    return _PAGE_PREFIX + _UINT32.pack(page) + group


def _load_group(value: bytes | None) -> _Group:
    if value is None:
        return _Group(0, {0: {}})
    (page_count,) = _UINT32.unpack_from(value, 1)
    return _Group(page_count, {} if page_count else {0: _unpack_entries(value, 5)}, is_unsaved=False)


def _pack_entries(page: dict[bytes, _Entry]) -> bytes:
    pack = _ENTRY.pack
    return pack_items(
        pack(entry.offset, entry.expires, entry.scheduled_at, entry.requests, entry.extended_s) + name
        for name, entry in page.items()
    )


def _unpack_entries(value: bytes, offset: int) -> dict[bytes, _Entry]:
    if value[:1] > _ENTRIES_VERSION:
        raise ValueError(f"keys of version {value[0]} in the state, where {_ENTRIES_VERSION[0]} is known")
    entry_struct = _ENTRY if value[:1] == _ENTRIES_VERSION else _ENTRY_V1
    unpack, size = entry_struct.unpack_from, entry_struct.size
    return {item[size:]: _Entry(*unpack(item)) for item in unpack_items(value, offset)}
