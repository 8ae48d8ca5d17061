"""Put types that other schemas define in the places where a schema names them: the result is a schema in one piece.

Confluent's serializer has `fastavro.schema.load_schema` do it, which two types that name each other end by a stack
overflow, and the process with it; nor does it take a type without a namespace that is named twice.

{record a.Order: {to: a.Place}}, [{record a.Place: {no: int}}] → {record a.Order: {to: {record a.Place: {no: int}}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from helenus_schemas.avro.build import Schema
from helenus_schemas.avro.compare import COMPLEX, PRIMITIVE, parsed
from helenus_schemas.avro.resolution import named_types

_NO_NAMESPACE = "none"
"""Namespace of types that have none: within a record that has one they could not be named again."""


def inline_types(text: str, referenced: Iterable[str]) -> str:
    """Return the schema `text`, with all types that it names and the `referenced` ones define in their places, each
    once: as the schema is read, not as it is written. Raises ValueError for a type that is not defined, or is in two
    ways, and as `parsed`.
    """
    schema = parsed(text)
    definitions: dict[str, Schema] = {}
    for other in (schema, *map(parsed, referenced)):
        for name, definition in named_types(other):
            if definitions.setdefault(name, definition) != definition:
                raise ValueError(f"{name} is defined in two ways")
    try:
        inlined = json.dumps(_TypeInliner(definitions).inline(schema), ensure_ascii=False)
    except RecursionError:
        raise ValueError("types of too many levels") from None
    parsed(inlined)  # raises for too many levels
    return inlined


class _TypeInliner:
    """Inlines types by their `definitions`. A name without namespace counts in its record's, or else without one, as in
    Java.
    """

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions
        self._inlined: set[str] = set()

    def inline(self, schema: Schema) -> Schema:
        if isinstance(schema, list):
            return [self.inline(branch) for branch in schema]
        if isinstance(schema, str):
            return schema if schema in PRIMITIVE else self._inline_name(schema)
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError("a schema with a part that is no type")
        kind, name = schema["type"], schema.get("name")
        if isinstance(kind, str) and kind not in PRIMITIVE and kind not in COMPLEX:
            return self._inline_name(kind)
        whole = dict(schema)
        if isinstance(name, str) and name in self._definitions:
            whole["name"] = _in_namespace(name)
            if name in self._inlined:
                return whole["name"]
            self._inlined.add(name)
        parts = ("items", "values") if isinstance(kind, str) else ("type",)
        whole |= {part: self.inline(schema[part]) for part in parts if part in schema}
        if "fields" in schema:
            whole["fields"] = [{**field, "type": self.inline(field["type"])} for field in schema["fields"]]
        return whole

    def _inline_name(self, name: str) -> Schema:
        for full_name in (name, name.rpartition(".")[2]):
            if full_name in self._definitions:
                return self.inline(self._definitions[full_name])
        raise ValueError(f"it names {name}, which is not defined there")


def _in_namespace(name: str) -> str:
    return name if "." in name else f"{_NO_NAMESPACE}.{name}"
