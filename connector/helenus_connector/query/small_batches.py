"""Batches of few events, without a job of Spark's: one takes longer than they do (docs/performance.md).

Spark plans such a batch and notes that it is done, as any other. What its tasks would do, a Python process of the
worker does in between (`_small_batch_process`). It is to the rest what one of Spark's Python workers is: it keeps the
same things (`worker_process`), enters the same fences, and takes turns with those. There is one process, for one batch
at a time. A batch that it does not take is a job:

- one with more events than `small.batch.events`, or one whose request is too large to be sent at once;
- one that comes while it has another query's;
- one that comes while another is started in place of one that failed.

It is there from the start, and forked from the worker's own process, with whose modules it shares the memory: nothing
that the first batches of a worker need is loaded a second time. Spark loads them for its own Python workers with the
first job that has one. Only where the process can't be forked, as later, it is started as a program of its own.

On a cluster there is none: what executors keep in memory is of use to executors.
"""

from __future__ import annotations

import gc
import math
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar, cast

import structlog
from pyspark.serializers import CloudPickleSerializer

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query._batch_limits import TaskRanges
from helenus_schemas.errors import HelenusError, Kind

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_MODULE = "helenus_connector.query._small_batch_process"
_START_AFTER_S = 10.0
"""After the first batch it would take, and after the end of one that failed: a worker that is to end soon starts none,
and a start is not slower for it.
"""
_LOADING_S = 20.0
"""How long the first batches wait for a process that loads its modules: Spark's Python workers would load the same."""
_PAUSE_S = 600.0
"""Before another one is started where one could not be, or ended without a batch: jobs do as well."""
_MOST_BYTES = 1 << 16
"""Of a request: the system takes so many at once, also for a process that was stopped. To send more could wait for it
without end.
"""
_POLL_S = 0.02
_LOOK_S = 0.5
"""Between looks whether a batch is still wanted."""
_READ_BYTES = 1 << 20
SIZE = struct.Struct(">Q")
"""How many bytes follow: before a request, and before its answer."""
_GRACE_S = 2.0
"""For a batch that is not wanted any more, as Spark gives to its Python workers."""


class SmallBatches:
    """The process of a worker, until `close`. Queries use it from their threads."""

    def __init__(self, worker: WorkerSettings) -> None:
        self._most_events = worker.small_batch_events if worker.is_local else 0
        self._in_use = threading.Lock()
        self._process: _Process | None = None
        self._start_at = math.inf  # monotonic s; infinite before the first batch
        self._load_until = -math.inf  # monotonic s
        self._closed = False

    @property
    def are_taken(self) -> bool:
        """Return whether there is to be a process."""
        return self._most_events > 0

    def fork(self) -> None:
        """Fork the process from this one, which has loaded its modules and has no other thread yet."""
        if self.are_taken and self._process is None and threading.active_count() == 1:
            with suppress(OSError):  # then `start` tries
                self._process = _Process.fork()

    def start(self) -> None:
        """Have the process there for the first batch: start it, if it was not forked. Returns at once."""
        with self._in_use:
            if self.are_taken and self._process is None:
                self._start_at = time.monotonic()
                self._ready_process()
            self._load_until = time.monotonic() + _LOADING_S

    def run(
        self,
        parts: Sequence[TaskRanges],
        function: Callable[[Iterator[TaskRanges]], Iterator[T]],
        waiting: int,
        is_wanted: Callable[[], bool],
    ) -> list[T] | None:
        """Return what a function yields for all parts of a batch, in one call; None if the batch is to be a job.
        `waiting` keys and changes are done with it. Once it is not wanted any more, it gets seconds to end.

        Raises HelenusError: what the function raised, and BATCH_FAILED if it was something else or if the process
        ended. Nobody knows then what it has published.
        """
        events = waiting + sum(topic_ranges.events for part in parts for topic_ranges in part.parts)
        if events > self._most_events or not self._in_use.acquire(blocking=False):
            return None
        try:
            process = self._ready_process()
            while process is None and self._is_loading() and is_wanted():
                time.sleep(_POLL_S)
                process = self._ready_process()
            request = b"" if process is None else CloudPickleSerializer().dumps((function, list(parts)))
            if process is None or len(request) > _MOST_BYTES:
                return None
            return cast(list[T], process.run(request, is_wanted))
        except BaseException:
            self._end()  # it may still have what it has not published
            raise
        finally:
            self._in_use.release()

    def close(self) -> None:
        """End the process. Called when no query runs any more."""
        with self._in_use:
            self._closed = True
            self._end()

    def _is_loading(self) -> bool:
        return self._process is not None and time.monotonic() < self._load_until

    def _ready_process(self) -> _Process | None:
        """Return the process if it can take a batch now, and start it where it is time for that."""
        if self._process is None and self._start_at is math.inf:
            self._start_at = time.monotonic() + _START_AFTER_S
        if self._closed or (self._process is None and time.monotonic() < self._start_at):
            return None
        try:
            if self._process is None:
                self._process = _Process.spawn()
            return self._process if self._process.is_ready() else None
        except (OSError, HelenusError) as error:
            self._end()
            self._start_at = time.monotonic() + _PAUSE_S
            effect = "small batches are jobs of Spark's meanwhile"
            _log.warning("small_batches.away", reason=str(error), again_in_s=_PAUSE_S, effect=effect)
            return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
            self._start_at, self._load_until = time.monotonic() + _START_AFTER_S, -math.inf


class _Process:
    """The process, and the connection over which it gets functions with what they are to read, and returns what they
    yield. `kill` ends it, and returns its exit status.
    """

    def __init__(self, connection: socket.socket, kill: Callable[[], int | None]) -> None:
        self._socket = connection
        self._kill = kill
        self._status: int | None = None
        self._is_ready = False

    @classmethod
    def fork(cls) -> _Process:
        """Fork it. It is killed with this thread. Raises OSError."""
        from helenus_connector.query import _small_batch_process

        connection, theirs = socket.socketpair()
        parent = os.getpid()
        gc.collect()
        gc.freeze()  # a search walks what it has, and so copies what is shared
        process = os.fork()
        if process == 0:
            _small_batch_process.serve_forked(connection, theirs, parent)
        theirs.close()

        def kill() -> int:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

        return cls(connection, kill)

    @classmethod
    def spawn(cls) -> _Process:
        """Start it as a program. It is killed with the thread that started it: one of its own. Raises OSError."""
        connection, theirs = socket.socketpair()
        keeper = _Keeper(theirs)
        if keeper.error is not None:
            connection.close()
            raise keeper.error
        return cls(connection, keeper.kill)

    def is_ready(self) -> bool:
        """Return whether it has loaded what it needs, and waits for a batch. Raises HelenusError if it has ended."""
        while self._is_readable(0):  # nothing comes but that it is ready, and its end
            self._receive()
            self._is_ready = True
        return self._is_ready

    def run(self, request: bytes, is_wanted: Callable[[], bool]) -> object:
        """Send a pickled function and parts, and return what it yields, as `SmallBatches.run`."""
        try:
            self._socket.sendall(SIZE.pack(len(request)) + request)
        except OSError:
            self._receive()
        until = math.inf
        received = bytearray()
        # A process may be stopped in the middle of its answer, too.
        while len(received) < SIZE.size or len(received) < SIZE.size + SIZE.unpack_from(received)[0]:
            if self._is_readable(_LOOK_S):
                received += self._receive()
            elif until == math.inf and not is_wanted():
                until = time.monotonic() + _GRACE_S
            elif time.monotonic() > until:
                raise HelenusError(Kind.BATCH_FAILED, "the query ends before its batch does")
        answer = pickle.loads(memoryview(received)[SIZE.size :])
        if isinstance(answer, HelenusError):
            raise answer
        return answer

    def _is_readable(self, seconds: float) -> bool:
        poll = select.poll()  # unlike select, for descriptors of any number
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _receive(self) -> bytes:
        """Return some bytes that it sent. Raises HelenusError if it has ended."""
        with suppress(OSError):
            if data := self._socket.recv(_READ_BYTES):
                return data
        self.end()
        problem = f"the worker's process for small batches ended with status {self._status}"
        raise HelenusError(Kind.BATCH_FAILED, problem) from None

    def end(self) -> None:
        """End it, and wait for that."""
        if self._socket.fileno() >= 0:
            self._status = self._kill()
            self._socket.close()


class _Keeper:
    """The thread that has started a process, and ends with it. `error` is why it could not."""

    def __init__(self, theirs: socket.socket) -> None:
        self._theirs = theirs
        self._ending = threading.Event()
        self._started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._keep, name="small-batches", daemon=True)
        self._thread.start()
        self._started.wait()

    def _keep(self) -> None:
        """Start it, and kill it once it is to end. In a session of its own, Ctrl-C in a terminal is for the worker."""
        number = self._theirs.fileno()
        command = [sys.executable, "-m", _MODULE, str(number), str(os.getpid())]
        try:
            with self._theirs:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=sys.__stderr__, pass_fds=(number,), start_new_session=True
                )
        except OSError as error:
            self.error = error
            return
        finally:
            self._started.set()
        self._ending.wait()
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def kill(self) -> int | None:
        """End the process, and wait for that. Returns its exit status."""
        self._ending.set()
        self._thread.join()
        return None if self._process is None else self._process.returncode
