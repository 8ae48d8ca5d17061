"""Waiting for what real servers will do: one way, with one limit that a busy machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 240


def eventually(check: Callable[[], Any], description: str | Callable[[], str] = "", every: float = 0.5) -> Any:
    """Ask until `check` answers with something true, `every` so many seconds; returns that answer.

    An AssertionError says what did not come, or what `description` returns then, such as the end of a log.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {PATIENCE_S} s: {description if isinstance(description, str) else description()}"
            )
        time.sleep(every)
