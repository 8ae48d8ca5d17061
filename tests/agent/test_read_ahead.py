"""Reading ahead of the sync markers: segments as Cassandra's threads fill them, at any byte, and crashes of node and
machine.

`Log` has what `CommitLogSegment` does: threads allocate entries one after the other and write them in any order, a
byte at a time; the syncer allocates a place for the next marker, waits for all that was allocated before it, and writes
the one before that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.fakes import Raw, write_of
from agent.test_agent import TABLE, Bench, bench, metric
from agent.writer import entry, sync_marker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from helenus_agent import agent as module
from helenus_agent.commitlog import segment as segment_module
from helenus_agent.commitlog.entries import last_entry
from helenus_agent.commitlog.segment import Segment
from helenus_agent.node.cassandra import Node
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode

__all__ = ["bench"]
PERIODIC = {"commitlog_sync": "periodic"}
slow = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def _no_patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_COMMIT", 0.0)
        patch.setattr(module, "_LIST", -1.0)
        patch.setattr(segment_module, "_TORN_READ_S", -1.0)
        yield


class Log:
    """A segment that threads and the syncer write. `allocated` are entries' offsets and bytes, in their order."""

    def __init__(self, raw: Raw, segment: int) -> None:
        self.segment = segment
        self.path = raw.segment(segment)
        self.marker = raw.ends[segment]
        self.end = self.marker + 8
        self.allocated: list[tuple[int, bytes, int]] = []
        self.missing: dict[int, set[int]] = {}  # by entry: bytes that are not written yet
        self.next_marker: int | None = None

    def allocate(self, key: int) -> None:
        data = entry(write_of(TABLE, key))
        self.missing[len(self.allocated)] = set(range(len(data)))
        self.allocated.append((self.end, data, key))
        self.end += len(data)

    def write(self, number: int, indexes: Iterator[int] | range) -> None:
        """Write these bytes of an entry."""
        start, data, _ = self.allocated[number]
        with open(self.path, "r+b") as file:
            for index in indexes:
                file.seek(start + index)
                file.write(data[index : index + 1])
                self.missing[number].discard(index)
        if not self.missing.get(number):
            self.missing.pop(number, None)

    def finish(self, number: int) -> None:
        self.write(number, range(len(self.allocated[number][1])))

    def begin_sync(self) -> None:
        """The syncer allocates the place of the next marker, if there is something to mark."""
        if self.next_marker is None and self.end > self.marker + 8:
            self.next_marker, self.end = self.end, self.end + 8

    def end_sync(self) -> bool:
        """It writes the marker, unless an entry before its place is not wholly written."""
        offset = self.next_marker
        if offset is None or any(self.allocated[number][0] < offset for number in self.missing):
            return False
        with open(self.path, "r+b") as file:
            file.seek(self.marker)
            file.write(sync_marker(self.segment, self.marker, offset))
        self.marker, self.next_marker = offset, None
        return True

    @property
    def whole(self) -> list[int]:
        """Keys of the entries up to the first that is not wholly written."""
        first = min(self.missing, default=len(self.allocated))
        return [key for _, _, key in self.allocated[:first]]


def step_all(bench: Bench) -> None:
    assert bench.agent is not None
    while bench.agent.step():
        pass


@slow
@given(data=st.data())
def test_threads_that_write_at_any_byte(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What is read is the whole entries in the log's order up to the first gap, each once, and all of them at last."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    bench.cassandra.settings = PERIODIC
    try:
        log = Log(bench.raw, 10)
        bench.start()
        choices = st.sampled_from(["allocate", "write", "finish", "begin", "end", "read", "kill"])
        for key, choice in enumerate(data.draw(st.lists(choices, max_size=40))):
            if choice == "allocate":
                log.allocate(key)
            elif choice in ("write", "finish") and log.missing:
                number = data.draw(st.sampled_from(sorted(log.missing)))
                size = len(log.allocated[number][1])
                if choice == "finish":
                    log.finish(number)
                else:
                    first = data.draw(st.integers(0, size))
                    log.write(number, range(first, data.draw(st.integers(first, size))))
            elif choice == "begin":
                log.begin_sync()
            elif choice == "end":
                log.end_sync()
            elif choice == "kill":  # the agent, which forgets all since its last commit
                bench.agent and bench.agent.close()
                bench.start()
            else:
                step_all(bench)
                assert bench.agent is not None
                if data.draw(st.booleans()):
                    bench.agent.commit()
                read = list(dict.fromkeys(bench_keys(bench)))
                assert read == log.whole[: len(read)]
        for number in sorted(log.missing):
            log.finish(number)
        for _ in range(2):
            log.begin_sync()
            log.end_sync()
        bench.run_agent()
        assert list(dict.fromkeys(bench_keys(bench))) == [key for _, _, key in log.allocated]
        if not metric("retries_total", kind="cassandra-unreachable"):
            assert bench.saved.segments.get(10) is None or bench.saved.segments[10].offset <= log.end
    finally:
        bench.state.close()
        bench.agent and bench.agent.close()


def bench_keys(bench: Bench) -> list[int]:
    """Keys of all events that are appended, in the log's order."""
    records = [*bench.log.acknowledged, *bench.log.waiting]
    events = [(decode(value or b""), key) for _, _, key, value, *_ in records if key is not None]
    events.sort(key=lambda item: item[0].position or 0)
    return [int.from_bytes(Bench.number(key), "big") for _, key in events]


def test_an_entry_is_read_when_its_last_byte_is_there(tmp_path: Path) -> None:
    """Whichever byte that is, also while the entry after it is whole already."""
    raw = Raw(tmp_path / "cdc_raw")
    raw.segment(10)
    raw.write(10, write_of(TABLE, 0))
    first, second = entry(write_of(TABLE, 1)), entry(write_of(TABLE, 2))
    start = raw.ends[10] + 8
    segment = Segment(raw.find(10), mode="eager")
    assert segment.look()
    segment.skip()
    for missing in range(len(first)):
        for torn in (first[:missing] + b"\0" + first[missing + 1 :], first[:missing]):
            if torn.ljust(len(first), b"\0") == first:
                continue  # that byte is a zero
            with open(segment.path, "r+b") as file:
                file.seek(start)
                file.write(torn.ljust(len(first), b"\0") + second)
            assert not segment.look(), missing
    raw.unmarked(10, write_of(TABLE, 1), write_of(TABLE, 2))
    assert segment.look()
    assert segment.live
    segment.close()


def test_a_marker_is_not_taken_for_an_entry(bench: Bench) -> None:
    """Its place is empty, then half a marker, then one: nothing after it is read before the marker that names it."""
    bench.cassandra.settings = PERIODIC
    log = Log(bench.raw, 10)
    bench.start()
    log.allocate(0)
    log.finish(0)
    log.begin_sync()
    log.end_sync()  # the first marker: from here on it reads ahead
    log.allocate(1)
    log.finish(1)
    next_marker = log.end
    log.begin_sync()
    log.allocate(2)
    log.finish(2)
    bench.run_agent()
    assert bench.keys == [0, 1]
    marker = sync_marker(10, log.marker, next_marker)
    for length in range(1, 8):
        with open(log.path, "r+b") as file:
            file.seek(log.marker)
            file.write(marker[:length])
        bench.run_agent()
        assert bench.keys == [0, 1]
    log.end_sync()
    bench.run_agent()
    assert bench.keys == [0, 1, 2]


def test_a_change_of_the_schema_waits_for_its_marker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node logs it before it applies it: who asks at once may learn the schema of before."""
    bench.cassandra.settings = PERIODIC
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    agent = bench.start()
    bench.run_agent()
    learned: list[int] = []
    monkeypatch.setattr(agent._followed, "learn_schema_at", lambda *_: learned.append(1))
    real = module.decode

    def decode_schema(data: bytes, base: int, *more: object) -> object:
        """Takes the entry of key 2 for one of the schema."""
        batch = real(data, base, *more)  # type: ignore[arg-type]
        marked, after = entry(write_of(TABLE, 2)), 0
        if marked in data[: batch.next]:
            after = data.index(marked) + len(marked)
            batch = real(data[:after], base, *more)._replace(schema=True)  # type: ignore[arg-type]
        return batch

    monkeypatch.setattr(module, "decode", decode_schema)
    writes = [write_of(TABLE, n) for n in range(1, 4)]
    bench.raw.unmarked(10, *writes)
    bench.run_agent()
    assert (set(bench.keys), learned) == ({0, 1, 2}, [])  # of the schema there are no events in truth
    agent.step()
    assert not bench.cassandra.is_asked_rarely  # a table may be dropped again before the marker comes
    bench.raw.write(10, *writes)
    bench.run_agent()
    assert (set(bench.keys), learned) == ({0, 1, 2, 3}, [1])
    agent.step()
    assert bench.cassandra.is_asked_rarely


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"commitlog_sync": "periodic"}, True),
        ({"commitlog_sync": "batch"}, False),
        ({"commitlog_sync": "group"}, False),
        ({"commitlog_sync": "periodic", "commitlog_disk_access_mode": "legacy"}, True),
        ({"commitlog_sync": "periodic", "commitlog_disk_access_mode": "mmap"}, True),
        ({"commitlog_sync": "periodic", "commitlog_disk_access_mode": "direct"}, False),
        ({"commitlog_sync": "periodic", "commitlog_disk_access_mode": "standard"}, False),
    ],
)
def test_auto_goes_by_the_node(bench: Bench, settings: dict[str, str], expected: bool) -> None:
    import uuid

    assert Node(uuid.uuid4(), "5.0", settings).shows_entries is expected
    bench.cassandra.settings = settings
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    bench.raw.unmarked(10, write_of(TABLE, 1))
    agent = bench.start()
    bench.run_agent()
    assert bench.keys == ([0, 1] if expected else [0])
    # A node that was restarted with another setting is asked again.
    bench.cassandra.settings = {"commitlog_sync": "batch" if expected else "periodic"}
    agent._followed.ask_node()
    bench.raw.write(10, write_of(TABLE, 1))
    bench.raw.unmarked(10, write_of(TABLE, 2))
    bench.run_agent()
    assert bench.keys == ([0, 1] if expected else [0, 1, 2])


def test_news_of_a_segment_that_is_read_ahead(bench: Bench) -> None:
    """Neither what was read already, nor half a size that is zero, but an entry, or a marker."""
    bench.cassandra.settings = PERIODIC
    log = Log(bench.raw, 10)
    agent = bench.start()
    for key in range(2):
        log.allocate(key)
        log.finish(key)
        log.begin_sync() if not key else None
        log.end_sync()
    bench.run_agent()
    assert bench.keys == [0, 1]
    assert not agent._queue.has_news()
    log.allocate(2)
    log.write(2, range(4))
    assert agent._queue.has_news()
    log.finish(2)
    bench.run_agent()
    assert bench.keys == [0, 1, 2]
    assert not agent._queue.has_news()
    log.begin_sync()
    log.end_sync()
    assert agent._queue.has_news()
    bench.run_agent()
    assert not agent._queue.has_news()


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_killed_node_does_not_replay_is_sent_again(bench: Bench, restarts: bool) -> None:
    """Its process was killed: the bytes are in the file, no marker covers them, and it replays only what one covers."""
    bench.cassandra.settings = PERIODIC
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0), write_of(TABLE, 1))
    bench.raw.index(10)
    bench.start()
    bench.run_agent()
    bench.raw.unmarked(10, write_of(TABLE, 2), write_of(TABLE, 3))
    bench.run_agent()
    assert bench.keys == [0, 1, 2, 3]
    if restarts:
        bench.agent and bench.agent.close()
        bench.start()
    # The node is back: it says of the old segment that it is complete up to the file's size, and writes another one.
    before = metric("taken_back_bytes_total")
    size = bench.raw.find(10).stat().st_size
    (bench.raw.path / "CommitLog-7-10_cdc.idx").write_text(f"{size}\nCOMPLETED")
    bench.raw.segment(5000)
    bench.raw.write(5000, write_of(TABLE, 9))
    with capture_logs() as logs:
        bench.run_agent()
    lost_bytes = 2 * len(entry(write_of(TABLE, 2)))
    assert metric("taken_back_bytes_total") == before + lost_bytes
    (report,) = [line for line in logs if line["event"] == "segment.taken_back"]
    assert (report["segment"], report["resent_bytes"], report["lost_bytes"]) == (10, lost_bytes, 0)
    assert bench.keys == [0, 1, 2, 3, 2, 3, 9]
    # A connector takes them for news of this node: they come after all that it has reported.
    positions = [(event.segment, event.position) for event in bench.events]
    assert positions == sorted(set(positions))
    assert all(event.scope is not Scope.GAP for event in bench.events)
    assert bench.saved.done == [10]
    bench.start()
    bench.run_agent()
    assert bench.keys == [0, 1, 2, 3, 2, 3, 9]


@pytest.mark.parametrize(("mode", "is_sent"), [("auto", True), ("marker", False)])
def test_what_an_agent_sent_that_was_killed_with_its_node_is_sent_again(bench: Bench, mode: str, is_sent: bool) -> None:
    """It had read ahead and not saved that: what the segment has beyond its end may be out, all the same."""
    bench.cassandra.settings = PERIODIC
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    bench.raw.index(10)
    bench.start(read_mode=mode)
    bench.run_agent()
    bench.agent and bench.agent.close()
    bench.raw.unmarked(10, write_of(TABLE, 1), write_of(TABLE, 2))  # which it sends, and is killed
    size = bench.raw.find(10).stat().st_size
    (bench.raw.path / "CommitLog-7-10_cdc.idx").write_text(f"{size}\nCOMPLETED")
    bench.raw.segment(5000)
    bench.raw.write(5000, write_of(TABLE, 9))
    bench.start(read_mode=mode)
    with capture_logs() as logs:
        bench.run_agent()
    assert bench.keys == ([0, 1, 2, 9] if is_sent else [0, 9])
    assert [
        (line["resent_bytes"] > 0, line["lost_bytes"]) for line in logs if line["event"] == "segment.taken_back"
    ] == ([(True, 0)] if is_sent else [])
    positions = [(event.segment, event.position) for event in bench.events]
    assert positions == sorted(set(positions))
    assert positions[-2] > (10, size) or not is_sent
    assert bench.saved.done == [10]


def test_sent_again_until_it_is_acknowledged(bench: Bench) -> None:
    bench.cassandra.settings = PERIODIC
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    bench.start()
    bench.run_agent()
    bench.raw.unmarked(10, write_of(TABLE, 1))
    bench.run_agent()
    bench.raw.index(10, complete=True)
    bench.raw.segment(11)
    bench.log.refuse_flush = 2
    bench.run(until=3)
    assert bench.keys == [0, 1, 1]


def test_a_normal_end_sends_nothing_again(bench: Bench) -> None:
    bench.cassandra.settings = PERIODIC
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    bench.start()
    bench.run_agent()
    bench.raw.unmarked(10, write_of(TABLE, 1))
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 1))
    bench.raw.index(10, complete=True)
    bench.raw.segment(11)
    bench.run_agent()
    assert bench.keys == [0, 1]
    assert bench.saved.done == [10]


@slow
@given(data=st.data())
def test_a_machine_that_loses_pages(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """After a power cut the file ends anywhere, in zeros, before what was read; the segment's chain of markers, too.
    Nothing that is written afterwards is missing, what is gone is a gap, and what is still there is sent again.
    """
    bench = Bench(tmp_path_factory.mktemp("bench"))
    bench.cassandra.settings = data.draw(st.sampled_from([PERIODIC, {}]))
    try:
        log = Log(bench.raw, 10)
        bench.start()
        sections = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        for section in sections:
            for _ in range(section):
                log.allocate(len(log.allocated))
                log.finish(len(log.allocated) - 1)
            log.begin_sync()
            log.end_sync()
        for _ in range(data.draw(st.integers(0, 3))):
            log.allocate(len(log.allocated))
            log.finish(len(log.allocated) - 1)
        bench.raw.ends[10] = log.marker
        bench.raw.index(10)
        bench.run_agent()
        ahead = list(bench.keys)
        # The disk has it up to here; the markers' places are in it, so the chain may end earlier, never later.
        size = data.draw(st.integers(30, log.end))
        content = log.path.read_bytes()
        log.path.write_bytes(content[:size].ljust(len(content), b"\0"))
        chain = read_chain(content[:size])
        (bench.raw.log / log.path.name).unlink()
        (bench.raw.path / "CommitLog-7-10_cdc.idx").write_text(f"{len(content)}\nCOMPLETED")
        bench.agent and bench.agent.close()  # which runs on the same machine
        bench.start()
        bench.raw.segment(77_000)
        bench.raw.write(77_000, *(write_of(TABLE, n) for n in range(100, 105)))
        with capture_logs() as logs:
            bench.run_agent()
        repeated = bench.keys[len(ahead) :]
        assert bench.keys[: len(ahead)] == ahead
        assert repeated[-5:] == list(range(100, 105))
        taken_back = [line for line in logs if line["event"] == "segment.taken_back"]
        if not any(line["event"] == "segment.corrupt" for line in logs):
            assert bool(taken_back) == (max(log_end(log, ahead), 0) > chain + 8)
            gaps = sum(decode(value or b"").scope is Scope.GAP for *_, value, _ in bench.log.acknowledged)
            assert bool(gaps) == bool(taken_back and taken_back[0]["lost_bytes"])
            expected = [
                k for start, raw, k in log.allocated if k in ahead and chain < start and start + len(raw) <= size
            ]
            assert repeated[:-5] == expected[: len(repeated) - 5]
    finally:
        bench.state.close()
        bench.agent and bench.agent.close()


def log_end(log: Log, keys: list[int]) -> int:
    """Where the last of these entries ends."""
    return max((start + len(data) for start, data, key in log.allocated if key in keys), default=0)


def read_chain(content: bytes) -> int:
    """Where the chain of markers ends."""
    marker = 20
    while marker + 8 <= len(content):
        end, crc = struct.unpack_from(">iI", content, marker)
        if not end or not crc:
            break
        marker = end
    return marker


def test_the_last_entry() -> None:
    entries = [entry(write_of(TABLE, n)) for n in range(3)]
    data = b"".join(entries)
    assert last_entry(data, len(data)) == len(entries[0]) * 2
    assert last_entry(data, len(entries[0])) == 0
