"""Servers and processes that the files of one group share: they run until a test of another group comes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

Thing = TypeVar("Thing")


class SharedServers:
    """What was entered, by its name; the last that came ends first."""

    def __init__(self) -> None:
        self._things: dict[Hashable, tuple[object, ExitStack]] = {}

    def __call__(
        self, name: Hashable, make: Callable[[], AbstractContextManager[Thing]], instead_of: Hashable = None
    ) -> Thing:
        """The thing with this name, which `make` gives at the first call. The one that it is `instead_of` ends before,
        as both can't run together.
        """
        if instead_of in self._things:
            self._things.pop(instead_of)[1].close()
        if name not in self._things:
            stack = ExitStack()
            self._things[name] = stack.enter_context(make()), stack
        return self._things[name][0]  # type: ignore[return-value]

    def end(self) -> None:
        """End all."""
        with ExitStack() as ending:
            for _, stack in self._things.values():
                ending.push(stack)
            self._things.clear()
