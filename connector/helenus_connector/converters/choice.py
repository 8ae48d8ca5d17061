"""Choose the converter that a class's name and its properties ask for.

Properties are those of one side, without `key.converter.` or `value.converter.`. Those that say where the registry is,
and who logs in, are not the converter's: it gets the registry.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Callable, Mapping

from helenus_connector.connect_data.converter import RecordConverter
from helenus_connector.converters._json_schema import JsonSchemaConverter
from helenus_connector.converters._named import NamedConverter
from helenus_connector.converters._plain import ByteArrayConverter, NumberConverter
from helenus_connector.converters.subjects import CONTEXT, NO_CONTEXT, SchemaStore
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.named_class import is_class_name
from helenus_schemas.settings.properties import shown_key

_CONFLUENT = "io.confluent.connect."
_CONNECT = "org.apache.kafka.connect.converters."
_NUMBERS = {
    "BooleanConverter": "boolean",
    "DoubleConverter": "float64",
    "FloatConverter": "float32",
    "IntegerConverter": "int32",
    "LongConverter": "int64",
    "ShortConverter": "int16",
}
_CONNECTION = re.compile(r"(schema\.registry|basic\.auth|bearer\.auth|proxy)\..+")
_CONTEXT_KEY = "context.name.strategy"
_SUBJECTS = (
    *("key.subject.name.strategy", "value.subject.name.strategy", "auto.register.schemas", "use.latest.version"),
    *("latest.compatibility.strict", "normalize.schemas", "schemas.cache.config", "schemas.cache.size"),
    *("max.schemas.per.subject", "latest.cache.size", "latest.cache.ttl.sec", _CONTEXT_KEY),
)
_PROTOBUF = (
    *("optional.for.nullables", "wrapper.for.nullables", "scrub.invalid.names", "skip.known.types"),
    *("reference.subject.name.strategy", "reference.lookup.only"),
)
_JSON_SCHEMA = ("decimal.format", "object.additional.properties")
_KEYS = {
    f"{_CONFLUENT}protobuf.ProtobufConverter": (*_SUBJECTS, *_PROTOBUF),
    f"{_CONFLUENT}json.JsonSchemaConverter": (*_SUBJECTS, *_JSON_SCHEMA),
    f"{_CONNECT}ByteArrayConverter": (),
    **{f"{_CONNECT}{name}": () for name in _NUMBERS},
}
CLASSES = tuple(_KEYS)
"""The names of the classes that `make_converter` knows, beside those of users' own."""


class _NoSchemas:
    """A registry that has nothing: to check a converter's properties."""

    def register_as(self, *_: object) -> int:
        return 0

    def latest_as(self, *_: object) -> tuple[int, str]:
        return 0, ""


NO_SCHEMAS = _NoSchemas()


def is_connection_key(key: str) -> bool:
    """Return whether a key says where the registry is, or who logs in."""
    return _CONNECTION.fullmatch(key) is not None


def keys_of_class(class_name: str) -> tuple[str, ...]:
    """Return the names of a class's own keys, also of those that mean nothing here."""
    return _KEYS[class_name]


def is_converter_class(class_name: str) -> bool:
    """Return whether `make_converter` makes a converter of a class of this name, which it may have to import."""
    return class_name in CLASSES or is_class_name(class_name)


def needs_registry(class_name: str) -> bool:
    """Return whether a class of these has schemas in a registry."""
    return _SUBJECTS[0] in _KEYS.get(class_name, ())


def make_converter(
    class_name: str, is_key: bool, properties: Mapping[str, str], store: SchemaStore | None
) -> RecordConverter:
    """Make the converter of keys, or of values. `store` is the registry, which those with schemas need.

    Raises HelenusError CONFIG for another class, for a property that it does not have, and without a registry.
    """
    side = "key.converter" if is_key else "value.converter"
    if is_class_name(class_name):
        try:
            return NamedConverter(class_name, is_key, properties)
        except ValueError as error:
            raise HelenusError(Kind.CONFIG, f"{side}={class_name}: {error}") from None
    if class_name not in _KEYS:
        near = difflib.get_close_matches(class_name, CLASSES, 1, 0.5) or CLASSES
        raise HelenusError(Kind.CONFIG, f"{side}={class_name}: there is no such converter", "", f"give {near[0]}")
    _check_keys(class_name, side, properties)
    if class_name == f"{_CONNECT}ByteArrayConverter":
        return ByteArrayConverter()
    name = class_name.rpartition(".")[2]
    if name in _NUMBERS:
        return NumberConverter(name, _NUMBERS[name])
    if store is None:
        advice = f"set {side}.schema.registry.url; a topic on Pulsar keeps schemas itself, and no other kind than Avro"
        raise HelenusError(Kind.CONFIG, f"{side}={class_name} needs a schema registry", "", advice)
    make: Callable[[Mapping[str, str], bool, SchemaStore], RecordConverter] = JsonSchemaConverter
    if name == "ProtobufConverter":
        make = _protobuf_converter
    return make(properties, is_key, store)


def _check_keys(class_name: str, side: str, properties: Mapping[str, str]) -> None:
    keys = _KEYS[class_name]
    if _CONTEXT_KEY in keys and properties.get(_CONTEXT_KEY, NO_CONTEXT).strip() not in ("", NO_CONTEXT):
        raise HelenusError(Kind.CONFIG, f"{side}.{_CONTEXT_KEY}: {CONTEXT}", "", "leave it out")
    for key in properties:
        if key in keys or (keys and is_connection_key(key)):
            continue
        near = difflib.get_close_matches(key, keys, 1)
        advice = f"did you mean {side}.{near[0]}?" if near else "leave it out"
        problem = f"{side}.{shown_key(key)}: {class_name} has no such property"
        raise HelenusError(Kind.CONFIG, problem, "", advice)


def _protobuf_converter(properties: Mapping[str, str], is_key: bool, store: SchemaStore) -> RecordConverter:
    if importlib.util.find_spec("google.protobuf") is None:
        advice = "pip install 'helenus[connector,protobuf]'"
        raise HelenusError(Kind.CONFIG, "ProtobufConverter needs the package protobuf", "", advice)
    from helenus_connector.converters._protobuf import ProtobufConverter

    return ProtobufConverter(properties, is_key, store)
