"""Rows that were read as images, by their keys: loops over the rows of an answer.

It runs as it is, and compiled by Cython with the types of `row_images.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from helenus_connector.cassandra_rows.raw_rows import RawRow
from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_schemas.codec.key import Key

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
_new = tuple.__new__
_Image = Image


def make_images(
    rows: Iterable[RawRow],
    width: int,
    end: int,
    timed: int,
    shown: TimedColumns,
    expires: Callable[[RawRow], int | None] | None,
) -> list[Image]:
    """Rows as they were read: `width` columns of the key, others up to `end`, then so many write times."""
    found = []
    for row in rows:
        values = row[width:end] or row[:width]
        times = row[end : end + timed]
        expiry = None if expires is None else expires(row)
        found.append(_new(_Image, (values, newest_write_time(times), times, shown, expiry)))
    return found


def match_keys(
    keys: list[Key], found: Mapping[Key, Image], normalized: Callable[[Key], Key] | None, is_last: bool
) -> tuple[list[tuple[Key, Image | None]], list[Key], int]:
    """Keys with the rows that were found of them, the keys that are left, and how many have a row. After the last rows
    none are left: they have no row. `normalized` gives a key as it is found.
    """
    answers: list[tuple[Key, Image | None]] = []
    left: list[Key] = []
    count = 0
    for key in keys:
        image = found.get(key if normalized is None else normalized(key))
        if image is not None:
            count += 1
        elif not is_last:
            left.append(key)
            continue
        answers.append((key, image))
    return answers, left, count


def newest_write_time(times: tuple[bytes | None, ...]) -> int | None:
    """The newest of write times, µs."""
    if _compiled:
        best, has_one = 0, False
        for time in times:
            if time:
                number = signed_64(time)
                if not has_one or number > best:
                    best, has_one = number, True
        return best if has_one else None
    first = times[0] if times else None
    # Of a row that was written at once they are all the same.
    known = [first] if first and times.count(first) == len(times) else [time for time in times if time]
    if not known:
        return None
    last = max(known)
    if last[0] < 0x80:  # as bytes they are in the order of numbers, unless some are negative
        return int.from_bytes(last, "big")
    return max([int.from_bytes(time, "big", signed=True) for time in known])


def signed_64(data: bytes) -> int:
    """A signed number of 8 bytes."""
    if _compiled and len(data) == 8:
        number = 0
        for i in range(8):
            number = number << 8 | data[i]
        return number
    return int.from_bytes(data, "big", signed=True)
