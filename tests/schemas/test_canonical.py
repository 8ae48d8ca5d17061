"""Schemas' texts are those that Java's Avro prints, and their GUIDs those of Confluent's registry."""

from __future__ import annotations

import itertools
import json
import uuid
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemas.cqldata import types
from schemas.java import Reader
from schemas.test_names import NASTY
from schemas.test_roundtrip import table

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.row.row import shown_table
from helenus_connector.shape.schemas import record_schemas
from helenus_schemas.avro import build
from helenus_schemas.avro.canonical import canonical_text, guid
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError

PERSON = (
    '{"type":"record","name":"Person","namespace":"io.confluent.kafka.example","fields":[{"name":"name","type":"string"}'
    ',{"name":"age","type":"int"},{"name":"ssn","type":"string"},{"name":"user","type":"io.confluent.kafka.example.User"'
    '},{"name":"address","type":"io.confluent.kafka.example.Address"}]}'
)
"""Of the golden data of Confluent's own test, schema-md5-golden-data.json."""
FORMATS = ("key-value-avro", "debezium", "debezium-cassandra", "cep44")
MADE = (
    '"string"',
    '{"type": "string"}',
    '{"type":"enum","name":"a.E","doc":"d","default":"X","symbols":["X","Y"],"p":{"b":1,"a":[true,null,1.5,"é\\u001f"]}}',
    '{"type":"fixed","size":4,"namespace":"n.m","name":"F","aliases":["G","o.H","n.m.I"],"x":"\\"\\\\u00ab/\\u007f\\b"}',
    '{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"map","values":"R","p":1},"order":"descending",'
    '"aliases":["g"],"q":"r","doc":"d","default":{}},{"name":"i","order":"ascending","type":["null","R"],"default":null}]}',
    '{"type":"record","name":"n.R","fields":[{"name":"a","type":{"type":"record","name":"S","fields":[{"name":"b","type":'
    '{"type":"record","name":"m.T","fields":[{"name":"c","type":["n.S","m.T","n.R"]}]}}]}}]}',
    '{"type":"record","name":"n.R","fields":[{"name":"a","type":{"type":"record","namespace":"","name":"S","fields":[]}}]}',
    '{"type":"error","name":"n.R","namespace":"ignored","fields":[{"name":"a","type":"int","default":1}]}',
)
"""Of other tools, as a subject may have them."""


def test_the_guid_is_the_one_of_confluents_registry() -> None:
    assert guid(PERSON) == uuid.UUID("d629bb05-ad85-3d20-fbcb-895de3c459f7")


@pytest.mark.parametrize("text", ["", "{", "1", '{"type":"x"}', '{"name":"a"}', '{"type":"record","name":"a"}', "[[]]"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        canonical_text(text)


@given(text=st.sampled_from(MADE))
def test_the_canonical_text_is_its_own(text: str) -> None:
    canonical = canonical_text(text)
    assert canonical_text(canonical) == canonical


def texts_of(definition: Table, form: str) -> list[str]:
    url = {"value.converter.schema.registry.url": "http://x"}
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": form, **url}
    connector = ConnectorSettings.from_properties(properties, "test")
    schemas = record_schemas(shown_table(definition, connector), connector)
    return [build.text(schema) for schema in schemas if schema is not None]


@pytest.mark.integration
def test_the_text_is_javas(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Schemas of tables of any types and names in each format, and of other tools."""
    collected: list[str] = [*MADE, build.TRUNCATION]
    for definition, form in itertools.product(NASTY.values(), FORMATS):
        collected += texts_of(definition, form)

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(kinds=st.lists(types(), min_size=1, max_size=4), form=st.sampled_from(FORMATS))
    def collect(kinds: list[CqlType], form: str) -> None:
        with suppress(HelenusError):  # types that the format does not take
            collected.extend(texts_of(table(*kinds), form))

    collect()
    java = Reader(tmp_path_factory.mktemp("java"))
    answers = java.read((text, b"") for text in collected)
    assert len(collected) > 150
    printed = [(text, answer["schema"]) for text, answer in zip(collected, answers, strict=True) if "schema" in answer]
    assert len(printed) == len(collected), [a for a in answers if "schema" not in a][:3]
    for text, java_text in printed:
        assert canonical_text(text) == java_text
        assert canonical_text(json.dumps(json.loads(text), ensure_ascii=False)) == java_text
