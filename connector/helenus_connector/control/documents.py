"""What a worker keeps beyond its own life: contents that are read once, at a start, and saved when they change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from helenus_connector.control import _connector_file


class Document(Protocol):
    """Where a content is kept. Raises HelenusError: STATE where it can't be read or written, NOT_OWNER where another
    worker has it by now, and brokers' errors. After an error of `save` nobody knows which content is kept.
    """

    def read(self) -> Any:
        """Return the content; None, or an empty one, if nothing was ever saved."""

    def save(self, content: Any) -> None:
        """Replace the content."""


class ConnectorFile:
    """The file `connectors.json` in `checkpoint.dir`: connectors' configurations, wanted states and files, by name."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "connectors.json"

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the connectors; none if there is no file."""
        return _connector_file.read(self._file)

    def save(self, content: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the file."""
        _connector_file.save(self._file, content)
