"""The columns that `columns`, `column.exclude.list` and masks name, checked against the tables there are.

A name that no column has is a typing error, or the column has another name by now: the column that was meant would be
published. So a table is refused when an entry, or an alternative of a regular expression, stands for no column of it.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from helenus_connector.config._alternatives import Alternative, alternatives
from helenus_connector.config._patterns import column_parts, is_pattern
from helenus_connector.config.column_masks import ColumnMask
from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
_EXCLUDE_LIST = "column.exclude.list"
MASKABLE = ("text", "ascii")
_LONGEST_LIST = 40  # names in a message: what a terminal shows at once; the rest are counted
ColumnNames = Collection[tuple[str, str, str]]
"""Keyspace, table and column of columns."""


@dataclass(frozen=True)
class Exclusion:
    """An entry of `column.exclude.list`, or of the mask with the key `option`: regular expressions for whole names."""

    text: str
    keyspace: str
    table: str
    column: str
    option: str = _EXCLUDE_LIST

    @property
    def names_table(self) -> bool:
        """Return whether it names one table, and not tables by a pattern, of which some may lack the column."""
        return not is_pattern(self.keyspace) and not is_pattern(self.table)

    def includes(self, table: Table) -> bool:
        return bool(re.fullmatch(self.keyspace, table.keyspace) and re.fullmatch(self.table, table.name))

    def matches(self, names: Iterable[str]) -> list[str]:
        """Return those of some columns' names that it matches."""
        return [name for name in names if re.fullmatch(self.column, name)]

    def endangers(self, table: Table, settings: ConnectorSettings) -> bool:
        """Return whether a table publishes a column that is, or looks like, the one that the entry is about."""
        names = _published(table, settings)
        return bool(self.matches(names) or difflib.get_close_matches(self.column, names))


def check_columns(table: Table, settings: ConnectorSettings) -> None:
    """Check a table, by its definition as it is now, against the entries that name it; `settings` are of this table.

    A column that was dropped can't be published, so its entry may stay; unless columns were added since: one of them
    may be the same column by another name. Masks are for columns of text outside the key, one for each. Raises
    HelenusError CONFIG.
    """
    _check_masks(table, settings)
    _check_key_columns(table, settings)
    for entry in _exclusions(settings):
        if not entry.includes(table) or entry.matches(column.name for column in table.values):
            continue
        if dropped := entry.matches(table.dropped):
            _refuse_renamed(entry.option, entry.text, dropped, table, settings)
        elif entry.names_table:
            if entry.matches(column.name for column in table.primary_key):
                raise _key_column(f"{entry.option}={entry.text}", table)
            raise _no_column(f"{entry.option}={entry.text}", entry.column, [table])
    for alternative in alternatives(settings.columns):
        if not alternative.is_excluding or alternative.matches(column.name for column in table.values):
            continue
        if dropped := alternative.matches(table.dropped):
            _refuse_renamed("columns", settings.columns, dropped, table, settings)


def _check_key_columns(table: Table, settings: ConnectorSettings) -> None:
    names = [column.name for column in table.primary_key]
    if other := [name for name in settings.key_columns if name not in names]:
        problem = f"message.key.columns: {other[0]} is no column of the primary key"
        advice = f"name some of {', '.join(names)}: a record of a delete has no other columns"
        raise HelenusError(Kind.CONFIG, problem, table.full_name, advice)


def check_connector(
    settings: ConnectorSettings, tables: Sequence[Table], other_columns: Callable[[], ColumnNames]
) -> dict[str, HelenusError]:
    """Check all tables of a connector; return the errors by table.

    An entry or an alternative that may match several tables has to match a column of one of them. Where an entry
    matches none of these tables, it may be about another connector's: `other_columns` gives all columns that Cassandra
    has. If it matches none of those either, the tables are refused that have a column like the one it is about.
    """
    errors: dict[str, HelenusError] = {}
    for table in tables:
        try:
            check_columns(table, settings.of_table(table.name))
        except HelenusError as error:
            errors[table.name] = error
    for entry in _exclusions(settings):
        for table_name, unmatched in _unmatched_exclusion(entry, settings, tables, other_columns).items():
            errors.setdefault(table_name, unmatched)
    for alternative in alternatives(settings.columns):
        if tables and not any(_has_matches(alternative, table) for table in tables):
            text = alternative.text or settings.columns
            for table in tables:
                errors.setdefault(table.name, _no_column(f"columns={settings.columns}", text, tables))
    return errors


def _unmatched_exclusion(
    entry: Exclusion,
    settings: ConnectorSettings,
    tables: Sequence[Table],
    other_columns: Callable[[], ColumnNames],
) -> dict[str, HelenusError]:
    """Return errors by table of an entry of `column.exclude.list` that matches no column; none if it matches one."""
    included = [table for table in tables if entry.includes(table)]
    if included and (entry.names_table or any(_has_matches(entry, table) for table in included)):
        return {}
    text = f"{entry.option}={entry.text}"
    if included:
        is_of_key = any(entry.matches(column.name for column in table.primary_key) for table in included)
        return {
            table.name: _key_column(text, table) if is_of_key else _no_column(text, entry.column, [table])
            for table in included
        }
    if not tables or any(_is_column(entry, column) for column in other_columns()):
        return {}
    endangered = [table for table in tables if entry.endangers(table, settings.of_table(table.name))]
    if not endangered:
        _warn(settings.name, text)
    return {table.name: _no_table(text, table, tables) for table in endangered}


def nearest(name: str, names: Iterable[str]) -> str:
    """Return advice that names the most similar of `names`, whatever its case, which CQL ignores without quotes; empty
    if none is similar.
    """
    spellings = {spelling.lower(): spelling for spelling in names}
    close = difflib.get_close_matches(name.lower(), spellings, 1)
    return f"did you mean {spellings[close[0]]}? " if close else ""


def listed(names: Iterable[str]) -> str:
    """Return names with commas between them, for a message: not more than a terminal shows."""
    shown = list(names)
    more = len(shown) - _LONGEST_LIST
    return ", ".join(shown[:_LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


@functools.cache  # once: tables of patterns are checked every few seconds
def _warn(connector: str, entry: str) -> None:
    _log.warning("columns.unmatched", connector=connector, entry=entry)


@functools.lru_cache(1000)  # asked for each table and definition
def _variants(text: str, option: str) -> tuple[Exclusion, ...]:
    """Return an entry once for each alternative of its parts, one part at a time: each has to name a column.

    Of `(users|orders).(email|phone)` some table needs `email` and some `phone`; and each table one of the two.
    """
    parts = column_parts(text)
    names = [parts]
    for index, part in enumerate(parts):
        # What an entry does not exclude needs no name.
        patterns = (alternative.pattern for alternative in alternatives(part) if not alternative.is_excluding)
        names += [[*parts[:index], pattern, *parts[index + 1 :]] for pattern in patterns]
    variants = [Exclusion(text, keyspace, table, column, option) for keyspace, table, column in names]
    return tuple(dict.fromkeys(variants))


def _exclusions(settings: ConnectorSettings) -> Iterator[Exclusion]:
    for text in settings.column_exclude_list:
        yield from _variants(text, _EXCLUDE_LIST)
    for mask in settings.column_masks:
        for text in mask.entries:
            yield from _variants(text, mask.option)


def _check_masks(table: Table, settings: ConnectorSettings) -> None:
    """Raise HelenusError CONFIG for a mask of what can't be masked, and for two of one column: one would not count."""
    options: dict[str, str] = {}
    for mask, column in masked_columns(table, settings):
        if column.kind in ("partition_key", "clustering"):
            problem = f"{mask.option}: {column.name} is of the key, which is published as it is"
            raise HelenusError(Kind.CONFIG, problem, table.full_name, "mask other columns, or leave the table out")
        if column.type.name not in MASKABLE:
            problem = f"{mask.option}: {column.name} is {column.type}, and only text and ascii can be masked"
            raise HelenusError(Kind.CONFIG, problem, table.full_name, "name it in column.exclude.list instead")
        if column.name in options:
            problem = f"{mask.option}: {column.name} is also masked by {options[column.name]}"
            raise HelenusError(Kind.CONFIG, problem, table.full_name, "leave one of them out")
        options[column.name] = mask.option


def masked_columns(table: Table, settings: ConnectorSettings) -> Iterator[tuple[ColumnMask, Column]]:
    """Yield each mask with each column of a table that it is for."""
    for mask in settings.column_masks:
        patterns = [Exclusion(text, *column_parts(text)) for text in mask.entries]
        included = [pattern for pattern in patterns if pattern.includes(table)]
        for column in table.columns:
            if any(pattern.matches([column.name]) for pattern in included):
                yield mask, column


def _has_matches(pattern: Exclusion | Alternative, table: Table) -> bool:
    """Return whether a table has, or had, a column that the pattern is about."""
    is_excluding = isinstance(pattern, Exclusion) or pattern.is_excluding
    columns = table.values if is_excluding else table.columns  # columns of the key can't be left out
    return bool(pattern.matches([*(column.name for column in columns), *table.dropped]))


def _is_column(entry: Exclusion, column: tuple[str, str, str]) -> bool:
    patterns = entry.keyspace, entry.table, entry.column
    return all(re.fullmatch(pattern, name) for pattern, name in zip(patterns, column, strict=True))


def _published(table: Table, settings: ConnectorSettings) -> list[str]:
    return [column.name for column in table.values if re.fullmatch(settings.published, column.name)]


def _refuse_renamed(key: str, value: str, dropped: Sequence[str], table: Table, settings: ConnectorSettings) -> None:
    dropped_at = max(table.dropped_at.get(name, 0) for name in dropped)
    added = [name for name in _published(table, settings) if table.added_at.get(name, 0) > dropped_at]
    if not added:
        return
    problem = f"{key}={value}: {listed(dropped)} was dropped, and {listed(added)} added later"
    advice = f"if it is the same column by another name, exclude that; else take {dropped[0]} out of {key}"
    raise HelenusError(Kind.CONFIG, problem, table.full_name, advice)


def _no_column(text: str, pattern: str, tables: Sequence[Table]) -> HelenusError:
    names: Mapping[str, None] = {column.name: None for table in tables for column in table.columns}
    problem = f"{text}: no column matches {pattern}"
    advice = f"{nearest(pattern, names)}There are {listed(names)}"
    return HelenusError(Kind.CONFIG, problem, ", ".join(table.full_name for table in tables[:3]), advice)


def _key_column(text: str, table: Table) -> HelenusError:
    advice = f"take it out of the list; other columns are {listed(column.name for column in table.values)}"
    return HelenusError(Kind.CONFIG, f"{text}: columns of the key are always published", table.full_name, advice)


def _no_table(text: str, table: Table, tables: Sequence[Table]) -> HelenusError:
    problem = f"{text}: no table has such a column, and this one has one like it"
    advice = f"correct the entry, or take it out. The connector's tables are {listed(t.full_name for t in tables)}"
    return HelenusError(Kind.CONFIG, problem, table.full_name, advice)
