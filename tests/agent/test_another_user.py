"""Commands of another user than the agent's: what that one may not see is said, and nothing else is made of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from helenus_agent.cli import main
from helenus_agent.config import AgentSettings, raw_directory
from helenus_agent.state import StateDirectory, quarantine
from helenus_schemas.errors import HelenusError

ADVICE = "run this as the agent's user [state]\n"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users may look into: those of `tmp_path` are root's alone, if root runs the tests."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """Nobody but root may see into `path`, and this process is not root."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    try:
        if user == 0:
            os.setresuid(65534, 65534, 0)
        yield
    finally:
        os.setresuid(-1, user, -1)
        os.setresuid(user, -1, -1)
        path.chmod(mode)


def properties(place: Path) -> Path:
    (place / "raw").mkdir()
    file = place / "agent.properties"
    file.write_text(f"state.dir={place}/state\ncdc.raw.dir={place}/raw\nkafka.bootstrap.servers=k:9092\n")
    AgentSettings.load(file)  # which loads modules, that only root may read in some places
    return file


@pytest.mark.parametrize("what", ["state", "state/lock"])
def test_status_does_not_say_that_an_agent_is_stopped(place: Path, what: str) -> None:
    file, state = properties(place), StateDirectory(place / "state")
    with closed(place / what):
        done = CliRunner().invoke(main.commands["status"], [str(file)])
    state.close()
    said = f"helenus-agent: cannot see whether an agent runs: Permission denied ({place}/state): {ADVICE}"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", said)


def test_a_quarantine_that_may_not_be_seen_is_trouble(place: Path) -> None:
    file, state = properties(place), StateDirectory(place / "state")
    quarantine(state.directory).mkdir()
    state.directory.chmod(0o755)  # or it is what may not be seen
    (state.directory / "lock").chmod(0o644)
    with closed(quarantine(state.directory)):
        done = CliRunner().invoke(main.commands["status"], [str(file)])
    state.close()
    said = f"cannot see what is in quarantine: Permission denied ({quarantine(state.directory)}): {ADVICE}"
    assert (done.exit_code, said in done.stdout) == (1, True)


def test_cdc_raw_below_a_directory_that_may_not_be_seen(place: Path) -> None:
    file = properties(place)
    (place / "cassandra" / "cdc_raw").mkdir(parents=True)
    file.write_text(file.read_text().replace(f"{place}/raw", f"{place}/cassandra/cdc_raw"))
    with closed(place / "cassandra"), pytest.raises(HelenusError, match="cdc_raw is not a directory, or may not be"):
        raw_directory(AgentSettings.load(file))


def test_an_archive_that_may_not_be_written(place: Path) -> None:
    file = properties(place)
    (place / "state").mkdir()
    (place / "state").chmod(0o777)
    (place / "archive").mkdir()
    with open(file, "a") as lines:
        lines.write(f"segment.transfer=archive\nsegment.archive.dir={place}/archive/node1\n")
    (place / "raw").chmod(0o777)
    with closed(place / "archive"):
        done = CliRunner().invoke(main.commands["validate"], [str(file)])
    said = f"helenus-agent: segment.archive.dir={place}/archive/node1: Permission denied ({place}/archive): create it"
    assert (done.exit_code, done.stderr.startswith(said)) == (2, True), done.stderr


def test_a_state_dir_below_a_file_is_no_agent_that_is_stopped(place: Path) -> None:
    file = properties(place)
    (place / "state").touch()
    done = CliRunner().invoke(main.commands["status"], [str(file)])
    said = f"helenus-agent: cannot see whether an agent runs: Not a directory ({place}/state): check the disk and the"
    assert (done.exit_code, done.stderr.startswith(said)) == (1, True)
