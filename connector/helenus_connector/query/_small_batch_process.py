"""The process of `small_batches`: forked from the worker's, or as a program, `python -m
helenus_connector.query._small_batch_process CONNECTION PARENT`, a file descriptor and the worker's process id.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

# A batch's function is of that room, and needs what it imports.
import helenus_connector.query.events_query  # noqa: F401
from helenus_connector.query import worker_process
from helenus_connector.query._process_connection import ANSWER, QUESTION, SIZE
from helenus_connector.query.garbage import freeze
from helenus_connector.query.small_batches import answer_by
from helenus_schemas.errors import HelenusError, Kind, reason
from helenus_schemas.service import logs


def main() -> None:
    """Do one batch after the other, until the connection ends."""
    worker_process.kill_with_parent()
    logs.configure()  # until a batch follows its worker's
    freeze("small batches")
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))


def serve_forked(parents_ends: Sequence[socket.socket], connection: socket.socket, parent: int) -> NoReturn:
    """Do the same in a process that was just forked, in a session of its own: Ctrl-C in a terminal is for the worker.
    Never returns to what the worker would do next.
    """
    try:
        worker_process.kill_with_parent()
        for parents_end in parents_ends:
            parents_end.close()
        os.setsid()
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        serve(connection, parent)
    finally:
        os._exit(0)


def serve(connection: socket.socket, parent: int) -> None:
    """Answer one request after the other, until the connection ends."""
    if os.getppid() != parent:  # it ended before this process could ask to end with it
        return
    with suppress(OSError), connection.makefile("rwb") as stream:
        answer_by(partial(_ask, stream))
        stream.write(b"1")  # ready
        stream.flush()
        while (request := _receive(stream)) is not None:
            _send(stream, ANSWER, answer(request))


def _ask(stream: io.BufferedRWPair, question: bytes) -> bytes:
    """Return the worker's answer. There is none only if the worker has ended, or kills this process."""
    _send(stream, QUESTION, question)
    answered = _receive(stream)
    if answered is None:
        raise ConnectionError("the worker has ended")
    return answered


def _send(stream: io.BufferedRWPair, kind: bytes, message: bytes) -> None:
    stream.write(SIZE.pack(len(kind) + len(message)))
    stream.write(kind)
    stream.write(message)
    stream.flush()


def _receive(stream: io.BufferedRWPair) -> bytes | None:
    size = stream.read(SIZE.size)
    return stream.read(*SIZE.unpack(size)) if len(size) == SIZE.size else None


def answer(request: bytes) -> bytes:
    """Return, pickled, what a pickled function yields for the parts that come with it, as a list, or a HelenusError."""
    try:
        function, parts = pickle.loads(request)
        return pickle.dumps(list(function(iter(parts))))
    except HelenusError as error:
        return pickle.dumps(error)
    except Exception as error:
        return pickle.dumps(HelenusError(Kind.BATCH_FAILED, reason(error)))


if __name__ == "__main__":
    main()
