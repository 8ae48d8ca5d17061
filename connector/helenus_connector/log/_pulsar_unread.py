"""Dead letters on Pulsar, for the replay: those that a subscription has not read.

The broker says where these begin and end, so slow messages are not taken for missing ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pulsar

from helenus_connector.log._pulsar_offsets import offset, offset_of, parts
from helenus_connector.log._pulsar_planner import PulsarPlanner
from helenus_connector.log._pulsar_reader import PulsarMessage, converted, opened
from helenus_sinks.pulsar.config import PulsarConfig

_CHUNK = 5_000
_PATIENCE_S = 60.0
_SLICE_MS = 500


def unread(config: PulsarConfig, group: str, topic: str, partition: int) -> Iterator[list[PulsarMessage]]:
    """Read as `choice.unread`."""
    planner = PulsarPlanner(config)
    try:
        offset_range = planner.unread(group, topic, partition)
        if offset_range.start >= offset_range.end:
            return
        with opened(config, topic, partition, offset_range.start) as reader:
            chunk: list[PulsarMessage] = []
            while reader.has_message_available():
                message = _next(reader)
                next_offset = offset_of(message) + 1
                if next_offset > offset_range.end:
                    break
                chunk.append(
                    converted(
                        offset_range, message, [(name, value.encode()) for name, value in message.properties().items()]
                    )
                )
                if next_offset == offset_range.end:
                    break
                if len(chunk) == _CHUNK:
                    yield chunk
                    chunk = []
                    planner.commit(group, {topic: {str(partition): next_offset}})
            if chunk:
                yield chunk
        ledger, entry, _ = parts(offset_range.end - 1)
        planner.commit(group, {topic: {str(partition): offset(ledger, entry + 1, 0)}})
    finally:
        planner.close()


def _next(reader: Any) -> Any:
    """Return the next message, which exists. Raises pulsar.Timeout after a minute without it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return reader.read_next(_SLICE_MS)
        except pulsar.Timeout:
            if time.monotonic() > deadline:
                raise
