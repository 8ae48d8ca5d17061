"""The streaming source of data topics: their records' keys, by place, as a Spark Python Data Source.

An offset is `{"tick": s since the epoch, "topics": {topic: {partition: next offset}}, "ids": {topic: id}}`. The tick is
the batch's time, for whoever goes by it: a repeated batch has the same. It moves with new records, and when a place is
due. As `query.source`, this module imports nothing of ours until it plans or reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

if TYPE_CHECKING:
    import pyarrow as pa

    from helenus_connector.log.events import OffsetRange, Offsets, Planner
    from helenus_connector.state.keys._plan import KeysPlan

COLUMNS = "place string, tick double, said binary"
_MOST = 50_000
_POLL_S = 0.2
_WAIT_S = 0.8
_KEEP_WARM_S = 30.0
_CHECK_S = 10.0


class ReadShare(InputPartition):
    """What a task reads: ranges, and places that are only due."""

    def __init__(self, ranges: Sequence[OffsetRange], tick: float) -> None:
        self.ranges = tuple(ranges)
        self.tick = tick


class RecordsSource(DataSource):
    """`spark.readStream.format("helenus-records")`; the option `plan` is the path of a saved `KeysPlan`."""

    @classmethod
    def name(cls) -> str:
        return "helenus-records"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: object) -> RecordsReader:  # noqa: ARG002, N802
        return RecordsReader(self.options["plan"])


class RecordsReader(DataSourceStreamReader):
    """Plans batches in a process of the driver's host, reads in Spark's workers."""

    def __init__(self, plan_file: str) -> None:
        self._plan_bytes = Path(plan_file).read_bytes()
        self._plan_: KeysPlan | None = None
        self._planners: dict[bool, Planner] = {}  # by whether they are for topics of markers
        self._last = time.time()
        self._checked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan_": None, "_planners": {}}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"tick": 0.0, "topics": {}, "ids": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(_MOST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Where a batch ends. Waits a little for records. Raises HelenusError for a topic that is another by now."""
        from helenus_schemas.errors import HelenusError

        until = time.monotonic() + _WAIT_S
        while True:
            try:
                latest = self._latest()
                self._check(start, latest)
                begin = dict(start["topics"])
                new = {topic: len(ends) for topic, ends in latest.items() if topic not in begin}
                if new:
                    begin.update(self._planner().earliest(new))
                ids = {**start["ids"], **self._planner().ids(list(new))} if new else start["ids"]
                topics = {**begin, **self._limited(begin, latest)}
            except HelenusError:
                self.stop()
                raise
            now = time.time()
            is_due = now >= self._due() or now - self._last > _KEEP_WARM_S
            if topics != start["topics"] or is_due:
                self._last = now
                return {"tick": round(now, 1), "topics": topics, "ids": ids}
            if time.monotonic() > until:
                return start
            time.sleep(_POLL_S)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """All places, each in one share: also those without a record, which may be due."""
        from helenus_connector.log.events import OffsetRange

        places = []
        for topic, ends in end["topics"].items():
            if topic not in self._plan().tables:
                continue
            before = start["topics"].get(topic)
            if before is None:
                before = self._planner().earliest({topic: len(ends)})[topic]
            places += [OffsetRange(topic, int(p), before.get(p, 0), last) for p, last in ends.items()]
        if not places:
            return [ReadShare((), end["tick"])]
        with_records = [place for place in places if place.start < place.end]
        idle = [place for place in places if place.start >= place.end]
        # As many tasks as there is work for: each has its cost.
        count = max(1, min(len(with_records), 8))
        return [ReadShare([*with_records[i::count], *idle[i::count]], end["tick"]) for i in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from helenus_connector.query.garbage import freeze
        from helenus_connector.state.keys._record_reader import read_share

        assert isinstance(partition, ReadShare)
        yield from read_share(self._plan(), partition.ranges, partition.tick)
        freeze("records")

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint alone counts."""

    def stop(self) -> None:
        for planner in self._planners.values():
            planner.close()
        self._planners.clear()

    def _limited(self, begin: Offsets, latest: Offsets) -> Offsets:
        """How far a batch reads of each partition: equal shares of `_MOST` records. Delete markers come after the data,
        and nothing of them while not all data that was there before them is read: they ask what is known by then.
        """
        from helenus_connector.log.events import OffsetRange

        tables = self._plan().tables
        found: Offsets = {topic: {} for topic in latest}
        for of_markers in (False, True):
            places = []
            for topic, ends in latest.items():
                if tables[topic].markers is not of_markers:
                    continue
                data = tables[topic].settings.data
                for p, end in ends.items():
                    start = begin[topic][p]
                    waits = of_markers and found.get(data, {}).get(p, -1) < latest.get(data, {}).get(p, 0)
                    places.append(OffsetRange(topic, int(p), start, start if waits else end))
            share = _MOST // max(1, sum(place.start < place.end for place in places))
            for place in places:
                end = place.start
                if place.start < place.end:
                    end = self._planner(of_markers).advance(place, max(1, share))
                found[place.topic][str(place.partition)] = max(place.start, end)
        return found

    def _check(self, start: dict[str, Any], latest: Offsets) -> None:
        """Raise HelenusError(STATE) if a topic has other partitions, or is another."""
        from helenus_schemas.errors import HelenusError, Kind

        now: dict[str, str] = {}
        if time.monotonic() - self._checked > _CHECK_S:
            self._checked = time.monotonic()
            now = self._planner().ids(list(latest))
        for topic, before in start["topics"].items():
            ends = latest.get(topic)
            if ends is None:
                continue
            what = None
            if ends.keys() != before.keys():
                what = f"{topic} has {len(ends)} partitions, and had {len(before)}"
            elif now.get(topic, "") != start["ids"].get(topic, "") and now.get(topic) and start["ids"].get(topic):
                what = f"{topic} was deleted and recreated"
            elif any(0 <= ends[p] < at for p, at in before.items()):
                what = f"{topic} ends before what was read of it: was it recreated?"
            if what is not None:
                advice = f"delete {self._plan().checkpoint}: the state is then learned from the topic again"
                raise HelenusError(Kind.STATE, f"the state is of another topic: {what}", topic, advice)

    def _latest(self) -> Offsets:
        """The ends, those of markers first: then what came before a marker is within the ends of the data."""
        tables = self._plan().tables
        found: Offsets = {}
        for markers in (True, False):
            topics = [topic for topic, one in tables.items() if one.markers is markers]
            counts = self._planner(markers).partitions(topics) if topics else {}
            if known := {topic: n for topic, n in counts.items() if n}:
                found.update(self._planner(markers).latest(known))
        return found

    def _due(self) -> float:
        try:
            return float(self._plan().due_file.read_text() or "inf")
        except (FileNotFoundError, ValueError):
            return float("inf")

    def _plan(self) -> KeysPlan:
        if self._plan_ is None:
            from helenus_connector.state.keys._plan import KeysPlan

            self._plan_ = KeysPlan.loads(self._plan_bytes)
        return self._plan_

    def _planner(self, markers: bool = False) -> Planner:
        """One to which Kafka says what comes; but where markers are to come after the data, the data's ends are asked
        for: Kafka may say that a marker came before it says so of the data.
        """
        if markers not in self._planners:
            from helenus_connector.log.choice import data_planner

            plan = self._plan()
            watches = markers or not any(one.markers for one in plan.tables.values())
            self._planners[markers] = data_planner(plan.worker, watches=watches)
        return self._planners[markers]
