"""The columns of records' keys: Debezium's `message.key.columns`.

shop.orders:customer_id;shop.(.*)_log:day,hour     tables as regular expressions for whole names, and their columns
"""

from __future__ import annotations

import re


def check_key_columns(text: str) -> str:
    """Return the text. Raises ValueError for an entry that is not of this form."""
    for table, columns in _entries(text):
        if not table or not columns:
            raise ValueError("give keyspace.table:column,column for each table, with semicolons between them")
        try:
            re.compile(table)
        except re.error as error:
            raise ValueError(f"{table} is no regular expression: {error}") from None
    return text


def key_columns(text: str, table: str) -> tuple[str, ...]:
    """Return the columns of the first entry that matches a table, as `keyspace.table`; empty without one."""
    return next((columns for pattern, columns in _entries(text) if re.fullmatch(pattern, table)), ())


def _entries(text: str) -> list[tuple[str, tuple[str, ...]]]:
    entries = []
    for entry in filter(None, map(str.strip, text.split(";"))):
        table, _, columns = entry.rpartition(":")
        entries.append((table.strip(), tuple(filter(None, map(str.strip, columns.split(","))))))
    return entries
