"""The trace of a batch of one table: its steps, and the sampled changes on their way to a record.

Most batches have a handful of sampled changes or none. They are picked once, by their digests, before the stage runs.
Their records get the header `traceparent` from a shape around the table's: with no sampled change in a batch, and
without traces, a record takes the way that it always takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_connector.pipeline._table_version import TableVersion, TableVersions
from helenus_connector.pipeline._untraced import UNTRACED as UNTRACED
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError
from helenus_schemas.event import wire
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.service.spans import (
    TRACEPARENT,
    AttributeValue,
    ChangeSampler,
    FinishedSpan,
    SpanContext,
    agent_span,
    change_attributes,
    is_trace_id,
    logged_context,
    new_span_id,
    new_trace,
    parse_traceparent,
    table_attributes,
    topic_attributes,
)


class TracedBatch(NamedTuple):
    """What a task needs to know of its batch's span: its ids, and which part of the changes is traced."""

    context: SpanContext
    ratio: float


def begin_traced_batch(ratio: float) -> TracedBatch:
    """Return a batch of a trace of its own."""
    return TracedBatch(new_trace(), ratio)


@dataclass(slots=True)
class _TracedChange:
    """A sampled change's event: the ids of the span of its processing, and of that of the record. `resolved` is the
    result for its key, once it is shaped. `application` is the span of whoever set the record's header before.
    """

    event: Event
    change: Change
    processing: SpanContext
    sending: SpanContext
    resolved: ResolvedKey | None = None
    shaped_ns: int = 0
    application: SpanContext | None = None


class TableTrace:
    """The trace of one table's part of a batch. `systems` are those of events and of records, `kafka` or `pulsar`. The
    thread that runs the table's stage uses it.
    """

    def __init__(
        self, batch: TracedBatch, settings: ConnectorSettings, events: Sequence[Event], systems: tuple[str, str]
    ) -> None:
        self.context = SpanContext(batch.context.trace_id, new_span_id())
        self._batch = batch
        self._settings = settings
        self._systems = systems
        self._begin_ns = self._step_ns = time.time_ns()
        self._steps: list[FinishedSpan] = []
        sampler = ChangeSampler(batch.ratio)
        end = sampler.end
        sampled = [event for event in events if event.value is not None and event.value[18:34] < end]
        changes = (_traced_change(event) for event in sampled if sampler.samples(event.value or b""))
        self._changes = [change for change in changes if change is not None]
        self._by_key: dict[bytes | None, list[_TracedChange]] = {}
        for traced in self._changes:
            self._by_key.setdefault(traced.event.key, []).append(traced)

    def logged(self) -> AbstractContextManager[None]:
        """Return a context in which log lines carry the ids of this table's span."""
        return logged_context(self.context)

    def end_step(self, name: str) -> None:
        """Note that a step of the stage ends now, and the next one begins."""
        begin_ns, self._step_ns = self._step_ns, time.time_ns()
        context = SpanContext(self.context.trace_id, new_span_id())
        self._steps.append(FinishedSpan(name, context, begin_ns, self._step_ns, parent=self.context))

    def traced_versions(self, versions: TableVersions) -> TableVersions:
        """Return versions whose shape gives the records of sampled changes their header: the same ones if there are
        none.
        """
        return _TracedVersions(versions, self) if self._by_key else versions

    def change_of(self, resolved: ResolvedKey) -> _TracedChange | None:
        """Return the sampled change that a result is of, the latest one if its row was read for several. It is noted
        that the result is shaped now.
        """
        changes = self._by_key.get(resolved.key)
        if changes is None or resolved.event is None:
            return None
        if not resolved.is_read:  # each change has its own
            event = resolved.event
            changes = [c for c in changes if (c.event.partition, c.event.offset) == (event.partition, event.offset)]
        now_ns = time.time_ns()
        for change in changes:
            change.resolved, change.shaped_ns = resolved, now_ns
        return changes[-1] if changes else None

    def finish(self, outcome: BatchOutcome | None, error: HelenusError | None) -> tuple[FinishedSpan, ...]:
        """Return all spans, once the stage has ended: with an `outcome`, or with an `error`."""
        end_ns, settings = time.time_ns(), self._settings
        name = f"{settings.keyspace}.{settings.table}"
        attributes = {**table_attributes(settings.keyspace, settings.table), "helenus.connector": settings.name}
        if outcome is not None:
            attributes |= _outcome_attributes(outcome)
        table_span = FinishedSpan(
            f"table {name}",
            self.context,
            self._begin_ns,
            end_ns,
            parent=self._batch.context,
            attributes=attributes,
            error=None if error is None else error.kind.value,
        )
        changes = (span for change in self._changes for span in self._change_spans(change, end_ns, error))
        return (table_span, *self._steps, *changes)

    def _change_spans(self, traced: _TracedChange, end_ns: int, error: HelenusError | None) -> Iterator[FinishedSpan]:
        """Yield the span of a change's processing, and that of its record if there is one."""
        event, resolved, settings = traced.event, traced.resolved, self._settings
        has_record = error is None and resolved is not None and resolved.published and resolved.records > 0
        attributes: dict[str, AttributeValue] = {
            **topic_attributes(self._systems[0], event.topic, "process"),
            "messaging.destination.partition.id": str(event.partition),
            **table_attributes(settings.keyspace, settings.table),
            **change_attributes(traced.change),
            "helenus.connector": settings.name,
            "helenus.appended": event.timestamp,
            "helenus.has_record": has_record,
        }
        if self._systems[0] == "kafka":
            attributes["messaging.kafka.offset"] = event.offset
        yield FinishedSpan(
            f"process {event.topic}",
            traced.processing,
            self._begin_ns,
            end_ns,
            parent=agent_span(traced.change),
            kind="consumer",
            attributes=attributes,
            links=[self.context],
            error=None if error is None else error.kind.value,
        )
        if has_record and resolved is not None:
            record_attributes = topic_attributes(self._systems[1], settings.data, "send")
            record_attributes["messaging.destination.partition.id"] = str(resolved.partition)
            yield FinishedSpan(
                f"send {settings.data}",
                traced.sending,
                traced.shaped_ns,
                end_ns,
                parent=traced.processing,
                kind="producer",
                attributes={**record_attributes, **table_attributes(settings.keyspace, settings.table)},
                links=[] if traced.application is None else [traced.application],
            )


def _traced_change(event: Event) -> _TracedChange | None:
    """Return a sampled event with its ids; None for what has no key, or no meaning: the stage says what that is."""
    try:
        change = wire.decode(event.value or b"")
    except Malformed:
        return None
    if change.digest is None or not is_trace_id(change.digest) or change.scope in (Scope.TABLE, Scope.GAP):
        return None
    processing, sending = (SpanContext(change.digest, new_span_id()) for _ in range(2))
    return _TracedChange(event, change, processing, sending)


def _outcome_attributes(outcome: BatchOutcome) -> dict[str, AttributeValue]:
    """Return the numbers of a batch that are not 0."""
    counts = {
        "events": outcome.read,
        "records": outcome.records,
        "events.published": outcome.published,
        "events.unchanged": outcome.unchanged,
        "events.confirmed": outcome.confirmed,
        "events.dead_lettered": outcome.dead_lettered,
        "events.dropped": outcome.dropped,
        "keys.read": outcome.keys_read,
        "keys.waiting": len(outcome.waiting),
        "statements": outcome.statements,
        "query_seconds": outcome.query_seconds,
    }
    return {f"helenus.{name}": count for name, count in counts.items() if count}


class _TracedVersions(TableVersions):
    """Follows the same versions as others do, and has a traced shape."""

    def __init__(self, versions: TableVersions, trace: TableTrace) -> None:
        self._versions = versions
        self._trace = trace

    @property
    def current(self) -> TableVersion:  # type: ignore[override]  # nothing sets it here
        version = self._versions.current
        return version._replace(shape=_TracedShape(version.shape, self._trace))


class _TracedShape:
    """A shape around another one: records of sampled changes get the header."""

    def __init__(self, shape: Shape, trace: TableTrace) -> None:
        self._shape = shape
        self._trace = trace

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        traced = self._trace.change_of(resolved)
        records = self._shape.records(resolved)
        return records if traced is None else (_with_header(shaped, traced) for shaped in records)

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        records = list(self._shape.rows(resolved))
        for index, resolved_key in enumerate(resolved):
            record = records[index]
            if record is not None and (traced := self._trace.change_of(resolved_key)) is not None:
                records[index] = _traced_record(record, traced)
        return records

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._shape.smaller(image)


def _with_header(shaped: ShapedRecord | None, traced: _TracedChange) -> ShapedRecord | None:
    if shaped is None or shaped.cause is not None:
        return shaped
    make: Callable[[Image | None], Record] = partial(_make_traced, shaped.make, traced)
    return shaped._replace(record=_traced_record(shaped.record, traced), make=make)


def _make_traced(make: Callable[[Image | None], Record], traced: _TracedChange, image: Image | None) -> Record:
    return _traced_record(make(image), traced)


def _traced_record(record: Record, traced: _TracedChange) -> Record:
    """Return a record with the header, unless a transform has set one: that is the application's, and stays."""
    headers = record.headers
    for name, value in headers:
        if name == TRACEPARENT:
            traced.application = parse_traceparent(value)
            return record
    return Record(record[0], record[1], [*headers, (TRACEPARENT, traced.sending.traceparent)])
