"""The thread of a Pulsar Log: an event loop with all connections, and the count of records that are on their way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar._entries import Record
from helenus_sinks.pulsar._writer import FULL, RECORD_BYTES, Writer
from helenus_sinks.pulsar.client import Client, end_loop
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.errors import NOT_READY, Answered, pulsar_error
from helenus_sinks.pulsar.wire import FRAME_MAX

_TRANSIENT_S = 5.0
_QUEUE_BYTES = 32 * 1024 * 1024
_QUEUE_RECORDS = 50_000
_SLICE_S = 0.2
_LEFT_S = 30.0
"""A producer with exclusive access that was left keeps writers without epochs out for so long."""
T = TypeVar("T")


class ProducerSession:
    """The event loop's thread, from one start to the end or a failure. `unacknowledged` counts records.

    The caller's thread alone writes `submitted*`, the loop's thread alone `completed*`, so neither needs a lock.
    """

    def __init__(self, settings: PulsarConfig) -> None:
        self.where = settings.service_url
        self.by_key = settings.batches == "key"
        self.linger = settings.linger
        self.writers: dict[tuple[str, int], Writer] = {}
        self.error: HelenusError | None = None
        self.last_problem = ""
        self.largest = FRAME_MAX
        self.is_largest_known = False  # until a broker has said it
        self.submitted = self.submitted_bytes = self.completed = self.completed_bytes = 0
        self.loop = asyncio.new_event_loop()
        self.client = Client(settings.service_url, settings.access)
        self._idle: asyncio.TimerHandle | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run_loop, name="helenus-pulsar", daemon=True)
        self._thread.start()

    @property
    def unacknowledged(self) -> int:
        return self.submitted - self.completed

    @property
    def is_full(self) -> bool:
        return (
            self.submitted - self.completed >= _QUEUE_RECORDS
            or self.submitted_bytes - self.completed_bytes >= _QUEUE_BYTES
        )

    def submit(self, writer: Writer, record: Record, size: int) -> None:
        """Pass a record to a writer, from the caller's thread."""
        self.submitted += 1
        self.submitted_bytes += size + RECORD_BYTES
        writer.records.append((record, writer.schema, size + RECORD_BYTES))
        if not writer.is_scheduled:
            writer.is_scheduled = True
            self.loop.call_soon_threadsafe(writer.schedule)
        elif len(writer.records) == FULL:
            self.loop.call_soon_threadsafe(writer.pump)

    def send_lingering(self) -> None:
        """Send records that linger, from the caller's thread."""
        for writer in self.writers.values():
            if writer.records:
                self.loop.call_soon_threadsafe(writer.pump)

    def release(self) -> None:
        """Leave producers with exclusive access, from the caller's thread, once all records are acknowledged."""
        owning = [writer for writer in self.writers.values() if writer.topic_epoch is not None and not writer.stays]
        if owning:
            self.loop.call_soon_threadsafe(self._release, owning)

    def leave(self, topic: str) -> None:
        """Leave the producers of a topic that has another epoch now, from the caller's thread, once all its records are
        acknowledged.
        """
        for (name, _), writer in self.writers.items():
            if name == topic:
                self.loop.call_soon_threadsafe(writer.release)

    def wait(self, seconds: float) -> None:
        """Wait for news, such as an acknowledgement, from the caller's thread."""
        with self._changed:
            if self.unacknowledged and not self.error:
                self._changed.wait(seconds)

    def complete(self, records: int, size: int) -> None:
        """Count records as acknowledged, from the loop's thread."""
        self.completed += records
        self.completed_bytes += size
        with self._changed:
            self._changed.notify_all()

    def fail(self, error: HelenusError) -> None:
        """Note an error that sending again does not fix, from the loop's thread."""
        self.error = self.error or error
        with self._changed:
            self._changed.notify_all()

    def answer(self, question: Callable[[Client], Coroutine[Any, Any, T]], is_late: Callable[[], bool]) -> T:
        """Return the result of the coroutine `question(client)`, unless it gets late. Raises HelenusError.

        A topic that is just moving to another broker is looked up again until that is ready. Other passing errors, such
        as of a broker that loses a topic while it is used, are tried again for a few seconds only.
        """
        refusal = None
        retry_until = time.monotonic() + _TRANSIENT_S
        future = asyncio.run_coroutine_threadsafe(question(self.client), self.loop)
        while not is_late():
            try:
                return future.result(_SLICE_S)  # in slices, so that a signal handler can run
            except concurrent.futures.TimeoutError:
                continue
            except Answered as error:
                may_pass = error.kind is Kind.BROKER_UNREACHABLE
                if not may_pass or (error.code != NOT_READY and time.monotonic() > retry_until):
                    raise
                refusal = error
                time.sleep(_SLICE_S)
                future = asyncio.run_coroutine_threadsafe(question(self.client), self.loop)
        future.cancel()
        raise refusal or pulsar_error(Kind.BROKER_UNREACHABLE, "Pulsar does not answer in time", self.where)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine in the loop; nobody waits for it."""
        asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def connect(self) -> None:
        """Connect to the service. If that fails, the first record meets the error."""
        with contextlib.suppress(HelenusError):
            await self.client.service()

    def end(self) -> None:
        """Drop everything and end the thread."""
        self.loop.call_soon_threadsafe(self._stop)
        self._thread.join(10)

    def _release(self, owning: list[Writer]) -> None:
        for writer in owning:
            writer.release()
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(_LEFT_S, self._end_left_producers, self.submitted)

    def _end_left_producers(self, submitted: int) -> None:
        """Close the connections, with which producers end that were left, unless there were records meanwhile."""
        if self.submitted == submitted:
            self.client.drop_idle_connections()

    def _stop(self) -> None:
        self.error = self.error or pulsar_error(
            Kind.BROKER_UNREACHABLE, "closed"
        )  # no writer opens a connection any more
        for writer in self.writers.values():
            writer.end()
        self.client.close()
        self.loop.stop()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        end_loop(self.loop)
