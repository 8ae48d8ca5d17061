"""A segment's header: its version, and how its sections are compressed or encrypted. See `segment` for its layout."""

from __future__ import annotations

import json
import struct
from typing import NamedTuple
from zlib import crc32

from helenus_agent.commitlog._compression import Decompress, decompress
from helenus_schemas.errors import HelenusError, Kind

VERSIONS = (6, 7, 8, 9)
"""Versions that are read: of Cassandra 3.11; 4.x, or 5.0 and 6.0 in a mode compatible with it; 5.0; 6.0."""


class Corrupt(Exception):
    """Bytes that are not in the format, or in a form of it that is not read."""


class Header(NamedTuple):
    """A segment's header: its size, its version, and how to read the blocks after it, None if they are plain."""

    size: int
    version: int
    decompress: Decompress | None


def read_header(data: bytes, version: int, id: int) -> Header | None:
    """Return the header at the start of `data`, None if it isn't (wholly) written. `version` 0: any.

    Raises Corrupt, and HelenusError(CDC_VERSION) for a version that is not read: whoever took such a segment for
    corrupt would report one after the other as lost, and a newer agent reads them all.
    """
    if len(data) < 18:
        return None
    header_version, header_id, size = struct.unpack_from(">iqH", data)
    if header_version == 0 or len(data) < 18 + size:
        return None
    options = data[14 : 14 + size]
    low, high = header_id & 0xFFFFFFFF, header_id >> 32 & 0xFFFFFFFF
    crc = crc32(options, crc32(struct.pack(">iIII", header_version, low, high, size)))
    if crc != struct.unpack_from(">I", data, 14 + size)[0]:
        return None
    if (header_version, header_id) != (version or header_version, id):
        raise Corrupt(f"the header of segment {header_id} of version {header_version}")
    if header_version not in VERSIONS:
        read = f"versions {VERSIONS[0]} to {VERSIONS[-1]}"
        message = f"a commit log of version {header_version}; this agent reads {read}"
        raise HelenusError(Kind.CDC_VERSION, message, f"CommitLog-{header_version}-{id}.log")
    return Header(18 + size, header_version, _block_reader(options))


def _block_reader(options: bytes) -> Decompress | None:
    try:
        options_json = json.loads(options or b"{}")
        compressor = options_json.get("compressionClass")
        encrypted = "encCipher" in options_json or "encKeyAlias" in options_json
    except (ValueError, AttributeError, RecursionError):
        raise Corrupt(f"a header that says {options[:200]!r}") from None
    if encrypted:
        raise Corrupt(
            "it is encrypted, and encrypted segments are not supported: set transparent_data_encryption_options: "
            "enabled: false in cassandra.yaml and restart the node; take what this segment holds from the tables"
        )
    try:
        return decompress(str(compressor)) if compressor else None
    except ValueError as error:
        raise Corrupt(str(error)) from None
