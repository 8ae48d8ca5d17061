"""Values of Connect's logical types as the numbers and bytes that stand for them, and by Java's calendar.

A value that Python's `datetime` can't hold is that number already: see `connect_data.schema`.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from helenus_connector.connect_data.schema import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema
from helenus_connector.connect_data.times import to_number
from helenus_schemas.errors import HelenusError, Kind

_TIMES: Mapping[str, type | tuple[()]] = {DATE: datetime.date, TIME: datetime.time, TIMESTAMP: datetime.datetime}
_GREGORIAN = 2_299_161  # Julian day number of 15 October 1582, from which on Java's calendar is the Gregorian
_EPOCH_DAY = 2_440_588  # that of 1 January 1970
LOGICAL = frozenset((DATE, DECIMAL, TIME, TIMESTAMP))


def unfit(problem: str, topic: str = "") -> HelenusError:
    """Return the error of a value that a converter has no form for."""
    return HelenusError(Kind.POISON_EVENT, problem, topic)


def number_of(schema: ConnectSchema, value: Any) -> int:
    """Return the number that stands for a date, a time or a timestamp. Raises ValueError for another value."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, _TIMES.get(schema.name or "", ())):
        return to_number(value)
    raise ValueError(f"{type(value).__name__} is no {schema.name}")


def unscaled_digits(value: Any) -> tuple[int, int]:
    """Return a decimal as a whole number and its scale. Raises ValueError for another value, and for NaN."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise ValueError(f"{value!r} is no finite decimal")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return int(Decimal((sign, digits, 0))), -exponent  # of text Python reads 4,300 digits


def decimal_bytes(schema: ConnectSchema, value: Any) -> bytes:
    """Return a decimal of its schema's scale as Connect has it: two's complement, big-endian. Raises ValueError."""
    unscaled, scale = unscaled_digits(value)
    if str(scale) != dict(schema.parameters).get("scale", str(scale)):
        raise ValueError(f"a decimal of the scale {scale}, where the schema has another")
    return signed_bytes(unscaled)


def signed_bytes(value: int) -> bytes:
    """Return a number as Java's `BigInteger.toByteArray` does: in as few bytes as hold it with its sign."""
    length = (value + (value < 0)).bit_length() // 8 + 1
    return value.to_bytes(length, "big", signed=True)


def calendar_date(day: int) -> tuple[int, int, int]:
    """Return the year, month and day of a day since 1970, by Java's calendar: Julian before October 15, 1582.

    Source: the algorithm of Richards, 2013. Raises ValueError before the year 1.
    """
    julian_day = day + _EPOCH_DAY
    f = julian_day + 1401
    if julian_day >= _GREGORIAN:
        f += (4 * julian_day + 274_277) // 146_097 * 3 // 4 - 38
    e = 4 * f + 3
    h = 5 * (e % 1461 // 4) + 2
    month = (h // 153 + 2) % 12 + 1
    year = e // 1461 - 4716 + (14 - month) // 12
    if year < 1 or year >= 1 << 31:
        raise ValueError(f"a date {day} days from 1970, beyond the years that Date has")
    return year, month, h % 153 // 5 + 1
