"""Follows a data topic, and gives it in batches of Arrow: what the recipes beside this file put into their stores.

    for batch in follow("localhost:9092", "http://localhost:8081", "data-shop.orders", "to-duckdb"):
        ...  # batch.rows, batch.deleted
        batch.commit()

Needs confluent-kafka[schemaregistry], fastavro and pyarrow. A batch has the last record of each of its keys. A batch
that is not committed comes again, so what a recipe does with one must be right if it is done twice: an upsert is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.schema_registry import SchemaRegistryClient


class Batch(NamedTuple):
    """`rows` have all columns, `deleted` those of the key, which are `key`. `commit` when both are stored."""

    rows: pa.Table
    deleted: pa.Table
    key: list[str]
    commit: Callable[[], Any]


def follow(
    brokers: str, registry: str, topic: str, group: str, size: int = 10_000, seconds: float = 5.0, ends: bool = False
) -> Iterator[Batch]:
    """Batches of at most `size` records, or of what comes in so many seconds. If it `ends`, until nothing comes."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    schemas = _Schemas(SchemaRegistryClient({"url": registry}))
    consumer.subscribe([topic])
    try:
        while True:
            messages = consumer.consume(size, timeout=seconds)
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
            if messages:
                yield _batch(topic, schemas, messages, lambda: consumer.commit(asynchronous=False))
            elif ends:
                return
    finally:
        consumer.close()


def _batch(topic: str, schemas: _Schemas, messages: list[Any], commit: Callable[[], Any]) -> Batch:
    last: dict[bytes, tuple[dict[str, Any], dict[str, Any] | None]] = {}
    for message in messages:
        if "scope" in dict(message.headers() or ()):
            continue  # a delete marker: with state=keys or state=rows each row that it deletes has its own null
        key = schemas.read(message.key())
        if any(value is None for value in key.values()):
            continue  # the static columns of a partition
        value = None if message.value() is None else schemas.read(message.value())
        last[message.key()] = key, value
    of_key = schemas.columns(f"{topic}-key")
    # A table of key columns alone repeats them in its value.
    columns = {**schemas.columns(f"{topic}-value"), **of_key}
    names = [*of_key, *(name for name in columns if name not in of_key)]
    rows = [{**value, **key} for key, value in last.values() if value is not None]
    deleted = [key for key, value in last.values() if value is None]
    return Batch(
        pa.Table.from_pylist(rows, pa.schema([(name, columns[name]) for name in names])),
        pa.Table.from_pylist(deleted, pa.schema(list(of_key.items()))),
        list(of_key),
        commit,
    )


class _Schemas:
    """Reads records in the Confluent wire format: a zero byte, the schema's id, Avro. Values are as Avro has them, and
    logical types are Arrow's business: so no date is too far away for Python.
    """

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client
        self._known: dict[int, Any] = {}

    def read(self, data: bytes) -> dict[str, Any]:
        number = int.from_bytes(data[1:5], "big")
        if number not in self._known:
            text = self._client.get_schema(number).schema_str
            self._known[number] = fastavro.parse_schema(_plain(json.loads(text)))
        found = fastavro.schemaless_reader(io.BytesIO(data[5:]), self._known[number], None)
        assert isinstance(found, dict)
        return found

    def columns(self, subject: str) -> dict[str, pa.DataType]:
        """The columns of the newest schema."""
        schema = json.loads(self._client.get_latest_version(subject).schema.schema_str)
        named: dict[str, Any] = {}
        return {field["name"]: arrow(field["type"], named) for field in schema["fields"]}


def arrow(schema: Any, named: dict[str, Any]) -> pa.DataType:
    """The Arrow type of an Avro schema, as Helenus writes them. `named` are the records that came before it."""
    if isinstance(schema, list):
        (schema,) = [branch for branch in schema if branch != "null"]
    if isinstance(schema, str):
        return arrow(named[schema], named) if schema in named else _PLAIN[schema]
    match schema["type"]:
        case "record":
            full_name = ".".join(filter(None, [schema.get("namespace"), schema["name"]]))
            named[schema["name"]] = named[full_name] = schema
            return pa.struct([(field["name"], arrow(field["type"], named)) for field in schema["fields"]])
        case "array":
            return pa.list_(arrow(schema["items"], named))
        case "map":
            return pa.map_(pa.string(), arrow(schema["values"], named))
        case _:
            return _LOGICAL.get(schema.get("logicalType", "")) or arrow(schema["type"], named)


def _plain(schema: Any) -> Any:
    """A schema without its logical types."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if isinstance(schema, dict):
        return {name: _plain(part) for name, part in schema.items() if name != "logicalType"}
    return schema


_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# A time stays a number, ns since midnight: Delta has no type for it.
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
}
