"""Our converters compared with Kafka Connect's own classes, and our .proto files with Protobuf's compiler."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from connector.test_converters import ADDRESS, CONNECT, ROW, UTC, decimal, optional, struct_of
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from schemas.java import Program

from helenus_connector.connect_data.schema import DATE, TIME, TIMESTAMP, ConnectSchema
from helenus_connector.converters._proto_schema import proto_schema, wrapper_schema
from helenus_connector.converters.choice import make_converter
from helenus_connector.converters.headers import header_converter
from helenus_schemas.errors import HelenusError
from helenus_stack.jars import fetch, parse_lock
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).with_name("ConnectConverters.java")
PROTOC = Path(__file__).with_name("protoc.lock")
Schema = ConnectSchema
NUMBERS = {"Boolean": "boolean", "Short": "int16", "Integer": "int32", "Long": "int64", "Float": "float32"}
HEADERS = tuple(
    f"{CONNECT}{name}" for name in ("storage.SimpleHeaderConverter", "storage.StringConverter", "json.JsonConverter")
)
WELL_KNOWN = {
    "confluent/meta.proto": """
        package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }""",
    "confluent/type/decimal.proto": """
        package confluent.type; message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
    "google/type/date.proto": "package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
    "google/type/timeofday.proto": """
        package google.type;
        message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }""",
}
"""As `_proto_types` has them; what begins with google/protobuf is in the compiler's own package."""


def values() -> list[tuple[Schema, Any]]:
    time = datetime.datetime(2020, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    floats = (0.1, 1.5, 1e7, 9_999_999.5, 0.001, 1e-4, 1e300, 123_456_789.125)
    return [
        *((Schema("float64"), number) for number in floats),
        *((Schema("float32"), number) for number in (0.5, 16_777_216.0, 1.0e10)),
        *((optional(kind), None) for kind in ("int32", "bytes", "string")),
        *((optional("boolean"), value) for value in (True, False, None)),
        *((Schema(kind), -5) for kind in ("int8", "int16", "int32", "int64")),
        *((Schema("string"), text) for text in ("", "x", 'a"b\\c', "é\U0001f600", "5", "true")),
        (Schema("bytes"), b"\0\xff"),
        (decimal(2), Decimal("-1.50")),
        (Schema("int32", name=DATE), datetime.date(2020, 1, 2)),
        (Schema("int32", name=TIME), datetime.time(1, 2, 3, 4000)),
        *(
            (Schema("int64", name=TIMESTAMP), t)
            for t in (time, time.replace(hour=0, minute=0, second=0, microsecond=0))
        ),
        (Schema("array", value_schema=Schema("string")), ["a", 'b"', ""]),
        (Schema("array", value_schema=optional("int32")), [1, None]),
        (Schema("map", key_schema=Schema("string"), value_schema=Schema("boolean")), {"k": True}),
        (Schema("map", key_schema=Schema("int32"), value_schema=Schema("string")), {1: "x"}),
    ]


def in_java(directory: Path, requests: list[tuple[str, bool, Schema, Any]]) -> list[bytes | str | None]:
    lines = []
    for class_name, is_header, schema, value in requests:
        read = json.loads(header_converter(HEADERS[-1])(schema, value) or b"")
        lines.append(json.dumps({"class": class_name, "header": is_header, "value": read}) + "\n")
    answers = Program(directory, SOURCE, "connect").run(lines="".join(lines)).splitlines()
    return [answer if answer == "error" else None if answer == "null" else bytes.fromhex(answer) for answer in answers]


def ours(class_name: str, is_header: bool, schema: Schema, value: Any) -> bytes | str | None:
    try:
        if is_header:
            return header_converter(class_name)(schema, value)
        return make_converter(class_name, False, {}, None).to_bytes("t", schema, value)
    except HelenusError:
        return "error"


def test_converters_are_kafka_connects(tmp_path: Path) -> None:
    requests: list[tuple[str, bool, Schema, Any]] = []
    for schema, value in values():
        names = [f"converters.{name}Converter" for name in (*NUMBERS, "Double", "ByteArray")]
        requests += [(CONNECT + name, False, schema, value) for name in names]
        for name in HEADERS:
            # Of dates and bytes Java's toString has no text that could be meant.
            if "StringConverter" not in name or (schema.type not in ("bytes", "array", "map") and not schema.name):
                requests.append((name, True, schema, value))
    answers = in_java(tmp_path, requests)
    assert len(answers) == len(requests)
    differing = []
    for request, answer in zip(requests, answers, strict=True):
        made = ours(*request)
        if request[0].endswith("JsonConverter"):
            is_equal = json.loads(made or b"null") == json.loads(answer or b"null")
        else:
            is_equal = made == answer
        if not is_equal:
            differing.append((request[0], request[2].name or request[2].type, request[3], made, answer))
    assert not differing, "\n".join(map(repr, differing))


def compiled(directory: Path, text: str) -> FileDescriptorProto:
    """The descriptor that protoc makes of a file."""
    (protoc,) = fetch(parse_lock(PROTOC.read_text(), PROTOC.name), Silent(), resolve)
    program = directory / "protoc"
    program.write_bytes(protoc.read_bytes())
    program.chmod(0o755)
    for name, content in WELL_KNOWN.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f'syntax = "proto3"; {content}')
    _write_google(directory)
    # A registry knows the options without it, as in Confluent's own files.
    with_meta = text.replace('import "', 'import "confluent/meta.proto"; import "', 1)
    (directory / "helenus.proto").write_text(with_meta)
    command = [program, f"-I{directory}", f"--descriptor_set_out={directory / 'out'}", directory / "helenus.proto"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    (file,) = FileDescriptorSet.FromString((directory / "out").read_bytes()).file
    return file


def _write_google(directory: Path) -> None:
    from google.protobuf import descriptor_pb2, wrappers_pb2

    folder = directory / "google/protobuf"
    folder.mkdir(parents=True, exist_ok=True)
    wrappers = FileDescriptorProto.FromString(wrappers_pb2.DESCRIPTOR.serialized_pb)
    (folder / "wrappers.proto").write_text(wrapper_schema(wrappers))
    timestamp = "package google.protobuf; message Timestamp { int64 seconds = 1; int32 nanos = 2; }"
    (folder / "timestamp.proto").write_text(f'syntax = "proto3"; {timestamp}')
    options = "package google.protobuf; message FieldOptions { extensions 1000 to max; }"
    (folder / "descriptor.proto").write_text(f'syntax = "proto2"; {options}')
    assert descriptor_pb2.DESCRIPTOR.package == "google.protobuf"


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the lock has the compiler for Linux on x86_64"
)
@pytest.mark.parametrize("nulls", ["none", "optional", "wrapper"])
def test_a_schemas_text_says_what_its_descriptor_says(tmp_path: Path, nulls: Any) -> None:
    schema = struct_of("a.b.t", **{field.name: field.schema for field in ROW.fields}, again=ADDRESS)
    made = proto_schema(schema, nulls)
    file = compiled(tmp_path, made.text)
    for message in _messages(file):
        for field in message.field:
            field.ClearField("json_name")
            field.ClearField("options")
    file.dependency.remove("confluent/meta.proto")
    assert sorted(file.dependency) == sorted(made.descriptor.dependency)
    for each in (file, made.descriptor):
        each.ClearField("dependency")
    assert str(file) == str(made.descriptor)


def _messages(parent: Any) -> Any:
    for message in getattr(parent, "message_type", None) or getattr(parent, "nested_type", ()):
        yield message
        yield from _messages(message)
