"""What the stack needs to know of a server, whichever it is."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A program with its arguments, its working folder and what it needs in its environment."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def _nothing() -> None:
    pass


def _never(_: bytes) -> bool:
    return False


@dataclass(frozen=True)
class Server:
    """One server of a stack. Making one has no effects; `prepare` and `ready` have."""

    name: str
    """cassandra1, cassandra2, cassandra3, kafka, registry, pulsar, connect or postgres."""
    folder: Path
    """Everything the server keeps, its configuration too."""
    address: str
    port: int
    """Where its clients connect."""
    kind: str
    """cassandra, kafka, registry, pulsar, connect or postgres."""
    lock: str
    """The name of its jars' lock."""
    java: int
    newer_java: bool
    """The Java it needs, and whether any later one will do."""
    prepare: Callable[[Path, Sequence[Path]], Command]
    """Writes the configuration and gives the command that starts the server with that Java home and those jars."""
    ready: Callable[[], bool]
    """Asks the server, in a few seconds at most, for something a client needs."""
    ready_seconds: float
    """How long it may take to become ready on a slow and busy machine."""
    furnish: Callable[[], None] = _nothing
    """Makes what has to be in it, such as users, whenever it was started and is ready."""

    stuck: Callable[[bytes], bool] = _never
    """Whether its log since the start shows that it will never work and has to be started again."""

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.folder.parent / "logs" / f"{self.name}.log"

    @property
    def logged(self) -> int:
        """The bytes of its log."""
        return self.log.stat().st_size if self.log.exists() else 0

    @property
    def answers(self) -> bool:
        """Whether something accepts connections at the server's port."""
        try:
            socket.create_connection((self.address, self.port), timeout=1).close()
        except OSError:
            return False
        return True


def classpath(jars: Sequence[Path]) -> dict[str, str]:
    """The environment variable by which Java finds jars; as an argument they would fill the process list."""
    return {"CLASSPATH": ":".join(map(str, jars))}


def own_temporary_folder(folder: Path) -> str:
    """The Java option that keeps temporary files below the server's folder; what a killed server left is removed."""
    temporary = folder / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return f"-Djava.io.tmpdir={temporary}"
