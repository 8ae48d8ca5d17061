"""Files that the host's workers map: with room for all of their bytes, in memory, or else on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from helenus_connector.config.run_directory import has_room, on_disk


def opened(path: Path, size: int) -> int:
    """The file, open, of at least `size` bytes. Where there is no room for it, it lies on disk, and a link here."""
    try:
        return _filled(on_disk(path) if path.is_symlink() else path, size)
    except OSError as error:
        if error.errno == errno.ELOOP:  # another process of this host moved it just now
            return _filled(on_disk(path), size)
        if error.errno != errno.ENOSPC:
            raise
    moved = on_disk(path)
    file = _filled(moved, size)
    path.unlink()
    path.symlink_to(moved)
    return file


def _filled(path: Path, size: int) -> int:
    """The file, open, with room for all of it: to store where the file system has none would end the process."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < size:
            if not has_room(file, size):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            _fill(file, size)
    except BaseException:
        os.close(file)
        raise
    return file


def _fill(file: int, size: int) -> None:
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # macOS has none
        os.ftruncate(file, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # of a file system that has none
            raise
        os.ftruncate(file, size)
