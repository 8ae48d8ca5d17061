"""An Avro schema's text as Java's Avro prints it, and the GUID that follows from it.

Confluent's registry parses every Avro schema and keeps it in the form of Java's `Schema.toString()`: attributes in a
fixed order, a namespace only where it differs from the one around it. The MD5 of that text, as a UUID, is the schema's
GUID in every registry of Confluent Platform 8 or later (`Schema.updateHash`): so it is known without asking one.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from helenus_schemas.avro.compare import parsed

Schema = Any
_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_TYPES = _PRIMITIVES | frozenset(("record", "enum", "array", "map", "union", "fixed"))
_NAMED = ("record", "error", "enum", "fixed")
_RESERVED = frozenset(
    "type name namespace doc fields items values symbols size aliases".split(),
)
"""Attributes that have a place of their own; all others are properties, in the order in which they are."""
_FIELD_RESERVED = frozenset("name type doc default order aliases".split())
_LOWER_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u00([0-9a-f]{2})")


def guid(text: str) -> uuid.UUID:
    """Return the GUID of a schema whose text is canonical, and which refers to no other."""
    return uuid.UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest())


def canonical_text(text: str) -> str:
    """Return the text of an Avro schema in Java's form. Raises ValueError for one that is none of Avro's, or that uses
    a name it does not define.
    """
    try:
        parsed(text)
        return _json(_printed(json.loads(text), "", set()))
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no Avro schema: {type(error).__name__} {error}") from None


def _json(printed: Any) -> str:
    """Return JSON as Jackson writes it: no escapes but those that have to be, in capitals."""
    compact = json.dumps(printed, separators=(",", ":"), ensure_ascii=False)
    return _LOWER_ESCAPE.sub(lambda match: f"{match[1]}\\u00{match[2].upper()}", compact)


def _printed(schema: Schema, namespace: str, names: set[str]) -> Schema:
    """Return a schema as it is printed within a namespace; `names` are the full names printed before, and grow."""
    if isinstance(schema, list):
        if any(isinstance(branch, list) for branch in schema):
            raise ValueError("a union has another one in it")
        return [_printed(branch, namespace, names) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVES else _known_reference(schema, namespace, names)
    kind = schema["type"]
    if not isinstance(kind, str):
        # {"type": {...}}, which is the type itself.
        return _printed(kind, namespace, names)
    properties = {name: content for name, content in schema.items() if not _is_reserved(name, kind)}
    if kind in _NAMED:
        return _named(schema, kind, namespace, names, properties)
    if kind == "array":
        return {"type": kind, "items": _printed(schema["items"], namespace, names), **properties}
    if kind == "map":
        return {"type": kind, "values": _printed(schema["values"], namespace, names), **properties}
    if kind not in _PRIMITIVES:
        return _known_reference(kind, namespace, names)
    return {"type": kind, **properties} if properties else kind


def _named(schema: Schema, kind: str, namespace: str, names: set[str], properties: dict[str, Any]) -> Schema:
    own_namespace, name = _split_name(schema, namespace)
    full_name = f"{own_namespace}.{name}" if own_namespace else name
    if full_name in names:
        return _reference(full_name, namespace)
    names.add(full_name)
    printed: dict[str, Any] = {"type": kind, "name": name}
    if own_namespace != namespace:
        printed["namespace"] = own_namespace
    if isinstance(schema.get("doc"), str):
        printed["doc"] = schema["doc"]
    if kind == "enum":
        printed["symbols"] = schema["symbols"]
        if "default" in schema:
            printed["default"] = schema["default"]
    elif kind == "fixed":
        printed["size"] = schema["size"]
    else:
        printed["fields"] = [_field(field, own_namespace, names) for field in schema["fields"]]
    printed |= properties
    if aliases := schema.get("aliases"):
        printed["aliases"] = list(_relative_names(aliases, own_namespace))
    return printed


def _field(field: Schema, namespace: str, names: set[str]) -> Schema:
    printed = {"name": field["name"], "type": _printed(field["type"], namespace, names)}
    for attribute in ("doc", "default"):
        if attribute in field:
            printed[attribute] = field[attribute]
    if field.get("order", "ascending").lower() != "ascending":
        printed["order"] = field["order"].lower()
    if field.get("aliases"):
        printed["aliases"] = field["aliases"]
    return {**printed, **{name: content for name, content in field.items() if name not in _FIELD_RESERVED}}


def _is_reserved(attribute: str, kind: str) -> bool:
    return attribute in _RESERVED or (attribute == "default" and kind == "enum")


def _split_name(schema: Schema, namespace: str) -> tuple[str, str]:
    """Return the namespace and the name of a named type that is defined within a namespace."""
    outer, _, name = str(schema["name"]).rpartition(".")
    if outer:
        return outer, name
    return str(schema.get("namespace", namespace) or ""), name


def _known_reference(name: str, namespace: str, names: set[str]) -> str:
    """Return a reference to a type that was defined before. Raises ValueError for any other."""
    full_name = name if "." in name or not namespace else f"{namespace}.{name}"
    # As Java looks it up: a name without dots may also be one without a namespace.
    found_name = next((candidate for candidate in (full_name, name) if candidate in names), None)
    if found_name is None:
        raise ValueError(f"it uses a type that it does not define: {name[:100]}")
    return _reference(found_name, namespace)


def _reference(name: str, namespace: str) -> str:
    """Return a name as it is printed within a namespace: without that one, unless it is a type's own name."""
    outer, _, simple = name.rpartition(".")
    return simple if outer == namespace and simple not in _TYPES else name


def _relative_names(aliases: list[str], namespace: str) -> Iterator[str]:
    for alias in aliases:
        yield _reference(alias, namespace)
