"""Files that agent and worker of commit fbf7003 wrote on real servers, when they were ended in the middle of writes:
today's programs read each whole.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helenus_agent.node import saved_tables
from helenus_agent.state import StateDirectory
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control import _connector_file, checkpoint
from helenus_connector.snapshot.snapshot_store import SnapshotFile, SnapshotStore
from helenus_connector.unconfirmed import files as unconfirmed_files

FILES = Path(__file__).with_name("before")


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A copy of what they left."""
    shutil.copytree(FILES, tmp_path / "before")
    for path in (tmp_path / "before").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path / "before"


def test_an_agents_positions_and_tables(before: Path) -> None:
    saved = json.loads((before / "state" / "positions.json").read_text())
    state = StateDirectory(before / "state")
    positions = state.load()
    state.close()
    assert {str(segment) for segment in positions.segments} == set(map(str, saved["segments"]))
    assert positions.segments
    tables, stamps = saved_tables.load(before / "state")
    names = {table.full_name for table in tables if table.cdc}
    assert names == {f"old.{name}" for name in ("kinds", "early", "gated", "written", "live", "merged")}
    assert {table.id for table in tables if table.cdc} <= stamps.keys()


def test_a_workers_connectors(before: Path) -> None:
    connectors = _connector_file.read(before / "checkpoint" / "connectors.json")
    assert len(connectors) == 6
    states = {
        name: ConnectorSettings.from_properties(
            {key: value for key, value in saved["config"].items() if key != "connector.class"}, name
        ).state
        for name, saved in connectors.items()
    }
    assert (states["old-live"], states["old-merged"], states["old-kinds"]) == ("keys", "rows", "none")


def test_a_querys_offsets_and_unconfirmed_keys(before: Path) -> None:
    directory = before / "checkpoint" / "live"
    assert checkpoint.latest(directory) == 24
    assert sum(checkpoint.committed(directory)["events-old.live"].values()) > 0
    keys = list(unconfirmed_files.load_keys(directory / "unconfirmed.keys"))
    assert len(keys) > 1
    assert {topic for topic, *_ in keys} == {"events-old.live"}
    assert "events-old.live" in unconfirmed_files.load_ended(directory / "unconfirmed")


def test_snapshots(before: Path) -> None:
    store = SnapshotStore(SnapshotFile(before / "checkpoint"))
    (snapshot,) = store.snapshots("old-early")
    assert (snapshot.state, snapshot.rows) == ("COMPLETE", 40)
    assert not store.for_table("old-early", "early").is_under_way
