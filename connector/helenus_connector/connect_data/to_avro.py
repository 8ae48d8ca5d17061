"""Kafka Connect's schemas and values in Avro, as Confluent's AvroConverter writes them.

struct ks.t {k: int32, optional} → {"type": "record", "name": "t", "namespace": "ks",
                                    "fields": [{"name": "k", "type": ["null", "int"], "default": null}], ...}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
from fastavro.schema import SchemaParseException
from fastavro.validation import validate

from helenus_connector.connect_data._json_form import unscaled_bytes
from helenus_connector.connect_data.from_avro import without_logical_types
from helenus_connector.connect_data.java_numbers import float_text
from helenus_connector.connect_data.schema import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema, SchemaField
from helenus_connector.connect_data.times import is_time, to_number
from helenus_schemas.errors import HelenusError, Kind

_NAMESPACE = "io.confluent.connect.avro"
_ENTRY = f"{_NAMESPACE}.MapEntry"
_TYPES = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL = {TIME: "time-millis", TIMESTAMP: "timestamp-millis", DATE: "date"}
_ENUM = "io.confluent.connect.avro.Enum"
_PRECISION = "connect.decimal.precision"
_DEFAULT_PRECISION = 64
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CACHED_SCHEMAS = 1000
Write = Callable[[Any], Any]


class RegisteredAvro(NamedTuple):
    """The schema in which values are written, as JSON text, and the bytes that go before them."""

    frame: bytes
    text: str


Register = Callable[[str, str], RegisteredAvro]
"""Registers a schema, as JSON text, in a subject, and returns it, or another one that the subject has for it."""


class AvroWriter:
    """Encodes values of one schema. Raises ValueError for a schema without a form in Avro."""

    def __init__(self, schema: ConnectSchema) -> None:
        self._structs: dict[str, ConnectSchema] = {}
        self._unnamed = 0
        form = self._schema(schema)
        self.text = json.dumps(form, separators=(",", ":"), ensure_ascii=False)
        self._writer = fastavro.parse_schema(without_logical_types(form))
        self._write = _writer(schema)

    def encode(self, value: Any, registered: Any = None) -> bytes:
        """Return the Avro of a value, in `registered`, a schema as fastavro parses it, if there is one: fields go by
        their names, one that is not there is left out, and one more has its default. Raises ValueError for a value that
        is not of the schema.
        """
        out = BytesIO()
        try:
            plain = value if self._write is None else self._write(value)
            # Its writer has no bounds: it would take a long for an int.
            if registered is not None and not validate(plain, registered, raise_errors=False):
                raise ValueError("the subject's latest schema does not take it")
            fastavro.schemaless_writer(out, self._writer if registered is None else registered, plain)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(str(error)) from None
        return out.getvalue()

    def _schema(self, schema: ConnectSchema) -> Any:
        """Return the Avro schema; a struct that was defined before by its name."""
        form = self._base(schema)
        if isinstance(form, dict):
            form |= _properties(schema)
            form = form["type"] if form.keys() == {"type"} else form
        if not schema.is_optional:
            return form
        return ["null", form] if schema.default is None else [form, "null"]

    def _base(self, schema: ConnectSchema) -> Any:
        match schema.type:
            case "struct":
                return self._struct(schema)
            case "array":
                assert schema.value_schema is not None
                return {"type": "array", "items": self._schema(schema.value_schema)}
            case "map":
                return self._map(schema)
        parameters = dict(schema.parameters)
        if schema.type == "string" and _ENUM in parameters:
            symbols = [value for name, value in schema.parameters if name.startswith(f"{_ENUM}.")]
            return {"type": "enum", **_split(parameters[_ENUM]), "symbols": symbols}
        return {"type": _TYPES[schema.type]}

    def _struct(self, schema: ConnectSchema) -> Any:
        plain = replace(schema, is_optional=False, default=None)
        name = schema.name or self._next_name()
        if (defined := self._structs.get(name)) is not None:
            if defined != plain:
                raise ValueError(f"two structs that differ have the name {name}")
            return name
        self._structs[name] = plain
        return {"type": "record", **_split(name), "fields": self._fields(schema)}

    def _fields(self, schema: ConnectSchema) -> list[Any]:
        fields = []
        for field in schema.fields:
            if not _NAME.fullmatch(field.name):
                raise ValueError(f"the field {field.name} has a name that Avro does not allow")
            form: dict[str, Any] = {"name": field.name, "type": self._schema(field.schema)}
            if field.schema.default is not None:
                form["default"] = _default(field.schema)
            elif field.schema.is_optional:
                form["default"] = None
            fields.append(form)
        return fields

    def _map(self, schema: ConnectSchema) -> Any:
        key, value = schema.key_schema, schema.value_schema
        assert key is not None
        assert value is not None
        if key.type == "string" and not key.is_optional:
            return {"type": "map", "values": self._schema(value)}
        members = (SchemaField("key", key), SchemaField("value", value))
        entry = ConnectSchema("struct", fields=members)
        name = schema.name or _ENTRY
        # Several maps without a name may differ: the first has the name that AvroConverter gives it.
        number = 1
        while schema.name is None and self._structs.get(name, entry) != entry:
            number += 1
            name = f"{_ENTRY}{number}"
        if name in self._structs:
            return {"type": "array", "items": name}
        self._structs[name] = entry
        form = {"type": "record", **_split(name), "fields": self._fields(entry)}
        return {"type": "array", "items": form if name == _ENTRY else {**form, "connect.internal.type": "MapEntry"}}

    def _next_name(self) -> str:
        self._unnamed += 1
        return f"{_NAMESPACE}.ConnectDefault{self._unnamed if self._unnamed > 1 else ''}"


class AvroConverter:
    """Avro behind what `register` returns for its schema, in the subject that `subject` returns for a topic and the
    schema's name.
    """

    def __init__(self, register: Register, subject: Callable[[str, str | None], str]) -> None:
        self._register = register
        self._subject = subject
        self._writers: dict[int, tuple[ConnectSchema, AvroWriter]] = {}
        self._registered: dict[tuple[str, str], tuple[bytes, Any]] = {}

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            if schema is None:
                raise ValueError("a value without a schema")
            writer = self._writer(schema)
            frame, registered = self._schema(self._subject(topic, schema.name), writer.text)
            return frame + writer.encode(value, registered)
        except ValueError as error:
            raise HelenusError(Kind.POISON_EVENT, f"a key or value has no Avro form: {error}", topic) from None

    def _writer(self, schema: ConnectSchema) -> AvroWriter:
        cached = self._writers.get(id(schema))
        if cached is None:
            if len(self._writers) >= _CACHED_SCHEMAS:
                self._writers.clear()
            cached = schema, AvroWriter(schema)
            self._writers[id(schema)] = cached
        return cached[1]

    def _schema(self, subject: str, text: str) -> tuple[bytes, Any]:
        """Return what goes before the Avro, and the schema that it is written in, if that is another than `text`."""
        registered = self._registered.get((subject, text))
        if registered is None:
            frame, latest = self._register(subject, text)
            registered = frame, None if latest == text else _parsed(latest, subject)
            if len(self._registered) >= _CACHED_SCHEMAS:
                self._registered.clear()
            self._registered[subject, text] = registered
        return registered


def _parsed(text: str, subject: str) -> Any:
    """Return a schema of the registry as fastavro parses it. Raises HelenusError REGISTRY_REFUSED for one of no use."""
    try:
        return fastavro.parse_schema(without_logical_types(json.loads(text)))
    except (ValueError, TypeError, LookupError, RecursionError, SchemaParseException) as error:
        raise HelenusError(
            Kind.REGISTRY_REFUSED, f"the subject's latest schema is of no use: {error}", subject
        ) from None


def _properties(schema: ConnectSchema) -> dict[str, Any]:
    """Return what the Avro schema says of Connect's."""
    properties: dict[str, Any] = {}
    if schema.doc is not None:
        properties["connect.doc"] = schema.doc
    if schema.version is not None:
        properties["connect.version"] = schema.version
    if schema.parameters:
        properties["connect.parameters"] = dict(schema.parameters)
    if schema.default is not None:
        properties["connect.default"] = _default(schema)
    if schema.name is not None:
        properties["connect.name"] = schema.name
    if schema.type in ("int8", "int16"):
        properties["connect.type"] = schema.type
    if schema.name == DECIMAL and schema.type == "bytes":
        parameters = dict(schema.parameters)
        scale, precision = int(parameters.get("scale", 0)), int(parameters.get(_PRECISION, _DEFAULT_PRECISION))
        if 0 <= scale <= precision:
            properties |= {"logicalType": "decimal", "precision": precision, "scale": scale}
    elif is_time(schema):
        properties["logicalType"] = _LOGICAL[schema.name or ""]
    return properties


def _split(name: str) -> dict[str, str]:
    """Return the name and namespace of a full name. Raises ValueError for one that Avro does not allow."""
    namespace, _, short = name.rpartition(".")
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise ValueError(f"the name {name} is one that Avro does not allow")
    return {"name": short, "namespace": namespace} if namespace else {"name": short}


def _default(schema: ConnectSchema) -> Any:
    """Return a schema's default as Avro writes it in JSON."""
    write = _writer(replace(schema, is_optional=False))
    if schema.type == "float32":
        return float(float_text(schema.default, 32))
    return _text_for_bytes(schema.default if write is None else write(schema.default))


def _text_for_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Mapping):
        return {key: _text_for_bytes(item) for key, item in value.items()}
    return [_text_for_bytes(item) for item in value] if isinstance(value, list) else value


def _writer(schema: ConnectSchema) -> Write | None:
    """Return what turns a value into that of the type without its logical one; None leaves it as it is."""
    if schema.type == "struct":
        writes = [(field.name, _nullable(_writer(field.schema)), field.schema.default) for field in schema.fields]
        return lambda struct: {
            name: write(default if struct[name] is None else struct[name]) for name, write, default in writes
        }
    if schema.type == "array":
        assert schema.value_schema is not None
        item = _nullable(_writer(schema.value_schema))
        return lambda array: [item(value) for value in array]
    if schema.type == "map":
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        key, value = _nullable(_writer(schema.key_schema)), _nullable(_writer(schema.value_schema))
        if schema.key_schema.type == "string" and not schema.key_schema.is_optional:
            return lambda entries: {k: value(v) for k, v in entries.items()}
        return lambda entries: [{"key": key(k), "value": value(v)} for k, v in entries.items()]
    if is_time(schema):
        return to_number
    if schema.name == DECIMAL and schema.type == "bytes":
        return lambda decimal: unscaled_bytes(schema, decimal)
    return None


def _nullable(write: Write | None) -> Write:
    if write is None:
        return lambda value: value
    return lambda value: None if value is None else write(value)
