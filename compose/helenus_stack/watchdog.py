"""Stops a stack when its owner is gone, killed or not: `python -m helenus_stack.watchdog OWNER_PID RUN_FOLDER LOCK`.

Started by the owner itself. It watches its own parent: that changes at the owner's death, whatever became of the
owner's descriptors and threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from helenus_stack.files import exclusive
from helenus_stack.process import STOP_SECONDS, Process, python_environment, python_module, stop
from helenus_stack.progress import Silent

PERIOD = 0.3
LAUNCH_SECONDS = 1.0
"""A server whose launch the owner had just begun has its pid file by then."""


def start(run: Path, lock: Path) -> subprocess.Popen[bytes]:
    """Starts the watchdog of this process for the servers with pid files in `run`; terminate it to call it off."""
    return subprocess.Popen(
        python_module("helenus_stack.watchdog", str(os.getpid()), str(run), str(lock)),
        env=python_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(owner: int, run: Path, lock: Path) -> None:
    """Waits for the owner's end, then stops the servers."""
    while os.getppid() == owner:
        time.sleep(PERIOD)
    with exclusive(lock, Silent(), ""):  # a new `up` must not find servers that are about to end
        for _ in range(2):
            stop(map(Process, run.glob("*.pid")), STOP_SECONDS)
            time.sleep(LAUNCH_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
