"""The directory of a run, in places where other users make directories too."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attacks
import pytest

from helenus_connector.config import run_directory
from helenus_connector.gate import _cache_file as cache_file
from helenus_schemas.errors import HelenusError, Kind

MODE = stat.S_IMODE


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The memory and the disk of a host. All users may write to them."""
    with tempfile.TemporaryDirectory() as memory, tempfile.TemporaryDirectory() as disk:
        for parent in (memory, disk):
            Path(parent).chmod(0o1777)
        monkeypatch.setattr(run_directory, "_MEMORY", Path(memory))
        monkeypatch.setattr(tempfile, "gettempdir", lambda: disk)
        yield Path(memory), Path(disk)


def test_a_run_takes_its_name_on_disk_before_others_see_it(places: tuple[Path, Path]) -> None:
    memory, disk = places
    run = run_directory.make()
    assert run.parent == memory
    assert MODE(run.stat().st_mode) == MODE((disk / run.name).stat().st_mode) == 0o700
    run_directory.remove(run)
    assert not list(memory.iterdir()) + list(disk.iterdir())


def overflow(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room in memory from now on."""

    def has_room(parent: Path | int, _: int) -> bool:
        path = Path(f"/proc/self/fd/{parent}").readlink() if isinstance(parent, int) else parent
        return memory not in path.parents

    monkeypatch.setattr(cache_file, "has_room", has_room)


@pytest.mark.parametrize("planted", ["directory", "link to a directory", "link to a file"])
def test_a_cache_that_moves_to_disk_follows_no_link_of_another_user(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """On an executor's host the name may be known in advance: from its driver's."""
    memory, disk = places
    precious = disk / "precious"
    precious.write_text("as it was")
    run, twin = memory / "helenus-run-known", disk / "helenus-run-known"
    theirs = twin if planted == "directory" else disk / "theirs"
    theirs.mkdir()
    (theirs / "a.cache").symlink_to(precious)
    if attacks.IS_ROOT:
        os.chown(theirs, attacks.STRANGER, attacks.STRANGER)
    else:
        theirs.chmod(0o777)
    if planted != "directory":
        twin.symlink_to(theirs if planted == "link to a directory" else precious)
    overflow(memory, monkeypatch)
    with pytest.raises(HelenusError, match="not a directory of user") as error:
        cache_file.opened(run_directory.use(run) / "a.cache", 4096)
    assert error.value.kind is Kind.STATE
    assert precious.read_text() == "as it was"


def test_a_cache_that_has_no_room_in_memory_lies_on_disk(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, disk = places
    run = run_directory.make()
    overflow(memory, monkeypatch)
    for _ in range(2):  # made, and opened again
        os.close(cache_file.opened(run / "a.cache", 4096))
    moved = disk / run.name / "a.cache"
    assert ((run / "a.cache").readlink(), moved.stat().st_size, MODE(moved.stat().st_mode)) == (moved, 4096, 0o600)
    run_directory.remove(run)


def test_what_other_runs_left_is_removed_and_no_link_followed(places: tuple[Path, Path]) -> None:
    memory, disk = places
    abandoned_run = memory / "helenus-run-left"
    abandoned_run.mkdir()
    (abandoned_run / "lock").touch()
    precious = disk / "state"
    precious.mkdir()
    (precious / "lock").touch()
    (memory / "helenus-run-link").symlink_to(precious)
    (memory / "helenus-run-locked").mkdir()
    (memory / "helenus-run-locked" / "lock").symlink_to(precious / "lock")
    run = run_directory.make()
    assert not abandoned_run.exists()
    assert (precious / "lock").exists()
    assert (memory / "helenus-run-locked").exists(), "its lock is none"
    run_directory.remove(run)


def test_sockets_have_a_short_path_that_is_this_user_s_alone(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 20)
    sockets = run_directory.socket_directory(long)
    assert len(str(sockets)) < 60
    assert MODE(sockets.stat().st_mode) == 0o700
    assert run_directory.socket_directory(Path("/run/mine")) == Path("/run/mine")
