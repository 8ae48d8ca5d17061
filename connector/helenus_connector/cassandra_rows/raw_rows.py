"""Reads rows as the server sends them: each value as its CQL bytes, undecoded.

Values that are read from Cassandra are written to Avro. Building Python values in between would take most of the time
of a read, and some values (a timestamp after the year 9999, for example) have no Python equivalent.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from cassandra import RequestExecutionException
from cassandra.cluster import ResponseFuture
from cassandra.cqltypes import BytesType
from cassandra.policies import ColDesc
from cassandra.protocol import ProtocolHandler, ResultMessage, _ProtocolHandler, read_binary_string, read_short
from cassandra.query import named_tuple_factory

try:  # compiled parts of the driver's wheels
    from cassandra.bytesio import BytesIOReader
    from cassandra.deserializers import make_deserializers
    from cassandra.obj_parser import ListParser
    from cassandra.parsing import ParseDesc
except ImportError:
    ListParser = None

_SIZE = struct.Struct(">i")

RawRow = tuple["bytes | None", ...]


# Cassandra's own keyspaces; others' names may begin so too.
_SYSTEM = frozenset(
    "system system_auth system_distributed system_schema system_traces system_views system_virtual_schema".split()
)


class RowPage(list[RawRow]):
    """The rows of one answer; `size` in bytes."""

    size = 0


_CUSTOM, _LIST, _MAP, _SET, _UDT, _TUPLE = 0x00, 0x20, 0x21, 0x22, 0x30, 0x31


class UnreadableAnswer(RequestExecutionException):
    """An answer of Cassandra's that the driver cannot decode."""


class _RawResult(ResultMessage):
    _reads_values = False

    def read_type(self, f: Any, user_type_map: Any) -> Any:
        """Skip a column's type, which raw values do not need. Source: native protocol v4 section 4.2.5.2.

        Cassandra gives some types as class names, such as a vector of a user-defined type. The driver misreads some of
        those names, and would close the connection, which all tables share.
        """
        if self._reads_values:
            return ResultMessage.read_type(f, user_type_map)
        _skip_type(f)
        return BytesType

    def recv_results_rows(
        self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, column_encryption_policy: Any
    ) -> None:
        start = f.tell()
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        if columns[0][0] in _SYSTEM:
            # Schema and topology are read as values, through the same session.
            f.seek(start)
            self._reads_values = True
            super().recv_results_rows(f, protocol_version, user_type_map, result_metadata, column_encryption_policy)
            return
        self.column_names = [c[2] for c in columns]
        self.column_types = [c[3] for c in columns]
        self.parsed_rows = parse(f.read(), len(columns))


def _skip_type(f: Any) -> None:
    code = read_short(f)
    if code == _CUSTOM:
        read_binary_string(f)
    elif code in (_LIST, _SET):
        _skip_type(f)
    elif code == _MAP:
        _skip_type(f)
        _skip_type(f)
    elif code == _TUPLE:
        for _ in range(read_short(f)):
            _skip_type(f)
    elif code == _UDT:
        read_binary_string(f)
        read_binary_string(f)
        for _ in range(read_short(f)):
            read_binary_string(f)
            _skip_type(f)


class RawProtocolHandler(_ProtocolHandler):
    """A driver protocol handler whose rows of user tables are tuples of CQL bytes, None for null.

    An answer that it cannot decode becomes the error of that request: the driver itself would close the connection.
    """

    message_types_by_opcode = {**_ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _RawResult}

    @classmethod
    def decode_message(
        cls, version: int, types: Any, stream: int, flags: int, opcode: int, body: bytes, decompress: Any, metadata: Any
    ) -> Any:
        try:
            return super().decode_message(version, types, stream, flags, opcode, body, decompress, metadata)
        except Exception as error:
            if opcode != ResultMessage.opcode:
                raise
            return UnreadableAnswer(f"an answer of Cassandra's cannot be decoded: {type(error).__name__}: {error}")


def row_factory(names: list[str], rows: list[Any]) -> list[Any]:
    """Return raw rows unchanged, and rows of system tables as named tuples."""
    return rows if isinstance(rows, RowPage) else list(named_tuple_factory(names, rows))


def parse(data: bytes, columns: int) -> RowPage:
    """Parse the rows of a Rows result, from the row count on. Source: native protocol v4 section 4.2.5.2."""
    if ListParser is None:
        return _parse(data, columns)
    rows = RowPage(ListParser().parse_rows(BytesIOReader(data), _blobs(columns)))
    rows.size = len(data)
    return rows


@cache
def _blobs(columns: int) -> Any:
    """Return the row description for the driver's parser: columns whose values are their bytes."""
    types = [BytesType] * columns
    named = [ColDesc("", "", "")] * columns
    return ParseDesc([""] * columns, types, None, named, make_deserializers(types), 4)


def _parse(data: bytes, columns: int) -> RowPage:
    """Do the same as `parse` in plain Python, fifteen times slower."""
    rows = RowPage()
    rows.size = len(data)
    unpack = _SIZE.unpack_from
    (count,) = unpack(data)
    position = 4
    for _ in range(count):
        row: list[bytes | None] = []
        for _ in range(columns):
            (size,) = unpack(data, position)
            position += 4
            if size < 0:
                row.append(None)
            else:
                row.append(data[position : position + size])
                position += size
        rows.append(tuple(row))
    if position > len(data):
        raise EOFError("a Rows result that ends early")
    return rows


def collection(values: list[bytes]) -> bytes:
    """Encode a list of values as CQL: the value of an IN marker."""
    return _SIZE.pack(len(values)) + b"".join(_SIZE.pack(len(v)) + v for v in values)


def tuple_value(values: tuple[bytes, ...]) -> bytes:
    """Encode a tuple as CQL: an element of a multi-column IN."""
    return b"".join(_SIZE.pack(len(v)) + v for v in values)


class _SessionHandler:
    """The protocol handler of a future that was created without one: its session's, if that reads rows as bytes.

    `Session.prepare`, and preparing on other nodes, pass no handler, unlike all other requests. Other sessions of the
    process keep the driver's own handler.
    """

    def __get__(self, future: Any, owner: Any = None) -> Any:
        handler = getattr(getattr(future, "session", None), "client_protocol_handler", None)
        is_raw = isinstance(handler, type) and issubclass(handler, RawProtocolHandler)
        return handler if is_raw else ProtocolHandler


ResponseFuture._protocol_handler = _SessionHandler()
