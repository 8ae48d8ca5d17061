"""The primary key of a table as event key: CQL bytes of its columns to Avro and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations_with_replacement, islice
from typing import Literal

from helenus_schemas.codec import _datastax_key, _key_bytes
from helenus_schemas.codec._avro_scalars import Encode
from helenus_schemas.codec._from_avro import Decode, decoder
from helenus_schemas.codec._from_avro import nullable as read_nullable
from helenus_schemas.codec.avro_long import long_bytes, read_long
from helenus_schemas.codec.to_avro import Optional, encoder, nullable
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, walk
from helenus_schemas.cql.values import MAY_BE_EMPTY, Malformed, stand_in

Key = tuple["bytes | None", ...]
"""CQL bytes of the primary key's columns, in order; None from the first clustering column on for a whole partition.

In Avro a clustering value of no bytes, of a type that has no such value, is null too: the event's scope shows which
it is. In a composite partition key a stand-in replaces such a value, zero as a rule. The indexes of stand-ins in the
partition key follow the record, as Avro ints. A reader that knows the schema alone does not read that far.
"""
Compat = Literal["exact", "datastax", "cep44"]
"""The form of a key: `exact`; or DataStax's (`_datastax_key`); or a text that only the shape `cep44` writes, here as
`exact`.
"""


class Outgrown(Malformed):
    """A row's key from before a type in its partition key got a field: the row keeps it, and today's form has no such
    key.
    """


_MAX_FORMER_TYPES = 256  # former tables that are tried at most: their number grows with the power of the types' fields


class KeyCodec:
    """Encodes and decodes the keys of one table. Raises ValueError for a key column without Avro form, by name.

    `may_grow`: a type in the key may get fields, and then events may hold keys in former forms.
    """

    def __init__(self, table: Table, compat: Compat = "exact") -> None:
        self.partition_columns = len(table.partition_key)
        self.columns = len(table.primary_key)
        self._table = table
        self.may_grow = any(map(_may_grow, (c.type for c in table.primary_key)))
        codecs = [_codec(column, compat) for column in table.primary_key]
        self._encoders = [encode for encode, _ in codecs[: self.partition_columns]]
        self._optional = [
            nullable(encode) if c.type.name in MAY_BE_EMPTY else _unless_empty(encode)
            for c, (encode, _) in zip(table.primary_key, codecs, strict=True)
        ]
        self._nullable = self._optional[self.partition_columns :]
        # Cassandra refuses a value of no bytes for a partition key of one column.
        composite = table.partition_key if self.partition_columns > 1 else ()
        self._stand_ins = {i: stand_in(c.type) for i, c in enumerate(composite) if c.type.name not in MAY_BE_EMPTY}
        self._decoders = [decode for _, decode in codecs[: self.partition_columns]]
        self.has_one_form = all(_has_one_form(c.type) for c in table.clustering)
        self.has_several_forms = not all(_has_one_form(c.type) for c in table.partition_key)
        self._comparable = [nullable(encoder(c.type, clustering=True)) for c in table.partition_key]
        self.read_key: Callable[[bytes], Key | None] | None = None
        """What decodes most keys; it returns None for one that `decode` is to decode. None where nothing is faster."""
        if _key_bytes.COMPILED and compat != "datastax":
            types = [c.type for c in table.partition_key], [c.type for c in table.clustering]
            self.read_key = _key_bytes.KeyBytesReader(*types).read_key
        self._read_nullable = [read_nullable(decode) for _, decode in codecs[self.partition_columns :]]

    def encode(self, key: Sequence[bytes | None]) -> bytes:
        """Encode the key as an Avro record without header: partition columns plain, clustering columns nullable."""
        n = self.partition_columns
        indexes = self.stand_in_indexes(key)
        values = (
            [self._stand_ins[i] if i in indexes else value for i, value in enumerate(key[:n])] if indexes else key[:n]
        )
        parts = [encode(value or b"") for encode, value in zip(self._encoders, values, strict=True)]
        parts += [encode(value) for encode, value in zip(self._nullable, key[n:], strict=True)]
        return b"".join([*parts, *map(long_bytes, indexes)])

    def stand_in_indexes(self, key: Sequence[bytes | None]) -> list[int]:
        """Return the indexes, in the partition key, of empty values that their types do not have: these get
        stand-ins.
        """
        return [i for i in self._stand_ins if not key[i]] if b"" in key else []

    def encode_nullable(self, key: Sequence[bytes | None]) -> bytes:
        """Encode the key as an Avro record all of whose columns are nullable: values of no bytes are null."""
        return b"".join([encode(value) for encode, value in zip(self._optional, key, strict=True)])

    def normalize(self, key: Key) -> Key:
        """Return the key in the form that `decode` returns: rows may be written, or read, with other forms of equal
        values.
        """
        return key if self.has_one_form else self.decode(self.encode(key))

    def decode_nullable(self, data: bytes) -> Key:
        """Decode a key that `encode_nullable` wrote: a null in the partition key was no bytes. Raises Malformed."""
        values: list[bytes | None] = []
        offset = 0
        try:
            for read in (*map(read_nullable, self._decoders), *self._read_nullable):
                value, offset = read(data, offset)
                values.append(b"" if value is None and len(values) < self.partition_columns else value)
        except (IndexError, ValueError) as error:
            raise Malformed(f"not a key of this table: {error}") from None
        if offset != len(data):
            raise Malformed(f"{len(data) - offset} bytes too many")
        return tuple(values)

    def comparison_bytes(self, key: Key) -> bytes:
        """Return bytes that are equal for partition keys that Cassandra's comparison holds for equal. Where keys have
        `has_several_forms`, equal ones may belong to different partitions.
        """
        return b"".join([encode(value or None) for encode, value in zip(self._comparable, key, strict=True)])

    def current_key(self, data: bytes, foreign: bool = False) -> bytes:
        """Return an event's key in the form that this row's key has now.

        It may have been written by another agent (`foreign`), or before a type in the key got fields. Raises Malformed,
        and Outgrown.
        """
        if foreign:
            return self.encode(self._foreign.decode(data))
        return self._to_current_form(data) if self.may_grow else data

    def microsecond_bounds(self, key: Key) -> tuple[tuple[bytes, ...], tuple[bytes, ...]] | None:
        """Return the first and last clustering values, in the table's order, that one key of DataStax's may stand for:
        its time is in µs, so 1000 times in ns share it.

        None if the key stands for one row, or for a whole partition.
        """
        values = key[self.partition_columns :]
        for index, (column, value) in enumerate(zip(self._table.clustering, values, strict=True)):
            if column.type.name == "time" and value is not None and None not in values:
                start = int.from_bytes(value, "big", signed=True)
                numbers = (start, min(start + 999, (1 << 63) - 1))
                ends = [(*values[:index], n.to_bytes(8, "big", signed=True)) for n in numbers]
                first, last = reversed(ends) if column.reversed else ends
                return first, last  # type: ignore[return-value]
        return None

    @cached_property
    def _foreign(self) -> KeyCodec:
        return KeyCodec(self._table, "datastax")

    @cached_property
    def _former_types(self) -> list[KeyCodec]:
        return [KeyCodec(table) for table in islice(_former_tables(self._table), _MAX_FORMER_TYPES)]

    def _to_current_form(self, data: bytes) -> bytes:
        """Return a key, which may be in a former form, in the current one. Raises Malformed, and Outgrown.

        A former key's bytes may happen to decode as a current key, but then it most likely has gaps: so keys with
        gaps come last.
        """
        gapped: bytes | None = None
        outgrown: Malformed | None = None
        for codec in chain((self,), self._former_types):
            try:
                key = codec.decode(data)
            except Malformed:
                continue
            try:
                current_key = data if codec is self else self.encode(key)
            except Malformed as error:
                outgrown = error
                continue
            if not self._has_gap(key):
                return current_key
            gapped = gapped or current_key
        if gapped is None and outgrown is not None:
            raise Outgrown(f"a key from before a type in it got a field: {outgrown}")
        return gapped or self.encode(self.decode(data))  # which raises

    def _has_gap(self, key: Key) -> bool:
        """Return whether some clustering values are null and others not: a row's are null only where they have no
        bytes.
        """
        return None in key and any(value is not None for value in key[self.partition_columns :])

    def decode(self, data: bytes) -> Key:
        """Decode the key of an event. Raises Malformed if the bytes are not a key of this table."""
        if self.read_key is not None and (key := self.read_key(data)) is not None:
            return key
        return self._decode(data)

    def _decode(self, data: bytes) -> Key:
        """Decode as `decode`, by a function for each column."""
        values: list[bytes | None] = []
        offset = 0
        value: bytes | None
        try:
            for decode in self._decoders:
                value, offset = decode(data, offset)
                values.append(value)
            for read in self._read_nullable:
                value, offset = read(data, offset)
                values.append(value)
            if offset != len(data):
                self._remove_stand_ins(values, data, offset)
        except (IndexError, ValueError) as error:
            raise Malformed(f"not a key of this table: {error}") from None
        return tuple(values)

    def _remove_stand_ins(self, values: list[bytes | None], data: bytes, offset: int) -> None:
        """Replace stand-ins by no bytes, at the indexes that follow the record."""
        remaining_bytes = len(data) - offset
        last_index = -1
        while offset < len(data):
            index, offset = read_long(data, offset)
            if index <= last_index or index not in self._stand_ins or values[index] != self._stand_ins[index]:
                raise Malformed(f"{remaining_bytes} bytes too many")
            values[index] = b""
            last_index = index


def _has_one_form(t: CqlType) -> bool:
    """Return whether equal clustering values of a type have equal bytes."""
    several = ("boolean", "decimal", "varint", "float", "double", "tuple", "udt")
    return t.name not in several and all(map(_has_one_form, t.args))


def _unless_empty(encode: Encode) -> Optional:
    return lambda data: b"\2" + encode(data) if data else b"\0"


def _may_grow(t: CqlType) -> bool:
    """Return whether ALTER TYPE can give a type more fields."""
    return t.name == "udt" or any(map(_may_grow, t.args))


def _former_tables(table: Table) -> Iterator[Table]:
    """Yield the table as it may have been: with fewer fields in types of its key, those that miss the fewest first."""
    max_cuts = {t.label: len(t.fields) - 1 for t in walk(c.type for c in table.primary_key) if len(t.fields) > 1}
    for missing in range(1, sum(max_cuts.values()) + 1):
        for labels in combinations_with_replacement(max_cuts, missing):
            cuts = Counter(labels)
            if all(max_cuts[label] >= count for label, count in cuts.items()):
                columns = (replace(c, type=_cut(c.type, cuts)) for c in table.columns)
                yield replace(table, columns=tuple(columns))


def _cut(t: CqlType, cuts: Mapping[str, int]) -> CqlType:
    """Return a type whose user-defined types lack as many of their last fields as `cuts` says, by name."""
    args = tuple(_cut(a, cuts) for a in t.args)
    if t.name == "udt":
        count = len(args) - cuts.get(t.label, 0)
        return replace(t, args=args[:count], fields=t.fields[:count])
    return replace(t, args=args) if args else t


def _codec(column: Column, compat: Compat) -> tuple[Encode, Decode]:
    try:
        clustering = column.kind == "clustering"
        return _datastax(column.type, clustering) if compat == "datastax" else _exact(column.type, clustering)
    except ValueError as error:
        raise ValueError(f"column {column.name}: {error}") from None


def _exact(t: CqlType, clustering: bool) -> tuple[Encode, Decode]:
    return encoder(t, clustering), decoder(t)


def _datastax(t: CqlType, clustering: bool) -> tuple[Encode, Decode]:
    encode, decode = _datastax_key.avro_codec(t, clustering)
    exact_encode, exact_decode = _exact(t, clustering)
    return encode or exact_encode, decode or exact_decode
