"""Java's SimpleDateFormat, in UTC and English: formats and parses milliseconds since the epoch.

Days before 15 October 1582 are those of the Julian calendar, as in Java.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

DAY_MS = 86_400_000
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FIRST_GREGORIAN_DAY = -141_427  # 15 October 1582, in days since the epoch
_FORMATTED = frozenset("GyMLdDEuaHkKhmsSzZX")
_PARSED = frozenset("yMLdEaHkKhmsSzZX")


class CalendarDay(NamedTuple):
    """A day; a year before 1 is 0 or less, as astronomers count."""

    year: int
    month: int
    day: int


def calendar_day(days: int) -> CalendarDay:
    """Return the day that is some days after the epoch."""
    # Count from 1 March of year 0, so that the day that some years have is the last of a year.
    if days >= _FIRST_GREGORIAN_DAY:
        era, day_of_era = divmod(days + 719_468, 146_097)
        year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
        day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        year = era * 400 + year_of_era
    else:
        cycle, day_of_cycle = divmod(days + 719_470, 1461)
        year_of_cycle = min(day_of_cycle // 365, 3)
        day_of_year = day_of_cycle - 365 * year_of_cycle
        year = cycle * 4 + year_of_cycle
    month_index = (5 * day_of_year + 2) // 153
    month = month_index + 3 if month_index < 10 else month_index - 9
    return CalendarDay(year + (month <= 2), month, day_of_year - (153 * month_index + 2) // 5 + 1)


def days_since_epoch(year: int, month: int, day: int) -> int:
    """Return the days from the epoch to a day. A month or day beyond its year or month counts on from there."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    march_year = year - (month <= 2)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    gregorian = march_year * 365 + march_year // 4 - march_year // 100 + march_year // 400 + day_of_year - 719_468
    if gregorian >= _FIRST_GREGORIAN_DAY:
        return gregorian
    return march_year * 365 + march_year // 4 + day_of_year - 719_470


class DateFormat:
    """A pattern of SimpleDateFormat. Raises ValueError for one that is not supported."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._parts = list(_split(pattern))
        if wrong := [letter for letter, _ in self._parts if letter and letter not in _FORMATTED]:
            raise ValueError(f"the letter {wrong[0]} of a date's format is not supported")

    def format(self, milliseconds: int) -> str:
        """Return a time as text."""
        days, of_day = divmod(milliseconds, DAY_MS)
        return "".join(text if not letter else _field(letter, len(text), days, of_day) for letter, text in self._parts)

    def parse(self, text: str) -> int:
        """Return the time that a text begins with, in ms. Raises ValueError."""
        fields: dict[str, int] = {}
        index = 0
        for position, (letter, part) in enumerate(self._parts):
            if not letter:
                if not text.startswith(part, index):
                    raise self._mismatch(text)
                index += len(part)
                continue
            following = self._parts[position + 1 : position + 2]
            is_adjacent = bool(following and following[0][0] and following[0][0] not in "EazZX")
            match = _reader(letter, len(part), is_adjacent).match(text, index)
            if match is None:
                raise self._mismatch(text)
            fields[letter] = _number(letter, len(part), match[0].strip())
            index = match.end()
        return _milliseconds(fields)

    def _mismatch(self, text: str) -> ValueError:
        return ValueError(f"{text[:100]} does not match the format {self.pattern}")


def _split(pattern: str) -> list[tuple[str, str]]:
    """Return the parts of a pattern: a letter and its repetitions, or no letter and literal text."""
    parts: list[tuple[str, str]] = []
    index = 0
    while index < len(pattern):
        char = pattern[index]
        if char == "'":
            quoted = re.compile(r"'((?:[^']|'')*)'").match(pattern, index)
            if quoted is None:
                raise ValueError("a date's format has a quote that does not end")
            parts.append(("", quoted[1].replace("''", "'") or "'"))
            index = quoted.end()
        elif char.isascii() and char.isalpha():
            end = index
            while end < len(pattern) and pattern[end] == char:
                end += 1
            parts.append((char, pattern[index:end]))
            index = end
        else:
            parts.append(("", char))
            index += 1
    return parts


def _field(letter: str, width: int, days: int, of_day: int) -> str:
    hour = of_day // 3_600_000
    numbers = {
        "H": hour,
        "k": hour or 24,
        "K": hour % 12,
        "h": hour % 12 or 12,
        "m": of_day // 60_000 % 60,
        "s": of_day // 1000 % 60,
        "S": of_day % 1000,
        "u": (days + 3) % 7 + 1,
    }
    if letter in numbers:
        return str(numbers[letter]).zfill(width)
    if letter in "zZX":
        return {"z": "UTC" if width < 4 else "Coordinated Universal Time", "Z": "+0000", "X": "Z"}[letter]
    if letter == "a":
        return "AM" if hour < 12 else "PM"
    if letter == "E":
        name = _WEEKDAYS[(days + 3) % 7]
        return name if width >= 4 else name[:3]
    date = calendar_day(days)
    year = date.year if date.year > 0 else 1 - date.year
    if letter == "G":
        return "AD" if date.year > 0 else "BC"
    if letter == "y":
        return str(year % 100).zfill(2) if width == 2 else str(year).zfill(width)
    if letter in "ML" and width >= 3:
        return _MONTHS[date.month - 1][: None if width >= 4 else 3]
    if letter == "D":
        return str(days - days_since_epoch(date.year, 1, 1) + 1).zfill(width)
    return str(date.month if letter in "ML" else date.day).zfill(width)


def _reader(letter: str, width: int, is_adjacent: bool) -> re.Pattern[str]:
    """Return an expression for the text of a field. Numbers without anything between them have a fixed width."""
    if letter not in _PARSED:
        raise ValueError(f"the letter {letter} of a date's format can't be read")
    if letter == "E":
        return re.compile("|".join(name for day in _WEEKDAYS for name in (day, day[:3])), re.IGNORECASE)
    if letter in "ML" and width >= 3:
        return re.compile("|".join(name for month in _MONTHS for name in (month, month[:3])), re.IGNORECASE)
    if letter == "a":
        return re.compile("AM|PM", re.IGNORECASE)
    if letter == "X":
        return re.compile(r"Z|[+-]\d\d" + ("" if width == 1 else ":?\\d\\d"))
    if letter in "zZ":
        return re.compile(r"(?:UTC|GMT)?[+-]\d\d:?\d\d|UTC|GMT|Z")
    return re.compile(rf"\s*\d{{{width}}}" if is_adjacent else r"\s*-?\d+", re.ASCII)


def _number(letter: str, width: int, text: str) -> int:
    if letter == "E":
        return 0
    if letter in "ML" and width >= 3:
        return next(i for i, name in enumerate(_MONTHS, 1) if name[:3].lower() == text[:3].lower())
    if letter == "a":
        return int(text.upper() == "PM")
    if letter in "zZX":
        offset = re.search(r"([+-])(\d\d):?(\d\d)?", text)
        if offset is None:
            return 0
        minutes = int(offset[2]) * 60 + int(offset[3] or 0)
        return -minutes if offset[1] == "-" else minutes
    if letter == "y" and width <= 2 and re.fullmatch(r"\d\d", text):
        # Two digits are the year of that end from 80 years ago on.
        first = calendar_day(int(time.time()) // 86_400).year - 80
        return first + (int(text) - first) % 100
    return int(text)


def _milliseconds(fields: dict[str, int]) -> int:
    month = fields.get("M", fields.get("L", 1))
    days = days_since_epoch(fields.get("y", 1970), month, fields.get("d", 1))
    hour = fields.get("H", fields.get("k", 24) % 24)
    if "H" not in fields and "k" not in fields:
        hour = fields.get("K", fields.get("h", 0) % 12) + 12 * fields.get("a", 0)
    offset = fields.get("X", fields.get("Z", fields.get("z", 0)))
    minutes = hour * 60 + fields.get("m", 0) - offset
    return days * DAY_MS + (minutes * 60 + fields.get("s", 0)) * 1000 + fields.get("S", 0)
