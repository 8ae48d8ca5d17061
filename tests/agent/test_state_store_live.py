"""The copy of the state on a real Cassandra, with a real Kafka: lost files, lost rows, two owners, kills."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.test_live import Live

from helenus_agent.config import AgentSettings
from helenus_agent.state import read
from helenus_agent.state_store._snapshot import deflate, inflate
from helenus_agent.state_store._state_table import StateTable
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_stack.records import messages

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEYSPACE = "helenus_state"


class Copied(Live):
    """Agents whose state has a copy."""

    def __init__(self, stack: Any, directory: Path) -> None:
        super().__init__(stack, directory)
        self.state = directory / "state"
        self.name = f"copied_{uuid.uuid4().hex[:8]}"  # of each test another one: topics stay
        self.host_id = self.session.execute("SELECT host_id FROM system.local").one().host_id

    def start(self, failpoint: str = "", **more: str) -> subprocess.Popen[bytes]:
        keys = {
            "state_store": "cassandra",
            "state_store_interval_ms": "1000",
            "config_store_keyspace": KEYSPACE,
            "config_store_replication": "{'class': 'SimpleStrategy', 'replication_factor': 1}",
        }
        return super().start(failpoint, **{**keys, **more})

    def row(self) -> Any:
        query = f"SELECT * FROM {KEYSPACE}.agent_states WHERE host_id = %s"
        try:
            return self.session.execute(query, (self.host_id,)).one()
        except Exception:  # there is no table yet
            return None

    def wait_for_copy(self) -> None:
        """Wait until the row has what the file has."""
        time.sleep(0.6)  # what arrived is saved soon

        def is_copied() -> bool:
            saved, row = read(self.state), self.row()
            return saved is not None and row is not None and bool(row.version == saved.version)

        self.wait(is_copied)

    def events(self, topic: str) -> list[tuple[bytes, bytes]]:
        """All there is in a topic, as key and value."""
        return [(message.key(), message.value()) for message in messages(self.status.bootstrap_servers, topic)]

    def keys(self, table: str) -> Counter[int]:
        """How often each key is in a table's topic. Gaps have none."""
        codec = KeyCodec(next(t for t in read_tables(self.session, "live").values() if t.name == table))
        sent = [key for key, _ in self.events(f"events-live.{table}") if key is not None]
        return Counter(int.from_bytes(codec.decode(key)[0] or b"", "big") for key in sent)

    def logs(self, event: str) -> int:
        return self.out.read_text().count(event)

    def write(self, first: int, last: int) -> None:
        self.insert(self.name, first, last)
        self.arrive(self.name, last)

    def start_ready(self, **more: str) -> subprocess.Popen[bytes]:
        """Start an agent, and wait until its topic is there."""
        count = self.logs("topic.ready") if self.out.exists() else 0
        agent = self.start(**more)
        self.wait(lambda: self.out.exists() and self.logs("topic.ready") > count)
        return agent


@pytest.fixture
def live(small_segments: Any, tmp_path: Path) -> Iterator[Copied]:
    live = Copied(small_segments, tmp_path)
    live.session.execute("DROP KEYSPACE IF EXISTS live", timeout=60)
    live.session.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}", timeout=60)
    live.table(live.name)
    yield live
    for agent in live.agents:
        agent.kill()
        agent.wait()
    live.session.execute("DROP KEYSPACE IF EXISTS live", timeout=60)
    live.session.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}", timeout=60)
    live.cluster.shutdown()


def test_each_of_the_two_may_be_lost(live: Copied) -> None:
    """Stopped, the directory is deleted: nothing comes twice. The row is deleted: the file goes on."""
    agent = live.start_ready()
    live.write(0, 300)
    live.wait_for_copy()
    assert live.stop(agent) == 0
    shutil.rmtree(live.state)
    live.insert(live.name, 300, 400)
    agent = live.start_ready()
    live.arrive(live.name, 400)
    assert (live.logs("state.restored"), live.logs("node.disk_lost")) == (1, 0)
    assert live.keys(live.name) == Counter(range(400))
    # While it runs, and idle: the row's owner is asked for, or the next write misses it.
    live.session.execute(f"TRUNCATE {KEYSPACE}.agent_states")
    live.write(400, 410)
    live.wait(lambda: live.logs("state.row_lost") == 1)
    live.wait_for_copy()
    assert live.stop(agent) == 0
    # While it is stopped.
    live.session.execute(f"DROP TABLE {KEYSPACE}.agent_states")
    agent = live.start_ready()
    live.write(410, 420)
    live.wait(lambda: live.logs("state.row_lost") == 2)
    live.wait_for_copy()
    # And the tables alone, and a file that is damaged.
    assert live.stop(agent) == 0
    (live.state / "tables.json").unlink()
    (live.state / "positions.json").write_text("{")
    agent = live.start_ready()
    live.write(420, 430)
    assert (live.logs("state.file_damaged"), live.logs("state.restored")) == (1, 2)
    assert (live.state / "positions.damaged").exists()
    assert (live.state / "tables.json").exists()
    assert live.stop(agent) == 0
    assert live.keys(live.name) == Counter(range(430))


@pytest.mark.long  # half a minute of writes
def test_segments_that_were_removed_are_not_reported_as_lost(live: Copied) -> None:
    """A segment leaves cdc_raw only once the row knows that it is read, so that a restored state does not miss it."""
    agent = live.start_ready(state_store_interval_ms="60000")
    live.insert(live.name, 0, 6000)
    live.wait(lambda: live.logs("segment.done") >= 1)
    row = live.row()
    content = json.loads(inflate(row.positions))
    assert content["positions"]["done"]
    agent.kill()
    agent.wait()
    shutil.rmtree(live.state)
    agent = live.start_ready()
    live.insert(live.name, 6000, 6001)
    live.wait(lambda: set(live.keys(live.name)) == set(range(6001)))
    assert live.logs("segment.lost") + live.logs("node.disk_lost") == 0
    assert live.stop(agent) == 0


@pytest.mark.long  # agent/test_state_store.py has it in memory
def test_the_older_of_two_agents_ends(live: Copied) -> None:
    """A container that moved: the one that hangs there ends as soon as it wakes, with one line."""
    old = live.start_ready()
    live.write(0, 100)
    live.wait_for_copy()
    old.send_signal(signal.SIGSTOP)
    # The second agent is this test: on one machine the lock of cdc_raw would keep it away.
    row = live.row()
    table = StateTable(
        AgentSettings.from_properties(
            {
                "state.dir": str(live.directory / "none"),
                "cdc.raw.dir": str(live.raw),
                "kafka.bootstrap.servers": "nowhere:1",
                "cassandra.contact.points": live.status.contact_points[0],
                "cassandra.port": str(live.status.cql_port),
                "config.store.keyspace": KEYSPACE,
            },
            "test",
        ),
        live.host_id,
    )
    stored = table.read()
    assert stored is not None
    assert stored.state is not None
    other = uuid.uuid4()
    assert not table.take_over(other, row.epoch - 1, row.epoch, stored.state, frozenset())
    assert table.take_over(other, row.epoch, row.epoch + 1, stored.state, frozenset())
    table.close()
    old.send_signal(signal.SIGCONT)
    live.insert(live.name, 100, 110)
    assert old.wait(60) == 1
    assert live.out.read_text().count("another agent has taken over the state of this node") == 1
    assert live.row().owner == other
    # Its file is older than the row now: the row is taken.
    agent = live.start_ready()
    live.wait(lambda: set(live.keys(live.name)) == set(range(110)))
    assert live.logs("another agent went on since") == 1
    assert live.stop(agent) == 0


@pytest.mark.long  # test_each_of_the_two_may_be_lost loses the disk, too
def test_another_disk_is_a_gap(live: Copied) -> None:
    """The node has another disk: segments that were to be read are gone."""
    agent = live.start_ready()
    live.write(0, 100)
    live.wait_for_copy()
    assert live.stop(agent) == 0
    shutil.rmtree(live.state)
    # As the row would be of a disk before: with other segments and another cdc_raw.
    row = live.row()
    content = json.loads(inflate(row.positions))
    content["disk"] = {"born": 1, "inode": 1}
    content["positions"]["segments"] = {"5": {"offset": 100, "indexed": True, "bad": False}}
    content["positions"]["done"] = [4]
    query = f"UPDATE {KEYSPACE}.agent_states SET positions = %s WHERE host_id = %s IF EXISTS"
    assert live.session.execute(query, (deflate(json.dumps(content)), live.host_id)).one()[0]
    agent = live.start_ready()
    live.wait(lambda: live.logs("node.disk_lost") == 1)
    assert f"lost-node NAME {live.host_id} --since 20" in live.out.read_text()
    assert "unread_segments=[5]" in live.out.read_text()
    live.wait(lambda: any(key is None for key, _ in live.events(f"events-live.{live.name}")))
    live.wait_for_copy()
    assert live.stop(agent) == 0
    agent = live.start_ready()
    live.insert(live.name, 100, 110)
    live.wait(lambda: set(live.keys(live.name)) >= set(range(110)))
    assert live.logs("node.disk_lost") == 1
    assert live.stop(agent) == 0


@pytest.mark.long  # agent/test_state_store.py has it in memory
def test_a_node_that_was_replaced_is_named_and_closed(live: Copied) -> None:
    agent = live.start_ready()
    live.write(0, 10)
    live.wait_for_copy()
    assert live.stop(agent) == 0
    former, columns = uuid.uuid4(), "owner, epoch, version, format, positions, tables, tokens, is_closed"
    row = live.row()
    values = [getattr(row, name) for name in columns.split(", ")]
    query = f"INSERT INTO {KEYSPACE}.agent_states (host_id, {columns}) VALUES ({', '.join(['%s'] * 9)})"
    live.session.execute(query, (former, *values))
    agent = live.start_ready()
    live.wait(lambda: live.logs("node.left") == 1)
    assert f"--replaced-by {live.host_id}" in live.out.read_text()
    closed = live.session.execute(f"SELECT is_closed FROM {KEYSPACE}.agent_states WHERE host_id = %s", (former,)).one()
    assert closed.is_closed
    assert live.stop(agent) == 0
    agent = live.start_ready()
    live.write(10, 20)
    live.wait_for_copy()
    assert live.logs("node.left") == 1
    assert live.stop(agent) == 0


@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param("state-store.before-write:1", marks=pytest.mark.long),  # before the row is made
        "state-store.after-write:1",  # the row is made, the file is not
        "state-store.before-write:3",
        pytest.param("state-store.after-write:3", marks=pytest.mark.long),
        "agent.after-save:3",  # the file is written, the copy is not
        pytest.param("agent.after-flush:3", marks=pytest.mark.long),  # sent, saved nowhere
    ],
)
def test_killed_at_each_of_the_two_writes(live: Copied, failpoint: str) -> None:
    """At each step of a save: nothing is missing, and what comes twice was sent after the last copy."""
    agent = live.start(failpoint)
    sent = 0
    while agent.poll() is None and sent < 10_000:
        live.insert(live.name, sent, sent + 20)
        sent += 20
        time.sleep(0.05)
    assert agent.wait(60) == -signal.SIGKILL, live.out.read_text()
    shutil.rmtree(live.state, ignore_errors=True)
    agent = live.start_ready()
    live.insert(live.name, sent, sent + 1)
    live.arrive(live.name, sent + 1)
    live.wait(lambda: set(live.keys(live.name)) == set(range(sent + 1)))
    assert max(live.keys(live.name).values()) <= 2
    assert live.logs("segment.lost") + live.logs("node.disk_lost") == 0
    assert live.stop(agent) == 0
