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
from helenus_agent.config import AgentSettings
from helenus_agent.node_directories import raw_directory
from helenus_agent.state import StateDirectory, quarantine
from helenus_schemas.errors import HelenusError

ADVICE = "run this as the agent's user [state]\n"


@pytest.fixture
def home() -> Iterator[Path]:
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


def properties(home: Path) -> Path:
    (home / "raw").mkdir()
    file = home / "agent.properties"
    file.write_text(f"state.dir={home}/state\ncdc.raw.dir={home}/raw\nkafka.bootstrap.servers=k:9092\n")
    AgentSettings.load(file)  # which loads modules, that only root may read in some places
    return file


@pytest.mark.parametrize("closed_directory", ["state", "state/lock"])
def test_status_does_not_say_that_an_agent_is_stopped(home: Path, closed_directory: str) -> None:
    file, state = properties(home), StateDirectory(home / "state")
    with closed(home / closed_directory):
        result = CliRunner().invoke(main.commands["status"], [str(file)])
    state.close()
    error_text = f"helenus-agent: cannot see whether an agent runs: Permission denied ({home}/state): {ADVICE}"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", error_text)


def test_a_quarantine_that_may_not_be_seen_is_trouble(home: Path) -> None:
    file, state = properties(home), StateDirectory(home / "state")
    quarantine(state.directory).mkdir()
    state.directory.chmod(0o755)  # or it is what may not be seen
    (state.directory / "lock").chmod(0o644)
    with closed(quarantine(state.directory)):
        result = CliRunner().invoke(main.commands["status"], [str(file)])
    state.close()
    error_text = f"cannot see what is in quarantine: Permission denied ({quarantine(state.directory)}): {ADVICE}"
    assert (result.exit_code, error_text in result.stdout) == (1, True)


def test_cdc_raw_below_a_directory_that_may_not_be_seen(home: Path) -> None:
    file = properties(home)
    (home / "cassandra" / "cdc_raw").mkdir(parents=True)
    file.write_text(file.read_text().replace(f"{home}/raw", f"{home}/cassandra/cdc_raw"))
    with closed(home / "cassandra"), pytest.raises(HelenusError, match="cdc_raw is not a directory, or may not be"):
        raw_directory(AgentSettings.load(file))


def test_an_archive_that_may_not_be_written(home: Path) -> None:
    file = properties(home)
    (home / "state").mkdir()
    (home / "state").chmod(0o777)
    (home / "archive").mkdir()
    with open(file, "a") as lines:
        lines.write(f"segment.transfer=archive\nsegment.archive.dir={home}/archive/node1\n")
    (home / "raw").chmod(0o777)
    with closed(home / "archive"):
        result = CliRunner().invoke(main.commands["validate"], [str(file)])
    error_text = (
        f"helenus-agent: segment.archive.dir={home}/archive/node1: Permission denied ({home}/archive): create it"
    )
    assert (result.exit_code, result.stderr.startswith(error_text)) == (2, True), result.stderr


def test_a_state_dir_below_a_file_is_no_agent_that_is_stopped(home: Path) -> None:
    file = properties(home)
    (home / "state").touch()
    result = CliRunner().invoke(main.commands["status"], [str(file)])
    error_text = (
        f"helenus-agent: cannot see whether an agent runs: Not a directory ({home}/state): check the disk and the"
    )
    assert (result.exit_code, result.stderr.startswith(error_text)) == (1, True)
