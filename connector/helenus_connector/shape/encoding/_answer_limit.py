"""A limit to what a registry may answer: its client reads any answer to its end, into memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

MOST_BYTES = 16 << 20
"""Of an answer: a schema of a thousand columns has some 100 kB, a list of 10,000 subjects some 500."""
_MOST_S = 30.0
"""For an answer: the client's own limit is for each of its parts."""


class TooLarge(Exception):
    """An answer that is larger than any of a registry, or does not end."""


def limit_answers(client: Any) -> None:
    """Limit the answers to a SchemaRegistryClient. One whose HTTP library is none with hooks stays as it is."""
    session = getattr(getattr(client, "_rest_client", None), "session", None)
    hooks = getattr(session, "event_hooks", None)
    if session is None or not isinstance(hooks, dict):
        return
    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks = {**hooks, "response": [*hooks.get("response", ()), _limit]}


def _limit(response: Any) -> None:
    """Called with each answer of httpx, before its content is read."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":  # which was not asked for, and hides how long it is
        raise TooLarge(f"an answer that is compressed: {encoding[:20]}")
    response.stream = _limited(response.stream)


def _limited(stream: Any) -> Any:
    """The same stream, which ends at the limits; httpx checks that it is of its base class."""
    return type("Limited", (_Limited, *type(stream).__bases__), {})(stream)


class _Limited:
    def __init__(self, stream: Any) -> None:
        self._whole = stream

    def __iter__(self) -> Iterator[bytes]:
        size, deadline = 0, time.monotonic() + _MOST_S
        for part in self._whole:
            size += len(part)
            if size > MOST_BYTES:
                raise TooLarge(f"an answer of more than {MOST_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TooLarge(f"an answer that does not end within {_MOST_S:.0f} s")
            yield part

    def close(self) -> None:
        self._whole.close()
