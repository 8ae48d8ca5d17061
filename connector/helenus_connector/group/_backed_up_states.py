"""The states of a group's connectors on a file system of Spark's, by its URL: each is on the leader's own disk, where
Spark writes to it, and has a backup there, which is up to date before a batch is published.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helenus_connector.group._hadoop_files import StateFiles
from helenus_connector.group._state_backup import StateBackup, has_backup, restore
from helenus_connector.group._state_copy import Moving, copy_state
from helenus_connector.group._state_home import ID_FILE, StateHome, StateName, leader_number
from helenus_schemas.errors import HelenusError, Kind

_PARALLEL_REQUESTS = 8
"""A request to an object store takes some 20 ms, and a batch some ten of them."""


class BackedUpStates:
    """The directory `url` of `files`, of the group `group`, for the leader whose directory there has the name `leader`.
    Below `local` this worker has the states, those of this leader alone.
    """

    def __init__(self, files: StateFiles, url: str, group: str, leader: str, local: Path) -> None:
        self._files = files
        self._root = f"{url}/{group}"
        self._leader = leader
        self._local = local
        self._pool = ThreadPoolExecutor(_PARALLEL_REQUESTS, "state-backup")
        self._backups: dict[StateName, StateBackup] = {}

    def remove_local_leftovers(self) -> None:
        """Remove the states that this worker had in terms of before: their backups are what counts."""
        with contextlib.suppress(FileNotFoundError):
            for directory in self._local.iterdir():
                if directory.name != self._leader:
                    shutil.rmtree(directory, ignore_errors=True)

    @property
    def where(self) -> str:
        """Return where the group's states are."""
        return self._root

    @property
    def id_file(self) -> str:
        """Return the name of the file that has the directory's identity."""
        return f"{self._root}/{ID_FILE}"

    def read_id(self) -> str | None:
        """Return the identity of the directory; None if it has none, and empty if an operator wants a new one. Raises
        HelenusError.
        """
        file = self._scratch_file()
        try:
            self._files.download(self.id_file, file)
            return file.read_text().strip()
        except FileNotFoundError:
            # Where a bucket is missing some stores say the same of a file in it; a listing tells.
            self._files.list_names(self._root)
            return None
        finally:
            file.unlink(missing_ok=True)

    def write_id(self, directory_id: str) -> None:
        """Write the identity of the directory. Raises HelenusError."""
        file = self._scratch_file()
        try:
            file.write_text(f"{directory_id}\n")
            self._files.upload(file, self.id_file)
        finally:
            file.unlink(missing_ok=True)

    def find_own(self, state: StateName) -> StateHome:
        """Return where this leader has the state. What its disk has lost comes from its backup."""
        home = self._home(state)
        if (home / state.identity).exists():
            return StateHome(home, backup=self._backup(state))
        source = self.find_former(state, self._leader)
        return StateHome(home, loss="its backup was removed") if source is None else self.copy(state, source)

    def find_former(self, state: StateName, leader: str) -> str | None:
        """Return where a former leader has the backup of a state; None if it is not there."""
        directory = self._directory(state, leader)
        return directory if has_backup(self._files, directory) else None

    def copy(self, state: StateName, source: Path | str | None) -> StateHome:
        """Have this leader's disk have a copy of a state, or begin one where there is none. Raises HelenusError."""
        home, backup = self._home(state), self._backup(state)
        try:
            shutil.rmtree(home, ignore_errors=True)  # of an attempt that was not kept
            home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            backup.forget()
            if isinstance(source, str):
                restored = restore(self._files, source, home, state.checkpoint, self._pool)
                return StateHome(home, is_copy=restored, loss="" if restored else "it was removed", backup=backup)
            if source is not None:
                copy_state(source, home, state.checkpoint)
            return StateHome(home, is_copy=source is not None, backup=backup)
        except Moving:
            problem = "another process writes to the state so fast that it can't be copied"
            raise HelenusError(Kind.BATCH_FAILED, problem, str(source)) from None
        except OSError as error:
            problem = f"cannot write the state of the former leader to this worker's disk: {error.strerror}"
            raise HelenusError(Kind.STATE, problem, error.filename or str(home)) from None

    def remove_earlier(self, state: StateName, number: int) -> None:
        """Begin to remove a state from the directories of leaders before this `number`: what can't be removed is, by a
        later leader.
        """

        def remove() -> None:
            with contextlib.suppress(HelenusError):
                for name in self._files.list_names(self._root):
                    if leader_number(name, number) < number:
                        self._files.remove(self._directory(state, name))

        threading.Thread(target=remove, name="state-removal", daemon=True).start()

    def find_latest(self, state: StateName) -> str | None:
        """Return where the last leader that has a backup of the state has it; None if there is none."""
        leaders = [name for name in self._files.list_names(self._root) if leader_number(name) >= 0]
        for leader in sorted(leaders, key=leader_number, reverse=True):
            if (directory := self.find_former(state, leader)) is not None:
                return directory
        return None

    def _home(self, state: StateName) -> Path:
        return self._local / self._leader / state.path

    def _directory(self, state: StateName, leader: str) -> str:
        return f"{self._root}/{leader}/{state.path.as_posix()}"

    def _backup(self, state: StateName) -> StateBackup:
        if state not in self._backups:
            directory = self._directory(state, self._leader)
            home = self._home(state)
            self._backups[state] = StateBackup(self._files, directory, home, state.checkpoint, self._pool)
        return self._backups[state]

    def _scratch_file(self) -> Path:
        try:
            self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise HelenusError(Kind.STATE, f"cannot use checkpoint.dir: {error.strerror}", str(self._local)) from None
        return self._local / f".{threading.get_ident()}"


def local_directory(checkpoint_directory: Path) -> Path:
    """Return where a worker has the states that have a backup elsewhere."""
    return checkpoint_directory.absolute() / "states.local"  # a name that no query.group has
