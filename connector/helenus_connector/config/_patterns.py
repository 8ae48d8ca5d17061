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


def of_names(value: str) -> str:
    """As `compiles`, for names of keyspaces and tables. Raises ValueError too for what no such name can have."""
    if found := re.search("[\"';`]", value):
        why = "put commas between several" if found[0] == ";" else "names are written without quotes, capitals too"
        raise ValueError(f"no name has a {found[0]} in it: {why}")
    return compiles(value)


def of_columns(value: str) -> str:
    """As `compiles`. Raises ValueError too for a list with commas: as one regular expression it matches no column."""
    compiles(value)
    meant = re.sub(r"(\\.|\{[^}]*\}|\[[^]]*\])|\s*,\s*", lambda found: found[1] or "|", value)
    if meant != value:
        raise ValueError(f"one regular expression: give {meant}")
    return value


def group(value: str) -> str:
    """The same. Raises ValueError for what can't be the name of a group."""
    if not re.fullmatch("[A-Za-z0-9_-]+", value):
        raise ValueError("a name has letters, digits, _ and - alone")
    return value


def is_pattern(part: str) -> bool:
    """Names of Cassandra's tables have letters, digits and underscores: anything else is a regular expression."""
    return re.fullmatch(r"\w+", part.strip(), re.ASCII) is None


def excluded(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The same. Raises ValueError for what is not `keyspace.table.column`, each part a regular expression."""
    for column in columns:
        parts = column_parts(column)
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{column} is not keyspace.table.column: whole columns can be left out, no fields of them")
        for part in parts:
            compiles(part)
    return columns


def leaving_out(columns: str, left_out: tuple[str, ...], keyspace: str, table: str) -> str:
    """A regular expression for the columns of a table that match one, but for those that `excluded` has checked."""
    parts = map(column_parts, left_out)
    names = [name for of, among, name in parts if re.fullmatch(of, keyspace) and re.fullmatch(among, table)]
    if not names:
        return columns
    flags = re.match(r"(?:\(\?[aimsux]+\))?", columns)[0]  # type: ignore[index] # they have to be the first
    return f"{flags}(?!(?:{'|'.join(names)})\\Z)(?:{columns[len(flags) :]})"


def column_parts(column: str) -> list[str]:
    """Split `keyspace.table.column` at dots, escaped or not, but not where one stands for any character."""
    return [part.strip() for part in re.split(r"\\?\.(?![*+?{])", column)]
