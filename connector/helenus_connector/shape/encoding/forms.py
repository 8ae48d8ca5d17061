"""Encode keys and rows in Avro or JSON, for all shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.encoding.frames import frame
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_schemas.avro import build as avro
from helenus_schemas.codec import avro_long, to_avro
from helenus_schemas.codec import to_json as jsonform
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table


class Form(Protocol):
    """Encodes keys and values."""

    @property
    def absent_value(self) -> bytes | None:
        """The value of a record whose row does not exist."""
        ...

    def key(self, key: bytes, values: Key = ()) -> bytes:
        """Return a record's key, from the event's; with its CQL bytes if some of the partition key have no bytes.

        Raises ValueError for a topic that has no form for it, and as `Registry.register`.
        """
        ...

    def value(self, key: bytes, values: Sequence[bytes | None]) -> bytes:
        """Return a record's value, from the event's key and the CQL bytes of `avro.value_columns`."""
        ...

    def truncation(self) -> bytes | None:
        """Return the key of the marker that concerns the whole table. Raises as `Registry.register`."""
        ...


class Avro:
    """The form `key-value-avro`: Avro after the frames of the key's and the value's schema.

    If it `is_plain`, a key is the event's after the `key_frame`, and a value is what `row` makes of the columns.
    """

    absent_value = None

    def __init__(
        self,
        table: Table,
        settings: ConnectorSettings,
        key_frame: bytes,
        value_frame: bytes,
        truncation: Callable[[], bytes | None],
        nullable: Callable[[str], bytes] | None,
    ) -> None:
        self._truncation = truncation
        self._nullable = nullable
        self._codec = KeyCodec(table, settings.key_compat)
        self.key_frame = key_frame
        self._value_frame = value_frame
        self._recode = _key_recoder(table, settings)
        columns = avro.value_columns(table)
        required = avro.required_columns(table)
        self._required = [to_avro.plain(c.type, key=True) for c in required]
        optional_types = [c.type for c in columns[len(required) :]]
        self.row = to_avro.optionals(optional_types, key=not table.values, head=b"" if required else value_frame)
        self.is_plain = not required and self._recode is None
        self._encode_all = to_avro.optionals([c.type for c in columns], key=not table.values)

    def key(self, key: bytes, values: Key = ()) -> bytes:
        if values:
            return self._nullable_frame("key") + self._codec.encode_nullable(values)
        return self.key_frame + (self._recode(key) if self._recode else key)

    def value(self, key: bytes, values: Sequence[bytes | None]) -> bytes:  # noqa: ARG002
        if not self._required:
            return self.row(values)
        if self._codec.stand_in_indexes(values):
            return self._nullable_frame("value") + self._encode_all(values)
        width = len(self._required)
        required_bytes = [encode(value or b"") for encode, value in zip(self._required, values[:width], strict=True)]
        return b"".join([self._value_frame, *required_bytes, self.row(values[width:])])

    def truncation(self) -> bytes | None:
        return self._truncation()

    def _nullable_frame(self, part: str) -> bytes:
        """Return the frame of keys, or values, with a partition key that the topic's own schema has no form for."""
        if self._nullable is None:
            raise ValueError(
                "no bytes in a partition key, which a topic that has one schema for all keys has no form of"
            )
        return self._nullable(part)


class Json:
    """The form `key-value-json`, and `json` if `has_key_columns`: its value has the key's columns too, and a delete is
    `{}`.

    With `has_truncations` the markers of the whole table have a key, of another form than rows have.
    """

    def __init__(self, table: Table, settings: ConnectorSettings, has_key_columns: bool, has_truncations: bool) -> None:
        self._has_truncations = has_truncations
        self.absent_value = b"{}" if has_key_columns else None
        self._codec = KeyCodec(table)
        keys = table.primary_key
        columns = (*keys, *table.values) if has_key_columns else avro.value_columns(table)
        self._key = json_encoder(keys, settings.key_compat == "datastax")
        self._value = json_encoder(columns)
        self._has_key_columns = has_key_columns
        self._truncation = truncation_key(table)
        self._only_key = not table.values

    def key(self, key: bytes, values: Key = ()) -> bytes:
        return self._key(values or self._codec.decode(key)).encode()

    def value(self, key: bytes, values: Sequence[bytes | None]) -> bytes:
        if not self._has_key_columns:
            return self._value(values).encode()
        return self._value(values if self._only_key else (*self._codec.decode(key), *values)).encode()

    def truncation(self) -> bytes | None:
        if not self._has_truncations:
            return None
        return self._truncation


def truncation_key(table: Table) -> bytes:
    """Return the key, in JSON, of the marker that concerns the whole table."""
    return json.dumps({"table": table.full_name}, ensure_ascii=False).encode()


def register_key_schemas(
    table: Table, settings: ConnectorSettings, registry: SchemaIds | None, topic: str, key: str, value: str
) -> tuple[bytes, Callable[[], bytes | None], Callable[[str], bytes] | None]:
    """Return the frame of keys, and functions to the key of a truncation and to the frames of nullable parts. `key` and
    `value` are the schemas of keys, and of the values of rows outside them. Without a registry there are no frames, and
    one schema for all keys. Raises as `Registry.register`.
    """
    if registry is None:
        return b"", lambda: None, None
    table_name = avro_long.sized_bytes(table.full_name.encode())

    def truncation() -> bytes:
        return frame(registry.register(f"{topic}-truncation", avro.TRUNCATION)) + table_name

    def nullable(part: str) -> bytes:
        return frame(registry.register(f"{topic}-{part}-nullable", nullable_schema(table, settings, part)))

    return frame(registry.keep(f"{topic}-key", key, value)), truncation, nullable


def register_frame(registry: SchemaIds | None, subject: str, schema: str) -> bytes:
    """Register a schema and return the frame of its id; an empty one without a registry."""
    return b"" if registry is None else frame(registry.register(subject, schema))


def nullable_schema(table: Table, settings: ConnectorSettings, part: str) -> str:
    """Return the schema of keys, or of values of key columns only, in which a column of the partition key may be null:
    it has no bytes there, and its type has no empty value.
    """
    if part == "value":
        return avro.text(avro.value_schema(table, nullable=True))
    return avro.text({**avro.key_schema(table, settings.key_compat, nullable=True), avro.TABLE_ID: str(table.id)})


def json_encoder(columns: Sequence[Column], datastax: bool = False) -> Callable[[Sequence[bytes | None]], str]:
    """Return a function from the CQL bytes of columns, those of the key first, to a JSON object."""
    key_count = sum(c.kind in ("partition_key", "clustering") for c in columns)
    return jsonform.objects([c.name for c in columns], [c.type for c in columns], keys=key_count, datastax=datastax)


def _key_recoder(table: Table, settings: ConnectorSettings) -> Callable[[bytes], bytes] | None:
    """Return a function from an event's key to the data record's; None where they are the same."""
    if settings.key_compat == "exact":
        return None
    exact, compatible = KeyCodec(table), KeyCodec(table, settings.key_compat)
    return lambda key: compatible.encode(exact.decode(key))
