"""Which errors end by themselves."""

from __future__ import annotations

from helenus_schemas.errors import Action, HelenusError
from helenus_schemas.service import descriptors


def may_pass(error: BaseException) -> bool:
    """Return whether a retry may succeed: a server is away, or this process has no descriptor left."""
    is_transient = isinstance(error, HelenusError) and error.action is Action.RETRY
    return is_transient or descriptors.are_exhausted(error)
