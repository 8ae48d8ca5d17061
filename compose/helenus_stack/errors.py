"""The one error of the stack: what happened, where, and what to do."""

from __future__ import annotations


class StackError(Exception):
    """A server, download or setting that the stack can't go on with.

    `where` is a path, address or name; `advice` is what the reader should do; `detail` may hold the end of a log.
    """

    def __init__(self, problem: str, where: str, advice: str, detail: str = "") -> None:
        super().__init__(problem, where, advice, detail)
        self.what = problem
        self.where = where
        self.advice = advice
        self.detail = detail

    @property
    def summary(self) -> str:
        """The error in one line."""
        return f"{self.what} ({self.where}): {self.advice}"

    def __str__(self) -> str:
        return f"{self.summary}\n{self.detail}" if self.detail else self.summary
