"""How data topics are created: `topic.creation.*`, as Kafka Connect's sources have it."""

from __future__ import annotations

import pytest

from helenus_connector.config._topic_creation import TopicCreation, check_topic_creation, topic_creation
from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.settings.properties import ConfigError

GROUPED = {
    "default.replication.factor": "3",
    "default.partitions": "1",
    "default.compression.type": "zstd",
    "groups": "orders, other.ones",
    "orders.include": "data-shop\\.order.*,second",
    "orders.exclude": "data-shop\\.orders_old",
    "orders.min.insync.replicas": "2",
    "orders.cleanup.policy": "compact,delete",
    "other.ones.include": "data-.*",
    "other.ones.replication.factor": "-1",
}


@pytest.mark.parametrize(
    ("topic", "created"),
    [
        ("data-shop.orders", TopicCreation({"cleanup.policy": "compact,delete", "min.insync.replicas": "2"}, 3)),
        ("second", TopicCreation({"cleanup.policy": "compact,delete", "min.insync.replicas": "2"}, 3)),
        ("data-shop.orders_old", TopicCreation({"cleanup.policy": "compact"}, -1)),
        ("data-shop.items", TopicCreation({"cleanup.policy": "compact"}, -1)),
        ("elsewhere", TopicCreation({"cleanup.policy": "compact", "compression.type": "zstd"}, 3)),
    ],
)
def test_first_group_that_matches_counts(topic: str, created: TopicCreation) -> None:
    assert not list(check_topic_creation(GROUPED))
    assert topic_creation(GROUPED, topic, "compact") == created


def test_nothing_is_chosen_without_properties() -> None:
    assert topic_creation({}, "t", "delete") == TopicCreation({"cleanup.policy": "delete"}, None)


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        ({"default.replication.factor": "0"}, ["default.replication.factor"]),
        ({"default.replication.factor": "40000"}, ["default.replication.factor"]),
        ({"default.partitions": "many"}, ["default.partitions"]),
        ({"default.include": ".*"}, ["default.include"]),
        ({"orders.retention.ms": "1"}, ["orders.retention.ms"]),
        ({"groups": "a", "a.retention.ms": "1"}, ["a.include"]),
        ({"groups": "a", "a.include": "("}, ["a.include"]),
        ({"groups": "default"}, ["groups"]),
    ],
)
def test_wrong_properties_are_named(properties: dict[str, str], keys: list[str]) -> None:
    assert [key for key, _ in check_topic_creation(properties)] == keys


def test_connector_has_them_for_its_own_topic() -> None:
    properties = {"name": "n", "keyspace": "shop", "table": "orders", "output.format": "json"}
    properties |= {f"topic.creation.{key}": value for key, value in GROUPED.items()}
    settings = ConnectorSettings.from_properties(properties, "test.properties")
    assert settings.data_creation.config["min.insync.replicas"] == "2"
    assert any("as its events topic" in warning for warning in settings.warnings)
    with pytest.raises(ConfigError, match=r"topic\.creation\.default\.replication\.factor=two"):
        ConnectorSettings.from_properties(
            {**properties, "topic.creation.default.replication.factor": "two"}, "test.properties"
        )
