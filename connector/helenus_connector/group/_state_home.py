"""The names of states, and where one is in a leader's time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from helenus_connector.group._state_backup import StateBackup

ID_FILE = "directory.id"
_KEY_PREFIX = "helenus-state-"


@dataclass(frozen=True)
class StateName:
    """The name of a state below a leader's directory. Spark's checkpoint is in its `checkpoint`, empty for the
    directory itself; `identity` is the file that says what the state is of.
    """

    parts: tuple[str, ...]
    checkpoint: str
    identity: str

    @property
    def path(self) -> Path:
        """Path below a leader's directory."""
        names = [quote(part, safe="") for part in self.parts]
        return Path(*(f"%2E{name[1:]}" if name.startswith(".") else name for name in names))

    @property
    def key(self) -> str:
        """Key of the note in the group's topic."""
        return _KEY_PREFIX + "/".join(quote(part, safe="") for part in self.parts)


@dataclass(frozen=True)
class StateHome:
    """The `directory` of a state in this leader's time. It is a copy if `is_copy`, which is not kept yet. `loss` says
    why there is none though there was one; it is empty if there is one, or never was. On an object store there is a
    `backup` of it.
    """

    directory: Path
    is_copy: bool = False
    loss: str = ""
    backup: StateBackup | None = None

    def save(self) -> None:
        """Have the next leader find the state as it is now, and where the batch ends that is planned: to be called
        before that is published. Raises HelenusError BATCH_FAILED.
        """
        if self.backup is not None:
            self.backup.save()

    def save_if_quiet(self) -> None:
        """Have the next leader find that the last batch is done, if that was a while ago. Called often."""
        if self.backup is not None:
            self.backup.save_if_quiet()

    def save_at_end(self) -> None:
        """Have the next leader find all that was done, if that is possible: the query has ended."""
        if self.backup is not None:
            self.backup.save_or_log()


def leader_number(directory: str, default: int = -1) -> int:
    """Return the number of the leader whose directory has this name; the default for another directory."""
    number = directory.partition("-")[0]
    return int(number) if number.isdecimal() else default
