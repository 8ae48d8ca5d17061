"""The frame in front of Avro, which names its schema: Confluent's wire format.

0, the id as 4 bytes      every deserializer of Confluent's format
1, the GUID as 16 bytes   those of Confluent Platform 8 and later
"""

from __future__ import annotations

import struct
import uuid

from helenus_connector.schema_store.contract import SchemaId

_ID_FRAME = struct.Struct(">bI")
_GUID_FRAME = b"\1"
_GUID_BYTES = 16


def frame(schema_id: SchemaId) -> bytes:
    """Return the frame that names a schema."""
    return _GUID_FRAME + schema_id.bytes if isinstance(schema_id, uuid.UUID) else _ID_FRAME.pack(0, schema_id)


def split_frame(data: bytes) -> tuple[SchemaId, bytes] | None:
    """Return what names the schema of a key or value, and its Avro; None if it has no frame."""
    if data[:1] == _GUID_FRAME and len(data) > _GUID_BYTES:
        return uuid.UUID(bytes=data[1 : _GUID_BYTES + 1]), data[_GUID_BYTES + 1 :]
    if data[:1] == b"\0" and len(data) >= _ID_FRAME.size:
        return int.from_bytes(data[1 : _ID_FRAME.size], "big"), data[_ID_FRAME.size :]
    return None
