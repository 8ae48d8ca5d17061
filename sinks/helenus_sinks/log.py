"""The interface that is written through: a Log is a message broker's topics, on Kafka or Pulsar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from helenus_schemas.errors import HelenusError, Kind

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class DeclaredSchemas:
    """The Avro schemas of a topic's records, as JSON. `kind` is the records' format. Without `key`, keys are text."""

    key: str | None
    value: str
    kind: Literal["AVRO", "JSON"] = "AVRO"
    value_properties: tuple[tuple[str, str], ...] = ()


class TopicError(HelenusError):
    """An error of one topic alone: the Log may still take records of other topics."""

    def __init__(self, kind: Kind, message: str, where: str = "", topic: str = "", advice: str = "") -> None:
        super().__init__(kind, message, where, advice)
        self.topic = topic


class Log(Protocol):
    """Appends records to topics of a message broker. Delivery is at least once.

    - `append` puts a record into a queue; it may wait for room. A record is durable only when a later `flush` returns.
    - Records that one Log appends to a partition keep their order, also when they are sent again.
    - If `flush` raises, at least one record since the last successful flush is not acknowledged. The Log has dropped
      its queue: the caller appends everything since that flush again. Some records may arrive twice.
    - One thread uses a Log at a time.
    - `create`, `declare`, `append` and `flush` raise a TopicError if the broker refuses a single topic.
    """

    keeps_schemas: bool
    """Whether the broker keeps topics' schemas, set by `declare`; else each record has its schema's id."""

    @property
    def largest(self) -> int:
        """Return bytes of the largest record that is taken."""
        ...

    def cluster(self) -> str:
        """Return what identifies the cluster. Raises as `create`."""
        ...

    def topics(self) -> dict[str, int]:
        """Return how many partitions each topic has. Raises as `create`."""
        ...

    def create(
        self, topic: str, partitions: int, config: Mapping[str, str], replication_factor: int | None = None
    ) -> int:
        """Create the topic if it is missing; return the number of partitions it has. `replication_factor` is on Kafka
        how many brokers have it: -1 for the brokers' default, None for the Log's.

        Raises HelenusError BROKER_UNREACHABLE or BROKER_REFUSED.
        """
        ...

    def declare(self, topic: str, schemas: DeclaredSchemas) -> None:
        """Set the schemas of the topic's next records. Does nothing if the broker keeps no schemas.

        Raises as `create`, and REGISTRY_REFUSED if they are incompatible with the topic's.
        """
        ...

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Put a record into the queue; a value of None is a tombstone.

        Raises HelenusError APPEND_FAILED if there is no room for a long time, RECORD_TOO_LARGE (this record is left
        out, others are not affected), or BROKER_REFUSED.
        """
        ...

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Append keys and values, in this order; cheaper than one by one. If it raises, some may be in the queue."""
        ...

    def send_lingering(self) -> None:
        """Send what is appended without waiting for more to send with it, unless it is to linger by an operator's own
        setting. Called when nothing follows for the moment; takes milliseconds at most.

        Raises as `append`.
        """
        ...

    def flush(self, timeout: float) -> None:
        """Wait until all appended records are acknowledged.

        Raises APPEND_FAILED: no acknowledgement came for `timeout` seconds. TOPIC_MISSING: a topic was deleted.
        RECORD_TOO_LARGE: the topic takes less than `append` did; from now on `append` raises for that record.
        """
        ...

    def keep_short(self, timeout: float) -> None:
        """Flush, if what was appended since the last flush is in a transaction that has been open for long.

        Raises as `flush`. Call it between records that take long to make.
        """
        ...

    def hurry(self, seconds: float) -> None:
        """End all waiting within `seconds` from now, also in later calls: for a shutdown.

        A signal handler may call it while the Log is used.
        """
        ...

    def close(self) -> None:
        """Drop records that were not flushed, and close all connections."""
        ...
