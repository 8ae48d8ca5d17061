"""The shape `row`: key, full row, null for a delete, in the Confluent wire format.

Wire format: a zero byte, the schema's id as 4 bytes, Avro. The key's Avro is the event's, byte for byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from helenus_connector.registry import Registry
from helenus_connector.reread import Image
from helenus_schemas import avro
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.key import KeyCodec
from helenus_schemas.table import Table
from helenus_schemas.transcode import Malformed, encoder, nullable
from helenus_sinks.log import Headers

_FRAME = struct.Struct(">bI")


@dataclass(frozen=True, slots=True)
class Record:
    """A record for the data topic; `value` is None for a delete."""

    key: bytes
    value: bytes | None
    headers: Headers


class RowShape:
    """Makes the records of one version of a table. Registers its schemas: raises as `Registry.register`.

    Raises HelenusError TABLE_UNSUPPORTED for a column without Avro form, by name.
    """

    def __init__(self, table: Table, topic: str, registry: Registry) -> None:
        key, value = schemas(table)
        self._key_frame = _FRAME.pack(0, registry.register(f"{topic}-key", key))
        self._value_frame = _FRAME.pack(0, registry.register(f"{topic}-value", value))
        self._encoders = [nullable(encoder(c.type)) for c in avro.value_columns(table)]
        self._schema_id = table.schema_id.encode()
        self._table = table

    def row(self, key: bytes, image: Image | None, write_time: int | None) -> Record:
        """The record of a row, or of its absence. `key` is the event's Avro; `write_time` in µs goes to a header."""
        headers = [("schema_id", self._schema_id)]
        if write_time is not None:
            headers.append(("writetime", str(write_time).encode()))
        return Record(self._key_frame + key, None if image is None else self.value(image), headers)

    def marker(self, key: bytes, image: Image | None, write_time: int | None) -> Record:
        """The record that says: all rows of this partition up to here are gone; those that live follow."""
        record = self.row(key, image, write_time)
        return Record(record.key, record.value, [*record.headers, ("scope", b"partition")])

    def value(self, image: Image) -> bytes:
        """A row's value. Raises HelenusError POISON_EVENT if its bytes are no value of their type."""
        try:
            return self._value_frame + b"".join(
                [encode(value) for encode, value in zip(self._encoders, image.values, strict=True)]
            )
        except (Malformed, IndexError) as error:
            raise HelenusError(Kind.POISON_EVENT, f"a value has no Avro form: {error}", self._table.full_name) from None


def schemas(table: Table) -> tuple[str, str]:
    """The Avro schemas of a table's key and value, as text. Raises HelenusError TABLE_UNSUPPORTED."""
    try:
        KeyCodec(table)
        return avro.text(avro.key_schema(table)), avro.text(avro.value_schema(table))
    except ValueError as error:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, str(error), table.full_name) from None
