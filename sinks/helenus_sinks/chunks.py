"""Records that are larger than their topic takes, in chunks: their form, which writers and readers share.

The topic `chunks-<topic>` has the bytes of the whole value, in pieces; the topic itself has a smaller record, without
the largest columns, whose header `chunks` says where the pieces are, on Kafka by offsets, on Pulsar by message ids:

    {"id": 32 hex digits, "count": 3, "size": 2500000, "sha256": 64 hex digits, "partition": 0, "offset": 7, "last": 9}
    {"id": 32 hex digits, "count": 3, "size": 2500000, "sha256": 64 hex digits, "partition": 0, "first": "5:7",
     "last": "5:9"}

The pieces are in that partition of the topic of chunks, between those two, in order, perhaps with other records between
them. Each has the header `chunk` = `<id>:<number>`. On Kafka its key is that of the record with the number behind it
(u32, big-endian): so compaction keeps all pieces of a record, and those of the next one take their place. On Pulsar it
has none: that topic is not compacted. `sha256` and `size` are those of the whole value, which is exactly what the topic
would have had: on Kafka with its schema's id.

Whoever knows nothing of chunks has a record that is right as far as it goes: the header `left_out` names the columns
that are null.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

HEADER = "chunks"
"""The header of a record whose value is in chunks."""
CHUNK_HEADER = "chunk"
"""The header of a chunk."""
LEFT_OUT = "left_out"
MAX_BYTES = 64 * 1024 * 1024
"""Largest value that is written, and read, in chunks unless configured: a mutation has at most 16 MiB by default, a row
can be of several.
"""
_MAX_HEADER_BYTES = 1000
_MAX_NUMBER = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_MAX_OTHERS = 1000
"""Offsets within those of a value that are not its chunks: of a writer that was killed, of transactions' ends."""
_NUMBER = struct.Struct(">I")
_MESSAGE_ID = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")
_Reference = TypeVar("_Reference", bound="ChunkedValue")


class BadChunks(ValueError):
    """What says that it is of chunks, and can't be: it comes from no writer of ours, or was damaged."""


@dataclass(frozen=True, slots=True)
class ChunkedValue:
    """A value that is in chunks, and the partition that has them. `size` (bytes) and `sha256` are of the whole value.
    Where in the partition they are, subclasses say: each is the header `chunks` of a record.
    """

    id: str
    count: int
    size: int
    sha256: str
    partition: int

    def encode(self) -> bytes:
        """Return the header."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def parse(cls: type[_Reference], header: bytes, max_bytes: int = MAX_BYTES) -> _Reference:
        """Read the header of a record. Raises BadChunks, also for a value of more than `max_bytes`: nothing of it is
        read then.
        """
        try:
            if len(header) > _MAX_HEADER_BYTES:
                raise ValueError(f"{len(header)} bytes")
            content, names = json.loads(header), {field.name for field in fields(cls)}
            if not isinstance(content, dict) or content.keys() != names:
                raise ValueError(f"not the fields {', '.join(sorted(names))}")
            reference = cls(**content)
            reference._check()
        except (ValueError, RecursionError) as error:
            raise BadChunks(f"the header {HEADER}: {error}") from None
        if reference.size > max_bytes:
            raise BadChunks(f"a value of {reference.size} bytes, where {max_bytes} are allowed")
        return reference

    def _check(self) -> None:
        for digits, length in ((self.id, 32), (self.sha256, 64)):
            if not isinstance(digits, str) or not re.fullmatch(f"[0-9a-f]{{{length}}}", digits):
                raise ValueError(f"not {length} hex digits")
        _check_numbers(self.count, self.size, self.partition)
        if self.partition > _MAX_PARTITION:
            raise ValueError(f"partition {self.partition}")
        if not 1 <= self.count <= self.size:
            raise ValueError(f"{self.count} chunks of {self.size} bytes")


@dataclass(frozen=True, slots=True)
class ChunkReference(ChunkedValue):
    """Where the chunks of a value are on Kafka: from one offset to another one."""

    offset: int
    last: int

    def _check(self) -> None:
        ChunkedValue._check(self)  # slots: `super()` would be that of the class before it had them
        _check_numbers(self.offset, self.last)
        if not self.count - 1 <= self.last - self.offset < 2 * self.count + _MAX_OTHERS:
            raise ValueError(f"{self.count} chunks in the offsets {self.offset} to {self.last}")


@dataclass(frozen=True, slots=True)
class MessageChunkReference(ChunkedValue):
    """Where the chunks of a value are on Pulsar: from one message id to another one, each `LEDGER:ENTRY`."""

    first: str
    last: str

    @property
    def message_ids(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return ledger and entry of the first and of the last chunk."""
        return _parse_message_id(self.first), _parse_message_id(self.last)

    @property
    def most_messages(self) -> int:
        """Return how many messages a reader reads for the chunks, with others that may be between them."""
        return 2 * self.count + _MAX_OTHERS

    def _check(self) -> None:
        ChunkedValue._check(self)
        first, last = self.message_ids
        if first > last:
            raise ValueError(f"chunks in the messages {self.first} to {self.last}")


def _check_numbers(*numbers: int) -> None:
    if any(type(number) is not int or not 0 <= number <= _MAX_NUMBER for number in numbers):
        raise ValueError("a number is none")


def _parse_message_id(text: str) -> tuple[int, int]:
    matched = _MESSAGE_ID.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise ValueError("a message id is none")
    ledger, entry = int(matched[1]), int(matched[2])
    _check_numbers(ledger, entry)
    return ledger, entry


class ChunkJoiner:
    """Joins the chunks of one value, which `add` takes in the order of their offsets. It holds no more than the bytes
    that the reference says.
    """

    def __init__(self, reference: ChunkedValue) -> None:
        self._reference = reference
        self._chunks: list[bytes] = []
        self._bytes = 0

    @property
    def is_complete(self) -> bool:
        """Return whether all chunks are there."""
        return len(self._chunks) == self._reference.count

    def add(self, header: bytes | None, value: bytes | None) -> None:
        """Take a record of the topic of chunks, by its header `chunk`; what is not the next chunk is left out. Raises
        BadChunks if the chunks are more than the value.
        """
        if value is None or header != chunk_header(self._reference.id, len(self._chunks)):
            return
        self._bytes += len(value)
        if self._bytes > self._reference.size:
            raise BadChunks(f"chunks of more than {self._reference.size} bytes")
        self._chunks.append(value)

    def value(self) -> bytes:
        """Return the whole value. Raises BadChunks if it is not the one that was written."""
        value = b"".join(self._chunks)
        if len(value) != self._reference.size or hashlib.sha256(value).hexdigest() != self._reference.sha256:
            raise BadChunks("the chunks are not those of the value that was written: another length, or SHA-256")
        return value


def chunk_topic(topic: str) -> str:
    """Return the topic for the chunks of a topic's records."""
    return f"chunks-{topic}"


def chunk_header(chunk_id: str, number: int) -> bytes:
    """Return the header of a chunk; its number begins with 0."""
    return b"%s:%d" % (chunk_id.encode(), number)


def chunk_key(key: bytes, number: int) -> bytes:
    """Return the key of a chunk of the record with this key."""
    return key + _NUMBER.pack(number)


def split_value(value: bytes, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the chunks of a value."""
    return (value[start : start + chunk_bytes] for start in range(0, len(value), chunk_bytes))


def whole_headers(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers that the whole record would have had: without those of the smaller one in its place."""
    names = [name for name, _ in headers]
    own = {names.index(HEADER)} if HEADER in names else set()
    if LEFT_OUT in names:
        own.add(len(names) - 1 - names[::-1].index(LEFT_OUT))
    return [header for index, header in enumerate(headers) if index not in own]
