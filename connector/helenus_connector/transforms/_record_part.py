"""The part of a record that a transform works on, its key or its value, and access to a struct's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.transforms.contract import ConfigKey, TransformError

Struct = Mapping[str, Any]
_CACHED_SCHEMAS = 100  # versions of one table's schema in one process: one, as a rule
Made = TypeVar("Made")


@dataclass(frozen=True)
class RecordPart:
    """The key or the value of records."""

    name: Literal["key", "value"]

    def schema(self, record: ConnectRecord) -> ConnectSchema | None:
        return record.key_schema if self.name == "key" else record.value_schema

    def value(self, record: ConnectRecord) -> Any:
        return record.key if self.name == "key" else record.value

    def replace(self, record: ConnectRecord, schema: ConnectSchema | None, value: Any) -> ConnectRecord:
        """Return the record with another schema and value of this part."""
        if self.name == "key":
            return replace(record, key_schema=schema, key=value)
        return replace(record, value_schema=schema, value=value)

    def struct_schema(self, record: ConnectRecord, purpose: str) -> ConnectSchema:
        """Return the schema of a struct. Raises TransformError if the part is none, or null."""
        schema = self.schema(record)
        if schema is None or schema.type != "struct" or self.value(record) is None:
            present = "null" if self.value(record) is None else schema.type if schema else "a value without a schema"
            raise TransformError(f"{purpose}: the {self.name} has to be a struct, and is {present}")
        return schema


KEY, VALUE = RecordPart("key"), RecordPart("value")


class SchemaCache(Generic[Made]):
    """What is made of a schema, once for each schema object."""

    def __init__(self, make: Callable[[ConnectSchema], Made]) -> None:
        self._make = make
        self._cached: dict[int, tuple[ConnectSchema, Made]] = {}

    def get(self, schema: ConnectSchema) -> Made:
        """Return what belongs to a schema; make it at the first call."""
        cached = self._cached.get(id(schema))
        if cached is None:
            if len(self._cached) >= _CACHED_SCHEMAS:
                self._cached.clear()
            cached = schema, self._make(schema)  # with the schema, so that no other one gets its id
            self._cached[id(schema)] = cached
        return cached[1]


REPLACE_NULL = ConfigKey(
    "replace.null.with.default",
    "BOOLEAN",
    "Whether a field that is null, and has a default, gets the default.",
    default=True,
)


def field_value(struct: Struct, field: SchemaField, with_default: bool = True) -> Any:
    """Return the value of a struct's field, its default if it is null."""
    value = struct[field.name]
    return field.schema.default if value is None and with_default else value


def copy_basics(schema: ConnectSchema, **changes: Any) -> ConnectSchema:
    """Return a schema with the name, version, doc and parameters of this one: required and without a default."""
    basics = {"is_optional": False, "default": None}
    return replace(schema, **{**basics, **changes})


def put(schema: ConnectSchema, field: str, value: Any) -> Any:
    """Return a value of a struct's field. Raises TransformError for null where the field is required."""
    if value is None and not schema.is_optional and schema.default is None:
        raise TransformError(f"the field {field} is required, and null")
    return value


def check_unique(fields: Sequence[SchemaField]) -> None:
    """Raise TransformError for two fields of one name."""
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise TransformError(f"two fields would have the name {next(n for n in names if names.count(n) > 1)}")
