"""The connector's configuration: one worker file, one file per connector, as with connect-standalone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from helenus_schemas import names
from helenus_schemas.config import CassandraSettings, LogSettings, Milliseconds, PassThrough

Consistency = Literal["LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "ALL"]
Name = Annotated[str, Field(min_length=1)]


class WorkerSettings(LogSettings):
    """What all connectors of a worker share."""

    bootstrap_servers: Name
    kafka: PassThrough = {}
    producer: PassThrough = {}
    consumer: PassThrough = {}
    listeners: str = "http://127.0.0.1:8083"
    checkpoint_dir: Path
    batch_interval_ms: Milliseconds = 0
    startup_timeout_ms: Milliseconds = 0
    spark: PassThrough = {}

    @field_validator("listeners")
    @classmethod
    def _http(cls, value: str) -> str:
        host, _, port = value.removeprefix("http://").rpartition(":")
        if not value.startswith("http://") or not host or not port.isdigit():
            raise ValueError("give one listener as http://host:port")
        return value

    @property
    def listener(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listeners.removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def producer_config(self) -> dict[str, str]:
        """librdkafka's settings of every producer."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.kafka, **self.producer}

    @property
    def consumer_config(self) -> dict[str, str]:
        """librdkafka's settings of every consumer."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.kafka, **self.consumer}


class ConnectorSettings(CassandraSettings):
    """One connector: one table's events in, its data topic out."""

    aliases: ClassVar[Mapping[str, str]] = {
        "contactPoints": "cassandra.contact.points",
        "port": "cassandra.port",
        "loadBalancing.localDc": "cassandra.local.dc",
        "auth.username": "cassandra.username",
        "auth.password": "cassandra.password",
        "outputFormat": "output.format",
        "batch.size": "max.batch.size",
    }

    name: Name
    connector_class: str = "helenus.CassandraSource"
    tasks_max: int = Field(default=1, ge=1)
    keyspace: Name
    table: Name
    events_topic: str = ""
    data_topic: str = ""
    query_consistency: Consistency = "LOCAL_QUORUM"
    query_concurrency: int = Field(default=32, ge=1, le=1024)
    query_group_size: int = Field(default=32, ge=1, le=100)
    settle_timeout_ms: Milliseconds = 2_000
    settle_min_age_ms: Milliseconds = 1_000
    settle_replay_ms: Milliseconds = 30_000
    value_converter_schema_registry_url: Name
    value_converter_schema_registry_basic_auth_user_info: SecretStr | None = None
    output_format: Literal["key-value-avro"] = "key-value-avro"
    max_batch_size: int = Field(default=20_000, ge=1)
    cache_max_capacity: int = Field(default=131_072, ge=8)
    cache_expire_after_ms: Milliseconds = 600_000
    errors_tolerance: Literal["none", "all"] = "none"
    errors_deadletterqueue_topic_name: str = ""
    errors_data_loss: Literal["fail", "continue"] = "fail"

    @property
    def events(self) -> str:
        """The topic that is read."""
        return self.events_topic or names.topic("events-", self.keyspace, self.table)

    @property
    def data(self) -> str:
        """The topic that is written."""
        return self.data_topic or names.topic("data-", self.keyspace, self.table)

    @property
    def dead_letters(self) -> str:
        """The topic for events that cannot be decoded."""
        return self.errors_deadletterqueue_topic_name or names.topic("dlq-", self.keyspace, self.table)
