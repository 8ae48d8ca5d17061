"""Avro schemas and values as Kafka Connect's, as Confluent's AvroConverter reads them.

    {"type": "record", "name": "t", "namespace": "ks", "fields": [{"name": "k", "type": ["null", "int"]}]}
    → struct ks.t {k: int32, optional}

`connect.name`, `connect.version`, `connect.parameters` and `connect.type` say what a type is called in Connect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple

import fastavro

from helenus_connector.connect_data.java_dates import DAY_MS
from helenus_connector.connect_data.schema import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectSchema,
    ConnectType,
    SchemaField,
)
from helenus_connector.connect_data.times import from_milliseconds

Read = Callable[[Any], Any]
_TYPES: Mapping[str, ConnectType] = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL = {("int", "date"): DATE, ("int", "time-millis"): TIME, ("long", "timestamp-millis"): TIMESTAMP}
_NAMESPACE = "io.confluent.connect.avro"
_ENUM = "io.confluent.connect.avro.Enum"
_PRECISION = "connect.decimal.precision"
_DEFAULT_PRECISION = 64  # AvroConverter's


class ConnectForm(NamedTuple):
    """A schema of Connect's, and what turns Avro's values into its values; None leaves them as they are."""

    schema: ConnectSchema
    read: Read | None


class AvroReader:
    """Decodes the Avro of one schema, given as JSON text, with the fields' names as Avro has them, or as CQL has them.

    Raises ValueError for a schema without a form in Connect.
    """

    def __init__(self, text: str, has_cql_names: bool = False) -> None:
        self._named: dict[str, Any] = {}
        self._has_cql_names = has_cql_names
        schema = json.loads(text)
        self._writer = fastavro.parse_schema(without_logical_types(schema))
        self.schema, self._read = self._form(schema)

    def decode(self, data: bytes) -> Any:
        """Return the value of a record's bytes."""
        value: Any = fastavro.schemaless_reader(BytesIO(data), self._writer, None)
        return value if self._read is None else self._read(value)

    def _form(self, schema: Any, is_optional: bool = False, namespace: str = "") -> ConnectForm:
        if isinstance(schema, list):
            others = [part for part in schema if part != "null"]
            if len(others) != 1:
                raise ValueError("a union of several types")
            return self._form(others[0], "null" in schema, namespace)
        if isinstance(schema, str) and schema not in _TYPES:
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            return self._form(self._named[full], is_optional, namespace)
        schema = {"type": schema} if isinstance(schema, str) else schema
        match schema["type"]:
            case "record":
                return self._struct(schema, is_optional, namespace)
            case "enum":
                return self._enum(schema, is_optional)
            case "array":
                return self._array(schema, is_optional, namespace)
            case "map":
                form = self._form(schema["values"], namespace=namespace)
                map_schema = ConnectSchema(
                    "map", is_optional, **_names(schema), key_schema=ConnectSchema("string"), value_schema=form.schema
                )
                return ConnectForm(map_schema, _optional(_map_reader(form.read)))
            case "fixed":  # written again as bytes
                return self._scalar({**schema, "type": "bytes"}, is_optional)
        return self._scalar(schema, is_optional)

    def _struct(self, schema: Mapping[str, Any], is_optional: bool, outer: str) -> ConnectForm:
        namespace = schema.get("namespace", outer)
        full = schema["name"] if "." in schema["name"] or not namespace else f"{namespace}.{schema['name']}"
        self._named[full] = schema
        forms = [(field, self._form(field["type"], namespace=namespace)) for field in schema["fields"]]
        names = [f.get("cql_name", f["name"]) if self._has_cql_names else f["name"] for f, _ in forms]
        fields = tuple(SchemaField(name, form.schema) for name, (_, form) in zip(names, forms, strict=True))
        reads = [(name, field["name"], form.read) for name, (field, form) in zip(names, forms, strict=True)]

        def read(value: Any) -> Any:
            if value is None:
                return None
            return {name: value[avro] if to is None else to(value[avro]) for name, avro, to in reads}

        return ConnectForm(
            ConnectSchema("struct", is_optional, **{"name": full, **_names(schema)}, fields=fields), read
        )

    def _enum(self, schema: Mapping[str, Any], is_optional: bool) -> ConnectForm:
        symbols = ((f"{_ENUM}.{symbol}", symbol) for symbol in schema["symbols"])
        names = _names(schema)
        parameters = (*names.pop("parameters", ()), (_ENUM, schema["name"]), *symbols)
        return ConnectForm(ConnectSchema("string", is_optional, **names, parameters=parameters), None)

    def _array(self, schema: Mapping[str, Any], is_optional: bool, namespace: str) -> ConnectForm:
        items = schema["items"]
        entry = self._named.get(items, items) if isinstance(items, str) else items
        form = self._form(items, namespace=namespace)
        if _is_entry(entry, namespace):
            key, value = (field.schema for field in form.schema.fields)
            read_entry = form.read
            assert read_entry is not None

            def read(entries: Any) -> Any:
                return {item["key"]: item["value"] for item in map(read_entry, entries)}

            map_schema = ConnectSchema("map", is_optional, **_names(schema), key_schema=key, value_schema=value)
            return ConnectForm(map_schema, _optional(read))
        read_item = form.read
        array_schema = ConnectSchema("array", is_optional, **_names(schema), value_schema=form.schema)
        if read_item is None:
            return ConnectForm(array_schema, None)
        return ConnectForm(array_schema, _optional(lambda array: [read_item(item) for item in array]))

    def _scalar(self, schema: Mapping[str, Any], is_optional: bool) -> ConnectForm:
        kind, logical, names = schema["type"], schema.get("logicalType", ""), _names(schema)
        if kind == "bytes" and logical == "decimal":
            scale = int(schema.get("scale", 0))
            precision = int(schema.get("precision", _DEFAULT_PRECISION))
            parameters = [("scale", str(scale))]
            if precision != _DEFAULT_PRECISION:
                parameters.append((_PRECISION, str(precision)))
            decimal = ConnectSchema("bytes", is_optional, DECIMAL, 1, parameters=tuple(parameters))
            return ConnectForm(decimal, _optional(lambda data: _decimal(data, scale)))
        if (name := _LOGICAL.get((kind, logical))) is not None:
            factor = DAY_MS if name == DATE else 1
            logical_schema = ConnectSchema(_TYPES[kind], is_optional, **{"name": name, "version": 1, **names})
            return ConnectForm(logical_schema, _optional(lambda number: from_milliseconds(number * factor, name)))
        connect_type = schema.get("connect.type", _TYPES[kind])
        return ConnectForm(ConnectSchema(connect_type, is_optional, **names), None)


def _decimal(data: bytes, scale: int) -> Decimal:
    """Return a decimal with all its digits: `scaleb` would round it to those of Python's context."""
    sign, digits, _ = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -scale))


def _is_entry(schema: Any, outer: str) -> bool:
    """Return whether an array's items are a map's entries."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        return False
    is_default = schema["name"] == "MapEntry" and schema.get("namespace", outer) == _NAMESPACE
    return is_default or schema.get("connect.internal.type") == "MapEntry"


def _optional(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _map_reader(read: Read | None) -> Read:
    if read is None:
        return lambda entries: entries
    return lambda entries: {key: read(value) for key, value in entries.items()}


def _names(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a schema says of its name in Connect."""
    names = {name: schema[f"connect.{name}"] for name in ("name", "version", "doc") if f"connect.{name}" in schema}
    if "connect.parameters" in schema:
        names["parameters"] = tuple(schema["connect.parameters"].items())
    return names


def without_logical_types(schema: Any) -> Any:
    """Return an Avro schema of plain types alone: fastavro then takes their values as they are."""
    if isinstance(schema, list):
        return [without_logical_types(part) for part in schema]
    if isinstance(schema, dict):
        return {key: without_logical_types(part) for key, part in schema.items() if key != "logicalType"}
    return schema
