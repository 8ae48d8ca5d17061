"""Directories and locks that other users may not change, hold or take first."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import attacks
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from helenus_agent.state import StateDirectory
from helenus_connector.control.fences import owned
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.ownership import check_directory, make_private, open_lock

ROOT_ALONE = pytest.mark.skipif(not attacks.IS_ROOT, reason="only root makes files of other users")
OWNERS = [os.geteuid(), attacks.STRANGER, 12345] if attacks.IS_ROOT else [os.geteuid()]


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory that other users may look into, as /tmp."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o1777)
        yield Path(directory)


@given(st.sampled_from(OWNERS), st.integers(0, 0o7777))
def test_a_directory_that_others_may_change_is_refused(owner: int, mode: int) -> None:
    with tempfile.TemporaryDirectory() as parent, structlog.testing.capture_logs() as logs:
        directory = Path(parent, "state")
        directory.mkdir()
        os.chown(directory, owner, -1)
        directory.chmod(mode)
        if owner != os.geteuid() or mode & stat.S_IWOTH:
            with pytest.raises(HelenusError, match=r"state\.dir: (it belongs to|all users)") as error:
                check_directory(directory, "state.dir")
            assert error.value.kind is Kind.CONFIG
        else:
            check_directory(directory, "state.dir")
            assert bool(logs) == bool(mode & stat.S_IWGRP), "Kubernetes makes volumes of a group so"


def test_a_link_of_this_user_is_followed(shared_directory: Path) -> None:
    (shared_directory / "real").mkdir()
    (shared_directory / "state").symlink_to(shared_directory / "real")
    check_directory(shared_directory / "state", "state.dir")


@ROOT_ALONE
def test_a_link_of_another_user_is_refused(shared_directory: Path) -> None:
    """Linux follows none in /tmp, unless `fs.protected_symlinks` is off."""
    (shared_directory / "real").mkdir()
    (shared_directory / "state").symlink_to(shared_directory / "real")
    os.lchown(shared_directory / "state", attacks.STRANGER, attacks.STRANGER)
    with pytest.raises(HelenusError, match="it belongs to user"):
        check_directory(shared_directory / "state", "state.dir")


def test_a_directory_of_root_is_anybody_s() -> None:
    """A volume in a container: root, who made it, can change all files anyway."""
    if Path("/usr").stat().st_uid == 0:
        check_directory(Path("/usr"), "state.dir")


def test_a_directory_that_is_not_there_is_made_later(shared_directory: Path) -> None:
    check_directory(shared_directory / "missing", "state.dir")


LOCKS: dict[str, Callable[[Path, ExitStack], object]] = {
    "lock": lambda directory, stack: stack.enter_context(closing(StateDirectory(directory))),
    "worker.lock": lambda directory, stack: stack.enter_context(owned(directory, lambda: False)),
}
_HOLD = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB); print('held')"


@pytest.mark.parametrize("name", LOCKS)
@pytest.mark.parametrize("before", [None, 0o644, 0o666])
def test_another_user_can_t_hold_a_lock(shared_directory: Path, name: str, before: int | None) -> None:
    """Also where an earlier version made the directory, and let others see into it."""
    directory = shared_directory / "state"
    directory.mkdir()
    directory.chmod(0o755)
    if before is not None:
        (directory / name).touch()
        (directory / name).chmod(before)
    with ExitStack() as stack:
        LOCKS[name](directory, stack)
    assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    if attacks.IS_ROOT:
        with pytest.raises(AssertionError, match="Permission denied"):
            attacks.as_stranger(["/usr/bin/env", "python3", "-c", _HOLD, str(directory / name)])


@pytest.mark.parametrize("name", LOCKS)
def test_a_directory_of_ours_is_made_for_its_user_alone(shared_directory: Path, name: str) -> None:
    with ExitStack() as stack:
        LOCKS[name](shared_directory / "state", stack)
    assert stat.S_IMODE((shared_directory / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", LOCKS)
@ROOT_ALONE
def test_a_directory_that_another_user_made_first_is_refused(shared_directory: Path, name: str) -> None:
    (shared_directory / "state").mkdir()
    os.chown(shared_directory / "state", attacks.STRANGER, attacks.STRANGER)
    with ExitStack() as stack, pytest.raises(HelenusError, match="it belongs to user") as error:
        LOCKS[name](shared_directory / "state", stack)
    assert error.value.kind is Kind.CONFIG
    assert list((shared_directory / "state").iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(shared_directory: Path) -> None:
    (shared_directory / "precious").write_text("as it was")
    (shared_directory / "lock").symlink_to(shared_directory / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(shared_directory / "lock")
    assert (shared_directory / "precious").read_text() == "as it was"


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o500])
def test_a_directory_of_this_user_in_a_place_of_all_is_closed_to_others(shared_directory: Path, mode: int) -> None:
    (shared_directory / "run").mkdir()
    (shared_directory / "run").chmod(mode)
    make_private(shared_directory / "run")
    assert stat.S_IMODE((shared_directory / "run").stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_one_that_others_could_write_to_is_refused(shared_directory: Path, mode: int) -> None:
    (shared_directory / "run").mkdir()
    (shared_directory / "run").chmod(mode)
    with pytest.raises(PermissionError, match="not a directory of user"):
        make_private(shared_directory / "run")


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_what_is_no_directory_is_refused(shared_directory: Path, kind: str) -> None:
    (shared_directory / "other").mkdir()
    if kind == "file":
        (shared_directory / "run").touch()
    else:
        (shared_directory / "run").symlink_to(shared_directory / ("other" if kind == "link" else "missing"))
    with pytest.raises(PermissionError, match="not a directory of user"):
        make_private(shared_directory / "run")
    assert not (shared_directory / "missing").exists()
