"""An agent that has nothing but a contact point, configured over REST, on a real Cassandra and a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.test_live import MAIN, Live
from integration.pipeline import free_port
from patience import eventually

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_stack.records import messages
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LOGIN = "operator:secret"
CDC, KAFKA = "/api/v1/services/cdc/config", "/api/v1/services/kafka/config"
BOTH = {"table.include.list": r"control\.a, control\.b"}


class Writer(threading.Thread):
    """Writes rows to both tables until `stop`; `count` of each are written."""

    def __init__(self, session: Any) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._session = session
        self._stopping = threading.Event()

    def run(self) -> None:
        statements = [self._session.prepare(f"INSERT INTO control.{table} (k, v) VALUES (?, ?)") for table in "ab"]
        while not self._stopping.wait(0.01):
            for statement in statements:
                self._session.execute(statement, (self.count, "x" * 50))
            self.count += 1

    def stop(self) -> int:
        self._stopping.set()
        self.join()
        return self.count


class BareAgent:
    """An agent without a file: its settings are variables of its environment."""

    def __init__(self, status: Status, directory: Path, address: str = "", **more: str) -> None:
        """`more` are variables without `HELENUS_`."""
        self.port = free_port()
        self.out = directory / "agent.out"
        self._variables = {
            "HELENUS_CASSANDRA_CONTACT_POINTS": address or status.contact_points[0],
            "HELENUS_CASSANDRA_PORT": str(status.cql_port),
            "HELENUS_CONFIG_STORE": "cassandra",
            "HELENUS_CONFIG_STORE_KEYSPACE": "helenus_live",
            **(
                {}
                if address
                else {"HELENUS_CONFIG_STORE_REPLICATION": "{'class': 'SimpleStrategy', 'replication_factor': 1}"}
            ),
            "HELENUS_CONFIG_STORE_POLL_INTERVAL_MS": "500",
            "HELENUS_CONFIG_STORE_REPORT_INTERVAL_MS": "1000",
            "HELENUS_STATE_DIR": str(directory / "state"),
            "HELENUS_LISTENERS": f"http://127.0.0.1:{self.port}",
            "HELENUS_REST_BASIC_AUTH_USER_INFO": LOGIN,
            **{f"HELENUS_{name}": value for name, value in more.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", f"import sys; sys.argv[1:] = ['run']; {MAIN}"]
        with open(self.out, "ab") as out:
            self.process = subprocess.Popen(command, stderr=out, env={**os.environ, **self._variables})

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def call(self, method: str, path: str, config: dict[str, str] | None = None) -> tuple[int, Any]:
        body = None if config is None else json.dumps({"config": config}).encode()
        headers = {"Authorization": f"Basic {b64encode(LOGIN.encode()).decode()}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if text.startswith("{") else text.strip()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode().strip()
        except OSError as error:
            return 0, str(error)

    def health(self) -> str:
        return str(self.call("GET", "/health/ready")[1])

    def trouble(self) -> str:
        return str(self.report().get("trouble", ""))

    def report(self) -> dict[str, Any]:
        status, answer = self.call("GET", "/api/v1/cdc/agents")
        return answer["agents"][0] if status == 200 and answer["agents"] else {}


@pytest.fixture
def live(small_segments: Any, tmp_path: Path) -> Iterator[Live]:
    live = Live(small_segments, tmp_path)
    live.session.execute(
        "CREATE KEYSPACE control WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    for table in "ab":
        live.session.execute(f"CREATE TABLE control.{table} (k int PRIMARY KEY, v text) WITH cdc = true")
    yield live
    for keyspace in ("control", "helenus_live"):
        live.session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
    live.cluster.shutdown()


def keys(live: Live, table: str) -> Counter[int]:
    codec = KeyCodec(next(t for t in read_tables(live.session, "control").values() if t.name == table))
    events = messages(live.status.bootstrap_servers, f"events-control.{table}")
    sent_keys = [key for event in events if (key := event.key()) is not None]  # notices, as of a gap, have none
    return Counter(int.from_bytes(codec.decode(key)[0] or b"", "big") for key in sent_keys)


def test_an_agent_with_nothing_but_a_contact_point(live: Live, tmp_path: Path) -> None:
    agent, writer = BareAgent(live.status, tmp_path), Writer(live.session)
    writer.start()
    agent.start()
    try:
        eventually(lambda: "service cdc is not configured" in agent.trouble(), agent.out.read_text)
        eventually(lambda: agent.report().get("status") == "disabled", agent.out.read_text)
        assert writer.count
        # Configured while writes go on: all that waits in cdc_raw is sent.
        assert agent.call("PUT", CDC, {"table.include.list": "control.*("})[0] == 400
        assert agent.call("PUT", CDC, BOTH) == (200, {"service": "cdc", "config": BOTH})
        eventually(lambda: "service kafka is not configured" in agent.trouble(), agent.out.read_text)
        kafka = {"bootstrap.servers": live.status.bootstrap_servers, "topic.partitions": "2"}
        assert agent.call("PUT", KAFKA, kafka)[0] == 200
        eventually(lambda: agent.health() == "ready" and agent.trouble() == "", agent.out.read_text)
        eventually(lambda: len(keys(live, "a")) > 50 and len(keys(live, "b")) > 50, agent.out.read_text)
        # Another set of tables.
        assert agent.call("PUT", CDC, {"table.include.list": r"control\.a"})[0] == 200
        eventually(lambda: agent.report().get("tables") == ["control.a"], agent.out.read_text)
        excluded_from = writer.count
        eventually(lambda: len(keys(live, "a")) > excluded_from, agent.out.read_text)
        assert max(keys(live, "b")) <= excluded_from
        # Disabled and enabled again: what is written meanwhile is sent then.
        assert agent.call("DELETE", CDC) == (200, {"status": "OK"})
        eventually(lambda: "service cdc is not configured" in agent.trouble(), agent.out.read_text)
        disabled_at, sent = writer.count, len(keys(live, "a"))
        eventually(lambda: writer.count > disabled_at + 100)
        assert len(keys(live, "a")) == sent
        assert agent.report()["cdc_raw_headroom_bytes"] > 0
        assert agent.call("PUT", CDC, BOTH)[0] == 200
        eventually(lambda: len(keys(live, "a")) > disabled_at + 100, agent.out.read_text)
        # A wrong row that CQL writes changes nothing, not even at a restart.
        live.session.execute(
            "UPDATE helenus_live.configs SET config['topic.retention.ms'] = 'many' WHERE service = 'cdc'"
        )
        eventually(lambda: "topic.retention.ms=many: give a whole number" in agent.trouble(), agent.out.read_text)
        assert agent.stop() == 0
        agent.start()
        eventually(lambda: "topic.retention.ms=many: give a whole number" in agent.trouble(), agent.out.read_text)
        refused_at = writer.count
        eventually(lambda: len(keys(live, "a")) > refused_at, agent.out.read_text)
        eventually(lambda: "topic.retention.ms=many" in agent.report().get("trouble", ""), agent.out.read_text)
        assert agent.call("PUT", CDC, BOTH)[0] == 200
        eventually(lambda: agent.health() == "ready" and agent.trouble() == "", agent.out.read_text)
        # Nothing is lost, nothing is sent twice.
        count = writer.stop()
        eventually(lambda: len(keys(live, "a")) == count and count - 1 in keys(live, "b"), agent.out.read_text)
        assert keys(live, "a") == Counter(range(count))
        assert set(keys(live, "b").values()) == {1}
        assert {*range(50), *range(refused_at, count)} <= keys(live, "b").keys()
        # An agent that has never run takes the configuration from the table.
        assert agent.stop() == 0
        (tmp_path / "second").mkdir()
        agent = BareAgent(live.status, tmp_path / "second")
        agent.start()
        eventually(lambda: agent.health() == "ready" and agent.trouble() == "", agent.out.read_text)
        services = [{"service": "cdc", "config": BOTH}, {"service": "kafka", "config": kafka}]
        assert agent.call("GET", "/api/v1/services")[1]["services"] == services
        assert agent.stop() == 0
    finally:
        writer.stop()
        if agent.process is not None and agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
