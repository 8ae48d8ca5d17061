"""Names of segments: CommitLog-<version>-<id>.log; very old ones leave the version out. Ids rise with time."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"CommitLog(?:-(\d+))?-(\d+)\.log")
FIRST_INDEXED = 7
"""The first version of segments that get an index."""


def parse_name(name: str) -> tuple[int, int] | None:
    """Return the version (0: see its header) and id of a segment's file name, None if it is no segment."""
    match = _NAME.fullmatch(name)
    return (int(match[1] or 0), int(match[2])) if match else None


def has_index(path: Path) -> bool:
    """True if such a segment gets an index, and is linked into cdc_raw when it is made."""
    return (parse_name(path.name) or (0, 0))[0] >= FIRST_INDEXED


def index_path(path: Path) -> Path:
    """Return where a segment's index is, if it has one."""
    return path.with_name(f"{path.stem}_cdc.idx")
