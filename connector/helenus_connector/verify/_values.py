"""Convert a record's value to the bytes that are compared, whatever schema it was written by.

A value of today's schema stays as it is. Others are decoded by their own schema, and encoded again by today's, which a
reader would do too: columns that came later are null, those that were dropped are left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import fastavro

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.encoding.forms import nullable_schema
from helenus_connector.verify._contents import NORMAL, NULLABLE, column_names, row_format, table_of_rows
from helenus_schemas.avro import build as avro
from helenus_schemas.avro.compare import check_size, parsed, without_names
from helenus_schemas.codec.from_json import Pairs
from helenus_schemas.cql.table import Table

Schemas = Callable[[Any], "str | None"]
"""Gives a schema as text by its number in the registry, or its version on Pulsar; None if it is not known."""
Headers = dict[str, bytes]
Form = Callable[[bytes], "bytes | None"]
Said = tuple["bytes | None", "bytes | None"]
"""The headers `empty` and `left_out`."""
_UNREADABLE = b"\0unreadable"


class AvroValues:
    """Values in Avro, without their frames. `keeps_schemas`: there are no frames, as on Pulsar."""

    def __init__(self, table: Table, settings: ConnectorSettings, keeps_schemas: bool, schemas: Schemas) -> None:
        self._schemas = schemas
        rows = table_of_rows(table)
        self._targets = {
            True: parsed(avro.text(avro.value_schema(table))),
            False: None if rows is None else parsed(avro.text(avro.value_schema(rows))),
        }
        # A table of key columns only: they may be null in another schema, and have former names in each.
        self._keyed = not table.values
        self._nullable = parsed(nullable_schema(table, settings, "value")) if self._keyed else None
        self._frames = (b"", b"") if keeps_schemas else (NORMAL, NULLABLE)
        self._names = {
            s: {c.name for c in (*table.primary_key, *shown_table.values)} if shown_table else set()
            for s, shown_table in _compared_tables(table)
        }
        self._is_enveloped = settings.is_envelope
        self._forms: dict[tuple[Any, bool], Form | None] = {}

    def value(self, data: bytes, number: Any, headers: Headers, static: bool) -> bytes | None:  # noqa: ARG002
        """The bytes that are compared, of the Avro of a value by its schema's number. None if it says that the row is
        gone.
        """
        name = number, static
        if name not in self._forms:
            self._forms[name] = self._form(number, static)
        form = self._forms[name]
        if form is None:
            return self._frames[0] + data
        try:
            return form(data)
        except Exception:  # fastavro's own, and Python's for bytes of another schema
            return _UNREADABLE + data

    def hidden_columns(self, number: Any, headers: Headers, static: bool) -> Said:
        """The headers that say what the value does not show, of columns that are compared."""
        empty, left_out = headers.get("empty"), headers.get("left_out")
        if not (empty or left_out) or self._forms[number, static] is None:
            return empty, left_out
        return _only(empty, self._names[static]), _only(left_out, self._names[static])

    def _form(self, number: Any, static: bool) -> Form | None:
        """Return the function that converts values of a schema; None if they stay as they are."""
        target, text = self._targets[static], self._schemas(number)
        if target is None and not self._is_enveloped:
            return lambda _: b""
        if text is None:
            return lambda data: _UNREADABLE + data
        try:
            writer = parsed(text)
        except ValueError:  # of another kind than Avro
            return lambda data: _UNREADABLE + data
        if self._is_enveloped:
            return self._converter(writer, target)
        if writer == target or (self._keyed and without_names(writer) == without_names(target)):
            return None
        if self._keyed and without_names(writer) == without_names(self._nullable):
            return lambda data: self._frames[1] + data
        return self._converter(writer, target)

    def _converter(self, writer: Any, target: Any) -> Form:
        """Return a function from values of one schema, or the rows in its envelopes, to the `target` schema's; without
        one all are equal."""
        try:
            check_size(writer)
            written = fastavro.parse_schema(_bare(writer))
        except Exception:  # fastavro has several
            return lambda data: _UNREADABLE + data
        wanted = None if target is None else fastavro.parse_schema(_bare(target))

        def convert(data: bytes) -> bytes | None:
            source, out = io.BytesIO(data), io.BytesIO()
            value: Any = fastavro.schemaless_reader(source, written, None if self._is_enveloped else wanted)
            if source.read(1):
                raise ValueError("bytes are left")
            if self._is_enveloped:
                value = value["after"]
            if value is None or wanted is None:
                return None if value is None else b""
            fastavro.schemaless_writer(out, wanted, value)
            return self._frames[0] + out.getvalue()

        return convert


class JsonValues:
    """Values in JSON."""

    def __init__(self, table: Table, settings: ConnectorSettings) -> None:
        self._schema_id = table.schema_id.encode()
        has_key_columns = row_format(settings) == "json"
        # Where a record has its row: within its schema's payload, within an envelope.
        self._path = ("payload",) * settings.json_schemas[1] + ("after",) * settings.is_envelope
        self._columns: dict[bool, list[str] | None] = {}
        for static, shown_table in _compared_tables(table):
            columns = None if shown_table is None else avro.value_columns(shown_table)
            keys = table.primary_key if has_key_columns and shown_table is not None and shown_table.values else ()
            self._columns[static] = None if columns is None else [c.name for c in (*keys, *columns)]
        self._projects = {True: False, False: bool(table.statics)}
        self._names = {
            s: {c.name for c in (*table.primary_key, *shown_table.values)} if shown_table else set()
            for s, shown_table in _compared_tables(table)
        }

    def value(self, data: bytes, number: Any, headers: Headers, static: bool) -> bytes | None:  # noqa: ARG002
        """The bytes that are compared, of the JSON of a value. None if it says that the row is gone."""
        columns = self._columns[static]
        if self._is_current(headers, static):
            return data
        if columns is None and not self._path:
            return b""
        try:
            content = _loaded(data)
            for name in self._path:
                content = dict(content)[name]
            if content is None or (self._path and not content):
                return None
            return b"" if columns is None else _project(content, columns)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return _UNREADABLE + data

    def hidden_columns(self, number: Any, headers: Headers, static: bool) -> Said:  # noqa: ARG002
        """The headers that say what the value does not show, of columns that are compared."""
        empty, left_out = headers.get("empty"), headers.get("left_out")
        if self._is_current(headers, static):
            return empty, left_out
        return _only(empty, self._names[static]), _only(left_out, self._names[static])

    def _is_current(self, headers: Headers, static: bool) -> bool:
        return not self._projects[static] and not self._path and headers.get("schema_id") == self._schema_id


def _compared_tables(table: Table) -> tuple[tuple[bool, Table | None], tuple[bool, Table | None]]:
    """Return the table as its partitions' own records, and as its rows' records, are compared."""
    return (True, table), (False, table_of_rows(table))


def _only(header: bytes | None, names: set[str]) -> bytes | None:
    """Return a header that lists columns, with these alone; None for none."""
    listed = column_names(header)
    names_kept = (
        [name for name in json.loads(header) if name in names] if header and not names.isdisjoint(listed) else []
    )
    return json.dumps(names_kept, ensure_ascii=False).encode() if names_kept else None


def _bare(schema: Any) -> Any:
    """Return a schema without its logical types: dates and times that Python cannot hold stay numbers."""
    if isinstance(schema, dict):
        return {name: _bare(value) for name, value in schema.items() if name != "logicalType"}
    return [_bare(branch) for branch in schema] if isinstance(schema, list) else schema


class _Number(str):
    """A number, or another word that is no text, as it is written."""

    __slots__ = ()


def _loaded(data: bytes) -> Any:
    """Parse JSON whose numbers stay as they are written. Raises ValueError."""
    return json.loads(data, parse_float=_Number, parse_int=_Number, parse_constant=_Number, object_pairs_hook=Pairs)


def _project(content: Any, columns: Sequence[str]) -> bytes:
    """Encode a JSON object with these members alone; those that it has not are null."""
    members = dict(content)
    return f"{{{','.join(f'{encode_basestring(name)}:{_text(members.get(name))}' for name in columns)}}}".encode()


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        return encode_basestring(value) if _is_utf8(value) else encode_basestring_ascii(value)
    if isinstance(value, Pairs):
        return f"{{{','.join(f'{_text(name)}:{_text(member)}' for name, member in value)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return "true" if value else "false"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
