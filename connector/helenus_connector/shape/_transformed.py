"""Records that a connector's transforms change: those of another shape, made in Avro, decoded, transformed, and encoded
by the connector's converters.

    RowShape → Avro → ConnectRecord → transforms → ConnectRecord → JsonConverter → Record
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from helenus_connector.config.connector import PARTS, ConnectorSettings, Part
from helenus_connector.connect_data.converter import ConnectJson, PlainText, RecordConverter
from helenus_connector.connect_data.from_avro import AvroReader
from helenus_connector.connect_data.record import ConnectHeader, ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_connector.connect_data.to_avro import AvroConverter, RegisteredAvro
from helenus_connector.converters.choice import make_converter, needs_registry
from helenus_connector.converters.headers import header_converter
from helenus_connector.converters.subjects import TOPIC_NAME, subject_name
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_connector.shape.encoding.forms import register_frame
from helenus_connector.shape.encoding.frames import frame
from helenus_connector.shape.encoding.registry import Registry, SchemaIds
from helenus_connector.transforms.chain import TransformChain
from helenus_connector.transforms.contract import TransformError
from helenus_schemas.avro.compare import parsed
from helenus_schemas.avro.resolution import unreadable
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings import fields

_FRAME = 5  # bytes of the Confluent wire format before the Avro
_TEXT = ConnectSchema("string")
_BINARY_HEADER = "exact_key"
"""The only header of ours that is no text."""


class LocalSchemas:
    """Gives schemas ids that only this process uses: what is encoded with them is decoded here. See `SchemaIds`."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._readers: dict[int, AvroReader] = {}

    def register(self, subject: str, schema: str) -> int:  # noqa: ARG002
        return self._ids.setdefault(schema, len(self._ids))

    def keep(self, subject: str, schema: str, value: str) -> int:  # noqa: ARG002
        return self.register(subject, schema)

    def reader(self, schema_id: int, has_cql_names: bool) -> AvroReader:
        """Return what decodes the Avro of a schema."""
        reader = self._readers.get(schema_id)
        if reader is None:
            text = next(text for text, number in self._ids.items() if number == schema_id)
            reader = self._readers[schema_id] = AvroReader(text, has_cql_names)
        return reader


def settings_without_transforms(settings: ConnectorSettings) -> ConnectorSettings:
    """Return the settings of the shape whose records are transformed: the same format, in Avro."""
    output_format = settings.output_format if settings.is_envelope else "key-value-avro"
    unset = dict.fromkeys(("key_converter", "value_converter", "message_key_columns"), "")
    strategies = {f"{part}_converter_{part}_subject_name_strategy": TOPIC_NAME for part in PARTS}
    own_schemas = {f"{part}_converter_use_latest_version": False for part in PARTS}
    update: dict[str, object] = {"transforms": {}, "output_format": output_format, **unset, **strategies, **own_schemas}
    plain = settings.model_copy(update=update)
    assert not plain.has_transforms
    return plain


def _converter(part: Part, settings: ConnectorSettings, registry: SchemaIds | None) -> RecordConverter:
    """Return the converter of keys, or of values."""
    is_key = part == "key"
    match name := settings.converter(part):
        case "Avro":
            return AvroConverter(partial(_avro_schema, settings, part, registry), partial(_subject, settings, part))
        case "Json":
            return ConnectJson(settings.json_schemas[0 if is_key else 1])
        case "String":
            return PlainText()
    own = settings.key_converter_properties if is_key else settings.value_converter_properties
    shared = {
        f"{part}.subject.name.strategy": settings.subject_strategy(part),
        "auto.register.schemas": str(settings.value_converter_auto_register_schemas).lower(),
        "normalize.schemas": str(settings.value_converter_normalize_schemas).lower(),
        "use.latest.version": str(settings.uses_latest(part)).lower(),
        "latest.compatibility.strict": str(settings.value_converter_latest_compatibility_strict).lower(),
    }
    store = registry if isinstance(registry, Registry) else None
    return make_converter(name, is_key, {**(shared if needs_registry(name) else {}), **own}, store)


def _avro_schema(
    settings: ConnectorSettings, part: Part, registry: SchemaIds | None, subject: str, schema: str
) -> RegisteredAvro:
    """Return the schema in which keys, or values, are written: registered, or the subject's latest. Raises as
    `Registry.latest_as`, REGISTRY_REFUSED too for one that does not take all that `schema` writes.
    """
    if not settings.uses_latest(part) or not isinstance(registry, Registry):
        return RegisteredAvro(register_frame(registry, subject, schema), schema)
    schema_id, latest = registry.latest_as("AVRO", subject, None)
    if settings.value_converter_latest_compatibility_strict:
        try:
            problem = unreadable(parsed(latest), parsed(schema))
        except (ValueError, TypeError, LookupError) as error:
            problem = f"it is no Avro schema: {error}"
        if problem:
            refusal = f"the subject's latest schema does not take what is written: {problem}"
            raise HelenusError(Kind.REGISTRY_REFUSED, refusal, f"subject {subject}", "register another version")
    return RegisteredAvro(frame(schema_id), latest)


def _subject(settings: ConnectorSettings, part: Part, topic: str, record_name: str | None) -> str:
    strategy = settings.subject_strategy(part)
    prefix = settings.subject_prefix(topic) if strategy == TOPIC_NAME else topic
    return subject_name(strategy, prefix, part, record_name)


class TransformedShape:
    """Makes the transformed records of one version of a table: see `Shape`. `shape` makes records with the ids of
    `schemas`. Registers the schemas of what the transforms make.
    """

    def __init__(
        self,
        shape: Shape,
        schemas: LocalSchemas,
        settings: ConnectorSettings,
        registry: SchemaIds | None,
        topic: str,
    ) -> None:
        self._shape = shape
        self._schemas = schemas
        self._topic = topic
        self._events_topic = settings.events
        self._has_text_keys = settings.key_compat == "cep44"
        self._has_cql_names = not settings.is_avro
        self._chain = TransformChain(settings.record_transforms, settings.predicates)
        self._key_converter = _converter("key", settings, registry)
        self._value_converter = _converter("value", settings, registry)
        self._convert_header = header_converter(settings.header_converter)

    def records(self, resolved: ResolvedKey) -> Iterator[ShapedRecord | None]:
        for shaped in self._shape.records(resolved):
            if shaped is None or shaped.cause is not None:
                yield shaped
            elif (transformed := self._transformed(shaped, resolved)) is not None:
                yield transformed

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        return [None] * len(resolved)

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._shape.smaller(image)

    def _transformed(self, shaped: ShapedRecord, resolved: ResolvedKey) -> ShapedRecord | None:
        """Return a transformed record, or the cause why there is none; None if a transform drops it."""

        def make(image: Image | None) -> Record:
            remade = self._apply(shaped.make(image), shaped, resolved)
            if remade is None:
                problem = "a transform drops the record without its largest columns"
                raise HelenusError(Kind.RECORD_TOO_LARGE, problem, self._topic)
            return remade[0]

        # What decides whether a key that is read again has changed is the record before the transforms.
        plain = shaped.record
        alike = shaped.alike or b"%d %s%s" % (len(plain.key or b""), plain.key or b"", plain.value or b"")
        try:
            applied = self._apply(plain, shaped, resolved)
        except HelenusError as error:
            if error.kind is not Kind.POISON_EVENT:
                raise
            placeholder = Record(None, str(error).encode(), ())
            return ShapedRecord(placeholder, error, shaped.key, shaped.image, make)
        if applied is None:
            return None
        record, topic = applied
        return ShapedRecord(
            record, None, shaped.key, shaped.image, make, alike, topic if topic != self._topic else None
        )

    def _apply(self, record: Record, shaped: ShapedRecord, resolved: ResolvedKey) -> tuple[Record, str] | None:
        """Return the transformed record and its topic; None if it is dropped. Raises HelenusError POISON_EVENT, and as
        the converters.
        """
        try:
            changed = self._chain.apply(self._connect_record(record, shaped, resolved))
            if changed is None:
                return None
            topic = fields.topic(changed.topic)
            if not topic or topic == self._events_topic:
                raise TransformError(f"a transform routes a record to the topic {topic!r}")
            headers = [(header.name, self._header_bytes(header)) for header in changed.headers]
        except ValueError as error:
            raise HelenusError(Kind.POISON_EVENT, str(error), self._topic) from error
        key = self._key_converter.to_bytes(topic, changed.key_schema, changed.key)
        return Record(key, self._value_converter.to_bytes(topic, changed.value_schema, changed.value), headers), topic

    def _header_bytes(self, header: ConnectHeader) -> bytes:
        return self._convert_header(header.schema, header.value) or b""

    def _connect_record(self, record: Record, shaped: ShapedRecord, resolved: ResolvedKey) -> ConnectRecord:
        key_schema, key = self._decoded(record.key, self._has_text_keys)
        value_schema, value = self._decoded(record.value)
        return ConnectRecord(
            self._topic,
            resolved.partition,
            key_schema,
            key,
            value_schema,
            value,
            _timestamp(shaped, resolved),
            tuple(_headers(record.headers)),
        )

    def _decoded(self, data: bytes | None, is_text: bool = False) -> tuple[ConnectSchema | None, object]:
        if data is None:
            return None, None
        if is_text:
            return _TEXT, data.decode()
        reader = self._schemas.reader(int.from_bytes(data[1:_FRAME], "big"), self._has_cql_names)
        return reader.schema, reader.decode(data[_FRAME:])


def _timestamp(shaped: ShapedRecord, resolved: ResolvedKey) -> int | None:
    """Return the write time of a row, in ms; without one, when the event that asked for it was appended."""
    write_time = resolved.write_time
    if shaped.key != resolved.key and shaped.image is not None:
        write_time = shaped.image.write_time
    if write_time is not None:
        return write_time // 1000
    return None if resolved.event is None else resolved.event.timestamp


def _headers(headers: Iterable[tuple[str, bytes]]) -> Iterator[ConnectHeader]:
    for name, value in headers:
        if name == _BINARY_HEADER:
            yield ConnectHeader(name, None, value)
        else:
            yield ConnectHeader(name, _TEXT, value.decode())
