"""Which form of records a connector's file asks for."""

from __future__ import annotations

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.errors import HelenusError

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
URL = "value.converter.schema.registry.url"


def settings_with(**properties: str) -> ConnectorSettings:
    keys = {"name": "n", "keyspace": "ks", "table": "t", **{k.replace("_", "."): v for k, v in properties.items()}}
    schemas = {f"{side}.converter.schemas.enable": "false" for side in ("key", "value")}
    return ConnectorSettings.from_properties({**schemas, **keys}, "test.properties")


@pytest.mark.parametrize(
    ("properties", "form"),
    [
        ({"key_converter": AVRO, "value_converter": AVRO}, "key-value-avro"),
        ({"value_converter": AVRO}, "key-value-avro"),
        ({"key_converter": JSON, "value_converter": JSON}, "key-value-json"),
        ({"value_converter": JSON}, "key-value-json"),
        ({"key_converter": STRING, "value_converter": JSON}, "json"),
        ({"key_converter": JSON, "value_converter": JSON, "output_format": "json"}, "json"),
        ({"outputFormat": "key-value-json"}, "key-value-json"),
        ({}, "key-value-avro"),
    ],
)
def test_converters_say_the_format(properties: dict[str, str], form: str) -> None:
    assert settings_with(**properties, value_converter_schema_registry_url="http://r").output_format == form


def test_keys_of_other_converters_are_their_own_but_for_the_registry() -> None:
    properties = {
        "value.converter": PROTOBUF,
        "key.converter": STRING,
        "value.converter.schema.registry.url": "http://r",
        "value.converter.basic.auth.user.info": "u:p",
        "value.converter.optional.for.nullables": "true",
        "value.converter.auto.register.schemas": "false",
    }
    properties |= {"name": "n", "keyspace": "ks", "table": "t"}
    settings = ConnectorSettings.from_properties(properties, "test.properties")
    assert settings.value_converter_properties == {"optional.for.nullables": "true"}
    login = settings.value_converter_schema_registry_basic_auth_user_info
    assert login is not None
    assert login.get_secret_value() == "u:p"
    assert not settings.value_converter_auto_register_schemas
    assert (settings.converter("key"), settings.converter("value")) == ("String", PROTOBUF)


def test_avro_needs_a_registry_and_json_none() -> None:
    assert settings_with(output_format="json").value_converter_schema_registry_url == ""
    assert settings_with(key_converter_schema_registry_url="http://r").value_converter_schema_registry_url == "http://r"
    with pytest.raises(HelenusError, match=rf"{URL}: required property is missing"):
        settings_with()
    with pytest.raises(HelenusError, match="keys and values have one registry"):
        settings_with(key_converter_schema_registry_url="http://r", value_converter_schema_registry_url="http://other")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"output_format": "json", "value_converter": AVRO},
            "output.format=json: key.converter and value.converter say",
        ),
        (
            {"key_converter": AVRO, "value_converter": "com.example.Mine"},
            f"value.converter=com.example.Mine: with key.converter={AVRO}: known are",
        ),
        ({"value_converter": PROTOBUF, "value_converter_wrong": "x"}, f"{PROTOBUF} has no such property"),
        (
            {"key_converter": AVRO, "value_converter": JSON, "state": "keys"},
            f"value.converter={JSON}: not with state=keys",
        ),
        ({"value_converter": "com.example.Protobuf"}, "value.converter=com.example.Protobuf: known are"),
        ({"output_format": "xml"}, "output.format=xml: give one of"),
        ({"columns": "("}, "columns=(: not a regular expression"),
        ({"columns": "a, b{1,2},[c,d]"}, "columns=a, b{1,2},[c,d]: one regular expression: give a|b{1,2}|[c,d]"),
        (
            {"headers": "schema_id,nonsense"},
            "headers=schema_id,nonsense: no header nonsense; there are schema_id, writetime, expires, origin, op, node",
        ),
        ({"key_compat": "java"}, "key.compat=java: give one of"),
    ],
)
def test_settings_that_exclude_each_other(properties: dict[str, str], message: str) -> None:
    with pytest.raises(HelenusError) as caught:
        settings_with(**{"value_converter_schema_registry_url": "http://r", **properties})
    assert message in str(caught.value)
    assert "test.properties" in str(caught.value)


@pytest.mark.parametrize("columns", ["a|b", "v{1,2}", "[a,b]", r"a\,b", ".*"])
def test_columns_that_are_one_regular_expression(columns: str) -> None:
    assert settings_with(output_format="json", columns=columns).columns == columns


@pytest.mark.parametrize(
    ("properties", "events"),
    [
        ({}, 50_000),
        ({"state": "keys", "query_group": "g"}, 50_000),
        ({"state": "rows", "query_group": "g"}, 150_000),
        ({"resolver": "none"}, 150_000),
        ({"resolver": "none", "max_batch_size": "9"}, 9),
    ],
)
def test_a_batch_takes_more_events_where_none_is_read(properties: dict[str, str], events: int) -> None:
    debezium = {"output_format": "debezium", "value_converter_schema_registry_url": "http://r"}
    assert settings_with(**debezium, **properties).max_batch_size == events
