"""Why a request about a connector is refused, whatever its configuration."""

from __future__ import annotations

from helenus_schemas.errors import HelenusError, Kind


class UnknownConnector(Exception):
    """Raised if there is no connector, or no task of one, with this name."""

    def __init__(self, name: str, task: int | None = None) -> None:
        super().__init__(name if task is None else f"{name}-{task}")
        self.name = name
        self.task = task


class NotStopped(Exception):
    """Raised where a connector has to be stopped: its positions can be changed only then."""


class UnderWay(HelenusError):
    """The same is being done for the same table already: wait for that, or stop it."""

    def __init__(self, problem: str, where: str) -> None:
        super().__init__(Kind.CONFIG, problem, where, "wait for it, or stop it")
