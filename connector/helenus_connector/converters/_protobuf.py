"""`io.confluent.connect.protobuf.ProtobufConverter`: Protobuf messages, and their .proto in a registry.

Source: `ProtobufData` of Confluent's schema-registry 8. A value is behind its schema's id and the place of its message
in the .proto: [0], the first one, is one byte.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf import wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message_factory import GetMessageClass

from helenus_connector.connect_data.schema import ConnectSchema
from helenus_connector.converters._proto_schema import (
    Nulls,
    ProtoSchema,
    is_wrapped,
    proto_schema,
    scrubbed_name,
    wrapper_schema,
)
from helenus_connector.converters._proto_types import LOGICAL, WRAPPED, fill_logical, new_pool
from helenus_connector.converters._values import unfit
from helenus_connector.converters.subjects import SchemaStore, SubjectSchemas, flag, subject_settings
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.errors import HelenusError, Kind

_FRAME = struct.Struct(">bI")
_MAX_SCHEMAS = 100  # of one topic: each ALTER makes one
_BAD_VALUES = (ValueError, TypeError, LookupError, OverflowError, AttributeError, EncodeError)
Fill = Callable[[Any, Any], None]
"""Sets a message to a struct's value."""


class ProtobufConverter:
    """Encodes structs, and single values of the types that have a wrapper."""

    def __init__(self, properties: Mapping[str, str], is_key: bool, store: SchemaStore) -> None:
        is_optional = flag(properties, "optional.for.nullables", False)
        is_wrapping = flag(properties, "wrapper.for.nullables", False)
        if is_optional and is_wrapping:
            problem = "optional.for.nullables and wrapper.for.nullables are two forms of a null: leave one out"
            raise HelenusError(Kind.CONFIG, problem)
        self._nulls: Nulls = "optional" if is_optional else "wrapper" if is_wrapping else "none"
        self._scrubs = flag(properties, "scrub.invalid.names", False)
        self._subjects = SubjectSchemas(store, "PROTOBUF", is_key, subject_settings(properties, is_key))
        self._encoders: dict[int, tuple[ConnectSchema, _Encoder]] = {}

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        if schema is None:
            raise unfit("ProtobufConverter needs a schema, and the value has none", topic)
        try:
            encoder = self._encoder(schema)
            data = encoder.encode(value)
        except _BAD_VALUES as error:
            raise unfit(f"a value has no form in Protobuf: {error}", topic) from None
        registered = self._subjects.register(topic, encoder.message, encoder.text)
        return _FRAME.pack(0, registered.id) + encoder.index_bytes(registered.text) + data

    def _encoder(self, schema: ConnectSchema) -> _Encoder:
        """Return a schema's encoder. Kept by the schema itself: records of one table have the same object."""
        cached = self._encoders.get(id(schema))
        if cached is None or cached[0] is not schema:
            if len(self._encoders) >= _MAX_SCHEMAS:
                self._encoders.clear()
            cached = self._encoders[id(schema)] = schema, _encoder_for(schema, self._nulls, self._scrubs)
        return cached[1]


class _Encoder:
    """Encodes values of one schema by their `message`, in the .proto `text`; `indexes` are its place there."""

    def __init__(self, message: str, text: str, indexes: Sequence[int], make: Callable[[], Any], fill: Fill) -> None:
        self.message = message
        self.text = text
        self._index_bytes = {text: _index_bytes(indexes)}
        self._make = make
        self._fill = fill

    def encode(self, value: Any) -> bytes:
        message = self._make()
        self._fill(message, value)
        data: bytes = message.SerializeToString(deterministic=True)
        return data

    def index_bytes(self, text: str) -> bytes:
        """Return the bytes that say where the message is in a schema of the registry: ours, or its latest in Base64.

        Raises HelenusError REGISTRY_REFUSED for one without the message.
        """
        if text not in self._index_bytes:
            self._index_bytes[text] = _index_bytes(_find_message(text, self.message))
        return self._index_bytes[text]


def _encoder_for(schema: ConnectSchema, nulls: Nulls, scrubs: bool) -> _Encoder:
    """Return the encoder of a schema. Raises ValueError for one without form in Protobuf."""
    if schema.type == "struct":
        return _struct_encoder(schema, proto_schema(schema, nulls, scrubs), nulls, scrubs)
    if schema.type not in WRAPPED or schema.name in LOGICAL:
        raise ValueError(f"a record of {schema.name or schema.type} alone")
    name = WRAPPED[schema.type].name.rpartition(".")[2]
    file = FileDescriptorProto.FromString(wrappers_pb2.DESCRIPTOR.serialized_pb)
    index = [message.name for message in file.message_type].index(name)

    def fill(message: Any, value: Any) -> None:
        message.value = value

    return _Encoder(f"{file.package}.{name}", wrapper_schema(file), [index], getattr(wrappers_pb2, name), fill)


def _struct_encoder(schema: ConnectSchema, made: ProtoSchema, nulls: Nulls, scrubs: bool) -> _Encoder:
    pool = new_pool()
    pool.AddSerializedFile(made.descriptor.SerializeToString())
    message_class = GetMessageClass(pool.FindMessageTypeByName(made.message))
    return _Encoder(made.message, made.text, [0], message_class, _struct_filler(schema, nulls, scrubs))


def _struct_filler(schema: ConnectSchema, nulls: Nulls, scrubs: bool) -> Fill:
    """Return the function that sets a message to a struct's value."""
    fields = []
    for field in schema.fields:
        name = scrubbed_name(field.name) if scrubs else field.name
        fields.append((field.name, field.schema.default, _field_setter(name, field.schema, nulls, scrubs)))

    def fill(message: Any, value: Any) -> None:
        for name, default, set_field in fields:
            member = value[name]
            member = default if member is None else member
            if member is not None:
                set_field(message, member)

    return fill


def _field_setter(name: str, schema: ConnectSchema, nulls: Nulls, scrubs: bool) -> Fill:
    """Return the function that sets a field of a message to a value that is not null."""
    if schema.type == "array":
        assert schema.value_schema is not None
        return _array_setter(name, schema.value_schema, nulls, scrubs)
    if schema.type == "map":
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        set_key = _field_setter("key", schema.key_schema, nulls, scrubs)
        set_value = _field_setter("value", schema.value_schema, nulls, scrubs)

        def set_map(message: Any, value: Any) -> None:
            entries = getattr(message, name)
            for key, member in value.items():
                entry = entries.add()
                if key is not None:
                    set_key(entry, key)
                if member is not None:
                    set_value(entry, member)

        return set_map
    fill = _message_filler(schema, nulls, scrubs)
    if fill is None:
        return lambda message, value: setattr(message, name, value)

    def set_message(message: Any, value: Any) -> None:
        member = getattr(message, name)
        member.SetInParent()  # also where nothing of it is set
        fill(member, value)

    return set_message


def _array_setter(name: str, schema: ConnectSchema, nulls: Nulls, scrubs: bool) -> Fill:
    fill = _message_filler(schema, nulls, scrubs)
    if fill is None:
        return lambda message, value: getattr(message, name).extend(value)

    def set_array(message: Any, value: Any) -> None:
        items = getattr(message, name)
        for item in value:
            if item is None:
                raise ValueError(f"{name}: Protobuf has no null in an array")
            fill(items.add(), item)

    return set_array


def _message_filler(schema: ConnectSchema, nulls: Nulls, scrubs: bool) -> Fill | None:
    """Return the function that sets the message that stands for a value; None if the value stands for itself."""
    if schema.name in LOGICAL:
        return lambda message, value: fill_logical(message, schema, value)
    if schema.type == "struct":
        return _struct_filler(schema, nulls, scrubs)
    if is_wrapped(schema, nulls):
        return lambda message, value: setattr(message, "value", value)
    return None


def _index_bytes(indexes: Sequence[int]) -> bytes:
    """Return the place of a message as varints in zigzag form, behind their number; of the first one, a zero."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(map(long_bytes, (len(indexes), *indexes)))


def _find_message(text: str, name: str) -> list[int]:
    """Return the place of a message in a schema, the Base64 of its descriptor. Raises HelenusError REGISTRY_REFUSED."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text))
    except (ValueError, DecodeError) as error:
        raise HelenusError(Kind.REGISTRY_REFUSED, f"the subject's latest schema is no descriptor: {error}") from None
    relative = name.removeprefix(f"{file.package}.") if file.package else name
    indexes: list[int] = []
    messages: Sequence[DescriptorProto] = file.message_type
    for part in relative.split("."):
        names = [message.name for message in messages]
        if part not in names:
            raise HelenusError(Kind.REGISTRY_REFUSED, f"the subject's latest schema has no message {name}")
        indexes.append(names.index(part))
        messages = messages[indexes[-1]].nested_type
    return indexes
