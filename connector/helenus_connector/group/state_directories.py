"""Where the connectors of a group keep their state: each leader in a directory of its own below `state.checkpoint.dir`,
which all workers share.

    take    copy the state from the directory that the group's topic names   → the leader before writes there, not here
    keep    note in the topic that it is here now, as the leader alone can   → only then older directories are removed

A leader that hung, and goes on in the middle of a commit, writes to its own directory, which nobody reads any more. The
topic, not a listing of the file system, says where the newest state is: a leader that was replaced can't change that,
and removes nothing. Without the setting a state is on its worker's disk: the next leader begins it anew.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._leader import Leader
from helenus_connector.group._state_copy import Moving, copy_state
from helenus_connector.group.shared_topic import SharedTopic
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable, ownership
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
_STATE, _DIRECTORY = "helenus-state-", "helenus-state-directory"
_ID_FILE = "directory.id"
KEY = "state.checkpoint.dir"


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
        return _STATE + "/".join(quote(part, safe="") for part in self.parts)


@dataclass(frozen=True)
class StateHome:
    """The `directory` of a state in this leader's time. It is a copy if `is_copy`, which is not kept yet. `loss` says
    why there is none though there was one; it is empty if there is one, or never was.
    """

    directory: Path
    is_copy: bool = False
    loss: str = ""


@dataclass(frozen=True)
class _StateNote:
    """The note of where a state is: in the directory `leader`, below `state.checkpoint.dir` if `is_shared`, or on the
    disk of that `worker_id`.
    """

    leader: str
    worker_id: str
    is_shared: bool

    @classmethod
    def from_value(cls, value: object) -> _StateNote | None:
        match value:
            case {"leader": str(leader), "worker_id": str(worker_id), "is_shared": bool(is_shared)}:
                return cls(leader, worker_id, is_shared)
        return None


def check_state_directory(worker: WorkerSettings) -> None:
    """Raise HelenusError CONFIG if `state.checkpoint.dir` is not there, or others may change it. It is never made: one
    that is missing is not mounted.
    """
    if (directory := worker.state_checkpoint_dir) is None:
        return
    if not directory.is_dir():
        advice = "mount it on each worker of the group, or make it, owned by the user that runs this"
        raise HelenusError(Kind.CONFIG, f"{KEY}: there is no such directory", str(directory), advice)
    ownership.check_directory(directory, KEY)


class StateDirectories:
    """The states of the connectors of a worker that leads its group, as the `leader` that its `topic` has noted.

    Any thread may use it. Raises HelenusError: STATE for what can't be read or written, CONFIG if
    `state.checkpoint.dir` is another directory than that of the leader before, NOT_OWNER if another worker leads by
    now, and the brokers' errors.
    """

    def __init__(self, worker: WorkerSettings, topic: SharedTopic, leader: Leader) -> None:
        self._topic = topic
        self._leader = leader
        root = worker.state_checkpoint_dir
        self._root = None if root is None else root.absolute() / worker.group_name
        self._mount = root
        self._name = f"{leader.number}-{leader.term[:8]}"

    @property
    def is_shared(self) -> bool:
        """Return whether the next leader finds the states of this one."""
        return self._root is not None

    def take(self, state: StateName, local: Path) -> StateHome:
        """Take a state over from the leader before, whose records this worker owns by now. `local` is where a worker
        has it that has no `state.checkpoint.dir`.
        """
        self._topic.update(lambda _: {})  # reads the topic once more if it has to
        note = _StateNote.from_value(self._topic.values().get(state.key))
        if self._root is None:
            return self._take_local(note, local, state)
        self._check_id()
        own = self._root / self._name / state.path
        if note is not None and note.is_shared and note.leader == self._name:
            return StateHome(own, loss="" if own.exists() else "its directory was removed")
        if note is None or not note.is_shared:
            source = local if (local / state.identity).exists() else None
        else:
            source = self._root / note.leader / state.path
            source = source if source.is_dir() else None
        try:
            shutil.rmtree(own, ignore_errors=True)  # of an attempt that was not kept
            if source is None:
                own.parent.mkdir(parents=True, exist_ok=True)
                return StateHome(own, loss="" if note is None else _loss(note, self._root))
            copy_state(source, own, state.checkpoint)
        except Moving:
            problem = "its former leader writes to the state so fast that it can't be copied"
            raise HelenusError(Kind.BATCH_FAILED, problem, str(source)) from None
        except OSError as error:
            problem = f"cannot copy the state of the former leader: {error.strerror}"
            raise HelenusError(Kind.STATE, problem, error.filename or str(own)) from None
        _log.info("state.taken_over", state="/".join(state.parts), source=str(source))
        reach("state.taken")
        return StateHome(own, is_copy=True)

    def keep(self, state: StateName) -> None:
        """Note that the state is in this leader's directory, before anything else is written there. Then those of
        earlier leaders are removed.
        """
        note = asdict(_StateNote(self._name, self._leader.worker_id, self.is_shared))
        self._topic.update(lambda values: {} if values.get(state.key) == note else {state.key: note})
        reach("state.kept")
        if self._root is not None:
            self._remove_earlier(self._root, state)

    def _take_local(self, note: _StateNote | None, local: Path, state: StateName) -> StateHome:
        if note is not None and note.is_shared:
            problem = f"{KEY} is not set, and the group keeps the state of its connectors there"
            advice = "set it as on the other workers; to begin the state anew, set it to an empty directory on all"
            raise HelenusError(Kind.CONFIG, problem, "/".join(state.parts), advice)
        has_state = note is None or (local / state.identity).exists()
        return StateHome(local, loss="" if has_state or note is None else _loss(note, local))

    def _check_id(self) -> None:
        """Check that `state.checkpoint.dir` is that of the leader before, by a file there and its copy in the topic."""
        assert self._root is not None
        assert self._mount is not None
        file = self._root / _ID_FILE
        try:
            if not self._mount.is_dir():
                advice = "mount it, and restart the task"
                raise HelenusError(Kind.STATE, f"{KEY}: there is no such directory", str(self._mount), advice)
            self._root.mkdir(mode=0o700, exist_ok=True)
            noted = self._topic.values().get(_DIRECTORY)
            with contextlib.suppress(FileNotFoundError):
                file_id = file.read_text().strip()
                if noted is None:  # no leader before had one, or the topic was made anew
                    self._topic.update(lambda _: {_DIRECTORY: file_id})
                if noted in (None, file_id):
                    return
                advice = (
                    "mount the same directory on all workers of the group, and restart the task; or remove this file, "
                    "and the states of the group begin anew"
                )
                problem = f"{KEY} is another directory than that of the leader before"
                raise HelenusError(Kind.CONFIG, problem, str(file), advice)
            # Once the topic has it: a worker that ends in between finds no file, and does this again.
            new_id = secrets.token_hex(8)
            self._topic.update(lambda _: {_DIRECTORY: new_id})
            durable.write(file, f"{new_id}\n", "the identity of a directory", "state.id-saved")
        except OSError as error:
            problem = f"cannot use {KEY}: {error.strerror}"
            raise HelenusError(Kind.STATE, problem, error.filename or str(self._root)) from None

    def _remove_earlier(self, root: Path, state: StateName) -> None:
        """Remove a state from the directories of earlier leaders: what can't be removed is, by a later leader."""
        for directory in root.glob("*-*"):
            number = directory.name.partition("-")[0]
            if number.isdigit() and int(number) < self._leader.number:
                shutil.rmtree(directory / state.path, ignore_errors=True)
                for parent in (directory / state.path).parents:
                    if not parent.is_relative_to(directory):
                        break
                    with contextlib.suppress(OSError):  # others are in it
                        parent.rmdir()


def latest_directory(worker: WorkerSettings, state: StateName) -> Path | None:
    """Return the directory of the last leader that has a state; None if there is none. For when no worker runs."""
    if worker.state_checkpoint_dir is None:
        return None
    root = worker.state_checkpoint_dir.absolute() / worker.group_name
    directories = {
        int(directory.name.partition("-")[0]): directory / state.path
        for directory in root.glob("*-*")
        if directory.name.partition("-")[0].isdigit() and (directory / state.path).is_dir()
    }
    return directories[max(directories)] if directories else None


def _loss(note: _StateNote, where: Path) -> str:
    if note.is_shared:
        return f"the directory of the leader before, {note.leader}, is not in {where}"
    return f"it was on the disk of the worker {note.worker_id}"
