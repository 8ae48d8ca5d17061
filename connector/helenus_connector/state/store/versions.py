"""What a state says of bytes that a later version of Helenus wrote: a downgrade, which must not guess."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from helenus_schemas.errors import HelenusError, Kind

_ADVICE = (
    "install that version again; or stop the worker, restore the copy of checkpoint.dir from before the upgrade (in a "
    "group, of state.checkpoint.dir), and start"
)


class UnknownVersion(ValueError):
    """Bytes in a state are of a version that is not known here."""

    def __init__(self, content: str, version: int, newest: int) -> None:
        super().__init__(
            f"{content} of version {version} in the state, where {newest} is known: a later Helenus wrote it"
        )


def check_version(value: bytes, newest: bytes, content: str) -> None:
    """Raise UnknownVersion for bytes that begin with a later version than the newest one here, which is one byte."""
    if value[:1] > newest:
        raise UnknownVersion(content, value[0], newest[0])


def refuse_unknown_versions(frames: Iterator[Any]) -> Iterator[Any]:
    """Yield what an operator yields. Raises HelenusError(STATE), which stops its table, in place of UnknownVersion."""
    try:
        yield from frames
    except UnknownVersion as error:
        raise HelenusError(Kind.STATE, str(error), "", _ADVICE) from None
