"""Servers and processes that the files of one group share: they run until a test of another group comes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

Thing = TypeVar("Thing")


class SharedServers:
    """What was entered, by its name; the last that came ends first."""

    def __init__(self) -> None:
        self._things: dict[Hashable, object] = {}
        self._stack = ExitStack()

    def __call__(self, name: Hashable, make: Callable[[], AbstractContextManager[Thing]]) -> Thing:
        """The thing with this name, which `make` gives at the first call."""
        if name not in self._things:
            self._things[name] = self._stack.enter_context(make())
        return self._things[name]  # type: ignore[return-value]

    def end(self) -> None:
        """End all."""
        self._things.clear()
        self._stack.close()
