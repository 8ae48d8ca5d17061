"""A transform of ours: columns in the types that a user's converter gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.transforms._record_part import SchemaCache
from helenus_connector.transforms.contract import ConfigKey, TypeConverter, check_not_empty
from helenus_schemas.settings.named_class import import_class, is_class_name

_ROWS = ("before", "after", "payload")
"""The fields of envelopes that are rows."""
_ENVELOPES = (frozenset(("op", "source", "after")), frozenset(("operationType", "sourceTable", "payload")))
"""Fields that envelopes have, and by which they are told from a row."""


def _check_class_name(name: str) -> None:
    if not is_class_name(name):
        raise ValueError("give it as package.module:Class")


class ConvertColumns:
    """Converts the columns of a value that is a row, or of the rows in an envelope."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("converter", "STRING", "Class of the converter, as package.module:Class.", check=_check_class_name),
        ConfigKey("config", "LIST", "What it is made with, as name=value,name=value.", default=()),
        ConfigKey(
            "columns", "LIST", "The columns that it is asked for; default: all.", default=None, check=check_not_empty
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        pairs = [text.partition("=") for text in settings["config"]]
        if wrong := next((name for name, sign, _ in pairs if not (name and sign)), None):
            raise ValueError(f"config: {wrong} is no name=value")
        factory: Any = import_class(settings["converter"], "TypeConverter", ("convert_schema", "convert_value"))
        self._converter = cast("TypeConverter", factory({name: value for name, _, value in pairs}))
        self._columns = settings["columns"]
        self._rows = SchemaCache(self._convert_row)
        self._values = SchemaCache(self._convert_value_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        """Return the record with converted columns."""
        schema, value = record.value_schema, record.value
        if schema is None or schema.type != "struct":
            return record
        converted, rows = self._values.get(schema)
        if value is None:
            return replace(record, value_schema=converted)
        if rows is None:
            return replace(record, value_schema=converted, value=self._convert(schema, value))
        changed = dict(value)
        for field in rows:
            if changed[field.name] is not None:
                changed[field.name] = self._convert(field.schema, changed[field.name])
        return replace(record, value_schema=converted, value=changed)

    def _convert(self, schema: ConnectSchema, row: Mapping[str, Any]) -> dict[str, Any]:
        _, columns = self._rows.get(schema)
        return {
            name: self._converter.convert_value(name, value) if name in columns and value is not None else value
            for name, value in row.items()
        }

    def _convert_value_schema(self, schema: ConnectSchema) -> tuple[ConnectSchema, Sequence[SchemaField] | None]:
        """Return the schema of a value, and the fields in it that are rows; None if it is a row itself."""
        names_present = {field.name for field in schema.fields}
        if not any(envelope <= names_present for envelope in _ENVELOPES):
            return self._rows.get(schema)[0], None
        rows = [field for field in schema.fields if field.name in _ROWS and field.schema.type == "struct"]
        names = {field.name for field in rows}
        fields = [
            replace(field, schema=self._rows.get(field.schema)[0]) if field.name in names else field
            for field in schema.fields
        ]
        return replace(schema, fields=tuple(fields)), rows

    def _convert_row(self, schema: ConnectSchema) -> tuple[ConnectSchema, frozenset[str]]:
        """Return the schema of a row, and the columns in it that are converted."""
        fields, columns = [], set()
        for field in schema.fields:
            is_wanted = self._columns is None or field.name in self._columns
            made = self._converter.convert_schema(field.name, field.schema) if is_wanted else None
            if made is not None:
                columns.add(field.name)
                field = replace(field, schema=replace(made, is_optional=field.schema.is_optional))
            fields.append(field)
        return replace(schema, fields=tuple(fields)), frozenset(columns)
