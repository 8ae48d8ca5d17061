"""The streaming source: events topics as a Spark Python Data Source.

An offset is `{"tick": n, "topics": {topic: {partition: next offset}}}`. The tick moves when keys are due to be read
again although no event came, and once in a while on a quiet topic, because Spark ends workers that idle for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from confluent_kafka import KafkaException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from helenus_connector.kafka_events import Offsets, Planner, Range, read
from helenus_connector.plan import Plan
from helenus_connector.settle import saved_at
from helenus_schemas.errors import HelenusError, Kind

COLUMNS = "topic string, partition int, offset long, timestamp long, key binary, value binary"
"""A record of an events topic.

Offset -1: no record; it tells the task that the partition is its own in this batch, and as timestamp how many events of
the batch the topic no longer has.
"""
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
_POLL_S = 0.02
_WAIT_S = 0.4
_KEEP_WARM_S = 25.0


class EventsSource(DataSource):
    """`spark.readStream.format("helenus-events")`; the option `plan` is a saved `Plan`'s path."""

    @classmethod
    def name(cls) -> str:
        return "helenus-events"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: object) -> EventsReader:  # noqa: ARG002, N802
        return EventsReader(Plan.load(self.options["plan"]))


class _Ranges(InputPartition):
    """The work of one task: ranges of one connector's partitions."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = tuple(ranges)


class EventsReader(DataSourceStreamReader):
    """Plans batches in the driver's planner process, reads ranges in the workers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._planner: Planner | None = None
        self._partitions: dict[str, int] = {}
        self._first: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._away: str | None = None
        self._last_batch = time.time()

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay in the process that made them.
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"tick": 0, "topics": self._broker().earliest(self._known())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.plan.max_batch_size)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """What a batch from `start` may read. Waits a little for events, so that an idle query hardly spins."""
        until = time.monotonic() + _WAIT_S
        while True:
            now = time.time()
            try:
                latest = self._broker().latest(self._known())
            except KafkaException as error:
                # A broker that is away makes no batch. A client that has met one is let go: it may go by the leaders
                # of before the broker's restart for ever.
                self._broker_is(str(error.args[0].str()))
                self.stop()
                time.sleep(1)
                return start
            self._broker_is(None)
            refuse_other_partitions(start["topics"], latest)
            tick = start["tick"] + (now >= self._due())
            end = {"tick": tick, "topics": limited(start["topics"], latest, limit)}
            if end != start:
                self._last_batch = now
                return end
            if isinstance(limit, ReadAllAvailable) or time.monotonic() > until:
                return start
            time.sleep(_POLL_S)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = start["topics"]
        everything = start["tick"] != end["tick"]
        # The first batch may be planned again, when an attempt at it failed.
        if self._first in (None, (start, end)):
            self._first = (start, end)
            begin = self._step_back(begin)
            everything = True
        tasks: list[InputPartition] = []
        for topic, connector in self.plan.connectors.items():
            ends = end["topics"].get(topic, {})
            ranges = [
                Range(topic, int(p), begin.get(topic, {}).get(p, 0), last)
                for p, last in sorted(ends.items(), key=lambda item: int(item[0]))
            ]
            ranges = [r for r in ranges if everything or r.start < r.end]
            shares = min(connector.tasks_max, len(ranges))
            tasks.extend(_Ranges(ranges[i::shares]) for i in range(shares))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Ranges)
        owned = partition.ranges
        header: list[list[object]] = [
            [r.topic for r in owned],
            [r.partition for r in owned],
            [-1] * len(owned),
            [0] * len(owned),
        ]
        yield _batch([*header, [None] * len(owned), [None] * len(owned)])
        for place in owned:
            lost: list[int] = []
            for chunk in read(
                self.plan.consumer, place, self.plan.connectors[place.topic].errors_data_loss, lost.append
            ):
                yield _batch(
                    [
                        [place.topic] * len(chunk),
                        [place.partition] * len(chunk),
                        [m.offset() for m in chunk],
                        [m.timestamp()[1] for m in chunk],
                        [m.key() for m in chunk],
                        [m.value() for m in chunk],
                    ]
                )
            if sum(lost):
                yield _batch([[place.topic], [place.partition], [-1], [sum(lost)], [None], [None]])

    def commit(self, end: dict[str, Any]) -> None:
        try:
            self._broker().commit(end["topics"])
        except KafkaException as error:
            structlog.get_logger().warning("source.commit_failed", error=str(error.args[0].str()))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _broker_is(self, away: str | None) -> None:
        """Tell, once each time, that the broker is away or back."""
        if away is not None and self._away is None:
            structlog.get_logger().warning("source.broker_away", error=away)
        elif away is None and self._away is not None:
            structlog.get_logger().info("source.broker_back")
        self._away = away

    def _broker(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.plan.consumer, self.plan.group)
        return self._planner

    def _known(self) -> dict[str, int]:
        missing = [t for t in self.plan.connectors if not self._partitions.get(t)]
        if missing:
            self._partitions.update(self._broker().partitions(missing))
        return {t: n for t, n in self._partitions.items() if n}

    def _due(self) -> float:
        """When to make a batch without events, s since the epoch."""
        warm = self._last_batch + _KEEP_WARM_S
        try:
            return min(warm, float(Path(self.plan.due_file).read_text() or warm))
        except FileNotFoundError:
            return warm

    def _step_back(self, begin: Offsets) -> Offsets:
        """The first batch of a process reads again what may have been pending when the last one ended."""
        ended = int((saved_at(self.plan.pending_file) or time.time()) * 1000)
        earlier: Offsets = {topic: dict(offsets) for topic, offsets in begin.items()}
        for topic, connector in self.plan.connectors.items():
            since = ended - connector.settle_replay_ms
            found = self._broker().since({topic: self._known().get(topic, 0)}, since).get(topic, {})
            for partition, offset in found.items():
                held = earlier.get(topic, {}).get(partition)
                if held is not None and 0 <= offset < held:
                    earlier[topic][partition] = offset
        return earlier


def refuse_other_partitions(start: Offsets, latest: Offsets) -> None:
    """Raise HelenusError PARTITIONS_CHANGED if a topic has not the partitions it had: order per key would be lost."""
    for topic, offsets in start.items():
        if topic in latest and offsets.keys() != latest[topic].keys():
            what = f"{topic} has {len(latest[topic])} partitions, and had {len(offsets)}"
            raise HelenusError(Kind.PARTITIONS_CHANGED, what)


def limited(start: Offsets, latest: Offsets, limit: ReadLimit) -> Offsets:
    """Where a batch from `start` ends: at `latest`, or before it so that no more than the limit's rows are read.

    Each partition gets a share of the limit by its backlog, at least one row. No offset ever moves back.
    """
    backlog = {(t, p): last - start.get(t, {}).get(p, 0) for t, ps in latest.items() for p, last in ps.items()}
    total = sum(n for n in backlog.values() if n > 0)
    share = 1.0 if not isinstance(limit, ReadMaxRows) or total <= limit.max_rows else limit.max_rows / total
    end: Offsets = {topic: dict(offsets) for topic, offsets in start.items()}
    for (topic, partition), rows in backlog.items():
        take = rows if share == 1.0 else max(1, int(rows * share))
        # A topic that is new is taken in with all its partitions, also those without events.
        end.setdefault(topic, {})[partition] = start.get(topic, {}).get(partition, 0) + (take if rows > 0 else 0)
    return end


def _batch(columns: Sequence[Sequence[object]]) -> pa.RecordBatch:
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
