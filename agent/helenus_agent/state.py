"""The state directory: one small file of positions that is replaced as a whole, and the locks.

`state.dir/positions.json` holds the `Positions`, `state.dir/quarantine` the segments that could not be read.
`state.dir/lock` is held by the agent that writes there. cdc_raw itself is locked by the agent that reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import structlog

from helenus_agent.positions import Positions, is_numbered, is_renamed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable
from helenus_schemas.service.ownership import check_directory, open_lock

_log = structlog.get_logger(__name__)
_FILE = "positions.json"
# `is_held` takes the lock for a moment: an agent that starts just then tries again.
_TRIES = 5
_RETRY_S = 0.05  # s
_DAMAGED = (
    "restore it, or delete it: the agent then reads again everything that is still in cdc_raw, and events arrive twice"
)


class DamagedPositions(HelenusError):
    """The file of positions is there and can't be understood."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(Kind.STATE, f"the positions are damaged ({reason})", str(path), _DAMAGED)


class StateDirectory:
    """The state directory, held for this process alone. Raises HelenusError: STATE; CONFIG if others may change it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        check_directory(directory, "state.dir")
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open_lock(directory / "lock")
        except OSError as error:
            raise HelenusError(Kind.STATE, f"cannot use state.dir: {error.strerror}", str(directory)) from None
        try:
            if _try_lock(self._lock):
                return
        except OSError as error:
            os.close(self._lock)
            raise HelenusError(Kind.STATE, f"cannot lock state.dir: {error.strerror}", str(directory)) from None
        os.close(self._lock)
        advice = "stop the other agent, or give this one a state.dir of its own"
        raise HelenusError(Kind.STATE, "another agent uses this state.dir", str(directory), advice)

    def load(self, host_id: str = "", cluster: str = "", segments: Collection[int] = ()) -> Positions:
        """Return what was saved, if anything.

        If a `host_id` is given, with its cluster's name and the ids of the segments that are there, the state of
        another node is refused. One that an upgrade to Cassandra 6.0 has renamed is the same node if it has a segment
        that was read before; its positions keep the host id of before (see `FollowedTables.note_positions`).
        """
        saved = read(self.directory)
        if saved is None:
            return Positions(host_id)
        if host_id and saved.host_id != host_id:
            if not is_renamed(saved.host_id, host_id) or not saved.knows_segment(segments):
                raise self._foreign_error(f"the node {saved.host_id}", host_id)
        elif is_numbered(host_id) and saved.cluster not in ("", cluster):
            raise self._foreign_error(f"a node of the cluster {saved.cluster!r}", f"one of {cluster!r}")
        return saved

    def _foreign_error(self, owner: str, node: str) -> HelenusError:
        message = f"state.dir belongs to {owner}, but Cassandra is {node}"
        advice = "correct cassandra.contact.points or state.dir, or name an empty one for a node that is new"
        return HelenusError(Kind.STATE, message, str(self.directory / _FILE), advice)

    def save(self, positions: Positions) -> None:
        """Replace the file durably: after this returns, no crash brings the old one back."""
        text = durable.with_checksum(positions.as_json())
        durable.write(self.directory / _FILE, text, "the positions", "state.after-write")

    def set_aside(self) -> Path:
        """Rename a damaged file of positions, and return its new name. Raises HelenusError."""
        path = self.directory / _FILE
        try:
            return path.replace(path.with_suffix(".damaged"))
        except OSError as error:
            raise HelenusError(Kind.STATE, f"cannot rename the positions: {error.strerror}", str(path)) from None

    def close(self) -> None:
        """Let another agent have it."""
        os.close(self._lock)


@contextlib.contextmanager
def owned(raw: Path) -> Iterator[None]:
    """Hold cdc_raw for this process alone: two agents would delete segments that the other has not read.

    The lock is on the directory itself: no file lies there that Cassandra would find, and agents of other users, state
    directories and containers see it too. Raises HelenusError: STATE if another agent has it.
    """
    lock = -1
    try:
        try:
            lock = os.open(raw, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            is_ours = _try_lock(lock)
        except OSError as error:
            # Some network file systems have no locks. No node has its commit log there.
            _log.warning("cdc_raw.not_locked", directory=str(raw), error=error.strerror)
            is_ours = True
        if not is_ours:
            advice = "two would delete what the other has not read: stop one of them"
            raise HelenusError(Kind.STATE, "another agent reads this cdc_raw", str(raw), advice)
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def note_cdc_off(directory: Path) -> None:
    """Remember that this agent's node has CDC off: what it writes now is a gap. Raises as State."""
    state = StateDirectory(directory)
    try:
        positions = state.load()
        if positions.listed and not positions.cdc_off:
            positions.cdc_off = True
            state.save(positions)
    finally:
        state.close()


def _try_lock(descriptor: int) -> bool:
    """Return whether this process has the lock now; False if another has it. Raises OSError where there are no
    locks.
    """
    for remaining_tries in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if remaining_tries:
                time.sleep(_RETRY_S)
    return False


def read(directory: Path) -> Positions | None:
    """Return what an agent, running or not, has saved there; None if nothing. Raises HelenusError(STATE)."""
    path = directory / _FILE
    try:
        return Positions.from_json(durable.parse_with_checksum(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot read the positions: {error.strerror}", str(path)) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedPositions(f"{type(error).__name__}: {error}", path) from None


def saved_at(directory: Path) -> float | None:
    """Return when (s since the epoch) the positions were saved last; None if never."""
    try:
        return (directory / _FILE).stat().st_mtime
    except OSError:
        return None


def quarantine(directory: Path) -> Path:
    """Return where the agent with this state directory puts segments that could not be read wholly."""
    return directory / "quarantine"


def is_held(directory: Path) -> bool:
    """True if an agent runs on this state directory. Raises HelenusError(STATE) where this user can't see that."""
    lock = -1
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise unreadable_error("whether an agent runs", directory, error) from None
    finally:
        if lock >= 0:
            os.close(lock)
    return False


def unreadable_error(subject: str, directory: Path, error: OSError) -> HelenusError:
    """Return the error for `subject`, which can't be seen in a directory of the agent's."""
    advice = "run this as the agent's user" if isinstance(error, PermissionError) else ""
    return HelenusError(Kind.STATE, f"cannot see {subject}: {error.strerror}", str(directory), advice)
