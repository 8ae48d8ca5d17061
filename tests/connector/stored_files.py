"""A file system in memory, as an object store is one, with its faults: it refuses, answers late, forgets a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helenus_schemas.errors import HelenusError, Kind


class StoredFiles:
    """Stands for `StateFiles`. `before` is called with the name of a method and of the file, before each call."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.before: Callable[[str, str], None] = lambda method, name: None
        self.uploads: list[str] = []
        self.late: list[tuple[str, bytes]] = []

    def list_names(self, directory: str) -> list[str]:
        self.before("list_names", directory)
        below = [name.removeprefix(f"{directory}/") for name in self.content if name.startswith(f"{directory}/")]
        return sorted({name.partition("/")[0] for name in below})

    def upload(self, source: Path, target: str) -> None:
        content = source.read_bytes()
        try:
            self.before("upload", target)
        except HelenusError:
            self.late.append((target, content))  # it was sent, and may arrive any time later
            raise
        self.content[target] = content
        self.uploads.append(target)

    def download(self, source: str, target: Path) -> None:
        self.before("download", source)
        if source not in self.content:
            raise FileNotFoundError(2, "No such file", source)
        target.write_bytes(self.content[source])

    def remove(self, name: str) -> None:
        self.before("remove", name)
        for file in [file for file in self.content if file == name or file.startswith(f"{name}/")]:
            del self.content[file]

    def let_arrive(self) -> None:
        """Have requests arrive on which the client gave up."""
        for name, content in self.late:
            self.content[name] = content
        self.late.clear()


def away(method: str, name: str) -> None:
    raise HelenusError(Kind.BATCH_FAILED, f"{method} was not answered", name)
