"""How a process is asked to end: SIGTERM, or SIGINT as of Ctrl-C."""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable

SIGNALS = signal.SIGTERM, signal.SIGINT


def handle_signals(end: Callable[[], object]) -> Callable[[], bool]:
    """Have `end` called with each of these signals, in a thread of its own. Called in the main thread. Return what says
    whether one came, also before `end` has begun.

    A handler itself runs between any two steps of the main thread, also while that has a lock: `Event.set` there waits
    for ever where the main thread is about to wait for the event. To start a thread by `threading` needs locks, too.
    """

    came: list[object] = []

    def begin(*_: object) -> None:
        came.append(True)
        _thread.start_new_thread(end, ())

    for number in SIGNALS:
        signal.signal(number, begin)
    return lambda: bool(came)
