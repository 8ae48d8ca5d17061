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
]


@pytest.mark.parametrize(("more", "keys"), CASES)
def test_each_rule_names_its_key(more: dict[str, str], keys: list[str]) -> None:
    properties = {"keyspace": "ks", "table": "t", **more}
    assert [key for key, _ in conflicts(properties, needs_registry=False)] == keys


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
        *["data.topic"] * 2,
        *["errors.deadletterqueue.topic.name"] * 3,
        "value.converter.schemas.enable",
    ]


def test_no_rule_speaks_of_what_is_right() -> None:
    for properties in ({}, {"keyspace": "ks", "table": "t"}, {"keyspace": "ks", "table": "a,b.*"}):
        assert [list(rule(ConnectorProperties(properties, True))) for rule in RULES] == [[]] * len(RULES)
