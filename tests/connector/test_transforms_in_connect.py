"""Kafka Connect's own classes, of the same records and settings: what comes out is equal, schemas too."""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
from connector.connect_values import (
    random_envelope,
    random_outbox,
    random_record,
    random_struct,
    random_value,
    reread,
    shown,
    to_json,
    with_schema,
)
from schemas.java import Program

from helenus_connector.connect_data.from_avro import AvroReader
from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.to_avro import AvroWriter
from helenus_connector.transforms._record_part import field_value
from helenus_connector.transforms.catalog import CLASSES, PluginClass
from helenus_connector.transforms.contract import REQUIRED

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).with_name("ConnectTransforms.java")
KAFKA = "org.apache.kafka.connect.transforms."
RECORDS = 25
NO_DEFAULT = {"replace.null.with.default": "false"}
TYPES = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
FORMATS = (
    "yyyy-MM-dd HH:mm:ss.SSS",
    "yyyyMMddHHmmss",
    "EEE, d MMM yyyy HH:mm:ss Z",
    "h:mm a, MMMM d, yy 'at' G",
    "D u",
)
OF_PARTS: Sequence[tuple[str, Mapping[str, str]]] = (
    *(("Cast", {"spec": f"a:{kind},b:{other}"}) for kind, other in zip(TYPES, reversed(TYPES), strict=True)),
    *(("Cast", {"spec": kind}) for kind in ("int8", "string")),
    ("Cast", {"spec": "a:string,c:int64", **NO_DEFAULT}),
    ("ExtractField", {"field": "a"}),
    ("ExtractField", {"field": "a", **NO_DEFAULT}),
    ("ExtractField", {"field": "b.a", "field.syntax.version": "V2"}),
    ("ExtractField", {"field": "`b`.`a`", "field.syntax.version": "v2"}),
    ("ExtractField", {"field": "k"}),
    ("Flatten", {}),
    ("Flatten", {"delimiter": "_"}),
    ("HeaderFrom", {"fields": "a,b", "headers": "x,op", "operation": "copy"}),
    ("HeaderFrom", {"fields": "a", "headers": "x", "operation": "move", **NO_DEFAULT}),
    ("HeaderFrom", {"fields": "k", "headers": "x", "operation": "move"}),
    ("HoistField", {"field": "whole"}),
    ("InsertField", {"topic.field": "t", "partition.field": "p?", "timestamp.field": "ts"}),
    ("InsertField", {"timestamp.field": "ts!", "partition.field": "p!"}),
    ("InsertField", {"static.field": "s!", "static.value": "x", **NO_DEFAULT}),
    ("MaskField", {"fields": "a,b"}),
    ("MaskField", {"fields": "a,c", **NO_DEFAULT}),
    ("MaskField", {"fields": "a", "replacement": "1234567"}),
    ("MaskField", {"fields": "b,k", "replacement": "-1.75"}),
    ("ReplaceField", {"exclude": "a,x"}),
    ("ReplaceField", {"include": "b,c,k"}),
    ("ReplaceField", {"exclude": "c", "renames": "a:z,b:y,k:kk", **NO_DEFAULT}),
    ("ReplaceField", {"renames": "a:b,b:a"}),
    ("SetSchemaMetadata", {"schema.name": "other.name"}),
    ("SetSchemaMetadata", {"schema.version": "17", **NO_DEFAULT}),
    *(("TimestampConverter", {"field": "a", "target.type": t}) for t in ("unix", "Date", "Time", "Timestamp")),
    *(("TimestampConverter", {"field": "a", "target.type": "string", "format": pattern}) for pattern in FORMATS),
    *(
        ("TimestampConverter", {"field": "b", "target.type": "unix", "unix.precision": unit})
        for unit in ("seconds", "microseconds", "nanoseconds")
    ),
    ("TimestampConverter", {"field": "b", "target.type": "Timestamp", "unix.precision": "seconds"}),
    ("TimestampConverter", {"field": "a", "target.type": "Timestamp", "format": "yyyy-MM-dd"}),
    ("TimestampConverter", {"target.type": "unix"}),
)
OTHERS: Sequence[tuple[str, Mapping[str, str]]] = (
    ("DropHeaders", {"headers": "op,other"}),
    ("Filter", {}),
    *(
        ("InsertHeader", {"header": "h", "value.literal": text})
        for text in (
            *("", "abc", "null", "true", "False", "1", "-129", "40000", "3000000000", "9" * 25, "1.5", "1e400", "1.0"),
            *("+7", "2024-02-29", "12:34:56.789Z", "2024-02-29T12:34:56.789Z", "17 apples", " x ", "-"),
        )
    ),
    ("RegexRouter", {"regex": "data-(\\w+)\\.(t)", "replacement": "$2_${1}_x$1"}),
    ("RegexRouter", {"regex": "data-(?<ks>.*)\\..*", "replacement": "${ks}\\$$1"}),
    ("RegexRouter", {"regex": "no", "replacement": "x"}),
    ("TimestampRouter", {}),
    ("TimestampRouter", {"topic.format": "${timestamp}/${topic}", "timestamp.format": "yyyy.MM'x'HH"}),
    ("ValueToKey", {"fields": "a"}),
    ("ValueToKey", {"fields": "b,a", **NO_DEFAULT}),
    ("predicates.HasHeaderKey", {"name": "op"}),
    ("predicates.RecordIsTombstone", {}),
    ("predicates.TopicNameMatches", {"pattern": ".*\\.t"}),
)
DEBEZIUM: Sequence[tuple[str, Mapping[str, str]]] = (
    *(
        ("ExtractNewRecordState", {"delete.tombstone.handling.mode": mode, **more})
        for mode in ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
        for more in (
            {},
            {"add.fields": "op,source.ts_ms,table,ts_ms:at", "add.headers": "op, source.table:of"},
            {"add.fields": "ts_ms", "add.fields.prefix": "x_", "add.headers": "op", "add.headers.prefix": ""},
        )
    ),
    ("ExtractNewRecordState", {"add.fields": "nope,op"}),
    ("ByLogicalTableRouter", {"topic.regex": "data-ks\\.(.*)", "topic.replacement": "all-$1"}),
    (
        "ByLogicalTableRouter",
        {
            "topic.regex": "(.*)\\..*",
            "topic.replacement": "$1",
            "key.field.name": "of",
            "key.field.regex": "data-(.*)",
            "key.field.replacement": "$1!",
            "schema.name.adjustment.mode": "avro",
        },
    ),
    ("ByLogicalTableRouter", {"topic.regex": ".*", "topic.replacement": "x", "key.enforce.uniqueness": "false"}),
    ("outbox.EventRouter", {}),
    (
        "outbox.EventRouter",
        {
            "table.fields.additional.placement": "type:header:kind,v:envelope,type:envelope:of",
            "route.by.field": "aggregatetype",
            "route.topic.regex": "(.*)\\.x",
            "route.topic.replacement": "$1-events",
            "route.tombstone.on.empty.payload": "true",
        },
    ),
    ("outbox.EventRouter", {"table.field.event.timestamp": "at", "table.field.event.key": "id"}),
    ("outbox.EventRouter", {"table.fields.additional.placement": "nope:header"}),
    (
        "outbox.EventRouter",
        {"table.fields.additional.placement": "nope:header", "table.fields.additional.error.on.missing": "false"},
    ),
    ("outbox.EventRouter", {"table.op.invalid.behavior": "fatal", "table.field.event.payload": "nope"}),
    ("HeaderToValue", {"headers": "op,writetime", "fields": "operation,at", "operation": "copy"}),
    ("HeaderToValue", {"headers": "op", "fields": "source.operation", "operation": "move"}),
    ("HeaderToValue", {"headers": "writetime", "fields": "source.at", "operation": "move"}),
)
CASES = [
    *((f"{KAFKA}{name}${part}", config) for name, config in OF_PARTS for part in ("Key", "Value")),
    *((f"{KAFKA}{name}", config) for name, config in OTHERS),
    *((f"io.debezium.transforms.{name}", config) for name, config in DEBEZIUM),
]


def result(plugin: PluginClass, config: Mapping[str, str], record: ConnectRecord) -> dict[str, Any]:
    """What our class makes of a record, as the Java program says it."""
    try:
        made = plugin.make(
            {key.name: key.parse(config[key.name]) if key.name in config else key.default for key in plugin.keys}
        )
        if plugin.type == "predicate":
            return {"test": made.test(record)}
        changed = made.apply(record)
        return {"dropped": True} if changed is None else shown(changed)
    except ValueError as error:
        return {"error": str(error)}


def records_of(name: str, config: Mapping[str, str]) -> Iterator[ConnectRecord]:
    rng = random.Random(f"{name} {sorted(config.items())}")
    for index in range(RECORDS):
        if name.endswith("EventRouter"):
            yield random_outbox(rng)
            continue
        if name.startswith("io.debezium."):
            # Of fields that are null and have a default, 3.5's router makes the default, and newer ones nothing.
            yield random_envelope(rng, has_defaults="Router" not in name)
            continue
        schema = random_struct(rng)
        more: dict[str, Any] = {} if index % 10 else {"value": None, "value_schema": None}
        yield random_record(rng, schema, **more)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("java"), SOURCE, "connect")


def test_every_transform_gives_what_connects_own_gives(program: Program) -> None:
    cases = [(name, config, list(records_of(name, config))) for name, config in CASES]
    lines = (
        json.dumps({"plugin": name, "config": config, "records": [to_json(record) for record in records]})
        for name, config, records in cases
    )
    answers = iter(program.ask("\n".join(lines)).splitlines())
    differences, results = [], 0
    for name, config, records in cases:
        for record in records:
            theirs, ours = reread(json.loads(next(answers))), result(CLASSES[name], config, record)
            is_equal = ("error" in theirs) == ("error" in ours) if "error" in {**theirs, **ours} else theirs == ours
            results += "error" not in theirs
            if not is_equal:
                differences.append((name, config, to_json(record), ours, theirs))
    assert not differences, f"{len(differences)} differ: {json.dumps(differences[:3], indent=1, default=str)}"
    assert results > len(CASES) * RECORDS / 3


def test_every_key_is_connects(program: Program) -> None:
    """Names, types, defaults and importance."""
    names = [name for name in CLASSES if name.startswith(KAFKA)]
    answers = program.ask("\n".join(json.dumps({"plugin": name}) for name in names)).splitlines()
    for name, answer in zip(names, answers, strict=True):
        theirs = {key["name"]: key for key in json.loads(answer)}
        ours = {key.name: key for key in CLASSES[name].keys}
        assert theirs.keys() == ours.keys(), name
        for key in ours.values():
            default = None if key.default in (REQUIRED, None) else str(key.default)
            text = {"True": "true", "False": "false", "()": "[]"}.get(default or "", default)
            wanted = theirs[key.name]
            assert (key.type, key.importance, key.default is REQUIRED, text) == (
                wanted["type"],
                wanted["importance"],
                wanted["required"],
                wanted["default"],
            ), (name, key.name)


OURS = {
    "ExtractNewRecordState": {"replace.null.with.default"},  # not in its list, though it is read
    "ByLogicalTableRouter": {"key.field.name", "schema.name.adjustment.mode"},
}


def test_every_key_is_debeziums(program: Program) -> None:
    names = ["ExtractNewRecordState", "ByLogicalTableRouter", "HeaderToValue", "outbox.EventRouter"]
    lines = "\n".join(json.dumps({"plugin": f"io.debezium.transforms.{name}"}) for name in names)
    for name, answer in zip(names, program.ask(lines).splitlines(), strict=True):
        theirs = {key["name"]: (key["type"], key["importance"]) for key in json.loads(answer)}
        keys = CLASSES[f"io.debezium.transforms.{name}"].keys
        ours = {key.name: (key.type, key.importance) for key in keys if key.name not in OURS.get(name, ())}
        assert ours == theirs, name


def test_avro_is_that_of_an_avro_converter(program: Program) -> None:
    """Of Apicurio's, which is made of Confluent's: schemas and bytes, and what is read of them again."""
    rng = random.Random(5)
    schemas = [random_struct(rng) for _ in range(200)]
    values = [(schema, random_value(rng, schema, required=True)) for schema in schemas]
    lines = [json.dumps({"avro": with_schema(schema, value)}) for schema, value in values]
    compared = 0
    for (schema, value), line in zip(values, program.ask("\n".join(lines)).splitlines(), strict=True):
        try:
            writer = AvroWriter(schema)
        except ValueError:  # two structs that differ have one name: theirs takes one for the other
            continue
        if "MapEntry2" in writer.text:  # so does theirs with maps
            continue
        theirs = json.loads(line)
        assert full_names(json.loads(writer.text)) == full_names(theirs["schema"])
        assert writer.encode(value) == b64decode(theirs["data"])
        reader = AvroReader(writer.text)
        with_defaults = {field.name: field_value(value, field) for field in schema.fields}
        assert list(reader.decode(writer.encode(value))) == list(with_defaults)
        compared += 1
    assert compared > 100


def full_names(schema: Any) -> Any:
    """An Avro schema without namespaces that are those of what is around."""

    def without_marks(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: without_marks(part) for key, part in node.items() if not key.startswith("__")}
        return [without_marks(part) for part in node] if isinstance(node, list) else node

    return without_marks(fastavro.parse_schema(schema))
