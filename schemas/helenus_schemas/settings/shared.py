"""The settings that several commands share: Cassandra, Kafka, Pulsar, logging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from helenus_schemas.settings.fields import (
    Brokers,
    Hosts,
    HttpUrl,
    Login,
    Milliseconds,
    PassThrough,
    PulsarName,
    PulsarUrl,
    Token,
)
from helenus_schemas.settings.model import Group, Settings


class CassandraSettings(Settings):
    """How agent and connector reach Cassandra."""

    cassandra_contact_points: Annotated[Hosts, Group("Cassandra", "HIGH")] = ("127.0.0.1",)
    """Nodes to connect to first, by address or name; the others are discovered."""
    cassandra_port: Annotated[int, Field(gt=0, lt=65536), Group("Cassandra", "HIGH")] = 9042
    """The nodes' CQL port."""
    cassandra_local_dc: Annotated[str | None, Field(min_length=1), Group("Cassandra", "HIGH")] = None
    """The data centre to connect to; default: that of the first contact point to answer. Required where there are
    several."""
    cassandra_username: Annotated[str | None, Group("Cassandra", "HIGH")] = None
    """Role to log in as."""
    cassandra_password: Annotated[SecretStr | None, Group("Cassandra", "HIGH")] = None
    """Its password."""
    cassandra_ssl_enabled: Annotated[bool, Group("Cassandra")] = False
    """Whether to use TLS."""
    cassandra_ssl_cafile: Annotated[Path | None, Group("Cassandra")] = None
    """PEM file of CA certificates; default: the system's."""
    cassandra_ssl_certfile: Annotated[Path | None, Group("Cassandra")] = None
    """PEM file of the client certificate, if nodes require one."""
    cassandra_ssl_keyfile: Annotated[Path | None, Group("Cassandra")] = None
    """PEM file of its key."""
    cassandra_ssl_check_hostname: Annotated[bool, Group("Cassandra", "LOW")] = True
    """Whether to verify that a node's certificate names its host."""
    cassandra_connect_timeout_ms: Annotated[Milliseconds, Field(ge=1), Group("Cassandra", "LOW")] = 10_000
    """How long to wait for a connection."""
    cassandra_request_timeout_ms: Annotated[Milliseconds, Field(ge=1), Group("Cassandra", "LOW")] = 12_000
    """How long to wait for an answer."""

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        yield from super().conflicts(properties)
        if properties.get("cassandra.username") and not properties.get("cassandra.password"):
            yield "cassandra.password", "set it too: a cassandra.username alone logs nobody in"
        files = (f"cassandra.ssl.{name}" for name in ("cafile", "certfile", "keyfile"))
        if "cassandra.ssl.enabled" not in properties and (
            file := next((key for key in files if key in properties), None)
        ):
            yield "cassandra.ssl.enabled", f"set it to true: {file} is used with TLS alone"

    @property
    def server(self) -> tuple[object, ...]:
        """Return what identifies a Cassandra cluster and the login there: equal settings can share a session."""
        return tuple(getattr(self, field) for field in CassandraSettings.model_fields)


class LogSettings(Settings):
    """How a command logs."""

    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$"), Group("Logging")] = "info"
    """Lowest level that is logged."""
    log_format: Annotated[str, Field(pattern="^(text|json)$"), Group("Logging")] = "text"
    """Format of log lines, which have an event name and fields."""


class TraceSettings(Settings):
    """Which spans a command exports, by OpenTelemetry's names. Its variables `OTEL_…` say where to."""

    otel_traces_exporter: Annotated[Literal["", "none", "otlp"], Group("Traces")] = ""
    """`otlp` sends [traces](monitoring.md#traces) to OpenTelemetry, which needs the extra `otel`. Default: the variable
    `OTEL_TRACES_EXPORTER`, or `none`."""
    otel_traces_sampler_arg: Annotated[float | None, Field(ge=0, le=1), Group("Traces")] = None
    """The part of changes that is traced, 0 to 1: the same for agents and connectors. Default: as `OTEL_TRACES_SAMPLER`
    and `OTEL_TRACES_SAMPLER_ARG` say, or 0.01."""


class ListenerSettings(Settings):
    """Who may use the listener of an agent or a worker."""

    listeners_https_ssl_certfile: Annotated[Path | None, Group("REST")] = None
    """PEM file of an https listener's certificate, with its chain."""
    listeners_https_ssl_keyfile: Annotated[Path | None, Group("REST")] = None
    """PEM file of its key."""
    listeners_https_ssl_keyfile_password: Annotated[SecretStr | None, Group("REST", "LOW")] = None
    """Password of the key, if it is encrypted."""
    listeners_https_ssl_cafile: Annotated[Path | None, Group("REST")] = None
    """PEM file of CA certificates: clients then need a certificate that one of them signed."""
    rest_basic_auth_user_info: Annotated[Login, Group("REST")] = None
    """`user:password` that every request must give, except for `/health/live`."""


_BROKERS = ("bootstrap.servers", "metadata.broker.list")
"""librdkafka's names of the brokers' addresses: they have a key of their own."""


class KafkaSettings(Settings):
    """How agent and worker reach Kafka, by the names that Kafka Connect's workers have for it."""

    older_names: ClassVar[Mapping[str, str]] = {
        "kafka.bootstrap.servers": "bootstrap.servers",
        "kafka.producer.*": "producer.*",
        "kafka.consumer.*": "consumer.*",
    }
    meant: ClassVar[Mapping[str, str]] = {f"{kind}.": f"kafka.{kind}." for kind in ("security", "sasl", "ssl")}
    text_lists: ClassVar[frozenset[str]] = frozenset(("bootstrap_servers",))

    bootstrap_servers: Annotated[Brokers, Group("Kafka", "HIGH")] = ""
    """Kafka's brokers, as `host:port,host:port`. `log=kafka` needs it."""
    kafka: Annotated[PassThrough, Group("Kafka")] = {}
    """librdkafka's settings for every client, such as `kafka.security.protocol`."""
    producer: Annotated[PassThrough, Group("Kafka", "LOW")] = {}
    """librdkafka's settings for producers; they override `kafka.*`. `producer.compression.type` is `lz4` by default
    (docs/sinks.md)."""

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        yield from super().conflicts(properties)
        for prefix in ("kafka", "producer", "consumer"):
            for key in _BROKERS:
                if f"{prefix}.{key}" in properties:
                    yield f"{prefix}.{key}", "leave it out: bootstrap.servers names the brokers"


NO_PULSAR = "install the extra pulsar: pip install '.[pulsar]' in a checkout, or 'helenus-….whl[pulsar]'"


class PulsarSettings(Settings):
    """How agent and connector reach Pulsar."""

    pulsar_service_url: Annotated[PulsarUrl, Group("Pulsar", "HIGH")] = ""
    """Brokers or proxies: `pulsar://host:port,host:port`, or `pulsar+ssl://` for TLS."""
    pulsar_admin_url: Annotated[HttpUrl, Group("Pulsar", "HIGH")] = ""
    """REST API that creates topics: `http://host:port` or `https://`. Without it the topics must exist."""
    pulsar_tenant: Annotated[PulsarName, Group("Pulsar")] = "public"
    """Tenant of all topics."""
    pulsar_namespace: Annotated[PulsarName, Group("Pulsar")] = "default"
    """Namespace of all topics."""
    pulsar_auth_token: Annotated[Token, Group("Pulsar", "HIGH")] = None
    """JSON Web Token to log in with."""
    pulsar_tls_cafile: Annotated[Path | None, Group("Pulsar")] = None
    """PEM file of CA certificates; default: the system's."""
    pulsar_tls_check_hostname: Annotated[bool, Group("Pulsar", "LOW")] = True
    """Whether to verify that a broker's certificate names its host."""

    @property
    def pulsar_topic_prefix(self) -> str:
        """Return the beginning of all topics' full names."""
        return f"persistent://{self.pulsar_tenant}/{self.pulsar_namespace}/"
