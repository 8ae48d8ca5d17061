"""Convert a record's key to the event's, in today's form, whatever the format of the topic."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.event_content import decode_key
from helenus_connector.shape.encoding.forms import nullable_schema
from helenus_connector.verify._contents import column_names
from helenus_connector.verify._values import Headers, Schemas
from helenus_schemas.avro import build as avro
from helenus_schemas.avro.compare import parsed, without_names
from helenus_schemas.codec import from_json
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed

_Form = Callable[[bytes], bytes]


class RecordKeys:
    """Decodes the keys of a topic. `schemas` gives those of Avro; `keeps_schemas`: the broker does, as Pulsar."""

    def __init__(self, table: Table, settings: ConnectorSettings, keeps_schemas: bool, schemas: Schemas) -> None:
        self._table = table
        self._codec = KeyCodec(table)
        self._schemas = schemas
        self._encodes_exact = keeps_schemas
        self._is_avro = settings.is_avro
        self._compat = KeyCodec(table, "datastax") if settings.key_compat == "datastax" else None
        self._of_now = parsed(avro.text(avro.key_schema(table)))
        self._nullable = parsed(nullable_schema(table, settings, "key"))
        self._first_clustering = table.clustering[0].name if table.clustering else None
        self._names = [c.name for c in table.primary_key]
        self._from_json = None if self._is_avro else from_json.objects(self._names, [c.type for c in table.primary_key])
        self._has_schema = settings.json_schemas[0]
        self._forms: dict[Any, _Form | Malformed] = {}

    def decode(self, data: bytes | None, number: Any, headers: Headers) -> tuple[bytes, Key, bool]:
        """Return the event's key, its values, and whether it stands for the partition. `data` is without a frame,
        `number` names its schema. Raises Malformed for a key that this table can't have.
        """
        if data is None:
            raise Malformed("a record without key")
        try:
            return self._decoded(data, number, headers)
        except Malformed:
            raise
        except (ValueError, LookupError, TypeError, OverflowError, struct.error) as error:
            raise Malformed(f"not a key of this table: {error}") from None

    def _decoded(self, data: bytes, number: Any, headers: Headers) -> tuple[bytes, Key, bool]:
        if exact := headers.get("exact_key"):
            name = self._codec.current_key(b64decode(exact, validate=True) if self._encodes_exact else exact)
        elif self._is_avro:
            name = self._of_avro(data, number)
        else:
            name = self._of_json(data, headers)
        values = decode_key(self._codec, name)
        n = self._codec.partition_columns
        is_partition = len(values) > n and values[n] is None
        if is_partition and "empty" in headers and self._first_clustering in column_names(headers["empty"]):
            return name, (*values[:n], *(b"" for _ in values[n:])), False
        return name, values, is_partition

    def _of_avro(self, data: bytes, number: Any) -> bytes:
        if number not in self._forms:
            self._forms[number] = self._form(number)
        form = self._forms[number]
        if isinstance(form, Malformed):
            raise form
        return form(data)

    def _form(self, number: Any) -> _Form | Malformed:
        text = self._schemas(number)
        if text is None:
            return Malformed(f"a key of a schema that is not known: {number}")
        try:
            schema = parsed(text)
        except ValueError as error:
            return Malformed(f"a key of a schema that is none of Avro's: {error}")
        name = schema.get("name") if isinstance(schema, dict) else schema
        if name != self._of_now["name"]:
            return Malformed(f"a key of {name}")
        bare = without_names(schema)
        if bare == without_names(self._nullable) and bare != without_names(self._of_now):
            return lambda data: self._codec.encode(self._codec.decode_nullable(data))
        if self._compat is not None:
            compat = self._compat
            return lambda data: self._codec.encode(compat.decode(data))
        return self._codec.current_key

    def _of_json(self, data: bytes, headers: Headers) -> bytes:
        assert self._from_json is not None
        values = self._from_json(_payload(data) if self._has_schema else data)
        if None in values and "empty" in headers:
            hollow = column_names(headers["empty"])
            named = zip(self._names, values, strict=True)
            values = [b"" if v is None and name in hollow else v for name, v in named]
        if None in values[: self._codec.partition_columns]:
            raise Malformed("a key without partition key")
        return self._codec.encode(values)


def _payload(data: bytes) -> bytes:
    """Return the payload of a key in JSON, without its schema. Raises Malformed."""
    try:
        return json.dumps(json.loads(data)["payload"]).encode()
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Malformed(f"a key without schema and payload: {error}") from None
