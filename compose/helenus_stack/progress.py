"""Shows what the stack is doing: a spinner on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.status import Status

QUIET_SECONDS = 4.0


class Progress(Protocol):
    """What long operations report to."""

    def say(self, text: str) -> None:
        """Something happened."""

    def waiting(self, text: str) -> None:
        """Still waiting; called often, shown as seldom as is useful."""


class Silent:
    """Reports to nobody: for tests and other programs."""

    def say(self, text: str) -> None:
        pass

    def waiting(self, text: str) -> None:
        pass


class Terminal:
    """Reports to a person, on stderr: stdout is for results."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._spinner: Status | None = None
        self._spoke = time.monotonic()

    def say(self, text: str) -> None:
        self.console.print(text)
        self._spoke = time.monotonic()

    def waiting(self, text: str) -> None:
        if self._spinner:
            self._spinner.update(text)
        elif time.monotonic() - self._spoke > QUIET_SECONDS:
            self.say(text)

    @contextmanager
    def spinning(self) -> Iterator[None]:
        """Shows a spinner while the body runs, if there is a terminal to show it on."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status("") as self._spinner:
            try:
                yield
            finally:
                self._spinner = None
