"""Spans of OpenTelemetry as plain data, with ids that processes agree on without speaking to each other.

A change's trace id is its digest, the MD5 that every replica's agent computes of the mutation: 16 bytes, as a trace id
has. So the spans of all replicas' agents and of the connector are in one trace, and OpenTelemetry's TraceIdRatioBased,
which goes by the trace id alone, has all of them sample the same changes. The id of an agent's span follows from what
its event says, so the connector knows its parent, and an event needs no header. Loads nothing of OpenTelemetry: Spark's
Python workers make spans too, which the driver exports.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import structlog

from helenus_schemas.event.change import Change

TRACEPARENT = "traceparent"
"""The header of W3C's Trace Context."""
_TRACEPARENT = re.compile(rb"00-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-[0-9a-f]{2}")
_TRACE_ID = re.compile("(?!0{32})[0-9a-f]{32}")
_ANY_DIGIT = b"g"  # sorts after every hexadecimal digit

SpanKind = Literal["internal", "producer", "consumer"]
AttributeValue = str | int | float | bool


class SpanContext(NamedTuple):
    """A span's ids in small hexadecimal digits: 32 of its trace, 16 of its own."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> bytes:
        """Return the value of W3C's header, for a sampled trace."""
        return f"00-{self.trace_id}-{self.span_id}-01".encode()


@dataclass(slots=True)
class FinishedSpan:
    """A span that has ended; times in ns since the epoch. `error` says why what it shows has failed."""

    name: str
    context: SpanContext
    start_ns: int
    end_ns: int
    parent: SpanContext | None = None
    kind: SpanKind = "internal"
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    links: list[SpanContext] = field(default_factory=list)
    error: str | None = None


def new_span_id() -> str:
    """Return a span id at random."""
    return os.urandom(8).hex()


def new_trace() -> SpanContext:
    """Return the ids of the first span of a new trace, at random."""
    return SpanContext(os.urandom(16).hex(), new_span_id())


def is_trace_id(digest: str | None) -> bool:
    """Return whether a digest, which a topic may hold in any form, is a trace id as W3C and OTLP have it: receivers
    refuse all spans that come with one of another id.
    """
    return digest is not None and _TRACE_ID.fullmatch(digest) is not None


def parse_traceparent(value: bytes | None) -> SpanContext | None:
    """Return the ids in a header of another program; None for anything but version 00 of W3C's form."""
    match = _TRACEPARENT.fullmatch(value or b"")
    return SpanContext(match[1].decode(), match[2].decode()) if match else None


def agent_span(change: Change) -> SpanContext | None:
    """Return the ids of the span in which an agent sent a change. It is the same when the agent sends it again, and
    another one on each node. None for a change that no agent of ours read from a commit log.
    """
    if change.digest is None or change.node is None or change.segment < 0:
        return None
    text = f"{change.digest} {change.node} {change.segment} {change.position} {change.part}"
    return SpanContext(change.digest, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


def change_attributes(change: Change) -> dict[str, AttributeValue]:
    """Return the attributes that say which change it is. None of them is, or is made of, a value of the row."""
    attributes: dict[str, AttributeValue] = {"helenus.scope": change.scope.name.lower()}
    if change.node is not None:
        attributes["helenus.node"] = change.node
    if change.segment >= 0:
        attributes |= {"helenus.segment": change.segment, "helenus.position": change.position}
    if change.write_time is not None:
        attributes["helenus.write_time"] = change.write_time
    return attributes


def table_attributes(keyspace: str, table: str) -> dict[str, AttributeValue]:
    """Return the attributes of a table, by OpenTelemetry's semantic conventions."""
    return {"db.system.name": "cassandra", "db.namespace": keyspace, "db.collection.name": table}


def topic_attributes(system: str, topic: str, operation: str) -> dict[str, AttributeValue]:
    """Return the attributes of sending to a topic, or processing its records, by the semantic conventions."""
    return {"messaging.system": system, "messaging.destination.name": topic, "messaging.operation.type": operation}


class ChangeSampler:
    """Decides by OpenTelemetry's TraceIdRatioBased which changes are traced: `ratio` of them, 0 to 1.

    In a loop over all events, leave out those whose value has `value[18:34] >= end` first: a third of a call's time.
    """

    def __init__(self, ratio: float) -> None:
        # Of a ratio of 1 this would be a digit more than the ids have.
        end = round(ratio * 2**64)
        self.end = b"%016x" % end if end < 1 << 64 else _ANY_DIGIT

    def samples(self, value: bytes) -> bool:
        """Return whether the change in an event's value is traced: one that has a digest, whose last 8 bytes decide.
        The value is as our agents encode it: a digest of 32 characters follows two bytes.
        """
        return value[18:34] < self.end and value[:2] == b"\2@"


@contextmanager
def logged_context(context: SpanContext) -> Iterator[None]:
    """Have log lines of this thread carry the ids of a span, by the names that OpenTelemetry has for them."""
    ids = {"trace_id": context.trace_id, "span_id": context.span_id}
    with structlog.contextvars.bound_contextvars(**ids):
        yield
