"""What a checkpoint's state is of: a file beside it, which says when state would be taken for something else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_NAME = "state.about"
_VERSION = 2
"""1 was of states whose keys did not lie on `pages`."""


@dataclass(frozen=True)
class StateIdentity:
    """The state of `state=rows`: of a table's events topic, by its partitions. `places` groups the events of each
    partition, among `slots` stores: Spark keeps that number with the checkpoint. `is_whole`: of each row that was there
    before, all columns are known. `proven`: of partitions how many disturbances they had when that was so last, as of
    `RowMerge`.
    """

    table: str
    topic: str
    places: tuple[int, ...]
    slots: int
    is_whole: bool = False
    proven: Mapping[int, int] = field(default_factory=dict)


def kept(checkpoint: Path) -> StateIdentity | None:
    """What the state in a checkpoint is of; None if there is none yet. Raises HelenusError(STATE) if it can't be known,
    or the state is gone.
    """
    file = checkpoint / _NAME
    has_begun = any((checkpoint / "offsets").glob("[0-9]*"))
    try:
        found = durable.load(file, _VERSION)
    except FileNotFoundError:
        if has_begun:
            what = "this checkpoint is of a query without state, or the file that says what its state is of is gone"
            raise HelenusError(Kind.STATE, what, str(file), advice(checkpoint)) from None
        return None
    except durable.Damaged as error:
        raise HelenusError(Kind.STATE, f"this file is damaged: {error}", str(file), advice(checkpoint)) from None
    if any((checkpoint / "commits").glob("[0-9]*")) and not (checkpoint / "state").exists():
        what = "the state is gone, and its offsets are not"
        raise HelenusError(Kind.STATE, what, str(checkpoint / "state"), advice(checkpoint))
    is_whole = found.get("is_whole", False)
    proven = {int(partition): count for partition, count in found.get("proven", {}).items()}
    return StateIdentity(found["table"], found["topic"], tuple(found["places"]), found["slots"], is_whole, proven)


def keep(checkpoint: Path, about: StateIdentity) -> None:
    """Write it: before the first batch, and when `is_whole` changes."""
    durable.make_directory(checkpoint)
    durable.save(checkpoint / _NAME, asdict(about), _VERSION, "what the state is of", "state.about-saved")


def check(about: StateIdentity, table: str, topic: str, partitions: int, checkpoint: Path) -> None:
    """Raise HelenusError(STATE) if the state is of something else."""
    what = None
    if (about.table, about.topic) != (table, topic):
        what = f"the state is of {about.table} and {about.topic}, not of {table} and {topic}"
    elif len(about.places) != partitions:
        what = f"{topic} has {partitions} partitions, and had {len(about.places)} when the state began"
    if what is not None:
        raise HelenusError(Kind.STATE, what, str(checkpoint), advice(checkpoint))


def advice(checkpoint: Path) -> str:
    """What to do with state that can't be used."""
    return f"delete {checkpoint}, or set another query.group: events are then read, and rows snapshot, once more"
