"""Evaluate conditions on the CQL bytes of a row, by SQL's three values: None is unknown, as what a null is compared
with.

A column that is `MISSING` is not known, and not null: of a partition without a row, its clustering columns.
"""

from __future__ import annotations

import datetime
import operator
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from helenus_connector.config.row_condition import (
    AllOf,
    AnyOf,
    ColumnComparison,
    Condition,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
)
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType

MISSING = object()
Row = Sequence[Any]
"""For each column its CQL bytes, None where it is null, or MISSING."""
Test = Callable[[Row], "bool | None"]
_Value = Callable[[bytes], Any]
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "counter", "varint", "time")
_EQUALITY = ("=", "!=")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_DAY_ZERO = 1 << 31  # CQL's date is unsigned, with 1970 in its middle
_BAD_BYTES = (ValueError, IndexError, struct.error)


def bind_condition(condition: Condition, columns: Sequence[Column]) -> Test:
    """Return a condition as a function of a row with these columns. Raises ValueError for a column that is none of
    them, and for a literal that its type can't be compared with.
    """
    match condition:
        case Not(inner):
            test = bind_condition(inner, columns)
            return lambda row: None if (result := test(row)) is None else not result
        case AllOf(conditions):
            return _all([bind_condition(inner, columns) for inner in conditions])
        case AnyOf(conditions):
            return _any([bind_condition(inner, columns) for inner in conditions])
    index = next((i for i, column in enumerate(columns) if column.name == condition.column), None)
    if index is None:
        raise ValueError(f"{condition.column} is no column that is published")
    if isinstance(condition, IsNull):
        return lambda row: None if (value := row[index]) is MISSING else value is None
    return _known_value(index, _scalar_test(condition, columns[index].type))


def _scalar_test(condition: ColumnComparison | InList | Like, t: CqlType) -> Callable[[bytes], bool]:
    """Return the test of a value that is neither null nor empty."""
    if isinstance(condition, Like):
        if t.name not in ("text", "ascii"):
            raise ValueError(f"{condition.column} LIKE: it is {t}, and no text")
        matches = _like(condition.pattern)
        return lambda data: matches(data.decode())
    value = _decoder(condition.column, t)
    if isinstance(condition, InList):
        literals = frozenset(_converted(condition.column, t, literal) for literal in condition.literals)
        return lambda data: value(data) in literals
    if t.name in ("uuid", "timeuuid", "boolean") and condition.operator not in _EQUALITY:
        raise ValueError(f"{condition.column} is {t}, which is compared with = and != alone")
    compare, literal = _OPERATORS[condition.operator], _converted(condition.column, t, condition.literal)
    return lambda data: compare(value(data), literal)


def _known_value(index: int, test: Callable[[bytes], bool]) -> Test:
    def test_value(row: Row) -> bool | None:
        data = row[index]
        if data is None or data is MISSING:
            return None
        try:
            return test(data)
        except _BAD_BYTES:  # of no value of the type, or none at all: what is not known does not match
            return None

    return test_value


def _all(tests: Sequence[Test]) -> Test:
    def test_all(row: Row) -> bool | None:
        results = [test(row) for test in tests]
        return False if False in results else None if None in results else True

    return test_all


def _any(tests: Sequence[Test]) -> Test:
    def test_any(row: Row) -> bool | None:
        results = [test(row) for test in tests]
        return True if True in results else None if None in results else False

    return test_any


def _signed(data: bytes) -> int:
    if not data:
        raise ValueError("no value")
    return int.from_bytes(data, "big", signed=True)


def _decimal(data: bytes) -> Decimal:
    """Return a decimal as it is: arithmetic would round it to 28 digits, and refuse large scales."""
    sign, digits, _ = Decimal(_signed(data[4:])).as_tuple()
    return Decimal((sign, digits, -_signed(data[:4])))


def _like(pattern: str) -> Callable[[str], bool]:
    """Return the test of LIKE. It takes time in proportion to the text, where a regular expression with several `.*`
    would try them all.
    """
    first, *others = (
        re.compile("".join("." if c == "_" else re.escape(c) for c in part), re.DOTALL) for part in pattern.split("%")
    )
    if not others:
        return lambda text: first.fullmatch(text) is not None
    last_length = len(pattern.rpartition("%")[2])

    def matches(text: str) -> bool:
        match = first.match(text)
        end = len(text) - last_length
        for part in others[:-1]:
            match = None if match is None else part.search(text, match.end(), max(end, 0))
        return match is not None and match.end() <= end and others[-1].fullmatch(text, end) is not None

    return matches


def _decoder(column: str, t: CqlType) -> _Value:
    """Return a function from CQL bytes to what literals are compared with. Raises ValueError for other types."""
    name = t.name
    if name in ("text", "ascii"):
        return bytes.decode
    if name in (*_INTEGERS, "timestamp"):
        return _signed
    if name == "date":
        return lambda data: struct.unpack(">I", data)[0] - _DAY_ZERO
    if name in ("float", "double"):
        unpack = struct.Struct(">f" if name == "float" else ">d").unpack
        return lambda data: unpack(data)[0]
    if name == "decimal":
        return _decimal
    if name in ("uuid", "timeuuid"):
        return lambda data: uuid.UUID(bytes=data)
    if name == "boolean":
        return lambda data: data[0] != 0
    raise ValueError(f"{column} is {t}, of which only IS NULL can be asked")


def _converted(column: str, t: CqlType, literal: Literal) -> Any:
    """Return a literal as values of the type are compared with it. Raises ValueError."""
    name, number = t.name, isinstance(literal, int | Decimal) and not isinstance(literal, bool)
    try:
        if name in ("text", "ascii") and isinstance(literal, str):
            return literal
        if name == "boolean" and isinstance(literal, bool):
            return literal
        if number and name in (*_INTEGERS, "decimal"):
            return literal
        if number and name in ("float", "double"):
            code = ">f" if name == "float" else ">d"
            return struct.unpack(code, struct.pack(code, float(literal)))[0]
        if name == "timestamp":
            return literal if isinstance(literal, int) and number else _milliseconds(literal)
        if name == "date" and isinstance(literal, str):
            return datetime.date.fromisoformat(literal).toordinal() - _EPOCH.toordinal()
        if name in ("uuid", "timeuuid") and isinstance(literal, str):
            return uuid.UUID(literal)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{column} is {t}, and can't be compared with {_shown(literal)}")


def _milliseconds(literal: Literal) -> int:
    """Return a time as ms since the epoch; without an offset it is in UTC."""
    if not isinstance(literal, str):
        raise ValueError("no text")
    time = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", literal))
    time = time if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)
    return (time - _EPOCH) // datetime.timedelta(milliseconds=1)


def _shown(literal: Literal) -> str:
    if isinstance(literal, bool):
        return str(literal).lower()
    return f"'{literal}'" if isinstance(literal, str) else str(literal)
