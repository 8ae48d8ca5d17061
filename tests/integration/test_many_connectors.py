"""One worker, many connectors: each is paused, failed, moved and mended on its own, and the others do not notice."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from integration.pipeline import Lasting, Pipeline
from patience import eventually

from helenus_stack.records import Record

pytestmark = pytest.mark.integration

SMALL = [f"many.s{i:02}" for i in range(8)]
OTHERS = ["many.one", "many.two"]
CLASS = {"connector.class": "helenus.CassandraSource"}


class Rest:
    """The worker's REST API."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def __call__(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self.base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def task(self, name: str, number: int = 0) -> dict[str, Any]:
        tasks: list[dict[str, Any]] = self("GET", f"/connectors/{name}/status")["tasks"]
        return next((t for t in tasks if t["id"] == number), {"state": "none"})


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE many WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in (*SMALL, *OTHERS):
        session.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
    # One connector stands for a pattern, two for a table each: ten tables.
    own: dict[str, object] = {"settle.timeout.ms": 1000}
    with lasting("kafka").connected({"many.all": {**own, "table": "s.*"}, **dict.fromkeys(OTHERS, own)}) as made:
        yield made


@pytest.fixture(scope="module")
def rest_api(pipeline: Pipeline) -> Rest:
    return Rest(pipeline.connector.port)


class Writer:
    """Writes a row now and then to each of some tables, while it is entered."""

    def __init__(self, session: Any, *tables: str) -> None:
        self._session = session
        self._tables = tables
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        n = 0
        while not self._stop.wait(0.02):
            n += 1
            table = self._tables[n % len(self._tables)]
            self._session.execute(f"INSERT INTO {table} (k, c, v) VALUES (%s, %s, %s)", (n % 7, n % 3, str(n)))

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def agrees(pipeline: Pipeline, *tables: str) -> None:
    for table in tables:
        eventually(
            lambda table=table: not pipeline.differences(table),
            lambda table=table: f"{table} converges\n{pipeline.connector.tail()}",
        )


def test_ten_tables_share_a_worker(pipeline: Pipeline, session: Any, rest_api: Rest) -> None:
    with Writer(session, *SMALL, *OTHERS):
        time.sleep(5)
    agrees(pipeline, *SMALL, *OTHERS)
    status = rest_api("GET", "/connectors/many-all/status")
    assert [t["state"] for t in status["tasks"]] == ["RUNNING"] * len(SMALL)
    for connector in ("many-all", "many-one", "many-two"):
        pipeline.adds_up(connector)


def test_a_paused_connector_waits_and_catches_up(pipeline: Pipeline, session: Any, rest_api: Rest) -> None:
    before = len(pipeline.records("many.one"))
    rest_api("PUT", "/connectors/many-one/pause")
    assert rest_api.task("many-one")["state"] == "PAUSED"
    with Writer(session, *OTHERS):
        time.sleep(3)
    agrees(pipeline, "many.two")
    assert pipeline.differences("many.one"), "nothing of a paused table is published"
    assert len(pipeline.records("many.one")) <= before + 1, "but what was under way"
    rest_api("PUT", "/connectors/many-one/resume")
    agrees(pipeline, "many.one")


def test_a_new_table_that_matches_is_taken_in(pipeline: Pipeline, session: Any, rest_api: Rest) -> None:
    session.execute("CREATE TABLE many.snew (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
    session.execute("INSERT INTO many.snew (k, c, v) VALUES (1, 2, 'three')")
    eventually(lambda: rest_api.task("many-all", len(SMALL))["state"] == "RUNNING", "the table is taken in")
    agrees(pipeline, "many.snew")
    session.execute("DROP TABLE many.snew")  # it leaves while others are tested


def test_a_failing_task_leaves_the_others_alone(pipeline: Pipeline, session: Any, rest_api: Rest) -> None:
    """A poison event under errors.tolerance=none stops its table. Another policy, given live, takes it on."""
    poison = Producer({"bootstrap.servers": pipeline.status.bootstrap_servers})
    poison.produce("events-many.one", b"no event", b"\x02\x02", partition=0)
    poison.flush(10)
    eventually(lambda: rest_api.task("many-one")["state"] == "FAILED", "the task fails")
    assert "poison-event" in rest_api.task("many-one")["trace"]
    with Writer(session, *OTHERS):
        time.sleep(2)
    agrees(pipeline, "many.two")
    assert rest_api.task("many-two")["state"] == "RUNNING"
    rest_api("POST", "/connectors/many-one/restart?includeTasks=true&onlyFailed=true")
    eventually(lambda: rest_api.task("many-one")["state"] == "FAILED", "it is met again, not skipped")
    config = rest_api("GET", "/connectors/many-one/config")
    rest_api("PUT", "/connectors/many-one/config", {**config, "errors.tolerance": "all"})
    agrees(pipeline, "many.one")
    assert rest_api.task("many-one")["state"] == "RUNNING"
    assert pipeline.connector.total("helenus_connector_events_total", table="one", outcome="dead_lettered") == 1


def test_a_connector_whose_cassandra_is_away_leaves_the_others_alone(
    pipeline: Pipeline, session: Any, rest_api: Rest
) -> None:
    config = {k: str(v) for k, v in pipeline.connector_properties("many.two").items()}
    elsewhere = {**config, **CLASS, "name": "away", "table": "nowhere", "cassandra.port": "9"}
    rest_api("POST", "/connectors", {"name": "away", "config": elsewhere})
    with Writer(session, *OTHERS):
        time.sleep(3)
    agrees(pipeline, *OTHERS)
    assert rest_api.task("away")["state"] == "UNASSIGNED"
    assert pipeline.connector.health()[0] == 503
    rest_api("DELETE", "/connectors/away")
    eventually(lambda: pipeline.connector.health()[0] == 200, "the worker is well again")


def test_a_reset_connector_publishes_all_again(pipeline: Pipeline, rest_api: Rest) -> None:
    before = len(pipeline.records("many.two"))
    offsets = rest_api("GET", "/connectors/many-two/offsets")["offsets"]
    assert sum(o["offset"]["offset"] for o in offsets) > 0
    with pytest.raises(urllib.error.HTTPError):
        rest_api("DELETE", "/connectors/many-two/offsets")
    rest_api("PUT", "/connectors/many-two/stop")
    rest_api("DELETE", "/connectors/many-two/offsets")
    assert sum(o["offset"]["offset"] for o in rest_api("GET", "/connectors/many-two/offsets")["offsets"]) == 0
    rest_api("PUT", "/connectors/many-two/resume")
    eventually(lambda: len(pipeline.records("many.two")) >= before + 20, "its rows are published again")
    agrees(pipeline, "many.two")


def test_a_dropped_table_leaves_its_connector(pipeline: Pipeline, session: Any, rest_api: Rest) -> None:
    """Nobody has anything to do: the worker is ready, and a restart does not bring its task back."""
    session.execute("DROP TABLE IF EXISTS many.snew")

    def has_left() -> bool:
        return len(rest_api("GET", "/connectors/many-all/status")["tasks"]) == len(SMALL)

    eventually(has_left, lambda: f"the table has left\n{pipeline.connector.tail()}")
    rest_api("POST", "/connectors/many-all/restart?includeTasks=true")
    eventually(lambda: pipeline.connector.health()[0] == 200, lambda: str(pipeline.connector.health()))
    assert has_left()


@pytest.mark.long  # two starts of a worker
def test_states_configurations_and_positions_survive_a_restart(
    pipeline: Pipeline, session: Any, rest_api: Rest
) -> None:
    """Also what was held for a paused connector when the others moved on."""
    rest_api("PUT", "/connectors/many-two/pause")
    rest_api("PATCH", "/connectors/many-one/config", {"errors.tolerance": "all"})
    made = {k: str(v) for k, v in pipeline.connector_properties("many.s00").items()}
    made |= {**CLASS, "query.group": "second", "data.topic": "copy-of-s00", "output.format": "key-value-json"}
    rest_api("POST", "/connectors", {"name": "made-over-rest", "config": {**made, "name": "made-over-rest"}})
    with Writer(session, *OTHERS):
        time.sleep(2)
    agrees(pipeline, "many.one")
    pipeline.connector.kill()
    pipeline.connector.start()
    eventually(lambda: _answers(rest_api), "REST answers")
    assert rest_api("GET", "/connectors/many-two/status")["connector"]["state"] == "PAUSED"
    assert rest_api("GET", "/connectors/many-one/config")["errors.tolerance"] == "all"
    assert rest_api("GET", "/connectors/made-over-rest/config")["query.group"] == "second"
    pipeline.connector.ready()
    with Writer(session, *OTHERS, "many.s00"):
        time.sleep(2)
    agrees(pipeline, "many.one", "many.s00")
    assert pipeline.differences("many.two")
    rest_api("PUT", "/connectors/many-two/resume")
    agrees(pipeline, "many.two")
    eventually(lambda: rest_api("GET", "/connectors/made-over-rest/topics"), "the second group runs")
    keys = keys_of(pipeline.records("many.s00"))
    eventually(lambda: keys_of(pipeline.held_topics.records("copy-of-s00")) == keys, "it has read all")
    rest_api("DELETE", "/connectors/made-over-rest")
    # Offsets belong to a connector's name: another one does not go on where that one stood.
    anew = {**made, "name": "made-anew", "query.group": "second", "data.topic": "anew-of-s00"}
    rest_api("POST", "/connectors", {"name": "made-anew", "config": {**anew, "output.format": "key-value-json"}})
    eventually(lambda: keys_of(pipeline.held_topics.records("anew-of-s00")) == keys, pipeline.connector.tail)
    rest_api("DELETE", "/connectors/made-anew")


def keys_of(records: Iterable[Record]) -> set[tuple[tuple[str, Any], ...]]:
    return {tuple(sorted(record.key.items())) for record in records}


def _answers(rest_api: Rest) -> bool:
    try:
        rest_api("GET", "/")
    except OSError:
        return False
    return True
