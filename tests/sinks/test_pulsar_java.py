"""What Java's readers, which go by the schema of each message, make of records that we wrote to Pulsar."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from agent.writer import table_of
from sinks.java_reader import JavaReader

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event import datastax, wire
from helenus_schemas.event.change import Change, Scope
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

TABLE = table_of("t", "id int pk, name text ck, a text, c text")
KEY = datastax.key_schema(TABLE)
NODE = "5a1c395e-b41f-11e5-9f22-ba0be0483c18"


@pytest.fixture(scope="module")
def stack(only_pulsar: Stack) -> Stack:
    return only_pulsar


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> JavaReader:
    url = stack.status().pulsar_url
    assert url
    return JavaReader(tmp_path_factory.mktemp("java"), url)


@pytest.fixture
def log(stack: Stack) -> Iterator[PulsarLog]:
    status = stack.status()
    assert status.pulsar_url
    log = PulsarLog(PulsarConfig(status.pulsar_url, status.pulsar_admin_url, batches="key"))
    yield log
    log.close()


def row_schema(*columns: str) -> str:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in columns]
    return json.dumps({"type": "record", "name": "t", "namespace": "ks", "doc": "Table ks.t", "fields": fields})


def avro(schema: str, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(schema), record)
    return out.getvalue()


def test_keys_values_deletes_and_both_sides_of_an_alter(log: PulsarLog, java: JavaReader) -> None:
    old, new, dropped = row_schema("a", "c"), row_schema("a", "b", "c"), row_schema("b", "c")
    log.create("rows", 1, {"cleanup.policy": "compact"})
    expected: list[tuple[int, dict[str, Any], dict[str, Any] | None]] = []
    steps: list[tuple[str, int, dict[str, Any], dict[str, Any] | None]] = [
        (old, 0, {"id": 1, "name": "x" * 80}, {"a": "1", "c": None}),
        (old, 0, {"id": -60, "name": None}, {"a": "ä€", "c": "3"}),
        (old, 0, {"id": 1, "name": "x" * 80}, None),
        (new, 1, {"id": 2, "name": "n"}, {"a": "1", "b": "2", "c": "3"}),
        (new, 1, {"id": 2, "name": "n"}, {"a": "1", "b": "4", "c": "3"}),
        (old, 0, {"id": 3, "name": "late"}, {"a": "1", "c": "3"}),
        (dropped, 2, {"id": 4, "name": "d"}, {"b": "2", "c": "3"}),
        (dropped, 2, {"id": 4, "name": "d"}, None),
    ]
    for schema, version, key, value in steps:
        log.declare("rows", DeclaredSchemas(KEY, schema))
        data = None if value is None else avro(schema, value)
        log.append("rows", 0, avro(KEY, key), data, [("writetime", b"1")])
        expected.append((version, key, value))
    log.flush(20)
    auto = java.read("rows")
    assert [(m["version"], m["record"]["key"], m["record"]["value"]) for m in auto] == expected
    assert all(m["properties"] == {"writetime": "1"} for m in auto)
    typed = [m["record"] for m in java.read("rows", "typed")]
    typed_values = [value and {"a": value.get("a"), "c": value["c"]} for _, _, value in expected]
    assert [m["key"] for m in typed] == [key for _, key, _ in expected]
    assert [m["value"] for m in typed] == typed_values


def test_rows_as_json(log: PulsarLog, java: JavaReader) -> None:
    log.create("json", 1, {"cleanup.policy": "compact"})
    log.declare("json", DeclaredSchemas(KEY, row_schema("a"), "JSON"))
    log.append("json", 0, b'{"id":1,"name":"n"}', b'{"a":"1"}')
    log.append("json", 0, b'{"id":1,"name":"n"}', None)
    log.create("plain", 1, {"cleanup.policy": "compact"})
    log.declare("plain", DeclaredSchemas(None, row_schema("a"), "JSON"))
    log.append("plain", 0, b'{"id":1}', b'{"a":"1"}')
    log.flush(20)
    key = {"id": 1, "name": "n"}
    assert [m["record"] for m in java.read("json")] == [{"key": key, "value": {"a": "1"}}, {"key": key, "value": None}]
    assert [(m["version"], m["record"]) for m in java.read("plain")] == [(0, {"a": "1"})]


def event(number: int) -> bytes:
    """An event's value as the agent sends it to Pulsar."""
    return datastax.sorted_value(
        wire.encode(Change(f"{number:032x}", NODE, Scope.ROW, 0, 1, 7, number, 1_700_000_000_000_000))
    )


@pytest.mark.parametrize("first", ["theirs", pytest.param("ours", marks=pytest.mark.long)])
def test_our_events_and_theirs_are_of_one_schema(log: PulsarLog, java: JavaReader, first: str) -> None:
    """Whoever comes first, the topic has one version, and their reader reads both agents' events."""
    topic = f"events-{first}"
    key = KeyCodec(TABLE).encode([(-1).to_bytes(4, "big", signed=True), b"n"])
    log.create(topic, 1, {"retention.ms": "3600000"})

    def ours() -> None:
        log.declare(topic, DeclaredSchemas(KEY, datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES))
        log.extend(topic, 0, [(key, event(n)) for n in range(3)])
        log.append(topic, 0, key, event(3), [("writetime", b"5")])
        log.flush(20)

    def theirs() -> None:
        assert java.write(topic, KEY, b64encode(key).decode()) == datastax.VALUE

    for write in (theirs, ours) if first == "theirs" else (ours, theirs):
        write()
    messages_read = java.read(topic, "mutations")
    assert [m["version"] for m in messages_read] == [0] * 5
    assert all(m["record"]["key"] == {"id": -1, "name": "n"} for m in messages_read)
    values = [m["record"]["value"] for m in messages_read]
    mine = [{"md5Digest": f"{n:032x}", "nodeId": NODE, "columns": None} for n in range(4)]
    other = {
        "md5Digest": "0123456789abcdef" * 2,
        "nodeId": "00000000-0000-0000-0000-000000000001",
        "columns": None,
    }
    assert values == ([other, *mine] if first == "theirs" else [*mine, other])
    assert [m["record"]["value"] for m in java.read(topic)] == values
