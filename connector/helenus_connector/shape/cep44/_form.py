"""Encode keys and payloads of the shape `cep44`; and leave out of rows what a payload has no form for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.shape.cep44._key import key_encoder, table_prefix
from helenus_connector.shape.cep44._payload import UnfitValue, column_encoder, encoder
from helenus_connector.shape.encoding.forms import Avro, Form, Json
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table


class AvroRows(Avro):
    """Keys, ours or the Sidecar's; and payloads without a frame."""

    def __init__(
        self,
        table: Table,
        settings: ConnectorSettings,
        key_frame: bytes,
        truncation: Callable[[], bytes | None] | None,
        nullable: Callable[[str], bytes] | None,
    ) -> None:
        super().__init__(table, settings, key_frame, b"", truncation or (lambda: table_prefix(table)), nullable)
        self._decode = KeyCodec(table).decode
        self._sidecar_key = key_encoder(table) if settings.key_compat == "cep44" else None
        self._encode_key = encoder(table.primary_key)
        self._encode_values = encoder(table.values)
        self._has_values = len(table.values) > 0
        self._null_values = bytes(len(table.values))

    def key(self, key: bytes, values: Key = ()) -> bytes:
        return super().key(key, values) if self._sidecar_key is None else self._sidecar_key(values or self._decode(key))

    def value(self, key: bytes, values: Sequence[bytes | None]) -> bytes:
        return self._encode_key(self._decode(key)) + (self._encode_values(values) if self._has_values else b"")

    def key_only_value(self, key: bytes) -> bytes:
        """The payload that has no more than a key."""
        return self._encode_key(self._decode(key)) + self._null_values


class JsonRows(Json):
    """Keys, ours or the Sidecar's; and whole rows as objects."""

    def __init__(self, table: Table, settings: ConnectorSettings) -> None:
        super().__init__(table, settings, has_key_columns=True, has_truncations=True)
        self._sidecar_key = key_encoder(table) if settings.key_compat == "cep44" else None
        self._table_key = table_prefix(table)
        self._null_values = (None,) * len(table.values)

    def key(self, key: bytes, values: Key = ()) -> bytes:
        return (
            super().key(key, values)
            if self._sidecar_key is None
            else self._sidecar_key(values or self._codec.decode(key))
        )

    def truncation(self) -> bytes | None:
        return super().truncation() if self._sidecar_key is None else self._table_key

    def key_only_value(self, key: bytes) -> bytes:
        """The payload that has no more than a key."""
        return self.value(key, self._null_values or self._codec.decode(key))


class PayloadRows(RowShape):
    """Makes rows without the values that the payload's Avro has no form for, such as a decimal of too many digits."""

    def __init__(
        self, table: Table, settings: ConnectorSettings, registry: SchemaIds | None, topic: str, form: Form
    ) -> None:
        super().__init__(table, settings, registry, topic, form)
        self._encoders = [column_encoder(column) for column in table.values] if settings.is_avro else []

    def _without_unpublishable(self, image: Image) -> tuple[Image, list[str]]:
        image, left_out = super()._without_unpublishable(image)
        values = list(image.values)
        for index, encode in enumerate(self._encoders):
            try:
                encode(values[index])
            except UnfitValue:
                values[index] = None
                left_out.append(self._names[index])
        return Image(tuple(values), image.write_time), left_out
