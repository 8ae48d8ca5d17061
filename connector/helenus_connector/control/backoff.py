"""How long to wait before what failed is tried again: pauses that double, by tenacity."""

from __future__ import annotations

from tenacity import RetryCallState, Retrying, wait_exponential, wait_random_exponential


def pause(failures: int, first_s: float, longest_s: float, spread: bool = False) -> float:
    """Seconds to wait after so many failures in a row: 1 s, 2 s, 4 s and so on for a `first_s` of 1 s.

    With `spread`, anything between half of that and all of it, so that many don't try at once.
    """
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = failures
    if not spread:
        return wait_exponential(first_s, max=longest_s)(state)
    half_s, most_s = first_s / 2, longest_s / 2
    return (wait_exponential(half_s, max=most_s) + wait_random_exponential(half_s, max=most_s))(state)
