"""Properties files: reading one, and all that is wrong with one or several in a single error."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import javaproperties
import structlog

from helenus_schemas.errors import HelenusError, Kind

T = TypeVar("T")
STARS = "*****"
_SALT = re.compile(r"(\.with\.salt\.|column\.mask\.hash\.(?!(?:v[0-9]+\.)?[^.\s]+\.with\.salt\.)).+", re.DOTALL)
"""What follows in the name of a key, and in text with such a name, is a secret: the salt of a hash, or one that is
misspelt."""
_SHOWN_CHARACTERS = 200
"""Of a value in a message: two lines of a terminal, and longer than the values that people write."""


def shown_key(key: str) -> str:
    """Return a key's name, or text with such names in it, with stars for a salt: Debezium's keys have it there."""
    return _SALT.sub(rf"\1{STARS}", key)


@dataclass(frozen=True)
class Problem:
    """What is wrong with a property; `value` as it may be shown, None if the property is not there. Key and reason are
    shown as `shown_key` has them.

    Without `key`, the whole `source` is wrong.
    """

    source: str
    key: str
    value: str | None
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", shown_key(self.key))
        object.__setattr__(self, "reason", shown_key(self.reason))

    def __str__(self) -> str:
        if not self.key:
            return self.reason
        return f"{self.key}{'' if self.value is None else f'={_shorten(self.value)}'}: {self.reason}"


def _shorten(value: str) -> str:
    """Return a value as a message of one line shows it: in quotes if blanks are at an end, where nobody sees them, or
    line breaks are in it; cut if long.
    """
    start = value[:_SHOWN_CHARACTERS]
    is_plain = start == start.strip() and start.isprintable()
    shown = start if is_plain else json.dumps(start, ensure_ascii=False)
    return shown if len(value) <= _SHOWN_CHARACTERS else f"{shown}… ({len(value):,} characters)"


class ConfigError(HelenusError):
    """All that is wrong with one or several files: one line for a single problem, else a line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        sources = ", ".join(dict.fromkeys(p.source for p in self.problems))
        super().__init__(Kind.CONFIG, "\n".join(map(str, self.problems)), sources)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems,))

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return super().__str__()
        lines = [f"{len(self.problems)} properties are wrong: {self.advice} [{self.kind.value}]"]
        return "\n".join([*lines, *(f"  {p.source}: {p}" for p in self.problems)])


def together(*steps: Callable[[], T]) -> list[T]:
    """Run all the steps and return their results. Raises one ConfigError with the problems of all of them."""
    results: list[T] = []
    problems: list[Problem] = []
    for step in steps:
        try:
            results.append(step())
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))  # one file may be taken for two things
    return results


def read_properties(path: str | Path) -> dict[str, str]:
    """Return the keys and values of a Java properties file, as they are written. Of a key that is given more than once,
    the last counts, with a warning. Raises ConfigError.
    """
    pairs = _pairs(path)
    for key in _duplicates(pairs):
        structlog.get_logger(__name__).warning(
            "config.duplicate", source=str(path), key=shown_key(key), then="the last one counts"
        )
    return dict(pairs)


def check_properties(path: str | Path, keys: re.Pattern[str] | None = None) -> None:
    """Raise ConfigError for keys, or only for those that match `keys`, that a properties file has more than once."""
    duplicates = [key for key in _duplicates(_pairs(path)) if keys is None or keys.fullmatch(key)]
    if duplicates:
        reason = "it is given more than once, and the last one counts: leave the others out"
        raise ConfigError([Problem(str(path), key, None, reason) for key in duplicates])


def _duplicates(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def parsed(path: str | Path) -> list[tuple[str, str]]:
    """Return the keys and values of a properties file in UTF-8, with or without a byte order mark.

    Raises OSError, or ValueError that says what is wrong with its content.
    """
    return parsed_content(Path(path).read_bytes())


def parsed_content(content: bytes) -> list[tuple[str, str]]:
    """Parse the content of a properties file, as `parsed` does. Raises ValueError."""
    if b"\0" in content:  # as in UTF-16
        raise ValueError("the file is not text in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = bytes(error.object).count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8: save the file as UTF-8, or write ö as \\u00f6") from None
    pairs: list[tuple[str, str]] = javaproperties.loads(text, object_pairs_hook=list)
    return pairs


def _pairs(path: str | Path) -> list[tuple[str, str]]:
    try:
        return parsed(path)
    except OSError as error:
        reason = f"cannot read the properties file: {error.strerror}"
    except ValueError as error:
        reason = f"cannot read the properties file: {error}"
    raise ConfigError([Problem(str(path), "", None, reason)])
