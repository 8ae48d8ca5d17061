"""When something of a place is due: by second, in a store, so that what waits costs disk and not memory.

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

_ROOT = b"cr"
_COUNT = b"cn"
_VERSION = b"\1"
_HOUR_S = 3600
_CHUNK = 200
_SECOND = Struct(">HIH")  # within its hour; chunks; items in the last of them
_LISTED = Struct(">I")
_LAST_S = (1 << 40) - 1  # chunks have five bytes for their second
_NUMBER = Struct(">BQ")  # a version, and how many items wait


@dataclass(slots=True)
class _Hour:
    """Of each second, as the number within the hour, how many chunks it has, and how many items are in the last."""

    seconds: dict[int, tuple[int, int]]
    is_changed: bool = False


@dataclass(slots=True)
class Calendar:
    """The calendar of one place. What changed is in the store after `save`, which a batch calls once.

    Times are s since the epoch, whole ones; items are bytes. An item may be there more than once.
    """

    store: Store
    _hours: dict[int, _Hour] = field(default_factory=dict)
    _listed: list[int] | None = None
    _is_listed_anew: bool = False
    _added: dict[int, list[bytes]] = field(default_factory=dict)
    _more: int = 0
    _waiting: int | None = None

    def add(self, items: Mapping[int, Iterable[bytes]]) -> None:
        """Have items due at these times. Those of the past are due at once."""
        for second, some in items.items():
            of_second = self._added.setdefault(min(max(0, second), _LAST_S), [])
            before = len(of_second)
            of_second.extend(some)
            self._more += len(of_second) - before

    def take_due(self, now: float, most: int) -> list[bytes]:
        """Take out what is due: some `most` items, the oldest first, a chunk more at most."""
        self._write()
        found: list[bytes] = []
        for hour in list(self._list()):
            if hour * _HOUR_S > now or len(found) >= most:
                break
            seconds = self._hour(hour).seconds
            for second in sorted(seconds):
                if hour * _HOUR_S + second > now:
                    break
                found += self._taken(hour, second, most - len(found))
                if len(found) >= most:
                    break
            if not seconds:
                self._list().remove(hour)
                self._is_listed_anew = True
        return found

    def next_due(self) -> int | None:
        """When the next item is due; None if there is none."""
        first = self._list()[:1]
        times = [first[0] * _HOUR_S + min(self._hour(first[0]).seconds)] if first else []
        return min([*times, *self._added], default=None)

    def count_waiting(self) -> int:
        """How many items wait."""
        if self._waiting is None:
            (value,) = self.store.get_many([_COUNT])
            self._waiting = 0 if value is None else _NUMBER.unpack(value)[1]
        return self._waiting + self._more

    def save(self) -> None:
        """Write what changed."""
        self._write()
        if self._more:
            self._waiting, self._more = max(0, self.count_waiting()), 0
            self.store.put_many({_COUNT: _NUMBER.pack(1, self._waiting)})
        changed = {hour: found for hour, found in self._hours.items() if found.is_changed}
        values = {_name(hour): _VERSION + _packed(found.seconds) for hour, found in changed.items() if found.seconds}
        if self._is_listed_anew:
            values[_ROOT] = _VERSION + b"".join(map(_LISTED.pack, self._list()))
        self.store.put_many(values)
        self.store.remove_many([_name(hour) for hour, found in changed.items() if not found.seconds])
        for found in changed.values():
            found.is_changed = False
        self._is_listed_anew = False

    def _list(self) -> list[int]:
        """The hours that have items, in order."""
        if self._listed is None:
            (value,) = self.store.get_many([_ROOT])
            self._listed = [] if value is None else [hour for (hour,) in _LISTED.iter_unpack(value[1:])]
        return self._listed

    def _hour(self, hour: int) -> _Hour:
        if hour not in self._hours:
            (value,) = self.store.get_many([_name(hour)])
            self._hours[hour] = _Hour(_seconds(value))
        return self._hours[hour]

    def _write(self) -> None:
        """Put what was added into chunks."""
        added, self._added = self._added, {}
        if not added:
            return
        listed = self._list()
        wanted = {second // _HOUR_S for second in added} - self._hours.keys()
        names = sorted(wanted)
        for hour, value in zip(names, self.store.get_many([_name(hour) for hour in names]), strict=True):
            self._hours[hour] = _Hour(_seconds(value))
        new = {second // _HOUR_S for second in added}.difference(listed)
        if new:
            self._listed = sorted([*listed, *new])
            self._is_listed_anew = True
        # The last chunk of each second that has room.
        last: dict[int, tuple[int, int]] = {}
        for second in added:
            chunks, size = self._hours[second // _HOUR_S].seconds.get(second % _HOUR_S, (0, _CHUNK))
            last[second] = chunks, size
        open_ones = [(second, chunks - 1) for second, (chunks, size) in last.items() if size < _CHUNK]
        found = self.store.get_many([_chunk(*place) for place in open_ones])
        there = {second: _items(value) for (second, _), value in zip(open_ones, found, strict=True)}
        values: dict[bytes, bytes] = {}
        for second, items in added.items():
            chunks, _ = last[second]
            if second in there:
                items, chunks = [*there[second], *items], chunks - 1
            for part in _parts(items):
                values[_chunk(second, chunks)] = _VERSION + pack_items(part)
                chunks, size = chunks + 1, len(part)
            of_hour = self._hours[second // _HOUR_S]
            of_hour.seconds[second % _HOUR_S] = chunks, size
            of_hour.is_changed = True
        self.store.put_many(values)

    def _taken(self, hour: int, second: int, most: int) -> list[bytes]:
        """Take whole chunks of a second, the last ones first."""
        of_hour = self._hour(hour)
        chunks, _ = of_hour.seconds[second]
        count = min(chunks, -(-most // _CHUNK))
        names = [_chunk(hour * _HOUR_S + second, n) for n in range(chunks - count, chunks)]
        found = [item for value in self.store.get_many(names) for item in _items(value)]
        self.store.remove_many(names)
        self._more -= len(found)
        if count == chunks:
            del of_hour.seconds[second]
        else:
            of_hour.seconds[second] = chunks - count, _CHUNK
        of_hour.is_changed = True
        return found


def _name(hour: int) -> bytes:
    return b"ch" + hour.to_bytes(4, "big")


def _chunk(second: int, number: int) -> bytes:
    return b"cs" + second.to_bytes(5, "big") + number.to_bytes(4, "big")


def _items(value: bytes | None) -> list[bytes]:
    return [] if value is None else unpack_items(value, 1)


def _packed(seconds: Mapping[int, tuple[int, int]]) -> bytes:
    return b"".join(_SECOND.pack(second, *of) for second, of in seconds.items())


def _seconds(value: bytes | None) -> dict[int, tuple[int, int]]:
    return {} if value is None else {s: (chunks, size) for s, chunks, size in _SECOND.iter_unpack(value[1:])}


def _parts(items: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
