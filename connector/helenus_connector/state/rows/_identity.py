"""The identity of a checkpoint's state: a file beside it, which tells when state would be used for another table or
topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from helenus_connector.control.checkpoint import latest, latest_committed
from helenus_connector.journal.batch_marks import BatchMarks
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import counted
from helenus_schemas.service import durable

NAME = "state.about"
"""Of the file."""
_VERSION = 2
"""Version 1 was of states whose keys did not lie on `pages`."""
_NUMBERS_PER_PLACE = 100
"""Numbers that are tried for each partition: one in `slots` of them goes to the right store."""


@dataclass(frozen=True)
class StateIdentity:
    """The identity of the state of `state=rows`: of a table's events topic, by its partitions. `places` groups the
    events of each partition, among `slots` stores: Spark keeps that number with the checkpoint. `is_whole`: of each row
    that was there before, all columns are known, or `snapshot.mode=never` says that they are not to be. `proven`: the
    number of disturbances that each partition had when that was last so. The two are the `trusts_absence` and
    `proven_up_to` of `TopicPartitionMerger`, under the names that the file has. `name` tells it from one that begins
    anew; files of before have none. `former` are the names of those whose batches were published when it began; None of
    a file of before.
    """

    table: str
    topic: str
    places: tuple[int, ...]
    slots: int
    is_whole: bool = False
    proven: Mapping[int, int] = field(default_factory=dict)
    name: str = ""
    former: tuple[str, ...] | None = None


def load_identity(checkpoint: Path) -> StateIdentity | None:
    """Load the identity of the state in a checkpoint; None if there is no state yet. Raises HelenusError(STATE) if it
    can't be known, or the state is gone.
    """
    file = checkpoint / NAME
    has_begun = any((checkpoint / "offsets").glob("[0-9]*"))
    try:
        fields = durable.load(file, _VERSION)
    except FileNotFoundError:
        if has_begun:
            reason = "this checkpoint is of a query without state, or the file that says what its state is of is gone"
            raise HelenusError(Kind.STATE, reason, str(file), advice(checkpoint)) from None
        return None
    except durable.Damaged as error:
        raise HelenusError(Kind.STATE, f"this file is damaged: {error}", str(file), advice(checkpoint)) from None
    if any((checkpoint / "commits").glob("[0-9]*")) and not (checkpoint / "state").exists():
        reason = "the state is gone, and its offsets are not"
        raise HelenusError(Kind.STATE, reason, str(checkpoint / "state"), advice(checkpoint))
    is_whole = fields.get("is_whole", False)
    proven = {int(partition): count for partition, count in fields.get("proven", {}).items()}
    places, name, names = tuple(fields["places"]), fields.get("name", ""), fields.get("former")
    former = None if names is None else tuple(names)
    return StateIdentity(fields["table"], fields["topic"], places, fields["slots"], is_whole, proven, name, former)


def save_identity(checkpoint: Path, identity: StateIdentity) -> None:
    """Save the identity: before the first batch, and when `is_whole` changes."""
    durable.make_directory(checkpoint)
    durable.save(checkpoint / NAME, asdict(identity), _VERSION, "what the state is of", "state.about-saved")


def note_former(checkpoint: Path, identity: StateIdentity, states: Collection[str]) -> StateIdentity:
    """Note the `states` whose batches are published by now, if this one has not begun, or does not know which were.
    Return its identity.
    """
    former = tuple(sorted(states))
    if former == identity.former or (identity.former is not None and latest(checkpoint) >= 0):
        return identity
    identity = replace(identity, former=former)
    save_identity(checkpoint, identity)
    return identity


def is_overtaken(checkpoint: Path, identity: StateIdentity, marks: BatchMarks) -> bool:
    """Return whether another state was published since this one began, as if this one is a copy that was restored, or
    was left for another `query.group` and is taken up again. Marks of before stay where nothing came since.
    """
    if identity.former is None:
        return marks.former_state is not None and latest_committed(checkpoint) >= 0
    return latest(checkpoint) >= 0 and not marks.other_states <= {*identity.former}


def check_identity(identity: StateIdentity, table: str, topic: str, partitions: int, checkpoint: Path) -> None:
    """Raise HelenusError(STATE) if the state is of another table or topic."""
    reason = None
    if (identity.table, identity.topic) != (table, topic):
        reason = f"the state is of {identity.table} and {identity.topic}, not of {table} and {topic}"
    elif len(identity.places) != partitions:
        reason = f"{topic} has {counted(partitions, 'partition')}, and had {len(identity.places)} when the state began"
    if reason is not None:
        raise HelenusError(Kind.STATE, reason, str(checkpoint), advice(checkpoint))


def advice(checkpoint: Path) -> str:
    """Return what to do with state that can't be used."""
    return f"delete {checkpoint}, or set another query.group: events are then read, and rows snapshot, once more"


def places(spark: Any, partitions: int, slots: int) -> tuple[int, ...]:
    """Return a number for each partition, by which Spark gives partitions to the stores in turns: n goes to the store n
    % slots.
    """
    hashed = f"pmod(hash(cast(id AS int)), {slots}) AS slot"
    numbers: Mapping[int, list[int]] = {slot: [] for slot in range(slots)}
    for row in spark.range(partitions * _NUMBERS_PER_PLACE).selectExpr("cast(id AS int) AS id", hashed).collect():
        numbers[row.slot].append(row.id)
    return tuple(numbers[n % slots][n // slots] for n in range(partitions))
