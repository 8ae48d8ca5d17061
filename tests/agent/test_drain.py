"""`drain`: it has sent all only when no marker is uncertain, with a node and without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent.fakes import agent_on, write_of
from agent.test_agent import TABLE, Bench
from agent.test_drops import COLUMNS, OTHER, SCHEMA, TABLES, WIDER, altered, drop, write_of_both
from agent.test_notices import emitted
from agent.writer import Cell, Row, Update, mutation

from helenus_agent import agent as module
from helenus_agent.agent import Agent
from helenus_agent.config import AgentSettings
from helenus_agent.node.offline import SavedNode
from helenus_agent.node.tables import Stamp
from helenus_agent.node_directories import raw_directory
from helenus_agent.state import StateDirectory, read
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    bench = Bench(tmp_path)
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    yield bench
    bench.state.close()
    if bench.agent is not None:
        for segment in bench.agent._queue.segments + bench.agent._queue.finished:
            segment.close()


def start_and_run(bench: Bench) -> None:
    """What an agent does before the node dies."""
    bench.start(topic_partitions="1")
    bench.run_agent()


def offline(bench: Bench) -> Agent:
    """The agent of `drain --offline`, after the node is dead."""
    assert bench.agent is not None
    bench.agent._queue.close()
    bench.state.close()
    bench.log.waiting.clear()
    bench.state = StateDirectory(bench.tmp_path / "state")
    saved = SavedNode(bench.state)
    more = {"topic_partitions": "1", "read_mode": "eager"}
    bench.agent = agent_on(bench.tmp_path, bench.raw, saved, bench.log, bench.state, **more)  # type: ignore[arg-type]
    bench.agent.start()
    return bench.agent


def drain(agent: Agent) -> str | None:
    """Why not all could be sent, None if it could."""
    agent.run(threading.Event(), drain=True)
    assert agent.drained
    return agent.ready()


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("dead", [True, False])
def test_a_half_written_marker_is_waited_for(bench: Bench, dead: bool, complete: bool) -> None:
    """For a second it may be half written: that is not the end of the segment."""
    start_and_run(bench)
    marker_offset = bench.raw.ends[10]
    bench.raw.write(10, write_of(TABLE, 2))
    with open(bench.raw.find(10), "r+b") as file:
        file.seek(marker_offset + 4)
        file.write(b"\xde\xad\xbe\xef")
    if complete:
        bench.raw.index(10, complete=True)
    agent = offline(bench) if dead else bench.agent
    assert agent is not None
    assert "could not be read wholly" in str(drain(agent))
    assert emitted(bench) == ([1, "GAP"] if complete else [1])


def test_a_segment_without_a_header_is_not_all_sent(bench: Bench) -> None:
    start_and_run(bench)
    bench.raw.segment(11)
    bench.raw.write(11, write_of(TABLE, 2))
    with open(bench.raw.find(11), "r+b") as file:
        file.seek(5)
        file.write(b"\xff")
    assert "1 segment could not be read wholly" in str(drain(offline(bench)))


def test_first_entries_without_a_marker_are_not_all_sent(bench: Bench) -> None:
    start_and_run(bench)
    bench.raw.segment(11)
    bench.raw.unmarked(11, write_of(TABLE, 2))
    assert "1 segment could not be read wholly" in str(drain(offline(bench)))


def test_prepared_segments_hold_nothing(bench: Bench) -> None:
    """A header alone, or a file of which not even that was written."""
    start_and_run(bench)
    bench.raw.segment(11)
    bench.raw.segment(12).write_bytes(bytes(100_000))
    bench.raw.write(10, write_of(TABLE, 2))
    assert drain(offline(bench)) is None
    assert emitted(bench) == [1, 2]


def test_a_drop_that_was_not_emitted_yet(bench: Bench) -> None:
    """The agent saw it and was killed: the deletion of its rows is emitted after what the table logged."""
    bench.cassandra.set(TABLE, OTHER, SCHEMA)
    start_and_run(bench)
    bench.raw.write(10, write_of(TABLE, 2))
    drop(bench)
    assert bench.agent is not None
    bench.agent._followed.learn()
    assert drain(offline(bench)) is None
    assert emitted(bench) == [1, 2, "TABLE"]
    saved = read(bench.tmp_path / "state")
    assert saved is not None
    assert saved.dropped == {str(TABLE.id): 0}
    assert drain(offline(bench)) is None
    assert emitted(bench) == [1, 2, "TABLE"], "it is emitted once"


def test_a_table_of_a_dead_node_was_altered_unseen(bench: Bench) -> None:
    """The log says which columns it got. What needs more goes to quarantine."""
    bench.cassandra.set(TABLE, OTHER, TABLES, COLUMNS)
    bench.cassandra.stamps = {TABLE.id: Stamp(1, "options")}
    start_and_run(bench)
    bench.raw.write(10, altered(TABLE, "w", "int"), altered(OTHER, "w", "int"), altered(TABLE, "x", "map<text, int>"))
    bench.raw.write(10, write_of_both(2))
    assert drain(offline(bench)) is None
    assert emitted(bench) == [1, 2]
    # What it got is saved: a later run need not read of it again.
    bench.raw.write(10, write_of_both(3))
    assert drain(offline(bench)) is None
    assert emitted(bench) == [1, 2, 3]
    bench.raw.write(10, altered(TABLE, "y", "frozen<made_since>"), write_of_both(4))
    assert drain(offline(bench)) is None
    assert emitted(bench) == [1, 2, 3, 4]
    # Once the node is back, all that was altered is known: CDC was not off meanwhile.
    bench.cassandra.set(WIDER, OTHER, TABLES, COLUMNS)
    bench.cassandra.stamps = {TABLE.id: Stamp(1_700_000_000_000_000, "options")}
    bench.agent._queue.close()  # type: ignore[union-attr]
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == [1, 2, 3, 4]
    assert not bench.saved.gaps
    wider = replace(WIDER, columns=(*WIDER.columns, Column("y", parse("text"))))
    row = Row((), {"y": Cell(b"made")}, time=1_700_000_000_000_000)
    bench.raw.write(10, mutation(Update(wider, b"\0\0\0\5", [row])))
    assert "could not be read" in (drain(offline(bench)) or "")
    assert emitted(bench) == [1, 2, 3, 4]


def test_a_dead_node_that_had_cdc_off(bench: Bench) -> None:
    """All that is there is sent; what was written with CDC off never was there."""
    start_and_run(bench)
    bench.cassandra.settings = {"cdc_enabled": "false"}
    assert bench.agent is not None
    bench.agent._followed.ask_node()
    bench.agent._commit(1)
    bench.raw.write(10, write_of(TABLE, 2))
    assert drain(offline(bench)) is None
    assert emitted(bench) == [1, 2]
    saved = read(bench.tmp_path / "state")
    assert saved is not None
    assert saved.cdc_off, "should the node come back after all"


def test_a_dead_node_s_file_says_cdc_off(bench: Bench) -> None:
    yaml = bench.tmp_path / "cassandra.yaml"
    yaml.write_text(f"cdc_enabled: false\ncdc_raw_directory: {bench.raw.path}\n")
    properties = {"state.dir": "/s", "cassandra.config": str(yaml), "kafka.bootstrap.servers": "k:1"}
    settings = AgentSettings.from_properties(properties, "test")
    assert raw_directory(settings, offline=True) == bench.raw.path
    with pytest.raises(HelenusError, match="cdc_enabled"):
        raw_directory(settings)
