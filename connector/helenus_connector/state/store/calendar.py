"""A calendar of what is due when, by second, in a store: items that wait cost disk and no memory.

    calendar.add(1700000060, [b"key"])     1700000060 // 3600 → its hour → its second → the items, in chunks
    calendar.due(1700000061, 1000)         [b"key"]

An hour's value lists its seconds, the root lists the hours: an item of the year 2040 costs what one of tomorrow does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct

from helenus_connector.interfaces.store import Store
from helenus_connector.state.store.packing import pack_items, unpack_items
from helenus_connector.state.store.versions import check_version

_ROOT_KEY = b"cr"
_COUNT_KEY = b"cn"
_VERSION = b"\1"
_HOUR_S = 3600
_CHUNK_ITEMS = 200
"""Items to a value: a second with millions of items is read and written in parts."""
_SECOND = Struct(">HIH")  # within its hour; chunks; items in the last of them
_HOUR_NUMBER = Struct(">I")
_LAST_S = (1 << 40) - 1  # chunks have five bytes for their second
_WAITING_COUNT = Struct(">BQ")  # a version, and how many items wait


@dataclass(slots=True)
class _Hour:
    """The seconds of one hour that have items: of each, by its number within the hour, how many chunks it has, and how
    many items are in the last.
    """

    seconds: dict[int, tuple[int, int]]
    is_changed: bool = False


@dataclass(slots=True)
class Calendar:
    """The calendar of one topic partition. What changed is in the store after `save`, which a batch calls once.

    Times are s since the epoch, whole ones; items are bytes. An item may be there more than once.
    """

    store: Store
    _hours: dict[int, _Hour] = field(default_factory=dict)
    _hour_list: list[int] | None = None
    _is_hour_list_changed: bool = False
    _added: dict[int, list[bytes]] = field(default_factory=dict)
    _waiting_delta: int = 0
    _waiting_count: int | None = None

    def add(self, items: Mapping[int, Iterable[bytes]]) -> None:
        """Add items that are due at these times. Those of the past are due at once."""
        for second, new_items in items.items():
            added = self._added.setdefault(min(max(0, second), _LAST_S), [])
            count_before = len(added)
            added.extend(new_items)
            self._waiting_delta += len(added) - count_before

    def take_due(self, now: float, limit: int) -> list[bytes]:
        """Remove and return due items: about `limit`, the oldest first, a chunk more at most."""
        self._write_added()
        items: list[bytes] = []
        for hour in list(self._load_hour_list()):
            if hour * _HOUR_S > now or len(items) >= limit:
                break
            seconds = self._load_hour(hour).seconds
            for second in sorted(seconds):
                if hour * _HOUR_S + second > now:
                    break
                items += self._take_chunks(hour, second, limit - len(items))
                if len(items) >= limit:
                    break
            if not seconds:
                self._load_hour_list().remove(hour)
                self._is_hour_list_changed = True
        return items

    def next_due(self) -> int | None:
        """Return when the next item is due; None if there is none."""
        first = self._load_hour_list()[:1]
        times = [first[0] * _HOUR_S + min(self._load_hour(first[0]).seconds)] if first else []
        return min([*times, *self._added], default=None)

    def count_waiting(self) -> int:
        """Return how many items wait."""
        if self._waiting_count is None:
            (value,) = self.store.get_many([_COUNT_KEY])
            self._waiting_count = 0 if value is None else _WAITING_COUNT.unpack(value)[1]
        return self._waiting_count + self._waiting_delta

    def save(self) -> None:
        """Write all that changed."""
        self._write_added()
        if self._waiting_delta:
            self._waiting_count, self._waiting_delta = max(0, self.count_waiting()), 0
            self.store.put_many({_COUNT_KEY: _WAITING_COUNT.pack(1, self._waiting_count)})
        changed_hours = {hour: entry for hour, entry in self._hours.items() if entry.is_changed}
        values = {
            _hour_key(hour): _VERSION + _pack_seconds(entry.seconds)
            for hour, entry in changed_hours.items()
            if entry.seconds
        }
        if self._is_hour_list_changed:
            values[_ROOT_KEY] = _VERSION + b"".join(map(_HOUR_NUMBER.pack, self._load_hour_list()))
        self.store.put_many(values)
        self.store.remove_many([_hour_key(hour) for hour, entry in changed_hours.items() if not entry.seconds])
        for entry in changed_hours.values():
            entry.is_changed = False
        self._is_hour_list_changed = False

    def _load_hour_list(self) -> list[int]:
        """Return the hours that have items, in order."""
        if self._hour_list is None:
            (value,) = self.store.get_many([_ROOT_KEY])
            check_version(value or b"", _VERSION, "a calendar")
            self._hour_list = [] if value is None else [hour for (hour,) in _HOUR_NUMBER.iter_unpack(value[1:])]
        return self._hour_list

    def _load_hour(self, hour: int) -> _Hour:
        """Return the seconds of an hour, read from the store at the first call."""
        if hour not in self._hours:
            (value,) = self.store.get_many([_hour_key(hour)])
            self._hours[hour] = _Hour(_unpack_seconds(value))
        return self._hours[hour]

    def _write_added(self) -> None:
        """Write added items into chunks."""
        added, self._added = self._added, {}
        if not added:
            return
        listed = self._load_hour_list()
        missing_hours = {second // _HOUR_S for second in added} - self._hours.keys()
        names = sorted(missing_hours)
        for hour, value in zip(names, self.store.get_many([_hour_key(hour) for hour in names]), strict=True):
            self._hours[hour] = _Hour(_unpack_seconds(value))
        new_hours = {second // _HOUR_S for second in added}.difference(listed)
        if new_hours:
            self._hour_list = sorted([*listed, *new_hours])
            self._is_hour_list_changed = True
        # The last chunk of each second that has room.
        last_chunks: dict[int, tuple[int, int]] = {}
        for second in added:
            chunks, size = self._hours[second // _HOUR_S].seconds.get(second % _HOUR_S, (0, _CHUNK_ITEMS))
            last_chunks[second] = chunks, size
        open_chunks = [(second, chunks - 1) for second, (chunks, size) in last_chunks.items() if size < _CHUNK_ITEMS]
        chunk_values = self.store.get_many([_chunk_key(*chunk) for chunk in open_chunks])
        open_items = {
            second: _unpack_chunk(value) for (second, _), value in zip(open_chunks, chunk_values, strict=True)
        }
        values: dict[bytes, bytes] = {}
        for second, items in added.items():
            chunks, _ = last_chunks[second]
            if second in open_items:
                items, chunks = [*open_items[second], *items], chunks - 1
            for chunk_items in _split_chunks(items):
                values[_chunk_key(second, chunks)] = _VERSION + pack_items(chunk_items)
                chunks, size = chunks + 1, len(chunk_items)
            entry = self._hours[second // _HOUR_S]
            entry.seconds[second % _HOUR_S] = chunks, size
            entry.is_changed = True
        self.store.put_many(values)

    def _take_chunks(self, hour: int, second: int, limit: int) -> list[bytes]:
        """Take whole chunks of a second, the last ones first."""
        entry = self._load_hour(hour)
        chunks, _ = entry.seconds[second]
        count = min(chunks, -(-limit // _CHUNK_ITEMS))
        names = [_chunk_key(hour * _HOUR_S + second, n) for n in range(chunks - count, chunks)]
        items = [item for value in self.store.get_many(names) for item in _unpack_chunk(value)]
        self.store.remove_many(names)
        self._waiting_delta -= len(items)
        if count == chunks:
            del entry.seconds[second]
        else:
            entry.seconds[second] = chunks - count, _CHUNK_ITEMS
        entry.is_changed = True
        return items


def _hour_key(hour: int) -> bytes:
    return b"ch" + hour.to_bytes(4, "big")


def _chunk_key(second: int, number: int) -> bytes:
    return b"cs" + second.to_bytes(5, "big") + number.to_bytes(4, "big")


def _unpack_chunk(value: bytes | None) -> list[bytes]:
    return [] if value is None else unpack_items(value, 1)


def _pack_seconds(seconds: Mapping[int, tuple[int, int]]) -> bytes:
    return b"".join(_SECOND.pack(second, *chunks) for second, chunks in seconds.items())


def _unpack_seconds(value: bytes | None) -> dict[int, tuple[int, int]]:
    return {} if value is None else {s: (chunks, size) for s, chunks, size in _SECOND.iter_unpack(value[1:])}


def _split_chunks(items: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(items), _CHUNK_ITEMS):
        yield items[start : start + _CHUNK_ITEMS]
