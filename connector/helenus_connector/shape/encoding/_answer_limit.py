"""A limit to what a registry may answer: its client reads any answer to its end, into memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

MAX_ANSWER_BYTES = 16 << 20
"""Largest answer that is read: a schema of a thousand columns has some 100 kB, a list of 10,000 subjects some 500."""
_MAX_ANSWER_S = 30.0
"""Longest time for a whole answer: the client's own timeout is for each of its parts."""


class TooLarge(Exception):
    """Raised for an answer that is larger than any of a registry's, or does not end."""


def limit_answers(client: Any) -> None:
    """Limit size and time of the answers to a SchemaRegistryClient, unless its HTTP library has no hooks."""
    session = getattr(getattr(client, "_rest_client", None), "session", None)
    hooks = getattr(session, "event_hooks", None)
    if session is None or not isinstance(hooks, dict):
        return
    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks = {**hooks, "response": [*hooks.get("response", ()), _limit_response]}


def _limit_response(response: Any) -> None:
    """Limit an answer of httpx, which calls this before it reads the content."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":  # which was not asked for, and hides how long it is
        raise TooLarge(f"an answer that is compressed: {encoding[:20]}")
    response.stream = _limit_stream(response.stream)


def _limit_stream(stream: Any) -> Any:
    """Return the same stream, which ends at the limits. httpx checks that it has the stream's base class."""
    return type("Limited", (_LimitedStream, *type(stream).__bases__), {})(stream)


class _LimitedStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size, deadline = 0, time.monotonic() + _MAX_ANSWER_S
        for chunk in self._stream:
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise TooLarge(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TooLarge(f"an answer that does not end within {_MAX_ANSWER_S:.0f} s")
            yield chunk

    def close(self) -> None:
        self._stream.close()
