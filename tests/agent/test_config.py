"""The agent's properties and the node's yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from helenus_agent.aliases import ENVIRONMENT
from helenus_agent.config import AgentSettings
from helenus_agent.node.cassandra import Node
from helenus_agent.node_directories import raw_directory
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

LEAST = {"state.dir": "/tmp/x", "kafka.bootstrap.servers": "k:9092", "cdc.raw.dir": "/tmp/raw"}


def settings(**more: str) -> AgentSettings:
    return AgentSettings.from_properties(
        {**LEAST, **{key.replace("_", "."): value for key, value in more.items()}}, "test"
    )


def test_defaults() -> None:
    loaded = settings()
    assert (loaded.topic_prefix, loaded.topic_partitions, loaded.read_mode) == ("events-", 4, "auto")
    assert (loaded.segment_transfer, loaded.log, loaded.http_port) == ("delete", "kafka", 0)
    assert loaded.cassandra_contact_points == ("127.0.0.1",)


def test_pass_through() -> None:
    loaded = settings(
        kafka_producer_security_protocol="SSL", kafka_producer_linger_ms="1", topic_config_min_insync_replicas="2"
    )
    assert loaded.producer == {"security.protocol": "SSL", "linger.ms": "1"}
    assert loaded.topic_config == {"min.insync.replicas": "2"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"read.mode": "fast"}, "read.mode"),
        ({"errors.large.event": "cut"}, "errors.large.event"),
        ({"segment.transfer": "keep"}, "segment.transfer"),
        ({"segment.transfer": "my.module:"}, "segment.transfer"),
        ({"segment.transfer": "archive"}, "segment.archive.dir"),
        ({"sslTruststorePath": "/etc/trust.jks"}, "sslTruststorePath=/etc/trust.jks: a Java trust store"),
        ({"sslAllowInsecureConnection": "maybe"}, "sslAllowInsecureConnection=maybe: neither true nor false"),
        ({"messagingProvider": "pulsar"}, "pulsar.service.url: required property is missing"),
        ({"log": "rabbit"}, "log=rabbit"),
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
def test_wrong_properties_are_named(more: dict[str, str], message: str) -> None:
    with pytest.raises(HelenusError, match=message) as error:
        AgentSettings.from_properties({**LEAST, **more}, "agent.properties")
    assert error.value.kind is Kind.CONFIG
    assert "agent.properties" in str(error.value)


def test_all_errors_at_once() -> None:
    with pytest.raises(HelenusError) as error:
        AgentSettings.from_properties({"x": "1", "topic.partitions": "z"}, "f")
    for key in ("x", "topic.partitions", "state.dir", "bootstrap.servers"):
        assert key in str(error.value)


def test_a_directory_must_be_named() -> None:
    with pytest.raises(HelenusError, match=r"cassandra\.config"):
        AgentSettings.from_properties({k: v for k, v in LEAST.items() if k != "cdc.raw.dir"}, "f")


# Every name of DataStax's agent, with a value that means something.
DATASTAX = {
    "topicPrefix": "changes-",
    "cdcWorkingDir": "/var/lib/cdc",
    "cdcPollIntervalMs": "60000",
    "errorCommitLogReprocessEnabled": "true",
    "cdcConcurrentProcessors": "4",
    "maxInflightMessagesPerTask": "16384",
    "messagingProvider": "KAFKA",
    "kafkaBootstrapServers": "k1:9092,k2:9092",
    "kafkaAcks": "all",
    "kafkaCompressionType": "zstd",
    "kafkaBatchSize": "16384",
    "kafkaLingerMs": "3",
    "kafkaMaxInFlightRequests": "5",
    "kafkaSchemaRegistryUrl": "http://r:8081",
    "pulsarServiceUrl": "pulsar://localhost:6650",
    "pulsarBatchDelayInMs": "-1",
    "pulsarKeyBasedBatcher": "false",
    "pulsarMaxPendingMessages": "1000",
    "pulsarMaxPendingMessagesAcrossPartitions": "1000",
    "pulsarMemoryLimitBytes": "0",
    "pulsarAuthPluginClassName": "x",
    "pulsarAuthParams": "token:t0ken",
    "sslProvider": "x",
    "sslTruststorePath": "/etc/ca.pem",
    "sslTruststorePassword": "x",
    "sslTruststoreType": "JKS",
    "sslKeystorePath": "/etc/key.p12",
    "sslKeystorePassword": "s3cret",
    "sslKeystoreType": "PKCS12",
    "sslCipherSuites": "x",
    "sslEnabledProtocols": "TLSv1.2",
    "sslAllowInsecureConnection": "false",
    "sslHostnameVerificationEnable": "true",
    "useKeyStoreTls": "false",
}


def test_a_file_of_datastax_s_loads(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = AgentSettings.from_properties({"cassandra.config": "/etc/cassandra.yaml", **DATASTAX}, "f")
    assert (loaded.topic_prefix, loaded.state_dir) == ("changes-", Path("/var/lib/cdc"))
    assert loaded.bootstrap_servers == "k1:9092,k2:9092"
    assert loaded.producer == {
        "compression.type": "zstd",
        "batch.size": "16384",
        "linger.ms": "3",
        "max.in.flight.requests.per.connection": "5",
    }
    assert loaded.kafka == {
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.keystore.location": "/etc/key.p12",
        "ssl.keystore.password": "s3cret",
        "enable.ssl.certificate.verification": "true",
        "ssl.endpoint.identification.algorithm": "https",
    }
    output = capsys.readouterr().out
    assert [name for name in DATASTAX if f"key={name} " not in output] == []
    assert "s3cret" not in output
    assert loaded.pulsar_service_url == "pulsar://localhost:6650"
    assert loaded.pulsar_auth_token
    assert loaded.pulsar_auth_token.get_secret_value() == "t0ken"
    assert "t0ken" not in output


TLS = {key: value for key, value in DATASTAX.items() if key.startswith("ssl") or key == "useKeyStoreTls"}
PULSAR = {"cassandra.config": "/etc/cassandra.yaml", "cdcWorkingDir": "/cdc", "pulsarServiceUrl": "pulsar+ssl://b:6651"}


@pytest.mark.parametrize("chosen", [{}, {"messagingProvider": "PULSAR"}, {"log": "pulsar"}])
def test_a_file_of_datastax_s_for_pulsar_loads(chosen: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Its switches of TLS are Pulsar's; what has no counterpart there is named, and none of Kafka's is set."""
    properties = {
        **PULSAR,
        **TLS,
        "sslAllowInsecureConnection": "true",
        "sslHostnameVerificationEnable": "false",
        **chosen,
    }
    loaded = AgentSettings.from_properties(properties, "f")
    assert (loaded.log, loaded.pulsar_service_url) == ("pulsar", "pulsar+ssl://b:6651")
    assert (loaded.kafka, loaded.producer) == ({}, {})
    assert (str(loaded.pulsar_tls_cafile), loaded.pulsar_tls_check_hostname) == ("/etc/ca.pem", False)
    output = capsys.readouterr().out
    assert [key for key in TLS if f"key={key} " not in output] == []
    assert "certificates of Pulsar's brokers are always verified" in output
    assert "s3cret" not in output


def test_a_java_trust_store_for_pulsar_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"export its certificates as PEM, name that file in pulsar\.tls\.cafile"):
        AgentSettings.from_properties({**PULSAR, "sslTruststorePath": "/t.jks"}, "f")


def test_variables_of_datastax_s_agent_for_pulsar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_PULSAR_SERVICE_URL", "pulsar://env:6650")
    monkeypatch.setenv("CDC_SSL_HOSTNAME_VERIFICATION_ENABLE", "false")
    path = tmp_path / "agent.properties"
    path.write_text("cdc.raw.dir=/tmp/raw\nstate.dir=/file\n")
    loaded = AgentSettings.load(path)
    assert (loaded.log, loaded.pulsar_service_url, loaded.pulsar_tls_check_hostname) == (
        "pulsar",
        "pulsar://env:6650",
        False,
    )
    monkeypatch.setenv("CDC_MESSAGING_PROVIDER", "kafka")
    monkeypatch.setenv("CDC_KAFKA_BOOTSTRAP_SERVERS", "env:9092")
    assert AgentSettings.load(path).log == "kafka"
    monkeypatch.delenv("CDC_MESSAGING_PROVIDER")
    assert AgentSettings.load(path).log == "kafka"


def test_datastax_s_variables_have_the_lowest_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TOPIC_PREFIX", "env-")
    monkeypatch.setenv("CDC_WORKING_DIR", "/env")
    monkeypatch.setenv("CDC_KAFKA_BOOTSTRAP_SERVERS", "env:9092")
    path = tmp_path / "agent.properties"
    path.write_text("cdc.raw.dir=/tmp/raw\ntopicPrefix=file-\nstate.dir=/file\n")
    loaded = AgentSettings.load(path)
    assert (loaded.topic_prefix, loaded.state_dir) == ("file-", Path("/file"))
    assert loaded.bootstrap_servers == "env:9092"
    assert set(ENVIRONMENT.values()) - set(DATASTAX) == {"tlsTrustCertsFilePath"}


def yaml(tmp_path: Path, text: str) -> AgentSettings:
    path = tmp_path / "cassandra.yaml"
    path.write_text(text)
    return AgentSettings.from_properties(
        {"state.dir": "/tmp/x", "kafka.bootstrap.servers": "k", "cassandra.config": str(path)}, "agent.properties"
    )


def test_the_directory_comes_from_the_yaml(tmp_path: Path) -> None:
    agent_settings = yaml(tmp_path, f"cluster_name: x\ncdc_enabled: true\ncdc_raw_directory: {tmp_path}\n")
    assert raw_directory(agent_settings) == tmp_path


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
def test_a_yaml_without_usable_settings(tmp_path: Path, text: str, kind: Kind) -> None:
    with pytest.raises(HelenusError) as error:
        raw_directory(yaml(tmp_path, text))
    assert error.value.kind is kind


@pytest.mark.parametrize("enabled", [True, False])
def test_an_encrypted_commit_log_is_refused(tmp_path: Path, enabled: bool) -> None:
    """At the start, and by name: each of its segments would only end in quarantine."""
    options = f"transparent_data_encryption_options:\n  enabled: {str(enabled).lower()}\n"
    agent_settings = yaml(tmp_path, f"cdc_enabled: true\ncdc_raw_directory: {tmp_path}\n{options}")
    if not enabled:
        assert raw_directory(agent_settings) == tmp_path
        return
    with pytest.raises(HelenusError) as error:
        raw_directory(agent_settings)
    assert error.value.kind is Kind.CDC_ENCRYPTED
    assert "transparent_data_encryption_options" in str(error.value)


def test_no_yaml(tmp_path: Path) -> None:
    agent_settings = yaml(tmp_path, "cdc_enabled: true\n")
    (tmp_path / "cassandra.yaml").unlink()
    with pytest.raises(HelenusError, match=r"cassandra\.config") as error:
        raw_directory(agent_settings)
    assert error.value.kind is Kind.CONFIG


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"cdc_total_space": "4096MiB"}, 4 << 30),
        ({"cdc_total_space": "1GiB"}, 1 << 30),
        ({"cdc_total_space": "512KiB"}, 512 << 10),
        ({"cdc_total_space_in_mb": "8"}, 8 << 20),
        ({"cdc_total_space": ""}, None),
        ({"cdc_total_space": "lots"}, None),
        ({"cdc_total_space": "²MiB"}, None),
        ({"cdc_total_space": "9" * 5000 + "MiB"}, None),
        ({}, None),
    ],
)
def test_the_limit_of_cdc_raw(options: dict[str, str], limit: int | None) -> None:
    import uuid

    assert Node(uuid.uuid4(), "5.0.9", options).raw_limit == limit
