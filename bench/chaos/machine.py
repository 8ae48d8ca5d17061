"""What stands for the machines of agents and workers: small disks that can be full, and clocks that can be set.

A small disk is a file system in memory, which takes the right to mount one. The clock is `clock.c`, as with libfaketime
0.9.10 Python's `time.sleep` fails.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

DISK_MB = {"agent": 64, "worker": 1024}
"""The size of the disk of an agent's state, and of a worker's `checkpoint.dir`."""
_CLOCK = Path(__file__).with_name("clock.c")


@cache
def can_mount() -> bool:
    """Return whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        if _run_quietly("mount", "-t", "tmpfs", "-o", "size=1m", "helenus-chaos", folder):
            return _run_quietly("umount", folder)
    return False


def compiler() -> str | None:
    """Return the C compiler; None if there is none."""
    return shutil.which("cc") or shutil.which("gcc")


def make_clock_library(folder: Path) -> Path:
    """Compile what gives processes a clock of their own; returns its path. Raises OSError, and CalledProcessError."""
    library = folder / "clock.so"
    subprocess.run([compiler() or "cc", "-O2", "-shared", "-fPIC", "-o", library, _CLOCK], check=True)
    return library


def mount_disk(folder: Path, size_mb: int) -> None:
    """Have a folder be a file system of its own. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if not _run_quietly("mount", "-t", "tmpfs", "-o", f"mode=700,size={size_mb}m", "helenus-chaos", str(folder)):
        raise OSError(f"no file system could be mounted on {folder}")


def unmount_disk(folder: Path) -> None:
    """Undo it, also if a process still has files there open."""
    _run_quietly("umount", "--lazy", str(folder))


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Have a disk be full meanwhile."""
    filler = folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            for size in 1 << 20, 4096:
                _write_until_full(file.fileno(), bytes(size))
        yield
    finally:
        filler.unlink(missing_ok=True)


def clock_environment(library: Path, clock: Path) -> Mapping[str, str]:
    """Return the environment of a process whose clock is as a file has it: what is added to the time, in s."""
    set_clock(clock, 0)
    return {"LD_PRELOAD": str(library), "HELENUS_CLOCK": str(clock)}


def set_clock(clock: Path, offset_s: int) -> None:
    """Step a clock, for processes that run with its environment too."""
    following = clock.with_suffix(".next")
    following.write_text(f"{offset_s:+d}")
    following.replace(clock)


def _write_until_full(file: int, data: bytes) -> None:
    try:
        while True:
            os.write(file, data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _run_quietly(*command: str) -> bool:
    with suppress(OSError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False
