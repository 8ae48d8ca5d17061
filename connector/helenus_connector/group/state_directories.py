"""Where the connectors of a group keep their state: each leader in a directory of its own below `state.checkpoint.dir`,
which all workers share.

    take    copy the state from the directory that the group's topic names   → the leader before writes there, not here
    keep    note in the topic that it is here now, as the leader alone can   → only then older directories are removed

A leader that hung, and goes on in the middle of a commit, writes to its own directory, which nobody reads any more. The
topic, not a listing of the file system, says where the newest state is: a leader that was replaced can't change that,
and removes nothing. Without the setting a state is on its worker's disk: the next leader begins it anew.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._backed_up_states import BackedUpStates, local_directory
from helenus_connector.group._hadoop_files import KEY, HadoopFiles, StateFiles, repeated
from helenus_connector.group._leader import Leader
from helenus_connector.group._mounted_states import MountedStates
from helenus_connector.group._state_home import StateHome as StateHome
from helenus_connector.group._state_home import StateName as StateName
from helenus_connector.group.shared_topic import SharedTopic
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import ownership
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
_DIRECTORY = "helenus-state-directory"
_OpenFiles = Callable[[Any, str], StateFiles]


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
    that is missing is not mounted. Of a URL nothing is checked, which takes Spark.
    """
    if (directory := worker.state_mount) is None:
        return
    if not directory.is_dir():
        advice = "mount it on each worker of the group, or make it, owned by the user that runs this"
        raise HelenusError(Kind.CONFIG, f"{KEY}: there is no such directory", str(directory), advice)
    ownership.check_directory(directory, KEY)


class StateDirectories:
    """The states of the connectors of a worker that leads its group, as the `leader` that its `topic` has noted.

    Any thread may use it. Raises HelenusError: STATE for what can't be read or written, CONFIG if
    `state.checkpoint.dir` is another directory than that of the leader before, or an empty one, NOT_OWNER if another
    worker leads by now, and the brokers' errors; of a file system by its URL as `StateFiles`.
    """

    def __init__(
        self, worker: WorkerSettings, topic: SharedTopic, leader: Leader, open_files: _OpenFiles = HadoopFiles
    ) -> None:
        self._worker = worker
        self._topic = topic
        self._leader = leader
        self._open_files = open_files
        self._name = f"{leader.number}-{leader.term[:8]}"
        self._states: MountedStates | BackedUpStates | None = None
        self._homes: dict[StateName, StateHome] = {}

    @property
    def is_shared(self) -> bool:
        """Return whether the next leader finds the states of this one."""
        return bool(self._worker.state_checkpoint_dir)

    def take(self, state: StateName, local: Path, spark: Any = None) -> StateHome:
        """Take a state over from the leader before, whose records this worker owns by now. `local` is where a worker
        has it that has no `state.checkpoint.dir`; by the session `spark` a file system is used that is named by a URL.
        """
        self._topic.update(lambda _: {})  # reads the topic once more if it has to
        note = _StateNote.from_value(self._topic.values().get(state.key))
        states = self._open_states(spark)
        if states is None:
            return self._take_local(note, local, state)
        is_shared = note is not None and note.is_shared
        with repeated(has_run=is_shared):
            directory_id = states.read_id()
        self._check_id(states, directory_id)
        with repeated(has_run=is_shared):
            if note is not None and note.is_shared and note.leader == self._name:
                home = states.find_own(state)
            else:
                home = self._take_former(states, note, local, state)
        self._homes[state] = home
        return home

    def keep(self, state: StateName) -> None:
        """Note that the state is in this leader's directory, before anything else is written there. Then those of
        earlier leaders are removed.
        """
        if (home := self._homes.get(state)) is not None:
            home.save()
        note = asdict(_StateNote(self._name, self._leader.worker_id, self.is_shared))
        self._topic.update(lambda values: {} if values.get(state.key) == note else {state.key: note})
        reach("state.kept")
        if self._states is not None:
            self._states.remove_earlier(state, self._leader.number)

    def _open_states(self, spark: Any) -> MountedStates | BackedUpStates | None:
        if self._states is None:
            self._states = _open_states(self._worker, self._name, spark, self._open_files)
            if isinstance(self._states, BackedUpStates):
                self._states.remove_local_leftovers()
        return self._states

    def _take_former(
        self, states: MountedStates | BackedUpStates, note: _StateNote | None, local: Path, state: StateName
    ) -> StateHome:
        """Copy the state of the leader before, or that which this worker had alone."""
        source: Path | str | None = local if (local / state.identity).exists() else None
        if note is not None and note.is_shared:
            source = states.find_former(state, note.leader)
        home = states.copy(state, source)  # type: ignore[arg-type]  # what one finds, it copies
        if home.is_copy:
            _log.info("state.taken_over", state="/".join(state.parts), source=str(source))
            reach("state.taken")
            return home
        return home if note is None else replace(home, loss=_loss(note, states.where))

    def _take_local(self, note: _StateNote | None, local: Path, state: StateName) -> StateHome:
        if note is not None and note.is_shared:
            problem = f"{KEY} is not set, and the group keeps the state of its connectors there"
            advice = (
                "set it as on the other workers; or name another one on all, with an empty file GROUP.ID/directory.id "
                "in it, and the state begins anew"
            )
            raise HelenusError(Kind.CONFIG, problem, "/".join(state.parts), advice)
        has_state = note is None or (local / state.identity).exists()
        return StateHome(local, loss="" if has_state or note is None else _loss(note, str(local)))

    def _check_id(self, states: MountedStates | BackedUpStates, directory_id: str | None) -> None:
        """Check that `state.checkpoint.dir` is that of the leader before, by a file there and its copy in the topic."""
        noted = self._topic.values().get(_DIRECTORY)
        if directory_id == "":  # an operator made it
            # Once the topic has it: a worker that ends in between finds the empty file, and does this again.
            new_id = secrets.token_hex(8)
            self._topic.update(lambda _: {_DIRECTORY: new_id})
            states.write_id(new_id)
        elif noted is None:  # no leader before had one, or the topic was made anew
            if directory_id is None:
                directory_id = secrets.token_hex(8)
                states.write_id(directory_id)
            self._topic.update(lambda _: {_DIRECTORY: directory_id})
        elif noted != directory_id:
            problem = f"{KEY} is another directory than that of the leader before"
            if directory_id is None:
                problem = f"{KEY} has nothing of the leaders before, as one that is not mounted"
            advice = (
                "set the directory of before on all workers of the group, and restart the task; or make this an empty "
                "file, and the states of the group begin anew"
            )
            raise HelenusError(Kind.CONFIG, problem, states.id_file, advice)


def find_latest(worker: WorkerSettings, state: StateName, spark: Any) -> Path | None:
    """Return the directory of the last leader that has a state, None if there is none: for when no worker runs. From a
    file system by its URL it is copied to this worker's disk, where the next worker removes it. Raises HelenusError.
    """
    states = _open_states(worker, "latest", spark, HadoopFiles)
    if isinstance(states, BackedUpStates):
        source = states.find_latest(state)
        return None if source is None else states.copy(state, source).directory
    return None if states is None else states.find_latest(state)


def _open_states(
    worker: WorkerSettings, leader: str, spark: Any, open_files: _OpenFiles
) -> MountedStates | BackedUpStates | None:
    if (mount := worker.state_mount) is not None:
        return MountedStates(mount, worker.group_name, leader)
    if (url := worker.state_url) is None:
        return None
    local = local_directory(worker.checkpoint_dir)
    return BackedUpStates(open_files(spark, url), url, worker.group_name, leader, local)


def _loss(note: _StateNote, where: str) -> str:
    if note.is_shared:
        return f"the directory of the leader before, {note.leader}, is not in {where}"
    return f"it was on the disk of the worker {note.worker_id}"
