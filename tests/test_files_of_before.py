"""Files that agent and worker of commit fbf7003 wrote on real servers, when they were ended in the middle of writes:
today's programs read each whole. What the topics of a group and Cassandra hold is in `group.json`, as functions of
commit 3ed42fd2 give it; `integration/test_upgrade.py` runs that commit. Bytes of states:
`connector/test_state_rows.py`, `connector/test_state_pages.py`, `connector/test_state_index.py`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helenus_agent.node import saved_tables
from helenus_agent.positions import LogGap, SegmentMark
from helenus_agent.state import StateDirectory
from helenus_agent.state_store._snapshot import FORMAT, Disk, StateSnapshot, inflate
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control import _connector_file, checkpoint
from helenus_connector.group._leader import KEY, Leader
from helenus_connector.group.documents import ConnectorRecords, SnapshotRecords
from helenus_connector.group.state_directories import _StateNote
from helenus_connector.journal import _positions, pulsar_journals
from helenus_connector.journal._entry import JournalEntry
from helenus_connector.journal._positions import BatchMark, GroupPosition
from helenus_connector.snapshot.snapshot_store import SnapshotFile, SnapshotStore
from helenus_connector.state.keys import _left_out
from helenus_connector.state.rows import _identity
from helenus_connector.unconfirmed import files as unconfirmed_files
from helenus_connector.unconfirmed.unproven_changes import unpack_changes
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound

FILES = Path(__file__).with_name("before")
GROUP: dict[str, Any] = json.loads((FILES / "group.json").read_text())
EVENTS = "events-old.live"
TABLE = "3864b150-eafb-11f1-bfa6-297ab670f854"
NODE = "ad310466-96a7-4cb2-acf4-59535a960812"


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


class Topic:
    """A group's topic with these values."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def values(self) -> dict[str, Any]:
        return self._values


def test_a_groups_connectors_and_snapshots(before: Path) -> None:
    """They are those of the worker's files, of which they were made."""
    values = {**GROUP["connectors"], **GROUP["snapshots"], **GROUP["leader"]}
    topic: Any = Topic(values)
    assert ConnectorRecords(topic).read() == _connector_file.read(before / "checkpoint" / "connectors.json")
    store, of_file = SnapshotStore(SnapshotRecords(topic)), SnapshotStore(SnapshotFile(before / "checkpoint"))
    assert [vars(snapshot) for snapshot in store.snapshots()] == [vars(snapshot) for snapshot in of_file.snapshots()]
    assert store.snapshots()
    assert Leader.from_value(values[KEY]) == Leader("127.0.0.1:8083", "http://127.0.0.1:8083", 3, "term")
    assert _StateNote.from_value(GROUP["state"]) == _StateNote("0003-abc", "worker-1", True)


def test_a_groups_journal_and_positions() -> None:
    (record,) = (bytes.fromhex(text) for text in GROUP["journal"])
    entry = JournalEntry.from_record(record, "here")
    assert (entry.connector, entry.topic, entry.is_whole) == ("old-live", EVENTS, True)
    assert entry.settled == [(0, b"settled"), (1, (b"marker", (Bound(True, (b"a",)), None)))]
    (waiting,) = entry.waiting
    assert (waiting.partition, waiting.key, waiting.newest, waiting.stripe, waiting.unread) == (1, b"key", 99, 3, 1)
    ((name, change),) = unpack_changes(waiting.awaited).items()
    assert (name, change.write_time) == (b"0123456789abcdef", 1700000000000000)
    assert sorted(entry.published[1].keys) == [b"\x02\x04one", b"\x02\x04two"]
    (at_gate,) = entry.at_gate.waits
    assert (at_gate.event.key, at_gate.event.value, at_gate.nodes, at_gate.copies) == (b"key", b"value", (NODE,), 2)
    assert (entry.at_gate.gone, entry.at_gate.truncated) == ([(1, b"0123456789abcdef")], [(0, NODE)])
    notes = GROUP["kafka"]
    assert _positions._position(18, notes["mark"]) == GroupPosition(18, is_loose=True, mark=BatchMark("abc", 7))
    position = GroupPosition(19, 5, 1700000000003)
    assert _positions._position(19, notes["again"]) == position
    assert _positions._position(20, notes["loose"]) == GroupPosition(20, is_loose=True)
    assert pulsar_journals._from_text(GROUP["pulsar"].encode(), "here") == (EVENTS, {"1": position})


def test_an_agents_row_in_cassandra() -> None:
    row = GROUP["agent_states"]
    assert row["format"] == FORMAT
    blobs = (inflate(bytes.fromhex(row[name])) for name in ("positions", "tables"))
    snapshot = StateSnapshot(row["version"], *blobs)
    positions, disk = snapshot.read()
    assert snapshot.tables == (FILES / "state" / "tables.json").read_text()
    assert disk == Disk(1700000000000001, 77)
    assert positions.segments == {7: SegmentMark(100, True, False), 8: SegmentMark(5, False, True)}
    assert (positions.host_id, positions.done, positions.reached, positions.listed) == (NODE, [5, 6], (8, 5), 8)
    assert (positions.truncated, positions.dropped) == ({TABLE: 1700000000000}, {TABLE: 0})
    assert positions.gaps == [LogGap("", 1700000000000000, "why")]
    assert (positions.cluster, positions.epoch, positions.version) == ("Test Cluster", 3, 41)


def test_what_states_are_of(tmp_path: Path) -> None:
    for name in ("state.about", "left.out"):
        (tmp_path / name).write_text(GROUP[name])
    identity = _identity.load_identity(tmp_path)
    assert identity == _identity.StateIdentity("old.merged", "events-old.merged", (0, 3), 4, True, {0: 1, 1: 2}, "name")
    assert _left_out.load_left_out(tmp_path) == {"data-old.live": {"0": 5}}


def test_what_a_later_version_wrote_is_refused_by_name(tmp_path: Path) -> None:
    """As an older version refuses what today's writes, if a later one changes it."""
    record = bytes.fromhex(GROUP["journal"][0])
    text = GROUP["pulsar"].replace('"v":1', '"v":2')
    (tmp_path / "state.about").write_text(GROUP["state.about"].replace('"version": 2', '"version": 3'))
    for read in (
        lambda: JournalEntry.from_record(b"\2" + record[1:], "here"),
        lambda: pulsar_journals._from_text(text.encode(), "here"),
        lambda: _identity.load_identity(tmp_path),
    ):
        with pytest.raises(HelenusError, match="version") as refused:
            read()
        assert refused.value.kind is Kind.STATE
    # A position whose note is of another version is one that another program committed: nothing is skipped by it.
    assert _positions._position(19, GROUP["kafka"]["again"].replace('"v":1', '"v":2')) == GroupPosition(19)
