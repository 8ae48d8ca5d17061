"""The spans of sampled changes: from the read of the commit log to the broker's acknowledgement."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from helenus_schemas.cql.table import Table
from helenus_schemas.event import wire
from helenus_schemas.names import topic
from helenus_schemas.service.span_exporter import SpanQueue
from helenus_schemas.service.spans import (
    ChangeSampler,
    FinishedSpan,
    agent_span,
    change_attributes,
    table_attributes,
    topic_attributes,
)

EncodedChange = tuple[int, bytes, bytes, bytes]
"""A decoded change: the index of its table, its partition key, and the event's key and value."""


class ChangeSpans:
    """Makes a span for each change that is sampled, `ratio` of them. One thread uses it. `system` is `kafka` or
    `pulsar`, and events' topics begin with `topic_prefix`.
    """

    def __init__(self, queue: SpanQueue, ratio: float, system: str, topic_prefix: str) -> None:
        self._queue = queue
        self._sampler = ChangeSampler(ratio)
        self._system = system
        self._topic_prefix = topic_prefix
        self._unacknowledged: list[FinishedSpan] = []

    def note_appended(
        self, changes: Sequence[EncodedChange], followed: Sequence[Table], begin_ns: int, left_out: Collection[int]
    ) -> None:
        """Begin the spans of sampled changes that were read at `begin_ns`, and appended now. Tables, by index, of which
        changes were left out have none: which changes those were is not known here.
        """
        end = self._sampler.end
        for index, _, _, value in [change for change in changes if change[3][18:34] < end]:
            if not self._sampler.samples(value):
                continue
            change = wire.decode(value)
            context = agent_span(change)
            if context is None or index in left_out:
                continue
            table = followed[index]
            events_topic = topic(self._topic_prefix, table.keyspace, table.name)
            attributes = {
                **topic_attributes(self._system, events_topic, "send"),
                **table_attributes(table.keyspace, table.name),
                **change_attributes(change),
            }
            name = f"send {events_topic}"
            self._unacknowledged.append(
                FinishedSpan(name, context, begin_ns, begin_ns, kind="producer", attributes=attributes)
            )

    def finish(self) -> None:
        """End the spans of changes that the broker has acknowledged: all that were appended."""
        if self._unacknowledged:
            now_ns = time.time_ns()
            for span in self._unacknowledged:
                span.end_ns = now_ns
            self._queue.add(self._unacknowledged)
            self._unacknowledged = []

    def drop(self) -> None:
        """Drop the spans of changes that were not acknowledged: they are read, and sent, again."""
        self._unacknowledged = []
