"""Cassandra's order of values: CQL bytes to what Python compares the same way.

For the bounds of a deleted range, which are clustering values. Source: the `compareCustom` of Cassandra 5.0's types.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import elements, entries, fields, vector

Order = Callable[["bytes | None"], Any]
"""Null comes first, then a value of no bytes."""


def order(t: CqlType) -> Order:
    """Return what a type's values are compared by, of one type with each other. Raises ValueError for a type without
    order; the function does for bytes that are no value.
    """
    comparison_key = _order(t)

    def sort_key(data: bytes | None) -> Any:
        if data is None:
            return ()
        return (0,) if not data else (1, comparison_key(data))

    return sort_key


def _order(t: CqlType) -> Callable[[bytes], Any]:
    if t.name in _SCALARS:
        return _SCALARS[t.name]
    parts = [order(a) for a in t.args]
    if t.name in ("list", "set"):
        return lambda data: [parts[0](part) for part in elements(data)]
    if t.name == "map":
        return lambda data: [(parts[0](key), parts[1](value)) for key, value in entries(data)]
    if t.name == "vector":
        return lambda data: [parts[0](part) for part in vector(data, t.args[0].width, t.dimension)]
    if t.name in ("tuple", "udt"):
        field_count = len(parts)

        def fields_of(data: bytes) -> Any:
            values = fields(data, field_count)
            return [part(f) for part, f in zip(parts, values + [None] * (field_count - len(values)), strict=True)]

        return fields_of
    raise ValueError(f"values of the type {t} have no order")


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _decimal(data: bytes) -> Decimal:
    sign, digits, _ = Decimal(_signed(data[4:])).as_tuple()
    return Decimal((sign, digits, -_signed(data[:4])))


def _float(code: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(f">{code}").unpack

    def compared(data: bytes) -> Any:
        (value,) = unpack(data)
        return (True, 0.0, 1.0) if math.isnan(value) else (False, value, math.copysign(1, value))

    return compared


def _timeuuid(data: bytes) -> Any:
    return data[6:8] + data[4:6] + data[:4], bytes(b ^ 0x80 for b in data[8:])


def _uuid(data: bytes) -> Any:
    """Return the sort key of a UUID: its version; then of version 1 the time; then the bytes."""
    version = data[6] >> 4
    if version == 1:
        return version, _timeuuid(data)
    return version, (data, b"")


_SCALARS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("ascii", "text", "blob", "inet", "date", "time"), bytes),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "timestamp", "varint"), _signed),
    "boolean": lambda data: data != b"\0",
    "float": _float("f"),
    "double": _float("d"),
    "decimal": _decimal,
    "uuid": _uuid,
    "timeuuid": _timeuuid,
}
