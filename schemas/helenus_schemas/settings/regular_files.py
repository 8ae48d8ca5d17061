"""Opening files whose names come from elsewhere: regular ones of a bounded size, and nothing that could block.

A FIFO without a writer would stop the thread that opens it, a device such as /dev/zero never ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

LARGEST = 4 << 20
"""Bytes of the largest file of certificates, keys or secrets: the authorities of a whole system have 250 kB."""


@contextlib.contextmanager
def opened(path: str | Path, follows_link: bool = True) -> Iterator[int]:
    """Open a regular file to be read, and close it in the end. Raises OSError, with a reason in `strerror`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follows_link else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > LARGEST:
            raise OSError(errno.EFBIG, f"it has more than {LARGEST >> 20} MiB", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def check(*paths: Path | None) -> None:
    """Raise OSError for the first of these that is no regular file of a bounded size: libraries that open a file by
    its name are to be given no other.
    """
    for path in paths:
        if path is not None:
            with opened(path):
                pass
