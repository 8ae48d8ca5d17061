"""Kafka Connect's schemas, as `org.apache.kafka.connect.data.Schema` has them, and the Python values they describe.

| type | Python value |
|---|---|
| int8, int16, int32, int64 | int |
| float32, float64 | float |
| boolean, string, bytes | bool, str, bytes |
| array | list |
| map | dict, of key to value |
| struct | dict, of field name to value: each field is in it, None where it is null |

A logical type is a type with a `name`; its value is of the logical type:

| name | type | Python value |
|---|---|---|
| `DECIMAL` | bytes | Decimal; the parameter `scale` has the number of its decimal places |
| `DATE` | int32 | datetime.date |
| `TIME` | int32 | datetime.time, of whole milliseconds |
| `TIMESTAMP` | int64 | datetime.datetime in UTC, of whole milliseconds |

Any other name, such as one of Debezium's, says nothing of the value. A value that Python's `datetime` can't hold, such
as a timestamp of the year 20,000, is the number that the type without its name has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ConnectType = Literal[
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "boolean",
    "string",
    "bytes",
    "array",
    "map",
    "struct",
]
_LOGICAL = "org.apache.kafka.connect.data."
DECIMAL, DATE, TIME, TIMESTAMP = (f"{_LOGICAL}{name}" for name in ("Decimal", "Date", "Time", "Timestamp"))


@dataclass(frozen=True, slots=True)
class ConnectSchema:
    """The schema of a value. A struct has `fields`, an array `value_schema`, a map that and a `key_schema`.

    `parameters` are a logical type's, by name, in order.
    """

    type: ConnectType
    is_optional: bool = False
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    default: Any = None
    parameters: tuple[tuple[str, str], ...] = ()
    fields: tuple[SchemaField, ...] = ()
    key_schema: ConnectSchema | None = None
    value_schema: ConnectSchema | None = None

    def find_field(self, name: str) -> SchemaField | None:
        """Return the field of a name, or None."""
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field of a struct: its place among the fields is its index."""

    name: str
    schema: ConnectSchema
