"""The agent's configuration: a properties file, and the node's cassandra.yaml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import structlog
import yaml
from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from helenus_agent.aliases import ALIASES, ENVIRONMENT, topic_advice
from helenus_agent.segment import ReadMode
from helenus_schemas.config import Alias, CassandraSettings, CommaList, LogSettings, Milliseconds, PassThrough
from helenus_schemas.errors import HelenusError, Kind


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {pattern!r}: {error}") from None
    return patterns


def _one(points: tuple[str, ...]) -> tuple[str, ...]:
    if len(points) != 1:
        raise ValueError("name one address: that of the node whose log is read")
    return points


def _transfer(value: str) -> str:
    if value not in ("delete", "archive") and not re.fullmatch(r"\w+(\.\w+)*:\w+", value):
        raise ValueError(f"delete, archive, or package.module:Name of a class or function: {value!r} is none of them")
    return value


Patterns = Annotated[CommaList, AfterValidator(_patterns)]


class AgentSettings(CassandraSettings, LogSettings):
    """The keys of agent.properties."""

    aliases: ClassVar[Mapping[str, str | Alias]] = ALIASES
    environment: ClassVar[Mapping[str, str]] = ENVIRONMENT

    cassandra_contact_points: Annotated[CommaList, AfterValidator(_one)] = ("127.0.0.1",)
    cassandra_config: Path | None = None
    cdc_raw_dir: Path | None = None
    state_dir: Path
    log: Literal["kafka"] = "kafka"
    kafka_bootstrap_servers: str = Field(min_length=1)
    kafka_producer: PassThrough = {}
    topic_prefix: str = "events-"
    headers: Literal["none", "datastax"] = "none"
    topic_partitions: int = Field(default=4, ge=1)
    topic_retention_ms: int = Field(default=7 * 24 * 3600 * 1000, ge=-1)
    topic_config: PassThrough = {}
    table_include_list: Patterns = ()
    table_exclude_list: Patterns = ()
    read_mode: ReadMode = "marker"
    segment_transfer: Annotated[str, AfterValidator(_transfer)] = "delete"
    segment_archive_dir: Path | None = None
    startup_timeout_ms: Milliseconds = 0
    poll_interval_ms: Annotated[Milliseconds, Field(ge=1, le=1000)] = 20
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=0, ge=0, lt=65536)

    @classmethod
    def of(cls, properties: Mapping[str, str], source: str, environment: Mapping[str, str] | None = None) -> Self:
        settings = super().of(properties, source, environment)
        if advice := topic_advice(properties):
            structlog.get_logger().warning("config.topics", source=source, key="topic.prefix", advice=advice)
        return settings

    @model_validator(mode="after")
    def _directories_are_known(self) -> Self:
        wrong = []
        if self.cassandra_config is None and self.cdc_raw_dir is None:
            wrong.append("set cassandra.config, the path of the node's cassandra.yaml, or cdc.raw.dir")
        if self.segment_transfer == "archive" and self.segment_archive_dir is None:
            wrong.append("set segment.archive.dir, where segment.transfer=archive puts segments")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def raw_directory(settings: AgentSettings) -> Path:
    """The cdc_raw directory, which can be read and deleted in. Raises HelenusError: CDC is off, or it can't."""
    directory = settings.cdc_raw_dir
    if settings.cassandra_config is not None:
        node = read_yaml(settings.cassandra_config)
        if node.get("cdc_enabled") is not True:
            raise HelenusError(Kind.CDC_DISABLED, "cdc_enabled is not true", str(settings.cassandra_config))
        encryption = node.get("transparent_data_encryption_options")
        if isinstance(encryption, dict) and encryption.get("enabled") is True:
            raise HelenusError(Kind.CDC_ENCRYPTED, "the commit log is encrypted", str(settings.cassandra_config))
        if directory is None:
            named = node.get("cdc_raw_directory")
            if not named:
                raise HelenusError(
                    Kind.CONFIG,
                    "cdc.raw.dir: set it, because cassandra.yaml names no cdc_raw_directory",
                    str(settings.cassandra_config),
                )
            directory = Path(named)
    assert directory is not None
    if not directory.is_dir():
        raise HelenusError(Kind.CDC_DIRECTORY, "cdc_raw is not a directory, or may not be seen", str(directory))
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise HelenusError(Kind.CDC_DIRECTORY, "cdc_raw may not be read and deleted in", str(directory))
    return directory


def read_yaml(path: Path) -> dict[str, Any]:
    """A cassandra.yaml. Raises HelenusError(CONFIG)."""
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise HelenusError(Kind.CONFIG, f"cassandra.config: cannot read it: {error}", str(path)) from None
    if not isinstance(found, dict):
        raise HelenusError(Kind.CONFIG, "cassandra.config: not a cassandra.yaml", str(path))
    return found
