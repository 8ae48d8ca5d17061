"""Named points at which a test makes the process die, as if by kill -9.

`HELENUS_FAILPOINT=agent.after-flush` kills at the first visit, `agent.after-flush:3` at the third. Where the variable
names a file after a `@` (`name@path`), the point kills only if it can create that file: once, across processes.
"""

from __future__ import annotations

import os
import signal

_name, _, _once = os.environ.get("HELENUS_FAILPOINT", "").partition("@")
_name, _, _visit = _name.partition(":")
_left = int(_visit or 1)


def reach(name: str) -> None:
    """Mark this point as reached: kills the process if a test asked for it, else does nothing."""
    global _left
    if name != _name:
        return
    _left -= 1
    if _left > 0:
        return
    if _once:
        try:
            os.close(os.open(_once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
