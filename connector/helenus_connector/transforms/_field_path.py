"""Paths to fields: `V1`, a name; `V2` (KIP-821), names with dots between them, in backticks if a name has a dot."""

from __future__ import annotations

from typing import Any

from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.transforms._record_part import Struct, field_value
from helenus_connector.transforms.contract import ConfigKey, TransformError

FIELD_SYNTAX = ConfigKey(
    "field.syntax.version",
    "STRING",
    "V1: a field's name is taken as it is. V2: dots lead to fields of structs in it, and backticks are around a name "
    "that has dots.",
    default="V1",
    importance="HIGH",
    choices=("V1", "V2"),
    ignores_case=True,
)


class FieldPath:
    """The way to a field of a struct. Raises ValueError for backticks that do not match."""

    def __init__(self, path: str, syntax: str) -> None:
        self._text = path
        self._steps = [path] if syntax.upper() == "V1" else _split(path)

    def __str__(self) -> str:
        return self._text

    def find(self, schema: ConnectSchema) -> SchemaField | None:
        """Return the field in a schema; None if it has none."""
        field: SchemaField | None = None
        for step in self._steps:
            field = schema.find_field(step)
            if field is None:
                return None
            schema = field.schema
        return field

    def value(self, schema: ConnectSchema, struct: Struct, with_default: bool) -> Any:
        """Return the value in a struct; None if one on the way is null."""
        for step in self._steps[:-1]:
            field = schema.find_field(step)
            if field is None:
                return None
            inner = field_value(struct, field)
            if inner is None:
                return None
            if field.schema.type != "struct":
                raise TransformError(f"{self._text}: {step} is no struct")
            schema, struct = field.schema, inner
        field = schema.find_field(self._steps[-1])
        return None if field is None else field_value(struct, field, with_default)


def _split(path: str) -> list[str]:
    r"""Return the names of a path. A backtick within a name in backticks is escaped as \` where a dot follows it."""
    steps: list[str] = []
    index = 0
    while index < len(path):
        if path[index] != "`":
            end = path.find(".", index)
            steps.append(path[index:] if end < 0 else path[index:end])
            index = len(path) if end < 0 else end + 1
            continue
        name, index = _quoted(path, index)
        steps.append(name)
    if path.endswith("."):
        steps.append("")
    return steps


def _quoted(path: str, opening: int) -> tuple[str, int]:
    """Return the name in backticks that begins at `opening`, and where the next name begins."""
    name, start = "", opening + 1
    index = path.find("`", start)
    while index >= 0:
        is_escaped = path[index - 1] == "\\"
        if index == len(path) - 1:
            if is_escaped:
                break
            return name + path[start:index], len(path)
        if path[index + 1] == ".":
            if not is_escaped:
                return name + path[start:index], index + 2
            name, start = f"{name}{path[start : index - 1]}`", index + 1
        index = path.find("`", index + 1)
    raise ValueError(f"{path}: the backtick at {opening} has no other one")
