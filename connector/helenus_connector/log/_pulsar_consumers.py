"""Consumers on Pulsar. Most read nothing: they ask a broker where a topic ends, and move a group's subscription.

pulsar-client's own consumers don't show the position of a subscription, and prefetch messages that nobody reads here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from helenus_connector.log._pulsar_offsets import NONE
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.client import Client
from helenus_sinks.pulsar.connection import Connection, Consuming
from helenus_sinks.pulsar.errors import TOPIC_NOT_FOUND, Answered
from helenus_sinks.pulsar.wire import command

_EXCLUSIVE, _FAILOVER = 0, 2
_EARLIEST = 1


class PulsarConsumers:
    """One for each partition and subscription in use, until it is dropped. Everything runs in one event loop.

    A subscription is a group's, which is durable, or for "" one that leaves no trace. `where` is the client's service.
    With `is_shared` other processes may have consumers of a group's subscription at the same time.
    """

    def __init__(self, client: Client, where: str, is_shared: bool = False) -> None:
        self._client = client
        self._type = _FAILOVER if is_shared else _EXCLUSIVE
        self._where = where
        # By topic, place and group: the connection and the number there.
        self._consumers: dict[tuple[str, str, str], tuple[Connection, int]] = {}

    async def ask(self, topic: str, partition_name: str, group: str, command_name: str, **fields: Any) -> Any:
        """Return the answer to a command. `partition_name` is the full name of a partition of the topic. Raises
        HelenusError.
        """
        consumer = self._consumers.get((topic, partition_name, group))
        try:
            if consumer is None or consumer[0].closed or consumer[1] not in consumer[0].consumers:
                consumer = self._consumers[topic, partition_name, group] = await self._subscribe(partition_name, group)
            connection, number = consumer
            return await connection.ask(command_name, consumer_id=number, **fields)
        except Answered as error:
            raise Answered(error.kind, error.what, f"{error.where}, topic {partition_name}", error.code) from None

    async def drop(self, is_dropped: Callable[[str, str], bool]) -> None:
        """Close the consumers for whose topic and group `is_dropped` returns true."""
        dropped = [self._consumers.pop(key) for key in list(self._consumers) if is_dropped(key[0], key[2])]
        requests = []
        for connection, number in dropped:
            if number in connection.consumers:
                del connection.consumers[number]
                requests.append(connection.ask("close_consumer", consumer_id=number))
        await asyncio.gather(*requests, return_exceptions=True)  # with the connection gone, so is the consumer

    async def _subscribe(self, partition_name: str, group: str) -> tuple[Connection, int]:
        await count(self._client, self._where, partition_name.partition("-partition-")[0])
        where = {"initialPosition": _EARLIEST} if group else {"start_message_id": {"ledgerId": NONE, "entryId": NONE}}
        name = group or f"helenus-look-{uuid.uuid4().hex[:12]}"
        return await subscribe(self._client, partition_name, name, durable=bool(group), subType=self._type, **where)


async def count(client: Client, where: str, topic: str) -> int:
    """Return how many partitions a topic has, 0 if it is not partitioned. Raises HelenusError, also if there is no such
    topic: where brokers create topics by themselves, a consumer would create a deleted one again.
    """
    partitions = await client.partitions(topic)
    if partitions is None:
        raise Answered(Kind.BROKER_REFUSED, "Pulsar: there is no such topic", where, TOPIC_NOT_FOUND)
    return partitions


async def subscribe(
    client: Client, partition_name: str, subscription: str, consumer: Consuming | None = None, **fields: Any
) -> tuple[Connection, int]:
    """Subscribe to a partition, alone unless the fields say otherwise, by its full name; returns the connection that
    has the consumer, and the number that it has there. Raises HelenusError.
    """
    connection = await client.broker(partition_name)
    number = next(client.numbers)
    connection.consumers[number] = consumer
    try:
        await connection.ask(
            "subscribe",
            topic=partition_name,
            subscription=subscription,
            consumer_id=number,
            **{"subType": _EXCLUSIVE, **fields},
        )
    except asyncio.CancelledError:  # the broker may have it nevertheless, and would refuse the next one
        connection.consumers.pop(number, None)
        connection.write(command("close_consumer", consumer_id=number, request_id=0))
        raise
    except HelenusError:
        connection.consumers.pop(number, None)
        raise
    return connection, number
