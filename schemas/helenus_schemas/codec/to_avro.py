"""From CQL's bytes to Avro's, without building values in between.

A CQL value travels as the same bytes in commit-log cells, native-protocol rows and bound parameters, so one compiler of
small functions serves the agent's keys and the connector's rows, and no value is squeezed through a Python type that
cannot hold it. Sources: Cassandra's native protocol v4/v5 section 6 (CQL), Avro 1.11 binary encoding (Avro).

A value has one of two forms:
- *exact* (`encoder`): a key's. It is read back (`_from_avro`) to the same bytes, so a value without an exact form is
  refused.
- *plain* (`plain`, `optionals`): a data record's. It shows a value as sinks take it: every map has text keys, and a
  value of no bytes is null where its type has no such value (CQL allows it).
Text that is not UTF-8 is taken by Cassandra, but not by many readers: the plain form refuses it. The exact form has it
as it is, and so has a column of the `key` where data records show that among their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from helenus_schemas.codec import _columns
from helenus_schemas.codec._avro_scalars import (
    CANONICAL_SCALARS,
    SCALARS,
    Encode,
    exact_boolean,
    shown_as,
    string,
    utf8,
)
from helenus_schemas.codec.avro_long import long_bytes, sized_bytes
from helenus_schemas.codec.to_json import distinct, map_key
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import (
    EMPTY_IS_A_VALUE,
    MAY_BE_EMPTY,
    Malformed,
    elements,
    entries,
    fields,
    vector,
)

Optional = Callable[["bytes | None"], bytes]
"""An encoder of the union of null and a type."""


def encoder(t: CqlType, clustering: bool = False) -> Encode:
    """Return a function from a value's CQL bytes to its exact Avro bytes; it raises ValueError on bytes that have none.

    Values that Cassandra's comparison holds for equal are one `clustering` key and have one form: decimals of different
    scale, varints with redundant bytes, NaNs, booleans other than 0, a tuple with fewer fields than its type and the
    one with nulls for them. As partition keys they are different ones: there a tuple with fewer fields, and a boolean
    other than 0 and 1, has no exact form. Raises ValueError for a type without Avro form.
    """
    if clustering:
        return _encoder(t, _CLUSTERING)
    # A key's varint of no bytes comes back as it was: Avro's bytes are the same.
    return sized_bytes if t.name == "varint" else _encoder(t, _PARTITION)


def plain(t: CqlType, key: bool = False) -> Encode:
    """Return a function from CQL bytes to Avro bytes as data records show them, of columns of a `key` or others; raises
    as `encoder`'s does.
    """
    return _encoder(t, _PLAIN_KEY if key else _PLAIN)


def optionals(
    types: Sequence[CqlType], key: bool = False, head: bytes = b""
) -> Callable[[Sequence[bytes | None]], bytes]:
    """Return a function as `plain`, for values of several types: each goes to the union of null and its type, all of
    them after `head`.

    None is null; so are no bytes, unless they are a value of their type.
    """
    by_functions = functions(types, key, head)
    if not _columns.COMPILED:
        return by_functions
    return _columns.Columns(types, plain, by_functions, key, head).encode


def functions(types: Sequence[CqlType], key: bool, head: bytes) -> Callable[[Sequence[bytes | None]], bytes]:
    """Return a function as `optionals`, made of one function for each type."""
    types_with_empty_value = MAY_BE_EMPTY if key else EMPTY_IS_A_VALUE
    items = [(plain(t, key), t.name in types_with_empty_value) for t in types]

    def encode(values: Sequence[bytes | None]) -> bytes:
        return head + b"".join(
            [
                b"\2" + item(data) if data or (empty and data is not None) else b"\0"
                for (item, empty), data in zip(items, values, strict=True)
            ]
        )

    return encode


def nullable(encode: Encode) -> Optional:
    """Return an encoder of the union of null and a type; None alone is null."""

    def encode_union(data: bytes | None) -> bytes:
        return b"\0" if data is None else b"\2" + encode(data)

    return encode_union


_Exact = Callable[[list["bytes | None"], int], "list[bytes | None]"]
"""The fields of a tuple in an exact form, of a type with so many."""


def _check_field_count(parts: list[bytes | None], field_count: int) -> list[bytes | None]:
    if len(parts) != field_count:
        raise Malformed(f"a tuple of {len(parts)} fields where {field_count} are exact")
    return parts


def _pad_fields(parts: list[bytes | None], field_count: int) -> list[bytes | None]:
    return _check_field_count(parts + [None] * (field_count - len(parts)), field_count)


class _Form(NamedTuple):
    """How values are encoded: `own` encoders of scalars replace those of `SCALARS`.

    `exact`: the exact form of a tuple's fields, None in the plain form. `key`: the column is one of the key.
    """

    own: Mapping[str, Encode]
    exact: _Exact | None = None
    key: bool = True


_PARTITION = _Form({"boolean": exact_boolean}, _check_field_count)
_CLUSTERING = _Form(CANONICAL_SCALARS, _pad_fields)
_PLAIN = _Form({"ascii": utf8, "text": utf8}, key=False)
_PLAIN_KEY = _Form({"varint": sized_bytes})


def _encoder(t: CqlType, form: _Form) -> Encode:
    if t.shown_as:
        return shown_as(t)
    if t.name in SCALARS:
        return form.own.get(t.name, SCALARS[t.name])
    if t.name in ("list", "set"):
        return _array(_encoder(t.args[0], form), elements)
    if t.name == "vector":
        width, dimension = t.args[0].width, t.dimension
        return _array(_encoder(t.args[0], form), lambda data: vector(data, width, dimension))
    if t.name == "map":
        # An Avro map has text keys; an exact map with other keys is an array of records, which has the same bytes.
        key = t.args[0]
        has_text_keys = form.exact is None and key.name not in ("ascii", "text")
        encode_key = string(map_key(key, form.key)) if has_text_keys else _encoder(key, form)
        return (_distinct_map if has_text_keys and not form.key else _map)(encode_key, _encoder(t.args[1], form))
    if t.name in ("udt", "tuple"):
        if form.exact is None:
            return _record(t.args, form.key)
        return _exact_record([nullable(_encoder(a, form)) for a in t.args], form.exact)
    raise ValueError(f"the type {t} has no Avro form")


def _array(item: Encode, parts_of: Callable[[bytes], list[bytes]]) -> Encode:
    def encode(data: bytes) -> bytes:
        parts = parts_of(data)
        if not parts:
            return b"\0"
        return b"".join([long_bytes(len(parts)), *map(item, parts), b"\0"])

    return encode


def _map(key: Encode, value: Encode) -> Encode:
    def encode(data: bytes) -> bytes:
        parts = entries(data)
        if not parts:
            return b"\0"
        return b"".join([long_bytes(len(parts)), *[key(k) + value(v) for k, v in parts], b"\0"])

    return encode


def _distinct_map(key: Encode, value: Encode) -> Encode:
    def encode(data: bytes) -> bytes:
        parts = distinct(data, key, value)
        if not parts:
            return b"\0"
        return b"".join([long_bytes(len(parts)), *[k + v for k, v in parts.items()], b"\0"])

    return encode


def _record(types: Sequence[CqlType], key: bool) -> Encode:
    """Return a UDT or tuple: fields that an older version of the type did not have are missing at the end, and null."""
    encode = optionals(types, key)
    field_count = len(types)

    def encode_record(data: bytes) -> bytes:
        parts = fields(data, field_count)
        return encode(parts + [None] * (field_count - len(parts)))

    return encode_record


def _exact_record(items: Sequence[Optional], exact: _Exact) -> Encode:
    field_count = len(items)

    def encode(data: bytes) -> bytes:
        # One more than the type has, to see that there are no more.
        parts = exact(fields(data, field_count + 1), field_count)
        return b"".join([item(part) for item, part in zip(items, parts, strict=True)])

    return encode
