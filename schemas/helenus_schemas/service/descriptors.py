"""File descriptors of a process: how many it may have, and what it does when there are none left."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

import structlog

from helenus_schemas.errors import reason

ADVICE = "raise the limit of open files (LimitNOFILE of the systemd unit, ulimit -n), and see who connects"
_log = structlog.get_logger(__name__)
_EXHAUSTED = {errno.EMFILE, errno.ENFILE}
# More than any of our processes opens. A container's hard limit may be a billion, and programs that a process starts
# inherit the soft limit: some of them close all numbers below it, one by one.
_MAX_FILES = 1 << 20


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it. Shells and systemd give a soft limit of 1,024
    for the sake of programs that use `select`, which ours do not for more than a handful.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MAX_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a sandbox may refuse it
        return soft
    return wanted


def are_exhausted(error: BaseException) -> bool:
    """Return whether an error, or what caused it, is that no file could be opened any more: it passes when others are
    closed.
    """
    cause: BaseException | None = error
    # A chain may be a circle.
    for _ in range(20):
        if cause is None:
            return False
        if isinstance(cause, OSError) and cause.errno in _EXHAUSTED:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@contextlib.contextmanager
def exhaustion_tolerated() -> Iterator[None]:
    """Log it, and go on, if no file could be opened any more: what was to be done is done at the next turn."""
    try:
        yield
    except Exception as error:
        if not are_exhausted(error):
            raise
        _log.warning("descriptors.exhausted", error=reason(error), advice=ADVICE)
