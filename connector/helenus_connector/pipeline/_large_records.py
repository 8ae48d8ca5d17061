"""Records that are too large for their topic, in chunks: what is the same on Kafka and Pulsar."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_connector.pipeline._table_version import TableVersions
from helenus_sinks.chunks import HEADER, ChunkedValue, MessageChunkReference
from helenus_sinks.log import Headers, Log

MIN_CHUNK_BYTES = 256
HEAD_BYTES = 512
"""Of a chunk in addition to its key and value: its header, and what a batch has."""
TIMEOUT_S = 60.0
_MOST = 2**63 - 1
_LAST_ID = f"{_MOST}:{_MOST}"
_LONGEST = MessageChunkReference("0" * 32, _MOST, _MOST, "0" * 64, _MOST, _LAST_ID, _LAST_ID)
_REFERENCE_BYTES = len(HEADER) + len(_LONGEST.encode())
"""Of the header `chunks` at most: where they are is known once they are written."""


class LargeRecords(ABC):
    """Writes the records of one table's stage where a record may have chunks. Raises HelenusError as the Log."""

    def __init__(self, settings: ConnectorSettings, versions: TableVersions) -> None:
        self._settings = settings
        self._versions = versions

    @abstractmethod
    def begin_batch(self) -> None:
        """Begin a batch, or the next attempt at it."""

    @abstractmethod
    def end_batch(self) -> None:
        """End a batch whose records are acknowledged, or committed."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def append(
        self, log: Log, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        """Append a record without chunks, as `Log.append`, and delete the chunks that its row had."""

    @abstractmethod
    def delete_scope(self, log: Log, topic: str, resolved: ResolvedKey) -> None:
        """Delete the chunks of the rows in a delete marker's scope: those that live follow."""

    def append_large(
        self, log: Log, resolved: ResolvedKey, shaped: ShapedRecord, shape: Shape, append: Callable[[Record], None]
    ) -> bool:
        """Write a record that is too large in chunks, if it can be: `append` a smaller record after them. Returns False
        if it can't: the value is larger than allowed, or no smaller record fits, or the key is the large part.
        """
        key, value = shaped.record.key, shaped.record.value
        if shaped.image is None or key is None or value is None:
            return False
        chunk_bytes = self._chunk_bytes(log, key)
        if chunk_bytes < MIN_CHUNK_BYTES or len(value) > self._settings.errors_large_record_max_bytes:
            return False
        # The chunks take the place of those that the row's last record refers to, so first look what follows them.
        record = _find_fitting(shaped, shape, self._record_bytes(log) - _REFERENCE_BYTES)
        if record is None:
            return False
        topic = shaped.topic or self._versions.current.topic
        reference = self._append_chunks(log, topic, resolved.partition, key, shaped.key, value, chunk_bytes)
        append(record._replace(headers=[*record.headers, (HEADER, reference.encode())]))
        return True

    @abstractmethod
    def _record_bytes(self, log: Log) -> int:
        """Return how many bytes a record may have: key, value and headers."""

    @abstractmethod
    def _chunk_bytes(self, log: Log, key: bytes) -> int:
        """Return how many bytes of a value a chunk may have."""

    @abstractmethod
    def _append_chunks(
        self, log: Log, topic: str, partition: int, key: bytes, event_key: bytes, value: bytes, chunk_bytes: int
    ) -> ChunkedValue:
        """Append the chunks of a value, and wait until the brokers have them. Returns where they are."""


def _find_fitting(shaped: ShapedRecord, shape: Shape, max_bytes: int) -> Record | None:
    """Return the first smaller record of at most so many bytes, with the header that says what is left out."""
    assert shaped.image is not None
    for smaller, left_out in shape.smaller(shaped.image):
        record = shaped.make(smaller)
        record = record._replace(headers=[*record.headers, left_out])
        header_bytes = sum(len(name) + len(content or b"") for name, content in record.headers)
        if len(record.key or b"") + len(record.value or b"") + header_bytes <= max_bytes:
            return record
    return None
