"""The connector's configuration: one worker file, one file per connector, as with connect-standalone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from helenus_schemas import names
from helenus_schemas.config import Alias, CassandraSettings, CommaList, LogSettings, Milliseconds, PassThrough
from helenus_schemas.key import Compat

Format = Literal["key-value-avro", "key-value-json", "json"]
Header = Literal["schema_id", "writetime", "node", "segpos", "digest"]
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

    aliases: ClassVar[Mapping[str, str | Alias]] = {
        "contactPoints": "cassandra.contact.points",
        "port": "cassandra.port",
        "loadBalancing.localDc": "cassandra.local.dc",
        "auth.username": "cassandra.username",
        "auth.password": "cassandra.password",
        "outputFormat": "output.format",
        "batch.size": "max.batch.size",
        **{
            f"{side}.converter.{key}": f"value.converter.{use}"
            for side, key, use in (
                ("value", "basic.auth.user.info", "schema.registry.basic.auth.user.info"),
                ("key", "basic.auth.user.info", "schema.registry.basic.auth.user.info"),
                ("key", "schema.registry.basic.auth.user.info", "schema.registry.basic.auth.user.info"),
                ("key", "auto.register.schemas", "auto.register.schemas"),
            )
        },
        **{
            f"{side}.converter.basic.auth.credentials.source": Alias(why="credentials are always taken as USER_INFO")
            for side in ("key", "value")
        },
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
    key_converter: str = ""
    value_converter: str = ""
    key_converter_schemas_enable: bool = True
    value_converter_schemas_enable: bool = True
    output_format: Format = "key-value-avro"
    key_compat: Compat = "exact"
    schema_on_incompatible: Literal["stop", "new-topic"] = "stop"
    columns: str = ".*"
    headers: CommaList = ("schema_id", "writetime")
    key_converter_schema_registry_url: str = ""
    value_converter_schema_registry_url: str = Field(default="", validate_default=True)
    value_converter_schema_registry_basic_auth_user_info: SecretStr | None = None
    value_converter_auto_register_schemas: bool = True
    max_batch_size: int = Field(default=20_000, ge=1)
    cache_max_capacity: int = Field(default=131_072, ge=8)
    cache_expire_after_ms: Milliseconds = 600_000
    errors_tolerance: Literal["none", "all"] = "none"
    errors_deadletterqueue_topic_name: str = ""
    errors_data_loss: Literal["fail", "continue"] = "fail"
    errors_large_record: Literal["fail", "dead-letter", "reference"] = "fail"

    @model_validator(mode="before")
    @classmethod
    def _format(cls, values: Any) -> Any:
        """Converters of Kafka Connect say what `output.format` says, and have to agree with it."""
        formats = _formats(values.get("key.converter", ""), values.get("value.converter", ""))
        told = values.get("output.format", formats[0])
        if told in get_args(Format) and told not in formats:
            raise ValueError(
                f"output.format={told}: key.converter and value.converter say {formats[0]}; leave them out"
            )
        for side in ("key.converter", "value.converter"):
            enabled = str(values.get(f"{side}.schemas.enable", "true")).lower() != "false"
            if values.get(side) == _CONNECT_JSON and enabled:
                raise ValueError(f"{side}.schemas.enable: set it to false; JSON records carry no schema")
        return {**values, "output.format": told}

    @field_validator("columns")
    @classmethod
    def _regex(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("headers")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in get_args(Header)]:
            raise ValueError(f"no header {unknown[0]}; there are {', '.join(get_args(Header))}")
        return value

    @field_validator("value_converter_schema_registry_url")
    @classmethod
    def _registry(cls, value: str, info: ValidationInfo) -> str:
        of_keys = info.data.get("key_converter_schema_registry_url", "")
        if value and of_keys and value != of_keys:
            raise ValueError("keys and values have one registry: key.converter.schema.registry.url is another")
        if not (value or of_keys) and info.data.get("output_format") == "key-value-avro":
            raise PydanticCustomError("missing", "Avro records need it")
        return value or of_keys

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
        """The topic for events that cannot be told."""
        return self.errors_deadletterqueue_topic_name or names.topic("dlq-", self.keyspace, self.table)

    @property
    def has_dead_letters(self) -> bool:
        """Whether events may go to the topic of dead letters."""
        return self.errors_tolerance == "all" or self.errors_large_record == "dead-letter"


_CONNECT_JSON = "org.apache.kafka.connect.json.JsonConverter"
_FORMATS: dict[tuple[str, str], tuple[Format, ...]] = {
    ("", ""): get_args(Format),
    ("Avro", "Avro"): ("key-value-avro",),
    ("Json", "Json"): ("key-value-json", "json"),
    ("String", "Json"): ("json", "key-value-json"),
}


def _formats(key: str, value: str) -> tuple[Format, ...]:
    """The formats that converters of these classes stand for, the likelier first. Raises ValueError for others."""
    kinds = [_kind(name) for name in (key, value)]
    pair = (kinds[0] or kinds[1], kinds[1] or kinds[0])
    if pair not in _FORMATS:
        known = "both AvroConverter, both JsonConverter, or StringConverter and JsonConverter"
        raise ValueError(f"key.converter={key} with value.converter={value}: known are {known}")
    return _FORMATS[pair]


def _kind(converter: str) -> str:
    """`Avro` of `io.confluent.connect.avro.AvroConverter`; other products' classes end alike."""
    return next((kind for kind in ("Avro", "Json", "String") if converter.endswith(f"{kind}Converter")), converter)
