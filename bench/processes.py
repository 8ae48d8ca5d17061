"""What /proc shows of running processes."""

from __future__ import annotations

import os
from pathlib import Path


def family(pid: int) -> list[Path]:
    """The directories in /proc of a process and of all below it, as far as we may look into them."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # ended meanwhile
    members = {pid}
    while more := {child for child, parent in parents.items() if parent in members} - members:
        members |= more
    return [Path("/proc") / str(member) for member in members if os.access(f"/proc/{member}/environ", os.R_OK)]


def contents(process: Path, *files: str) -> bytes:
    """What is in a process's files, such as `environ`; nothing once it ended."""
    try:
        return b"".join((process / file).read_bytes() for file in files)
    except OSError:
        return b""


def python_workers(pid: int) -> list[int]:
    """A connector worker's processes that do batches: Spark's Python workers, what those are forked from, and the one
    for small batches, which is forked from the worker, or a program.
    """
    command = contents(Path("/proc") / str(pid), "cmdline")
    return [
        int(path.name)
        for path in family(pid)
        if (line := contents(path, "cmdline"))
        and path.name != str(pid)
        and (line == command or b"helenus_connector.daemon" in line or b"._small_batch_process" in line)
    ]
