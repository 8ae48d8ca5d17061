"""Whether all values of one schema, the writer, can be written in another, the reader, by the names of their fields.

reader {a: long, b: int = 0}, writer {a: int, c: string} → None: `a` is widened, `b` has a default, `c` is left out
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from helenus_schemas.avro.build import Schema

_WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
}
_UNITS = ("decimal", "date", "time-", "timestamp-", "local-timestamp-")
"""How logical types begin by which the same number is another value."""
_INTEGER = "decimal of scale 0"  # bytes without a logical type are one, as varints'


def unreadable(reader: Schema, writer: Schema) -> str | None:
    """Return why `reader` does not take some value of `writer`; None if it takes all. Both are as `compare.parsed`
    returns them.

    As Java's `SchemaCompatibility`, without what is resolved when a value is read: aliases, defaults of enums, and
    bytes as strings. A logical type that counts in another unit is an obstacle, too.
    """
    return next(_Comparison(reader, writer).problems(reader, writer, ""), None)


class _Comparison:
    """Compares two schemas, with the types that each of them names. `problems` yields what is wrong in a field."""

    def __init__(self, reader: Schema, writer: Schema) -> None:
        self._readers = dict(named_types(reader))
        self._writers = dict(named_types(writer))
        self._problems: dict[tuple[str, str], str | None] = {}

    def problems(self, reader: Schema, writer: Schema, field: str) -> Iterator[str]:
        if isinstance(writer, list):
            for branch in writer:
                yield from self.problems(reader, branch, field)
        elif isinstance(reader, list):
            if all(next(self.problems(branch, writer, field), None) for branch in reader):
                yield f"{field or 'it'} has no {_shown(writer)} in its union"
        else:
            yield from self._of_types(_resolved(reader, self._readers), _resolved(writer, self._writers), field)

    def _of_types(self, reader: dict[str, Any], writer: dict[str, Any], field: str) -> Iterator[str]:
        kind, written = reader["type"], writer["type"]
        if kind != written and kind not in _WIDER.get(written, ()):
            yield f"{field or 'it'} is {kind}, and would get {written}"
        elif (unit := _unit(reader)) and unit != (_unit(writer) or _INTEGER):
            yield f"{field or 'it'} is {unit}, and would get {_unit(writer) or written}"
        elif kind == "record":
            yield from self._of_records(reader, writer, field)
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            yield from self.problems(reader[part], writer[part], field)
        elif kind == "enum" and not {*writer["symbols"]} <= {*reader["symbols"]}:
            yield f"{field or 'it'} has not all symbols"
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield f"{field or 'it'} has {reader['size']} bytes, and would get {writer['size']}"

    def _of_records(self, reader: dict[str, Any], writer: dict[str, Any], field: str) -> Iterator[str]:
        pair = reader["name"], writer["name"]
        if pair not in self._problems:
            self._problems[pair] = None  # within itself, a record reads what it reads elsewhere
            self._problems[pair] = next(self._of_fields(reader, writer, field), None)
        if (problem := self._problems[pair]) is not None:
            yield problem

    def _of_fields(self, reader: dict[str, Any], writer: dict[str, Any], field: str) -> Iterator[str]:
        written = {part["name"]: part["type"] for part in writer["fields"]}
        for part in reader["fields"]:
            path = f"{field}.{part['name']}" if field else part["name"]
            if part["name"] in written:
                yield from self.problems(part["type"], written[part["name"]], path)
            elif "default" not in part:
                yield f"{path} has no default, and is not written"


def named_types(schema: Schema) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the types that have a name, with it, at any depth."""
    if isinstance(schema, list):
        for branch in schema:
            yield from named_types(branch)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
            yield schema["name"], schema
        for part in ("type", "items", "values"):
            if isinstance(schema.get(part), (dict, list)):
                yield from named_types(schema[part])
        for field in schema.get("fields", ()):
            yield from named_types(field["type"])


def _resolved(schema: Schema, named: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a type as an object: one that is given by its name, or by an object within another, too."""
    if isinstance(schema, str):
        return named.get(schema, {"type": schema})
    if isinstance(schema["type"], dict):
        return _resolved({**schema["type"], **{k: v for k, v in schema.items() if k != "type"}}, named)
    return dict(schema)


def _unit(schema: dict[str, Any]) -> str:
    """Return the logical type of a number, with a decimal's scale; empty for one that changes no value's meaning."""
    name = str(schema.get("logicalType", ""))
    if not name.startswith(_UNITS):
        return ""
    return f"decimal of scale {schema.get('scale', 0)}" if name == "decimal" else name


def _shown(schema: Schema) -> str:
    return schema if isinstance(schema, str) else str(schema.get("name", schema.get("type")))
