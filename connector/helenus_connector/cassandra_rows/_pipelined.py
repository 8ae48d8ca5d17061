"""Sends several statements to one node together: in one write to its socket, without a driver request for each.

For each statement the driver makes a request with a plan, timers and locks, and reads a description of the columns with
each answer: 150 µs of CPU, several times what Cassandra takes for one key. Here statements share all of that, and a
single statement of many keys is sent in the same way. It is a first attempt only: unless all of them are answered with
rows, and soon, the caller sends them one by one through the driver, which handles nodes that are slow or down,
statements that a node has evicted, and errors.

It uses private parts of the driver. So it is enabled only for driver versions that it was tested with.
"""

from __future__ import annotations

import io
import math
import struct
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from cassandra import __version__ as driver
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Session
from cassandra.connection import ConnectionException
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ExecuteMessage, read_stringlist
from cassandra.query import BoundStatement

from helenus_connector.cassandra_rows.raw_rows import RowPage, parse

_TESTED_DRIVERS = ("3.29.", "3.30.")
_WAIT_S = 1.0
"""As long as the driver waits before it sends a request to a second node."""
_PAUSE_S, _MAX_PAUSE_S = 10.0, 600.0
"""First and longest pause after late answers. Between them it doubles."""
_EXECUTE, _RESULT = 0x0A, 0x08
_COMPRESSED, _WARNED = 0x01, 0x08
_SKIP_METADATA = 0x02
_HEADER = 9
_MAX_SEGMENT_BYTES = 64 << 10  # of frames in one segment of protocol v5, which has 128 KiB
_PREFIX = struct.Struct(">3i")
_COUNT = struct.Struct(">i")
_FRAME = struct.Struct(">hBi")
_ROWS, _ONE_TABLE, _NO_METADATA = 2, 1, 4


def is_possible(session: Any) -> bool:
    """Return whether a session's statements can be sent together. Substitutes in tests have no connections."""
    return driver.startswith(_TESTED_DRIVERS) and isinstance(session, Session)


class PipelineAttempts:
    """Decides whether a session's statements are sent together at first. Used by one thread.

    After some were not answered in time, none are sent together for 10 s. Then one attempt is made, and once that is
    answered in time, all are sent together again. The pause doubles, up to 10 minutes, if that attempt is late, or if
    the time without late answers was shorter than the last pause. So few statements are sent twice in a cluster that
    takes longer than a second for an answer.
    """

    def __init__(self, possible: bool = True) -> None:
        self._is_on = possible
        self._next_at = math.inf  # in a pause, monotonic s, as all times here
        self._pause_s = 0.0  # the last one's
        self._on_since = self._failed_at = -math.inf

    @property
    def are_allowed(self) -> bool:
        """Return whether the next statements may be sent together."""
        return self._is_on or time.monotonic() >= self._next_at

    def note_sent(self) -> None:
        """Note that statements are sent together. After a pause, no others are until these are answered."""
        if not self._is_on:
            self._next_at = time.monotonic() + self._pause_s

    def note_answered(self, sent_at: float) -> None:
        """Note that statements sent at a time were answered. Those sent before a failure change nothing."""
        if not self._is_on and sent_at > self._failed_at:
            self._is_on, self._on_since = True, time.monotonic()

    def note_undecided(self, sent_at: float) -> None:
        """Note that statements could not be sent, or had an unexpected answer, as those of an altered table have: that
        says nothing about the cluster's speed. If they were the attempt after a pause, the next ones are.
        """
        if not self._is_on and sent_at > self._failed_at:
            self._next_at = time.monotonic()

    def note_late(self, sent_at: float) -> None:
        """Note that statements sent at a time were late. Of those that were sent before a pause, only one counts."""
        now = time.monotonic()
        if sent_at <= (self._on_since if self._is_on else self._failed_at):
            return
        went_well = self._is_on and now - self._on_since > self._pause_s
        self._pause_s = _PAUSE_S if went_well else min(2 * self._pause_s, _MAX_PAUSE_S)
        self._is_on, self._failed_at, self._next_at = False, now, now + self._pause_s


_attempts: WeakKeyDictionary[Any, PipelineAttempts] = WeakKeyDictionary()


def pipeline_attempts(session: Any) -> PipelineAttempts:
    """Return the attempts of a session, which all readers of the session share."""
    return _attempts.setdefault(session, PipelineAttempts(is_possible(session)))


class NotPipelined(Exception):
    """Not all statements were answered with their rows: the caller has to send them one by one. `is_late` says that
    some were not answered in time.
    """

    def __init__(self, is_late: bool = False) -> None:
        super().__init__()
        self.is_late = is_late


class Answer(NamedTuple):
    """The rows of all statements; there are no more pages."""

    current_rows: RowPage
    paging_state: None = None


class PipelinedStatements:
    """Statements of one version of a table, sent together. Source: native protocol v4 and v5, sections 2 and 4."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._answers: list[bytes | None] | None = []  # None when nobody waits for them any more
        self._complete = threading.Event()
        self._until = 0.0
        self._pool: Any = None
        self._connection: Any = None

    def send(self, session: Any, statements: Sequence[BoundStatement]) -> None:
        """Send statements of one consistency level to the node that the driver asks for the first of them; as a rule it
        holds the keys of the others, too. Raises nothing: statements that can't be sent are not answered.
        """
        try:
            self._send(session, statements)
        except (ConnectionException, NoConnectionsAvailable, OSError):
            self._answers = None
            self._complete.set()

    def _send(self, session: Any, statements: Sequence[BoundStatement]) -> None:
        first = statements[0]
        profile = session.get_execution_profile(EXEC_PROFILE_DEFAULT)
        self._until = time.monotonic() + min(_WAIT_S, profile.request_timeout or _WAIT_S)
        host = next(iter(profile.load_balancing_policy.make_query_plan(session.keyspace, first)), None)
        pool = self._pool = session._pools.get(host)
        if pool is None or pool.is_shutdown:
            raise ConnectionException("the node is down")
        # The pool lends one stream and checks its connection; further streams are taken in the driver's own way.
        connection, stream = pool.borrow_connection(timeout=0)
        self._connection = connection
        is_open = connection._socket_writable and not (connection.is_defunct or connection.is_closed)
        extra_streams = self._count - 1
        with connection.lock:
            if not is_open or connection.in_flight + extra_streams > connection.max_request_id:
                connection.request_ids.append(stream)
                extra_streams = -1
            else:
                streams = [stream, *(connection.get_request_id() for _ in range(extra_streams))]
                connection.in_flight += extra_streams
        if extra_streams < 0:
            pool.return_connection(connection)
            raise ConnectionException("the connection is closed, or too busy")
        frames: list[bytes] = []
        session_args = (
            session.client_protocol_handler,
            connection.protocol_version,
            connection.allow_beta_protocol_version,
        )
        for stream, statement in zip(streams, statements, strict=True):
            prepared, count = statement.prepared_statement, len(statement.values)
            statement_args = prepared.query_id, prepared.result_metadata_id, statement.consistency_level, count
            start, head = _head(*session_args, *statement_args)
            body = head + _values(statement.values)
            frames += start, _FRAME.pack(stream, _EXECUTE, len(body)), body
            connection._requests[stream] = self._receive_answer, self._decode_answer, None
        _push(connection, frames)

    def result(self) -> Answer:
        """Return the answers. Waits until a second after `send`, or the driver's request timeout if that is shorter.
        Raises NotPipelined.
        """
        is_complete = self._complete.wait(max(0.0, self._until - time.monotonic()))
        answers, self._answers = self._answers, None
        if answers is None or not is_complete:
            raise NotPipelined(is_late=not is_complete)
        first = answers[0]
        if self._count == 1 and first is not None:
            return Answer(parse(first[12:], _PREFIX.unpack_from(first)[2]))
        prefix = b""
        rows, parts = 0, []
        for body in answers:
            if body is None or (prefix and body[:12] != prefix):
                raise NotPipelined
            prefix = body[:12]
            rows += _COUNT.unpack_from(body, 12)[0]
            parts.append(body[16:])
        _, _, columns = _PREFIX.unpack(prefix)
        return Answer(parse(_COUNT.pack(rows) + b"".join(parts), columns))

    def _decode_answer(
        self,
        version: int,  # noqa: ARG002
        types: Any,  # noqa: ARG002
        stream: int,  # noqa: ARG002
        flags: int,
        opcode: int,
        body: bytes,
        decompressor: Any,
        metadata: Any,  # noqa: ARG002
    ) -> bytes | None:
        """Return the body of a Rows result; None for anything else. Called by the driver, like `_receive_answer`."""
        if flags & ~(_COMPRESSED | _WARNED) or opcode != _RESULT:
            return None
        if flags & _COMPRESSED:
            body = decompressor(body)
        if flags & _WARNED:
            body = _after_warnings(body)
        if len(body) < 16:
            return None
        kind, rows_flags, _ = _PREFIX.unpack_from(body)
        return body if kind == _ROWS and rows_flags | _ONE_TABLE == _ONE_TABLE | _NO_METADATA else None

    def _receive_answer(self, answer: object) -> None:
        self._pool.return_connection(self._connection)
        answers = self._answers
        if answers is None:
            return
        answers.append(answer if isinstance(answer, bytes) else None)
        if len(answers) >= self._count or not isinstance(answer, bytes):
            self._complete.set()


def _after_warnings(body: bytes) -> bytes:
    """Return an answer without its warnings, such as those about tombstones. Cassandra logs them, too."""
    reader = io.BytesIO(body)
    read_stringlist(reader)
    return reader.read()


@lru_cache(1000)
def _head(
    handler: Any, version: int, is_beta: bool, query_id: bytes, metadata: bytes | None, consistency: int, count: int
) -> tuple[bytes, bytes]:
    """Return the start of a statement's frame, up to its stream, and of its body, up to its `count` values."""
    message = ExecuteMessage(query_id, [], consistency, result_metadata_id=metadata)
    encoded = handler.encode_message(message, 0, version, None, is_beta)
    body = bytearray(encoded[_HEADER:])
    body[-3] |= _SKIP_METADATA  # the last byte of the flags, before the number of values
    body[-2:] = struct.pack(">H", count)
    return encoded[:2], bytes(body)


def _values(values: Sequence[bytes]) -> bytes:
    """Encode values, each after its length. The values of many keys mostly have the same length."""
    size = len(values[0]) if values else 0
    if [len(value) for value in values].count(size) == len(values) > 0:
        length_prefix = _COUNT.pack(size)
        return length_prefix + length_prefix.join(values)
    return b"".join([part for value in values for part in (_COUNT.pack(len(value)), value)])


def _push(connection: Any, frames: Sequence[bytes]) -> None:
    """Write frames, each given as three pieces, in as few segments as possible."""
    if not connection._is_checksumming_enabled:
        connection.push(b"".join(frames))
        return
    buffer = io.BytesIO()
    segment: list[bytes] = []
    segment_bytes = 0
    for index in range(0, len(frames), 3):
        frame = b"".join(frames[index : index + 3])
        if segment and segment_bytes + len(frame) > _MAX_SEGMENT_BYTES:
            connection._segment_codec.encode(buffer, b"".join(segment))
            segment, segment_bytes = [], 0
        segment.append(frame)
        segment_bytes += len(frame)
    connection._segment_codec.encode(buffer, b"".join(segment))
    connection.push(buffer.getvalue())
