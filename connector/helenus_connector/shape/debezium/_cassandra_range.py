"""Describe the ends of a range as Debezium's Cassandra connector does: with the names of Cassandra's classes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from helenus_connector.shape.debezium._cassandra_values import short_class
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.text import as_text, java_inet
from helenus_schemas.cql.types import CqlType, quote
from helenus_schemas.cql.values import fields
from helenus_schemas.event.change import Bound

_PACKAGE = "org.apache.cassandra.db.marshal."


def range_end(table: Table, bound: Bound | None, end: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the kind of the `START` or `END` of a range, and of each value the column's name, its text, and its class.

    Without a bound it is open. Raises ValueError for bytes that are no values.
    """
    if bound is None:
        return f"INCL_{end}_BOUND", []
    values = [
        (quote(column.name), value_text(column.type, value), column_class(column, table.keyspace))
        for column, value in zip(table.clustering, bound.values, strict=False)
    ]
    return f"{'INCL' if bound.inclusive else 'EXCL'}_{end}_BOUND", values


def column_class(column: Column, keyspace: str) -> str:
    """Return the class of a clustering column's type, as `AbstractType.toString` has it."""
    type_class = _type_class(column.type, keyspace)
    if column.type.name in ("list", "set", "map", "udt"):
        type_class = f"{_PACKAGE}FrozenType({type_class})"
    return f"{_PACKAGE}ReversedType({type_class})" if column.reversed else type_class


def _type_class(t: CqlType, keyspace: str) -> str:
    if t.name == "custom":
        return t.label
    inner = [_type_class(a, keyspace) for a in t.args]
    if t.name == "udt":
        named = [f"{f.encode().hex()}:{c}" for f, c in zip(t.fields, inner, strict=True)]
        inner = [keyspace, t.label.encode().hex(), *named]
    elif t.name == "vector":
        inner = [f"{inner[0]} , {t.dimension}"]
    return f"{_PACKAGE}{short_class(t)}Type" + (f"({','.join(inner)})" if inner else "")


def value_text(t: CqlType, value: bytes) -> str:
    """Return a value as `AbstractType.getString` has it. Raises ValueError and struct.error."""
    if t.name in ("tuple", "udt"):
        return ":".join(_field_text(a, part) for a, part in zip(t.args, fields(value, len(t.args)), strict=False))
    if not value:
        return ""
    if t.name == "inet":
        return java_inet(value)
    text = None if t.name == "blob" else as_text(t)
    if text is None:
        return value.hex()
    return _java_float(text(value)) if t.name in ("float", "double") else text(value)


def _field_text(t: CqlType, value: bytes | None) -> str:
    return "@" if value is None else value_text(t, value).replace(":", "\\:").replace("@", "\\@")


def _java_float(text: str) -> str:
    """Return the text of a number as Java's `Double.toString` has it: `1.0E10`."""
    if not text[-1].isdigit():
        return text
    number = Decimal(text)
    if not number or 7 > number.adjusted() >= -3:
        whole, _, fraction = f"{number:f}".partition(".")
        return f"{whole}.{fraction.rstrip('0') or '0'}"
    digits: Sequence[int] = number.as_tuple().digits
    mantissa = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if number < 0 else ''}{mantissa[0]}.{mantissa[1:] or '0'}E{number.adjusted()}"
