"""Named points at which a test makes the process die, as if by kill -9.

`HELENUS_FAILPOINT=agent.after-flush` kills at the first visit, `agent.after-flush:3` at the third. Where the variable
names a file after a `@` (`name@path`), the point kills only if it can create that file: once, across processes. Several
points have commas between them.
"""

from __future__ import annotations

import os
import signal


def _parse_points(text: str) -> dict[str, tuple[int, str]]:
    """Return by name how many visits remain until the point kills, and the file that it has to create."""
    remaining = {}
    for point in filter(None, text.split(",")):
        name, _, once = point.partition("@")
        name, _, visit = name.partition(":")
        remaining[name] = int(visit or 1), once
    return remaining


_remaining_visits = _parse_points(os.environ.get("HELENUS_FAILPOINT", ""))


def reach(name: str) -> None:
    """Mark this point as reached: kills the process if a test asked for it, else does nothing."""
    if name not in _remaining_visits:
        return
    visits, once = _remaining_visits[name]
    _remaining_visits[name] = visits - 1, once
    if visits > 1:
        return
    if once:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
