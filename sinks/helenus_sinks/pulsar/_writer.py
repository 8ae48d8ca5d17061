"""A writer appends to one partition: records become batches, which are kept until the broker acknowledges them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.log import TopicError
from helenus_sinks.pulsar._entries import Record, batch
from helenus_sinks.pulsar.client import Client
from helenus_sinks.pulsar.connection import Connection
from helenus_sinks.pulsar.epochs import taken_over
from helenus_sinks.pulsar.errors import AUTHENTICATION, FENCED, TOPIC_NOT_FOUND, Answered, broker_error, pulsar_error
from helenus_sinks.pulsar.wire import EXCLUSIVE_WITH_FENCING, KEY_VALUE, SHARED, command, keyed, send

RECORD_BYTES = 200
"""Memory of a record in addition to its own bytes."""
FRAME_BYTES = 1024
"""Bytes of a message on the wire in addition to its value, key and properties."""
MessageId = tuple[int, int]
"""Ledger and entry."""
_NO_ID = 2**64 - 1
"""An id's way to say -1."""
FULL = 500
"""So many records are not made to wait for others."""
_BATCH_BYTES = 256 * 1024
_BATCH_RECORDS = 1000
_BACKOFF = (0.1, 10.0)  # s until a lost producer is made again: at first, at most


class Owner(Protocol):
    """The session, as its writers see it: they report to it. `last_problem` is the last passing error, `largest` the
    size of the largest message that a broker takes.
    """

    client: Client
    error: HelenusError | None
    last_problem: str
    largest: int
    loop: asyncio.AbstractEventLoop
    where: str
    by_key: bool
    linger: float

    def complete(self, records: int, size: int) -> None: ...
    def fail(self, error: HelenusError) -> None: ...


@dataclass
class _Batch:
    """A frame that is sent, or about to be: the number of its first message, how many records, and their bytes."""

    sequence: int
    frame: bytes
    records: int
    size: int


class Writer:
    """Appends to `topic`, a partition of `topic_name`. Only `records`, `is_scheduled`, `schema`, `topic_epoch`, `stays`
    and, while nothing is on its way, `stored_ids` are used outside of the loop. With a `topic_epoch` the broker refuses
    those with lower ones from the first record on; one that `stays` is not left after each batch.

    A producer with exclusive access is never closed by a command: a broker that handles one just when another producer
    fences this one waits for itself, for ever (its `Producer.close` and its `AbstractTopic` lock each other, 4.0.8).
    It is left, and ends with its connection, or when the next producer fences it.
    """

    def __init__(
        self,
        session: Owner,
        topic_name: str,
        topic: str,
        name: str,
        sequences: dict[str, int],
    ) -> None:
        self.records: deque[tuple[Record, tuple[Any, bytes], int]] = deque()
        self.is_scheduled = False
        self.schema: tuple[Any, bytes] = None, b""
        self.topic_epoch: int | None = None
        self.stays = False
        self.stored_ids: list[MessageId | None] | None = None
        """Of what is acknowledged, in order, if it is a list; None of what a deduplicating broker had before."""
        self._session = session
        self._topic_name = topic_name
        self._topic = topic
        self._name = name
        self._sequences = sequences
        self._id = next(session.client.numbers)
        self._by_key = session.by_key
        self._unacknowledged: deque[_Batch] = deque()
        self._connection: Connection | None = None
        self._released_on: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._retry_s = 0.0
        self._epoch = 0

    def schedule(self) -> None:
        """Send the records after a moment, in which others may follow. A producer that is made at each turn is made
        meanwhile.
        """
        if self.topic_epoch is not None and self._connection is None:
            self._start_opening()
        self._session.loop.call_later(self._session.linger, self.pump)

    def pump(self) -> None:
        """Send the records that wait, if any, or first make a producer."""
        if self._connection is None:
            if self._unacknowledged or self.records:
                self._start_opening()
            return
        self.is_scheduled = False  # before the queue is read: a record that comes now calls again
        while self.records:
            batch = self._pack(self._connection.largest)
            if batch is None:
                return
            self._unacknowledged.append(batch)
            self._connection.write(batch.frame)

    def receipt(self, sequence: int, message_id: Any) -> None:
        """Note that a batch is stored, perhaps by an earlier attempt: a deduplicating broker acknowledges it again."""
        self._retry_s = 0.0
        waiting = self._unacknowledged
        if not waiting or sequence < waiting[0].sequence:
            return
        if sequence > waiting[0].sequence:
            self._reopen("Pulsar acknowledged a batch before an earlier one")
            return
        batch = waiting.popleft()
        if self.stored_ids is not None:
            is_known = _NO_ID not in (message_id.ledgerId, message_id.entryId)
            self.stored_ids.append((message_id.ledgerId, message_id.entryId) if is_known else None)
        self._session.complete(batch.records, batch.size)

    def refused(self, code: int, message: str) -> None:
        """Handle a batch that was not stored: after a transient error it is sent again."""
        error = self._error(code, message)
        if error.action is Action.RETRY:
            self._reopen(error.what)
        else:
            self._session.fail(error)

    def lost(self, why: str) -> None:
        """Replace a producer that is gone; the next one sends what it left, if anything."""
        self._session.last_problem = why
        self._connection = None
        self.pump()

    def release(self) -> None:
        """Leave a producer with exclusive access that has nothing to send: another process may have the next turn, and
        its producer would close this one without a word, and with the next record the connection.
        """
        connection = self._connection
        if self.topic_epoch is not None and connection is not None and not self._unacknowledged:
            self._released_on, self._connection = connection, None
            connection.producers.pop(self._id, None)
            self._id = next(self._session.client.numbers)

    def end(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    def _reopen(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self.topic_epoch is not None:
            connection.fail(pulsar_error(Kind.BROKER_UNREACHABLE, why, self._session.where))
            return
        if connection is not None:
            connection.producers.pop(self._id, None)
            connection.write(command("close_producer", producer_id=self._id, request_id=0))
        self.lost(why)

    def _start_opening(self) -> None:
        if self._opening is None and not self._session.error:
            self._opening = self._session.loop.create_task(self._open())

    async def _open(self) -> None:
        """Make the producer, again and again until a broker takes it, and send what is unacknowledged, in order."""
        try:
            while not self._session.error:
                if self._retry_s:
                    await asyncio.sleep(self._retry_s * random.uniform(0.8, 1.2))
                first_wait, max_wait = _BACKOFF
                self._retry_s = min(max(first_wait, self._retry_s * 2), max_wait)
                try:
                    connection = await self._produce()
                except HelenusError as error:
                    self._session.last_problem = error.what
                    if fatal := self._fatal(error):
                        self._session.fail(fatal)
                    continue
                if connection.closed or self._id not in connection.producers:
                    continue
                self._connection = connection
                self._session.largest = connection.largest
                for batch in self._unacknowledged:
                    connection.write(batch.frame)
                break
        finally:
            self._opening = None
        self.pump()

    async def _produce(self) -> Connection:
        # Where it was at its last turn it probably still is. If not, that broker says so, and another one is looked up.
        connection, self._released_on = self._released_on, None
        if connection is None or connection.closed:
            connection = await self._session.client.broker(self._topic)
        schema, _ = self.schema
        access: dict[str, Any] = {"producer_access_mode": SHARED}
        if self.topic_epoch is not None:
            access = {"producer_access_mode": EXCLUSIVE_WITH_FENCING, "topic_epoch": self.topic_epoch}
        connection.producers[self._id] = self
        try:
            await connection.ask(
                "producer",
                topic=self._topic,
                producer_id=self._id,
                producer_name=self._name,
                user_provided_producer_name=False,  # or a broker would not accept it again at once
                epoch=self._epoch,
                **access,
                **({"schema": schema} if schema is not None else {}),
            )
        except HelenusError:
            connection.producers.pop(self._id, None)
            raise
        self._epoch += 1
        return connection

    def _fatal(self, error: HelenusError) -> HelenusError | None:
        if isinstance(error, Answered):
            fatal = self._error(error.code, error.what.removeprefix("Pulsar: "))
            return fatal if fatal.action is not Action.RETRY or error.code == TOPIC_NOT_FOUND else None
        return error if error.action is not Action.RETRY else None

    def _error(self, code: int, message: str) -> HelenusError:
        error = broker_error(code, message, f"{self._session.where}, topic {self._topic}")
        if code == TOPIC_NOT_FOUND:
            return HelenusError(Kind.TOPIC_MISSING, error.what, error.where)  # it was there: it may be recreated
        if code == FENCED and self.topic_epoch is not None:
            return taken_over(message, error.where)
        if error.action is Action.RETRY or code == AUTHENTICATION:
            return error
        return TopicError(error.kind, error.what, error.where, self._topic_name, error.advice)

    def _pack(self, largest: int) -> _Batch | None:
        """Return the next records as one frame; None if the first is larger than the broker takes."""
        record, declared_schema, size = self.records[0]
        key, value, headers = record
        if size - RECORD_BYTES > largest - FRAME_BYTES:
            message = f"a record of {size - RECORD_BYTES} bytes, where the broker takes {largest - FRAME_BYTES}"
            self._session.largest = largest
            self._session.fail(TopicError(Kind.RECORD_TOO_LARGE, message, f"topic {self._topic}", self._topic_name))
            return None
        schema, version = declared_schema
        text_key = schema is not None and schema.type != KEY_VALUE
        metadata: dict[str, Any] = {"producer_name": self._name, "publish_time": int(time.time() * 1000)}
        if version:
            metadata["schema_version"] = version
        limit = min(_BATCH_BYTES, largest - FRAME_BYTES)
        batched: list[Record] = []
        total = 0
        while self.records and len(batched) < _BATCH_RECORDS:
            following, following_schema, size = self.records[0]
            if batched and (
                total + size > limit
                or following_schema is not declared_schema
                or (self._by_key and following[0] != key)
            ):
                break
            self.records.popleft()
            batched.append(following)
            total += size
        sequence = self._sequences.get(self._topic, 0)
        self._sequences[self._topic] = sequence + len(batched)
        if len(batched) == 1:
            payload = value or b""
            metadata |= keyed(key, value, headers, text_key)
        else:
            payload = batch(batched, text_key)
            metadata["num_messages_in_batch"] = len(batched)
            if self._by_key:
                metadata |= keyed(key, b"", (), text_key)
        frame = send(self._id, sequence, len(batched), metadata, payload)
        return _Batch(sequence, frame, len(batched), total)
