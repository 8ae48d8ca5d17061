"""Subjects of schemas in a registry, and the ids of what is registered there, by Confluent's serializers' settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from helenus_connector.converters._values import unfit
from helenus_schemas.errors import HelenusError, Kind

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
CONTEXT = "a context is a part of schema.registry.url, as in http://registry:8081/contexts/.NAME."
NO_CONTEXT = "io.confluent.kafka.serializers.context.NullContextNameStrategy"
_STRATEGIES = "io.confluent.kafka.serializers.subject."
TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME = (
    f"{_STRATEGIES}{name}" for name in ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")
)


def subject_name(strategy: str, topic: str, part: str, record_name: str | None) -> str:
    """Return the subject of a schema; `part` is `key` or `value`. Raises HelenusError POISON_EVENT for a schema without
    the name that its subject has.
    """
    if strategy == TOPIC_NAME:
        return f"{topic}-{part}"
    if not record_name:
        raise unfit(f"{strategy.rpartition('.')[2]} needs a schema with a name, and the {part}'s has none")
    return record_name if strategy == RECORD_NAME else f"{topic}-{record_name}"


def check_strategy(name: str) -> str:
    """Return a strategy's class, which may be named without its package. Raises ValueError for another."""
    strategy = name if "." in name else f"{_STRATEGIES}{name}"
    if strategy not in (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME):
        raise ValueError(f"give {TOPIC_NAME}, {RECORD_NAME} or {TOPIC_RECORD_NAME}")
    return strategy


class RegisteredSchema(NamedTuple):
    """A schema's id in the registry, and its text there: another than ours if the latest version is used."""

    id: int
    text: str


class SchemaStore(Protocol):
    """Gives schemas of any kind their ids: see `Registry`."""

    def register_as(
        self, schema_type: SchemaType, subject: str, schema: str, may_register: bool, normalizes: bool
    ) -> int: ...
    def latest_as(self, schema_type: SchemaType, subject: str, schema: str | None) -> tuple[int, str]: ...


class SubjectSettings(NamedTuple):
    """What a converter's properties say of subjects. With `is_strict` the latest version has to take our schema."""

    strategy: str = TOPIC_NAME
    may_register: bool = True
    normalizes: bool = False
    uses_latest: bool = False
    is_strict: bool = True


class SubjectSchemas:
    """Registers the schemas of keys, or of values. Ids are kept for as long as the converter lives."""

    def __init__(self, store: SchemaStore, schema_type: SchemaType, is_key: bool, settings: SubjectSettings) -> None:
        self._store = store
        self._type: SchemaType = schema_type
        self._suffix = "key" if is_key else "value"
        self._settings = settings
        self._registered: dict[tuple[str, str], RegisteredSchema] = {}

    def register(self, topic: str, record_name: str | None, schema: str) -> RegisteredSchema:
        """Return the id of a schema, whose records have this name, and its text. Raises as `Registry.register`, and
        HelenusError POISON_EVENT for a record without the name that its subject has.
        """
        subject = subject_name(self._settings.strategy, topic, self._suffix, record_name)
        registered = self._registered.get((subject, schema))
        if registered is None:
            registered = self._registered[subject, schema] = self._request(subject, schema)
        return registered

    def _request(self, subject: str, schema: str) -> RegisteredSchema:
        settings = self._settings
        if settings.uses_latest and not settings.may_register:
            return RegisteredSchema(*self._store.latest_as(self._type, subject, schema if settings.is_strict else None))
        may_register, normalizes = settings.may_register, settings.normalizes
        return RegisteredSchema(self._store.register_as(self._type, subject, schema, may_register, normalizes), schema)


def subject_settings(properties: Mapping[str, str], is_key: bool) -> SubjectSettings:
    """Return what a converter's properties say. Raises HelenusError CONFIG for a value that it can't have."""
    key = f"{'key' if is_key else 'value'}.subject.name.strategy"
    try:
        strategy = check_strategy(properties.get(key, TOPIC_NAME))
    except ValueError as error:
        raise HelenusError(Kind.CONFIG, f"{key}={properties[key]}: there is no such strategy", "", str(error)) from None
    return SubjectSettings(
        strategy,
        flag(properties, "auto.register.schemas", True),
        flag(properties, "normalize.schemas", False),
        flag(properties, "use.latest.version", False),
        flag(properties, "latest.compatibility.strict", True),
    )


def flag(properties: Mapping[str, str], key: str, default: bool) -> bool:
    """Return a property that is true or false. Raises HelenusError CONFIG for another value."""
    text = properties.get(key, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise HelenusError(Kind.CONFIG, f"{key}={text[:40]}: give true or false")
    return text == "true"
