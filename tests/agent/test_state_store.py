"""The copy of the state without a server: which of file and row goes on, and when a segment may leave cdc_raw."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from agent.fakes import HOST, FakeCassandra, FakeLog, Raw, write_of
from agent.writer import table_of
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually

from helenus_agent.agent import Agent
from helenus_agent.config import AgentSettings
from helenus_agent.node import saved_tables
from helenus_agent.positions import LogGap, Positions, SegmentMark
from helenus_agent.segments.segment_queue import list_segment_ids
from helenus_agent.segments.transfer import delete
from helenus_agent.state import StateDirectory, read
from helenus_agent.state_store import state_store as module
from helenus_agent.state_store._lost_nodes import LostNodes
from helenus_agent.state_store._snapshot import Disk, StateSnapshot, deflate, inflate
from helenus_agent.state_store._state_table import RingView, StateHead, StateRow
from helenus_agent.state_store._take_over import LocalNode, read_file, take_over
from helenus_agent.state_store.state_store import StateStore
from helenus_schemas.errors import HelenusError, Kind

TABLE = table_of("t", "pk int pk, v int")
DISK = Disk(7, 8)


class MemoryTable:
    """A row as `StateTable` keeps it. `away`: how many statements to come fail, and `is_refused` for want of rights."""

    where = "helenus.agent_states"
    host_id = uuid.UUID(HOST)

    def __init__(self) -> None:
        self.row: StateRow | None = None
        self.away = 0
        self.kind = Kind.CASSANDRA_UNREACHABLE
        self.writes = 0
        self.others: list[StateHead] = []
        self.closed: list[uuid.UUID] = []
        self.host_ids = frozenset({self.host_id})

    def _reach(self) -> None:
        if self.away:
            self.away -= 1
            raise HelenusError(self.kind, "away", "fake")

    def ring(self) -> RingView:
        self._reach()
        return RingView(self.host_ids, frozenset({"1", "2"}), DISK.born)

    def read(self) -> StateRow | None:
        self._reach()
        return self.row

    def read_owner(self) -> str:
        self._reach()
        return self.row.owner if self.row else ""

    def insert(self, owner: uuid.UUID, epoch: int, state: StateSnapshot, tokens: frozenset[str]) -> bool:
        self._reach()
        return self.row is None and self._put(str(owner), epoch, state)

    def take_over(
        self, owner: uuid.UUID, previous_epoch: int, epoch: int, state: StateSnapshot, tokens: frozenset[str]
    ) -> bool:
        self._reach()
        return self.row is not None and self.row.epoch == previous_epoch and self._put(str(owner), epoch, state)

    def save(self, owner: uuid.UUID, state: StateSnapshot, with_tables: bool) -> bool:
        self._reach()
        if self.row is None or self.row.owner != str(owner) or self.row.state is None:
            return False
        tables = state.tables if with_tables else self.row.state.tables
        return self._put(str(owner), self.row.epoch, StateSnapshot(state.version, state.positions, tables))

    def _put(self, owner: str, epoch: int, state: StateSnapshot) -> bool:
        self.writes += 1
        self.row = StateRow(owner, epoch, state.version, 1_700_000_000_000_000, state)
        return True

    def unreadable_error(self, row: StateRow) -> HelenusError:
        return HelenusError(Kind.STATE, "damaged", self.where)

    def heads(self) -> list[StateHead]:
        return self.others

    def close_row(self, head: StateHead) -> bool:
        self.closed.append(head.host_id)
        return True

    def close(self) -> None: ...


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDirectory]:
    directory = StateDirectory(tmp_path / "state")
    yield directory
    directory.close()


def node(*segment_ids: int, disk: Disk = DISK) -> LocalNode:
    return LocalNode(HOST, "c", frozenset({"1", "2"}), disk, segment_ids)


def start(table: MemoryTable, state: StateDirectory, *segment_ids: int, disk: Disk = DISK) -> Positions:
    """Take over as an agent does, and return what it goes by."""
    where = node(*segment_ids, disk=disk)
    take_over(table, state, where, uuid.uuid4(), *read_file(state, where))  # type: ignore[arg-type]
    saved = read(state.directory)
    assert saved is not None
    return saved


def snapshot(positions: Positions, tables: str = "", disk: Disk = DISK) -> StateSnapshot:
    return StateSnapshot.of_positions(positions, disk, tables)


def forget(state: StateDirectory) -> None:
    for path in state.directory.glob("*.json"):
        path.unlink()


@given(st.text())
def test_blobs_hold_any_text(text: str) -> None:
    assert inflate(deflate(text)) == text
    for damaged in (deflate(text)[:-1], b"", b"x" + deflate(text)):
        with pytest.raises(ValueError, match=r"."):
            inflate(damaged)


def test_a_first_start_makes_the_row_and_the_file(table: MemoryTable, state: StateDirectory) -> None:
    saved = start(table, state)
    assert table.row is not None
    assert (saved.epoch, saved.version, saved.owner) == (1, 1, table.row.owner)


def test_a_directory_that_is_gone_is_restored(table: MemoryTable, state: StateDirectory) -> None:
    saved_tables.save(state.directory, [TABLE], {})
    state.save(Positions(HOST, {9: SegmentMark(40, True)}, [7, 8], reached=(9, 40)))
    start(table, state, 9)
    forget(state)
    restored = start(table, state, 9)
    assert (restored.segments, restored.done, restored.reached) == ({9: SegmentMark(40, True)}, [7, 8], (9, 40))
    assert restored.epoch == 2
    assert saved_tables.load(state.directory)[0] == [TABLE]


@pytest.mark.parametrize(
    ("file", "row", "is_from_row"),
    [
        (("a", 3, 9), ("a", 3, 8), False),  # the copy follows
        (("a", 3, 9), ("a", 3, 9), False),  # reprocess and drain --offline change the file alone
        (("a", 3, 9), ("a", 3, 12), True),  # the file was restored from a backup
        (("a", 3, 9), ("b", 4, 2), True),  # another agent has gone on elsewhere
        (("b", 4, 2), ("a", 3, 9), False),  # the file was begun without Cassandra; or the table is of a backup
        (("", 0, 0), ("a", 3, 9), True),  # a file of an agent without a copy: where both come from is unknown
    ],
)
def test_the_one_that_is_further_goes_on(
    table: MemoryTable,
    state: StateDirectory,
    file: tuple[str, int, int],
    row: tuple[str, int, int],
    is_from_row: bool,
) -> None:
    state.save(Positions(HOST, done=[1], owner=file[0], epoch=file[1], version=file[2]))
    table.row = StateRow(*row, 0, snapshot(Positions(HOST, done=[2], owner=row[0], epoch=row[1], version=row[2])))
    saved = start(table, state, 1, 2)
    assert saved.done == ([2] if is_from_row else [1])
    assert saved.epoch > max(file[1], row[1])
    assert table.row.state is not None
    assert table.row.state.read()[0] == saved


def test_a_gap_of_the_older_file_is_not_forgotten(table: MemoryTable, state: StateDirectory) -> None:
    state.save(Positions(HOST, gaps=[LogGap("", 5, "lost")], owner="a", epoch=1))
    table.row = StateRow("b", 2, 4, 0, snapshot(Positions(HOST, gaps=[LogGap("", 6, "lost")])))
    assert [gap.time for gap in start(table, state).gaps] == [6, 5]


def test_a_row_that_is_lost_is_announced_and_written_again(table: MemoryTable, state: StateDirectory) -> None:
    start(table, state)
    table.row = None
    with structlog.testing.capture_logs() as logs:
        assert start(table, state).epoch == 2
    assert [log["event"] for log in logs] == ["state.row_lost"]
    assert table.row is not None


def test_damaged_ones(table: MemoryTable, state: StateDirectory) -> None:
    """Each alone is survived; both are an error, and a row that is needed too."""
    file = state.directory / "positions.json"
    state.save(Positions(HOST, done=[1]))
    start(table, state)
    file.write_text("{")
    with structlog.testing.capture_logs() as logs:
        assert start(table, state).done == [1]
    assert [log["event"] for log in logs] == ["state.restored", "state.file_damaged"]
    assert table.row is not None
    table.row = StateRow(table.row.owner, table.row.epoch, table.row.version, 0, None, "ValueError: format 9")
    with structlog.testing.capture_logs() as logs:
        assert start(table, state).done == [1]
    assert [log["event"] for log in logs] == ["state.row_damaged"]
    table.row = StateRow("x", 9, 9, 0, None, "ValueError: format 9")
    forget(state)
    with pytest.raises(HelenusError, match="damaged"):
        start(table, state)
    table.row = None
    file.write_text("{")
    with pytest.raises(HelenusError, match="the positions are damaged"):
        start(table, state)


def test_tables_alone_are_restored(table: MemoryTable, state: StateDirectory) -> None:
    saved_tables.save(state.directory, [TABLE], {})
    start(table, state)
    for text in (None, "{"):
        (state.directory / "tables.json").unlink()
        if text:
            (state.directory / "tables.json").write_text(text)
        with structlog.testing.capture_logs() as logs:
            start(table, state)
        assert [log["event"] for log in logs] == ["state.tables_restored"]
        assert saved_tables.load(state.directory)[0] == [TABLE]


@pytest.mark.parametrize(
    ("disk", "present", "is_lost"),
    [(DISK, [], False), (Disk(9, 9), [8, 20], False), (Disk(9, 9), [20], True), (Disk(7, 9), [], True)],
)
def test_a_new_disk(table: MemoryTable, state: StateDirectory, disk: Disk, present: list[int], is_lost: bool) -> None:
    """All segments were read and the node restarted: nothing is lost. Without any of them, on another disk: a gap."""
    state.save(Positions(HOST, {9: SegmentMark(40, True)}, [8], listed=9))
    start(table, state, 9)
    forget(state)
    restored = start(table, state, *present, disk=disk)
    assert [gap.reason for gap in restored.gaps] == (["disk_lost"] if is_lost else [])
    assert restored.segments == ({} if is_lost else {9: SegmentMark(40, True)})
    forget(state)
    assert start(table, state, *present, disk=disk).gaps == restored.gaps, "it is reported once"


class Bench:
    """An agent with a copy, in this process."""

    def __init__(self, tmp_path: Path, table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "StateTable", lambda *_: table)
        monkeypatch.setattr(module, "_URGENT_S", 0.05)
        self.raw, self.log = Raw(tmp_path / "cdc_raw"), FakeLog()
        self.state = StateDirectory(tmp_path / "state")
        self.tmp_path = tmp_path
        self.cassandra = FakeCassandra(TABLE)
        self.store: StateStore | None = None
        self.agent: Any = None

    def start(self, interval_ms: int = 1000) -> None:
        properties = {
            "state.dir": str(self.tmp_path / "state"),
            "cdc.raw.dir": str(self.raw.path),
            "kafka.bootstrap.servers": "nowhere:1",
            "state.store": "cassandra",
            "state.store.interval.ms": str(interval_ms),
        }
        settings = AgentSettings.from_properties(properties, "test")
        ids = list_segment_ids(self.raw.path)
        self.store = StateStore(settings, self.state, self.cassandra.node(), self.raw.path, ids)
        self.store.start()
        positions = self.state.load(HOST, "c", ids)
        self.agent = Agent(
            settings,
            self.raw.path,
            self.cassandra,  # type: ignore[arg-type]
            self.log,  # type: ignore[arg-type]
            self.state,
            positions,
            delete,
            store=self.store,
        )
        self.agent.start()

    def run(self) -> None:
        self.agent._listed_at = 0.0
        while self.agent.step() or self.agent.commit():
            self.agent._committed_at = 0.0

    def close(self) -> None:
        if self.agent is not None:
            self.agent.close()
        if self.store is not None:
            self.store.close()
        self.state.close()


@pytest.fixture
def bench(tmp_path: Path, table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(tmp_path, table, monkeypatch)
    yield bench
    bench.close()


def complete(raw: Raw, segment: int) -> None:
    raw.segment(segment)
    raw.write(segment, write_of(TABLE, segment))
    raw.index(segment, complete=True)


def test_a_segment_stays_until_the_row_knows_it(
    bench: Bench, table: MemoryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start()
    complete(bench.raw, 10)
    may_write, save = threading.Event(), table.save
    monkeypatch.setattr(table, "save", lambda *arguments: may_write.wait(30) and save(*arguments))
    for _ in range(3):
        bench.run()
    assert bench.raw.names != []
    may_write.set()

    def is_removed() -> bool:
        bench.run()
        return bench.raw.names == []

    eventually(is_removed)
    assert table.row is not None
    assert table.row.state is not None
    assert table.row.state.read()[0].done == [10]


def test_without_cassandra_the_file_goes_on(bench: Bench, table: MemoryTable) -> None:
    """Segments leave cdc_raw all the same: the node must not run full for the copy's sake."""
    bench.state.save(Positions(HOST, owner="a", epoch=4))
    table.away = 10**9
    bench.start()
    complete(bench.raw, 10)

    def is_removed() -> bool:
        bench.run()
        return bench.raw.names == []

    eventually(is_removed)
    saved = read(bench.state.directory)
    assert saved is not None
    assert (saved.epoch, saved.done) == (5, [10])
    table.away = 0
    eventually(lambda: table.row is not None)


def test_a_row_that_somebody_wrote_meanwhile_ends_a_late_start(bench: Bench, table: MemoryTable) -> None:
    bench.state.save(Positions(HOST, owner="a", epoch=4))
    table.row = StateRow("b", 5, 1, 0, snapshot(Positions(HOST)))
    table.away = 2
    bench.start()
    complete(bench.raw, 10)

    def is_stopped() -> bool:
        bench.run()
        bench.store.check()  # type: ignore[union-attr]
        return False

    with pytest.raises(HelenusError, match="another agent has taken over") as error:
        eventually(is_stopped)
    assert error.value.kind is Kind.NOT_OWNER
    assert table.row.owner == "b"


@pytest.mark.parametrize("kind", [Kind.CASSANDRA_AUTH, Kind.CONFIG])
def test_what_is_wrong_at_the_first_start_is_an_error(bench: Bench, table: MemoryTable, kind: Kind) -> None:
    bench.state.save(Positions(HOST))
    table.away, table.kind = 1, kind
    with pytest.raises(HelenusError, match="away"):
        bench.start()


def test_without_a_file_the_start_waits_for_the_row(bench: Bench, table: MemoryTable) -> None:
    table.away = 1
    with pytest.raises(HelenusError, match="away") as error:
        bench.start()
    assert error.value.kind is Kind.CASSANDRA_UNREACHABLE
    assert read(bench.state.directory) is None


def test_a_file_that_is_older_than_the_row_does_not_go_on_alone(
    bench: Bench, table: MemoryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row was taken over, but the answer got lost, and then Cassandra is away: its gap must not be forgotten."""
    bench.state.save(Positions(HOST, owner="a", epoch=4))
    gap = LogGap(str(TABLE.id), 6, "lost")
    table.row = StateRow("b", 9, 1, 0, snapshot(Positions(HOST, gaps=[gap])))
    take_over = table.take_over

    def take_over_unheard(*arguments: Any) -> bool:
        assert take_over(*arguments)
        raise HelenusError(Kind.CASSANDRA_UNREACHABLE, "the answer is lost", "fake")

    monkeypatch.setattr(table, "take_over", take_over_unheard)
    with pytest.raises(HelenusError, match="the answer is lost"):
        bench.start()
    monkeypatch.undo()
    assert bench.store is not None
    table.away = 1
    with pytest.raises(HelenusError, match="away"):
        bench.store.start()
    bench.store.start()
    saved = read(bench.state.directory)
    assert saved is not None
    assert saved.epoch == 11
    assert gap in saved.gaps


def test_an_idle_agent_writes_nothing(bench: Bench, table: MemoryTable) -> None:
    """Its own writes are in the log, too: a log without events is no reason for another one."""
    bench.start()
    bench.run()
    bench.agent._commit(1)  # which notes the tables that are followed
    eventually(lambda: bench.store is not None and bench.store._next_write()[0] is None)
    writes = table.writes
    bench.raw.segment(10)
    bench.raw.write(10, write_of(table_of("other", "pk int pk, v int"), 1))
    bench.run()
    bench.agent._commit(1)
    assert bench.store is not None
    assert bench.store._next_write()[0] is None
    assert table.writes == writes


def test_nodes_that_left_the_ring(table: MemoryTable) -> None:
    def head(number: int, *tokens: str, is_closed: bool = False) -> StateHead:
        return StateHead(uuid.UUID(int=number), uuid.uuid4(), 0, frozenset(tokens), is_closed)

    table.host_ids |= {uuid.UUID(int=1)}
    table.others = [head(1, "5"), head(2, "1", "2"), head(3, "6"), head(4, "7", is_closed=True), head(6, "1", "2")]
    lost_nodes = LostNodes(table, frozenset({"1", "2"}))  # type: ignore[arg-type]
    lost_nodes.former_id = str(uuid.UUID(int=6))
    with structlog.testing.capture_logs() as logs:
        lost_nodes.look()
    assert table.closed == [uuid.UUID(int=2), uuid.UUID(int=6)], "replaced, and renamed; the third one at a second look"
    assert [log["event"] for log in logs] == ["node.left"]
    assert f"--replaced-by {HOST}" in logs[0]["advice"]
    lost_nodes.look()
    assert len(table.closed) == 2, "not due"
    lost_nodes._next_look_at = 0.0
    lost_nodes.look()
    assert uuid.UUID(int=3) in table.closed
    assert uuid.UUID(int=1) not in table.closed


def test_the_older_of_two_removes_nothing(bench: Bench, table: MemoryTable) -> None:
    bench.start()
    assert table.row is not None
    table.row = StateRow("b", table.row.epoch + 1, 1, 0, table.row.state)
    complete(bench.raw, 10)

    def is_stopped() -> bool:
        bench.run()
        return False

    with pytest.raises(HelenusError, match="another agent has taken over the state of this node"):
        eventually(is_stopped)
    assert len(bench.raw.names) == 2
    assert table.row.owner == "b"


def test_a_row_that_comes_back_late(bench: Bench, table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was gone when the state was to be saved, and an earlier write of it, of which no answer came, counts after
    all: the newer state is not in it.
    """
    bench.start()
    assert bench.store is not None
    save, refusals = table.save, [False]
    monkeypatch.setattr(table, "save", lambda *args, **more: refusals.pop() if refusals else save(*args, **more))
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run()
    eventually(lambda: bench.store is not None and bench.store._next_write()[0] is None)
    assert not refusals
    assert table.row is not None
    assert bench.store._ownership is not None
    assert table.row.version == bench.store._ownership.written.version
    bench.store.check()


def test_a_row_that_is_lost_while_it_runs(bench: Bench, table: MemoryTable) -> None:
    bench.start()
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run()
    eventually(lambda: bench.store is not None and bench.store._next_write()[0] is None)
    table.row = None
    bench.raw.write(10, write_of(TABLE, 2))
    bench.run()
    assert bench.store is not None
    assert bench.store._next_write()[0] is not None
    eventually(lambda: table.row is not None)
    assert len(bench.log.acknowledged) == 2
    bench.store.check()
