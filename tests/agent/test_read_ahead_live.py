"""Reading ahead of the sync markers of a real node that is killed while it writes: nothing that it holds is missing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from patience import eventually

from helenus_agent.commitlog.segment import read_marker
from helenus_agent.commitlog.segment_header import read_header
from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.commitlog.segment_source import read_index
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event.wire import decode
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.records import messages
from helenus_stack.stack import Stack

pytestmark = [
    pytest.mark.integration,
    # The driver's event loop and the consumer are ended by their own threads, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MAIN = "from helenus_agent.cli import main; main()"
KILLS = {"5.0": 1, "6.0": 3, "4.1": 3, "4.0": 3}
"""How often the node of each version is killed."""
SEGMENT_BYTES = 1 << 20
SEED = int(os.environ.get("HELENUS_SEED", "42"))


@pytest.fixture(
    scope="module",
    params=[pytest.param(version, marks=[pytest.mark.long] if kills > 1 else []) for version, kills in KILLS.items()],
)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    old = request.param == "4.0"
    yaml = {"commitlog_segment_size_in_mb": 1} if old else {"commitlog_segment_size": "1MiB"}
    directory = tmp_path_factory.mktemp("stack")
    with Stack(directory, only=["cassandra", "kafka"], cassandra=request.param, cassandra_yaml=yaml) as stack:
        yield stack


def log_in(stack: Stack) -> Session:
    return connect(CassandraSettings.from_properties(stack.status().cassandra(), "status"))


class Writer:
    """Writes rows of rising keys, until the node does not answer. `acknowledged` are their keys."""

    def __init__(self, stack: Stack, first: int) -> None:
        self.acknowledged: list[int] = []
        self.last = first
        self._session = log_in(stack)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        statement = self._session.prepare("INSERT INTO ahead.t (a, v) VALUES (?, ?)")
        while True:
            keys = range(self.last, self.last + 20)
            self.last += 20
            try:
                futures = [self._session.execute_async(statement, (key, "x" * 300), timeout=2) for key in keys]
                for key, future in zip(keys, futures, strict=True):
                    future.result()
                    self.acknowledged.append(key)
            except Exception:  # it is killed
                return

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._session.cluster.shutdown()


def zero_tails(archive: Path) -> int:
    """How many segments were closed by the node; after their chain of markers all is zero, so files begin empty."""
    count = 0
    for path in archive.glob("CommitLog-*.log"):
        index, content = read_index(path), path.read_bytes()
        version, number = parse_name(path.name) or (0, 0)
        header = read_header(content[:1000], version, number)
        if index is None or not index[1] or index[0] == len(content) or header is None:
            continue  # it is written, or was when the node was killed
        offset = header.size
        while offset + 8 <= len(content) and any(content[offset : offset + 8]):
            offset = read_marker(content[offset : offset + 8], number, offset) or 0
        assert not any(content[offset:]), path
        count += 1
    return count


def test_a_node_that_is_killed_while_it_writes(node: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each time at a random moment. What it holds at the end has its events; the others were sent again once it was
    back, so that a connector reads their rows again.
    """
    rng, status = random.Random(SEED), node.status()
    session = log_in(node)
    session.execute("CREATE KEYSPACE ahead WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE ahead.t (a int PRIMARY KEY, v text) WITH cdc = true")
    table = next(t for t in read_tables(session, "ahead").values() if t.name == "t")
    session.cluster.shutdown()
    path, out = tmp_path / "agent.properties", tmp_path / "agent.out"
    archive = tmp_path / "archive"
    keys = {
        **status.cassandra(),
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "kafka.bootstrap.servers": status.bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "segment.transfer": "archive",
        "segment.archive.dir": str(archive),
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    with open(out, "wb") as stderr:
        agent = subprocess.Popen([sys.executable, "-c", MAIN, str(path)], stderr=stderr)
    codec = KeyCodec(table)

    def events(after: int = 0) -> Counter[int]:
        """The events of each key, of those at a position of `after` or later in their segment."""
        return Counter(
            int.from_bytes(codec.decode(message.key() or b"")[0] or b"", "big")
            for message in messages(status.bootstrap_servers, "events-ahead.t")
            if message.key() is not None and decode(message.value() or b"").position >= after
        )

    try:
        eventually(lambda: "table.followed" in out.read_text(), out.read_text)
        acknowledged: list[int] = []
        first = 0
        for _ in range(KILLS[request.node.callspec.params["node"]]):
            writer = Writer(node, first)
            time.sleep(rng.uniform(1.0, 4.0))
            node.kill("cassandra1")
            writer.join()
            acknowledged += writer.acknowledged
            first = writer.last
            node.start("cassandra1")
        session = log_in(node)
        statement = session.prepare("INSERT INTO ahead.t (a, v) VALUES (?, ?)")
        last = range(first, first + 8000)  # some segments of them
        for start in range(first, last.stop, 100):
            for future in [session.execute_async(statement, (start + n, "x" * 300)) for n in range(100)]:
                future.result()
        rows = {r.a for r in session.execute("SELECT a FROM ahead.t")}
        assert set(last) <= rows
        eventually(lambda: rows <= events().keys(), out.read_text)
        lost = set(acknowledged) - rows
        node.nodetool("flush")
        eventually(lambda: zero_tails(archive) > 0, out.read_text)

        def are_sent_again() -> bool:
            # What is sent again has a position after its segment's end. It may be all that was sent of a key.
            return events().keys() - rows <= events(SEGMENT_BYTES).keys()

        eventually(are_sent_again, out.read_text)
        counts = events()
        assert sum(count for key, count in counts.items() if key in last) == len(last)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(30) == 0
        log = out.read_text()
        assert "mode=eager" in log or '"mode": "eager"' in log
        for problem in ("segment.lost", "segment.corrupt", "segment.quarantined", "possible_loss"):
            assert problem not in log
        # For who reads the output: how much the kills have hit.
        sys.stdout.write(f"{len(acknowledged)} acknowledged, {len(lost)} of them lost by the node, {len(rows)} held\n")
        sys.stdout.write(f"taken back {log.count('segment.taken_back')} times\n")
        session.cluster.shutdown()
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
