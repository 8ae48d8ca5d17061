"""The converters of records and of headers, as Kafka Connect's `/connector-plugins` lists them, with their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from helenus_connector.converters.choice import CLASSES, keys_of_class
from helenus_connector.converters.headers import HEADER_CLASSES
from helenus_connector.transforms.contract import ConfigKey

ConverterType = Literal["converter", "header_converter"]
_SCHEMAS_ENABLE = ConfigKey("schemas.enable", "BOOLEAN", "Whether JSON carries its schema.", default=True)
_REGISTERS = ConfigKey("auto.register.schemas", "BOOLEAN", "Whether schemas are registered.", default=True)
_NORMALIZES = ConfigKey("normalize.schemas", "BOOLEAN", "Whether the registry compares normal forms.", default=False)
_LATEST = ConfigKey("use.latest.version", "BOOLEAN", "Whether records have the subject's latest schema.", False)
_STRICT = ConfigKey("latest.compatibility.strict", "BOOLEAN", "Whether that has to take the records' own.", True)
_STRATEGY = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
_DOCUMENTED = {
    key.name: key
    for key in (
        *(
            ConfigKey(f"{part}.subject.name.strategy", "STRING", f"How subjects of {part}s are named.", _STRATEGY)
            for part in ("key", "value")
        ),
        _REGISTERS,
        _NORMALIZES,
        _LATEST,
        _STRICT,
        ConfigKey("optional.for.nullables", "BOOLEAN", "Whether nullable fields are `optional`.", False),
        ConfigKey("wrapper.for.nullables", "BOOLEAN", "Whether nullable fields are wrapper messages.", False),
        ConfigKey("scrub.invalid.names", "BOOLEAN", "Whether names that Protobuf forbids are changed.", False),
        ConfigKey("decimal.format", "STRING", "Decimals as BASE64 or NUMERIC.", "BASE64"),
        ConfigKey("object.additional.properties", "BOOLEAN", "Whether other properties are valid too.", True),
    )
}
_JSON = "org.apache.kafka.connect.json.JsonConverter"


class ConverterPlugin(NamedTuple):
    """A class of converters, and the keys below `key.converter.`, `value.converter.` or `header.converter.`."""

    name: str
    type: ConverterType
    keys: Sequence[ConfigKey]


CONVERTERS = (
    ConverterPlugin(
        "io.confluent.connect.avro.AvroConverter", "converter", (_REGISTERS, _NORMALIZES, _LATEST, _STRICT)
    ),
    *(
        ConverterPlugin(name, "converter", [_DOCUMENTED[key] for key in keys_of_class(name) if key in _DOCUMENTED])
        for name in CLASSES
    ),
    ConverterPlugin(_JSON, "converter", (_SCHEMAS_ENABLE,)),
    ConverterPlugin("org.apache.kafka.connect.storage.StringConverter", "converter", ()),
    *(ConverterPlugin(name, "header_converter", ()) for name in HEADER_CLASSES),
)
"""In the order in which they are listed; a class that converts both is there twice, as in Connect's list."""
