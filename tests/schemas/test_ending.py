from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from helenus_schemas.service.ending import SIGNALS, handle_signals


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Those of before, again."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_comes_while_the_main_thread_has_a_lock_that_the_end_needs(number: signal.Signals) -> None:
    """As of an event that it is about to wait for."""
    lock, has_ended = threading.Lock(), threading.Event()

    def end() -> None:
        with lock:
            has_ended.set()

    is_to_end = handle_signals(end)
    assert not is_to_end()
    with lock:
        os.kill(os.getpid(), number)
        assert is_to_end(), "what follows the wait goes by it, though the end has not begun"
        assert not has_ended.wait(0.2)
    assert has_ended.wait(30)
