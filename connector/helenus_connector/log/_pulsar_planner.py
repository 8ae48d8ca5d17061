"""Positions in events topics on Pulsar: what the planner asks of a broker, through one connection of our own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from helenus_connector.log._pulsar_consumers import PulsarConsumers
from helenus_connector.log._pulsar_entries import PulsarBrokers, PulsarPartition
from helenus_connector.log._pulsar_offsets import NONE, after, offset, offset_of, parts
from helenus_connector.log._pulsar_reader import TIMEOUT_S, opened
from helenus_connector.log.events import OffsetRange, Offsets
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import TOPIC_NOT_FOUND, Answered, pulsar_error

_END_S = 3.0
_TIMEOUT_MS = int(TIMEOUT_S * 1000)
_FEW = 128  # entries whose events are not counted: a thousand each is the most
_CUMULATIVE = 1
T = TypeVar("T")


class PulsarPlanner:
    """The `events.Planner` of Pulsar."""

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._brokers = PulsarBrokers(config)
        self._client = self._brokers.client
        self._consumers = PulsarConsumers(self._client, config.service_url)
        # By topic: how many messages an entry has, of late.
        self._in_entry: dict[str, float] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._whole: set[str] = set()  # topics without partitions
        self._refused: set[str] = set()
        self._committed: set[tuple[str, str, int, int]] = set()
        self._followed: set[tuple[str, str]] = set()  # subscriptions, by topic, that are at their group's position

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        async def ask() -> list[int | BaseException | None]:
            asked = (self._client.partitions(self._config.name(topic)) for topic in topics)
            return await asyncio.gather(*asked, return_exceptions=True)

        answers = self._run(ask())
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        self._warn({t: n for t, n in zip(topics, answers, strict=True) if isinstance(n, HelenusError)})
        counts = {t: None if isinstance(n, BaseException) else n for t, n in zip(topics, answers, strict=True)}
        counted = {topic for topic, found in counts.items() if found is not None}
        self._whole = {*(self._whole - counted), *(topic for topic, found in counts.items() if found == 0)}
        self._unfollow({topic for topic, found in counts.items() if found is None})
        return {topic: 1 if found == 0 else found or 0 for topic, found in counts.items()}

    def wait(self, pace: float, longest: float) -> None:  # noqa: ARG002
        """A broker has to be asked."""
        time.sleep(pace)

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        places = [(topic, p) for topic, n in partitions.items() for p in range(n)]

        async def ask() -> list[int | HelenusError]:
            return await asyncio.gather(*(self._end(topic, p) for topic, p in places))

        found: Offsets = {}
        refused: dict[str, HelenusError] = {}
        for (topic, p), end in zip(places, self._run(ask()), strict=True):
            if isinstance(end, HelenusError):
                refused[topic] = end
            else:
                found.setdefault(topic, {})[str(p)] = end
        there = {t: e for t, e in refused.items() if not isinstance(e, Answered) or e.code != TOPIC_NOT_FOUND}
        if there and refused.keys() >= partitions.keys():
            raise next(iter(there.values()))
        self._warn(there)
        self._unfollow(refused.keys())
        self._refused -= found.keys() - refused.keys()
        latest = {topic: ends for topic, ends in found.items() if topic not in refused}
        self._last = {topic: {p: end for p, end in ends.items() if end >= 0} for topic, ends in latest.items()}
        return latest

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        """Before the first message."""
        return {topic: {str(p): 0 for p in range(n)} for topic, n in partitions.items()}

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        """Goes by the time of publishing, and by entries."""
        found: Offsets = {}
        for topic, n in partitions.items():
            for p in range(n):
                with opened(self._config, topic, p, 0) as reader:
                    reader.seek(timestamp_ms)
                    there = reader.has_message_available()
                    found.setdefault(topic, {})[str(p)] = offset_of(reader.read_next(_TIMEOUT_MS)) if there else -1
        return found

    def ids(self, topics: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        """None: no topic has the ledgers of an earlier one."""
        return {}

    def leaders(self) -> dict[str, dict[str, int]]:
        """The last position of every partition: while its ledger stays the same, nothing was replaced."""
        return self._last

    def cut(self, topic: str, leaders: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, int]:
        """Nothing unread may be left of what ended there: for example after a topic was recreated."""
        found: dict[str, int] = {}
        now = self._last.get(topic, {})
        for p, at in positions.items():
            end = leaders.get(p, -1)
            if at >= end or p not in now or parts(now[p])[0] == parts(end)[0]:
                continue
            with opened(self._config, topic, int(p), at) as reader:
                if reader.has_message_available() and (first := offset_of(reader.read_next(_TIMEOUT_MS))) >= end:
                    found[p] = first
        return found

    def size(self, place: OffsetRange) -> int:
        """Estimated from the recent number of messages per entry. Of several ledgers only the last is counted: the
        sizes of the others are not known.
        """
        if place.start >= place.end:
            return 0
        ledger, entry, index = parts(place.start)
        last_ledger, last_entry, last_index = parts(place.end - 1)
        if ledger != last_ledger:
            entry = index = 0
        if entry == last_entry:
            return last_index - index + 1
        return max(1, int((last_entry - entry) * self._in_entry.get(place.topic, 1)) + last_index + 1 - index)

    def advance(self, place: OffsetRange, events: int) -> int:
        """Reads the events; unless there are few entries and, by `size`, which can be wrong, fewer events."""
        if place.start >= place.end:
            return place.end
        (ledger, entry, _), (last_ledger, last_entry, _) = parts(place.start), parts(place.end - 1)
        if ledger == last_ledger and last_entry - entry < _FEW and self.size(place) <= events:
            return place.end
        at, count = place.start, 0
        entries = 0
        reading = PulsarPartition(self._brokers, place.topic, place.partition, place.start, TIMEOUT_S)
        try:
            for found in reading.entries(place.end, TIMEOUT_S):
                first = max(at, found.first)
                at = min(first + events - count, found.first + found.count)
                count, entries = count + at - first, entries + 1
                reading.at = at if count < events else place.end
        finally:
            reading.close()
        if entries:
            self._in_entry[place.topic] = count / entries
        return min(at, place.end)

    def commit(self, group: str, offsets: Offsets) -> None:
        """Move a durable subscription: so the broker keeps what is unread, and dashboards see the lag."""
        places = [(group, t, int(p), at) for t, ends in offsets.items() for p, at in ends.items()]
        wanted = [place for place in places if place not in self._committed]

        async def move() -> list[BaseException | None]:
            return await asyncio.gather(*(self._acknowledge(*place) for place in wanted), return_exceptions=True)

        failed = {place: error for place, error in zip(wanted, self._run(move()), strict=True) if error is not None}
        self._committed = {p for p in self._committed if p[0] != group} | (set(places) - failed.keys())
        for error in failed.values():
            raise error

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:
        """Goes by the group's subscription: a message TTL, a backlog quota or an operator moves it past unread
        messages, and then the broker may drop those. While the start's ledger exists, everything after it does, too.

        Asks at the first call for a topic, which creates the subscription, and again when `commit` found it to be
        ahead.
        """
        places = [
            (topic, p, at)
            for topic, by_partition in starts.items()
            for p, at in by_partition.items()
            if (group, topic) not in self._followed
        ]

        async def ask() -> list[Any]:
            asked = (self._asked(topic, int(p), group, "last_id") for topic, p, _ in places)
            return await asyncio.gather(*asked, return_exceptions=True)

        answers = self._run(ask())
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        found = [
            (topic, p)
            for (topic, p, at), said in zip(places, answers, strict=True)
            if 0 < at <= _done(said) and self._begins_elsewhere(topic, int(p), at)
        ]
        lost = {topic for topic, _ in found}
        self._followed |= {(group, topic) for topic, _, _ in places if topic not in lost}
        return found

    def unread(self, group: str, topic: str, partition: int) -> OffsetRange:
        """The range of a partition that a group's subscription has not read, up to the current end: all, if new."""
        self.partitions([topic])
        said = self._run(self._asked(topic, partition, group, "last_id"))
        mark = said.consumer_mark_delete_position
        start = 0
        if said.HasField("consumer_mark_delete_position") and mark.ledgerId != NONE:
            start = offset(mark.ledgerId, 0 if mark.entryId == NONE else mark.entryId + 1, 0)
        return OffsetRange(topic, partition, start, max(0, after(said.last_message_id)))

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        """While a subscription has a consumer, nobody else may have one, and nobody may delete it."""
        kept = {(group, topic) for group, topics in groups.items() for topic in topics}
        self._followed &= kept
        self._committed = {place for place in self._committed if place[:2] in kept}
        kept |= {("", topic) for _, topic in kept}
        with contextlib.suppress(HelenusError):  # a broker that hangs keeps them until it notices the lost connection
            self._run(self._consumers.drop(lambda topic, group: (group, topic) not in kept))

    def close(self) -> None:
        """Let go of the brokers."""
        self._brokers.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._brokers.run(work, TIMEOUT_S)

    async def _end(self, topic: str, partition: int) -> int | HelenusError:
        try:
            said = await asyncio.wait_for(self._asked(topic, partition, "", "last_id"), _END_S)
        except HelenusError as error:
            return error
        except asyncio.TimeoutError:
            what = f"Pulsar does not answer within {_END_S:.0f} s"
            return pulsar_error(Kind.BROKER_UNREACHABLE, what, f"topic {topic}, partition {partition}")
        end = after(said.last_message_id)
        if end >= 0 and self._ends.get((topic, partition)) != end:
            self._ends[topic, partition] = end
            index = parts(end - 1)[2]
            self._in_entry[topic] = 0.8 * self._in_entry.get(topic, index + 1) + 0.2 * (index + 1)
        return end

    async def _acknowledge(self, group: str, topic: str, partition: int, at: int) -> None:
        if not at:
            return
        said = await self._asked(topic, partition, group, "last_id")
        if _done(said) >= at:
            self._followed.discard((group, topic))
        ledger, entry, _ = parts(at)
        # All before this id: an entry that is read in part stays whole.
        before = {"ledgerId": ledger, "entryId": entry - 1 if entry else NONE}
        if at == after(said.last_message_id):
            before["entryId"] = entry
        await self._asked(topic, partition, group, "ack", ack_type=_CUMULATIVE, message_id=[before])

    def _begins_elsewhere(self, topic: str, partition: int, at: int) -> bool:
        """Return whether the first message at or after an offset is in another ledger."""
        with opened(self._config, topic, partition, at) as reader:
            # If there is none, the next message will show it.
            there = reader.has_message_available()
            return there and parts(offset_of(reader.read_next(_TIMEOUT_MS)))[0] != parts(at)[0]

    async def _asked(self, topic: str, partition: int, group: str, name: str, **fields: Any) -> Any:
        full = self._config.name(topic)
        place = full if topic in self._whole else f"{full}-partition-{partition}"
        return await self._consumers.ask(topic, place, group, name, **fields)

    def _unfollow(self, topics: Collection[str]) -> None:
        """When these come again, they may be other topics of the same names."""
        self._followed = {(group, topic) for group, topic in self._followed if topic not in topics}

    def _warn(self, refused: Mapping[str, HelenusError]) -> None:
        """Warn, once each time, of topics that can't be asked while others can."""
        for topic in refused.keys() - self._refused:
            structlog.get_logger(__name__).warning("source.refused", topic=topic, error=refused[topic].what)
        self._refused |= refused.keys()


def _done(said: Any) -> int:
    """The offset of the last entry that a subscription does not wait for; -1 if that is none, or not known."""
    answer = said.consumer_mark_delete_position
    if not said.HasField("consumer_mark_delete_position") or NONE in (answer.ledgerId, answer.entryId):
        return -1
    return offset(answer.ledgerId, answer.entryId, 0)
