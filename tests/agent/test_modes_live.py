"""The read modes and the forms of the log, with a real Cassandra: one node and one agent go through them all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.test_live import Live, _answers

from helenus_agent.commitlog.segment_header import read_header
from helenus_agent.commitlog.segment_name import parse_name

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OPTIONS = {"commitlog_segment_size": "1MiB", "commitlog_sync_period": "500ms"}
LZ4 = {"commitlog_compression": [{"class_name": "LZ4Compressor"}]}
NATIVE = {"storage_compatibility_mode": "NONE"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def servers(directory: Path) -> Iterator[Any]:
    stack = pytest.importorskip("helenus_stack.stack")
    with stack.Stack(directory, only=["cassandra", "kafka"], cassandra_yaml=OPTIONS) as running:
        yield running


@pytest.mark.parametrize(
    ("version", "compressed", "mode", "yaml"),
    [
        (7, True, "marker", LZ4),
        (7, False, "idx", {}),
        (8, True, "idx", {**NATIVE, **LZ4}),
        (8, False, "eager", NATIVE),
    ],
)
def test_nothing_is_lost(
    servers: Any, directory: Path, version: int, compressed: bool, mode: str, yaml: dict[str, Any]
) -> None:
    """The node is killed and comes back with another log, the agent is killed, twice: every key arrives."""
    from helenus_stack.stack import Stack

    live = Live(servers, directory)
    try:
        table = f"t{version}_{mode}"
        live.table(table)
        agent = live.start(read_mode=mode)
        live.insert(table, 0, 1000)
        live.wait(lambda: len(live.keys(table)) == 1000)
        emitted = sum(live.keys(table).values())

        # The node replays its log, says so in cdc_raw, and writes another; nothing is emitted again, unless it was read
        # ahead of a marker that the node had no time to write.
        node = Stack(directory, cassandra_yaml={**OPTIONS, **yaml})
        node.kill("cassandra1")
        node.start("cassandra1")
        live.wait(lambda: _answers(live))
        live.insert(table, 1000, 2000)
        live.wait(lambda: len(live.keys(table)) == 2000)
        repeated = sum(live.keys(table).values()) - emitted - 1000
        assert repeated == 0 or (mode == "eager" and repeated > 0 and "segment.taken_back" in live.out.read_text())

        total = 2000
        for _ in range(2):
            live.insert(table, total, total + 2000)
            agent.send_signal(signal.SIGKILL)
            agent.wait()
            live.insert(table, total + 2000, total + 3000)
            total += 3000
            agent = live.start(read_mode=mode)
        live.wait(lambda: len(live.keys(table)) >= total)
        assert sorted(live.keys(table)) == list(range(total))

        newest = max(path.name for path in live.raw.glob("*.log"))
        parsed = parse_name(newest)
        assert parsed is not None
        header = read_header((live.raw / newest).read_bytes()[:1000], *parsed)
        assert header is not None
        assert (parsed[0], header.decompress is not None) == (version, compressed)

        node.nodetool("flush")
        live.wait(lambda: len(list(live.raw.glob("*.log"))) <= 3)
        assert live.stop(agent) == 0
        assert not list((directory / "state" / "quarantine").glob("*"))
        log = live.out.read_text()
        assert "segment.lost" not in log
        assert "segment.corrupt" not in log
    finally:
        for process in live.agents:
            if process.poll() is None:
                process.kill()
                process.wait()
        live.cluster.shutdown()
