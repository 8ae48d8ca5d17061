"""The states of a group's connectors in a directory that all its workers have mounted: Spark writes to it itself."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from helenus_connector.group._hadoop_files import KEY
from helenus_connector.group._state_copy import Moving, copy_state
from helenus_connector.group._state_home import ID_FILE, StateHome, StateName, leader_number
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable


class MountedStates:
    """The directory `mount`, of the group `group`, for the leader whose directory there has the name `leader`."""

    def __init__(self, mount: Path, group: str, leader: str) -> None:
        self._mount = mount
        self._root = mount.absolute() / group
        self._leader = leader

    @property
    def where(self) -> str:
        """Return where the group's states are."""
        return str(self._root)

    @property
    def id_file(self) -> str:
        """Return the name of the file that has the directory's identity."""
        return str(self._root / ID_FILE)

    def read_id(self) -> str | None:
        """Return the identity of the directory; None if it has none, and empty if an operator wants a new one. Raises
        HelenusError STATE if it is not mounted, or can't be read.
        """
        with _errors_as_ours(f"cannot use {KEY}", self.where):
            if not self._mount.is_dir():
                advice = "mount it, and restart the task"
                raise HelenusError(Kind.STATE, f"{KEY}: there is no such directory", str(self._mount), advice)
            self._root.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return (self._root / ID_FILE).read_text().strip()
            return None

    def write_id(self, directory_id: str) -> None:
        """Write the identity of the directory. Raises HelenusError STATE."""
        durable.write(self._root / ID_FILE, f"{directory_id}\n", "the identity of a directory", "state.id-saved")

    def find_own(self, state: StateName) -> StateHome:
        """Return where this leader has the state."""
        own = self._root / self._leader / state.path
        return StateHome(own, loss="" if own.exists() else "its directory was removed")

    def find_former(self, state: StateName, leader: str) -> Path | None:
        """Return where a former leader has the state; None if it is not there."""
        source = self._root / leader / state.path
        return source if source.is_dir() else None

    def copy(self, state: StateName, source: Path | None) -> StateHome:
        """Make this leader's directory a copy of a state, or begin one where there is none. Raises HelenusError."""
        own = self._root / self._leader / state.path
        with _errors_as_ours("cannot copy the state of the former leader", str(own)):
            shutil.rmtree(own, ignore_errors=True)  # of an attempt that was not kept
            if source is None:
                own.parent.mkdir(parents=True, exist_ok=True)
                return StateHome(own)
            try:
                copy_state(source, own, state.checkpoint)
            except Moving:
                problem = "its former leader writes to the state so fast that it can't be copied"
                raise HelenusError(Kind.BATCH_FAILED, problem, str(source)) from None
            return StateHome(own, is_copy=True)

    def remove_earlier(self, state: StateName, number: int) -> None:
        """Remove a state from the directories of leaders before this `number`: what can't be removed is, by a later
        leader.
        """
        for directory in self._root.glob("*-*"):
            if leader_number(directory.name, number) < number:
                shutil.rmtree(directory / state.path, ignore_errors=True)
                for parent in (directory / state.path).parents:
                    if not parent.is_relative_to(directory):
                        break
                    with contextlib.suppress(OSError):  # others are in it
                        parent.rmdir()

    def find_latest(self, state: StateName) -> Path | None:
        """Return where the last leader that has the state has it; None if there is none."""
        directories = {
            leader_number(directory.name): directory / state.path
            for directory in self._root.glob("*-*")
            if (directory / state.path).is_dir()
        }
        return directories[max(directories)] if directories else None


@contextlib.contextmanager
def _errors_as_ours(problem: str, where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HelenusError(Kind.STATE, f"{problem}: {error.strerror}", error.filename or where) from None
