"""The worker's end of the connection to its process for small batches: what goes over it, and who starts and ends that.

    request → any number of questions, each with its answer → the answer

Each is sent after its size, and what the process sends begins with what it is.
"""

from __future__ import annotations

import gc
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
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from helenus_schemas.errors import HelenusError, Kind

_MODULE = "helenus_connector.query._small_batch_process"
_LOOK_S = 0.5
"""Between looks whether a batch is still wanted."""
_READ_BYTES = 1 << 20
SIZE = struct.Struct(">Q")
"""How many bytes follow: before a request, and before what it sends."""
ANSWER, QUESTION = b"A", b"Q"
"""The first byte of what it sends."""
_GRACE_S = 2.0
"""For a batch that is not wanted any more, as Spark gives to its Python workers."""


_forkers_ends: list[socket.socket] = []
"""Of the connections to processes that were forked: one that is forked later must not keep them open."""


class Answers(Protocol):
    """Who answers a batch's questions, in the thread that calls `SmallBatches.run`. What it raises, that raises."""

    def begin(self) -> None:
        """Get ready, once the process has begun with the batch."""
        ...

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a question."""
        ...


class _Patience:
    """How long a batch is waited for: until it is not wanted any more, and then for some seconds."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted
        self._look_at = time.monotonic() + _LOOK_S
        self._is_ending = False

    def check(self) -> None:
        """Raise HelenusError when that is over. Called as often as one likes."""
        now = time.monotonic()
        if now < self._look_at:
            return
        if self._is_ending:
            raise HelenusError(Kind.BATCH_FAILED, "the query ends before its batch does")
        self._is_ending = not self._is_wanted()
        self._look_at = now + (_GRACE_S if self._is_ending else _LOOK_S)


class BatchProcess:
    """The process, and the connection over which it gets functions with what they are to read, and returns what they
    yield. `kill` ends it, and returns its exit status.
    """

    def __init__(self, connection: socket.socket, kill: Callable[[], int | None]) -> None:
        self._socket = connection
        self._kill = kill
        self._status: int | None = None
        self._is_ready = False

    @classmethod
    def fork(cls) -> BatchProcess:
        """Fork it. It is killed with this thread. Raises OSError."""
        from helenus_connector.query import _small_batch_process

        connection, theirs = socket.socketpair()
        parent = os.getpid()
        gc.collect()
        gc.freeze()  # a search walks what it has, and so copies what is shared
        _forkers_ends.append(connection)
        process = os.fork()
        if process == 0:
            _small_batch_process.serve_forked(_forkers_ends, theirs, parent)
        theirs.close()

        def kill() -> int:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

        return cls(connection, kill)

    @classmethod
    def spawn(cls) -> BatchProcess:
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

    def run(self, request: bytes, is_wanted: Callable[[], bool], answers: Answers | None) -> object:
        """Send a pickled function and parts, answer its questions, and return what it yields, as `SmallBatches.run`."""
        patience = _Patience(is_wanted)
        self._send(request, patience)
        if answers is not None:
            answers.begin()
        while True:
            patience.check()
            message = self._receive_message(patience)
            if message[:1] == ANSWER:
                result = pickle.loads(memoryview(message)[1:])
                if isinstance(result, HelenusError):
                    raise result
                return result
            if answers is None:
                raise HelenusError(Kind.BATCH_FAILED, "a batch asks, and nobody answers")
            self._send(answers.answer(bytes(message[1:])), patience)

    def _send(self, message: bytes, patience: _Patience) -> None:
        """Send a message, of any size: a process that was stopped takes none of it."""
        unsent = memoryview(SIZE.pack(len(message)) + message)
        while unsent:
            if self._is_ready_for(select.POLLOUT, _LOOK_S):
                try:
                    unsent = unsent[self._socket.send(unsent, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    continue
                except OSError:
                    self._receive()
            else:
                patience.check()

    def _receive_message(self, patience: _Patience) -> bytearray:
        """Return the next message, whole: a process may be stopped in the middle of one, too."""
        received = bytearray()
        while len(received) < SIZE.size or len(received) < SIZE.size + SIZE.unpack_from(received)[0]:
            if self._is_readable(_LOOK_S):
                received += self._receive()
            else:
                patience.check()
        del received[: SIZE.size]
        return received

    def _is_readable(self, seconds: float) -> bool:
        return self._is_ready_for(select.POLLIN, seconds)

    def _is_ready_for(self, event: int, seconds: float) -> bool:
        poll = select.poll()  # unlike select, for descriptors of any number
        poll.register(self._socket, event)
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
