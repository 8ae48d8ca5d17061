"""Delete markers of a data topic: which rows a range delete takes. docs/decisions/0006-markers.md has their form.

A range is compared in the table's clustering order, which Avro's types do not always tell: an inet is a string there.
Where the orders that a column may have disagree on a row, the answer is None, and whoever asks has to say so.
"""

from __future__ import annotations

import ipaddress
import json
import math
import uuid
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple


class Order(NamedTuple):
    """What a column's values are compared by: a record's as records.py gives them, and a bound's as JSON has them."""

    record: Callable[[Any], Any]
    bound: Callable[[Any], Any]


class Bound(NamedTuple):
    """Where a range begins or ends: values of the first clustering columns, in their order."""

    values: list[Any]
    is_inclusive: bool
    descending: list[bool] | None
    """For each value, whether its column's order is reversed; None if a connector of before did not say it."""


def parse_bound(header: bytes | None) -> Bound | None:
    """Read a marker's header `start` or `end`; None where the range is open."""
    if header is None:
        return None
    parsed = json.loads(header)
    names, reversed_names = list(parsed["values"]), parsed.get("descending")
    descending = None if reversed_names is None else [name in reversed_names for name in names]
    return Bound(list(parsed["values"].values()), bool(parsed["inclusive"]), descending)


def is_in_range(clustering: Sequence[Any], kinds: Sequence[Any], start: Bound | None, end: Bound | None) -> bool | None:
    """Return whether a clustering key, of columns with these Avro types, is in a range; None if that is not certain."""
    bounds = [bound for bound in (start, end) if bound]
    width = max((len(bound.values) for bound in bounds), default=0)
    interpretations = []
    for column in range(width):
        limits = [bound.values[column] for bound in bounds if column < len(bound.values)]
        orders = _orders(kinds[column], limits)
        prefixes = [bound.descending[column] for bound in bounds if bound.descending and column < len(bound.descending)]
        interpretations.append(
            [(order, is_reversed) for order in orders for is_reversed in prefixes[:1] or (False, True)]
        )
    if not all(interpretations) or None in clustering[:width]:
        return None
    answers = {
        _is_after(clustering, start, columns, is_start=True) and _is_after(clustering, end, columns, is_start=False)
        for columns in product(*interpretations)
    }
    return answers.pop() if len(answers) == 1 else None


def _is_after(
    clustering: Sequence[Any], bound: Bound | None, columns: Sequence[tuple[Order, bool]], is_start: bool
) -> bool:
    """Whether a key is after the start of a range, or before its end."""
    if bound is None:
        return True
    for value, limit, (order, is_reversed) in zip(clustering, bound.values, columns, strict=False):
        position, border = order.record(value), order.bound(limit)
        if position != border:
            return bool(((position > border) != is_reversed) == is_start)
    return bound.is_inclusive


def _orders(kind: Any, limits: Sequence[Any]) -> list[Order]:
    """What a column's values may be compared by; no order for collections, tuples and types, nor for null."""
    if isinstance(kind, list):
        (kind,) = [branch for branch in kind if branch != "null"]
    logical = kind.get("logicalType") if isinstance(kind, Mapping) else None
    plain = kind if isinstance(kind, str) else kind["type"]
    if plain.rpartition(".")[2] in _LOGICAL:  # a schema defines a type at its first column, and names it at the others
        logical = plain.rpartition(".")[2]
    if None in limits:
        return []
    if logical in _LOGICAL:
        return [_LOGICAL[logical]]
    if plain == "string" and all(map(_is_address, limits)):
        return [_TEXT, Order(_address, _address)]
    return [_PLAIN[plain]] if plain in _PLAIN else []


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _is_address(value: str) -> bool:
    try:
        return bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _address(value: str) -> bytes:
    """An inet is compared by its bytes. A text that is none can't be in a column of them: its own will do."""
    return ipaddress.ip_address(value).packed if _is_address(value) else _text(value)


def _number(value: float | str) -> Any:
    """A float: NaN comes last, and -0.0 before 0.0. JSON has text for NaN and infinities."""
    number = float(value)
    return (True, 0.0, 1.0) if math.isnan(number) else (False, number, math.copysign(1, number))


def _uuid(value: str) -> Any:
    """By version; those of version 1 by their time, then byte for byte as signed ones; others byte for byte."""
    parsed = uuid.UUID(value)
    version = (parsed.int >> 76) & 0xF
    if version == 1:
        return version, parsed.time, bytes(byte ^ 0x80 for byte in parsed.bytes[8:])
    return version, 0, parsed.bytes


def _integer(value: str) -> int:
    return int.from_bytes(b64decode(value), "big", signed=True)


def _decimal(value: Mapping[str, Any]) -> Decimal:
    sign, digits, _ = Decimal(_integer(value["bigint"])).as_tuple()
    return Decimal((sign, digits, -value["scale"]))


_TEXT = Order(_text, _text)
_PLAIN = {
    "int": Order(int, int),
    "long": Order(int, int),
    "boolean": Order(bool, bool),
    "float": Order(_number, _number),
    "double": Order(_number, _number),
    "bytes": Order(bytes, b64decode),
    "string": _TEXT,
}
_LOGICAL = {
    "uuid": Order(_uuid, _uuid),
    "cql_decimal": Order(Decimal, _decimal),
    "cql_varint": Order(Decimal, _integer),
}
