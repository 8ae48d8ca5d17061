"""Pauses before a retry, which double, by tenacity, and between turns; and how often to log the reason."""

from __future__ import annotations

import time
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, wait_exponential, wait_random_exponential

_TURN_COST_FACTOR, _LONGEST_TURN_S = 200, 3.0


def pause(failures: int, first_s: float, longest_s: float, spread: bool = False) -> float:
    """Return how many seconds to wait after so many failures in a row: 1 s, 2 s, 4 s and so on for a `first_s` of 1 s.

    With `spread`, anything between half of that and all of it, so that many don't try at once.
    """
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = failures
    if not spread:
        return wait_exponential(first_s, max=longest_s)(state)
    half_first_s, half_longest_s = first_s / 2, longest_s / 2
    return (
        wait_exponential(half_first_s, max=half_longest_s) + wait_random_exponential(half_first_s, max=half_longest_s)
    )(state)


def turn_pause(cpu_s: float, shortest_s: float) -> float:
    """Return how many seconds to wait after a turn of a loop that took so much CPU time: with hundreds of tables it is
    to take half a percent of a core, and what it looks for waits three seconds at most.
    """
    return max(shortest_s, min(cpu_s * _TURN_COST_FACTOR, _LONGEST_TURN_S))


class ReasonLog:
    """Decides when to log why something waits: when the reason changes, and once a minute."""

    _EVERY_S = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, tuple[str, float]] = {}

    def is_due(self, name: str, reason: str) -> bool:
        """Return whether this reason why `name` waits is to be logged now; it then counts as logged."""
        last, logged_at = self._logged.get(name, ("", 0.0))
        now = self._clock()
        if reason == last and now - logged_at < self._EVERY_S:
            return False
        self._logged[name] = reason, now
        return True

    def forget(self, name: str) -> None:
        """Note that `name` waits no more: its next reason is logged."""
        self._logged.pop(name, None)
