"""Events that could not be told, kept in a topic of their own, as Kafka Connect does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from helenus_schemas.errors import HelenusError
from helenus_sinks.log import Log

_PREFIX = "__connect.errors."


class Failed(Protocol):
    """An event at its place in the Log; its offset is -1 if it was made for a key that no single event asked for."""

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
    encoded = [(f"{_PREFIX}{name}", value.encode()) for name, value in headers.items()]
    log.append(topic, 0, event.key, event.value, encoded)


def origin(headers: Sequence[tuple[str, bytes | None]] | None) -> tuple[str, int]:
    """Topic and partition a dead letter came from. Raises ValueError if its headers do not say."""
    told = dict(headers or ())
    topic, partition = told.get(f"{_PREFIX}topic"), told.get(f"{_PREFIX}partition")
    if topic is None or partition is None:
        raise ValueError(f"no headers {_PREFIX}topic and {_PREFIX}partition")
    return topic.decode(), int(partition)
