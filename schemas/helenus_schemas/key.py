"""The primary key of a table as event key: CQL bytes of its columns to Avro and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from helenus_schemas.cql import CqlType
from helenus_schemas.cqlvalue import Malformed
from helenus_schemas.from_avro import NUMBERS, Decode, decoder, number
from helenus_schemas.from_avro import nullable as read_nullable
from helenus_schemas.table import Column, Table
from helenus_schemas.transcode import Encode, encoder, long_bytes, nullable

Key = tuple["bytes | None", ...]
"""CQL bytes of the primary key's columns, in order; None from the first clustering column on for a whole partition."""
Compat = Literal["exact", "datastax"]
"""The form of a key: `exact`, or DataStax's, with tinyint and smallint unsigned and a time in µs."""


class KeyCodec:
    """Encodes and decodes the keys of one table. Raises ValueError for a key column without Avro form, by name."""

    def __init__(self, table: Table, compat: Compat = "exact") -> None:
        self.partition_columns = len(table.partition_key)
        codecs = [_codec(column, compat) for column in table.primary_key]
        self._encoders = [encode for encode, _ in codecs[: self.partition_columns]]
        self._nullable = [nullable(encode) for encode, _ in codecs[self.partition_columns :]]
        self._decoders = [decode for _, decode in codecs[: self.partition_columns]]
        self._one_form = all(_has_one_form(c.type) for c in table.clustering)
        self._read_nullable = [read_nullable(decode) for _, decode in codecs[self.partition_columns :]]

    def encode(self, key: Sequence[bytes | None]) -> bytes:
        """The key as an Avro record without header: partition columns plain, clustering columns nullable."""
        n = self.partition_columns
        parts = [encode(value or b"") for encode, value in zip(self._encoders, key[:n], strict=True)]
        parts += [encode(value) for encode, value in zip(self._nullable, key[n:], strict=True)]
        return b"".join(parts)

    def same(self, key: Key) -> Key:
        """The key as `decode` gives it: of a row that was written, or read, in another form of equal values."""
        return key if self._one_form else self.decode(self.encode(key))

    def decode(self, data: bytes) -> Key:
        """The key of an event. Raises Malformed if the bytes are no key of this table."""
        values: list[bytes | None] = []
        at = 0
        value: bytes | None
        try:
            for decode in self._decoders:
                value, at = decode(data, at)
                values.append(value)
            for read in self._read_nullable:
                value, at = read(data, at)
                values.append(value)
        except (IndexError, ValueError) as error:
            raise Malformed(f"not a key of this table: {error}") from None
        if at != len(data):
            raise Malformed(f"not a key of this table: {len(data) - at} bytes too many")
        return tuple(values)


def _has_one_form(t: CqlType) -> bool:
    """Whether equal clustering values of a type have equal bytes."""
    return t.name not in ("decimal", "tuple", "udt") and all(map(_has_one_form, t.args))


def _codec(column: Column, compat: Compat) -> tuple[Encode, Decode]:
    try:
        clustering = column.kind == "clustering"
        return _datastax(column.type, clustering) if compat == "datastax" else _exact(column.type, clustering)
    except ValueError as error:
        raise ValueError(f"column {column.name}: {error}") from None


def _exact(t: CqlType, clustering: bool) -> tuple[Encode, Decode]:
    return encoder(t, clustering), decoder(t)


def _datastax(t: CqlType, clustering: bool) -> tuple[Encode, Decode]:
    if t.name in ("tinyint", "smallint"):
        return _unsigned(NUMBERS[t.name]), number(NUMBERS[t.name], unsigned=True)
    if t.name == "time":
        return _microseconds, number(8, factor=1000)
    return _exact(t, clustering)


def _unsigned(width: int) -> Encode:
    def encode(data: bytes) -> bytes:
        if len(data) != width:
            raise Malformed(f"{len(data)} bytes where {width} are a value")
        return long_bytes(int.from_bytes(data, "big"))

    return encode


def _microseconds(data: bytes) -> bytes:
    if len(data) != 8:
        raise Malformed(f"{len(data)} bytes where 8 are a value")
    return long_bytes(int.from_bytes(data, "big", signed=True) // 1000)
