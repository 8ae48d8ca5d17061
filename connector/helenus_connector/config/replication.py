"""The file of `helenus-connector replicate` and `compare`: a source, its events topics, and the cluster to write to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from helenus_connector.config._connector_keys import Consistency, topic_name
from helenus_schemas.errors import HelenusError
from helenus_schemas.settings.fields import CommaList, PassThrough
from helenus_schemas.settings.model import Group
from helenus_schemas.settings.properties import ConfigError
from helenus_schemas.settings.shared import CassandraSettings, KafkaSettings, LogSettings

_PREFIX = "target."
_OWN = frozenset(f"{_PREFIX}{name}" for name in ("keyspace", "consistency", "cdc", "concurrency", "writes.per.second"))
"""Keys of this file below `target.`: all others are those of Cassandra's connection there."""


class ReplicationSettings(KafkaSettings, CassandraSettings, LogSettings):
    """Which tables of one cluster are kept the same in another. `cassandra.*` is the source."""

    placeholders: ClassVar[Mapping[str, Sequence[str]]] = {"events.topic": ("keyspace", "table")}

    keyspace: Annotated[str, Field(min_length=1), Group("Replication", "HIGH")]
    """Keyspace of the source."""
    table: Annotated[CommaList, Field(min_length=1), Group("Replication", "HIGH")]
    """Its tables, without counters, separated by commas."""
    events_topic: Annotated[str, Group("Replication")] = ""
    """Name of the events topic, in which `${keyspace}` and `${table}` may stand; default: `events-KEYSPACE.TABLE`."""
    group_id: Annotated[str, Group("Replication", "HIGH")] = ""
    """Consumer group in which positions are committed. Processes with one group share the topics' partitions; default:
    `helenus-replicate-KEYSPACE`."""
    consumer: Annotated[PassThrough, Group("Kafka", "LOW")] = {}
    """librdkafka's settings for consumers; they override `kafka.*`."""
    query_consistency: Annotated[Consistency, Group("Replication")] = "LOCAL_QUORUM"
    """Consistency level at which rows are read in the source, and in the target."""
    target: Annotated[PassThrough, Group("Target", "HIGH")] = {}
    """`target.cassandra.*` says how to reach the target, by the names that `cassandra.*` has for the source."""
    target_keyspace: Annotated[str, Group("Target", "HIGH")] = ""
    """Keyspace of the target; default: the source's name."""
    target_consistency: Annotated[Consistency, Group("Target", "HIGH")] = "LOCAL_QUORUM"
    """Consistency level of writes: positions are committed when they are acknowledged."""
    target_cdc: Annotated[Literal["refuse", "allow"], Group("Target")] = "refuse"
    """Whether a target table may have CDC enabled. Allow it only if nothing replicates that table back: two replicators
    in opposite directions would repeat each write to each other for ever."""
    target_concurrency: Annotated[int, Field(ge=1, le=4096), Group("Target")] = 64
    """How many writes are under way at once."""
    target_writes_per_second: Annotated[int, Field(ge=0), Group("Target")] = 0
    """Most writes a second of one process; 0: no limit."""

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(properties)
        if not properties.get("bootstrap.servers"):
            yield "bootstrap.servers", "required property is missing"
        if "target.cassandra.contact.points" not in properties:
            yield "target.cassandra.contact.points", "required property is missing"
        try:
            CassandraSettings.from_properties(_connection(properties), "")
        except ConfigError as error:
            for problem in error.problems:
                yield f"{_PREFIX}{problem.key}", problem.reason

    @property
    def target_cassandra(self) -> CassandraSettings:
        """Return how to reach the target."""
        return CassandraSettings.from_properties(dict(self.target), "target.*")

    @property
    def target_keyspace_name(self) -> str:
        """Return the keyspace to write to."""
        return self.target_keyspace or self.keyspace

    @property
    def group(self) -> str:
        """Return the consumer group of the positions."""
        return self.group_id or f"helenus-replicate-{self.keyspace}"

    @property
    def consumer_config(self) -> dict[str, str]:
        """Return librdkafka's settings of the consumer."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.kafka, **self.consumer}

    def events_topic_of(self, table: str) -> str:
        """Return the events topic of a table."""
        return topic_name(self.events_topic, "events-", self.keyspace, table)


def for_target(error: HelenusError) -> HelenusError:
    """Return an error of the target's connection with the names that its keys have here."""
    advice = re.sub(r"(?<![\w.])cassandra\.", "target.cassandra.", error.advice)
    message = re.sub(r"(?<![\w.])cassandra\.(?=ssl|local)", "target.cassandra.", error.what)
    return HelenusError(error.kind, message, f"target {error.where}", advice)


def _connection(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the target's connection, without their prefix."""
    return {
        key.removeprefix(_PREFIX): value
        for key, value in properties.items()
        if key.startswith(_PREFIX) and key not in _OWN
    }
