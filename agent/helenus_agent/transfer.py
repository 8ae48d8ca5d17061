"""What becomes of a segment that is done with."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from helenus_agent.segment import index_path

Transfer = Callable[[Path], None]
"""Takes a segment whose changes are all acknowledged out of cdc_raw, its index too. May be called again after a crash:
files may be gone already. Raises OSError."""


def delete(path: Path) -> None:
    """Delete it: Cassandra may use its space again."""
    # The segment first: it is what takes the space. Cassandra cares for neither any more.
    path.unlink(missing_ok=True)
    index_path(path).unlink(missing_ok=True)


def quarantine(path: Path, directory: Path) -> Path:
    """Move a segment that can't be read wholly into a directory, to be looked at; returns its new path."""
    directory.mkdir(exist_ok=True)
    for file in (path, index_path(path)):
        with contextlib.suppress(FileNotFoundError):
            _copy(file, directory / file.name)
    _sync(directory)
    delete(path)
    return directory / path.name


def _copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return  # from before a crash, and whole: both ways to make it are atomic
    except FileNotFoundError:
        raise
    except OSError:
        # Another file system, or one without links.
        part = target.with_name(target.name + ".part")
        shutil.copyfile(source, part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        part.replace(target)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
