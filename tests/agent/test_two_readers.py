"""Another program, or the node, deletes segments in cdc_raw: what it takes unread is read elsewhere, or is a gap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent.fakes import FakeCassandra, Raw, write_of
from agent.test_agent import TABLE, Bench, metric
from agent.test_notices import emitted, notices
from agent.writer import table_of
from structlog.testing import capture_logs

from helenus_agent import agent as module
from helenus_agent import cli, followed_tables
from helenus_agent.config import AgentSettings
from helenus_agent.node_directories import commit_log_directory
from helenus_agent.positions import Positions
from helenus_agent.segments import segment_queue as follow_module
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_agent.state import StateDirectory, owned, read
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

PLAIN = table_of("plain", "pk int pk, v int", cdc=False)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    bench = Bench(tmp_path)
    yield bench
    bench.state.close()
    if bench.agent is not None:
        for segment in bench.agent._queue.segments + bench.agent._queue.finished:
            segment.close()


@pytest.fixture
def node(bench: Bench) -> Bench:
    """The agent knows the node's own directory."""
    bench.cassandra.settings = {"commitlog_directory": str(bench.raw.log), "cdc_enabled": "true"}
    bench.cassandra.set(TABLE, PLAIN)
    return bench


def steal(raw: Raw, segment: int) -> None:
    """As another reader does once a segment is complete."""
    for path in raw.path.glob(f"*-{segment}*"):
        path.unlink()


def discard(raw: Raw, segment: int) -> None:
    """As the node does when it has no use for a segment any more."""
    next(raw.log.glob(f"*-{segment}.log")).unlink()


def write(bench: Bench, segment: int, *keys: int, table: object = TABLE) -> None:
    bench.raw.segment(segment)
    bench.raw.write(segment, *(write_of(table, key) for key in keys))  # type: ignore[arg-type]


def test_one_cdc_raw_has_one_agent(tmp_path: Path) -> None:
    """Whatever its state.dir; and no file is left there that Cassandra would meet."""
    with owned(tmp_path):
        with (
            pytest.raises(HelenusError, match=r"cdc_raw \(.*\): two would delete .*: stop one of them \[") as error,
            owned(tmp_path),
        ):
            pass
        assert error.value.kind is Kind.STATE
        assert list(tmp_path.iterdir()) == []
    with owned(tmp_path):
        pass


def test_a_directory_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    with capture_logs() as lines, owned(tmp_path):
        assert [line["event"] for line in lines] == ["cdc_raw.not_locked"]


@pytest.mark.parametrize("mode", ["marker", "idx", "eager"])
def test_made_and_taken_between_two_listings(node: Bench, mode: str) -> None:
    """While the agent stalls: what the node still has is read from there, in order, and its file is left alone."""
    write(node, 10, 1)
    agent = node.start(topic_partitions="1", read_mode=mode)
    node.run_agent()
    node.raw.index(10, complete=True)
    write(node, 11, 2)
    node.raw.index(11, complete=True)
    write(node, 12, 3)
    node.raw.index(12, complete=True)
    for segment in (10, 11, 12):
        steal(node.raw, segment)
    write(node, 13, 4)
    node.raw.index(13)
    with capture_logs() as lines:
        node.run_agent()
    assert emitted(node) == [1, 2, 3, 4]
    unlinked = [line["segment"] for line in lines if line["event"] == "segment.unlinked"]
    assert unlinked == ([10, 11, 12] if mode == "idx" else [11, 12])
    for segment in (10, 11, 12):
        discard(node.raw, segment)
    node.run_agent()
    assert [s.id for s in agent._queue.segments] == [13]
    assert emitted(node) == [1, 2, 3, 4]


def test_made_and_taken_while_no_agent_ran(node: Bench) -> None:
    write(node, 10, 1)
    node.start(topic_partitions="1")
    node.run_agent()
    write(node, 11, 2)
    steal(node.raw, 11)
    write(node, 12, 3)
    node.start(topic_partitions="1")
    node.run_agent()
    node.start(topic_partitions="1")
    node.run_agent()
    assert emitted(node) == [1, 2, 3]


def test_a_missing_segment_next_to_one_that_was_taken(node: Bench) -> None:
    """Nobody has 11 any more. That somebody takes segments with changes is seen by 12: so 11 may have had some."""
    write(node, 10, 1)
    node.start(topic_partitions="1")
    node.run_agent()
    before = metric("unseen_segments_total")
    for segment in (11, 12):
        write(node, segment, segment)
        steal(node.raw, segment)
    discard(node.raw, 11)
    write(node, 13, 13)
    node.run_agent()
    assert emitted(node) == [1, 12, "GAP", 13]
    assert metric("unseen_segments_total") == before + 1


def test_quiet_segments_that_come_and_go_are_no_gap(node: Bench) -> None:
    """The node deletes those without changes of CDC tables itself, and a restarted one jumps to other ids."""
    write(node, 10, 1)
    node.start(topic_partitions="1")
    node.run_agent()
    before, possible = metric("unseen_segments_total"), metric("possible_loss_total")
    for segment in (11, 12):
        write(node, segment, 5, table=PLAIN)
        steal(node.raw, segment)
        discard(node.raw, segment)
    write(node, 13, 2)
    node.run_agent()
    for path in node.raw.log.glob("*-1?.log"):
        path.unlink()
    write(node, 1_000_000, 3)
    node.run_agent()
    assert emitted(node) == [1, 2, 3]
    assert metric("unseen_segments_total") == before + 2
    assert metric("possible_loss_total") == possible


def test_segments_that_are_refused_for_want_of_room_are_no_gap(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full cdc_raw: the node does not link a segment, and takes no write to a CDC table for it. Later it may."""
    write(node, 10, 1)
    node.start(topic_partitions="1")
    node.run_agent()
    write(node, 11, 5, table=PLAIN)
    steal(node.raw, 11)
    with capture_logs() as lines:
        node.run_agent()
        # There is room again: it is linked, and written to before the next listing.
        (node.raw.path / "CommitLog-7-11.log").hardlink_to(node.raw.log / "CommitLog-7-11.log")
        node.raw.write(11, write_of(TABLE, 2))
        assert node.agent is not None
        monkeypatch.setattr(module, "_LIST", 60.0)
        node.agent.step()
        node.agent._commit(1.0)
        assert emitted(node) == [1, 2]
        monkeypatch.setattr(module, "_LIST", -1.0)
        node.raw.index(11, complete=True)
        node.run_agent()
    assert emitted(node) == [1, 2]
    assert not [line for line in lines if line["event"] in ("segment.unlinked", "segment.lost")]
    assert [path.name for path in node.raw.log.iterdir() if "-11" in path.name] == ["CommitLog-7-11.log"]
    assert "CommitLog-7-11.log" not in node.raw.names


def test_a_complete_segment_that_disappears_is_read_and_not_deleted(
    node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known by its index, not read yet: and the node's own file is not the agent's to delete."""
    monkeypatch.setattr(follow_module, "_MAX_OPEN", 1)
    write(node, 10, 1)
    agent = node.start(topic_partitions="1")
    for segment in (11, 12):
        write(node, segment, segment)
        node.raw.index(segment, complete=True)
    agent._queue.refresh()
    steal(node.raw, 12)
    before = metric("lost_segments_total")
    node.run_agent()
    assert emitted(node) == [1, 11, 12]
    assert (node.raw.log / "CommitLog-7-12.log").exists()
    assert metric("lost_segments_total") == before
    assert notices(node, Scope.GAP) == []


def test_the_node_deletes_what_is_not_read(node: Bench) -> None:
    """With cdc_block_writes: false, while the agent stalls; it may have done so, and that is a gap."""
    node.cassandra.settings |= {"cdc_block_writes": "false"}
    write(node, 10, 1)
    node.start(topic_partitions="1")
    node.run_agent()
    for segment in (11, 12):
        write(node, segment, segment)
        steal(node.raw, segment)
        discard(node.raw, segment)
    write(node, 13, 2)
    before = metric("possible_loss_total")
    node.run_agent()
    assert emitted(node) == [1, 2, "GAP"] or emitted(node) == [1, "GAP", 2]
    assert metric("possible_loss_total") == before + 1


def test_segments_lost_before_the_first_start_are_no_gap(node: Bench) -> None:
    write(node, 9, 9)
    steal(node.raw, 9)
    write(node, 10, 1)
    node.start(topic_partitions="1")
    node.run_agent()
    assert emitted(node) == [1]


def test_a_clock_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's new ids are lower than those of segments that are still there: what it writes is read nevertheless."""
    monkeypatch.setattr(follow_module, "_RESCAN_S", -1.0)
    raw = Raw(tmp_path / "cdc_raw")
    for segment in (10, 11, 5, 6):
        raw.segment(segment)
    raw.write(11, write_of(TABLE, 1))
    raw.write(5, write_of(TABLE, 2))
    follow = SegmentQueue(raw.path, Positions())
    read = []
    for key in (None, 3, 4):
        if key:
            raw.write(5, write_of(TABLE, key))
        follow.refresh()
        while segment := follow.next():
            read.append(segment.id)
            segment.skip()
    assert read == [5, 11, 5, 5]
    follow.close()


def test_segments_of_a_clean_stop_are_deleted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that was made ready and never written: the node has no other name for it, and its room counts."""
    monkeypatch.setattr(follow_module, "_RESCAN_S", -1.0)
    for segment in (10, 11, 12):
        bench.raw.segment(segment)
    bench.start(topic_partitions="1")
    bench.raw.write(12)  # a section without a byte: how Cassandra closes it
    for segment in (10, 12):
        discard(bench.raw, segment)
    bench.raw.segment(13)
    bench.raw.write(13, write_of(TABLE, 1))
    bench.run_agent()
    assert bench.raw.names == ["CommitLog-7-11.log", "CommitLog-7-13.log"]
    bench.raw.write(11, write_of(TABLE, 2))
    discard(bench.raw, 11)
    bench.run_agent()
    assert sorted(map(str, emitted(bench))) == ["1", "2"]
    assert bench.raw.names == ["CommitLog-7-11.log", "CommitLog-7-13.log"], "something is in it"


def test_the_newest_is_left_alone(bench: Bench) -> None:
    """It may be on its way: of two names the second one is made last."""
    bench.raw.segment(10)
    discard(bench.raw, 10)
    bench.start()
    bench.run_agent()
    assert bench.raw.names == ["CommitLog-7-10.log"]


def test_where_the_nodes_own_directory_is(tmp_path: Path) -> None:
    raw, log = tmp_path / "raw", tmp_path / "log"
    for path in (raw, log):
        path.mkdir()
    yaml = tmp_path / "cassandra.yaml"
    yaml.write_text(f"cdc_enabled: true\ncdc_raw_directory: {raw}\ncommitlog_directory: {log}\n")
    node_settings = {"commitlog_directory": str(log)}
    assert commit_log_directory(yaml, raw, {"commitlog_directory": "/elsewhere"}) == log
    assert commit_log_directory(None, raw, node_settings) == log
    assert commit_log_directory(None, raw, {"commitlog_directory": str(tmp_path / "none")}) is None
    assert commit_log_directory(None, raw, {"commitlog_directory": "/proc"}) is None
    assert commit_log_directory(None, raw, {}) is None
    yaml.write_text("half: [")
    assert commit_log_directory(yaml, raw, node_settings) == log


def test_cdc_off_for_a_run_of_the_node(bench: Bench) -> None:
    """Nothing is linked then, and the agent goes on; when it is on again there is a gap."""
    bench.cassandra.settings = {"cdc_enabled": "true", "commitlog_directory": str(bench.raw.log)}
    write(bench, 10, 1)
    agent = bench.start(topic_partitions="1")
    bench.run_agent()
    bench.cassandra.settings["cdc_enabled"] = "false"
    bench.cassandra.is_changed = True  # another generation of the node
    write(bench, 1_000_000, 2)
    steal(bench.raw, 1_000_000)
    bench.run_agent()
    assert "cdc_enabled: false" in str(agent.ready())
    assert bench.saved.cdc_off
    bench.cassandra.settings["cdc_enabled"] = "true"
    bench.cassandra.is_changed = True
    discard(bench.raw, 1_000_000)
    write(bench, 2_000_000, 3)
    bench.run_agent()
    assert sorted(map(str, emitted(bench))) == ["1", "3", "GAP"]
    assert agent.ready() is None
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert sorted(map(str, emitted(bench))) == ["1", "3", "GAP"]


def test_cdc_off_is_remembered_by_a_start_that_fails(bench: Bench) -> None:
    bench.cassandra.settings = {"cdc_enabled": "true"}
    write(bench, 10, 1)
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.cassandra.settings = {"cdc_enabled": "false"}
    for _ in range(2):
        with pytest.raises(HelenusError) as error:
            bench.start(topic_partitions="1")
        assert error.value.kind is Kind.CDC_DISABLED
    bench.cassandra.settings = {"cdc_enabled": "true"}
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == [1, "GAP"]


@pytest.mark.parametrize("is_held", [False, True])
def test_cdc_off_by_the_file_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_held: bool) -> None:
    """A start that fails by cassandra.yaml, before anybody is asked."""
    monkeypatch.setattr(cli.logs, "configure", lambda *_: None)
    yaml = tmp_path / "cassandra.yaml"
    yaml.write_text("cdc_enabled: false\n")
    properties = {"state.dir": str(tmp_path / "state"), "kafka.bootstrap.servers": "nowhere:1"}
    settings = AgentSettings.from_properties({**properties, "cassandra.config": str(yaml)}, "test")
    for listed in (0, 10):
        state = StateDirectory(tmp_path / "state")
        state.save(Positions("n", listed=listed))
        if not is_held:
            state.close()
        with pytest.raises(HelenusError) as error:
            cli.run(settings)
        assert error.value.kind is Kind.CDC_DISABLED
        if is_held:
            state.close()
        saved_node = read(tmp_path / "state")
        assert saved_node is not None
        assert saved_node.cdc_off is (listed > 0 and not is_held)


def test_a_node_that_could_delete_before_the_start_gives_one_gap(bench: Bench) -> None:
    """cdc_block_writes by JMX: false when the agent stopped, true again when it starts."""
    bench.cassandra.settings = {"cdc_block_writes": "false"}
    write(bench, 10, 1)
    bench.start(topic_partitions="1")
    bench.run_agent()
    steal(bench.raw, 10)
    bench.cassandra.settings = {"cdc_block_writes": "true"}
    write(bench, 12, 2)
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == [1, 2, "GAP"] or emitted(bench) == [1, "GAP", 2]
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench).count("GAP") == 1


def test_a_quarantined_segment_is_a_gap(bench: Bench) -> None:
    bench.cassandra.set(TABLE, PLAIN)
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1), raw=b"\0\0\0\x20garbage that is no entry at all, and long")
    bench.raw.index(10, complete=True)
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == [1, "GAP"]
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == [1, "GAP"]


def test_the_settings_are_looked_at_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """JMX changes them without a word; a node that is away is asked again later."""
    monkeypatch.setattr(followed_tables, "_ASK_S", -1.0)
    bench.start()
    assert not bench.saved.deletes
    node = FakeCassandra.node
    with monkeypatch.context() as away:

        def refuse(_: FakeCassandra) -> object:
            raise HelenusError(Kind.CASSANDRA_UNREACHABLE, "away", "fake")

        away.setattr(FakeCassandra, "node", refuse)
        bench.run_agent()
    assert FakeCassandra.node is node
    bench.cassandra.settings = {"cdc_block_writes": "false", "cdc_total_space": "1MiB"}
    bench.run_agent()
    assert bench.saved.deletes
    assert metric("cdc_raw_limit_bytes") == 1 << 20


def test_a_damaged_one_that_was_taken_is_lost(node: Bench) -> None:
    """It is not the agent's to quarantine either."""
    write(node, 10, 1)
    agent = node.start(topic_partitions="1")
    node.raw.segment(11)
    node.raw.write(11, write_of(TABLE, 2), raw=b"\0\0\0\x20garbage that is no entry at all, and long")
    node.raw.index(11, complete=True)
    agent._queue.refresh()
    steal(node.raw, 11)
    node.run_agent()
    assert emitted(node) == [1, 2, "GAP"]
    assert (node.raw.log / "CommitLog-7-11.log").exists()
    assert not (node.state.directory / "quarantine").exists()


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_a_table_that_goes_before_its_segments_are_shown(bench: Bench, is_known: bool, gone: bool) -> None:
    """Cassandra 3.11: a segment comes to cdc_raw when it is complete. What was logged before still gets out."""
    if is_known:  # by cassandra.yaml
        bench.cassandra.settings = {"commitlog_directory": str(bench.raw.log)}
        (bench.raw.log / "CommitLog-6-12.log").touch()
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.cassandra.set(*([] if gone else [replace(TABLE, cdc=False)]), PLAIN)
    bench.cassandra.is_changed = True
    bench.run_agent()
    for segment in (11, 12):
        bench.raw.segment(segment, version=6)
        bench.raw.write(segment, write_of(TABLE, segment))
        bench.run_agent()
    assert [row for row in emitted(bench) if isinstance(row, int)] == [11, 12]
    bench.raw.segment(13, version=6)
    bench.raw.write(13, write_of(TABLE, 13))
    bench.run_agent()
    assert (13 in emitted(bench)) is not is_known, "by its own directory it is known which segment came later"
