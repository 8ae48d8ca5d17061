"""A Log in memory, and a wrapper that makes the calls of any Log fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas, Headers, Log


class MemoryRecord(NamedTuple):
    """A record that was appended."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class MemoryLog:
    """A Log whose records are in `appended`, in order, and once they are flushed in `acknowledged` too.

    `counts` are the partitions of its topics, which a test may set; `configs`, `factors` and `declared` are what
    `create` and `declare` were given last. A topic that was never created takes records of any partition.
    """

    def __init__(self, counts: Mapping[str, int] | None = None, keeps_schemas: bool = False) -> None:
        self.keeps_schemas = keeps_schemas
        self.largest = 1 << 30
        self.counts = dict(counts or {})
        self.configs: dict[str, dict[str, str]] = {}
        self.factors: dict[str, int | None] = {}
        self.declared: dict[str, DeclaredSchemas] = {}
        self.appended: list[MemoryRecord] = []
        self.waiting: list[MemoryRecord] = []
        self.acknowledged: list[MemoryRecord] = []
        self.flushes = 0
        self.sends = 0

    def records(self, topic: str) -> list[MemoryRecord]:
        """Return the records of a topic, flushed or not: readers of a real one may see both."""
        return [record for record in self.appended if record.topic == topic]

    def drop(self) -> None:
        """Forget records that wait for a flush, as a Log does after a failed flush."""
        self.waiting.clear()

    def cluster(self) -> str:
        return "memory"

    def topics(self) -> dict[str, int]:
        return dict(self.counts)

    def create(
        self, topic: str, partitions: int, config: Mapping[str, str], replication_factor: int | None = None
    ) -> int:
        if topic not in self.counts:
            self.counts[topic] = partitions
            self.configs[topic] = dict(config)
            self.factors[topic] = replication_factor
        return self.counts[topic]

    def declare(self, topic: str, schemas: DeclaredSchemas) -> None:
        self.declared[topic] = schemas

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        if not 0 <= partition < self.counts.get(topic, partition + 1):
            raise AssertionError(f"topic {topic} has no partition {partition}")
        record = MemoryRecord(topic, partition, key, value, headers)
        size = len(key or b"") + len(value or b"") + sum(len(name) + len(value) for name, value in headers)
        if size > self.largest:
            raise HelenusError(Kind.RECORD_TOO_LARGE, f"a record of {size} bytes", topic)
        self.appended.append(record)
        self.waiting.append(record)

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        for key, value in records:
            self.append(topic, partition, key, value)

    def send_lingering(self) -> None:
        """Count it; nothing is sent."""
        self.sends += 1

    def flush(self, timeout: float) -> None:  # noqa: ARG002
        self.flushes += 1
        self.acknowledged += self.waiting
        self.waiting.clear()

    def keep_short(self, timeout: float) -> None:
        """There are no transactions."""

    def hurry(self, seconds: float) -> None:
        """It never waits."""

    def close(self) -> None:
        self.drop()


@dataclass
class _Fault:
    error: Exception
    times: int | None
    topics: frozenset[str]

    def meets(self, topics: Iterable[str]) -> bool:
        """Whether it strikes now; if its number is limited, it decreases."""
        if self.times == 0 or (self.topics and self.topics.isdisjoint(topics)):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FaultyLog:
    """Passes its calls on to another Log, except those that a test makes fail:

        log.fail("append", HelenusError(Kind.APPEND_FAILED, "full"))  # the next one
        log.fail("create", TopicError(...), times=None, topics=["data-ks.t"])  # each of this topic

    A flush that fails drops what a MemoryLog holds; another Log is flushed, and says that it was not.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self._faults: dict[str, list[_Fault]] = {}
        self._unflushed: set[str] = set()

    def fail(self, call: str, error: Exception, times: int | None = 1, topics: Iterable[str] = ()) -> None:
        """Let the next `times` calls of a method raise an error: with `topics` those that concern one of them, with
        None every call until `mend`.
        """
        self._faults.setdefault(call, []).append(_Fault(error, times, frozenset(topics)))

    def mend(self) -> None:
        """No call fails any more."""
        self._faults.clear()

    @property
    def keeps_schemas(self) -> bool:
        return self.log.keeps_schemas

    @property
    def largest(self) -> int:
        return self.log.largest

    def cluster(self) -> str:
        self._meet("cluster")
        return self.log.cluster()

    def topics(self) -> dict[str, int]:
        self._meet("topics")
        return self.log.topics()

    def create(
        self, topic: str, partitions: int, config: Mapping[str, str], replication_factor: int | None = None
    ) -> int:
        self._meet("create", topic)
        return self.log.create(topic, partitions, config, replication_factor)

    def declare(self, topic: str, schemas: DeclaredSchemas) -> None:
        self._meet("declare", topic)
        self.log.declare(topic, schemas)

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        self._meet("append", topic)
        self.log.append(topic, partition, key, value, headers)
        self._unflushed.add(topic)

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        for key, value in records:
            self.append(topic, partition, key, value)

    def flush(self, timeout: float) -> None:
        unflushed, self._unflushed = self._unflushed, set()
        try:
            self._meet("flush", *unflushed)
        except Exception:
            if isinstance(self.log, MemoryLog):
                self.log.drop()
            else:
                self.log.flush(timeout)
            raise
        self.log.flush(timeout)

    def send_lingering(self) -> None:
        self.log.send_lingering()

    def keep_short(self, timeout: float) -> None:
        self.log.keep_short(timeout)

    def hurry(self, seconds: float) -> None:
        self.log.hurry(seconds)

    def close(self) -> None:
        self.log.close()

    def _meet(self, call: str, *topics: str) -> None:
        for fault in self._faults.get(call, ()):
            if fault.meets(topics):
                raise fault.error
