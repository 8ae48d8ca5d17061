"""Connect's schemas as Protobuf's: a file of one message, as `ProtobufData` of Confluent's schema-registry 8 makes it.

struct ks.t {v: int32?, m: map<string, int32>?} →

    syntax = "proto3"; package ks;
    message t {
      int32 v = 1;
      repeated ConnectDefault1Entry m = 2;
      message ConnectDefault1Entry { string key = 1; int32 value = 2; }
    }

A map is a repeated message of entries, which has the same bytes as a map. The definition of what is null, `nulls`, is
`none` (null is 0, or empty), `optional` or `wrapper`, of `optional.for.nullables` and `wrapper.for.nullables`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import quote_plus

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from helenus_connector.connect_data.schema import DECIMAL, ConnectSchema, SchemaField
from helenus_connector.converters._proto_types import LOGICAL, WRAPPED, MessageType

Nulls = Literal["none", "optional", "wrapper"]
_NAME = "ConnectDefault"
_SCALARS = {
    **{f"int{bits}": ("int32", FieldDescriptorProto.TYPE_INT32) for bits in (8, 16, 32)},
    "int64": ("int64", FieldDescriptorProto.TYPE_INT64),
    "float32": ("float", FieldDescriptorProto.TYPE_FLOAT),
    "float64": ("double", FieldDescriptorProto.TYPE_DOUBLE),
    "boolean": ("bool", FieldDescriptorProto.TYPE_BOOL),
    "string": ("string", FieldDescriptorProto.TYPE_STRING),
    "bytes": ("bytes", FieldDescriptorProto.TYPE_BYTES),
}
_TYPE_NAMES = dict(_SCALARS.values())
_LABELS = {"optional": FieldDescriptorProto.LABEL_OPTIONAL, "repeated": FieldDescriptorProto.LABEL_REPEATED}
_WRAPPER_OPTIONS = (
    *("java_package", "java_outer_classname", "java_multiple_files", "go_package", "cc_enable_arenas"),
    *("objc_class_prefix", "csharp_namespace"),
)
"""Options of wrappers.proto, in the order in which Confluent's converter has them."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class ProtoSchema:
    """A schema's file. `text` is the .proto; `descriptor` says the same; `message` is the full name of the message."""

    text: str
    descriptor: FileDescriptorProto
    message: str


class _Field(NamedTuple):
    """A field, as it is printed: `type` is a scalar or a message's name; `params` are those of its meta."""

    name: str
    number: int
    type: str
    label: str
    params: dict[str, str]


def proto_schema(schema: ConnectSchema, nulls: Nulls = "none", scrubs: bool = False) -> ProtoSchema:
    """Return the file of a struct's schema. With `scrubs` names that Protobuf has none of are spelled otherwise.

    Raises ValueError for a schema that has none, by the name of the field.
    """
    builder = _FileBuilder(nulls, scrubs)
    package, _, name = builder.name_or_default(schema.name).rpartition(".")
    builder.file.package = package
    builder.check_name(name)
    for part in package.split(".") if package else ():
        builder.check_name(part)
    lines = builder.add_message(builder.file.message_type.add(), f".{package}" if package else "", name, schema.fields)
    head = ['syntax = "proto3";', *([f"package {package};"] if package else []), ""]
    imports = [f'import "{file}";' for file in builder.imports]
    text = "\n".join([*head, *imports, *([""] if imports else []), *lines, ""])
    return ProtoSchema(text, builder.file, f"{package}.{name}" if package else name)


def scrubbed_name(name: str) -> str:
    """Return a name as `scrub.invalid.names` spells it: letters, digits and underscores, a letter first."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name, re.ASCII) or not name:
        return name
    encoded = quote_plus(name, safe="*")  # as Java's URLEncoder
    encoded = encoded.replace("~", "%7E")
    return re.sub("[^A-Za-z0-9_]", "_", f"x{encoded}" if encoded[0].isdigit() or encoded[0] == "_" else encoded)


def is_wrapped(schema: ConnectSchema, nulls: Nulls) -> bool:
    """Return whether a value is in a wrapper's message."""
    return nulls == "wrapper" and schema.is_optional and schema.type in WRAPPED and schema.name not in LOGICAL


class _FileBuilder:
    """Builds a file: its descriptor, and the lines of its text."""

    def __init__(self, nulls: Nulls, scrubs: bool) -> None:
        self.file = FileDescriptorProto(name="helenus.proto", syntax="proto3")
        self.imports: list[str] = []
        self._nulls = nulls
        self._scrubs = scrubs
        self._unnamed = 0

    def name_or_default(self, name: str | None) -> str:
        """Return a name, or the next one of those without."""
        if name:
            return name
        self._unnamed += 1
        return f"{_NAME}{self._unnamed}"

    def check_name(self, name: str) -> None:
        if not _IDENTIFIER.fullmatch(name):
            raise ValueError(f"{name} is no name in Protobuf: set scrub.invalid.names=true")

    def add_message(
        self, message: DescriptorProto, scope: str, name: str, fields: Sequence[SchemaField], is_entry: bool = False
    ) -> list[str]:
        """Fill a message of a struct, or of a map's entries, and return its lines."""
        message.name = name
        body: list[str] = []
        inner: list[str] = []
        for number, field in enumerate(fields, 1):
            made = self._add_field(message, f"{scope}.{name}", field, number, inner, is_entry)
            body.append(f"  {_field_text(made)}")
        return [f"message {name} {{", *body, *(f"  {line}" for line in inner), "}"]

    def _add_field(
        self,
        message: DescriptorProto,
        scope: str,
        field: SchemaField,
        number: int,
        inner: list[str],
        is_entry: bool,
    ) -> _Field:
        """Add a field to a message, and the messages that it needs to `inner`, the lines of those in it."""
        name = scrubbed_name(field.name) if self._scrubs else field.name
        self.check_name(name)
        schema, label = field.schema, ""
        if schema.type in ("array", "map"):
            label = "repeated"
        elif self._nulls == "optional" and schema.is_optional and not is_entry:
            label = "optional"
        if schema.type == "array":
            assert schema.value_schema is not None
            schema = schema.value_schema
            if schema.type in ("array", "map"):
                raise ValueError(f"{name}: Protobuf has no {schema.type} in an array")
        params: dict[str, str] = {}
        described = message.field.add(name=name, number=number, label=_LABELS[label or "optional"])
        type_name = self._set_type(message, described, scope, schema, inner, params)
        if label == "optional":
            described.proto3_optional = True
            described.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")
        return _Field(name, number, type_name, label, params)

    def _set_type(
        self,
        message: DescriptorProto,
        described: FieldDescriptorProto,
        scope: str,
        schema: ConnectSchema,
        inner: list[str],
        params: dict[str, str],
    ) -> str:
        """Set the type of a field, and return its name; add what the field's meta says to `params`."""
        message_type = self._known_message(schema)
        if message_type is not None:
            self._import(message_type.file)
            described.type, described.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{message_type.name}"
            if schema.name == DECIMAL:
                scale = dict(schema.parameters).get("scale")
                precision = dict(schema.parameters).get("connect.decimal.precision")
                params |= {} if precision is None else {"precision": precision}
                params |= {} if scale is None else {"scale": scale}
        elif schema.type in _SCALARS:
            described.type = _SCALARS[schema.type][1]
        else:
            return self._nested(message, described, scope, schema, inner)
        if schema.type in ("int8", "int16"):
            params["connect.type"] = schema.type
        return message_type.name if message_type is not None else _SCALARS[schema.type][0]

    def _known_message(self, schema: ConnectSchema) -> MessageType | None:
        if schema.name in LOGICAL:
            return LOGICAL[schema.name]
        return WRAPPED[schema.type] if is_wrapped(schema, self._nulls) else None

    def _nested(
        self,
        message: DescriptorProto,
        described: FieldDescriptorProto,
        scope: str,
        schema: ConnectSchema,
        inner: list[str],
    ) -> str:
        """Set the type of a field to a message in its own, which is made if there is none of its name."""
        name = self.name_or_default(schema.name).rpartition(".")[2]
        name = scrubbed_name(name) if self._scrubs else name
        if schema.type == "map":
            assert schema.key_schema is not None
            assert schema.value_schema is not None
            name = _entry_name(name)
            fields: Sequence[SchemaField] = (
                SchemaField("key", schema.key_schema),
                SchemaField("value", schema.value_schema),
            )
        else:
            name = f"{name}Message" if name == described.name else name
            fields = schema.fields
        self.check_name(name)
        described.type, described.type_name = FieldDescriptorProto.TYPE_MESSAGE, f"{scope}.{name}"
        if all(nested.name != name for nested in message.nested_type):
            is_entry = schema.type == "map"
            inner += self.add_message(message.nested_type.add(), scope, name, fields, is_entry)
        return name

    def _import(self, file: str) -> None:
        if file not in self.imports:
            self.imports.append(file)
            self.file.dependency.append(file)


def _entry_name(name: str) -> str:
    """Return the name of the message of a map's entries: of map_of_x, MapOfXEntry."""
    camel = "".join(part.capitalize() for part in name.split("_")) if "_" in name else name
    return f"{camel}Entry"


def _field_text(field: _Field) -> str:
    params = ", ".join(_param_text(key, value) for key, value in sorted(field.params.items()))
    meta = f" [(confluent.field_meta) = {{ params: [{params}] }}]" if params else ""
    label = f"{field.label} " if field.label else ""
    return f"{label}{field.type} {field.name} = {field.number}{meta};"


def _param_text(key: str, value: str) -> str:
    """Return a parameter of a field's meta, its two members in the order of their texts: so Confluent's has them, whose
    file does not import what defines them either.
    """
    members = (f'{name}: "{_escaped(text)}"' for text, name in sorted(((key, "key"), (value, "value"))))
    return f"{{ {', '.join(members)} }}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def wrapper_schema(descriptor: FileDescriptorProto) -> str:
    """Return the text of `google/protobuf/wrappers.proto`, which is the schema of a single value."""
    return "\n".join(_wrapper_lines(descriptor))


def _wrapper_lines(descriptor: FileDescriptorProto) -> Iterator[str]:
    yield 'syntax = "proto3";'
    yield f"package {descriptor.package};"
    yield ""
    for name in _WRAPPER_OPTIONS:
        yield _option_text(name, getattr(descriptor.options, name))
    yield ""
    for message in descriptor.message_type:
        yield f"message {message.name} {{"
        for field in message.field:
            named = f"{_TYPE_NAMES_BY_NUMBER[field.type]} {field.name} = {field.number}"
            yield f'  {named} [json_name = "{field.name}"];'
        yield "}"


def _option_text(name: str, value: str | bool) -> str:
    return f"option {name} = {str(value).lower() if isinstance(value, bool) else _quoted(value)};"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


_TYPE_NAMES_BY_NUMBER = {
    **{number: name for name, number in _TYPE_NAMES.items()},
    FieldDescriptorProto.TYPE_UINT32: "uint32",
    FieldDescriptorProto.TYPE_UINT64: "uint64",
}
