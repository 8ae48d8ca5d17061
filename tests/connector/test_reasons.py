"""Why a connector waits or failed: in REST's `trace`, `/health/ready`, `top`, the page and the metrics alike."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector import metrics
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.status import Task
from helenus_connector.query.events_query import EventsQuery
from helenus_connector.rest import client
from helenus_connector.rest.server import serve
from helenus_connector.snapshot.snapshot_store import SnapshotFile, SnapshotStore
from helenus_connector.top import look
from helenus_connector.worker import Worker
from helenus_schemas.errors import HelenusError, Kind

SHOP = {"keyspace": "ks", "table": "t", "output.format": "json"}
FILE = {"name": "db", "keyspace": "sh.*", "table": ".*", "output.format": "json"}
FULL = HelenusError(Kind.BATCH_FAILED, "java.io.IOException: No space left on device")
AWAY = HelenusError(Kind.CASSANDRA_UNREACHABLE, "cannot connect to Cassandra", "127.0.0.1 port 9042")
REFUSED = HelenusError(Kind.CASSANDRA_AUTH, "Cassandra refused the login", "127.0.0.1 port 9042")


class Keyspaces:
    """A Cassandra that says which keyspaces match, or an error."""

    def __init__(self, answer: HelenusError | list[str]) -> None:
        self._answer = answer

    def keyspaces(self, _: object) -> list[str]:
        if isinstance(self._answer, HelenusError):
            raise self._answer
        return self._answer


def the_task(worker: Worker) -> Task:
    task = worker.connectors.all()["shop"].tasks["t"]
    task.ready = True
    return task


def the_query(worker: Worker, directory: Path) -> EventsQuery:
    the_task(worker)
    worker._spark = object()
    query = EventsQuery(worker.worker, worker.connectors, "default", directory, lambda *_: None)
    worker._queries["default"] = query
    return query


def fails_again_and_again(worker: Worker, directory: Path) -> None:
    the_query(worker, directory).last_error = FULL


def plans_no_batch(worker: Worker, directory: Path) -> None:
    plan, _ = the_query(worker, directory).refresh()
    plan.away_file.write_text("Kafka: no answer")
    os.utime(plan.away_file, (time.time() - 60,) * 2)


def writes_no_more(worker: Worker, directory: Path) -> None:
    worker.connectors.note_written_topics("other", [the_task(worker).settings.data])
    worker.connectors.running_tasks("default", time.time())


def has_no_tables(worker: Worker, directory: Path) -> None:
    worker.connectors.put("shop", {**SHOP, "table": "u.*"})
    worker.connectors.apply_scan("shop", worker.connectors.all()["shop"].settings, {})


def of_file(answer: HelenusError | list[str]) -> Callable[[Worker, Path], None]:
    def arrange(worker: Worker, directory: Path) -> None:
        worker._keyspaces.find_connectors(Keyspaces(answer), may_wait=False)  # type: ignore[arg-type]

    return arrange


def connector(**values: object) -> Callable[[Worker, Path], None]:
    return lambda worker, _: vars(worker.connectors.all()["shop"]).update(values)


def task(**values: object) -> Callable[[Worker, Path], None]:
    return lambda worker, _: vars(the_task(worker)).update(values)


REASONS: dict[str, tuple[Callable[[Worker, Path], None], str, str, str]] = {
    "a query that fails": (fails_again_and_again, "shop", "No space left on device", "batch-failed"),
    "no plan": (plans_no_batch, "shop", "Kafka: no answer", "waiting"),
    "no Spark": (lambda worker, _: None, "shop", "starting: Spark is not there yet", "waiting"),
    "another group's batch": (writes_no_more, "shop", "waits for the last batch of query.group other", "waiting"),
    "no table matches": (has_no_tables, "shop", "no table with cdc = true matches ks.u.*", "waiting"),
    "no keyspace matches": (of_file([]), "db", "no table with cdc = true matches sh.*..*", "waiting"),
    "keyspaces unknown": (of_file(AWAY), "db", "cannot connect to Cassandra", "cassandra-unreachable"),
    "keyspaces refused": (of_file(REFUSED), "db", "Cassandra refused the login", "cassandra-auth"),
    "a connector failed": (connector(error=REFUSED), "shop", "Cassandra refused the login", "cassandra-auth"),
    "a connector's trouble": (connector(trouble=AWAY), "shop", "cannot connect", "cassandra-unreachable"),
    "a task failed": (task(error=REFUSED), "shop", "Cassandra refused the login", "cassandra-auth"),
    "a task's trouble": (task(trouble=AWAY), "shop", "cannot connect to Cassandra", "cassandra-unreachable"),
    "no topic": (task(waiting="waits for its events topic"), "shop", "waits for its events topic", "waiting"),
}


class Shown:
    """What a worker shows, in each place."""

    def __init__(self, url: str, name: str) -> None:
        self._worker = client.WorkerClient(url)
        self._name = name

    def trace(self) -> str:
        status = json.loads(self._worker.get("/connectors?expand=status"))[self._name]["status"]
        assert status == json.loads(self._worker.get(f"/connectors/{self._name}/status"))
        return str([status["connector"].get("trace"), *(task.get("trace") for task in status["tasks"])])

    def readiness(self) -> str:
        return str(self._worker._answer("GET", "/health/ready", None))

    def top(self) -> str:
        moment = look(self._worker)
        return str([line for line in (*moment.failures, *moment.waiting) if line.startswith(self._name)])

    def page(self) -> str:
        (shown_connector,) = (
            c for c in json.loads(self._worker.get("/overview"))["connectors"] if c["name"] == self._name
        )
        return str([shown_connector["reason"], *(table["reason"] for table in shown_connector["tables"])])

    def metrics(self) -> str:
        lines = self._worker.get("/metrics").splitlines()
        return str([line for line in lines if line.startswith(f'helenus_connector_reason{{connector="{self._name}"')])


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    properties = {"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path), "listeners": "http://127.0.0.1:0"}
    worker = Worker(WorkerSettings.from_properties(properties, "worker"), {"db": FILE})
    worker._load()
    worker.connectors.put("shop", SHOP)
    yield worker
    worker.connectors.delete("shop")
    worker._reports.report_states()
    metrics.connector_state("db", None)  # of a file, it is there until the worker ends
    metrics.reasons(worker._reports._reasons, set())


def test_snapshots_are_loaded_after_the_directory_is_claimed(tmp_path: Path) -> None:
    """Another one may go on while this one waits for it."""
    properties = {"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path), "listeners": "http://127.0.0.1:0"}
    waiting = Worker(WorkerSettings.from_properties(properties, "worker"), {})
    before = SnapshotStore(SnapshotFile(tmp_path))
    with before.changing():
        before.for_table("shop", "orders").needed = "12 events expired"
    waiting._load()
    with waiting.snapshots.store.changing():
        pass
    assert SnapshotStore(SnapshotFile(tmp_path)).for_table("shop", "orders").needed == "12 events expired"


@pytest.mark.parametrize("why", REASONS)
def test_a_reason_is_shown_everywhere(why: str, worker: Worker, tmp_path: Path) -> None:
    arrange, name, text, kind = REASONS[why]
    arrange(worker, tmp_path)
    _note_hindrances(worker)
    worker._reports.report_states()
    parts = worker.connectors, worker.snapshots, worker.verifications, worker._history
    listener = serve(worker.worker, *parts, worker.ready, worker.health)
    try:
        shown = Shown(f"http://127.0.0.1:{listener.port}", name)
        shown_texts = {show.__name__: show() for show in (shown.trace, shown.readiness, shown.top, shown.page)}
        views_with_reason = [view for view, shown_text in shown_texts.items() if text in shown_text]
        assert views_with_reason == ["trace", "readiness", "top", "page"], shown_texts
        assert f'kind="{kind}"' in shown.metrics()
    finally:
        listener.shutdown()


def test_a_task_that_goes_on_is_ready(worker: Worker) -> None:
    """Some keys can't be read: its status says so, and others are published."""
    worker._spark, the_task(worker).unread = object(), AWAY
    status = worker.connectors.status("shop")
    assert ("cannot connect" in str(status.tasks[0].trace), status.obstacle) == (True, None)
    assert "cannot connect" not in str(worker.ready())
    worker.connectors.note_hindrance("default", FULL)
    assert "No space left" in str(worker.ready())


@pytest.mark.parametrize(
    ("query", "states"),
    [
        (None, ("UNASSIGNED", "UNASSIGNED")),
        (SimpleNamespace(trouble=lambda: FULL, has_done_batches=False), ("UNASSIGNED", "UNASSIGNED")),
        (SimpleNamespace(trouble=lambda: "no broker answers", has_done_batches=True), ("RUNNING", "RUNNING")),
        (SimpleNamespace(trouble=lambda: None, has_done_batches=True), ("RUNNING", "RUNNING")),
        (SimpleNamespace(trouble=lambda: None, has_done_batches=False), ("RUNNING", "RUNNING")),
    ],
)
def test_nothing_is_called_running_whose_query_does_not_start(
    worker: Worker, query: Any, states: tuple[str, str]
) -> None:
    worker._spark = object()
    the_task(worker)
    worker._queries = {} if query is None else {"default": query}
    _note_hindrances(worker)
    status = worker.connectors.status("shop")
    assert (status.state, status.tasks[0].state) == states
    assert (status.trace is None) == (query is not None and query.trouble() is None)
    worker._queries.clear()


def test_a_retried_task_whose_query_has_no_batch_is_unassigned(worker: Worker) -> None:
    """As with state=rows, whose query ends with each failure."""
    worker._spark, the_task(worker).trouble = object(), AWAY
    for has_done_batches, state in ((False, "UNASSIGNED"), (True, "RUNNING")):
        query: Any = SimpleNamespace(trouble=str, has_done_batches=has_done_batches)
        worker._queries = {"default": query}
        _note_hindrances(worker)
        (task,) = worker.connectors.status("shop").tasks
        assert (task.state, "cannot connect" in str(task.trace)) == (state, True)
    worker._queries.clear()


def test_what_tasks_wait_for_precedes_that_no_batch_is_done(worker: Worker) -> None:
    the_task(worker).waiting = "waits for its events topic"
    _note_hindrances(worker)
    status = worker.connectors.status("shop")
    assert (status.trace, status.obstacle) == (None, "waits for its events topic")


def test_a_file_that_failed_is_looked_at_again(worker: Worker, tmp_path: Path) -> None:
    of_file(REFUSED)(worker, tmp_path)
    of_file(["shop"])(worker, tmp_path)
    assert worker.connectors.status("db").state == "FAILED", "not by itself"
    worker.connectors.restart("db", only_failed=True)
    found_connectors = worker._keyspaces.find_connectors(Keyspaces(["shop"]), may_wait=False)  # type: ignore[arg-type]
    assert list(found_connectors) == ["db-shop"]
    assert "db" not in worker.connectors.all_with_files()


def _note_hindrances(worker: Worker) -> None:
    worker._reports.note_hindrances(worker._queries, "starting: Spark is not there yet")
