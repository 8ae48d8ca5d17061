"""Records that a repeated batch left out: those of topics that are not followed just now, as of a table that failed.

Spark's offset is past them. A file beside the checkpoint says where such a topic goes on when it is followed again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from helenus_connector.log.events import Offsets
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable

_NAME = "left.out"
_VERSION = 1


def load_left_out(checkpoint: Path) -> Offsets:
    """Return where topics go on of which records were left out, by topic and partition. Raises HelenusError(STATE)."""
    file = checkpoint / _NAME
    try:
        offsets: Offsets = durable.load(file, _VERSION)
    except FileNotFoundError:
        return {}
    except durable.Damaged as error:
        advice = f"delete {checkpoint}: the state is then learned from the data topics again"
        raise HelenusError(Kind.STATE, f"this file is damaged: {error}", str(file), advice) from None
    return offsets


def note_left_out(checkpoint: Path, starts: Mapping[str, Mapping[str, int]]) -> None:
    """Note where topics go on of which records are left out, unless an earlier position is noted."""
    noted = load_left_out(checkpoint)
    _save(checkpoint, {**{topic: dict(offsets) for topic, offsets in starts.items()}, **noted}, noted)


def forget_left_out(checkpoint: Path, topics: Collection[str]) -> None:
    """Note that topics are read again from where they were left out."""
    noted = load_left_out(checkpoint)
    _save(checkpoint, {topic: offsets for topic, offsets in noted.items() if topic not in topics}, noted)


def _save(checkpoint: Path, offsets: Offsets, noted: Offsets) -> None:
    if offsets != noted:
        durable.save(checkpoint / _NAME, offsets, _VERSION, "which records were left out", "state.left-out-saved")
