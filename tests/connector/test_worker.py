"""What a worker's metrics show of connectors that cannot work: no Spark, no servers."""

from __future__ import annotations

import errno
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from helenus_connector import metrics
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog, turn_pause
from helenus_connector.control.fences import owned
from helenus_connector.control.status import Task
from helenus_connector.log.events import OffsetRange, Offsets
from helenus_connector.rest.listener import listen
from helenus_connector.worker import Worker
from helenus_schemas.errors import Action, HelenusError, Kind

REFUSED = HelenusError(Kind.CASSANDRA_AUTH, "Cassandra refused the login", "127.0.0.1 port 9042")
AWAY = HelenusError(Kind.CASSANDRA_UNREACHABLE, "cannot connect to Cassandra", "127.0.0.1 port 9042")
ANY = "http://127.0.0.1:0"
CONFIG = {"keyspace": "ks", "table": "t", "output.format": "json"}
TABLE = {"connector": "shop", "keyspace": "ks", "table": "t"}


class Tables:
    """Looks at tables, and meets an error while there is one."""

    error: HelenusError | None = None

    def scan(self, settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        if self.error is not None:
            raise self.error
        return dict.fromkeys(settings.tables)


class Topics:
    """Makes no topics, and knows where they end, unless the brokers are away."""

    away: HelenusError | None = None
    there = False
    refused: tuple[str, ...] = ()

    def hurry(self, seconds: float) -> None: ...

    def create_topics(self, tasks: Iterable[Task]) -> None:
        if self.away is not None:
            raise self.away
        for task in tasks:
            task.ready = self.there

    def latest(self, topics: Sequence[str]) -> Offsets:
        if self.away is not None:
            raise self.away
        return {topic: {"0": 50_000} for topic in topics if topic not in self.refused}

    def sizes(self, ranges: Sequence[OffsetRange]) -> list[int]:
        return [offset_range.end - offset_range.start for offset_range in ranges]


class Fake(Worker):
    def __init__(self, directory: Path, **more: str) -> None:
        keys = {key.replace("_", "."): value for key, value in more.items()}
        super().__init__(
            WorkerSettings.from_properties(
                {"bootstrap.servers": "h:1", "checkpoint.dir": str(directory), **keys}, "worker"
            ),
            {},
        )
        self.tables = Tables()
        self._table_scans.tables = self.tables  # type: ignore[assignment]
        self.topics = Topics()
        self._topics = self.topics  # type: ignore[assignment]
        self._directory = directory
        self._load()

    def look(self) -> None:
        """What a worker does in its turns."""
        self._table_scans.scan(self._directory)
        self._create_topics()
        self._reports.report_lag(self._topics)
        self._reports.report_states()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Fake]:
    worker = Fake(tmp_path)
    worker.connectors.put("shop", CONFIG)
    yield worker
    for name in worker.connectors.names():
        worker.connectors.delete(name)
    worker.look()


def read(name: str, /, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def states() -> tuple[set[str], set[str]]:
    """The states shown of the connector, and of its task."""
    of_connector = {s for s in metrics.STATES if read("helenus_connector_state", connector="shop", state=s)}
    return of_connector, {s for s in metrics.STATES if read("helenus_connector_task_state", **TABLE, state=s)}


def errors(kind: Kind) -> float:
    return read("helenus_connector_errors_total", kind=kind.value)


def test_a_connector_that_failed_as_a_whole_is_shown(worker: Fake) -> None:
    before, worker.tables.error = errors(REFUSED.kind), REFUSED
    worker.look()
    status = worker.connectors.status("shop")
    assert (status.state, status.tasks[0].state) == ("FAILED", "UNASSIGNED"), "as Kafka Connect has it"
    assert states() == ({"FAILED"}, {"FAILED"})
    assert errors(REFUSED.kind) == before + 1
    failed = "kafka_connect_connect_worker_metrics_connector_failed_task_count"
    assert read(failed, connector="shop") == 1
    assert read("kafka_connect_connector_status", connector="shop", status="failed") == 1
    worker.tables.error = None
    worker.connectors.restart("shop")
    worker.look()
    assert states() == ({"RUNNING"}, {"UNASSIGNED"})
    worker.connectors.set_wanted("shop", "STOPPED")
    worker.look()
    assert states() == ({"STOPPED"}, {"STOPPED"})
    worker.connectors.delete("shop")
    worker.look()
    assert states() == (set(), set())


def test_a_connector_without_tables_has_a_state_too(worker: Fake) -> None:
    worker.connectors.delete("shop")
    worker.connectors.put("shop", {**CONFIG, "table": "t.*"})
    worker.tables.error = REFUSED
    worker.look()
    assert states() == ({"FAILED"}, set())
    assert read("kafka_connect_connect_worker_metrics_connector_count") == 1


def test_a_turn_of_many_tables_takes_half_a_percent_of_a_core() -> None:
    assert [turn_pause(cpu_s, 1.0) for cpu_s in (0.0, 0.004, 0.01, 0.5)] == [1.0, 1.0, 2.0, 3.0]


def test_a_transient_error_counts_except_while_servers_start_with_the_worker(worker: Fake, tmp_path: Path) -> None:
    starting = Fake(tmp_path / "other", startup_timeout_ms="60000")
    starting.connectors.put("shop", CONFIG)
    before = errors(AWAY.kind)
    for started in (starting, worker):
        started.tables.error = AWAY
        started.look()
    assert states() == ({"RUNNING"}, {"UNASSIGNED"})
    assert errors(AWAY.kind) == before + 1


@pytest.mark.parametrize("kind", Kind)
def test_what_is_waited_for_while_servers_start_with_the_worker(kind: Kind, tmp_path: Path) -> None:
    """Servers and tables may come. A login that is refused ten times is a locked account."""
    starting = Fake(tmp_path, startup_timeout_ms="60000")
    starting.connectors.put("shop", CONFIG)
    connector, before = starting.connectors.all()["shop"], errors(kind)
    starting.tables.error = HelenusError(kind, "what it says", "where")
    with capture_logs() as logs:
        for _ in range(5):
            connector.next_scan_at = 0.0
            starting.look()
    may_come = starting.tables.error.action is Action.RETRY or kind is Kind.TABLE_MISSING
    assert (connector.error is None, connector.trouble is not None) == (may_come, may_come)
    assert errors(kind) == before + (not may_come), "an error that is waited for is none yet"
    events = [entry["event"] for entry in logs if entry["event"].startswith("connector.")]
    assert events == ["connector.waiting" if may_come else "connector.failed"], "the same reason is logged once"


def test_why_a_connector_waits_is_logged_when_it_changes_and_once_a_minute() -> None:
    now = [0.0]
    reasons = ReasonLog(lambda: now[0])
    assert [reasons.is_due("shop", "away") for _ in range(3)] == [True, False, False]
    assert reasons.is_due("other", "away"), "each by itself"
    assert [reasons.is_due("shop", reason) for reason in ("no table", "no table", "away")] == [True, False, True]
    now[0] = 59.9
    assert not reasons.is_due("shop", "away")
    now[0] = 60.1
    assert [reasons.is_due("shop", "away") for _ in range(2)] == [True, False]
    reasons.forget("shop")
    assert reasons.is_due("shop", "away")


def test_brokers_that_are_away_are_logged_once(worker: Fake) -> None:
    worker.topics.away = HelenusError(Kind.BROKER_UNREACHABLE, "Kafka: no answer", "127.0.0.1:9092")
    with capture_logs() as logs:
        for _ in range(5):
            worker.look()
    assert [entry["event"] for entry in logs].count("topics.waiting") == 1


def test_the_lag_of_a_failed_connector_grows(worker: Fake, tmp_path: Path) -> None:
    for name, text in (("offsets", json.dumps({"topics": {"events-ks.t": {"0": 20_000}}})), ("commits", "")):
        (tmp_path / "default" / name).mkdir(parents=True)
        (tmp_path / "default" / name / "0").write_text(text)
    worker.tables.error = REFUSED
    worker.look()
    worker.look()
    assert read("helenus_connector_lag_events", **TABLE) == 30_000


def test_a_stopping_worker_looks_at_no_more_tables(worker: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Cassandra that hangs makes each look take half a minute."""
    worker.connectors.put("other", {**CONFIG, "table": "u"})
    looked: list[str] = []

    def look(settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        looked.append(settings.name)
        worker.stop()
        raise AWAY

    monkeypatch.setattr(worker.tables, "scan", look)
    worker._table_scans.scan(Path())
    assert len(looked) == 1
    worker._stopping.clear()
    monkeypatch.undo()


def test_a_hanging_look_at_the_tables_does_not_delay_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, looking = threading.Event(), threading.Event()
    worker = Fake(tmp_path, listeners="http://127.0.0.1:0")
    worker.connectors.put("shop", CONFIG)
    monkeypatch.setattr("helenus_connector.worker._GRACE_S", 0.1)
    monkeypatch.setattr(worker._topics, "close", lambda: None, raising=False)
    monkeypatch.setattr(worker, "_is_wanted", lambda: False)  # or Spark would start

    def look(settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        looking.set()
        hangs.wait()
        return {}

    monkeypatch.setattr(worker.tables, "scan", look)
    ends = threading.Thread(target=lambda: looking.wait() and worker.stop())
    ends.start()
    try:
        worker.run()
    finally:
        looking.set()
        hangs.set()
        ends.join()


def test_a_worker_that_is_stopped_before_it_has_read_anything_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a group that is to stop at the moment at which it comes to lead."""
    worker = Fake(tmp_path, listeners="http://127.0.0.1:0")
    monkeypatch.setattr(worker._topics, "close", lambda: None, raising=False)
    monkeypatch.setattr(worker.tables, "close", lambda: None, raising=False)
    monkeypatch.setattr(worker, "_is_loaded", False)  # a Fake loads as it is made
    for loaded in ("snapshots", "signals", "verifications"):
        monkeypatch.delattr(worker, loaded)
    monkeypatch.setattr(worker, "_load", worker.stop)
    assert worker.run() is False


def test_servers_that_never_answer_delay_no_other_connector(worker: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over REST anyone may name such servers, and as many as they like."""
    monkeypatch.setattr("helenus_connector._table_scans._SLOW_S", 0.3)
    hangs = threading.Event()
    for number in range(5):
        hanging = {**CONFIG, "table": f"t{number}", "cassandra.contact.points": f"192.0.2.{number}"}
        worker.connectors.put(f"a{number}", hanging)  # looked at before `shop`, by its name

    def look(settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        if settings.cassandra_contact_points[0].startswith("192.0.2"):
            hangs.wait()
        return dict.fromkeys(settings.tables)

    monkeypatch.setattr(worker.tables, "scan", look)
    try:
        worker.look()
        connectors = worker.connectors.all()
        assert connectors["shop"].is_scanned
        assert not connectors["a0"].is_scanned
        assert "not answered" in str(worker.connectors.status("a0").trace)
        # Another configuration, and a deletion, count at once, though the former servers are still asked.
        worker.connectors.put("a0", {**CONFIG, "table": "t0"})
        worker.connectors.delete("a1")
        worker.look()
        assert worker.connectors.all()["a0"].is_scanned
        assert worker.connectors.status("a0").trace is None or "answered" not in str(worker.connectors.status("a0"))
        assert len(worker._table_scans.under_way) == 5, "they are not asked a second time meanwhile"
    finally:
        hangs.set()
        for look_ in worker._table_scans.under_way.values():
            look_.result(60)


def test_a_worker_without_descriptors_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever needs one, and however the error is wrapped, is done again at the next turn."""
    worker = Fake(tmp_path, listeners="http://127.0.0.1:0")
    worker.connectors.put("shop", CONFIG)
    monkeypatch.setattr(worker._topics, "close", lambda: None, raising=False)
    monkeypatch.setattr(worker.tables, "close", lambda: None, raising=False)
    monkeypatch.setattr(worker, "_start_spark", lambda directory: worker._stopping.wait())
    monkeypatch.setattr(worker, "_is_wanted", lambda: False)
    turns: list[str] = []

    def fail(step: str, then: int) -> Any:
        def failing(*_: object) -> None:
            turns.append(step)
            if turns.count(step) > then:
                worker.stop()
                return
            try:
                raise OSError(errno.EMFILE, "Too many open files")
            except OSError as error:
                if turns.count(step) % 2:
                    raise HelenusError(Kind.STATE, f"cannot save: {error.strerror}") from None
                raise

        return failing

    monkeypatch.setattr("helenus_connector.worker._TOPICS_S", 0.0)
    monkeypatch.setattr(worker._table_scans, "scan", fail("look", 99))
    monkeypatch.setattr(worker, "_create_topics", fail("topics", 3))
    with capture_logs() as logs:
        worker.run()
    assert turns.count("topics") == 4
    assert "look" in turns
    assert {entry["event"] for entry in logs} >= {"descriptors.exhausted"}


@pytest.mark.parametrize("error", [REFUSED, AWAY], ids=["refused", "away"])
@pytest.mark.parametrize("change", ["none", "patched", "restarted"])
def test_a_files_connector_that_was_changed_ends_no_worker(tmp_path: Path, error: HelenusError, change: str) -> None:
    """Nor the next one: whoever may use REST could end the worker for good by it."""
    file = {**CONFIG, "name": "shop", "connector.class": "helenus.CassandraSource", "cassandra.contact.points": "h1"}

    def start(fails: bool) -> Fake:
        worker = Fake(tmp_path)
        worker.connectors.load({"shop": file})
        worker.tables.error = error if fails else None
        worker.look()
        return worker

    worker = start(fails=False)
    worker._end_if_all_failed()
    if change == "patched":
        worker.connectors.put("shop", {**file, "cassandra.contact.points": "192.0.2.1"})
    elif change == "restarted":
        worker.connectors.restart("shop")
        worker.connectors.all()["shop"].is_scanned = False
    worker = start(fails=True) if change != "restarted" else worker
    worker.tables.error = error
    worker.look()
    if change == "none":
        with pytest.raises(HelenusError):
            worker._end_if_all_failed()
    else:
        worker._end_if_all_failed()
    worker.connectors.delete("shop")
    worker.look()


@pytest.mark.parametrize("level", ["LOCAL_ONE", "LOCAL_QUORUM"])
def test_a_level_that_gives_up_the_order_is_warned_of(level: str) -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "query.consistency": level}
    task = Task(0, ConnectorSettings.from_properties(properties, "test"))
    connector = SimpleNamespace(wanted="RUNNING", is_scanned=True, error=None, tasks={"t": task})
    owners = SimpleNamespace(owner=lambda _: "n", assign=lambda _: None)
    held_positions = SimpleNamespace(owners=owners)
    of_worker = SimpleNamespace(
        all=lambda: {"n": connector}, held_positions=lambda _: held_positions, lock=threading.RLock()
    )
    worker: Any = SimpleNamespace(
        connectors=of_worker,
        _topics=SimpleNamespace(create_topics=lambda waiting: setattr(task, "ready", True)),
        _missing_topics=set(),
        _wait_reasons=ReasonLog(),
    )
    with capture_logs() as logs:
        Worker._create_topics(worker)
    warned = [entry["reason"] for entry in logs if entry["event"] == "task.warning"]
    assert [("older row" in reason) for reason in warned] == ([True] if level == "LOCAL_ONE" else [])


def test_a_table_that_was_missing_is_looked_for_until_it_is_there(
    worker: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a connector that names its tables, which looks once otherwise."""
    missing = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.t")
    scan_result, looked = {"t": None}, []

    def look(*_: object) -> dict[str, HelenusError | None]:
        looked.append(dict(scan_result))
        return looked[-1]

    monkeypatch.setattr(worker.tables, "scan", look)
    connector = worker.connectors.all()["shop"]
    refresh = connector.settings.table_refresh_interval_ms / 1000
    for error, looks in ((None, 1), (missing, 2), (None, 3)):
        scan_result["t"] = error
        for _ in range(2):
            worker.look()
            connector.last_scan_at -= refresh / 4
        assert len(looked) == looks, "not at every turn"
        assert connector.tasks["t"].error is error
        connector.last_scan_at -= refresh
        if error is None and looks == 1:
            worker.look()
            assert len(looked) == 1
            connector.tasks["t"].error = missing


def test_a_table_of_a_pattern_that_fails_for_want_of_it_is_looked_for_at_once(
    worker: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dropped, as a rule: then it is to leave, and nobody has anything to do."""
    worker.connectors.delete("shop")
    worker.connectors.put("shop", {**CONFIG, "table": "log_.*", "table.refresh.interval.ms": "600000"})
    scan_result: dict[str, HelenusError | None] = {"log_a": None, "log_b": None}
    monkeypatch.setattr(worker.tables, "scan", lambda *_: scan_result)
    worker.topics.there = True
    worker.look()
    connector = worker.connectors.all()["shop"]
    assert len(connector.tasks) == 2
    del scan_result["log_b"]
    connector.tasks["log_b"].error = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.log_b")
    assert states()[0] == {"RUNNING"}
    worker.look()
    assert len(connector.tasks) == 2, "not at every turn"
    connector.last_scan_at -= 10
    worker.look()
    assert list(connector.tasks) == ["log_a"]
    assert "log_b" not in str(worker.ready())


def test_a_table_that_is_refused_is_logged_once(worker: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a column that it does not have; its connector goes on with others."""
    worker.connectors.put("shop", {**CONFIG, "table": "t,u|v"})
    monkeypatch.setattr(
        worker.tables, "scan", lambda *_: {"t": HelenusError(Kind.CONFIG, "no such column", "ks.t"), "u": None}
    )
    with capture_logs() as logged:
        for _ in range(3):
            worker.connectors.all()["shop"].next_scan_at = 0
            worker.look()
    failed = [line for line in logged if line["event"] == "task.failed"]
    assert [(line["connector"], line["table"]) for line in failed] == [("shop", "ks.t")]
    assert "no such column" in failed[0]["error"]


def reasons(worker: Fake) -> tuple[str, str]:
    """What the status of the connector, and of its task, says besides their states."""
    status = worker.connectors.status("shop")
    return status.trace or "", status.tasks[0].trace or ""


def test_a_worker_whose_brokers_are_dead_is_not_ready(worker: Fake) -> None:
    """No batch fails then: none is made. What it says of before is not known any more."""
    worker._spark, worker._queries = object(), {"default": SimpleNamespace(trouble=lambda: None)}  # type: ignore[dict-item]
    worker.topics.there = True
    worker.look()
    assert (worker.ready(), reasons(worker)) == (None, ("", ""))
    assert read("helenus_connector_lag_events", **TABLE) == 50_000
    dead = HelenusError(Kind.BROKER_UNREACHABLE, "Kafka: no answer", "127.0.0.1:9092")
    before, worker.topics.away = errors(dead.kind), dead
    worker.look()
    assert "no answer" in str(worker.ready())
    assert "no answer" in reasons(worker)[1]
    assert states() == ({"RUNNING"}, {"RUNNING"})
    assert errors(dead.kind) == before + 1
    assert math.isnan(read("helenus_connector_lag_events", **TABLE))
    worker.topics.away = None
    worker.look()
    assert (worker.ready(), reasons(worker)) == (None, ("", ""))
    assert read("helenus_connector_lag_events", **TABLE) == 50_000
    worker.topics.refused = ("events-ks.t",)
    worker.look()
    assert math.isnan(read("helenus_connector_lag_events", **TABLE)), "this topic alone has no leader"
    worker._queries.clear()


def test_the_status_says_what_a_connector_waits_for(worker: Fake) -> None:
    worker.tables.error = AWAY
    worker.look()
    assert states() == ({"RUNNING"}, {"UNASSIGNED"})
    assert all("cannot connect to Cassandra" in reason for reason in reasons(worker))
    worker.tables.error, worker.connectors.all()["shop"].next_scan_at = None, 0.0
    worker.look()
    assert reasons(worker) == ("", "waits for its events topic events-ks.t: the agent makes it when it starts")
    worker.topics.away = HelenusError(Kind.BROKER_REFUSED, "Kafka: not authorized")
    worker.look()
    assert "not authorized" in reasons(worker)[1]
    worker.topics.away, worker.topics.there = None, True
    worker.look()
    assert (states(), reasons(worker)) == (({"RUNNING"}, {"RUNNING"}), ("", ""))
    worker.connectors.all()["shop"].tasks["t"].trouble = HelenusError(Kind.REGISTRY_UNREACHABLE, "no registry")
    assert "no registry" in reasons(worker)[1]


def test_a_query_that_no_connector_has_any_more_ends(worker: Fake) -> None:
    """It goes on while its connector is looked at again, too."""
    cache = worker._directory / "default" / "0" / "events-ks.t-0.cache"
    cache.parent.mkdir(parents=True)
    cache.touch()
    query = SimpleNamespace(is_stopped=False, is_over=False, keeps_rows=False)
    query.stop = lambda: setattr(query, "is_stopped", True)
    worker._queries = {"default": query}  # type: ignore[dict-item]
    worker.connectors.all()["shop"].is_scanned = False
    worker._end_empty_groups(worker._directory)
    assert not query.is_stopped
    worker.connectors.delete("shop")
    worker._end_empty_groups(worker._directory)
    assert (query.is_stopped, list(worker._queries)) == (True, ["default"])
    worker.connectors.put("shop", CONFIG)  # which gets another query, when this one has ended
    query.is_over = True
    worker._end_empty_groups(worker._directory)
    assert (worker._queries, cache.exists()) == ({}, False)


def test_a_second_worker_on_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with owned(tmp_path, lambda: False), pytest.raises(HelenusError, match="another worker has this checkpoint"):
        Fake(tmp_path, listeners="http://127.0.0.1:0").run()


def test_stopped_while_another_worker_has_the_checkpoint(tmp_path: Path) -> None:
    """It ends without an error, and has done nothing."""
    worker = Fake(tmp_path, listeners="http://127.0.0.1:0", startup_timeout_ms="60000")
    timer = threading.Timer(0.5, worker.stop)
    with owned(tmp_path, lambda: False):
        timer.start()
        worker.run()
    assert worker._stopping.is_set()
    assert not (tmp_path / "connectors.json").exists()


def test_a_worker_that_fails_waits_for_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queries are joined, and those wait for tasks to end unless it is ending."""
    worker = Fake(tmp_path, listeners="http://127.0.0.1:0")
    ending: list[bool] = []
    stop = lambda: ending.append(worker.connectors.ending)  # noqa: E731
    worker._queries = {"default": SimpleNamespace(stop=stop, join=lambda: None)}  # type: ignore[dict-item]

    def busy(*_: object) -> None:
        raise HelenusError(Kind.CONFIG, "the port is taken")

    monkeypatch.setattr("helenus_connector.worker.serve", busy)
    monkeypatch.setattr(worker._topics, "close", lambda: None, raising=False)
    monkeypatch.setattr(worker.tables, "close", lambda: None, raising=False)
    with pytest.raises(HelenusError, match="the port is taken"):
        worker.run()
    assert ending == [True]


def test_a_file_that_is_damaged_fails_its_group_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Fake(tmp_path)
    for name, group in (("shop", "default"), ("other", "slow")):
        worker.connectors.put(name, {**CONFIG, "table": name, "query.group": group})
    (tmp_path / "slow").mkdir()
    file = tmp_path / "slow" / "held"
    file.write_text('{"version": 1, "crc32": 1}\n{}\n')
    started: list[str] = []
    monkeypatch.setattr("helenus_connector.worker.EventsQuery.start", lambda query, _: started.append(query._group))
    monkeypatch.setattr("helenus_connector.worker.EventsQuery.refresh", lambda _: None)
    for _ in range(2):
        worker.look()
        worker._run_due_work(tmp_path)
    assert started == ["default"]
    assert [worker.connectors.status(name).state for name in ("shop", "other")] == ["RUNNING", "FAILED"]
    assert str(file) in str(worker.connectors.status("other").trace)
    file.unlink()
    worker.connectors.restart("other")
    worker.look()
    worker._run_due_work(tmp_path)
    assert started == ["default", "slow"]
    for name in worker.connectors.names():
        worker.connectors.delete(name)
    worker.look()


def test_a_batch_that_ends_after_its_connector_leaves_no_series(worker: Fake) -> None:
    worker.look()
    labels = (TABLE["connector"], TABLE["keyspace"], TABLE["table"])
    worker.connectors.delete("shop")
    worker.look()
    metrics.EVENTS_READ.labels(*labels).inc(7)
    metrics.TABLE_ERRORS.labels(*labels, "batch-failed").inc()
    worker.look()
    assert REGISTRY.get_sample_value("helenus_connector_events_read_total", TABLE) is None
    worker.connectors.put("shop", CONFIG)
    worker.look()
    assert REGISTRY.get_sample_value("helenus_connector_events_read_total", TABLE) == 0


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("keys", [{"standby_timeout_ms": "-1"}, {"startup_timeout_ms": "600000"}])
def test_a_standby_is_alive_and_not_ready(
    tmp_path: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that asks for its health must not end it. It takes over when the other one ends."""
    ports: list[int] = []
    listening = listen(
        WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": "/", "listeners": ANY}, "w")
    )
    port = listening.getsockname()[1]
    listening.close()
    worker = Fake(tmp_path, listeners=f"http://127.0.0.1:{port}", **keys)

    def run() -> None:
        with listen(worker.worker) as listener:
            ports.append(listener.getsockname()[1])

    monkeypatch.setattr(worker, "_run", run)
    began = worker._started
    with owned(tmp_path, lambda: False):
        runs = threading.Thread(target=worker.run)
        runs.start()
        assert _until(lambda: ask(port, "/health/live") == (200, "live\n"))
        status, text = ask(port, "/health/ready")
        assert (status, text.startswith("standby: another worker has checkpoint.dir: host ")) == (503, True)
        for path in ("/health", "/connectors", "/connectors/shop/status", "/"):
            status, text = ask(port, path)
            assert (status, "standby: another worker has" in json.loads(text)["message"]) == (503, True)
        assert ask(port, "/connectors/shop", "DELETE")[0] == 503
        assert ask(port, "/metrics")[0] == 200
        assert not ports
    runs.join(60)
    assert ports == [port], "it runs, and listens where the standby did"
    assert worker._started > began, "servers have as long to come as at any start"


def test_a_standby_on_the_same_machine_waits_without_a_listener(tmp_path: Path) -> None:
    """The worker that it waits for listens there."""
    settings = WorkerSettings.from_properties(
        {"bootstrap.servers": "h:1", "checkpoint.dir": "/", "listeners": ANY}, "w"
    )
    with listen(settings) as listener:
        port = listener.getsockname()[1]
        worker = Fake(tmp_path, listeners=f"http://127.0.0.1:{port}", standby_timeout_ms="-1")
        with owned(tmp_path, lambda: False), capture_logs() as logs:
            runs = threading.Thread(target=worker.run)
            runs.start()
            assert _until(lambda: [entry["event"] for entry in logs] == ["worker.standby", "standby.not_listening"])
            worker.stop()
            runs.join(60)


@pytest.mark.parametrize(
    ("keys", "waits"),
    [
        ({}, False),
        ({"startup_timeout_ms": "600000"}, True),
        ({"startup_timeout_ms": "600000", "standby_timeout_ms": "0"}, False),
        ({"standby_timeout_ms": "600000"}, True),
        ({"standby_timeout_ms": "-1"}, True),
    ],
)
def test_for_how_long_a_worker_stands_by(tmp_path: Path, keys: dict[str, str], waits: bool) -> None:
    assert Fake(tmp_path, **keys)._may_stand_by() is waits


def _until(check: Callable[[], bool]) -> bool:
    for _ in range(6000):
        with suppress(OSError):
            if check():
                return True
        time.sleep(0.01)
    return False
