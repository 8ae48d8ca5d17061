"""Regular expressions as values of keys, and how names of tables are distinguished from them."""

from __future__ import annotations

import re


def check_regex(value: str) -> str:
    """Return the value. Raises ValueError if it is no regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def check_names(value: str) -> str:
    """Check as `check_regex`, for names of keyspaces and tables. Raises ValueError too for what no such
    name can have.
    """
    if match := re.search("[\"';`]", value):
        reason = "put commas between several" if match[0] == ";" else "names are written without quotes, capitals too"
        raise ValueError(f"no name has a {match[0]} in it: {reason}")
    return check_regex(value)


def check_columns(value: str) -> str:
    """Check as `check_regex`. Raises ValueError too for a list with commas: as a regular expression it matches no
    column.
    """
    check_regex(value)
    corrected = re.sub(r"(\\.|\{[^}]*\}|\[[^]]*\])|\s*,\s*", lambda match: match[1] or "|", value)
    if corrected != value:
        raise ValueError(f"one regular expression: give {corrected}")
    return value


def check_group(value: str) -> str:
    """Return the value. Raises ValueError if it can't be the name of a group."""
    if not re.fullmatch("[A-Za-z0-9_-]+", value):
        raise ValueError("a name has letters, digits, _ and - alone")
    return value


def is_pattern(part: str) -> bool:
    """Return whether this is a regular expression: names of Cassandra's tables have letters, digits and underscores
    alone.
    """
    return re.fullmatch(r"\w+", part.strip(), re.ASCII) is None


def check_excluded(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns. Raises ValueError for what is not `keyspace.table.column`, each part a regular expression."""
    for column in columns:
        parts = column_parts(column)
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{column} is not keyspace.table.column: whole columns can be left out, no fields of them")
        for part in parts:
            check_regex(part)
    return columns


def exclude_columns(columns: str, left_out: tuple[str, ...], keyspace: str, table: str) -> str:
    """Return a regular expression for the columns of a table that match one, without those that `left_out` excludes."""
    parts = map(column_parts, left_out)
    names = [
        name
        for keyspace_pattern, table_pattern, name in parts
        if re.fullmatch(keyspace_pattern, keyspace) and re.fullmatch(table_pattern, table)
    ]
    if not names:
        return columns
    flags = re.match(r"(?:\(\?[aimsux]+\))?", columns)[0]  # type: ignore[index] # they have to be the first
    return f"{flags}(?!(?:{'|'.join(names)})\\Z)(?:{columns[len(flags) :]})"


def column_parts(column: str) -> list[str]:
    """Split `keyspace.table.column` at dots, escaped or not, but not where one stands for any character."""
    return [part.strip() for part in re.split(r"\\?\.(?![*+?{])", column)]
