"""A connector's file: one table's events in, its data topic out; or those of several tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import PrivateAttr

from helenus_connector.config import _connector_rules, _patterns, column_masks, row_condition
from helenus_connector.config._connector_keys import CLASS as CLASS
from helenus_connector.config._connector_keys import ConnectorKeys, topic_name
from helenus_connector.config._connector_keys import is_class as is_class
from helenus_connector.config._converters import CONNECT_JSON, ENVELOPES, are_converted, converter_kind, is_avro
from helenus_connector.config._key_columns import key_columns
from helenus_connector.config._topic_creation import TopicCreation, chooses_partitions, topic_creation
from helenus_connector.converters.subjects import TOPIC_NAME
from helenus_connector.transforms.properties import LISTED, names_in
from helenus_schemas.names import avro_name

Part = Literal["key", "value"]
PARTS: tuple[Part, ...] = ("key", "value")
_REPLACE_KEY_FIELDS = "org.apache.kafka.connect.transforms.ReplaceField$Key"


class ConnectorSettings(ConnectorKeys):
    """One connector: one table's events in, its data topic out."""

    _shares_data_topic: bool = PrivateAttr(default=False)

    @classmethod
    def conflicts(cls, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(properties)
        yield from _connector_rules.conflicts(properties, cls.needs_registry)

    @property
    def is_avro(self) -> bool:
        """Return whether keys and values are Avro."""
        return is_avro(self.output_format, self.value_converter or self.key_converter)

    @property
    def json_schemas(self) -> tuple[bool, bool]:
        """Return whether keys, and values, are JSON that carries its schema."""
        of_key = self.key_converter == CONNECT_JSON and self.key_converter_schemas_enable
        return of_key, self.value_converter == CONNECT_JSON and self.value_converter_schemas_enable

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the columns that keys have, for settings of one table; empty where these are the primary key's."""
        return key_columns(self.message_key_columns, f"{self.keyspace}.{self.table}")

    @property
    def record_transforms(self) -> Mapping[str, str]:
        """Return the transforms of records: those that are listed, after one that leaves `key_columns` in the key."""
        if not self.key_columns:
            return self.transforms
        name, columns = "message.key.columns", self.key_columns
        fields = map(avro_name, columns) if self.is_avro else columns
        first = {f"{name}.type": _REPLACE_KEY_FIELDS, f"{name}.include": ",".join(fields)}
        return {**self.transforms, **first, LISTED: ",".join([name, *names_in(self.transforms)])}

    @property
    def has_transforms(self) -> bool:
        """Return whether records are made in another form first, and then transformed or converted."""
        has_subjects = any(
            (self.subject_strategy(part) != TOPIC_NAME or self.uses_latest(part)) and self.converter(part) == "Avro"
            for part in PARTS
        )
        is_converted = has_subjects or are_converted(self.key_converter, self.value_converter)
        return is_converted or bool(names_in(self.record_transforms))

    @property
    def defers_keys(self) -> bool:
        """Return whether keys go on while the registry is away, in a schema that it may not have."""
        return self.key_schema_registration == "defer"

    @property
    def defers_values(self) -> bool:
        """Return the same of values."""
        return self.value_schema_registration == "defer"

    @property
    def defers_schemas(self) -> bool:
        """Return whether keys or values go on so."""
        return self.defers_keys or self.defers_values

    def subject_strategy(self, part: Part) -> str:
        """Return the class that names the subjects of keys, or of values."""
        if part == "key":
            return self.key_converter_key_subject_name_strategy
        return self.value_converter_value_subject_name_strategy

    def uses_latest(self, part: Part) -> bool:
        """Return whether keys, or values, are written in their subject's latest schema."""
        is_key = part == "key"
        is_asked = self.key_converter_use_latest_version if is_key else self.value_converter_use_latest_version
        return is_asked and not self.value_converter_auto_register_schemas

    def converter(self, part: Part) -> str:
        """Return how keys, or values, are converted: `Avro`, `Json`, `String`, or the name of another class."""
        own, other = self.key_converter, self.value_converter
        own, other = (own, other) if part == "key" else (other, own)
        return converter_kind(own, other, self.is_avro)

    @property
    def is_envelope(self) -> bool:
        """Return whether records say what a change did, in an envelope."""
        return self.output_format in ENVELOPES

    @property
    def forms(self) -> dict[str, str]:
        """Return how records show decimals, varints and times, by type name, where that is not their exact form."""
        modes = {"decimal": self.decimal_handling_mode, "varint": self.varint_handling_mode}
        forms = {name: str(mode) for name, mode in modes.items() if mode != "precise"}
        return forms if self.time_precision_mode == "nanoseconds" else {**forms, "time": self.time_precision_mode}

    @property
    def has_keyspaces(self) -> bool:
        """Return whether this stands for a connector for each keyspace of several."""
        return _patterns.is_pattern(self.keyspace)

    @property
    def published(self) -> str:
        """Return a regular expression for the names of the published columns, for settings of one table."""
        return _patterns.exclude_columns(self.columns, self.column_exclude_list, self.keyspace, self.table)

    @property
    def column_masks(self) -> tuple[column_masks.ColumnMask, ...]:
        """Return the masks of columns."""
        return column_masks.column_masks(self.column_mask, self.column_truncate)

    @property
    def condition(self) -> row_condition.Condition | None:
        """Return what rows have to meet to be published, for settings of one table; None if all are."""
        text = self.where.get(self.table)
        return None if text is None else row_condition.parse_condition(text)

    @property
    def skipped(self) -> frozenset[str]:
        """Return the operations that have no records."""
        return frozenset(self.skipped_operations) - {"none"}

    @property
    def hides_values(self) -> bool:
        """Return whether there are values that must not leave as they are, or at all."""
        return bool(self.column_mask or self.column_truncate or self.where)

    @property
    def tables(self) -> list[str]:
        """Return the tables that are named: all of them, unless there are patterns too."""
        return [part for part in self._table_parts if not _patterns.is_pattern(part)]

    @property
    def has_patterns(self) -> bool:
        """Return whether tables may join while the connector runs."""
        return len(self.tables) < len(self._table_parts)

    def matches(self, table: str) -> bool:
        """Return whether a table's name matches one of the patterns."""
        return any(_patterns.is_pattern(part) and re.fullmatch(part, table) for part in self._table_parts)

    def matches_keyspace(self, keyspace: str) -> bool:
        """Return whether a keyspace's name matches."""
        return re.fullmatch(self.keyspace, keyspace) is not None

    def of_table(self, table: str) -> ConnectorSettings:
        """Return the settings of one of the connector's tables, to which `events`, `data` and `dead_letters` belong."""
        settings = self.model_copy(update={"table": table})
        if self.shares_data_topic:
            settings._shares_data_topic = True
        return settings

    @property
    def shares_data_topic(self) -> bool:
        """Return whether several tables of the connector have one data topic."""
        has_tables = self.has_patterns or len(self.tables) > 1
        return self._shares_data_topic or (has_tables and self.data_topic != "" and "${table}" not in self.data_topic)

    def subject_prefix(self, topic: str) -> str:
        """Return what the subjects of a table's schemas in a data topic begin with: as Connect's TopicNameStrategy
        says, but where several tables share the topic, each table's schemas evolve by themselves.
        """
        return f"{topic}-{self.keyspace}.{self.table}" if self.shares_data_topic else topic

    @property
    def shown_headers(self) -> tuple[str, ...]:
        """Return the headers of the records. One that says the table is among them where several share a topic."""
        must_say = self.shares_data_topic and "table" not in self.headers
        return (*self.headers, "table") if must_say else self.headers

    @property
    def _table_parts(self) -> list[str]:
        return list(dict.fromkeys(part.strip() for part in self.table.split(",") if part.strip()))

    @property
    def events(self) -> str:
        """Return the topic that is read."""
        return topic_name(self.events_topic, "events-", self.keyspace, self.table)

    @property
    def data(self) -> str:
        """Return the topic that is written."""
        return topic_name(self.data_topic, "data-", self.keyspace, self.table)

    @property
    def dead_letters(self) -> str:
        """Return the topic for events that cannot be published."""
        return topic_name(self.errors_deadletterqueue_topic_name, "dlq-", self.keyspace, self.table)

    @property
    def warnings(self) -> list[str]:
        """Return warnings of settings that give up a promise, or do not count: each with its key."""
        warnings = []
        if chooses_partitions(self.topic_creation):
            warnings.append(
                "topic.creation.*.partitions does not count: a data topic has as many partitions as its events topic"
            )
        if self.value_converter_auto_register_schemas and (
            self.key_converter_use_latest_version or self.value_converter_use_latest_version
        ):
            warnings.append("use.latest.version does not count without value.converter.auto.register.schemas=false")
        if self.query_consistency != "LOCAL_ONE":
            return warnings
        return [
            *warnings,
            "query.consistency=LOCAL_ONE: with a replication factor above 1 a later record of a key may show an older "
            "row than one before, for some seconds (promise 4 of docs/guarantees.md); LOCAL_QUORUM keeps the order",
        ]

    @property
    def cleanup_policy(self) -> str:
        """Return the data topic's policy: records that say what one change wrote, or with the Sidecar's keys, must not
        replace each other.
        """
        return "delete" if self.resolver == "none" or self.key_compat == "cep44" else "compact"

    @property
    def data_loss(self) -> str:
        """Return what happens when events expired before they were read: a snapshot makes up for them, if it may."""
        return "continue" if self.snapshot_mode == "when_needed" else self.errors_data_loss

    @property
    def data_creation(self) -> TopicCreation:
        """Return how the data topic is created."""
        return self.creation_of(self.data)

    def creation_of(self, topic: str) -> TopicCreation:
        """Return how a topic with records is created, also one that a transform routes them to."""
        return topic_creation(self.topic_creation, topic, self.cleanup_policy)

    @property
    def has_dead_letters(self) -> bool:
        """Return whether events are expected in the topic of dead letters: then it is created at the start. Otherwise
        the first record that is too large creates it.
        """
        is_chosen = "errors_large_record" in self.model_fields_set and self.errors_large_record == "dead-letter"
        return self.errors_tolerance == "all" or is_chosen

    @property
    def has_chunks(self) -> bool:
        """Return whether records may be in chunks, in a topic beside the data topic."""
        return self.errors_large_record == "chunk"

    def chunk_partitions(self, partitions: int) -> int:
        """Return how many partitions the topic of chunks has, where the data topic has so many."""
        return 2 * partitions if self.needs_registry else partitions

    def chunk_creation(self, topic: str) -> TopicCreation:
        """Return how the topic for the chunks of a topic is created. On Pulsar compaction would free nothing of it."""
        creation = self.creation_of(topic)
        return creation if self.needs_registry else TopicCreation({"retention.ms": "-1"}, creation.replication_factor)


class PulsarConnectorSettings(ConnectorSettings):
    """A connector whose records go to Pulsar, which keeps their schemas itself."""

    needs_registry = False
