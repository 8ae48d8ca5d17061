"""Properties of a connector that do not go together: each rule's message, in the order of the rules."""

from __future__ import annotations

import pytest

from helenus_connector.config._connector_rules import RULES, ConnectorProperties, conflicts

CONNECT_JSON = "org.apache.kafka.connect.json.JsonConverter"
CASES: list[tuple[dict[str, str], list[str]]] = [
    ({"value.converter": "x.Other"}, ["value.converter"]),
    ({"key.converter": "x.Other"}, ["key.converter"]),
    ({"key.converter": "x.JsonConverter", "output.format": "key-value-avro"}, ["output.format"]),
    ({"resolver": "none"}, ["resolver"]),
    ({"key.compat": "cep44"}, ["key.compat"]),
    ({"cep44.payload": "bytes", "key.converter": "x.JsonConverter"}, ["cep44.payload"]),
    ({"keyspace": "shop;"}, ["keyspace"]),
    (
        {"table": "a,b", "events.topic": "e", "data.topic": "d${table}"},
        ["events.topic"],
    ),
    ({"keyspace": "shop.*", "data.topic": "d${table}"}, ["data.topic"]),
    ({"events.topic": "x", "data.topic": "x"}, ["data.topic"]),
    ({"events.topic": "dlq-ks.t"}, ["events.topic"]),
    ({"value.converter": CONNECT_JSON}, ["value.converter.schemas.enable"]),
    ({"table": "a,b", "data.topic": "d"}, ["data.topic"]),
    ({"topic.creation.default.partitions": "3"}, ["topic.creation.default.partitions"]),
]
SHARED = {"keyspace": "ks", "table": "a,b", "data.topic": "d"}


@pytest.mark.parametrize(("more", "keys"), CASES)
def test_each_rule_names_its_key(more: dict[str, str], keys: list[str]) -> None:
    properties = {"keyspace": "ks", "table": "t", **more}
    assert [key for key, _ in conflicts(properties, needs_registry=False)] == keys


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"output.format": "debezium"}, None),
        ({"key.converter": CONNECT_JSON, "value.converter": CONNECT_JSON}, None),
        ({"output.format": "cep44", "key.compat": "cep44", "value.converter": "JsonConverter"}, None),
        ({"output.format": "json"}, "keys in JSON do not say their table"),
        ({"value.converter": "x.JsonConverter"}, "keys in JSON do not say their table"),
        ({"key.converter": CONNECT_JSON, "key.converter.schemas.enable": "false"}, "keys in JSON do not say"),
        ({"state": "keys"}, "state=keys needs a data topic for each table"),
        ({"errors.large.record": "chunk"}, "errors.large.record=chunk needs a data topic for each table"),
    ],
)
def test_tables_share_a_data_topic_whose_keys_say_the_table(more: dict[str, str], reason: str | None) -> None:
    problems = [(key, why) for key, why in conflicts({**SHARED, **more}, needs_registry=True) if key == "data.topic"]
    assert [key for key, _ in problems] == (["data.topic"] if reason else [])
    assert reason is None or problems[0][1].startswith(reason)


def test_all_at_once_are_in_the_order_of_the_rules() -> None:
    properties = {
        "value.converter": CONNECT_JSON,
        "output.format": "key-value-avro",
        "resolver": "none",
        "key.compat": "cep44",
        "cep44.payload": "bytes",
        "keyspace": "shop;",
        "table": "a,b",
        "data.topic": "d",
        "errors.deadletterqueue.topic.name": "d",
    }
    assert [key for key, _ in conflicts(properties, needs_registry=False)] == [
        "output.format",
        "resolver",
        "key.compat",
        "cep44.payload",
        "keyspace",
        "data.topic",
        *["errors.deadletterqueue.topic.name"] * 3,
        "data.topic",
        "value.converter.schemas.enable",
    ]


def test_no_rule_speaks_of_what_is_right() -> None:
    for properties in ({}, {"keyspace": "ks", "table": "t"}, {"keyspace": "ks", "table": "a,b.*"}):
        assert [list(rule(ConnectorProperties(properties, True))) for rule in RULES] == [[]] * len(RULES)
