"""The schemas of a data topic on Pulsar, by the versions that its records name."""

from __future__ import annotations

import asyncio

from helenus_connector.log._pulsar_reader import TIMEOUT_S
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.client import Client, end_loop
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import pulsar_error
from helenus_sinks.pulsar.wire import texts_of


class PulsarTopicSchemas:
    """The schemas of one topic."""

    def __init__(self, config: PulsarConfig, topic: str) -> None:
        self._config = config
        self._topic = config.name(topic)
        self._client = Client(config.service_url, config.access)
        self._loop = asyncio.new_event_loop()
        self._first_partition: str | None = None
        self._texts: dict[int, tuple[str | None, str | None]] = {}

    def texts(self, version: int) -> tuple[str | None, str | None]:
        """Return the schemas of keys and values; None where there is none. Raises HelenusError."""
        if version < 0:
            return None, None
        if version not in self._texts:
            try:
                self._texts[version] = self._loop.run_until_complete(asyncio.wait_for(self._ask(version), TIMEOUT_S))
            except asyncio.TimeoutError:
                problem = f"Pulsar does not answer within {TIMEOUT_S:.0f} s"
                raise pulsar_error(Kind.BROKER_UNREACHABLE, problem, self._config.service_url) from None
        return self._texts[version]

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._client.close()
        end_loop(self._loop)

    async def _ask(self, version: int) -> tuple[str | None, str | None]:
        if self._first_partition is None:
            # A topic has the same schemas in all its partitions.
            partitions = await self._client.partitions(self._topic)
            if partitions is None:
                raise HelenusError(Kind.TOPIC_MISSING, "the topic is gone", self._topic)
            self._first_partition = f"{self._topic}-partition-0" if partitions else self._topic
        return texts_of(await self._client.schema(self._first_partition, version))
