"""The streaming source of data topics: their records' keys, by topic partition, as a Spark Python Data Source.

An offset is `{"tick": s since the epoch, "topics": {topic: {partition: next offset}}, "ids": {topic: id}}`. The tick is
the batch's time, which the index goes by: a repeated batch has the same. It advances with new records, and when a topic
partition is due. `behind` are the partitions of data topics of which no batch of a run has read all yet, and `from` is
where it reads topics from that were left out (`_left_out`). As `query.source`, this module imports nothing of ours
until it plans or reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

if TYPE_CHECKING:
    import pyarrow as pa

    from helenus_connector.log.events import OffsetRange, Offsets, Planner
    from helenus_connector.state.keys._plan import KeysPlan

COLUMNS = "place string, tick double, ends long, is_behind boolean, said binary"
_MAX_RECORDS = 50_000
"""Records of a batch: some seconds of work."""
_POLL_S = 0.2
_MAX_WAIT_S = 0.8
_MAX_IDLE_S = 30.0
_CHECK_S = 10.0


class ReadShare(InputPartition):
    """The input of a task: offset ranges, empty ones of topic partitions that are only due. Those that are `behind`, of
    data topics, have more records of before this run.
    """

    def __init__(self, ranges: Sequence[OffsetRange], tick: float, behind: Mapping[str, Sequence[str]]) -> None:
        self.ranges = tuple(ranges)
        self.tick = tick
        self.behind = behind


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
        self._loaded_plan: KeysPlan | None = None
        self._planners: dict[bool, Planner] = {}  # by whether they are for topics of markers
        self._last_batch_at = time.time()
        self._checked_at = 0.0
        self._resumed_topics: set[str] = set()
        self._caught_up: set[tuple[str, str]] = set()  # partitions that a batch of this run has read to their end

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded_plan": None, "_planners": {}}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"tick": 0.0, "topics": {}, "ids": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(_MAX_RECORDS)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Return where a batch ends. Waits a little for records. Raises HelenusError for a topic that was recreated."""
        from helenus_schemas.errors import HelenusError

        deadline = time.monotonic() + _MAX_WAIT_S
        while True:
            try:
                latest = self._latest_offsets()
                self._check_topics(start, latest)
                begin = dict(start["topics"])
                left_out = self._left_out()
                begin.update(left_out)
                new_topics = {topic: len(end_offsets) for topic, end_offsets in latest.items() if topic not in begin}
                if new_topics:
                    begin.update(self._planner().earliest(new_topics))
                ids = {**start["ids"], **self._planner().ids(list(new_topics))} if new_topics else start["ids"]
                topics = {**begin, **self._limit_offsets(begin, latest)}
            except HelenusError:
                self.stop()
                raise
            now = time.time()
            is_due = now >= self._read_due_time() or now - self._last_batch_at > _MAX_IDLE_S
            if topics != start["topics"] or left_out or is_due:
                self._last_batch_at = now
                self._resumed_topics.update(left_out)
                end: dict[str, Any] = {"tick": round(now, 1), "topics": topics, "ids": ids}
                more = {"behind": self._find_behind(topics, latest), "from": left_out}
                return {**end, **{name: value for name, value in more.items() if value}}
            if time.monotonic() > deadline:
                return start
            time.sleep(_POLL_S)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return all topic partitions, each in one share: also those without a record, which may be due."""
        from helenus_connector.log.events import OffsetRange
        from helenus_connector.state.keys._left_out import note_left_out

        ranges = []
        left_out: Offsets = {}
        for topic, end_offsets in end["topics"].items():
            start_offsets = end.get("from", {}).get(topic, start["topics"].get(topic))
            if topic not in self._plan().tables:
                if start_offsets != end_offsets:
                    left_out[topic] = start_offsets or dict.fromkeys(end_offsets, 0)
                continue
            if start_offsets is None:
                start_offsets = self._planner().earliest({topic: len(end_offsets)})[topic]
            ranges += [
                OffsetRange(topic, int(number), start_offsets.get(number, 0), end_offset)
                for number, end_offset in end_offsets.items()
            ]
        if left_out:  # a repeated batch is of topics that are not followed just now
            note_left_out(self._plan().checkpoint, left_out)
        behind = end.get("behind", {})
        if not ranges:
            return [ReadShare((), end["tick"], behind)]
        ranges_with_records = [offset_range for offset_range in ranges if offset_range.start < offset_range.end]
        idle_ranges = [offset_range for offset_range in ranges if offset_range.start >= offset_range.end]
        # No more tasks than ranges with records: each task costs some time of its own.
        task_count = max(1, min(len(ranges_with_records), 8))
        return [
            ReadShare([*ranges_with_records[index::task_count], *idle_ranges[index::task_count]], end["tick"], behind)
            for index in range(task_count)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from helenus_connector.query.garbage import freeze
        from helenus_connector.state.keys._record_reader import read_share

        assert isinstance(partition, ReadShare)
        yield from read_share(self._plan(), partition.ranges, partition.tick, partition.behind)
        freeze("records")

    def commit(self, end: dict[str, Any]) -> None:
        """Forget what was left out, and is read again up to there: otherwise the checkpoint alone counts."""
        if "from" in end:
            from helenus_connector.state.keys._left_out import forget_left_out

            forget_left_out(self._plan().checkpoint, end["from"].keys())

    def stop(self) -> None:
        for planner in self._planners.values():
            planner.close()
        self._planners.clear()

    def _left_out(self) -> Offsets:
        """Return where topics go on that are followed again, until a batch is planned that reads them."""
        from helenus_connector.state.keys._left_out import load_left_out

        topics = self._plan().tables.keys() - self._resumed_topics
        return {topic: offsets for topic, offsets in load_left_out(self._plan().checkpoint).items() if topic in topics}

    def _find_behind(self, topics: Offsets, latest: Offsets) -> dict[str, list[str]]:
        """Return the partitions of data topics of which no batch of this run, up to one that ends at `topics`, reads
        all that is there. By what is known of their keys these may be due, and have records by now that say more.
        """
        tables = self._plan().tables
        followed_ends = {topic: ends for topic, ends in topics.items() if topic in tables and not tables[topic].markers}
        self._caught_up.update(
            (topic, number)
            for topic, ends in followed_ends.items()
            for number, end in ends.items()
            if end >= latest.get(topic, {}).get(number, end + 1)
        )
        behind = {
            topic: [number for number in ends if (topic, number) not in self._caught_up]
            for topic, ends in followed_ends.items()
        }
        return {topic: numbers for topic, numbers in behind.items() if numbers}

    def _limit_offsets(self, begin: Offsets, latest: Offsets) -> Offsets:
        """Return how far a batch reads of each partition: equal shares of `_MAX_RECORDS`. Delete markers come after the
        data, and are not read while there is unread data from before them: they request reads of the keys that are
        indexed by then.
        """
        from helenus_connector.log.events import OffsetRange

        tables = self._plan().tables
        limited: Offsets = {topic: {} for topic in latest}
        for is_markers in (False, True):
            ranges = []
            for topic, end_offsets in latest.items():
                if tables[topic].markers is not is_markers:
                    continue
                data_topic = tables[topic].settings.data
                for number, end in end_offsets.items():
                    start = begin[topic][number]
                    data_end = latest.get(data_topic, {}).get(number, 0)
                    must_wait = is_markers and limited.get(data_topic, {}).get(number, -1) < data_end
                    ranges.append(OffsetRange(topic, int(number), start, start if must_wait else end))
            range_count = sum(offset_range.start < offset_range.end for offset_range in ranges)
            records_per_range = _MAX_RECORDS // max(1, range_count)
            for offset_range in ranges:
                end = offset_range.start
                if offset_range.start < offset_range.end:
                    end = self._planner(is_markers).advance(offset_range, max(1, records_per_range))
                limited[offset_range.topic][str(offset_range.partition)] = max(offset_range.start, end)
        return limited

    def _check_topics(self, start: dict[str, Any], latest: Offsets) -> None:
        """Raise HelenusError(STATE) if a topic has another number of partitions, or was recreated."""
        from helenus_schemas.errors import HelenusError, Kind
        from helenus_schemas.names import counted

        current_ids: dict[str, str] = {}
        if time.monotonic() - self._checked_at > _CHECK_S:
            self._checked_at = time.monotonic()
            current_ids = self._planner().ids(list(latest))
        for topic, start_offsets in start["topics"].items():
            end_offsets = latest.get(topic)
            if end_offsets is None:
                continue
            reason, current_id, start_id = None, current_ids.get(topic), start["ids"].get(topic)
            if end_offsets.keys() != start_offsets.keys():
                reason = f"{topic} has {counted(len(end_offsets), 'partition')}, and had {len(start_offsets)}"
            elif current_id and start_id and current_id != start_id:
                reason = f"{topic} was deleted and recreated"
            elif any(0 <= end_offsets[number] < offset for number, offset in start_offsets.items()):
                reason = f"{topic} ends before what was read of it: was it recreated?"
            if reason is not None:
                advice = f"delete {self._plan().checkpoint}: the state is then learned from the topic again"
                raise HelenusError(Kind.STATE, f"the state is of another topic: {reason}", topic, advice)

    def _latest_offsets(self) -> Offsets:
        """Return the end offsets, those of markers first: then what came before a marker is within the ends of the
        data.
        """
        tables = self._plan().tables
        latest: Offsets = {}
        for markers in (True, False):
            topics = [topic for topic, followed in tables.items() if followed.markers is markers]
            partition_counts = self._planner(markers).partitions(topics) if topics else {}
            if existing := {topic: count for topic, count in partition_counts.items() if count}:
                latest.update(self._planner(markers).latest(existing))
        return latest

    def _read_due_time(self) -> float:
        try:
            return float(self._plan().due_file.read_text() or "inf")
        except (FileNotFoundError, ValueError):
            return float("inf")

    def _plan(self) -> KeysPlan:
        if self._loaded_plan is None:
            from helenus_connector.state.keys._plan import KeysPlan

            self._loaded_plan = KeysPlan.loads(self._plan_bytes)
        return self._loaded_plan

    def _planner(self, markers: bool = False) -> Planner:
        """Return a planner that Kafka notifies of new records. Where markers are to come after the data, the data's end
        offsets are requested instead: Kafka may notify of a marker before it notifies of the data.
        """
        if markers not in self._planners:
            from helenus_connector.log.choice import data_planner

            plan = self._plan()
            watches = markers or not any(followed.markers for followed in plan.tables.values())
            self._planners[markers] = data_planner(plan.worker, watches=watches)
        return self._planners[markers]
