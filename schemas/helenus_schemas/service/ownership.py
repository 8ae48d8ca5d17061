"""Directories and lock files that no other user may change: checked before what is in them is trusted."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path

import structlog

from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
_ROOT = 0
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def check_directory(directory: Path, key: str) -> None:
    """Raise HelenusError(CONFIG) if another user than root owns the directory that a setting `key` names, or a link
    there; or if all users may write to it. They could replace what is in it, also by a link to a file of ours.

    A group that may write is logged as a warning: it is what Kubernetes makes of a volume with `fsGroup`, and may well
    be this user's own. A directory that is missing is none of these.
    """
    try:
        status = directory.stat()
        owners = status.st_uid, directory.lstat().st_uid
    except OSError:
        return  # whoever uses it says why it can't
    for owner in owners:
        if owner not in (os.geteuid(), _ROOT):
            message = f"{key}: it belongs to user {_name(owner)}, and this is {_name(os.geteuid())}"
            raise HelenusError(
                Kind.CONFIG, message, str(directory), "run this as the directory's user, or name another"
            )
    if status.st_mode & stat.S_IWOTH:
        message = f"{key}: all users may write to it"
        advice = "name a directory below it that is missing yet, which is then made for this user alone, or chmod 700"
        raise HelenusError(Kind.CONFIG, message, str(directory), advice)
    if status.st_mode & stat.S_IWGRP:
        reason = f"group {status.st_gid} may write to it, and so replace what is kept there"
        advice = "chmod g-w, unless only this service is in the group"
        _log.warning("directory.group_writable", key=key, directory=str(directory), reason=reason, advice=advice)


def open_lock(file: Path) -> int:
    """Open a lock file for this user alone: who else may open it may hold it. Returns its descriptor. Raises OSError.

    A lock file of an earlier version, which others could open, is closed to them.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(file))
        if status.st_uid == os.geteuid() and status.st_mode & _OTHER_USERS:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private(directory: Path) -> None:
    """Make a directory for this user alone. One that is there must be this user's, and others may not have written to
    it; those who could read it no longer can. Raises OSError, and follows no link.

    For places where other users may make directories too, such as /tmp.
    """
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _WRITABLE:
            reason = f"it is not a directory of user {_name(os.geteuid())} alone"
            raise PermissionError(errno.EPERM, reason, str(directory)) from None
        if status.st_mode & _OTHER_USERS:
            directory.chmod(0o700)


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # containers have users without a name
        return str(user)
