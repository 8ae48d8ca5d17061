"""Connect's dates, times and timestamps as milliseconds since the epoch, and as text."""

from __future__ import annotations

import datetime
from typing import Any

from helenus_connector.connect_data.java_dates import DAY_MS, DateFormat
from helenus_connector.connect_data.java_numbers import wrap
from helenus_connector.connect_data.schema import DATE, TIME, TIMESTAMP, ConnectSchema

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_FIRST_DAY = datetime.date(1970, 1, 1)
_TIME_TEXT = DateFormat("HH:mm:ss.SSS'Z'")
_DATE_TEXT = DateFormat("yyyy-MM-dd")
_TIMESTAMP_TEXT = DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
_MILLISECOND = datetime.timedelta(milliseconds=1)


def is_time(schema: ConnectSchema | None) -> bool:
    """Return whether values are dates, times or timestamps."""
    return schema is not None and schema.name in (DATE, TIME, TIMESTAMP) and schema.type in ("int32", "int64")


def to_number(value: Any) -> int:
    """Return the number that a date, time or timestamp has as its base type: days, or milliseconds."""
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, datetime.date):
        return (value - _FIRST_DAY).days
    if isinstance(value, datetime.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    return int(value)


def to_milliseconds(value: Any, name: str | None) -> int:
    """Return a value of a logical type as milliseconds since the epoch."""
    return to_number(value) * (DAY_MS if name == DATE else 1)


def from_milliseconds(milliseconds: int, name: str) -> Any:
    """Return milliseconds since the epoch as a value of a logical type, or as a number if Python has no such date.

    Days beyond 32 bits wrap, as in Java.
    """
    try:
        if name == DATE:
            return _FIRST_DAY + datetime.timedelta(days=milliseconds // DAY_MS)
        timestamp = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return wrap(milliseconds // DAY_MS, 32) if name == DATE else milliseconds
    return timestamp.time() if name == TIME else timestamp


def time_text(milliseconds: int) -> str:
    """Return a time as Connect's `Values` writes it: a time of day before 2 January 1970, a date at midnight."""
    if milliseconds < DAY_MS:
        return _TIME_TEXT.format(milliseconds)
    return (_DATE_TEXT if milliseconds % DAY_MS == 0 else _TIMESTAMP_TEXT).format(milliseconds)
