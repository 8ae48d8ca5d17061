"""The Log that is written to: ordered topics of partitions, on Kafka or Pulsar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from helenus_schemas.errors import HelenusError, Kind

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Schemas:
    """The Avro schemas of a topic's records, as JSON. `kind` says the records' form. Without `key`, keys are text."""

    key: str | None
    value: str
    kind: Literal["AVRO", "JSON"] = "AVRO"
    value_properties: tuple[tuple[str, str], ...] = ()


class TopicError(HelenusError):
    """What concerns one topic alone, by its name: a Log that raises it may well take what is for the others."""

    def __init__(self, kind: Kind, what: str, where: str = "", topic: str = "", advice: str = "") -> None:
        super().__init__(kind, what, where, advice)
        self.topic = topic


class Log(Protocol):
    """Where records are appended. Delivery is at least once.

    - `append` hands a record over; it may wait for room. The record is durable only when a later `flush` has returned.
    - Records of one partition that are appended by one Log keep their order, through retries too.
    - `flush` that raises says that at least one record since the last good flush is not acknowledged. The Log has then
      dropped what it still held: the caller appends everything since that flush again. Some may arrive twice.
    - One thread uses a Log at a time.
    - What is refused of one topic is raised as a TopicError by `create`, `declare`, `append` and `flush`.
    """

    keeps_schemas: bool
    """Whether topics know their records' schemas by `declare`; else records name theirs themselves."""

    @property
    def largest(self) -> int:
        """Bytes of the largest record that is taken."""
        ...

    def cluster(self) -> str:
        """What tells this cluster from another. Raises as `create`."""
        ...

    def topics(self) -> dict[str, int]:
        """How many partitions each topic has. Raises as `create`."""
        ...

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        """Make the topic if it is missing; returns the number of partitions it has.

        Raises HelenusError BROKER_UNREACHABLE or BROKER_REFUSED.
        """
        ...

    def declare(self, topic: str, schemas: Schemas) -> None:
        """From now on the topic's records are of these schemas: nothing to a Log that does not keep them.

        Raises as `create`, and REGISTRY_REFUSED if they do not fit those before.
        """
        ...

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Hand a record over; a value of None is a delete.

        Raises HelenusError APPEND_FAILED if there is no room for a long time, RECORD_TOO_LARGE (the record is not
        taken, all others are as before), or BROKER_REFUSED.
        """
        ...

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Append keys and values, in this order and for less than one by one; some may be taken when it raises."""
        ...

    def flush(self, timeout: float) -> None:
        """Wait until all appended records are acknowledged.

        Raises APPEND_FAILED: none was for `timeout` seconds. TOPIC_MISSING: a topic was deleted. RECORD_TOO_LARGE:
        the topic takes less than `append` did; from now on `append` says which record it is.
        """
        ...

    def hurry(self, seconds: float) -> None:
        """From now on, no waiting takes longer than so many seconds more: for who is told to stop.

        A signal handler may call it while the Log is used.
        """
        ...

    def close(self) -> None:
        """Drop what was not flushed and let go of the broker."""
        ...
