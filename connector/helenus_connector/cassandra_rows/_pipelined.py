"""Statements that go to one node together: one write to its socket, and no request of the driver for each.

For each statement the driver makes a request with a plan, timers and locks, and reads a description of the columns with
each answer: 150 µs of CPU, several times what Cassandra takes for one key. Here statements share all of that, and one
of many keys goes alone in the same way. It is a first attempt only: unless rows come of all of them, and soon, they are
to be sent one by one, with all that the driver does about nodes that are slow or away, statements that a node has
forgotten, and errors.

It takes parts of the driver that are not made for others. So it is only for versions of it that this was tried with.
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

_TRIED = ("3.30.",)
_WAIT_S = 1.0
"""As long as the driver waits before it asks a second node."""
_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0
_EXECUTE, _RESULT = 0x0A, 0x08
_COMPRESSED, _WARNED = 0x01, 0x08
_SKIP_METADATA = 0x02
_HEADER = 9
_MOST_BYTES = 64 << 10  # of frames in one segment of protocol v5, which has 128 KiB
_PREFIX = struct.Struct(">3i")
_COUNT = struct.Struct(">i")
_FRAME = struct.Struct(">hBi")
_ROWS, _ONE_TABLE, _NO_METADATA = 2, 1, 4


def is_possible(session: Any) -> bool:
    """Whether a session's statements can be sent together. What takes its place in tests has no connections."""
    return driver.startswith(_TRIED) and isinstance(session, Session)


class PipelineAttempts:
    """Whether a session's statements are sent together first. For one thread.

    When some are not answered in time, none are sent together for 10 s. Then one attempt is made, and once that is
    answered in time, all are sent together again. The pause doubles, up to 10 minutes, when that attempt is late, or
    when all went well for less time than the last pause. So where a cluster takes longer than a second for an answer,
    few statements are sent twice.
    """

    def __init__(self, possible: bool = True) -> None:
        self._is_on = possible
        self._next_at = math.inf  # in a pause, monotonic s, as all times here
        self._pause_s = 0.0  # the last one's
        self._on_since = self._failed_at = -math.inf

    @property
    def are_made(self) -> bool:
        """Whether the next statements may be sent together."""
        return self._is_on or time.monotonic() >= self._next_at

    def begin(self) -> None:
        """Statements are sent together. After a pause, others are not until these are answered."""
        if not self._is_on:
            self._next_at = time.monotonic() + self._pause_s

    def answered(self, sent: float) -> None:
        """Statements sent at a time were answered. What was sent before a failure says nothing new."""
        if not self._is_on and sent > self._failed_at:
            self._is_on, self._on_since = True, time.monotonic()

    def undecided(self, sent: float) -> None:
        """Statements of a time could not be sent, or had an odd answer, as those of an altered table have: that says
        nothing of the cluster. If they were the attempt after a pause, the next ones are.
        """
        if not self._is_on and sent > self._failed_at:
            self._next_at = time.monotonic()

    def late(self, sent: float) -> None:
        """Statements sent at a time were not answered in time. Of those that were sent before a pause, one counts."""
        now = time.monotonic()
        if sent <= (self._on_since if self._is_on else self._failed_at):
            return
        went_well = self._is_on and now - self._on_since > self._pause_s
        self._pause_s = _PAUSE_S if went_well else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._is_on, self._failed_at, self._next_at = False, now, now + self._pause_s


_attempts: WeakKeyDictionary[Any, PipelineAttempts] = WeakKeyDictionary()


def pipeline_attempts(session: Any) -> PipelineAttempts:
    """A session's, which all who read with it share."""
    return _attempts.setdefault(session, PipelineAttempts(is_possible(session)))


class NotPipelined(Exception):
    """Not all statements were answered with their rows: they are to be sent one by one. `is_late`: some were not
    answered in time.
    """

    def __init__(self, is_late: bool = False) -> None:
        super().__init__()
        self.is_late = is_late


class Answer(NamedTuple):
    """The rows of all statements; there are no more pages."""

    current_rows: RowPage
    paging_state: None = None


class PipelinedStatements:
    """Some statements of a version of a table that are asked for. Source: native protocol v4 and v5, sections 2, 4."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._answers: list[bytes | None] | None = []  # None when nobody waits for them any more
        self._all = threading.Event()
        self._until = 0.0
        self._pool: Any = None
        self._connection: Any = None

    def send(self, session: Any, statements: Sequence[BoundStatement]) -> None:
        """Send statements of one consistency level, whose keys are at home on the same nodes. Raises nothing: what is
        not sent is not answered.
        """
        try:
            self._send(session, statements)
        except (ConnectionException, NoConnectionsAvailable, OSError):
            self._answers = None
            self._all.set()

    def _send(self, session: Any, statements: Sequence[BoundStatement]) -> None:
        first = statements[0]
        profile = session.get_execution_profile(EXEC_PROFILE_DEFAULT)
        self._until = time.monotonic() + min(_WAIT_S, profile.request_timeout or _WAIT_S)
        host = next(iter(profile.load_balancing_policy.make_query_plan(session.keyspace, first)), None)
        pool = self._pool = session._pools.get(host)
        if pool is None or pool.is_shutdown:
            raise ConnectionException("the node is down")
        # The pool lends one stream, and sees to its connection; more of them are taken as the driver does.
        connection, stream = pool.borrow_connection(timeout=0)
        self._connection = connection
        is_open = connection._socket_writable and not (connection.is_defunct or connection.is_closed)
        more = self._count - 1
        with connection.lock:
            if not is_open or connection.in_flight + more > connection.max_request_id:
                connection.request_ids.append(stream)
                more = -1
            else:
                streams = [stream, *(connection.get_request_id() for _ in range(more))]
                connection.in_flight += more
        if more < 0:
            pool.return_connection(connection)
            raise ConnectionException("the connection is closed, or too busy")
        frames: list[bytes] = []
        of_session = (
            session.client_protocol_handler,
            connection.protocol_version,
            connection.allow_beta_protocol_version,
        )
        for stream, statement in zip(streams, statements, strict=True):
            prepared, count = statement.prepared_statement, len(statement.values)
            of_statement = prepared.query_id, prepared.result_metadata_id, statement.consistency_level, count
            start, head = _head(*of_session, *of_statement)
            body = head + _values(statement.values)
            frames += start, _FRAME.pack(stream, _EXECUTE, len(body)), body
            connection._requests[stream] = self._answered, self._decoded, None
        _push(connection, frames)

    def result(self) -> Answer:
        """The answers. They may come up to a second after they were asked for, or up to the driver's request timeout if
        that is less. Raises Apart.
        """
        is_there = self._all.wait(max(0.0, self._until - time.monotonic()))
        answers, self._answers = self._answers, None
        if answers is None or not is_there:
            raise NotPipelined(is_late=not is_there)
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

    def _decoded(
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
        """The body of a Rows result as it is; None for anything else. Called by the driver, as is `_answered`."""
        if flags & ~(_COMPRESSED | _WARNED) or opcode != _RESULT:
            return None
        if flags & _COMPRESSED:
            body = decompressor(body)
        if flags & _WARNED:
            body = _after_warnings(body)
        if len(body) < 16:
            return None
        kind, of_rows, _ = _PREFIX.unpack_from(body)
        return body if kind == _ROWS and of_rows | _ONE_TABLE == _ONE_TABLE | _NO_METADATA else None

    def _answered(self, answer: object) -> None:
        self._pool.return_connection(self._connection)
        answers = self._answers
        if answers is None:
            return
        answers.append(answer if isinstance(answer, bytes) else None)
        if len(answers) >= self._count or not isinstance(answer, bytes):
            self._all.set()


def _after_warnings(body: bytes) -> bytes:
    """An answer after its warnings, as of many tombstones. Cassandra logs them, too."""
    read = io.BytesIO(body)
    read_stringlist(read)
    return read.read()


@lru_cache(1000)
def _head(
    handler: Any, version: int, is_beta: bool, name: bytes, metadata: bytes | None, consistency: int, count: int
) -> tuple[bytes, bytes]:
    """How a frame of a statement begins, up to its stream, and its body, up to its so many values."""
    message = ExecuteMessage(name, [], consistency, result_metadata_id=metadata)
    encoded = handler.encode_message(message, 0, version, None, is_beta)
    body = bytearray(encoded[_HEADER:])
    body[-3] |= _SKIP_METADATA  # the last byte of the flags, before the number of values
    body[-2:] = struct.pack(">H", count)
    return encoded[:2], bytes(body)


def _values(values: Sequence[bytes]) -> bytes:
    """Each after its size. Those of many keys mostly have the same."""
    size = len(values[0]) if values else 0
    if [len(value) for value in values].count(size) == len(values) > 0:
        before = _COUNT.pack(size)
        return before + before.join(values)
    return b"".join([part for value in values for part in (_COUNT.pack(len(value)), value)])


def _push(connection: Any, frames: Sequence[bytes]) -> None:
    """Write frames, given in pieces of three, in as few segments as they fit in."""
    if not connection._is_checksumming_enabled:
        connection.push(b"".join(frames))
        return
    buffer = io.BytesIO()
    held: list[bytes] = []
    size = 0
    for at in range(0, len(frames), 3):
        frame = b"".join(frames[at : at + 3])
        if held and size + len(frame) > _MOST_BYTES:
            connection._segment_codec.encode(buffer, b"".join(held))
            held, size = [], 0
        held.append(frame)
        size += len(frame)
    connection._segment_codec.encode(buffer, b"".join(held))
    connection.push(buffer.getvalue())
