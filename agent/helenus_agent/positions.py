"""How far the log is read and acknowledged: one small file, replaced as a whole.

`state.dir/positions.json`: the node's host id, per segment the offset up to which every change is acknowledged, the
segments done with lately, the tables that were followed, and what of it all is still to be told. `state.dir/lock` is
held by the agent that writes there, and cdc_raw itself by the one that reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_log = structlog.get_logger(__name__)
_FILE = "positions.json"
_FORMAT = 1
# A restarted node links segments again that it has to replay: so many ids are kept to know them by.
_REMEMBERED = 512
# `is_held` takes the lock for a moment: an agent that starts just then asks again.
_TRIES = 5
_TRY = 0.05  # s
_DAMAGED = (
    "restore it, or delete it: the agent then reads again everything that is still in cdc_raw, and events arrive twice"
)


@dataclass
class Mark:
    """How far a segment is acknowledged, whether it has an index, and whether something in it could not be read."""

    offset: int
    indexed: bool = False
    bad: bool = False


@dataclass
class Gap:
    """Changes that may be missing from the log up to `time`, µs since the epoch; `table` is an id, empty: any table.

    `told`: its events are appended. One that is saved is to be told again.
    """

    table: str
    time: int
    reason: str
    told: bool = False


@dataclass
class Positions:
    """What is saved. `done`: segments all of whose changes are acknowledged; their files may still be there.

    `reached`: the segment and position up to which the log was read. `paused`: tables that were followed until they
    lost CDC. `truncated`: per table the time of its last TRUNCATE that is acknowledged, ms since the epoch. `gaps`:
    those that are not acknowledged. `refused`: tables some of whose changes were passed over since the broker refused
    their topics, and that were not told so yet. `listed`: the highest id of a segment that was seen, 0 if none was.
    `cdc_off`: the node was seen with cdc_enabled: false, and not without since. `deletes`: it was last seen with
    cdc_block_writes: false. `dropped`: per dropped table that the log may still name the time of that, µs since
    the epoch; 0 once it is acknowledged.
    """

    host_id: str = ""
    segments: dict[int, Mark] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    reached: tuple[int, int] = (0, 0)
    paused: list[str] = field(default_factory=list)
    truncated: dict[str, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    listed: int = 0
    cdc_off: bool = False
    deletes: bool = False
    dropped: dict[str, int] = field(default_factory=dict)

    def reopen(self, segment: int) -> None:
        """This segment is to be read again, from its start."""
        self.done = [number for number in self.done if number != segment]
        self.segments[segment] = Mark(0, indexed=True)

    def finish(self, segment: int) -> None:
        """This segment is done with."""
        self.segments.pop(segment, None)
        if segment not in self.done:
            self.done.append(segment)
        del self.done[:-_REMEMBERED]

    @property
    def followed_ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(text) for text in self.followed]

    @property
    def paused_ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(text) for text in self.paused]

    @property
    def refused_ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(text) for text in self.refused]

    @property
    def first(self) -> int:
        """The oldest segment that is not done with, or the one to come; 0 if none is known."""
        return min(self.segments, default=max(self.done) + 1 if self.done else 0)


class State:
    """The state directory, held for this process alone. Raises HelenusError(STATE)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise HelenusError(Kind.STATE, f"cannot use state.dir: {error.strerror}", str(directory)) from None
        try:
            if _locked(self._lock):
                return
        except OSError as error:
            os.close(self._lock)
            raise HelenusError(Kind.STATE, f"cannot lock state.dir: {error.strerror}", str(directory)) from None
        os.close(self._lock)
        advice = "stop the other agent, or give this one a state.dir of its own"
        raise HelenusError(Kind.STATE, "another agent uses this state.dir", str(directory), advice)

    def load(self, host_id: str = "") -> Positions:
        """What was saved, if anything. The state of another node than `host_id`, if that is given, is refused."""
        found = read(self.directory)
        if found is None:
            return Positions(host_id)
        if host_id and found.host_id != host_id:
            raise HelenusError(
                Kind.STATE,
                f"state.dir belongs to the node {found.host_id}, but Cassandra is {host_id}",
                str(self.directory / _FILE),
                "correct cassandra.contact.points or state.dir, or name an empty one for a node that is new",
            )
        return found

    def save(self, positions: Positions) -> None:
        """Write it down: after this returns, no crash brings the old one back."""
        content = {"format": _FORMAT, **asdict(positions)}
        durable.replace(self.directory / _FILE, content, "the positions", "state.after-write")

    def close(self) -> None:
        """Let another agent have it."""
        os.close(self._lock)


@contextlib.contextmanager
def owned(raw: Path) -> Iterator[None]:
    """Holds cdc_raw for this process alone: two agents would delete segments that the other has not read.

    The lock is on the directory itself: no file lies there that Cassandra would meet, and agents of other users, state
    directories and containers meet it too. Raises HelenusError: STATE if another agent has it.
    """
    lock = -1
    try:
        try:
            lock = os.open(raw, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            is_ours = _locked(lock)
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
    state = State(directory)
    try:
        positions = state.load()
        if positions.listed and not positions.cdc_off:
            positions.cdc_off = True
            state.save(positions)
    finally:
        state.close()


def _locked(descriptor: int) -> bool:
    """Whether this process has the lock now; False if another has it. Raises OSError where there are no locks."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if left:
                time.sleep(_TRY)
    return False


def read(directory: Path) -> Positions | None:
    """What an agent, running or not, has saved there; None if nothing. Raises HelenusError(STATE)."""
    path = directory / _FILE
    try:
        return _parse(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot read the positions: {error.strerror}", str(path)) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        told = f"the positions are damaged ({type(error).__name__}: {error})"
        raise HelenusError(Kind.STATE, told, str(path), _DAMAGED) from None


def saved_at(directory: Path) -> float | None:
    """When (s since the epoch) the positions were saved last; None if never."""
    try:
        return (directory / _FILE).stat().st_mtime
    except OSError:
        return None


def quarantine(directory: Path) -> Path:
    """Where the agent with this state directory puts segments that could not be read wholly."""
    return directory / "quarantine"


def is_held(directory: Path) -> bool:
    """True if an agent runs on this state directory."""
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _parse(saved: Any) -> Positions:
    if saved["format"] != _FORMAT:
        raise ValueError(f"format {saved['format']}, this agent knows {_FORMAT}")
    segments = {
        int(number): Mark(int(mark["offset"]), bool(mark["indexed"]), bool(mark["bad"]))
        for number, mark in saved["segments"].items()
    }
    positions = Positions(
        str(saved["host_id"]),
        segments,
        [int(number) for number in saved["done"]],
        list(saved["followed"]),
        (int(saved.get("reached", (0, 0))[0]), int(saved.get("reached", (0, 0))[1])),
        list(saved.get("paused", ())),
        {table: int(time) for table, time in saved.get("truncated", {}).items()},
        [Gap(gap["table"], int(gap["time"]), str(gap["reason"])) for gap in saved.get("gaps", ())],
        list(saved.get("refused", ())),
        int(saved.get("listed", 0)),
        bool(saved.get("cdc_off", False)),
        bool(saved.get("deletes", False)),
        {str(uuid.UUID(table)): int(time) for table, time in saved.get("dropped", {}).items()},
    )
    _ = positions.followed_ids, positions.paused_ids, positions.refused_ids
    return positions
