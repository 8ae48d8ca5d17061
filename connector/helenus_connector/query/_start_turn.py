"""Turns in which queries start, also after a failure: each start takes Python processes, which import for seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

_AT_ONCE = 4
"""Starts at a time. All at once keep each other from starting on a busy machine, in memory too; one at a time leaves
processors idle, as most of a start is one process after the other.
"""
_LONGEST_S = 60.0
"""How long a start keeps its turn: one that waits for a server that does not answer is not to hold up the others."""
_POLL_S = 0.1
_turns: deque[object] = deque()
"""Of this process's queries that start or wait for it, the longest first."""


def start_in_turn(begin: Callable[[], Any], has_begun: Callable[[], bool], is_over: Callable[[], bool]) -> Any | None:
    """Start a query with `begin` when it has its turn. Returns it once its first batch `has_begun`, it has ended, or
    its turn took too long; None, without a start, if `is_over` before. Raises what `begin` and the others raise; the
    query is stopped then.
    """
    turn = object()
    _turns.append(turn)
    try:
        while turn not in _first(_AT_ONCE):
            if is_over():
                return None
            time.sleep(_POLL_S)
        if is_over():
            return None
        query, deadline = begin(), time.monotonic() + _LONGEST_S
        try:
            while query.isActive and not has_begun() and not is_over() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        except BaseException:
            query.stop()  # or Spark refuses the next start, beside this one
            raise
        return query
    finally:
        _turns.remove(turn)


def _first(number: int) -> list[object]:
    return list(_turns)[:number]
