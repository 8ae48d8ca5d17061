"""Regular expressions as values of keys, and how names of tables are distinguished from them."""

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
    """Names of Cassandra's tables have letters, digits and underscores: anything else is a regular expression."""
    return re.fullmatch(r"\w+", part.strip(), re.ASCII) is None
