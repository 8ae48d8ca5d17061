"""How many lines of one kind a log gets: an event that repeats itself thousands of times a second fills a disk, and no
one learns more from it. What was left out is counted, and said.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

# A start with a thousand tables logs some lines for each of them at once; nothing goes on at a hundred a second.
BURST = 2000
RATE = 20.0  # lines a second after a burst
_MAX_KINDS = 10_000  # the names are those in the code: there are some hundred


@dataclass
class _Bucket:
    """Lines that one kind may still log; `dropped` were not logged since it could last."""

    tokens: float
    filled_at: float
    dropped: int = 0


class LogRate:
    """Admits lines by their kind. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._lock = threading.Lock()

    def admit(self, kind: str) -> int | None:
        """Return how many lines of this kind were left out since the last one, or None if this one is to be, too."""
        now = self._clock()
        with self._lock:
            bucket = self._buckets.get(kind)
            if bucket is None:
                if len(self._buckets) >= _MAX_KINDS:
                    self._buckets.clear()
                bucket = self._buckets[kind] = _Bucket(BURST, now)
            bucket.tokens = min(BURST, bucket.tokens + (now - bucket.filled_at) * RATE)
            bucket.filled_at = now
            if bucket.tokens < 1:
                bucket.dropped += 1
                return None
            bucket.tokens -= 1
            dropped, bucket.dropped = bucket.dropped, 0
            return dropped


class LibraryFilter(logging.Filter):
    """The same for lines that libraries log; their kind is the place in the code."""

    def __init__(self, rate: LogRate) -> None:
        super().__init__()
        self._rate = rate

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is logged, with a note of those that were not."""
        dropped = self._rate.admit(f"{record.pathname}:{record.lineno}")
        if dropped:
            record.msg, record.args = f"{record.getMessage()} ({dropped} such lines were left out)", ()
        return dropped is not None
