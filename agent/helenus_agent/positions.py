"""How far the log is read and acknowledged: one small file, replaced as a whole.

`state.dir/positions.json`: the node's host id, per segment the offset up to which every change is acknowledged, the
segments done with lately, and the tables that were followed. `state.dir/lock` is held by the agent that writes there.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from helenus_schemas.errors import HelenusError, Kind

_FILE = "positions.json"
_FORMAT = 1
# A restarted node links segments again that it has to replay: so many ids are kept to know them by.
_REMEMBERED = 512


@dataclass
class Mark:
    """How far a segment is acknowledged, whether it has an index, and whether something in it could not be read."""

    offset: int
    indexed: bool = False
    bad: bool = False


@dataclass
class Positions:
    """What is saved. `done`: segments all of whose changes are acknowledged; their files may still be there."""

    host_id: str = ""
    segments: dict[int, Mark] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)

    def finish(self, segment: int) -> None:
        """This segment is done with."""
        self.segments.pop(segment, None)
        if segment not in self.done:
            self.done.append(segment)
        del self.done[:-_REMEMBERED]

    @property
    def followed_ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(text) for text in self.followed]


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
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise HelenusError(Kind.STATE, "another agent uses this state.dir", str(directory)) from None

    def load(self, host_id: str) -> Positions:
        """What was saved, if anything. `host_id` is the node's: the state of another one is refused."""
        path = self.directory / _FILE
        try:
            found = _parse(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return Positions(host_id)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise HelenusError(Kind.STATE, f"cannot read the positions: {error}", str(path)) from None
        if found.host_id != host_id:
            raise HelenusError(
                Kind.STATE, f"state.dir belongs to the node {found.host_id}, but Cassandra is {host_id}", str(path)
            )
        return found

    def save(self, positions: Positions) -> None:
        """Write it down: after this returns, no crash brings the old one back."""
        path = self.directory / _FILE
        new = path.with_suffix(".new")
        try:
            with open(new, "w", encoding="utf-8") as file:
                json.dump({"format": _FORMAT, **asdict(positions)}, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            handle = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise HelenusError(Kind.STATE, f"cannot save the positions: {error.strerror}", str(path)) from None

    def close(self) -> None:
        """Let another agent have it."""
        os.close(self._lock)


def _parse(saved: Any) -> Positions:
    if saved["format"] != _FORMAT:
        raise ValueError(f"format {saved['format']}, this agent knows {_FORMAT}")
    segments = {
        int(number): Mark(int(mark["offset"]), bool(mark["indexed"]), bool(mark["bad"]))
        for number, mark in saved["segments"].items()
    }
    positions = Positions(
        str(saved["host_id"]), segments, [int(number) for number in saved["done"]], list(saved["followed"])
    )
    _ = positions.followed_ids
    return positions
