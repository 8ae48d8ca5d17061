"""Positions survive, belong to one node, and one agent."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent.writer import table_of

from helenus_agent.node import saved_tables
from helenus_agent.node.tables import Stamp
from helenus_agent.positions import LogGap, Positions, SegmentMark
from helenus_agent.state import StateDirectory
from helenus_schemas.errors import HelenusError, Kind

HOST = "ad310466-96a7-4cb2-acf4-59535a960812"


def test_saved_and_loaded(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "a" / "b")
    assert state.load(HOST) == Positions(HOST)
    table = str(uuid.uuid4())
    saved = Positions(HOST, {7: SegmentMark(20), 8: SegmentMark(90, True, True)}, [5, 6], [table])
    state.save(saved)
    assert state.load(HOST) == saved
    assert saved.followed_ids == [uuid.UUID(table)]
    assert sorted(p.name for p in state.directory.iterdir()) == ["lock", "positions.json"]
    state.close()


def test_a_second_agent_is_refused(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with pytest.raises(HelenusError, match="another agent") as error:
        StateDirectory(tmp_path)
    assert error.value.kind is Kind.STATE
    state.close()
    StateDirectory(tmp_path).close()


def test_the_state_of_another_node_is_refused(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.save(Positions(HOST))
    with pytest.raises(HelenusError, match="belongs to the node"):
        state.load(str(uuid.uuid4()))
    state.close()


NUMBERED = "6d194555-f6eb-41d0-c000-000000000001"


@pytest.mark.parametrize("saved_positions", [Positions(HOST, {7: SegmentMark(20)}), Positions(HOST, done=[7])])
def test_a_node_that_an_upgrade_renamed_is_the_same_node(tmp_path: Path, saved_positions: Positions) -> None:
    """Cassandra 6.0 gives each node a new host id. A segment that was read before shows that it is the same."""
    state = StateDirectory(tmp_path)
    state.save(saved_positions)
    assert state.load(NUMBERED, "c", [7, 8]).host_id == HOST, "until all that was appended is acknowledged"
    with pytest.raises(HelenusError, match=f"belongs to the node {HOST}, but Cassandra is {NUMBERED}"):
        state.load(NUMBERED, "c", [8])
    with pytest.raises(HelenusError, match="belongs to the node"):
        state.load(str(uuid.uuid4()), "c", [7, 8])
    state.close()


def test_numbered_nodes_of_two_clusters_are_told_apart_by_the_cluster(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.save(Positions(NUMBERED, cluster="one"))
    assert state.load(NUMBERED, "one").cluster == "one"
    with pytest.raises(HelenusError, match="belongs to a node of the cluster 'one', but Cassandra is one of 'two'"):
        state.load(NUMBERED, "two")
    with pytest.raises(HelenusError, match=f"belongs to the node {NUMBERED}"):
        state.load(NUMBERED[:-1] + "2", "one")
    state.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"format": 99}),
        json.dumps({"format": 1, "host_id": HOST, "segments": {"x": {}}, "done": [], "followed": []}),
        json.dumps({"format": 1, "host_id": HOST, "segments": {}, "done": [], "followed": ["x"]}),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    state = StateDirectory(tmp_path)
    (tmp_path / "positions.json").write_text(text)
    with pytest.raises(HelenusError, match=r"the positions are damaged .*restore it, or delete it"):
        state.load(HOST)
    state.close()


def flips(file: Path) -> Iterator[None]:
    """Have each bit of a file be another one, in turn."""
    whole = file.read_bytes()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        yield


def refusal_of(load: Callable[[], object]) -> str:
    """What an error says, or nothing."""
    try:
        load()
    except HelenusError as error:
        return str(error)
    return ""


def test_no_flipped_bit_of_the_positions_goes_unnoticed(tmp_path: Path) -> None:
    """One in a number would have an agent skip what was not read. What a flip leaves as it was is taken."""
    state, table = StateDirectory(tmp_path), str(uuid.uuid4())
    saved = Positions(HOST, {7: SegmentMark(20, True)}, [5], [table], (7, 19), truncated={table: 3}, listed=8)
    saved.gaps.append(LogGap(table, 5, "a reason"))
    state.save(saved)
    loaded: list[Positions] = []
    refusals = [refusal_of(lambda: loaded.append(state.load(HOST))) for _ in flips(tmp_path / "positions.json")]
    state.close()
    assert {refusal.partition(" (")[0] for refusal in refusals} == {"", "the positions are damaged"}
    assert loaded == [saved] * len(loaded)
    assert len(loaded) < 100, "those of the checksum's name alone"


def test_no_flipped_bit_of_the_tables_goes_unnoticed(tmp_path: Path) -> None:
    """One in a column's name would have entries be undecodable."""
    tables, stamps = [table_of("t", "pk int pk, v map<text, int>")], {uuid.uuid4(): Stamp(5, "options")}
    saved_tables.save(tmp_path, tables, stamps, [uuid.uuid4()])
    loaded: list[object] = []
    refusals = [refusal_of(lambda: loaded.append(saved_tables.load(tmp_path))) for _ in flips(tmp_path / "tables.json")]
    assert {refusal.partition(" (")[0] for refusal in refusals} == {"", "the tables are damaged"}
    assert loaded == [(tables, stamps)] * len(loaded)
    assert len(loaded) < 100


def test_a_crash_while_saving_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDirectory(tmp_path)
    state.save(Positions(HOST, {1: SegmentMark(10)}))

    def crash(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(HelenusError, match="No space left") as error:
        state.save(Positions(HOST, {1: SegmentMark(20)}))
    assert error.value.kind is Kind.STATE
    assert state.load(HOST).segments == {1: SegmentMark(10)}
    state.close()


@pytest.mark.parametrize("name", ["positions", "tables"])
def test_the_new_file_is_on_disk_before_the_old_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else a power cut may leave an empty file. That it was replaced is on the disk when the save returns, too."""
    state, steps = StateDirectory(tmp_path), []
    fsync, rename = os.fsync, Path.replace

    def seen(handle: int) -> None:
        steps.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    def renamed(path: Path, target: Path) -> Path:
        steps.append(f"{path.name} to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Path, "replace", renamed)
    if name == "positions":
        state.save(Positions(HOST))
    else:
        saved_tables.save(state.directory, [], {})
    assert steps == [f"{name}.new", f"{name}.new to {name}.json", tmp_path.name]
    state.close()


def test_a_state_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HelenusError, match=r"state\.dir"):
        StateDirectory(tmp_path / "file")


def test_processed_segments_are_remembered_for_a_while() -> None:
    positions = Positions(HOST, {n: SegmentMark(n) for n in range(600)})
    for n in range(600):
        positions.finish(n)
        positions.finish_all([n])
    assert positions.segments == {}
    assert positions.done == list(range(88, 600))


def test_segments_that_could_not_be_removed_are_not_forgotten() -> None:
    """They would be read, and sent, once more."""
    positions = Positions(HOST)
    stuck, others = [1, 2, 3], range(10, 2010)
    positions.finish_all([*stuck, *others])
    assert positions.done == [*stuck, *others], "none was removed yet"
    for segment in range(3000, 3600):
        positions.finish_all([*stuck, segment])
    assert positions.done[:3] == stuck
    assert positions.done[3:] == list(range(3600 - 512, 3600))
