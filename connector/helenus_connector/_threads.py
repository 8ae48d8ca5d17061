"""Threads that the end of the process does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(function: Callable[[], T]) -> Future[T]:
    """Run a function in a thread that the end of the process does not wait for: a server may never answer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="worker", daemon=True).start()
    return future
