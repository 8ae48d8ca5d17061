"""What is written down so that neither a crash nor a power cut brings back what was there before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.failpoints import reach


def replace(path: Path, content: Any, what: str, failpoint: str) -> None:
    """Make `content`, as JSON, the file at `path`: whenever this ends, the old one or the new one is there, whole.

    What JSON has no form for is written as its `str`. Raises HelenusError(STATE), which says `what` could not be saved.
    """
    new = path.with_suffix(".new")
    try:
        with open(new, "w", encoding="utf-8") as file:
            json.dump(content, file, default=str)
            file.flush()
            os.fsync(file.fileno())
        reach(failpoint)
        new.replace(path)
        sync(path.parent)
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot save {what}: {error.strerror}", str(path)) from None


def sync(directory: Path) -> None:
    """Have the disk know which files are in this directory. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
