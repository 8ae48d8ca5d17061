"""Converter classes of Kafka Connect, the `output.format` that two of them stand for, and defaults that follow.

Pairs in `_FORMATS` are made by the shapes themselves. Any other pair of known classes, such as Protobuf's, has records
made in Avro first, and converted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from helenus_connector.converters.choice import is_connection_key, is_converter_class, needs_registry
from helenus_schemas.settings.named_class import is_class_name

Format = Literal["key-value-avro", "key-value-json", "json", "debezium", "debezium-cassandra", "cep44"]
ENVELOPES: tuple[Format, ...] = ("debezium", "debezium-cassandra", "cep44")
"""Formats that say what a change did: Avro, or JSON with a JSON converter."""
CONNECT_JSON = "org.apache.kafka.connect.json.JsonConverter"
_FORMATS: dict[tuple[str, str], tuple[Format, ...]] = {
    ("", ""): get_args(Format),
    ("Avro", "Avro"): ("key-value-avro", *ENVELOPES),
    ("Json", "Json"): ("key-value-json", "json", *ENVELOPES),
    ("String", "Json"): ("json", "key-value-json"),
    ("ByteArray", "ByteArray"): get_args(Format),  # it passes on bytes, which output.format makes
}

_SIDES = ("key.converter", "value.converter")
_KINDS = ("Avro", "Json", "String", "ByteArray")
_WITH_SCHEMA: tuple[Format, ...] = ("key-value-avro", *ENVELOPES)
_WITHOUT_SCHEMA: tuple[Format, ...] = ("key-value-json", *ENVELOPES)
_DEFAULTS_WITHOUT_READS = {"max.batch.size": "150000"}
"""Defaults with `resolver=none` and `state=rows`, which read no rows for a batch's keys."""
_DEBEZIUM_DEFAULTS = {
    "tombstones.on.delete": "false",
    "decimal.handling.mode": "double",
    "varint.handling.mode": "long",
}
"""Defaults with `output.format=debezium-cassandra`, as in Debezium's connector."""


def with_defaults(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return a connector's keys, with the format that its converters stand for, and defaults of format, resolver and
    state.
    """
    possible = formats(values.get("key.converter", ""), values.get("value.converter", ""))
    chosen = {"output.format": possible[0], **values} if possible else values
    if chosen.get("resolver") == "none" or chosen.get("state") == "rows":
        chosen = {**_DEFAULTS_WITHOUT_READS, **chosen}
    return {**_DEBEZIUM_DEFAULTS, **chosen} if chosen.get("output.format") == "debezium-cassandra" else chosen


def formats(key: str, value: str) -> tuple[Format, ...]:
    """Return the formats that converters of these classes stand for, the likelier first; empty if they
    stand for none.
    """
    if are_converted(key, value):
        return _WITH_SCHEMA if has_registry(key) or has_registry(value) else _WITHOUT_SCHEMA
    return _FORMATS.get(_kinds(key, value), ())


def are_converted(key: str, value: str) -> bool:
    """Return whether records of these converters' classes are made in another form first, and converted."""
    kinds = _kinds(key, value)
    # Of text alone the other side's converter is most likely forgotten: Java's text of a row has no reader.
    is_half = not (key and value) and "String" in kinds
    return not is_half and kinds not in _FORMATS and all(is_converter_class(kind) or kind in _KINDS for kind in kinds)


def separate_converter_keys(properties: Mapping[str, str], own: Collection[str]) -> dict[str, str]:
    """Return properties in which the keys of converters that are made by their classes are below
    `SIDE.converter.properties.`: all but `own`, a connector's, and other names for those
    that say where the registry is and who logs in.
    """
    prefixes = tuple(f"{side}." for side in _SIDES if is_converter_class(properties.get(side, "")))
    separated = {}
    for key, value in properties.items():
        prefix = next((p for p in prefixes if key.startswith(p) and key not in own), None)
        if prefix is None or is_connection_key(key[len(prefix) :]):
            separated[key] = value
        else:
            separated[f"{prefix}properties.{key[len(prefix) :].removeprefix('properties.')}"] = value
    return separated


def converter_kind(own: str, other: str, is_avro: bool) -> str:
    """Return how keys, or values, are converted: `Avro`, `Json`, `String`, or by another class. `own` is the class of
    this side; without one, and for a pair of `ByteArray`, it is what the format is made in.
    """
    kind = _kind(own or other)
    return ("Avro" if is_avro else "Json") if not kind or _kinds(own, other) == ("ByteArray", "ByteArray") else kind


def has_registry(converter: str) -> bool:
    """Return whether what a converter's class writes has its schema in a registry."""
    return _kind(converter) == "Avro" or needs_registry(converter)


def is_avro(output_format: str, converter: str) -> bool:
    """Return whether records of a format are Avro, with this converter's class."""
    has_schema = (
        not is_json(converter)
        and not is_text(converter)
        and (not is_converter_class(converter) or has_registry(converter) or _kind(converter) == "ByteArray")
    )
    return output_format == "key-value-avro" or (output_format in ENVELOPES and has_schema)


def is_json(converter: str) -> bool:
    """Return whether a converter's class stands for JSON."""
    return _kind(converter) == "Json"


def is_text(converter: str) -> bool:
    """Return whether a converter's class stands for text."""
    return _kind(converter) == "String"


def _kinds(key: str, value: str) -> tuple[str, str]:
    """Return the kinds of a pair of classes, of which one may not be given."""
    kinds = _kind(key), _kind(value)
    return kinds[0] or kinds[1], kinds[1] or kinds[0]


def _kind(converter: str) -> str:
    """Return `Avro` for `io.confluent.connect.avro.AvroConverter`; other products' classes end alike, and a user's own
    stands for itself.
    """
    if is_class_name(converter):
        return converter
    return next((kind for kind in _KINDS if converter.endswith(f"{kind}Converter")), converter)
