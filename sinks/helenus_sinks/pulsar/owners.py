"""The owner of topics: the one run whose producers may append to their partitions.

    claim     open a producer with the run's epoch in each partition → wait → see that a lower epoch is refused
    append    open a producer with the run's epoch, at each turn of a process

A broker keeps the epoch of a partition with its ledgers' metadata. It refuses a producer with exclusive access and a
lower epoch. One with the same or a higher epoch closes all other producers, and the partition's epoch is its own from
then on: so the processes of a run take turns at a partition, and those of former runs are refused, whenever they go on.

A broker compares first and sets the epoch some ms later, or, if others change the metadata just now, after another
0.1 s. So a producer of a former run that was compared just before a claim may set its lower epoch after it. The claim
waits for longer than that, and begins again if a lower epoch is not refused then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import closing
from typing import Any, TypeVar

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.pulsar.client import Client, end_loop
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.epochs import taken_over
from helenus_sinks.pulsar.errors import FENCED, INCOMPATIBLE_SCHEMA, TOPIC_NOT_FOUND, Answered, pulsar_error
from helenus_sinks.pulsar.wire import EXCLUSIVE_WITH_FENCING

_SETTLE_S = 1.0
"""Ten times what a broker waits before it tries again to change a ledger's metadata; at least: where the claim itself
was slow, twice its time.
"""
_ATTEMPTS = 5
_TRANSIENT_S = 5.0
_PAUSE_S = 0.2
_AT_ONCE = 32
"""Partitions. Each is a write to the metadata store, one after another takes some 5 ms."""
_SLICE_S = 0.1
Stopping = Callable[[], bool]
T = TypeVar("T")


class _Refused(Exception):
    """The partition has a higher epoch, as the broker's answer says."""


def next_epochs(settings: PulsarConfig, topics: Collection[str], stopping: Stopping) -> dict[str, int]:
    """Return the epoch that follows that of each topic, the highest of its partitions, which have the next one from now
    on: 0 if they had none. Topics that can't be asked are left out.

    Raises HelenusError BROKER_UNREACHABLE when it is `stopping`.
    """

    async def ask(client: Client) -> dict[str, int]:
        claims = _Claims(client, settings)

        async def ask_one(topic: str) -> int | None:
            try:
                partitions = await claims.partitions(topic)
                return max(await asyncio.gather(*(claims.open(partition, None) for partition in partitions)))
            except (HelenusError, _Refused):
                return None  # the claim says why

        answers = await asyncio.gather(*map(ask_one, topics))
        return {topic: epoch for topic, epoch in zip(topics, answers, strict=True) if epoch is not None}

    return _run(settings, ask, stopping)


def claim(
    settings: PulsarConfig, epochs: Mapping[str, int], proven: Collection[str], stopping: Stopping
) -> dict[str, HelenusError]:
    """Have brokers refuse producers with lower epochs than these in all partitions of topics. Return the errors of
    those topics for which they don't: NOT_OWNER where a partition has a higher one. Of `proven` topics the former runs'
    producers are refused already.

    Raises HelenusError BROKER_UNREACHABLE when it is `stopping`.
    """
    return _run(settings, lambda client: _Claims(client, settings).claim(epochs, proven), stopping)


def _run(settings: PulsarConfig, ask: Callable[[Client], Awaitable[T]], stopping: Stopping) -> T:
    """Return the answer of `ask(client)`, in an event loop of its own."""
    loop = asyncio.new_event_loop()

    async def ask_unless_stopping() -> T:
        with closing(Client(settings.service_url, settings.access)) as client:
            answer = asyncio.ensure_future(ask(client))
            while not answer.done():
                if stopping():
                    raise pulsar_error(Kind.BROKER_UNREACHABLE, "the query is stopped", settings.service_url)
                await asyncio.wait([answer], timeout=_SLICE_S)
            return answer.result()

    try:
        return loop.run_until_complete(ask_unless_stopping())
    finally:
        end_loop(loop)


class _Claims:
    """Opens producers in partitions, some at once."""

    def __init__(self, client: Client, settings: PulsarConfig) -> None:
        self._client = client
        self._settings = settings
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def claim(self, epochs: Mapping[str, int], proven: Collection[str]) -> dict[str, HelenusError]:
        errors: dict[str, HelenusError] = {}

        async def open_all(partitions: Mapping[str, str], below: int = 0) -> dict[str, str]:
            """Open a producer in these partitions, each of a topic; return those where the broker took it."""
            answers = await asyncio.gather(
                *(self.open(partition, epochs[topic] - below) for partition, topic in partitions.items()),
                return_exceptions=True,
            )
            opened_partitions = {}
            for (partition, topic), answer in zip(partitions.items(), answers, strict=True):
                if isinstance(answer, HelenusError):
                    errors[topic] = answer
                elif isinstance(answer, _Refused):
                    if not below:
                        errors[topic] = taken_over(str(answer), self._where(partition))
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    opened_partitions[partition] = topic
            return opened_partitions

        unproven = await self._partitions_of(epochs, errors)
        for _ in range(_ATTEMPTS):
            begun = time.monotonic()
            opened = await open_all(unproven)
            unproven = {partition: topic for partition, topic in opened.items() if topic not in {*errors, *proven}}
            if not unproven:
                return errors
            await asyncio.sleep(max(_SETTLE_S, 2 * (time.monotonic() - begun)))
            unproven = await open_all(unproven, below=1)
            if not unproven:
                return errors
        problem = "producers of another worker come back again and again"
        for partition, topic in unproven.items():
            errors.setdefault(topic, pulsar_error(Kind.BROKER_UNREACHABLE, problem, self._where(partition)))
        return errors

    async def _partitions_of(self, topics: Collection[str], errors: dict[str, HelenusError]) -> dict[str, str]:
        """Return the topic of each partition."""
        answers = await asyncio.gather(*map(self.partitions, topics), return_exceptions=True)
        partitions: dict[str, str] = {}
        for topic, answer in zip(topics, answers, strict=True):
            if isinstance(answer, HelenusError):
                errors[topic] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                partitions.update(dict.fromkeys(answer, topic))
        return partitions

    async def partitions(self, topic: str) -> list[str]:
        """Return the full names of a topic's partitions. Raises HelenusError, TOPIC_MISSING if it is not there."""
        full_name = self._settings.name(topic)
        count = await self._retried(lambda: self._client.partitions(full_name))
        if count is None:
            raise HelenusError(Kind.TOPIC_MISSING, "there is no such topic", self._where(full_name))
        return [f"{full_name}-partition-{number}" for number in range(count)] if count else [full_name]

    async def open(self, partition: str, epoch: int | None) -> int:
        """Open a producer with exclusive access, and return the partition's epoch: this one, or without one that which
        follows. The producer ends with the connection (`_writer.Writer` says why). Raises HelenusError, and _Refused if
        the partition has a higher epoch.
        """
        async with self._turns:
            return await self._retried(lambda: self._open(partition, epoch))

    async def _open(self, partition: str, epoch: int | None) -> int:
        connection = await self._client.broker(partition)
        number = next(self._client.numbers)
        fields: dict[str, Any] = {"topic": partition, "producer_access_mode": EXCLUSIVE_WITH_FENCING}
        if epoch is not None:
            fields["topic_epoch"] = epoch
        try:
            reply = await connection.ask("producer", producer_id=number, **fields)
        except Answered as error:
            if error.code != INCOMPATIBLE_SCHEMA:
                raise
            # As under schemaValidationEnforced, where each producer brings the topic's schema.
            schema = await self._client.schema(partition)
            reply = await connection.ask("producer", producer_id=number, schema=schema, **fields)
        if not reply.HasField("topic_epoch"):
            problem = "this version of Pulsar has no epochs of topics, by which writers are fenced"
            raise HelenusError(Kind.BROKER_REFUSED, problem, self._where(partition), "set fence.writers=false")
        return int(reply.topic_epoch)

    async def _retried(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, after transient errors too, for a while."""
        until = time.monotonic() + _TRANSIENT_S
        while True:
            try:
                return await ask()
            except HelenusError as error:
                code = error.code if isinstance(error, Answered) else None
                if code == FENCED:
                    raise _Refused(error.what) from None
                if code == TOPIC_NOT_FOUND:
                    raise HelenusError(Kind.TOPIC_MISSING, error.what, error.where) from None
                if error.action is not Action.RETRY or time.monotonic() > until:
                    raise
            await asyncio.sleep(_PAUSE_S)

    def _where(self, partition: str) -> str:
        return f"{self._settings.service_url}, topic {partition}"
