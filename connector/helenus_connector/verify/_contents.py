"""Reduce what a record shows of a row to bytes that can be compared: its value, and the headers that belong to it.

A row's record shows the static columns as they were when the row was read. So they are compared in the partition's own
record alone, and a row's record without them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Table

Values = tuple["bytes | None", ...]
_NO_VALUES = b""
"""Value of a row in a table that has static columns only: that it exists."""


class _Ids:
    """Gives numbers in place of a registry's: those of all schemas are one, but of keys' nullable ones."""

    def register(self, subject: str, schema: str) -> int:  # noqa: ARG002
        return int(subject.endswith("-nullable"))

    def keep(self, subject: str, schema: str, value: str) -> int:  # noqa: ARG002
        return 0


def column_names(header: bytes | None) -> frozenset[str]:
    """Return the columns that a header lists; an empty set for a header that is not valid: anybody may have written
    it.
    """
    try:
        names = json.loads(header or b"[]")
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


NORMAL, NULLABLE = (b"\0" + n.to_bytes(4, "big") for n in (0, 1))
"""Frames of values with these schema ids."""


def digest(value: bytes, empty: bytes | None = None, left_out: bytes | None = None) -> bytes:
    """Return 16 bytes for a value and the headers that say what it does not show."""
    hashed = hashlib.md5(value, usedforsecurity=False)
    if empty or left_out:
        hashed.update(b"\0%b\0%b" % (empty or b"", left_out or b""))
    return hashed.digest()


def row_format(settings: ConnectorSettings) -> str:
    """Return the format that rows are compared in: that of the topic, or of the rows in its envelopes."""
    if settings.is_envelope:
        return "key-value-avro" if settings.is_avro else "json"
    return settings.output_format


def table_of_rows(table: Table) -> Table | None:
    """Return the table as its rows' own records are compared; None if they have nothing that could differ."""
    if not table.statics:
        return table
    if not table.regulars:
        return None
    return replace(table, columns=tuple(c for c in table.columns if c.kind != "static"))


class Contents:
    """Makes digests of rows. Raises HelenusError POISON_EVENT for one that no record can show."""

    def __init__(self, table: Table, settings: ConnectorSettings, keeps_schemas: bool) -> None:
        # Keys are compared as the events': neither their form nor other headers matter.
        form = row_format(settings)
        plain = settings.model_copy(update={"headers": (), "key_compat": "exact", "output_format": form})
        ids = None if keeps_schemas else _Ids()
        rows = table_of_rows(table)
        self._rows = None if rows is None else RowShape(rows, plain, ids)
        self._statics = RowShape(table, plain, ids) if table.statics else None
        self._regulars = len(table.regulars)
        self._width = len(table.values)
        self._names = [c.name for c in table.values]
        self._nothing: dict[bytes, bytes] = {}
        self._is_whole = form == "json"

    def row(self, name: bytes, key: Key, values: Values, left_out: bytes | None = None) -> bytes:
        """Return the digest of a row by its event's key; with a header `left_out`, without what that names."""
        if self._rows is None:
            return digest(_NO_VALUES)
        return self._digest(self._rows, name, key, self._without(values, left_out)[: self._regulars or None], left_out)

    def statics(self, name: bytes, key: Key, values: Values, left_out: bytes | None = None) -> bytes | None:
        """Return the digest of a partition's static columns, by its key; None if all are null."""
        if self._statics is None or values[self._regulars :].count(None) == len(values) - self._regulars:
            return None
        statics = (*(None,) * self._regulars, *self._without(values, left_out)[self._regulars :])
        return self._digest(self._statics, name, key, statics, left_out)

    def no_statics(self, name: bytes) -> bytes:
        """Return the value whose columns are all null."""
        if self._statics is None:
            return b""
        cache_key = name if self._is_whole else b""
        if cache_key not in self._nothing:
            self._nothing.clear()
            image = Image((None,) * self._width, None)
            self._nothing[cache_key] = self._statics.row(name, image, None).value or b""
        return self._nothing[cache_key]

    def _without(self, values: Values, left_out: bytes | None) -> Values:
        if left_out is None or len(values) != self._width:
            return values
        names = column_names(left_out)
        return tuple(None if name in names else v for name, v in zip(self._names, values, strict=True))

    @staticmethod
    def _digest(shape: RowShape, name: bytes, key: Key, values: Values, left_out: bytes | None) -> bytes:
        record = shape.row(name, Image(values, None), None, values=key)
        headers = dict(record.headers)
        return digest(record.value or b"", headers.get("empty"), left_out or headers.get("left_out"))
