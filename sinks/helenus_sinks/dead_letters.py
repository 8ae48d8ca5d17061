"""Events that could not be processed, kept in a topic of their own, as Kafka Connect does."""

from __future__ import annotations

from typing import Protocol

from helenus_schemas.errors import HelenusError
from helenus_sinks.log import Log


class Failed(Protocol):
    """An event at its place in the Log."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


def append(log: Log, topic: str, connector: str, event: Failed, error: HelenusError) -> None:
    """Append an event as it was, with `__connect.errors.*` headers that say where it was and why it is here."""
    headers = {
        "topic": event.topic,
        "partition": str(event.partition),
        "offset": str(event.offset),
        "connector.name": connector,
        "exception.class.name": f"{type(error).__module__}.{type(error).__qualname__}",
        "exception.message": error.what,
    }
    encoded = [(f"__connect.errors.{name}", value.encode()) for name, value in headers.items()]
    log.append(topic, 0, event.key, event.value, encoded)
