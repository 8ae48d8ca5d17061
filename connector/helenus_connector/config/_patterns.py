"""Regular expressions as values of keys, and names of tables apart from them."""

from __future__ import annotations

import re


def compiles(value: str) -> str:
    """The same. Raises ValueError for what is no regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def is_pattern(part: str) -> bool:
    """Cassandra's tables have names of letters, digits and underscores: all else is a regular expression."""
    return re.fullmatch(r"\w+", part.strip(), re.ASCII) is None
