"""The primary key of a table as event key: CQL bytes of its columns to Avro and back."""

from __future__ import annotations

from collections.abc import Sequence

from helenus_schemas.table import Table
from helenus_schemas.transcode import Malformed, decoder, encoder, nullable

Key = tuple["bytes | None", ...]
"""CQL bytes of the primary key's columns, in order; None from the first clustering column on for a whole partition."""


class KeyCodec:
    """Encodes and decodes the keys of one table. Raises ValueError for a key type without Avro form."""

    def __init__(self, table: Table) -> None:
        self.partition_columns = len(table.partition_key)
        types = [c.type for c in table.primary_key]
        self._encoders = [encoder(t) for t in types[: self.partition_columns]]
        self._nullable = [nullable(encoder(t)) for t in types[self.partition_columns :]]
        self._decoders = [decoder(t) for t in types]

    def encode(self, key: Sequence[bytes | None]) -> bytes:
        """The key as an Avro record without header: partition columns plain, clustering columns nullable."""
        n = self.partition_columns
        parts = [encode(value or b"") for encode, value in zip(self._encoders, key[:n], strict=True)]
        parts += [encode(value) for encode, value in zip(self._nullable, key[n:], strict=True)]
        return b"".join(parts)

    def decode(self, data: bytes) -> Key:
        """The key of an event. Raises Malformed if the bytes are no key of this table."""
        values: list[bytes | None] = []
        at = 0
        try:
            for i, decode in enumerate(self._decoders):
                if i >= self.partition_columns:
                    branch = data[at]
                    at += 1
                    if branch not in (0, 2):
                        raise Malformed(f"union branch {branch}")
                    if branch == 0:
                        values.append(None)
                        continue
                value, at = decode(data, at)
                values.append(value)
        except (IndexError, ValueError) as error:
            raise Malformed(f"not a key of this table: {error}") from None
        if at != len(data):
            raise Malformed(f"not a key of this table: {len(data) - at} bytes too many")
        return tuple(values)
