"""What Spark's Java and Python processes write to standard error, line by line, without what nobody needs.

    Traceback (most recent call last):
      File "…/pyspark/daemon.py", line 93, in worker        → BrokenPipeError: [Errno 32] Broken pipe
        outfile.flush()                                        where: File "…/pyspark/daemon.py", line 93, in worker
    BrokenPipeError: [Errno 32] Broken pipe

Such traces are of connections that ended, as on a busy machine: what fails in a batch, the worker logs itself.
"""

from __future__ import annotations

from typing import NamedTuple

_STATE_QUERY_LINE = "Streaming TransformWithState"
"""What each start of a query with state prints, line by line, with all that was pickled for it."""
_TRACE = "Traceback (most recent call last):"
_BETWEEN_TRACES = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


class StderrLine(NamedTuple):
    """A line to log. `where` is where in the code it was raised, if it is the end of a Python trace, else empty."""

    text: str
    where: str = ""


class StderrLines:
    """Picks the lines to log from those of one pipe. Traces of processes that write at once may be mixed up."""

    def __init__(self) -> None:
        self._is_trace, self._where = False, ""

    def pick(self, text: str) -> StderrLine | None:
        """Return what to log of the next line; None for nothing."""
        if text == _TRACE:
            self._is_trace, self._where = True, ""
            return None
        if self._is_trace and (not text or text.startswith("  ")):
            if text.startswith("  File "):
                self._where = text.strip()
            return None
        if not text or text in _BETWEEN_TRACES or _STATE_QUERY_LINE in text:
            return None
        where = self._where if self._is_trace else ""
        self._is_trace = False
        return StderrLine(text, where)
