"""The agent's properties and the node's yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from helenus_agent.config import AgentSettings, raw_directory
from helenus_agent.discovery import Node
from helenus_schemas.errors import HelenusError, Kind

LEAST = {"state.dir": "/tmp/x", "kafka.bootstrap.servers": "k:9092", "cdc.raw.dir": "/tmp/raw"}


def settings(**more: str) -> AgentSettings:
    return AgentSettings.of({**LEAST, **{key.replace("_", "."): value for key, value in more.items()}}, "test")


def test_defaults() -> None:
    found = settings()
    assert (found.topic_prefix, found.topic_partitions, found.read_mode) == ("events-", 4, "marker")
    assert (found.segment_transfer, found.log, found.http_port) == ("delete", "kafka", 0)
    assert found.cassandra_contact_points == ("127.0.0.1",)


def test_pass_through() -> None:
    found = settings(
        kafka_producer_security_protocol="SSL", kafka_producer_linger_ms="1", topic_config_min_insync_replicas="2"
    )
    assert found.kafka_producer == {"security.protocol": "SSL", "linger.ms": "1"}
    assert found.topic_config == {"min.insync.replicas": "2"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"read.mode": "idx"}, "read.mode"),
        ({"segment.transfer": "archive"}, "segment.transfer"),
        ({"log": "pulsar"}, "log"),
        ({"topic.partitions": "0"}, "topic.partitions"),
        ({"topic.partitions": "many"}, "topic.partitions"),
        ({"table.include.list": "ks.*, ("}, "not a regular expression"),
        ({"cassandra.contact.points": "a,b"}, "name one address"),
        ({"http.port": "99999"}, "http.port"),
        ({"poll.interval.ms": "0"}, "poll.interval.ms"),
        ({"topic.prefx": "x"}, "did you mean topic.prefix"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers"),
    ],
)
def test_wrong_properties_are_named(more: dict[str, str], told: str) -> None:
    with pytest.raises(HelenusError, match=told) as error:
        AgentSettings.of({**LEAST, **more}, "agent.properties")
    assert error.value.kind is Kind.CONFIG
    assert "agent.properties" in str(error.value)


def test_all_errors_at_once() -> None:
    with pytest.raises(HelenusError) as error:
        AgentSettings.of({"x": "1", "topic.partitions": "z"}, "f")
    for key in ("x", "topic.partitions", "state.dir", "kafka.bootstrap.servers"):
        assert key in str(error.value)


def test_a_directory_must_be_named() -> None:
    with pytest.raises(HelenusError, match=r"cassandra\.config"):
        AgentSettings.of({k: v for k, v in LEAST.items() if k != "cdc.raw.dir"}, "f")


def yaml(tmp_path: Path, text: str) -> AgentSettings:
    path = tmp_path / "cassandra.yaml"
    path.write_text(text)
    return AgentSettings.of(
        {"state.dir": "/tmp/x", "kafka.bootstrap.servers": "k", "cassandra.config": str(path)}, "agent.properties"
    )


def test_the_directory_comes_from_the_yaml(tmp_path: Path) -> None:
    found = yaml(tmp_path, f"cluster_name: x\ncdc_enabled: true\ncdc_raw_directory: {tmp_path}\n")
    assert raw_directory(found) == tmp_path


@pytest.mark.parametrize("text", ["a: b\n", "cdc_enabled: false\n", "# cdc_enabled: true\ncdc_raw_directory: /tmp\n"])
def test_cdc_is_off(tmp_path: Path, text: str) -> None:
    if not text.startswith("#"):
        text += f"cdc_raw_directory: {tmp_path}\n"
    with pytest.raises(HelenusError) as error:
        raw_directory(yaml(tmp_path, text))
    assert error.value.kind is Kind.CDC_DISABLED
    assert "cassandra.yaml" in str(error.value)
    assert "cdc_enabled: true" in error.value.advice


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("- a\n", Kind.CONFIG),
        ("a: [", Kind.CONFIG),
        ("cdc_enabled: true\n", Kind.CONFIG),
        ("cdc_enabled: true\ncdc_raw_directory: /does/not/exist\n", Kind.CDC_DIRECTORY),
    ],
)
def test_a_yaml_that_does_not_help(tmp_path: Path, text: str, kind: Kind) -> None:
    with pytest.raises(HelenusError) as error:
        raw_directory(yaml(tmp_path, text))
    assert error.value.kind is kind


def test_no_yaml(tmp_path: Path) -> None:
    found = yaml(tmp_path, "cdc_enabled: true\n")
    (tmp_path / "cassandra.yaml").unlink()
    with pytest.raises(HelenusError, match=r"cassandra\.config") as error:
        raw_directory(found)
    assert error.value.kind is Kind.CONFIG


@pytest.mark.parametrize(
    ("found", "limit"),
    [
        ({"cdc_total_space": "4096MiB"}, 4 << 30),
        ({"cdc_total_space": "1GiB"}, 1 << 30),
        ({"cdc_total_space": "512KiB"}, 512 << 10),
        ({"cdc_total_space_in_mb": "8"}, 8 << 20),
        ({"cdc_total_space": ""}, None),
        ({"cdc_total_space": "lots"}, None),
        ({}, None),
    ],
)
def test_the_limit_of_cdc_raw(found: dict[str, str], limit: int | None) -> None:
    import uuid

    assert Node(uuid.uuid4(), "5.0.9", found).raw_limit == limit
