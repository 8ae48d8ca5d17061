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
_FEW_ENTRIES = 128  # entries whose events are not counted: a thousand each is the most
_CUMULATIVE = 1
T = TypeVar("T")


class PulsarPlanner:
    """The `events.Planner` of Pulsar."""

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._brokers = PulsarBrokers(config)
        self._client = self._brokers.client
        self._consumers = PulsarConsumers(self._client, config.service_url, config.shares_subscriptions)
        # By topic: how many messages an entry has, of late.
        self._messages_per_entry: dict[str, float] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._last_offsets: dict[str, dict[str, int]] = {}
        self._unpartitioned: set[str] = set()  # topics without partitions
        self._refused: set[str] = set()
        self._committed: set[tuple[str, str, int, int]] = set()
        # Subscriptions, by group and topic, that are at their group's position.
        self._checked_subscriptions: set[tuple[str, str]] = set()

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        async def ask() -> list[int | BaseException | None]:
            requests = (self._client.partitions(self._config.name(topic)) for topic in topics)
            return await asyncio.gather(*requests, return_exceptions=True)

        answers = self._run(ask())
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        self._warn(
            {topic: answer for topic, answer in zip(topics, answers, strict=True) if isinstance(answer, HelenusError)}
        )
        counts = {
            topic: None if isinstance(answer, BaseException) else answer
            for topic, answer in zip(topics, answers, strict=True)
        }
        counted = {topic for topic, count in counts.items() if count is not None}
        self._unpartitioned = {
            *(self._unpartitioned - counted),
            *(topic for topic, count in counts.items() if count == 0),
        }
        self._forget_subscriptions({topic for topic, count in counts.items() if count is None})
        return {topic: 1 if count == 0 else count or 0 for topic, count in counts.items()}

    def wait(self, pace: float, longest: float) -> None:  # noqa: ARG002
        """Sleep: a broker reports nothing by itself."""
        time.sleep(pace)

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        topic_partitions = [(topic, partition) for topic, count in partitions.items() for partition in range(count)]

        async def ask() -> list[int | HelenusError]:
            return await asyncio.gather(*(self._read_end(topic, partition) for topic, partition in topic_partitions))

        ends_read: Offsets = {}
        refused: dict[str, HelenusError] = {}
        for (topic, partition), end in zip(topic_partitions, self._run(ask()), strict=True):
            if isinstance(end, HelenusError):
                refused[topic] = end
            else:
                ends_read.setdefault(topic, {})[str(partition)] = end
        errors = {
            topic: error
            for topic, error in refused.items()
            if not isinstance(error, Answered) or error.code != TOPIC_NOT_FOUND
        }
        if errors and refused.keys() >= partitions.keys():
            raise next(iter(errors.values()))
        self._warn(errors)
        self._forget_subscriptions(refused.keys())
        self._refused -= ends_read.keys() - refused.keys()
        latest = {topic: ends for topic, ends in ends_read.items() if topic not in refused}
        self._last_offsets = {
            topic: {partition: end for partition, end in ends.items() if end >= 0} for topic, ends in latest.items()
        }
        return latest

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        """Return offsets before the first messages."""
        return {topic: {str(p): 0 for p in range(n)} for topic, n in partitions.items()}

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        """Return first offsets by the time of publishing, and by entries."""
        offsets: Offsets = {}
        for topic, count in partitions.items():
            for partition in range(count):
                with opened(self._config, topic, partition, 0) as reader:
                    reader.seek(timestamp_ms)
                    has_message = reader.has_message_available()
                    offsets.setdefault(topic, {})[str(partition)] = (
                        offset_of(reader.read_next(_TIMEOUT_MS)) if has_message else -1
                    )
        return offsets

    def ids(self, topics: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        """Return nothing: no topic has the ledgers of an earlier one."""
        return {}

    def leaders(self) -> dict[str, dict[str, int]]:
        """Return the last position of every partition: while its ledger stays the same, nothing was replaced."""
        return self._last_offsets

    def cut(self, topic: str, leaders: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, int]:
        """Return the partitions of which nothing unread may be left up to their former end: as after a topic was
        recreated.
        """
        cuts: dict[str, int] = {}
        last_offsets = self._last_offsets.get(topic, {})
        for partition, position in positions.items():
            end = leaders.get(partition, -1)
            if position >= end or partition not in last_offsets or parts(last_offsets[partition])[0] == parts(end)[0]:
                continue
            with opened(self._config, topic, int(partition), position) as reader:
                if reader.has_message_available() and (first := offset_of(reader.read_next(_TIMEOUT_MS))) >= end:
                    cuts[partition] = first
        return cuts

    def size(self, offset_range: OffsetRange) -> int:
        """Estimate the number of events from the recent number of messages per entry. Of several ledgers only the last
        is counted: the sizes of the others are not known.
        """
        if offset_range.start >= offset_range.end:
            return 0
        ledger, entry, index = parts(offset_range.start)
        last_ledger, last_entry, last_index = parts(offset_range.end - 1)
        if ledger != last_ledger:
            entry = index = 0
        if entry == last_entry:
            return last_index - index + 1
        return max(
            1, int((last_entry - entry) * self._messages_per_entry.get(offset_range.topic, 1)) + last_index + 1 - index
        )

    def advance(self, offset_range: OffsetRange, events: int) -> int:
        """Read the events to count them; unless there are few entries and, by `size`, which can be
        wrong, fewer events.
        """
        if offset_range.start >= offset_range.end:
            return offset_range.end
        (ledger, entry, _), (last_ledger, last_entry, _) = parts(offset_range.start), parts(offset_range.end - 1)
        if ledger == last_ledger and last_entry - entry < _FEW_ENTRIES and self.size(offset_range) <= events:
            return offset_range.end
        range_end, count = offset_range.start, 0
        entries = 0
        partition = PulsarPartition(
            self._brokers, offset_range.topic, offset_range.partition, offset_range.start, TIMEOUT_S
        )
        try:
            for message_batch in partition.entries(offset_range.end, TIMEOUT_S):
                first = max(range_end, message_batch.first)
                range_end = min(first + events - count, message_batch.first + message_batch.count)
                count, entries = count + range_end - first, entries + 1
                partition.position = range_end if count < events else offset_range.end
        finally:
            partition.close()
        if entries:
            self._messages_per_entry[offset_range.topic] = count / entries
        return min(range_end, offset_range.end)

    def commit(self, group: str, offsets: Offsets) -> None:
        """Move a durable subscription: so the broker keeps what is unread, and dashboards see the lag."""
        commits = [
            (group, topic, int(partition), position)
            for topic, ends in offsets.items()
            for partition, position in ends.items()
        ]
        new_commits = [commit for commit in commits if commit not in self._committed]

        async def move() -> list[BaseException | None]:
            return await asyncio.gather(*(self._acknowledge(*commit) for commit in new_commits), return_exceptions=True)

        failed = {
            commit: error for commit, error in zip(new_commits, self._run(move()), strict=True) if error is not None
        }
        others = {commit for commit in self._committed if commit[0] != group}
        self._committed = others | (set(commits) - failed.keys())
        for error in failed.values():
            raise error

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:
        """Return the partitions whose unread messages may be dropped, by the group's subscription: a message TTL, a
        backlog quota or an operator moves it past unread messages, and then the broker may drop those. While the
        start's ledger exists, everything after it does, too.

        Asks at the first call for a topic, which creates the subscription, and again when `commit` found it to be
        ahead.
        """
        starts_to_check = [
            (topic, partition, position)
            for topic, by_partition in starts.items()
            for partition, position in by_partition.items()
            if (group, topic) not in self._checked_subscriptions
        ]

        async def ask() -> list[Any]:
            requests = (
                self._ask_consumer(topic, int(partition), group, "last_id") for topic, partition, _ in starts_to_check
            )
            return await asyncio.gather(*requests, return_exceptions=True)

        answers = self._run(ask())
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        expired = [
            (topic, partition)
            for (topic, partition, position), answer in zip(starts_to_check, answers, strict=True)
            if 0 < position <= _acknowledged_offset(answer) and self._begins_elsewhere(topic, int(partition), position)
        ]
        expired_topics = {topic for topic, _ in expired}
        self._checked_subscriptions |= {
            (group, topic) for topic, _, _ in starts_to_check if topic not in expired_topics
        }
        return expired

    def unread(self, group: str, topic: str, partition: int) -> OffsetRange:
        """Return the range of a partition that a group's subscription has not read, up to the current
        end: all, if new.
        """
        self.partitions([topic])
        answer = self._run(self._ask_consumer(topic, partition, group, "last_id"))
        mark_delete = answer.consumer_mark_delete_position
        start = 0
        if answer.HasField("consumer_mark_delete_position") and mark_delete.ledgerId != NONE:
            start = offset(mark_delete.ledgerId, 0 if mark_delete.entryId == NONE else mark_delete.entryId + 1, 0)
        return OffsetRange(topic, partition, start, max(0, after(answer.last_message_id)))

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        """Close the other subscriptions' consumers. While a subscription has one, nobody else may have one, or delete
        it.
        """
        subscriptions = {(group, topic) for group, topics in groups.items() for topic in topics}
        self._checked_subscriptions &= subscriptions
        self._committed = {commit for commit in self._committed if commit[:2] in subscriptions}
        subscriptions |= {("", topic) for _, topic in subscriptions}
        with contextlib.suppress(HelenusError):  # a broker that hangs keeps them until it notices the lost connection
            self._run(self._consumers.drop(lambda topic, group: (group, topic) not in subscriptions))

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._brokers.close()

    def _run(self, request: Coroutine[Any, Any, T]) -> T:
        return self._brokers.run(request, TIMEOUT_S)

    async def _read_end(self, topic: str, partition: int) -> int | HelenusError:
        try:
            answer = await asyncio.wait_for(self._ask_consumer(topic, partition, "", "last_id"), _END_S)
        except HelenusError as error:
            return error
        except asyncio.TimeoutError:
            problem = f"Pulsar does not answer within {_END_S:.0f} s"
            return pulsar_error(Kind.BROKER_UNREACHABLE, problem, f"topic {topic}, partition {partition}")
        end = after(answer.last_message_id)
        if end >= 0 and self._ends.get((topic, partition)) != end:
            self._ends[topic, partition] = end
            index = parts(end - 1)[2]
            self._messages_per_entry[topic] = 0.8 * self._messages_per_entry.get(topic, index + 1) + 0.2 * (index + 1)
        return end

    async def _acknowledge(self, group: str, topic: str, partition: int, position: int) -> None:
        if not position:
            return
        answer = await self._ask_consumer(topic, partition, group, "last_id")
        if _acknowledged_offset(answer) >= position:
            self._checked_subscriptions.discard((group, topic))
        ledger, entry, _ = parts(position)
        # All before this id: an entry that is read in part stays whole.
        last_id = {"ledgerId": ledger, "entryId": entry - 1 if entry else NONE}
        if position == after(answer.last_message_id):
            last_id["entryId"] = entry
        await self._ask_consumer(topic, partition, group, "ack", ack_type=_CUMULATIVE, message_id=[last_id])

    def _begins_elsewhere(self, topic: str, partition: int, position: int) -> bool:
        """Return whether the first message at or after an offset is in another ledger."""
        with opened(self._config, topic, partition, position) as reader:
            # If there is none, the next message will show it.
            has_message = reader.has_message_available()
            return has_message and parts(offset_of(reader.read_next(_TIMEOUT_MS)))[0] != parts(position)[0]

    async def _ask_consumer(self, topic: str, partition: int, group: str, command_name: str, **fields: Any) -> Any:
        topic_name = self._config.name(topic)
        partition_name = topic_name if topic in self._unpartitioned else f"{topic_name}-partition-{partition}"
        return await self._consumers.ask(topic, partition_name, group, command_name, **fields)

    def _forget_subscriptions(self, topics: Collection[str]) -> None:
        """Forget topics that are gone: when they come again, they may be other topics of the same names."""
        self._checked_subscriptions = {
            (group, topic) for group, topic in self._checked_subscriptions if topic not in topics
        }

    def _warn(self, refused: Mapping[str, HelenusError]) -> None:
        """Warn, once each time, of topics that can't be queried while others can."""
        for topic in refused.keys() - self._refused:
            structlog.get_logger(__name__).warning("source.refused", topic=topic, error=refused[topic].what)
        self._refused |= refused.keys()


def _acknowledged_offset(answer: Any) -> int:
    """Return the offset of the last entry that a subscription has acknowledged; -1 if that is none, or not known."""
    mark_delete = answer.consumer_mark_delete_position
    if not answer.HasField("consumer_mark_delete_position") or NONE in (mark_delete.ledgerId, mark_delete.entryId):
        return -1
    return offset(mark_delete.ledgerId, mark_delete.entryId, 0)
