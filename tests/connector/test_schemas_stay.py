"""The schemas that records are registered under stay byte for byte: another name of a record is another schema."""

from __future__ import annotations

import hashlib
import json
import uuid

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.row.row import shown_table
from helenus_connector.shape.schemas import record_schemas
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse

TABLE = Table(
    "ks",
    "t",
    uuid.UUID(int=1),
    (
        Column("k", parse("int"), "partition_key", 0),
        Column("c", parse("text"), "clustering", 0),
        Column("s", parse("uuid"), "static"),
        Column("v", parse("map<text, frozen<list<decimal>>>")),
        Column("w", parse("timestamp")),
    ),
)
REGISTRY = {"value.converter.schema.registry.url": "http://registry:1"}
GIVEN = {"name": "n", "keyspace": "ks", "table": "t"}


@pytest.mark.parametrize(
    ("output_format", "more", "digest"),
    [
        ("key-value-avro", REGISTRY, "232abf9f14fea859554463aff848791a"),
        ("key-value-json", {}, "1a71170c09bd29b1129aa67243e527d5"),
        ("json", {}, "1bfbb1b7de03be37eda987db6d41cfa6"),
        ("debezium", {**REGISTRY, "resolver": "none"}, "e5ad7fce576a4a9e76a4bac1fddea0c2"),
        ("debezium-cassandra", {**REGISTRY, "resolver": "none"}, "0e422f3217c4d6242ed99319076d19fe"),
        ("cep44", {**REGISTRY, "resolver": "none"}, "bfdf5ee02b55c19ec85d350058332eea"),
    ],
)
def test_the_schemas_of_a_table(output_format: str, more: dict[str, str], digest: str) -> None:
    """Of 27 November 2026. Where one is to change, its subjects need a version that registries accept."""
    settings = ConnectorSettings.from_properties({**GIVEN, **more, "output.format": output_format}, "test")
    schemas = json.dumps(record_schemas(shown_table(TABLE, settings), settings))
    assert hashlib.md5(schemas.encode()).hexdigest() == digest, schemas
