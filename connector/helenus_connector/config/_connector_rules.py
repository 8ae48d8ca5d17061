"""Which properties of a connector do not go together: rules, in the order in which their messages are shown.

A rule yields the keys at fault, each with the reason. It sees properties as they are given, before defaults, and each
of them may be wrong by itself too: of those another message is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from helenus_connector.config import _patterns, column_masks
from helenus_connector.config._connector_keys import TOPICS, topic_name
from helenus_connector.config._converters import (
    CONNECT_JSON,
    ENVELOPES,
    Format,
    are_converted,
    converter_kind,
    formats,
    is_avro,
    is_json,
)
from helenus_connector.config._topic_creation import check_topic_creation
from helenus_connector.converters.choice import NO_SCHEMAS, is_converter_class, make_converter
from helenus_connector.schema_store.store_class import find_store_class
from helenus_connector.transforms.properties import LISTED, check_properties, names_in
from helenus_schemas.errors import HelenusError

Problems = Iterator[tuple[str, str]]
_STRATEGIES = [f"{part}.converter.{part}.subject.name.strategy" for part in ("key", "value")]
_DATA_TOPIC, _KEY_COLUMNS, _DEFAULT_FORMAT = "data.topic", "message.key.columns", "key-value-avro"
_LONGEST_BATCH_S = 600
"""In which a batch is read that is one transaction, at `query.max.rate`: brokers abort one after fifteen minutes."""
_STORE = "schema.store"
_REGISTRATIONS = ("key.schema.registration", "value.schema.registration")
_TRUE = ("true", "1", "t", "yes", "y", "on")  # as pydantic reads them
_WITHOUT_ENVELOPE = {None, *get_args(Format)} - set(ENVELOPES)  # None: the default, of which `output.format=` is none


@dataclass(frozen=True)
class ConnectorProperties:
    """A connector's properties, by key, and whether its records need a Schema Registry."""

    values: Mapping[str, str]
    needs_registry: bool

    def text(self, key: str) -> str:
        """Return the value of a key, empty if it is not given."""
        return self.values.get(key, "")

    @property
    def converters(self) -> tuple[str, str]:
        """Return the converters' classes, of keys and of values."""
        return self.text("key.converter"), self.text("value.converter")

    def below(self, key: str) -> dict[str, str]:
        """Return the values of a key, under the empty name, and of those below it."""
        keys = {name: value for name, value in self.values.items() if name.startswith(f"{key}.")}
        return {LISTED: self.text(key), **{name[len(key) + 1 :]: value for name, value in keys.items()}}

    @property
    def has_tables(self) -> bool:
        """Return whether `table` stands for several."""
        table = self.text("table")
        return "," in table or any(_patterns.is_pattern(part) for part in table.split(","))

    @property
    def has_keyspaces(self) -> bool:
        """Return whether `keyspace` stands for several."""
        return _patterns.is_pattern(self.values.get("keyspace", "any"))


def conflicts(properties: Mapping[str, str], needs_registry: bool) -> Problems:
    """Yield (key, reason) for properties that do not go together."""
    connector = ConnectorProperties(properties, needs_registry)
    for rule in RULES:
        yield from rule(connector)


def _check_converters(connector: ConnectorProperties) -> Problems:
    key, value = connector.text("key.converter"), connector.text("value.converter")
    if not formats(key, value):
        pairs = "both AvroConverter, both JsonConverter, or StringConverter and JsonConverter"
        prefix = f"with key.converter={key}: " if key and value else ""
        others = "; and those of docs/transforms.md"
        yield "value.converter" if value else "key.converter", f"{prefix}known are {pairs}{others}"
    for side, name in (("key", key), ("value", value)):
        if is_converter_class(name):
            prefix = f"{side}.converter.properties."
            own = {k.removeprefix(prefix): v for k, v in connector.values.items() if k.startswith(prefix)}
            try:
                make_converter(name, side == "key", own, NO_SCHEMAS)
            except HelenusError as error:
                yield f"{side}.converter", f"{error.what}{f': {error.advice}' if error.advice else ''}"


def _check_exactly_once(connector: ConnectorProperties) -> Problems:
    support = connector.text("exactly.once.support")
    rate, size = connector.text("query.max.rate"), connector.text("max.batch.size")
    if support not in ("requested", "required") or not rate.isdigit() or int(rate) == 0:
        return
    largest = int(rate) * _LONGEST_BATCH_S
    if not size or (size.isdigit() and int(size) > largest):
        yield (
            "max.batch.size",
            f"with exactly.once.support={support} a batch is one transaction: give {largest} at most",
        )


def _check_format(connector: ConnectorProperties) -> Problems:
    possible = formats(connector.text("key.converter"), connector.text("value.converter"))
    output_format = connector.text("output.format")
    if possible and output_format in get_args(Format) and output_format not in possible:
        yield "output.format", f"key.converter and value.converter say {possible[0]}; leave them out"


def _check_resolver(connector: ConnectorProperties) -> Problems:
    if connector.text("resolver") == "none" and connector.values.get("output.format") in _WITHOUT_ENVELOPE:
        problem = "it has the cells of a change, not its row"
        yield "resolver", f"{problem}: set output.format=debezium, debezium-cassandra or cep44"


def _check_key_compat(connector: ConnectorProperties) -> Problems:
    if connector.text("key.compat") == "cep44" and connector.text("output.format") != "cep44":
        yield "key.compat", "these keys go with output.format=cep44"


def _check_payload(connector: ConnectorProperties) -> Problems:
    if connector.text("cep44.payload") == "bytes" and is_json(
        connector.text("value.converter") or connector.text("key.converter")
    ):
        yield "cep44.payload", "records in JSON have the payload as an object; leave it out"


def _check_keyspace(connector: ConnectorProperties) -> Problems:
    if connector.has_keyspaces:
        try:
            _patterns.check_names(connector.text("keyspace"))
        except ValueError as error:
            yield "keyspace", str(error)


def _check_topics(connector: ConnectorProperties) -> Problems:
    """Check that topics of several tables have a placeholder for the name, and that a table's topics are distinct."""
    has_tables, has_keyspaces = connector.has_tables, connector.has_keyspaces
    keyspace = "any" if has_keyspaces else connector.text("keyspace")
    table = "any" if has_tables else connector.text("table")
    keys: dict[str, str] = {}  # by topic, without its namespace on Pulsar
    for key, prefix in TOPICS.items():
        topic = connector.text(key)
        if has_tables and topic and "${table}" not in topic and key != _DATA_TOPIC:
            yield key, "with several tables, put ${table} where the table's name is to be"
        if has_keyspaces and topic and "${keyspace}" not in topic:
            yield key, "with several keyspaces, put ${keyspace} where the keyspace's name is to be"
        name = topic_name(topic, prefix, keyspace, table).rpartition("/")[2]
        other = keys.setdefault(name, key)
        if other != key and key in connector.values:
            yield key, f"{other} is the same topic"
        elif other != key:
            yield other, f"{key} is that by default"


def _check_shared_topic(connector: ConnectorProperties) -> Problems:
    """Check that keys in a data topic of several tables say their table: no two rows may have the same."""
    topic, key_converter = connector.text(_DATA_TOPIC), connector.text("key.converter")
    if not connector.has_tables or not topic or "${table}" in topic:
        return
    advice = "put ${table} where the table's name is to be"
    if not connector.needs_registry:
        yield _DATA_TOPIC, f"a topic on Pulsar has the schema of one table: {advice}"
    if connector.values.get("state", "none") != "none":
        yield _DATA_TOPIC, f"state={connector.text('state')} needs a data topic for each table: {advice}"
    if connector.text("errors.large.record") == "chunk":
        yield _DATA_TOPIC, f"errors.large.record=chunk needs a data topic for each table: {advice}"
    possible = formats(key_converter, connector.text("value.converter"))
    output_format = connector.values.get("output.format", possible[0] if possible else _DEFAULT_FORMAT)
    has_schema = key_converter == CONNECT_JSON and connector.text("key.converter.schemas.enable").lower() != "false"
    says_table = has_schema or connector.text("key.compat") == "cep44"
    if not says_table and not is_avro(output_format, connector.text("value.converter") or key_converter):
        yield (
            _DATA_TOPIC,
            f"keys in JSON do not say their table, so rows of two would replace each other: {advice}, or set "
            f"key.converter={CONNECT_JSON}, whose keys have their schema",
        )


def _check_json_schemas(connector: ConnectorProperties) -> Problems:
    for side in ("key.converter", "value.converter"):
        enabled = connector.text(f"{side}.schemas.enable").lower() != "false"
        if connector.text(side) == CONNECT_JSON and enabled and not connector.needs_registry:
            yield f"{side}.schemas.enable", "set it to false: on Pulsar the topic has the schema, not each record"


def _check_topic_creation(connector: ConnectorProperties) -> Problems:
    prefix = "topic.creation."
    settings = {key.removeprefix(prefix): value for key, value in connector.values.items() if key.startswith(prefix)}
    if settings and not connector.needs_registry:
        yield f"{prefix}{min(settings)}", "leave it out: it says how topics are created on Kafka"
    for key, reason in check_topic_creation(settings):
        yield f"{prefix}{key}", reason


def _check_conditions(connector: ConnectorProperties) -> Problems:
    """Check that each `where.TABLE` is of a table that is followed: a typing error would hide nothing."""
    parts = [part.strip() for part in connector.text("table").split(",")]
    for key in connector.values:
        table = key.removeprefix("where.")
        if table != key and not any(_is_match(part, table) for part in parts):
            yield key, f"`table` has no {table}"


def _check_masks(connector: ConnectorProperties) -> Problems:
    has_masks = any(key.startswith((column_masks.MASK, column_masks.TRUNCATE)) for key in connector.values)
    if has_masks and "digest" in [name.strip() for name in connector.text("headers").split(",")]:
        yield "headers", "digest is a hash of the whole change, from which a masked value can be guessed: leave it out"


def _check_skipped(connector: ConnectorProperties) -> Problems:
    key = "skipped.operations"
    skipped = {name.strip() for name in connector.text(key).split(",")}
    state, is_written = connector.text("state"), connector.text("resolver") == "none"
    if skipped & {"c", "u"} and not is_written and state != "rows":
        yield key, "c and u are known with resolver=none or state=rows alone: a row that is read may be either"
    elif "r" in skipped and state != "rows":
        yield key, "r is known with state=rows alone; to publish no rows of before, set snapshot.mode=never"
    elif skipped & {"d", "t"} and state == "keys":
        yield key, "state=keys is there to publish deletes: leave out d and t"
    elif "d" in skipped and any(name.startswith("where.") for name in connector.values):
        yield key, "with `where` a delete takes away a row that no longer matches: leave out d"


def _is_match(part: str, table: str) -> bool:
    try:
        return part == table or (_patterns.is_pattern(part) and re.fullmatch(part, table) is not None)
    except re.error:  # `table` has a message of its own
        return True


def _check_schema_store(connector: ConnectorProperties) -> Problems:
    """Check that schemas are kept elsewhere, or registered later, only where records name them."""
    store = connector.values.get(_STORE, "confluent").strip()
    deferred = [key for key in _REGISTRATIONS if connector.text(key).strip() == "defer"]
    keys = [*deferred, *([_STORE] if store != "confluent" else [])]
    if not keys:
        return
    possible = formats(*connector.converters)
    output_format = connector.values.get("output.format", possible[0] if possible else _DEFAULT_FORMAT)
    reason = None
    if not connector.needs_registry:
        reason = "leave it out: a topic on Pulsar keeps its schemas itself"
    elif not is_avro(output_format, connector.converters[1] or connector.converters[0]):
        reason = "leave it out: records in JSON have no schema in a store"
    elif (used := _transforming_key(connector)) is not None:
        reason = f"not with {used}: schemas are known only when a record is transformed"
    elif store != "confluent" and deferred:
        reason = f"not with schema.store={store}: only a registry's schemas are registered later"
    elif deferred and not _is_true(connector, "value.converter.auto.register.schemas", "true"):
        reason = "not with value.converter.auto.register.schemas=false: the connector may not register schemas later"
    elif deferred and _is_true(connector, "value.converter.normalize.schemas", "false"):
        reason = "not with value.converter.normalize.schemas=true: the registry would give the schema another GUID"
    if reason is not None:
        yield keys[0], reason
    elif ":" in store:
        try:
            find_store_class(store)
        except ValueError as error:
            yield _STORE, str(error)
    if store == "topic" and connector.values.get(f"{_STORE}.config.compatibility", "NONE") not in ("BACKWARD", "NONE"):
        yield f"{_STORE}.config.compatibility", "give BACKWARD or NONE"


def _is_true(connector: ConnectorProperties, key: str, default: str) -> bool:
    return connector.values.get(key, default).strip().lower() in _TRUE


def _check_transforms(connector: ConnectorProperties) -> Problems:
    """Check the transforms and predicates, and refuse what can't be with transforms."""
    yield from check_properties(connector.below("transforms"), connector.below("predicates"))
    used = _transforming_key(connector)
    if used is None:
        return
    for key, value, reason in _WITHOUT_TRANSFORMS:
        if connector.text(key) == value:
            yield used, f"not with {key}={value}: {reason}"
    likely = formats(*connector.converters)[:1] if any(connector.converters) else ()
    if "json" in (connector.text("output.format"), *(() if connector.text("output.format") else likely)):
        yield used, "not with output.format=json: set output.format=key-value-json"
    if not connector.needs_registry:
        yield used, "not on Pulsar: a topic there declares the schemas of its table"


def _transforming_key(connector: ConnectorProperties) -> str | None:
    """Return the key for which records are made in another form first, and then transformed; None without one."""
    uses = {
        "transforms": bool(names_in(connector.below("transforms"))),
        _KEY_COLUMNS: bool(connector.text(_KEY_COLUMNS)),
        "value.converter": are_converted(*connector.converters),
        **{
            key: bool(connector.text(key)) and not connector.text(key).endswith(".TopicNameStrategy")
            for key in _STRATEGIES
        },
        **{f"{side}.converter.use.latest.version": _writes_latest(connector, side) for side in ("key", "value")},
    }
    return next((key for key, is_used in uses.items() if is_used), None)


def _writes_latest(connector: ConnectorProperties, side: str) -> bool:
    """Return whether keys, or values, are Avro in their subject's latest schema."""
    own, other = connector.converters if side == "key" else reversed(connector.converters)
    is_asked = connector.text(f"{side}.converter.use.latest.version").lower() in _TRUE
    may_register = connector.values.get("value.converter.auto.register.schemas", "true").lower() in _TRUE
    possible = formats(*connector.converters)
    output_format = connector.values.get("output.format", possible[0] if possible else _DEFAULT_FORMAT)
    is_avro_format = is_avro(output_format, connector.converters[1] or connector.converters[0])
    return is_asked and not may_register and converter_kind(own, other, is_avro_format) == "Avro"


_WITHOUT_TRANSFORMS = (
    ("state", "keys", "it reads the data topic back, as records were before they were transformed"),
    ("markers", "false", "delete markers have a topic of their own there"),
    ("schema.on.incompatible", "new-topic", "schemas are known only when a record is transformed: set it to stop"),
)
"""Keys, values, and why they do not go with transforms."""

RULES: tuple[Callable[[ConnectorProperties], Problems], ...] = (
    _check_converters,
    _check_format,
    _check_exactly_once,
    _check_resolver,
    _check_key_compat,
    _check_payload,
    _check_keyspace,
    _check_topics,
    _check_shared_topic,
    _check_topic_creation,
    _check_json_schemas,
    _check_conditions,
    _check_masks,
    _check_skipped,
    _check_transforms,
    _check_schema_store,
)
