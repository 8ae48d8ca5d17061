"""The keys of a connector's file, and which values each may have."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from helenus_connector.config import _patterns, column_masks, row_condition
from helenus_connector.config._aliases import ALIASES, snapshot_mode
from helenus_connector.config._converters import Format, has_registry, is_avro, separate_converter_keys, with_defaults
from helenus_connector.config._key_columns import check_key_columns
from helenus_connector.config.state import StateSettings
from helenus_connector.converters.headers import SIMPLE as SIMPLE_HEADERS
from helenus_connector.converters.headers import check_header_converter
from helenus_connector.converters.subjects import TOPIC_NAME, check_strategy
from helenus_connector.schema_store.store_class import check_store
from helenus_schemas import names
from helenus_schemas.codec.key import Compat
from helenus_schemas.settings import fields
from helenus_schemas.settings.fields import CommaList, Login, Milliseconds, PassThrough, RegistryUrls
from helenus_schemas.settings.model import Alias, Group

Header = Literal["schema_id", "writetime", "expires", "origin", "op", "node", "segpos", "digest", "table"]
Consistency = Literal["LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "ALL"]
GateLevel = Literal["one", "local_quorum", "quorum", "each_quorum", "all"]
Operation = Literal["c", "u", "d", "t", "r", "none"]
Registration = Literal["block", "defer"]
SnapshotMode = Annotated[
    Literal["initial", "always", "never", "initial_only", "when_needed"], BeforeValidator(snapshot_mode)
]
Name = Annotated[str, Field(min_length=1)]
TOPICS = {"events.topic": "events-", "data.topic": "data-", "errors.deadletterqueue.topic.name": "dlq-"}
"""Keys of a table's topics, and how the names of these begin by default."""
_TEXT_LISTS = frozenset(("table", *(f"{side}_converter_schema_registry_url" for side in ("key", "value"))))
CLASS = "helenus.CassandraSource"
_CLASSES = re.compile(
    r"(helenus\.)?CassandraSource(Connector)?|com\.datastax\.oss\.[\w.]*Cassandra(Source|Sink)(Connector)?"
)


def is_class(name: str) -> bool:
    """Return whether a `connector.class` is this connector."""
    return _CLASSES.fullmatch(name) is not None


class ConnectorKeys(StateSettings):
    """The keys of a connector. `ConnectorSettings` adds which of them go together, and what follows from them."""

    needs_registry: ClassVar[bool] = True
    """Whether Avro records need a Schema Registry."""
    aliases: ClassVar[Mapping[str, str | Alias]] = ALIASES
    text_lists: ClassVar[frozenset[str]] = _TEXT_LISTS
    listed: ClassVar[frozenset[str]] = frozenset(("transforms", "predicates"))
    placeholders: ClassVar[Mapping[str, Sequence[str]]] = dict.fromkeys(TOPICS, ("keyspace", "table"))

    name: Annotated[Name, Group("Common", "HIGH")]
    """The connector's name in the REST API, in metrics and in the log."""
    connector_class: Annotated[str, Group("Common", "HIGH")] = CLASS
    """The class's name, also without `helenus.` or ending in `Connector`. DataStax's class names are accepted too."""
    tasks_max: Annotated[int, Field(ge=1), Group("Common", "HIGH")] = 1
    """How many partitions of the events topic are processed at once, each by one of Spark's Python workers."""
    keyspace: Annotated[Name, Group("Table", "HIGH")]
    """The table's keyspace. In a file, a regular expression stands for a connector `NAME-KEYSPACE` for each matching
    keyspace that has tables with `cdc = true`."""
    table: Annotated[Name, Group("Table", "HIGH")]
    """The table, which needs `cdc = true`; or a list of names and regular expressions."""
    table_refresh_interval_ms: Annotated[Milliseconds, Group("Table", "LOW", expert=True)] = 10_000
    """How often to look for new tables that match `table`."""
    exactly_once_support: Annotated[Literal["disabled", "requested", "required"], Group("Common")] = "disabled"
    """Whether each batch is published once, as a transaction with the positions of its events; consumers then read with
    `isolation.level=read_committed`. `requested`: where the broker and the other settings allow it; `required`: the
    connector does not run without."""
    query_group: Annotated[str, AfterValidator(_patterns.check_group), Group("Common", "LOW")] = "default"
    """Connectors of one group share a streaming query. Slow tables of another group do not hold them up."""
    events_topic: Annotated[str, Group("Topics", "HIGH")] = ""
    """Topic to read; default: `events-KEYSPACE.TABLE`. With several tables put `${table}` into it. On Pulsar a full
    name in the worker's tenant and namespace is accepted too."""
    data_topic: Annotated[str, Group("Topics", "HIGH")] = ""
    """Topic to write; default: `data-KEYSPACE.TABLE`. Without `${table}` in it, several tables share it."""
    topic_creation: Annotated[PassThrough, Group("Topics", "LOW")] = {}
    """How data topics are created, as Kafka Connect has it: `default.replication.factor`, `default.SETTING`, `groups`,
    `GROUP.include`, `GROUP.exclude` and so on. Partitions are those of the events topic, whatever it says."""
    resolver: Annotated[Literal["reread", "none"], Group("Reading")] = "reread"
    """What a record is made from. `reread`: the row, read from Cassandra. `none`: the change itself; this needs events
    with cells (the agents' `cells.include.list`) and `output.format` `debezium`, `debezium-cassandra` or `cep44`."""
    query_consistency: Annotated[Consistency, Group("Reading", "HIGH")] = "LOCAL_QUORUM"
    """Consistency level at which rows are read. With LOCAL_ONE and several replicas, a later record of a key may show
    an older row than the record before."""
    query_concurrency: Annotated[int, Field(ge=1, le=1024), Group("Reading")] = 32
    """How many read statements a task runs at once."""
    query_group_size: Annotated[int, Field(ge=1, le=100), Group("Reading", "LOW", expert=True)] = 100
    """How many keys one statement reads at most: of one partition, or with one differing partition key column."""
    query_max_rate: Annotated[int, Field(ge=0), Group("Reading")] = 0
    """Rows per second that the connector reads on one host, for changes, snapshots and `verify`. 0: no limit, except
    for a while after timeouts."""
    gate: Annotated[GateLevel, Group("Consistency", "HIGH")] = "one"
    """How many replicas must have reported a change before it is published (docs/gate.md). `one` does not wait; the
    others count distinct nodes, of the right data centres."""
    gate_timeout_ms: Annotated[Milliseconds, Group("Consistency")] = 600_000
    """How long a change waits for enough reports. Time in which the connector does not run, or lags, does not count."""
    gate_expired: Annotated[Literal["verify", "release", "drop"], Group("Consistency")] = "verify"
    """What happens then. `verify` reads the key at the gate's level, and publishes the change if the read shows it;
    `release` publishes it, with the header `gate`; `drop` does not. What is not published is counted."""
    gate_max_waiting_bytes: Annotated[int, Field(ge=1 << 16), Group("Consistency", "LOW", expert=True)] = 64 << 20
    """Driver memory for the waiting changes of one table. Above it the oldest are verified early, or else the table is
    read no further until some of them expire."""
    settle_timeout_ms: Annotated[Milliseconds, Group("Settling", "LOW", expert=True)] = 2_000
    """After how long an unconfirmed key is read again."""
    settle_min_age_ms: Annotated[Milliseconds, Group("Settling", "LOW", expert=True)] = 60_000
    """How long after its last report a read confirms a change that the row neither shows nor contradicts: counters,
    range deletes, expired rows. Ten times as long, if the row contradicts it. Keep it far above every write timeout."""
    settle_replay_ms: Annotated[Milliseconds, Group("Settling", "LOW", expert=True)] = 30_000
    """How far a start steps back in the events topic, so that no unconfirmed change is forgotten."""
    snapshot_mode: Annotated[SnapshotMode, Group("Snapshot", "HIGH")] = "initial"
    """When existing rows are published. `initial`: once for each table, also for one that was recreated. `always`: at
    each start of the worker. `never`. `initial_only`: as `initial`, and then the connector stops. `when_needed`: as
    `initial`, and again after a gap or expired events."""
    snapshot_consistency: Annotated[Consistency, Group("Snapshot", "LOW", expert=True)] = "LOCAL_QUORUM"
    """Consistency level at which a snapshot reads keys; their rows are read at `query.consistency`."""
    snapshot_max_rate: Annotated[int, Field(ge=0), Group("Snapshot")] = 0
    """Rows per second that the connector's snapshots scan in all; 0: as many as `snapshot.max.lag` allows."""
    snapshot_max_lag: Annotated[int, Field(ge=100), Group("Snapshot")] = 5_000
    """A snapshot scans keys for so many events, and goes on some time after they are processed, unless the connector is
    further behind; 15 times as many while the table has had no change for a minute. A higher number makes snapshots
    faster, and new changes later."""
    snapshot_tables_parallel: Annotated[int, Field(ge=1), Group("Snapshot", "LOW")] = 1
    """How many tables of the connector are scanned at once."""
    signal_topic: Annotated[str, Group("Snapshot")] = ""
    """Topic of Debezium's signals, which start and stop snapshots; it is on the worker's `log`. A signal's key is the
    connector's name."""
    key_converter: Annotated[str, Group("Records", "LOW")] = ""
    """Converter class of Kafka Connect; another way to set `output.format`."""
    value_converter: Annotated[str, Group("Records", "LOW")] = ""
    """Converter class of Kafka Connect; another way to set `output.format`."""
    header_converter: Annotated[str, AfterValidator(check_header_converter), Group("Records", "LOW")] = SIMPLE_HEADERS
    """Converter class of headers, of records that transforms or converters make (docs/transforms.md)."""
    key_converter_key_subject_name_strategy: Annotated[str, AfterValidator(check_strategy), Group("Records", "LOW")] = (
        TOPIC_NAME
    )
    """Strategy that names the subjects of keys: with another one than TopicNameStrategy records are made as by a
    transform (docs/transforms.md)."""
    value_converter_value_subject_name_strategy: Annotated[
        str, AfterValidator(check_strategy), Group("Records", "LOW")
    ] = TOPIC_NAME
    """The same, of values."""
    key_converter_properties: Annotated[PassThrough, Group("Records", "LOW")] = {}
    """Of classes such as `ProtobufConverter`: all other `key.converter.*`, as their documentation has them; written
    without `properties`."""
    value_converter_properties: Annotated[PassThrough, Group("Records", "LOW")] = {}
    """The same, of values."""
    key_converter_schemas_enable: Annotated[bool, Group("Records", "LOW")] = True
    """Whether JSON carries its schema, with Kafka Connect's JsonConverter on Kafka."""
    value_converter_schemas_enable: Annotated[bool, Group("Records", "LOW")] = True
    """Whether JSON carries its schema, with Kafka Connect's JsonConverter on Kafka."""
    output_format: Annotated[Format, Group("Records", "HIGH")] = "key-value-avro"
    """Format of keys and values. `debezium` (docs/envelope.md), `debezium-cassandra` (docs/debezium-cassandra.md) and
    `cep44` (docs/cep44.md) are Avro, or JSON with a JSON converter."""
    tombstones_on_delete: Annotated[bool, Group("Records", "LOW")] = True
    """With `output.format` `debezium` or `cep44`: whether a record without value follows each delete, for compacted
    topics. With `debezium-cassandra` the default is `false`."""
    cep44_payload: Annotated[Literal["record", "bytes"], Group("Records", "LOW")] = "record"
    """With `output.format=cep44` in Avro: the payload as a record of the table, or as that record's bytes."""
    key_compat: Annotated[Compat, Group("Records", "LOW")] = "exact"
    """`datastax` writes keys as DataStax's connector does; `cep44`, with `output.format=cep44`, as the Sidecar."""
    decimal_handling_mode: Annotated[Literal["precise", "string", "double"], Group("Records", "LOW")] = "precise"
    """How values show decimals: exactly, as text, or as the nearest double, the default with
    `output.format=debezium-cassandra`."""
    varint_handling_mode: Annotated[Literal["precise", "string", "long"], Group("Records", "LOW")] = "precise"
    """How values show varints: exactly, as text, or as a long, the default with `output.format=debezium-cassandra`. One
    beyond 64 bits can't be published as a long."""
    time_precision_mode: Annotated[Literal["nanoseconds", "microseconds"], Group("Records", "LOW")] = "nanoseconds"
    """How values show a `time`: exactly, or in µs (`time-micros`), as DataStax's connector does."""
    transforms: Annotated[PassThrough, Group("Transforms")] = {}
    """`transforms` lists names of transforms, in their order; `transforms.NAME.type` is the class of each, of Kafka
    Connect, of Debezium or of your own, `.predicate` and `.negate` say which records it applies to, and other keys are
    the class's (docs/transforms.md)."""
    predicates: Annotated[PassThrough, Group("Transforms")] = {}
    """`predicates` lists names of predicates; `predicates.NAME.type` is the class of each."""
    schema_on_incompatible: Annotated[Literal["stop", "new-topic"], Group("Schema Registry")] = "stop"
    """When the registry, or Pulsar, refuses a table's new schema: stop, or go on in a new topic."""
    columns: Annotated[str, Group("Table")] = ".*"
    """Regular expression for the columns to publish. Each alternative must match a column, or exclude one in a negative
    look-ahead. Key columns are always published."""
    column_exclude_list: Annotated[CommaList, AfterValidator(_patterns.check_excluded), Group("Table")] = ()
    """Columns not to publish, as `keyspace.table.column`; each part is a regular expression for a whole name. Key
    columns are always published. An entry that matches no column stops the table."""
    column_mask: Annotated[PassThrough, AfterValidator(column_masks.check_masks), Group("Table")] = {}
    """`column.mask.with.N.chars`, `column.mask.hash.ALGORITHM.with.salt.SALT` and
    `column.mask.hash.v2.ALGORITHM.with.salt.SALT`: columns whose text is N stars, or a hash, as Debezium makes it
    (docs/masking.md). Written as `column.exclude.list`."""
    column_truncate: Annotated[PassThrough, AfterValidator(column_masks.check_truncations), Group("Table")] = {}
    """`column.truncate.to.N.chars`: columns of whose text the first N characters are published."""
    where: Annotated[PassThrough, AfterValidator(row_condition.check_conditions), Group("Table")] = {}
    """`where.TABLE`: which rows of a table are published, such as `status = 'active' AND amount > 10`
    (docs/masking.md)."""
    message_key_columns: Annotated[str, AfterValidator(check_key_columns), Group("Records", "LOW")] = ""
    """Columns of records' keys, where not all of the primary key's are to be in it: `keyspace.table:column,column`,
    with semicolons between tables, which may be regular expressions. Made as by a transform (docs/transforms.md)."""
    skipped_operations: Annotated[CommaList, Group("Records", "LOW")] = ("none",)
    """Operations without records: of `d` (deletes) and `t` (TRUNCATE); with `resolver=none` or `state=rows` also `c`
    and `u`; with `state=rows` also `r`, rows that a snapshot read."""
    headers: Annotated[CommaList, Group("Records", "LOW")] = ("schema_id", "writetime", "expires", "origin", "op")
    """Headers of records, of these: schema_id, writetime, expires, origin, op, node, segpos, digest."""
    schema_store: Annotated[str, AfterValidator(check_store), Group("Schema Registry")] = "confluent"
    """Where schemas of Avro records on Kafka are kept: `confluent`, a registry; `topic`, a compacted topic alone; or a
    class of your own, as `package.module:Class` (docs/schemas.md)."""
    schema_store_topic: Annotated[str, AfterValidator(fields.topic), Group("Schema Registry")] = "helenus-schemas"
    """Topic of the schemas, with `schema.store=topic`, and of those that wait for the registry."""
    schema_store_config: Annotated[PassThrough, Group("Schema Registry", "LOW")] = {}
    """Properties of the class, and `compatibility` of the topic: `BACKWARD` (default) or `NONE`."""
    key_schema_registration: Annotated[Registration, Group("Schema Registry")] = "block"
    """While the registry is away, of a schema that it may not have: `block` lets the table's records wait; with `defer`
    they go on, name the schema by its GUID, and it is registered later (docs/schemas.md). Of keys."""
    value_schema_registration: Annotated[Registration, Group("Schema Registry")] = "block"
    """The same, of values."""
    key_converter_schema_registry_url: Annotated[RegistryUrls, Group("Schema Registry", "HIGH")] = ""
    """As `value.converter.schema.registry.url`; keys and values have one registry."""
    value_converter_schema_registry_url: Annotated[
        RegistryUrls, Field(validate_default=True), Group("Schema Registry", "HIGH")
    ] = ""
    """Registry of the records' schemas; Avro records on Kafka need one."""
    value_converter_schema_registry_basic_auth_user_info: Annotated[Login, Group("Schema Registry")] = None
    """`user:password` for the registry."""
    value_converter_schema_registry_ssl_cafile: Annotated[Path | None, Group("Schema Registry")] = None
    """PEM file of CA certificates; default: the system's."""
    value_converter_schema_registry_ssl_certfile: Annotated[Path | None, Group("Schema Registry", "LOW")] = None
    """PEM file of the client certificate, if the registry requires one."""
    value_converter_schema_registry_ssl_keyfile: Annotated[Path | None, Group("Schema Registry", "LOW")] = None
    """PEM file of its key."""
    value_converter_auto_register_schemas: Annotated[bool, Group("Schema Registry")] = True
    """Whether the connector registers schemas; with `false` they must be registered beforehand."""
    value_converter_normalize_schemas: Annotated[bool, Group("Schema Registry", "LOW")] = False
    """Whether the registry compares schemas in its normal form, when they are registered and looked up."""
    key_converter_use_latest_version: Annotated[bool, Group("Schema Registry", "LOW")] = False
    """Whether keys are written in the latest schema of their subject, with `auto.register.schemas=false`; in Avro their
    records are then made as by a transform (docs/transforms.md)."""
    value_converter_use_latest_version: Annotated[bool, Group("Schema Registry", "LOW")] = False
    """The same, of values."""
    value_converter_latest_compatibility_strict: Annotated[bool, Group("Schema Registry", "LOW")] = True
    """Whether that schema has to take all that keys and values may be; otherwise one that it does not take is
    unpublishable."""
    max_batch_size: Annotated[int, Field(ge=1), Group("Reading")] = 50_000
    """How many events a batch takes at most, of all tables that share it; the highest of their numbers counts. Default
    with `resolver=none` and `state=rows`: 150000."""
    max_batch_size_in_bytes: Annotated[int, Field(ge=1 << 20), Group("Reading", "LOW", expert=True)] = 128 << 20
    """How many bytes of events a batch takes at most, like `max.batch.size`; its tasks share them evenly."""
    cache_max_capacity: Annotated[int, Field(ge=8), Group("Reading", "LOW", expert=True)] = 131_072
    """How many changes are remembered per partition of the events topic, to recognize duplicates."""
    cache_expire_after_ms: Annotated[Milliseconds, Group("Reading", "LOW", expert=True)] = 600_000
    """How long a change is remembered."""
    errors_tolerance: Annotated[Literal["none", "all"], Group("Error Handling")] = "none"
    """`all` puts events that cannot be published into the dead letter topic; `none` stops."""
    errors_deadletterqueue_topic_name: Annotated[str, Group("Error Handling")] = ""
    """Dead letter topic; default: `dlq-KEYSPACE.TABLE`. With several tables put `${table}` into it."""
    errors_retry_timeout: Annotated[int, Field(ge=-1), Group("Error Handling")] = -1
    """How long, in ms, a table's work is repeated after transient errors; -1: for ever."""
    errors_retry_delay_max_ms: Annotated[int, Field(ge=100), Group("Error Handling", "LOW", expert=True)] = 10_000
    """Longest pause between two such attempts; the first is half a second."""
    errors_data_loss: Annotated[Literal["fail", "continue"], Group("Error Handling")] = "fail"
    """When events expired before they were read: stop, or go on and count them."""
    errors_large_record: Annotated[Literal["dead-letter", "chunk", "reference", "fail"], Group("Error Handling")] = (
        "dead-letter"
    )
    """What becomes of a record too large for its topic: dead-letter it, write it in chunks, leave out its largest
    columns, or stop.
    """
    errors_large_record_max_bytes: Annotated[int, Field(ge=1_000_000), Group("Error Handling", "LOW", expert=True)] = (
        64 * 1024 * 1024
    )
    """Largest record that is written in chunks; a larger one is dead-lettered."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str, *more: Any, **named: Any) -> Self:
        """Read settings as `Settings.from_properties`; keys of converters' own go into `*_converter_properties`."""
        own = {field.alias or name for name, field in cls.model_fields.items()}
        return super().from_properties(separate_converter_keys(properties, own), source, *more, **named)

    @model_validator(mode="before")
    @classmethod
    def _add_defaults(cls, values: Any) -> Any:
        return with_defaults(values)

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not value.isprintable() or len(value) > 255:  # as a file's
            raise ValueError("a name has no control characters, and 255 characters at most")
        return value

    @field_validator("connector_class")
    @classmethod
    def _check_class(cls, value: str) -> str:
        if not is_class(value):
            raise ValueError(f"there is no such class, only {CLASS}")
        return value

    @field_validator("table")
    @classmethod
    def _check_tables(cls, value: str) -> str:
        parts = [part.strip() for part in value.split(",")]
        if not any(parts):
            raise ValueError("name a table")
        for part in parts:
            _patterns.check_names(part)
            # A table's name has no dot in it, so as a pattern it would match none, or another table.
            if re.match(r"\w+(\\\.|\.\w+$)", part):
                raise ValueError("name the table alone; the keyspace is `keyspace`")
        return value

    @field_validator("events_topic", "data_topic", "errors_deadletterqueue_topic_name")
    @classmethod
    def _check_topic(cls, value: str, info: ValidationInfo) -> str:
        namespace = (info.context or {}).get("events" if info.field_name == "events_topic" else "data")
        name = fields.local_topic(value, namespace)
        fields.topic(topic_name(name, "", "any", "any"))
        return name

    @field_validator("signal_topic")
    @classmethod
    def _check_signal_topic(cls, value: str, info: ValidationInfo) -> str:
        name = fields.local_topic(value, (info.context or {}).get("events"))
        return fields.topic(name) if name else ""

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, value: str) -> str:
        return _patterns.check_columns(value)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in get_args(Header)]:
            raise ValueError(f"no header {unknown[0]}; there are {', '.join(get_args(Header))}")
        return value

    @field_validator("skipped_operations")
    @classmethod
    def _check_operations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in get_args(Operation)]:
            raise ValueError(f"no operation {unknown[0]}; there are {', '.join(get_args(Operation))}")
        return value

    @field_validator("value_converter_schema_registry_url")
    @classmethod
    def _check_registry(cls, value: str, info: ValidationInfo) -> str:
        of_keys = info.data.get("key_converter_schema_registry_url", "")
        if value and of_keys and value != of_keys:
            raise ValueError("keys and values have one registry: key.converter.schema.registry.url is another")
        form, converter = (
            info.data.get("output_format", ""),
            info.data.get("value_converter") or info.data.get("key_converter", ""),
        )
        converters = (info.data.get("key_converter", ""), info.data.get("value_converter", ""))
        has_schemas = is_avro(form, converter) or any(map(has_registry, converters))
        is_in_registry = info.data.get("schema_store", "confluent") == "confluent"
        if cls.needs_registry and not (value or of_keys) and has_schemas and is_in_registry:
            raise PydanticCustomError("missing", "Avro records need it")
        return value or of_keys


@functools.lru_cache(maxsize=10_000)  # of all tables these are asked for some times a second
def topic_name(topic: str, prefix: str, keyspace: str, table: str) -> str:
    """Return the name of a table's topic: `topic` with its placeholders filled in, by default one with this prefix."""
    return topic.replace("${keyspace}", keyspace).replace("${table}", table) or names.topic(prefix, keyspace, table)
