"""Dead-lettered events: those that could not be published are kept in a topic of their own, as in Kafka Connect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Log

_PREFIX = "__connect.errors."
_MAX_MESSAGE = 2000  # characters of a message: it may quote a poison event


class Failed(Protocol):
    """An event at its place in the events topic; its offset is -1 if it stands for a key without a single event."""

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


def append(log: Log, topic: str, connector: str, event: Failed, error: HelenusError, has_value: bool = True) -> None:
    """Append an event unchanged, with `__connect.errors.*` headers that say where it was and what its error is.

    If that is too large for the topic, key or value are left out: the header `__connect.errors.left.out` names them.
    Without `has_value` the value is left out in any case.
    """
    headers = {
        "topic": event.topic,
        "partition": str(event.partition),
        "offset": str(event.offset),
        "connector.name": connector,
        "exception.class.name": f"{type(error).__module__}.{type(error).__qualname__}",
        "exception.message": f"{error.what} ({error.where})"[:_MAX_MESSAGE]
        if error.where
        else error.what[:_MAX_MESSAGE],
    }
    encoded = [(f"{_PREFIX}{name}", value.encode()) for name, value in headers.items()]
    parts = [(event.key, event.value, b""), (event.key, None, b"value"), (None, None, b"key,value")]
    for key, value, left_out in parts if has_value else parts[1:]:
        try:
            log.append(topic, 0, key, value, [*encoded, (f"{_PREFIX}left.out", left_out)] if left_out else encoded)
            return
        except HelenusError as refused:
            if refused.kind is not Kind.RECORD_TOO_LARGE or left_out == b"key,value":
                raise


def origin(headers: Sequence[tuple[str, bytes | None]] | None) -> tuple[str, int]:
    """Return topic and partition that a dead letter came from. Raises ValueError if its headers do not say."""
    header_values = dict(headers or ())
    topic, partition = header_values.get(f"{_PREFIX}topic"), header_values.get(f"{_PREFIX}partition")
    if topic is None or partition is None:
        raise ValueError(f"no headers {_PREFIX}topic and {_PREFIX}partition")
    return topic.decode(), int(partition)


def is_incomplete(headers: Sequence[tuple[str, bytes | None]] | None) -> bool:
    """Return whether a part of the event was left out."""
    return f"{_PREFIX}left.out" in dict(headers or ())
