"""What a Python worker of Spark keeps between tasks: no Spark, no servers."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.fences import fence
from helenus_connector.control.plan import QueryPlan
from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.interfaces.gate import NOTHING_WAITS, GateWaits
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.query import _worker_task as tasks
from helenus_connector.query import worker_process
from helenus_connector.query._worker_task import TopicResult
from helenus_connector.query.worker_process import _Reused
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import encode, request

AWAY = HelenusError(Kind.CASSANDRA_READ, "no host is there")


def settings(table: str, **more: str) -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks", "table": table, "output.format": "json"}
    return ConnectorSettings.from_properties({**properties, **{k.replace("_", "."): v for k, v in more.items()}}, "n")


class Kept:
    """A session to each of two Cassandras, and stages of three tables, whose runs end as `outcome` says."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.outcome: HelenusError | None = None
        self.closed: list[str] = []
        mine, other = settings("t").server, settings("t", cassandra_port="9999").server
        self.sessions: dict[Any, Any] = {mine: self._session("mine"), other: self._session("other")}
        self.stages: dict[Any, Any] = {}
        for table, server in (("t", mine), ("u", mine), ("v", other)):
            close = lambda table=table: self.closed.append(table)  # noqa: E731
            stage = SimpleNamespace(session=self.sessions[server], close=close, run=self._run)
            self.stages["stage", "plan", "default", f"events-ks.{table}"] = _Reused(stage, None, server)
        log = SimpleNamespace(largest=1, close=lambda: None)
        self.reused = {**self.stages, ("data log", "plan", ""): _Reused(log, None, None)}

    def _session(self, name: str) -> Any:
        return SimpleNamespace(cluster=SimpleNamespace(shutdown=lambda: self.closed.append(name)))

    def stage(self, table: str) -> Any:
        return self.stages["stage", "plan", "default", f"events-ks.{table}"].value

    def open_stages(self) -> list[str]:
        """The tables whose stages are kept."""
        return [name[-1] for name in self.reused if name[0] == "stage"]

    def _run(self, *_: object) -> Any:
        if self.outcome is not None:
            raise self.outcome
        return BatchOutcome()

    def run(self, table: str = "t") -> TopicResult:
        result = TopicResult(f"events-ks.{table}")
        plan: Any = SimpleNamespace(directory="plan", group="default", owner=None, exactly_once={})
        tasks._run(plan, settings(table), [object()], [], True, result)  # type: ignore[list-item]
        return result


@pytest.fixture
def task_caches(monkeypatch: pytest.MonkeyPatch) -> Kept:
    caches = Kept()
    monkeypatch.setattr(worker_process, "_sessions", caches.sessions)
    monkeypatch.setattr(worker_process, "_reused", caches.reused)
    monkeypatch.setattr(worker_process, "_failing_since", {})
    monkeypatch.setattr(tasks, "_stage_for", lambda plan, settings, epoch, log: caches.stage(settings.table))
    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: caches.seconds))
    return caches


def test_an_idle_session_is_reconnected(task_caches: Kept) -> None:
    """Its nodes may all have other addresses by now, as pods that were moved have."""
    task_caches.outcome = AWAY
    for seconds in (0.0, 29.0):
        task_caches.seconds = seconds
        assert task_caches.run().error is AWAY
    assert task_caches.closed == []
    task_caches.seconds = 31.0
    assert task_caches.run().error is AWAY
    assert task_caches.closed == ["t", "u", "mine"], "with all that go by it"
    assert (task_caches.open_stages(), len(task_caches.sessions)) == (["events-ks.v"], 1)


def test_a_session_in_use_is_kept(task_caches: Kept) -> None:
    """By another table, say: then it is there, and what fails has another reason."""
    for seconds in range(0, 100, 10):
        task_caches.seconds = float(seconds)
        task_caches.outcome = AWAY
        task_caches.run()
        task_caches.outcome = None
        task_caches.run("u")
    task_caches.outcome = HelenusError(Kind.POISON_EVENT, "not an event")
    for seconds in (200.0, 300.0):
        task_caches.seconds = seconds
        task_caches.run()
    assert task_caches.closed == []


def test_a_stage_that_cannot_be_made_is_closed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had open is other files by then."""
    closed: list[str] = []

    class Stage:
        def __init__(self, table_settings: ConnectorSettings, *_: object) -> None:
            self.settings = table_settings
            if table_settings.tasks_max > 1:
                raise OSError("no room")

        def close(self) -> None:
            closed.append(self.settings.table)

    worker = SimpleNamespace(checkpoint_dir=tmp_path)
    plan: Any = SimpleNamespace(directory=str(tmp_path), group="default", worker=worker)
    monkeypatch.setattr(tasks, "Stage", Stage)
    monkeypatch.setattr(worker_process, "_reused", {})
    monkeypatch.setattr(worker_process, "_sessions", {settings("t").server: object()})
    log: Any = SimpleNamespace(keeps_schemas=True)
    tasks._stage_for(plan, settings("t"), 0, log)
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            tasks._stage_for(plan, settings("t", tasks_max="2"), 0, log)
    assert closed == ["t"]
    tasks._stage_for(plan, settings("t"), 0, log)
    assert closed == ["t"]


def test_tables_that_left_their_group_are_released(task_caches: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned: list[dict[str, int]] = []
    monkeypatch.setattr(tasks, "prune", lambda _, tables: pruned.append(tables))
    monkeypatch.setattr(tasks, "use", lambda path: path)
    for tables in (("t", "u", "v"), ("t", "v"), ("t", "v")):
        plan: Any = SimpleNamespace(directory="plan", group="default", tables={f"events-ks.{t}": 0 for t in tables})
        tasks._prune(plan)
        other: Any = SimpleNamespace(directory="plan", group="other", tables={})
        tasks._prune(other)
    assert task_caches.closed == ["u"]
    assert task_caches.open_stages() == ["events-ks.t", "events-ks.v"]
    assert [len(tables) for tables in pruned] == [3, 0, 2]


def test_a_task_of_an_earlier_start_removes_no_caches(
    tmp_path: Path, task_caches: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables may have joined since."""
    pruned: list[str] = []
    monkeypatch.setattr(tasks, "prune", lambda *_: pruned.append("caches"))
    monkeypatch.setattr(worker_process, "end_with_parent", lambda: None)
    worker = WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    plan = QueryPlan(worker, {}, str(tmp_path / "run"), start=fence(tmp_path / "default", lambda: False) or 0)
    fence(tmp_path / "default", lambda: False)
    with pytest.raises(HelenusError, match="started again"):
        list(tasks.topic_task(plan, {})(iter([])))
    assert (pruned, task_caches.closed) == ([], [])


def test_logs_of_tables_that_left_their_group_are_closed(task_caches: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another group may read a topic of the same name for another sink, and the Log that tables share stays."""
    monkeypatch.setattr(tasks, "prune", lambda *_: None)
    monkeypatch.setattr(tasks, "use", lambda path: path)

    def data_log(_: object) -> Any:
        return SimpleNamespace(close=lambda: task_caches.closed.append("log"))

    monkeypatch.setattr(worker_process, "data_log", data_log)
    plans: list[Any] = [
        SimpleNamespace(directory="plan", group=group, worker=None, owner=None, tables={"events-ks.t": 0})
        for group in ("default", "other")
    ]
    own_logs = []
    for plan in plans:
        for table in ("t", "gone"):
            worker_process.data_log_for(plan, settings("other"))
            worker_process.separate_data_log(plan, f"events-ks.{table}")
            own_logs.append(worker_process.data_log_for(plan, settings(table)))
    shared = worker_process.data_log_for(plans[0], settings("other"))
    task_caches.closed.clear()
    for plan in plans:
        tasks._prune(plan)
        assert worker_process.data_log_for(plan, settings("gone")) is shared
    assert task_caches.closed.count("log") == 2
    assert [worker_process.data_log_for(plan, settings("t")) for plan in plans] == [own_logs[0], own_logs[2]]


def test_the_schemas_version_is_asked_for_once_before_events_are_read(
    task_caches: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of many tables asks once, not each stage by itself; and each stage gets the answer of its session."""
    version_requests: list[Any] = []
    version_by_topic: dict[str, Any] = {}
    monkeypatch.setattr(
        tasks, "request_version", lambda session: version_requests.append(session) or len(version_requests)
    )
    for stage_key, reused in task_caches.stages.items():
        reused.value.run = lambda *args, name=stage_key[-1]: version_by_topic.update({name: args[5]}) or BatchOutcome()
    plan: Any = SimpleNamespace(directory="plan", group="default", owner=None, exactly_once={})
    topics = [f"events-ks.{table}" for table in ("t", "u", "v", "new")]
    parts: Any = SimpleNamespace(parts=[SimpleNamespace(ranges=[SimpleNamespace(topic=topic) for topic in topics])])
    answers: dict[int, Any] = {}
    for _ in range(2):
        tasks._request_versions(plan, parts, answers)
    assert len(version_requests) == 2
    for table, port in (("t", "9042"), ("u", "9042"), ("v", "9999")):
        result, event = TopicResult(f"events-ks.{table}"), Event("t", 0, 0, 0, None, None)
        tasks._run(plan, settings(table, cassandra_port=port), [event], [], True, result, version_requests=answers)
    mine, other = (
        version_requests.index(task_caches.sessions[settings("t", cassandra_port=p).server]) + 1
        for p in ("9042", "9999")
    )
    assert version_by_topic == {"events-ks.t": mine, "events-ks.u": mine, "events-ks.v": other}


def test_a_task_has_what_is_overdue_in_its_partitions_and_says_how_far_it_read() -> None:
    def event(partition: int, s: int) -> Event:
        return Event("t", partition, s, s * 1000, None, None)

    overdue = [WaitingChange(bytes([n]), event(n, 1), (), 1) for n in range(3)]
    gate_waits = GateWaits({0: {}}, overdue, 5.0)
    assert tasks._waits_of_partitions(gate_waits, {"0": 7, "2": 7}) == GateWaits({0: {}}, [overdue[0], overdue[2]], 5.0)
    assert tasks._waits_of_partitions(None, {"0": 7}) is NOTHING_WAITS
    outcome = BatchOutcome()
    tasks._note_times(outcome, [event(0, 10), event(0, 30), event(1, 12), event(1, 20)])
    assert (outcome.read_from, outcome.read_until) == (10.0, 20.0), "the partition that lags most"


def test_of_what_an_earlier_run_has_read_only_changes_go_on(task_caches: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """What names no change, as a snapshot's events, was done with, or its key is kept. What is broken is reported."""
    ran: list[list[Event]] = []
    task_caches.stage("t").run = lambda events, *_: ran.append(events) or BatchOutcome(len(events))
    of_log = encode(Change("0" * 32, str(uuid.UUID(int=1)), Scope.ROW))
    scope = encode(Change("0" * 32, str(uuid.UUID(int=1)), Scope.RANGE))
    values = [request(Scope.ROW, Origin.SNAPSHOT), request(Scope.PARTITION, Origin.REPAIR), of_log, scope, b"broken"]
    values += [encode(Change(None, "n", Scope.GAP)), encode(Change("no md5", "n", Scope.ROW, foreign=True))]
    events = [Event("t", p, offset, 0, b"k", value) for p in (0, 1) for offset, value in enumerate(values)]
    result = TopicResult("events-ks.t", read={0: len(values), 1: 1})
    plan: Any = SimpleNamespace(directory="plan", group="default", owner=None, exactly_once={})
    tasks._run(plan, settings("t"), events, [], True, result)
    gone = [(event.partition, event.offset) for event in events if event not in ran[0]]
    assert gone == [(0, 0), (0, 1), (0, 6), (1, 0)]
    assert result.outcome is not None
    assert (result.outcome.read, result.outcome.confirmed) == (len(events), len(gone))
    alone = TopicResult("events-ks.t", read={0: 1})
    tasks._run(plan, settings("t"), events[:1], [], True, alone)
    assert (alone.outcome, len(ran)) == (BatchOutcome(read=1, confirmed=1), 1), "there is nothing to run"


def test_a_table_that_can_not_be_prepared_leaves_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: its own run meets it again, and says so."""

    def fail(*_: object) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(tasks, "_stage_for", fail)
    monkeypatch.setattr(worker_process, "data_log_for", lambda *_: None)
    plan: Any = SimpleNamespace(directory="plan", group="new", connectors={"events-ks.t": settings("t")})
    results, events = {"events-ks.t": TopicResult("events-ks.t")}, {"events-ks.t": [object()]}
    assert tasks._preparation(plan, results, events, {}, "events-ks.t") is None  # type: ignore[arg-type]
