"""The streaming source: events topics as a Spark Python Data Source.

An offset is `{"tick": n, "topics": {topic: {partition: next offset}}, "logs": {topic: `lineage`}}`. The tick moves when
there is something to do although no event came: keys are due to be read again, a topic goes on from a held position,
something is wrong with one, a run begins; and once in a while on quiet topics, because Spark ends workers that idle for
a minute.
"""

from __future__ import annotations

import marshal
import pickle
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from helenus_connector.control.plan import Plan
from helenus_connector.control.positions import overlaid
from helenus_connector.interfaces.gate import Event
from helenus_connector.log.choice import planner, read
from helenus_connector.log.events import Message, Offsets, Planner, Range
from helenus_connector.query._limits import Part, Parts, limited, shared_out
from helenus_connector.query.garbage import spare
from helenus_connector.reread.pending_files import begins
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import logs

COLUMNS = "notes binary, events binary"
"""Many to a row, because Spark takes each row by itself: `Note`s with their places, or events, as `packed`."""
_SCHEMA = pa.schema([("notes", pa.binary()), ("events", pa.binary())])
_PACK_EVENTS = 1_000
_PACK_BYTES = 1 << 20
_POLL_S = 0.02
_LONGEST_POLL_S = 0.4
_WAIT_S = 0.8
_KEEP_WARM_S = 25.0
_BEHIND_S = 30.0
_RECOUNT_S = 5.0
_ASKED = 16  # topics at a time: a broker's answer may take a while


@dataclass(frozen=True, slots=True)
class Note:
    """What a task must know of a partition beside its records.

    It is the task's own in this batch, read from `start` on, as planned in `epoch` of its topic. `lost` counts events
    that the topic no longer has, `error` is why it cannot be read. If there is an `end`, it was read up to, not
    including, that alone: more would have been too many bytes.
    """

    topic: str
    partition: int
    start: int
    epoch: int
    lost: int = 0
    error: HelenusError | None = None
    end: int | None = None


class EventsSource(DataSource):
    """`spark.readStream.format("helenus-events")`; the option `plan` is a saved `Plan`'s path."""

    @classmethod
    def name(cls) -> str:
        return "helenus-events"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: object) -> EventsReader:  # noqa: ARG002, N802
        return EventsReader(self.options["plan"])


class EventsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the driver's planner process, reads ranges in the workers.

    With the trigger `availableNow` a query reads what is there when it begins, in batches of the usual size, and ends.
    """

    def __init__(self, plan_file: str) -> None:
        self.plan = Plan.load(plan_file)
        self._seen: object = None
        self._planner: Planner | None = None
        self._partitions: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._counted = 0.0
        self._begun: set[str] = set()
        self._fresh: tuple[dict[str, Any], Offsets] = {}, {}
        self._stood: dict[str, tuple[int, dict[str, int]]] = {}
        self._wrong: dict[str, HelenusError] = {}
        self._behind: dict[str, float] = {}
        self._away: str | None = ""  # an earlier planner may have left word
        self._target: Offsets | None = None
        self._last_batch = self._last_event = time.time()

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay in the process that made them.
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Of no topic: each joins with a batch, whose end says where it began. Spark keeps no batch's start."""
        return {"tick": 0, "topics": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.plan.max_batch_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._broker().latest(self._known())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """What a batch from `start` may read. Waits a little for events, so that an idle query hardly spins."""
        until = time.monotonic() + _WAIT_S
        while True:
            self._refresh()
            now = time.time()
            try:
                latest = self._broker().latest(self._known())
                if self._target is not None:
                    latest = {t: self._target[t] for t in latest if t in self._target}
                logs = lineage(self._ids, self._broker().leaders(), self.plan.epochs)
                begin, cut = self._begin(start, latest, logs)
                # A topic that joins is taken in where it begins now, and read by the next batch.
                if new := {t: n for t, n in self._partitions.items() if t in latest and t not in begin}:
                    first = self._broker().earliest(new)
                    begin.update(first)
                    latest.update(first)
                    # One that was just made may have no first offset yet, only a last.
                    latest = {t: ends for t, ends in latest.items() if t in begin}
                stood, begin = begin, {**begin, **self._step_back(start, begin)}
                readable = {t: ends for t, ends in latest.items() if t not in self._wrong}
                if not isinstance(limit, ReadAllAvailable):
                    limit = ReadMaxRows(self.plan.max_batch_size)
                topics = limited(begin, readable, limit, self._broker(), self._wrong)
                if self._target is not None and self._wrong:
                    raise next(iter(self._wrong.values()))
            except HelenusError as error:
                if self._target is not None:
                    raise  # to end without a word would say that all is done
                # A broker that is away makes no batch. A client that has met one is let go: it may go by the leaders
                # of before the broker's restart for ever.
                self._broker_is(str(error))
                self.stop()
                time.sleep(1)
                return start
            self._broker_is(None)
            wake = self._target is None and (bool(self._wrong or self.plan.held) or now >= self._due())
            if self._target is not None:
                # A part of a batch that was too many bytes is read by the next one.
                held = self.plan.held.items()
                wake |= any(0 <= at < self._target.get(t, {}).get(p, 0) for t, ats in held for p, at in ats.items())
            if topics == start["topics"]:
                # What a run began with is done at once: its first batch tells of what else waits. One that is to read
                # what is there, reads again only what was there when the last one ended.
                wake |= begin != stood or (self._target is None and bool(self._fresh[1]))
            end = {"tick": start["tick"] + wake, "topics": topics}
            if known := self._logs(start, logs, cut, latest):
                end["logs"] = known
            if end != start:
                self._last_batch = now
                if end["topics"] != start["topics"]:
                    self._last_event = now
                return end
            if self._target is not None or isinstance(limit, ReadAllAvailable) or time.monotonic() > until:
                return start
            # The longer nothing comes, the less often it is asked: the first event of a while waits a little longer.
            time.sleep(min(max(_POLL_S, (now - self._last_event) / 50), _LONGEST_POLL_S))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = overlaid(start["topics"], self.plan.held)
        cut = {topic: told["cut"] for topic, told in end.get("logs", {}).items() if "cut" in told}
        begin = {topic: {**offsets, **cut.get(topic, {})} for topic, offsets in begin.items()}
        again = self._again(begin) | cut.keys()
        gone = self._gone({topic: begin[topic] for topic in begin if topic in end["topics"] and topic not in again})
        gone.update({topic: list(partitions) for topic, partitions in cut.items()})
        # A batch that a run was killed in is done again as it is. What was pending then, the next one steps back to.
        fresh = self._fresh[1] if self._fresh[0] == start else {}
        begin.update(fresh)
        parts: list[Part] = []
        for topic, connector in self.plan.connectors.items():
            ends = end["topics"].get(topic, {})
            starts = begin.get(topic, {})
            ranges = [
                Range(topic, int(p), starts.get(p, last), last)
                for p, last in sorted(ends.items(), key=lambda item: int(item[0]))
            ]
            loss, epoch = connector.errors_data_loss, self.plan.epochs.get(topic, 0)
            error, lost = self._wrong.get(topic), gone.get(topic, [])
            if lost and loss == "fail" and error is None:
                what = f"events were dropped before helenus-{connector.name} had read them"
                error = HelenusError(Kind.OFFSETS_LOST, what, f"topic {topic}, partition {', '.join(lost)}")
            everything = start["tick"] != end["tick"] or topic in fresh or error is not None or bool(lost)
            # A range may lie before what is held, if that was moved since the batch was planned.
            ranges = [r for r in ranges if r.start < r.end or (everything and r.start == r.end)]
            shares = min(connector.tasks_max, len(ranges))
            for i in range(shares):
                share = tuple(ranges[i::shares])
                events = sum(map(self._broker().size, share))
                parts.append(Part(share, loss, epoch, error, events, 0 if i else len(lost)))
        most = max((c.tasks_max for c in self.plan.connectors.values()), default=1)
        tasks = shared_out(parts, max(most, self.plan.slots))
        return [Parts(task, self.plan.max_batch_bytes // len(tasks)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Parts)
        logs.follow(self.plan.logging)
        notes = [Note(r.topic, r.partition, r.start, p.epoch, error=p.error) for p in partition.parts for r in p.ranges]
        yield _row(notes=pickle.dumps(notes))
        epochs = {(note.topic, note.partition): note.epoch for note in notes}
        found: list[Note] = []
        for part in partition.parts:
            if part.lost:
                place = part.ranges[0]
                found.append(Note(place.topic, place.partition, place.start, part.epoch, lost=part.lost))

        def lost(place: Range, events: int) -> None:
            if events:
                epoch = epochs[place.topic, place.partition]
                found.append(Note(place.topic, place.partition, place.start, epoch, lost=events))

        def failed(place: Range, error: HelenusError) -> None:
            epoch = epochs[place.topic, place.partition]
            found.append(Note(place.topic, place.partition, place.start, epoch, error=error))

        left = partition.most_bytes
        for data_loss in ("fail", "continue"):
            parts = [p for p in partition.parts if p.data_loss == data_loss and p.error is None]
            places = [r for p in parts for r in p.ranges]
            # On Pulsar they are read one by one, and what the first take is not left to the last.
            random.shuffle(places)
            at = {(r.topic, r.partition): r.start for r in places}
            try:
                # Of the second kind too, some are read in each batch.
                with closing(read(self.plan.worker, places, data_loss, lost, failed)) as chunks:
                    for chunk in chunks:
                        for events in packed(chunk):
                            yield _row(events=events)
                        at.update({(m.topic(), m.partition()): m.offset() + 1 for m in chunk})
                        left -= sum(map(size_of, chunk))
                        if left <= 0:
                            break
                    else:
                        continue
            except HelenusError as error:  # of the client, on this host
                for place in places:
                    failed(place, error)
                continue
            # More than that is more than a task can hold: the rest of these ranges is held, and read next.
            wrong = {(note.topic, note.partition) for note in found if note.error}
            for place in places:
                name = place.topic, place.partition
                if at[name] < place.end and name not in wrong:
                    found.append(Note(*name, place.start, epochs[name], end=at[name]))
        if found:
            yield _row(notes=pickle.dumps(found))
        spare("source")

    def commit(self, end: dict[str, Any]) -> None:
        # A part of the batch may be held: that is not done. `latestOffset` alone takes the plan over: Spark commits a
        # batch before it plans the next one, whose end is written already and has the topics of the plan before.
        plan, _ = self._changed() or (self.plan, None)
        done = overlaid(end["topics"], plan.held)
        done = {topic: done[topic] for topic in done.keys() - self._again(done)}
        for group, topics in plan.groups.items():
            offsets = {topic: done[topic] for topic in topics if topic in done}
            try:
                if offsets:
                    self._broker().commit(group, offsets)
            # Also what the clients' libraries raise for a position that no topic can have.
            except (HelenusError, ValueError, OverflowError) as error:
                structlog.get_logger(__name__).warning("source.commit_failed", group=group, error=str(error))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _refresh(self) -> None:
        """Take over what the driver changed in the plan: a topic that left may come again with other partitions."""
        if changed := self._changed():
            self.plan, self._seen = changed
            self._partitions = {t: n for t, n in self._partitions.items() if t in self.plan.connectors}
            if self._planner is not None:
                self._planner.keep(self.plan.groups)

    def _changed(self) -> tuple[Plan, object] | None:
        """The plan in its file, and what tells it from others, if that is not what was taken over."""
        told = self.plan.file.stat()
        seen = (told.st_mtime_ns, told.st_ino)
        return None if seen == self._seen else (Plan.load(str(self.plan.file)), seen)

    def _begin(self, start: dict[str, Any], latest: Offsets, logs: Logs) -> tuple[Offsets, Offsets]:
        """Where topics are to be read from, given where the last batch ended; finds what is wrong with any. And where
        those go on that have others than the records that were there.
        """
        begin = overlaid(start["topics"], self.plan.held)
        cut: Offsets = {}
        now = time.monotonic()
        self._wrong = {}
        for topic in list(self._partitions):
            if topic not in latest:  # deleted, or not made yet
                del self._partitions[topic]
            elif error := other_partitions(topic, begin, latest):
                self._wrong[topic] = error
            elif topic in begin and (lost := self._lost(topic, begin[topic], start, logs)):
                self._behind.pop(topic, None)
                begin[topic] = {**begin[topic], **lost}
                cut[topic] = lost
            elif topic not in self._wrong and any(
                0 <= last < begin.get(topic, {}).get(p, 0) for p, last in latest[topic].items()
            ):
                # A broker that has just become the leader may not know its end for a moment.
                if now - self._behind.setdefault(topic, now) > _BEHIND_S:
                    what = f"{topic} ends before the position of its connector: was it made anew?"
                    advice = "reset the connector's offsets over REST, and copy the table anew"
                    self._wrong[topic] = HelenusError(Kind.OFFSETS_LOST, what, advice=advice)
            else:
                self._behind.pop(topic, None)
        return begin, cut

    def _lost(self, topic: str, at: dict[str, int], start: dict[str, Any], logs: Logs) -> dict[str, int]:
        """The partitions of a topic that lost records which were there, each with where it goes on; none if that is to
        stop the topic's connector.
        """
        before, now = start.get("logs", {}).get(topic), logs.get(topic)
        if before is None or now is None or before["epoch"] != now["epoch"]:
            return {}  # it joins, or an operator moved it to where it is now
        try:
            if before["id"] and now["id"] and before["id"] != now["id"]:
                what, lost = f"{topic} was deleted and recreated", self._broker().earliest({topic: len(at)})[topic]
            elif lost := self._broker().cut(topic, before["leaders"], at):
                where = ", ".join(f"partition {p} from offset {first}" for p, first in lost.items())
                what = f"{topic} has lost events, as by an unclean leader election, or as it was recreated: {where}"
        except HelenusError as error:
            self._wrong[topic] = error
            return {}
        if not lost:
            return {}
        if self.plan.connectors[topic].errors_data_loss == "fail":
            what = f"{what}; reset the connector's offsets, and copy the table anew"
            self._wrong[topic] = HelenusError(Kind.OFFSETS_LOST, what, f"topic {topic}")
            return {}
        structlog.get_logger(__name__).warning("source.lost", topic=topic, reason=what, goes_on=lost)
        return lost

    def _logs(self, start: dict[str, Any], logs: Logs, cut: Offsets, latest: Offsets) -> Logs:
        """What tells the topics' records from others, as of the end of a batch. What is wrong with a topic stays so."""
        before = start.get("logs", {})
        known = {topic: {k: v for k, v in told.items() if k != "cut"} for topic, told in before.items()}
        for topic in latest.keys() & logs.keys() - self._wrong.keys():
            # What can't be asked just now is what it was.
            now, older = logs[topic], known.get(topic, {"id": "", "leaders": {}})
            same = not (now["id"] and older["id"]) or now["id"] == older["id"]
            leaders = {**older["leaders"], **now["leaders"]} if same else now["leaders"]
            known[topic] = {**now, "id": now["id"] or older["id"], "leaders": leaders}
            if topic in cut:
                known[topic]["cut"] = cut[topic]
        return {topic: told for topic, told in known.items() if told["id"] or told["leaders"]}

    def _broker_is(self, away: str | None) -> None:
        """Tell, once each time, that the broker is away or back; the driver too, which would not notice."""
        if away is not None and not self._away:
            structlog.get_logger(__name__).warning("source.broker_away", error=away)
            self.plan.away_file.write_text(away)
        elif away is None and self._away is not None:
            if self._away:
                structlog.get_logger(__name__).info("source.broker_back")
            self.plan.away_file.unlink(missing_ok=True)
        self._away = away

    def _broker(self) -> Planner:
        if self._planner is None:
            self._planner = planner(self.plan.worker)
        return self._planner

    def _known(self) -> dict[str, int]:
        """How many partitions each topic has that is there. A topic may get more: once in a while all are counted."""
        asked = [t for t in self.plan.connectors if not self._partitions.get(t)]
        now = time.monotonic()
        if now - self._counted > _RECOUNT_S:
            asked, self._counted = list(self.plan.connectors), now
        try:
            if asked:
                # One without a leader just now has the partitions it had. That it is gone is told by its end.
                found = self._broker().partitions(asked)
                # Before the ends: what is noted with a position is never newer than it.
                self._ids.update(self._broker().ids(asked))
                self._partitions.update({t: n for t, n in found.items() if n or t not in self._partitions})
        except HelenusError:
            if not any(self._partitions.values()):
                raise
            # It may speak against these topics alone; if the brokers are away, the next question tells.
        return {t: n for t, n in self._partitions.items() if n}

    def _due(self) -> float:
        """When to make a batch without events, s since the epoch."""
        warm = self._last_batch + _KEEP_WARM_S
        try:
            return min(warm, float(Path(self.plan.due_file).read_text() or warm))
        except FileNotFoundError:
            return warm

    def _gone(self, begin: Offsets) -> dict[str, list[str]]:
        """By topic the partitions that no longer have all events from where they are to be read."""
        found: dict[str, list[str]] = {}
        for topic in begin.keys() & self.plan.connectors.keys() & self._partitions.keys():
            try:
                gone = self._broker().gone(f"helenus-{self.plan.connectors[topic].name}", {topic: begin[topic]})
            except HelenusError as error:  # the next batch asks again
                structlog.get_logger(__name__).warning("source.not_checked", topic=topic, error=error.what)
                continue
            if gone:
                found[topic] = [partition for _, partition in gone]
        return found

    def _step_back(self, start: dict[str, Any], begin: Offsets) -> Offsets:
        """Where topics begin that have their first batch in this process with the one from `start`: it reads again what
        may have been pending when the last one ended.

        One whose broker can't tell since where is put among those that are wrong, and asked for when it comes again.
        """
        if self._fresh[0] != start:
            self._fresh = start, {}
        fresh = self._fresh[1]
        topics = (self._known().keys() & self.plan.connectors.keys() & begin.keys()) - self._begun
        if not topics:
            return fresh
        broker, known = self._broker(), self._known()
        # Topics may join long after the start, and what was pending in them is of the run before all the same, or of
        # another query.
        begin_at = begins(self.plan.pending_file)

        def since(topic: str) -> dict[str, int]:
            replay_s = self.plan.connectors[topic].settle_replay_ms / 1000
            then = int(begin_at(topic, replay_s, time.time()) * 1000)
            return broker.since({topic: known.get(topic, 0)}, then).get(topic, {})

        with ThreadPoolExecutor(_ASKED) as pool:
            asked = {topic: pool.submit(since, topic) for topic in topics}
        for topic, answer in asked.items():
            try:
                found = answer.result()
            except HelenusError as error:
                if self._target is not None:
                    raise
                self._wrong[topic] = error
                continue
            self._begun.add(topic)
            self._stood[topic] = self.plan.epochs.get(topic, 0), begin[topic]
            fresh[topic] = {p: min(at, found[p]) if found.get(p, -1) >= 0 else at for p, at in begin[topic].items()}
        return fresh

    def _again(self, offsets: Offsets) -> set[str]:
        """The topics that are read again there: what is gone of them by now, an earlier run has read."""
        return {
            topic
            for topic, (epoch, stood) in self._stood.items()
            if epoch == self.plan.epochs.get(topic, 0)
            and any(offsets.get(topic, {}).get(p, at) < at for p, at in stood.items())
        }


Logs = dict[str, dict[str, Any]]


def lineage(ids: Mapping[str, str], leaders: Mapping[str, Mapping[str, int]], epochs: Mapping[str, int]) -> Logs:
    """What tells the records of each topic from others at the same offsets, as JSON: the topic's `id`, its partitions'
    leader epochs as `leaders`, and in which `epoch` an operator moved it. Where a topic goes on after it has lost
    records, that is `cut`, in the batch that counts it.
    """
    return {
        topic: {"id": ids.get(topic, ""), "leaders": dict(leaders.get(topic, {})), "epoch": epochs.get(topic, 0)}
        for topic in {*ids, *leaders}
    }


def other_partitions(topic: str, start: Offsets, latest: Offsets) -> HelenusError | None:
    """PARTITIONS_CHANGED if a topic has not the partitions it had: order per key would be lost."""
    before, now = start.get(topic), latest[topic]
    if not before or before.keys() == now.keys():
        return None
    return HelenusError(Kind.PARTITIONS_CHANGED, f"{topic} has {len(now)} partitions, and had {len(before)}")


def packed(messages: Sequence[Message]) -> Iterator[bytes]:
    """Messages as the fields of `Event`s, many in one piece of bytes: what `unpacked` takes."""
    pack: list[tuple[object, ...]] = []
    size = 0
    for m in messages:
        pack.append((m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value()))
        size += size_of(m)
        if len(pack) == _PACK_EVENTS or size >= _PACK_BYTES:
            yield marshal.dumps(pack)
            pack, size = [], 0
    if pack:
        yield marshal.dumps(pack)


def size_of(message: Message) -> int:
    """Its bytes."""
    return len(message.key() or b"") + len(message.value() or b"")


def unpacked(events: bytes) -> Iterator[Event]:
    """The events in a piece that a process of this run packed."""
    return map(Event._make, marshal.loads(events))


def _row(notes: bytes | None = None, events: bytes | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([field], pa.binary()) for field in (notes, events)], schema=_SCHEMA)
