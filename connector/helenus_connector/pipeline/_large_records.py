"""Records that are too large for their topic, in chunks: what is the same on Kafka and Pulsar."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_connector.pipeline._table_version import TableVersions
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.chunks import HEADER, ChunkedValue
from helenus_sinks.log import Headers, Log

MIN_CHUNK_BYTES = 256
HEAD_BYTES = 512
"""Of a chunk in addition to its key and value: its header, and what a batch has."""
TIMEOUT_S = 60.0


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
        topic = shaped.topic or self._versions.current.topic
        reference = self._append_chunks(log, topic, resolved.partition, key, shaped.key, value, chunk_bytes)
        for smaller, left_out in shape.smaller(shaped.image):
            record = shaped.make(smaller)
            try:
                append(record._replace(headers=[*record.headers, left_out, (HEADER, reference.encode())]))
            except HelenusError as error:
                if error.kind is not Kind.RECORD_TOO_LARGE:
                    raise
            else:
                return True
        return False

    @abstractmethod
    def _chunk_bytes(self, log: Log, key: bytes) -> int:
        """Return how many bytes of a value a chunk may have."""

    @abstractmethod
    def _append_chunks(
        self, log: Log, topic: str, partition: int, key: bytes, event_key: bytes, value: bytes, chunk_bytes: int
    ) -> ChunkedValue:
        """Append the chunks of a value, and wait until the brokers have them. Returns where they are."""
