"""The worker's REST API: compared with a real Kafka Connect worker, and its effect on connectors."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
import requests
from hostile_clients import connected, has_ended
from integration.pipeline import Lasting, Pipeline
from integration.side_by_side import Side, different, drive
from kafka_connect.kafka_connect import KafkaConnect
from patience import eventually

from helenus_stack.records import messages
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

TABLE = "rest.t"
CLASS = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Pipeline:
    """An agent, and a worker that no file gives a connector."""
    session.execute("CREATE KEYSPACE rest WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute(f"CREATE TABLE {TABLE} (p int PRIMARY KEY, v text, w text) WITH cdc = true")
    session.execute(f"INSERT INTO {TABLE} (p, v, w) VALUES (1, 'one', 'first')")
    return lasting("kafka")


@pytest.fixture
def base(pipeline: Pipeline) -> str:
    return f"http://127.0.0.1:{pipeline.connector.port}"


@pytest.fixture
def config(pipeline: Pipeline) -> dict[str, str]:
    """A connector of the table, without its name."""
    properties = {key: str(value) for key, value in pipeline.connector_properties(TABLE).items() if key != "name"}
    return {**properties, "connector.class": "helenus.CassandraSource", "tasks.max": "1"}


@pytest.fixture
def theirs(stack: Stack, tmp_path: Path) -> Side:
    """Kafka Connect's own worker, with the source that it ships. It goes on, for test_jdbc_sink.py."""
    url = stack.up("connect").connect_url
    assert url
    source = tmp_path / "lines.txt"
    source.write_text("a line\n" * 20)
    config = {"connector.class": CLASS, "tasks.max": "1", "file": str(source), "topic": "lines"}
    text = "org.apache.kafka.connect.storage.StringConverter"
    config |= {"key.converter": text, "value.converter": text}
    config |= dict.fromkeys(("topic.creation.default.partitions", "topic.creation.default.replication.factor"), "1")
    offsets = {"offsets": [{"partition": {"filename": str(source)}, "offset": {"position": 7}}]}
    return Side(url, "FileStreamSource", config, offsets)


def test_answers_as_kafka_connect_does(base: str, config: dict[str, str], theirs: Side) -> None:
    offsets = {"offsets": [{"partition": {"topic": f"events-{TABLE}", "partition": 0}, "offset": {"offset": 0}}]}
    ours = Side(base, "CassandraSource", config, offsets)
    for side in (theirs, ours):
        drive(side)
    assert len(ours.answers) > 100
    assert not different(ours.answers, theirs.answers)


def reaches(client: KafkaConnect, name: str, state: str) -> None:
    def states() -> list[str]:
        status = client.get_connector_status(name)
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    eventually(lambda: set(states()) == {state}, f"{name} is {state}: {states()}")


def test_a_connector_is_driven_live(
    pipeline: Pipeline, session: Any, base: str, config: dict[str, str], tmp_path: Path
) -> None:
    client = KafkaConnect(base)

    def values(p: int) -> list[Any]:
        return [record.value for record in pipeline.records(TABLE) if record.key == {"p": p}]

    def arrives(p: int, value: Any) -> None:
        eventually(lambda: values(p)[-1:] == [value], f"{p} is {value}: {values(p)}")

    # Made before it: connectors that nobody answers. What blocks them, blocks no other.
    os.mkfifo(fifo := tmp_path / "fifo.pem")
    tls = {"cassandra.ssl.enabled": "true", "cassandra.ssl.cafile": str(fifo)}
    for name, more in (("fifo", tls), ("away", {"cassandra.contact.points": "192.0.2.1,192.0.2.2,192.0.2.3"})):
        client.create_connector({"name": name, "config": {**config, "table": f"of_{name}", **more}})
    client.create_connector({"name": "live", "config": config})
    reaches(client, "live", "RUNNING")
    arrives(1, {"v": "one", "w": "first"})
    status = eventually(lambda: client.get_connector_status("fifo")["connector"], "it was looked at")
    assert (status["state"], "not a regular file" in status["trace"]) == ("FAILED", True), (
        "`live` was looked at after it"
    )
    for name in ("fifo", "away"):
        client.delete_connector(name)
    # Another configuration takes effect without a restart.
    client.update_connector("live", {**config, "columns": "v"})
    session.execute(f"INSERT INTO {TABLE} (p, v, w) VALUES (2, 'two', 'second')")
    arrives(2, {"v": "two"})
    # A paused one keeps its place.
    client.pause_connector("live")
    reaches(client, "live", "PAUSED")
    session.execute(f"INSERT INTO {TABLE} (p, v, w) VALUES (3, 'three', 'third')")
    client.resume_connector("live")
    arrives(3, {"v": "three"})
    # Clients that connect and say nothing, and such as never finish a request, take nothing from its work.
    process = Path(f"/proc/{pipeline.connector.process.pid}")
    threads = len(list((process / "task").iterdir()))
    with connected(pipeline.connector.port, 2000), connected(pipeline.connector.port, 1000, b"GET / HTTP/1.1\r\nX: "):
        session.execute(f"INSERT INTO {TABLE} (p, v, w) VALUES (5, 'five', 'fifth')")
        arrives(5, {"v": "five"})
        reaches(client, "live", "RUNNING")
        assert len(list((process / "task").iterdir())) < threads + 100
        assert len(list((process / "fd").iterdir())) < 1024
    # Without a descriptor left it goes on with what needs none, and with the rest when there are some again.
    pid = pipeline.connector.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(entry.name) for entry in (process / "fd").iterdir()) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, limits[1]))
    try:
        with connected(pipeline.connector.port, 100) as clients:
            session.execute(f"INSERT INTO {TABLE} (p, v, w) VALUES (6, 'six', 'sixth')")
            assert has_ended(clients[-1])
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    arrives(6, {"v": "six"})
    reaches(client, "live", "RUNNING")
    # After a reset of its offsets a stopped one publishes everything again.
    before = {p: len(values(p)) for p in (1, 2, 3)}
    client.stop_connector("live")
    reaches(client, "live", "STOPPED")
    assert requests.delete(f"{base}/connectors/live/offsets", timeout=30).status_code == 200
    client.resume_connector("live")
    eventually(lambda: all(len(values(p)) > count for p, count in before.items()), "all rows are published again")


@pytest.mark.long  # test_many_connectors.py kills the worker
def test_connectors_survive_a_restart(pipeline: Pipeline, session: Any, base: str, config: dict[str, str]) -> None:
    """Goes on with the connector of the test above, if that ran."""
    client = KafkaConnect(base)
    if "live" not in client.list_connectors():
        requests.put(f"{base}/connectors/live/config", json=config, timeout=60).raise_for_status()
        reaches(client, "live", "RUNNING")

    def offsets_now() -> Any:
        return requests.get(f"{base}/connectors/live/offsets", timeout=30).json()

    def all_done() -> bool:
        """A record is there a moment before its batch is done."""
        events = sum(1 for _ in messages(pipeline.status.bootstrap_servers, f"events-{TABLE}"))
        return events == sum(entry["offset"]["offset"] for entry in offsets_now().get("offsets", ()))

    eventually(all_done, "all events are done")
    client.pause_connector("live")
    connector_before = client.get_connector("live")
    offsets = offsets_now()
    assert offsets["offsets"]
    assert pipeline.connector.stop() == 0
    pipeline.connector.start().ready()
    reaches(client, "live", "PAUSED")
    assert client.get_connector("live") == connector_before
    assert offsets_now() == offsets
    session.execute(f"INSERT INTO {TABLE} (p, v, w) VALUES (4, 'four', 'fourth')")
    client.resume_connector("live")
    reaches(client, "live", "RUNNING")
    eventually(lambda: [r for r in pipeline.records(TABLE) if r.key == {"p": 4}], "what came meanwhile is published")
    client.delete_connector("live")
    assert client.list_connectors() == []
