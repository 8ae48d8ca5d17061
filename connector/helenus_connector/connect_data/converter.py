"""The interface of converters, and Kafka's own: JsonConverter and StringConverter.

{"k": 7} with its schema → {"schema": {"type": "struct", ...}, "payload": {"k": 7}}, or {"k": 7} alone
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from helenus_connector.connect_data._json_form import json_schema, json_value
from helenus_connector.connect_data.java_text import value_text
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_schemas.errors import HelenusError, Kind

_CACHED_SCHEMAS = 1000


class RecordConverter(Protocol):
    """Makes the bytes of keys, or of values: a serializer. `value.converter=package.module:Class` names one of a user's
    own, as a class of Kafka Connect's or Confluent's names one of ours.

    `Class(properties, is_key)` makes one, with the other properties of the file that begin with `value.converter.`, or
    `key.converter.`, without that, and whether it is for keys. It raises ValueError for properties that are wrong, and
    opens nothing: `validate` makes one to see. Each of Spark's Python workers makes its own for each table, again when
    the table is altered. One thread calls it.
    """

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        """Return the bytes of the key, or value, of a record for this data topic. `schema` describes `value`, see
        `connect_data.schema`; the object is the same for all records of a definition, so what is derived of it may be
        kept by its `id`, with the schema itself.

        None stands for None: a record without value is a delete. The same key has the same bytes at each call, in each
        process: a topic is compacted by them. A batch may be repeated, so it may be called again for a record.

        Errors: HelenusError as its kind says. OSError: the batch is repeated, with growing pauses. Whatever else a
        user's class raises makes the record unpublishable: the connector stops, or with `errors.tolerance=all` the
        event becomes a dead letter. Messages are logged: they must have no secrets.
        """
        ...


class ConnectJson:
    """JSON as Kafka Connect's JsonConverter writes it, with its schema or without.

    If it `keeps_nulls`, None with a schema has bytes too: as a header's, where it stands for no delete.
    """

    def __init__(self, has_schemas: bool, keeps_nulls: bool = False) -> None:
        self._has_schemas = has_schemas
        self._keeps_nulls = keeps_nulls
        self._openings: dict[int, tuple[ConnectSchema, str]] = {}

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if value is None and not (self._keeps_nulls and schema is not None):
            return None
        try:
            payload = json.dumps(json_value(schema, value), ensure_ascii=False, separators=(",", ":"))
            text = f"{self._opening(schema)}{payload}}}" if self._has_schemas else payload
            return text.encode()
        except (ValueError, TypeError, KeyError) as error:
            raise HelenusError(Kind.POISON_EVENT, f"a value has no JSON form: {error}", topic) from None

    def _opening(self, schema: ConnectSchema | None) -> str:
        """Return what goes before a payload."""
        if schema is None:
            return '{"schema":null,"payload":'
        cached = self._openings.get(id(schema))
        if cached is None:
            if len(self._openings) >= _CACHED_SCHEMAS:
                self._openings.clear()
            text = json.dumps(json_schema(schema), ensure_ascii=False, separators=(",", ":"))
            cached = schema, f'{{"schema":{text},"payload":'
            self._openings[id(schema)] = cached
        return cached[1]


class PlainText:
    """Text as Kafka Connect's StringConverter writes it: what Java's `toString` makes of a value."""

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return value_text(schema, value).encode()
        except ValueError as error:
            raise HelenusError(Kind.POISON_EVENT, f"a value has no text form: {error}", topic) from None
