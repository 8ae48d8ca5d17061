"""Makes images of rows and matches them with keys: the loops over the rows of an answer.

The module runs as plain Python, and compiled by Cython with the types of `row_images.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
    """Make images of rows: a row has `width` key columns, other columns up to `end`, then `timed` write times."""
    images = []
    for row in rows:
        values = row[width:end] or row[:width]
        times = row[end : end + timed]
        expiry = None if expires is None else expires(row)
        images.append(_new(_Image, (values, newest_write_time(times), times, shown, expiry)))
    return images


def match_keys(
    keys: list[Key], images: Mapping[Key, Any], normalized: Callable[[Key], Key] | None, is_last: bool
) -> tuple[list[tuple[Key, Any]], list[Key], int]:
    """Return the keys with their images, or what else a projection makes of rows, the keys still without one, and how
    many have one. If `is_last`, the keys without an image have no row, and are returned with None. `normalized`
    converts a key to the form of the keys in `images`.
    """
    answers: list[tuple[Key, Any]] = []
    missing: list[Key] = []
    count = 0
    for key in keys:
        image = images.get(key if normalized is None else normalized(key))
        if image is not None:
            count += 1
        elif not is_last:
            missing.append(key)
            continue
        answers.append((key, image))
    return answers, missing, count


def newest_write_time(times: tuple[bytes | None, ...]) -> int | None:
    """Return the newest write time, µs; None if there is none."""
    if _compiled:
        best, has_time = 0, False
        for time in times:
            if time:
                number = signed_64(time)
                if not has_time or number > best:
                    best, has_time = number, True
        return best if has_time else None
    first = times[0] if times else None
    # A row that was written by one statement has one write time in all columns.
    shown = [first] if first and times.count(first) == len(times) else [time for time in times if time]
    if not shown:
        return None
    newest = max(shown)
    if newest[0] < 0x80:  # bytes sort like numbers, unless some are negative
        return int.from_bytes(newest, "big")
    return max([int.from_bytes(time, "big", signed=True) for time in shown])


def signed_64(data: bytes) -> int:
    """Decode a signed integer of 8 bytes."""
    if _compiled and len(data) == 8:
        number = 0
        for i in range(8):
            number = number << 8 | data[i]
        return number
    return int.from_bytes(data, "big", signed=True)
