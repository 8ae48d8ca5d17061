"""The live keys of one partition of a data topic: the index of `state=keys`.

    record of key (1, 2), expires 60      the key is live; it is looked at again at 60
    record of key (1, 2) without value    it is no longer live
    marker of partition 1                 a read of the row is requested for every live key of the partition

Keys are those of events, in Avro. All keys of one Cassandra partition are a group, named by the partition's own key
(`_live_keys`). The reads for a marker of a large group or of the whole table are requested in portions, over as many
batches as it takes; until then the marker is in the store.

A key whose read was requested stays until its record comes. If none does, the read is requested again, at intervals
that double: first after `first_retry_s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, Protocol

from helenus_connector.state.keys._live_keys import NEVER, LiveKey, LiveKeys
from helenus_connector.state.store.calendar import Calendar
from helenus_connector.state.store.keyed_store import KeyedStore
from helenus_connector.state.store.packing import pack_items, unpack_items
from helenus_connector.state.store.versions import check_version

_VERSION = b"\1"
_MARKERS_KEY = b"w"
_COUNT_KEY = b"n"
_UINT64 = Struct(">Q")
FIRST_RETRY_S = 60
FIRST_RETRY_OF_ONCE_S = 3600
"""Where requests are made exactly once: none is lost, and one that comes before the record would be a second one."""
_MAX_EXTENDED_S = (1 << 32) - 1
_MAX_DOUBLINGS = 11  # 60 s doubled so often is more than a day
_UINT32 = Struct(">I")
_MAX_PENDING = 10_000
"""Markers that wait for the records to come, before it is looked which of them have come: with each batch they are
written anew.
"""


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

    def __init__(
        self,
        store: KeyedStore,
        now: float,
        is_within: RangeTest,
        max_requests: int = 20_000,
        first_retry_s: int = FIRST_RETRY_S,
    ) -> None:
        self._first_retry_s = first_retry_s
        self._store = store
        self._now = int(now)
        self._is_within = is_within
        self._max_requests = max_requests
        self._calendar = Calendar(store)
        self._keys = LiveKeys(store)
        self._scheduled: dict[int, list[bytes]] = {}
        self._pending_markers: list[list[bytes]] = []
        self.requested_keys: dict[bytes, bytes] = {}
        """Keys whose rows are to be read, and the group of each."""
        self.counts = IndexCounts()

    def take(self, reports: Iterable[KeyReport], is_behind: bool = False) -> None:
        """Process a batch: first the reports of records, in order, then the requests of markers and of times. Call it
        once. While it `is_behind`, records are to come that were there before: nothing is requested, since they may say
        that it is gone.
        """
        marker_bytes, count_bytes = self._store.get_many([_MARKERS_KEY, _COUNT_KEY])
        check_version(count_bytes or b"", _VERSION, "the number of keys")
        self.counts.live = count_before = 0 if count_bytes is None else _UINT64.unpack_from(count_bytes, 1)[0]
        self._pending_markers = (
            [] if marker_bytes is None else [unpack_items(marker) for marker in unpack_items(marker_bytes, 1)]
        )
        report_list = list(reports)
        self._keys.load(
            {report.group for report in report_list if report.scope != "table"},
            ((report.group, report.name) for report in report_list if report.scope is None),
        )
        for report in report_list:
            if report.scope is None:
                self._index_record(report)
            elif report.scope == "table" or not self._is_empty(report.group):
                self._pending_markers.append(
                    [report.scope.encode(), report.group, report.bounds or b"", report.offset or b"", _UINT32.pack(0)]
                )
        if is_behind and len(self._pending_markers) > _MAX_PENDING:
            self._drop_done_markers()
        if not is_behind:
            self._apply_markers()
        self.counts.pending_markers = len(self._pending_markers)
        if self._pending_markers:
            self._keys.keep_offsets()
        if not is_behind:
            self._request_due()
        self._calendar.add(self._scheduled)
        self.counts.live += self.counts.added - self.counts.removed
        values = {} if self.counts.live == count_before else {_COUNT_KEY: _VERSION + _UINT64.pack(self.counts.live)}
        self._save(values, had_markers=marker_bytes is not None)

    def next_due(self) -> float | None:
        """Return when the partition is to be looked at without a record, s since the epoch; None: not at all."""
        return float(self._now) if self._pending_markers else self._calendar.next_due()

    def _is_empty(self, group_name: bytes) -> bool:
        """Return whether a small group, which is loaded, has no keys."""
        group = self._keys.groups[group_name]
        return not group.page_count and not group.pages[0]

    def _drop_done_markers(self) -> None:
        """Drop the markers of partitions of which no keys are left."""
        self._keys.load({group for scope, group, *_ in self._pending_markers if scope != b"table"})
        self._pending_markers = [
            marker for marker in self._pending_markers if marker[0] == b"table" or not self._is_empty(marker[1])
        ]

    def _index_record(self, report: KeyReport) -> None:
        """Add, change or remove the key of a record."""
        group = self._keys.groups[report.group]
        page_number, page = self._keys.find_page(report.group, report.name)
        entry = page.get(report.name)
        if not report.is_live:
            if entry is not None:
                del page[report.name]
                group.changed.add(page_number)
                self.counts.removed += 1
            return
        offset, expires = report.offset or b"", NEVER if report.expires is None else report.expires
        if entry is None:
            entry = page[report.name] = LiveKey(offset, expires)
            group.changed.add(page_number)
            self.counts.added += 1
        elif expires == entry.expires == NEVER and not entry.requests:
            entry.offset = offset
            group.moved.add(page_number)
            return
        else:
            group.changed.add(page_number)
            last_expiry = NEVER if entry.expires == NEVER else entry.expires + entry.extended_s
            if expires == NEVER and last_expiry > self._now:
                expires = last_expiry
            entry.extended_s = 0 if expires == NEVER else min(max(0, last_expiry - expires), _MAX_EXTENDED_S)
            entry.offset, entry.expires, entry.requests = offset, expires, 0
        self._schedule(report.group, report.name, entry, expires)
        self._keys.split_full(report.group, page_number)

    def _schedule(self, group: bytes, name: bytes, entry: LiveKey, due_at: int) -> None:
        """Put an entry into the calendar, unless it is there for that time or earlier."""
        if due_at == NEVER or (entry.scheduled_at != NEVER and entry.scheduled_at <= due_at):
            return
        entry.scheduled_at = due_at
        self._scheduled.setdefault(due_at, []).append(_UINT32.pack(len(group)) + group + name)

    def _request_read(self, group: bytes, name: bytes, entry: LiveKey, reason: str) -> None:
        """Request a read of a key's row, and schedule the next one, in case no record comes."""
        self.requested_keys[name] = group
        setattr(self.counts, reason, getattr(self.counts, reason) + 1)
        retry_s = self._first_retry_s << min(entry.requests, _MAX_DOUBLINGS)
        entry.requests = min(entry.requests + 1, 255)
        entry.scheduled_at = NEVER
        self._schedule(group, name, entry, self._now + retry_s)

    def _request_due(self) -> None:
        """Request reads of the keys that expired, and of those that were requested and have no record yet."""
        limit = self._max_requests - len(self.requested_keys)
        items = self._calendar.take_due(self._now, limit) if limit > 0 else []
        due_keys = []
        for item in items:
            (size,) = _UINT32.unpack_from(item)
            due_keys.append((item[4 : 4 + size], item[4 + size :]))
        self._keys.load({group for group, _ in due_keys}, due_keys)
        for group_name, name in due_keys:
            page_number, page = self._keys.find_page(group_name, name)
            entry = page.get(name)
            if (
                entry is None
                or entry.scheduled_at == NEVER
                or entry.scheduled_at > self._now
                or name in self.requested_keys
            ):
                continue  # it is no longer live, or in the calendar for another time
            entry.scheduled_at = NEVER
            self._keys.groups[group_name].changed.add(page_number)
            if entry.requests:
                self._request_read(group_name, name, entry, "repeated")
            elif entry.expires != NEVER and entry.expires <= self._now:
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

    def _request_group(self, name: bytes, bounds: bytes, offset: bytes, page: int) -> int | None:
        """Request reads of a group's keys, from a page on. Return the page to go on from, None if all are requested."""
        self._keys.load({name})
        group = self._keys.groups[name]
        for number in group.page_numbers[page:]:
            if len(self.requested_keys) >= self._max_requests:
                return number
            for key, entry in self._keys.get_page(name, number).items():
                if (offset and entry.offset >= offset) or key in self.requested_keys:
                    continue
                if not bounds or self._is_within(key, bounds):
                    group.changed.add(number)
                    self._request_read(name, key, entry, "deleted")
        return None

    def _request_all(self, offset: bytes) -> bool:
        """Request reads of all keys that came before a marker, and were not requested for it yet. Return whether all
        are. Each call starts from the first key: most of those that were requested are gone by then.
        """
        for names in self._keys.saved_groups():
            if not self._request_groups(names, offset):
                return False
        new_names = [name for name, group in self._keys.groups.items() if group.is_unsaved]
        return self._request_groups(new_names, offset)

    def _request_groups(self, names: list[bytes], offset: bytes) -> bool:
        """Request reads of these groups' keys, as `_request_all` does."""
        self._keys.load(names)
        for name in names:
            group = self._keys.groups[name]
            for number in group.page_numbers:
                if len(self.requested_keys) >= self._max_requests:
                    return False
                for key, entry in self._keys.get_page(name, number).items():
                    if not (offset and entry.offset >= offset) and not entry.requests:
                        group.changed.add(number)
                        self._request_read(name, key, entry, "deleted")
            self._keys.release(name)
        return True

    def _save(self, values: dict[bytes, bytes], had_markers: bool) -> None:
        """Write all that changed, with these values."""
        removed: list[bytes] = []
        self._keys.collect_changes(values, removed)
        if self._pending_markers:
            values[_MARKERS_KEY] = _VERSION + pack_items(map(pack_items, self._pending_markers))
        elif had_markers:
            removed.append(_MARKERS_KEY)
        self._store.put_many(values)
        self._store.remove_many(removed)
        self._calendar.save()
        self.counts.waiting = self._calendar.count_waiting()
