"""Converter classes of Kafka Connect, the `output.format` that two of them stand for, and defaults that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

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
    kinds = [_kind(name) for name in (key, value)]
    return _FORMATS.get((kinds[0] or kinds[1], kinds[1] or kinds[0]), ())


def is_avro(output_format: str, converter: str) -> bool:
    """Return whether records of a format are Avro, with this converter's class."""
    return output_format == "key-value-avro" or (output_format in ENVELOPES and not is_json(converter))


def is_json(converter: str) -> bool:
    """Return whether a converter's class stands for JSON."""
    return _kind(converter) == "Json"


def _kind(converter: str) -> str:
    """Return `Avro` for `io.confluent.connect.avro.AvroConverter`; other products' classes end alike."""
    return next(
        (kind for kind in ("Avro", "Json", "String", "ByteArray") if converter.endswith(f"{kind}Converter")), converter
    )
