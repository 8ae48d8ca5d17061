"""Server processes by their pid files: start, look at, signal, stop.

A pid file holds the pid and the start time of its process, so that a reused pid is never taken for ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from helenus_stack.errors import StackError
from helenus_stack.launch import start_time

Life = Literal["running", "paused", "died", "stopped"]
"""died: there is a pid file, but no such process any more. stopped: nothing is expected to run."""


STOP_SECONDS = 8.0
"""After that long, a server that was asked to stop is killed."""


@dataclass(frozen=True)
class Process:
    """A server's process, known by its pid file."""

    pid_file: Path

    @property
    def pid(self) -> int | None:
        """The pid of the living process, or None."""
        try:
            pid, started = self.pid_file.read_text().split(maxsplit=1)
            return int(pid) if start_time(int(pid)) == started.strip() and _state(int(pid)) != "Z" else None
        except (OSError, ValueError):
            return None

    @property
    def life(self) -> Life:
        """What the process is doing."""
        if (pid := self.pid) is None:
            return "died" if self.pid_file.exists() else "stopped"
        return "paused" if _state(pid) == "T" else "running"

    def start(self, command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        """Starts the process in its own session, with its output appended to `log`."""
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [str(self.pid_file.absolute()), str(log.absolute()), str(folder), *command]
        with _undisturbed():  # or it would start what nobody finds any more
            completed = subprocess.run(
                python_module("helenus_stack.launch", *arguments),
                env={**python_environment(), **environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                start_new_session=True,
            )
        if completed.returncode or not self.pid_file.exists():
            raise StackError(
                f"{command[0]} could not be started", str(self.pid_file), "check the folder", completed.stderr
            )

    def signal(self, number: signal.Signals) -> bool:
        """Sends a signal to the process and its children; False if there is no process."""
        if (pid := self.pid) is None:
            return False
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return False
        return True


def stop(processes: Iterable[Process], limit: float) -> None:
    """Ends processes, all at once: asks, and after `limit` seconds forces. Their pid files go."""
    processes = list(processes)
    groups = {pid for process in processes if (pid := process.pid) is not None}
    for process in processes:
        # The leader alone is asked: it ends its children itself, and may need them for that. A paused one is woken.
        if limit and (pid := process.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            process.signal(signal.SIGCONT)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and any(process.pid for process in processes):
        time.sleep(0.05)
    # What is left of each group, its leader or children that it did not end; and who came meanwhile.
    killed: set[int] = set()
    while True:
        groups |= {pid for process in processes if (pid := process.pid) is not None}
        for group in groups - killed:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        killed |= groups
        if not any(process.pid for process in processes) and not any(map(_exiting, groups)):
            break
        time.sleep(0.02)
    for process in processes:
        process.pid_file.unlink(missing_ok=True)


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Ends a child of this process: asks it, and after 20 s kills it."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Who is asked to end within, is asked when it is over."""
    if threading.current_thread() is not threading.main_thread():  # no signal disturbs the others
        yield
        return
    received: list[int] = []
    before = {n: signal.signal(n, lambda number, _: received.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
        for number in received:
            signal.raise_signal(number)


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package."""
    return [sys.executable, "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """The environment in which `python_module` finds this package, installed or not."""
    home = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}


def _exiting(pid: int) -> bool:
    """Whether a killed process still has threads, and with them its ports, though its first one is gone."""
    threads = Path(f"/proc/{pid}/task")
    for thread in threads.iterdir() if threads.exists() else ():
        with suppress(OSError):
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return True
    return False


def _state(pid: int) -> str:
    """R, S, T (stopped by a signal), Z (dead, not yet reaped by its parent) and so on; raises OSError."""
    if sys.platform == "linux":
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()[:1]
