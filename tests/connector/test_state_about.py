"""What a state is of, and which table a query that keeps rows runs."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.status import Task
from helenus_connector.group.state_directories import StateHome
from helenus_connector.journal._positions import BatchMark, GroupPosition
from helenus_connector.journal.batch_marks import BatchMarks, find_marks
from helenus_connector.state.rows import _identity
from helenus_connector.state.rows import query as merger_module
from helenus_connector.state.rows._identity import StateIdentity
from helenus_connector.state.rows.query import RowsQuery
from helenus_connector.testing.broker import MemoryPlanner
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable
from helenus_sinks.kafka.owners import RecordsOwner

OF = StateIdentity("ks.t", "events-ks.t", (4, 7, 9), 2)
LEAST = {"bootstrap.servers": "k:9092", "checkpoint.dir": "/tmp/none"}


def refused(checkpoint: Path, why: str) -> None:
    with pytest.raises(HelenusError, match=why) as error:
        _identity.load_identity(checkpoint)
    assert error.value.kind is Kind.STATE
    assert f"delete {checkpoint}" in str(error.value)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    assert _identity.load_identity(tmp_path) is None
    _identity.save_identity(tmp_path, OF)
    assert _identity.load_identity(tmp_path) == OF


def test_a_state_without_pages_is_no_fresh_start(tmp_path: Path) -> None:
    """As builds before pages left it: all of it would seem to be missing."""
    durable.save(tmp_path / "state.about", asdict(OF), 1, "what the state is of", "state.about-saved")
    refused(tmp_path, "it is of version 1")


def test_a_checkpoint_that_is_not_whole_is_no_fresh_start(tmp_path: Path) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").touch()
    refused(tmp_path, "of a query without state")
    _identity.save_identity(tmp_path, OF)
    refused(tmp_path, "the state is gone")
    (tmp_path / "state").mkdir()
    assert _identity.load_identity(tmp_path) == OF
    file = tmp_path / "state.about"
    file.write_bytes(file.read_bytes().replace(b"ks.t", b"ks.u"))
    refused(tmp_path, "this file is damaged")


@pytest.mark.parametrize(
    ("table", "topic", "partitions", "why"),
    [
        ("ks.u", "events-ks.t", 3, "the state is of ks.t and events-ks.t, not of ks.u"),
        ("ks.t", "other", 3, "not of ks.t and other"),
        ("ks.t", "events-ks.t", 4, "has 4 partitions, and had 3"),
    ],
)
def test_state_of_something_else(tmp_path: Path, table: str, topic: str, partitions: int, why: str) -> None:
    _identity.check_identity(OF, "ks.t", "events-ks.t", 3, tmp_path)
    with pytest.raises(HelenusError, match=why):
        _identity.check_identity(OF, table, topic, partitions, tmp_path)


def test_a_group_has_one_table(tmp_path: Path) -> None:
    properties = {"name": "n", "keyspace": "ks", "output.format": "json", "state": "rows", "query.group": "g"}
    tasks = [
        Task(n, ConnectorSettings.from_properties({**properties, "table": name}, "test")) for n, name in enumerate("ab")
    ]

    def running(group: str, now: float) -> dict[str, Task]:
        assert group == "g"
        return {task.settings.events: task for task in tasks if task.error is None}

    connectors: Any = SimpleNamespace(running_tasks=running, term="")
    snapshots: Any = SimpleNamespace()
    merger = RowsQuery(WorkerSettings.from_properties(LEAST, "worker"), connectors, "g", tmp_path, snapshots)
    assert merger._find_task() is tasks[0]
    assert tasks[0].error is None
    assert "has one table, and g has ks.a already" in str(tasks[1].error)
    assert merger._find_task() is tasks[0]


@pytest.mark.parametrize("mode", ["initial", "never"])
def test_a_state_that_begins_needs_the_rows_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """An earlier snapshot fed no state. Where none is wanted, the rows of before are said to be unknown."""
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "state": "rows"}
    task = Task(0, ConnectorSettings.from_properties({**properties, "query.group": "g", "snapshot.mode": mode}, "test"))
    settings = WorkerSettings.from_properties({**LEAST, "checkpoint.dir": str(tmp_path)}, "worker")
    broker = SimpleNamespace(partitions=lambda topics: dict.fromkeys(topics, 3), close=lambda: None)
    monkeypatch.setattr(merger_module, "planner", lambda _: broker)
    monkeypatch.setattr(merger_module._identity, "places", lambda *_: (0, 1, 2))
    began: list[Task] = []
    parts: tuple[Any, Any] = (
        SimpleNamespace(term=""),
        SimpleNamespace(renew=began.append, has_all=lambda _: mode == "never"),
    )
    merger = RowsQuery(settings, parts[0], "g", tmp_path, parts[1])
    monkeypatch.setattr(merger_module, "settled_task_slots", lambda *_: 2)
    spark = SimpleNamespace()
    with capture_logs() as logs:
        merger._check_identity(spark, task)
    assert began == [task]
    assert [log["event"] for log in logs] == (["state.rows_unknown"] if mode == "never" else [])
    merger._check_identity(spark, task)
    assert began == [task], "once"


def test_all_rows_are_known_when_what_the_snapshot_read_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies on the topic behind the keys that were read. Until then the record of a change would lack columns."""
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "state": "rows"}
    task = Task(0, ConnectorSettings.from_properties({**properties, "query.group": "g"}, "test"))
    settings = WorkerSettings.from_properties({**LEAST, "checkpoint.dir": str(tmp_path)}, "worker")
    topic, is_complete, read = task.settings.events, False, {"0": 10, "1": 10}
    broker = MemoryPlanner()
    broker.ends = {topic: {"0": 10, "1": 13}}
    monkeypatch.setattr(merger_module, "planner", lambda _: broker)
    monkeypatch.setattr(merger_module, "committed", lambda _: {topic: read})
    parts: tuple[Any, Any] = SimpleNamespace(term=""), SimpleNamespace(has_all=lambda _: is_complete)
    merger = RowsQuery(settings, parts[0], "g", tmp_path, parts[1])
    identity = StateIdentity("ks.t", topic, (0, 1), 2, name="5ba1")
    _identity.save_identity(tmp_path / "g", identity)
    assert not merger._advance_proof(task, identity)
    is_complete = True
    broker.refused[topic] = HelenusError(Kind.BROKER_UNREACHABLE, "away")
    assert not merger._advance_proof(task, identity)
    broker.refused.clear()
    assert not merger._advance_proof(task, identity)
    read["1"] = 12
    broker.ends[topic]["1"] = 99  # what comes later need not be waited for
    assert not merger._advance_proof(task, identity)
    read["1"] = 13
    assert merger._advance_proof(task, identity)
    whole = _identity.load_identity(tmp_path / "g")
    assert whole == StateIdentity("ks.t", topic, (0, 1), 2, is_whole=True, name="5ba1")
    assert not merger._advance_proof(task, whole)
    is_complete = False  # the connector was deleted, and is there again
    assert merger._check_identity(SimpleNamespace(), task) == _identity.load_identity(tmp_path / "g") == identity
    _identity.save_identity(tmp_path / "g", dataclasses.replace(identity, name=""))  # of a version before
    named = merger._check_identity(SimpleNamespace(), task)
    assert named.name
    assert _identity.load_identity(tmp_path / "g") == named


def test_a_state_that_another_one_has_overtaken(tmp_path: Path) -> None:
    """In some partitions: of the others, the last batch that was published is its own."""

    def marks(state: str, **states: str) -> BatchMarks:
        names = {name[1:]: BatchMark(other, 0) for name, other in states.items()}
        positions = {OF.topic: {number: GroupPosition(100, mark=mark) for number, mark in names.items()}}
        return find_marks(positions, state, tmp_path)

    begun = _identity.note_former(tmp_path, dataclasses.replace(OF, name="b"), {"a"})
    assert _identity.load_identity(tmp_path) == begun == dataclasses.replace(OF, name="b", former=("a",))
    assert not _identity.is_overtaken(tmp_path, begun, marks("b", p0="a", p1="c")), "it begins: all is read anyway"
    begun = _identity.note_former(tmp_path, begun, {"a", "c"})
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    assert not _identity.is_overtaken(tmp_path, begun, marks("b", p0="b", p1="a", p2="c")), "they are of before"
    assert not _identity.is_overtaken(tmp_path, begun, marks("b", p0="a")), "nothing of its first batch was published"
    overtaken = marks("b", p0="b", p1="d")
    assert _identity.is_overtaken(tmp_path, begun, overtaken)
    assert _identity.note_former(tmp_path, begun, overtaken.other_states) == begun
    # Of a version before, it is not known which states were before: those that are there now, at the first start.
    former = dataclasses.replace(begun, former=None)
    assert not _identity.is_overtaken(tmp_path, former, overtaken)
    assert _identity.note_former(tmp_path, former, overtaken.other_states).former == ("d",)


@pytest.mark.parametrize("is_behind", [False, True])
def test_in_a_group_a_state_is_copied_once_its_records_are_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    """Or its former leader could publish what the copy has not. The group's topic says that it is here once it is known
    to have all that is published; for a while a file system may not show that yet.
    """
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "state": "rows"}
    once = {"query.group": "g", "exactly.once.support": "required"}
    task = Task(0, ConnectorSettings.from_properties({**properties, **once}, "test"))
    settings = WorkerSettings.from_properties({**LEAST, "checkpoint.dir": str(tmp_path)}, "worker")
    steps: list[str] = []
    identity = StateIdentity("ks.t", task.settings.events, (0, 1), 2, name="5ba1")
    _identity.save_identity(tmp_path / "copy", identity)

    def step(name: str, answer: Any = None) -> Any:
        return lambda *_: steps.append(name) or answer

    held_positions = SimpleNamespace(spark_checkpoint=tmp_path)
    connectors: Any = SimpleNamespace(term="g#2", held_positions=lambda _: held_positions)
    home = StateHome(tmp_path / "copy", is_copy=True)
    states: Any = SimpleNamespace(take=step("take", home), keep=step("keep"), is_shared=True)
    snapshots: Any = SimpleNamespace(has_all=lambda _: True)
    query = RowsQuery(settings, connectors, "g", tmp_path, snapshots, states)
    claim = {"begin_run": step("begin"), "claim": step("claim", {}), "owner": RecordsOwner("r", 4, "who")}
    monkeypatch.setattr(query, "_ownership", SimpleNamespace(**claim))
    broker = SimpleNamespace(partitions=lambda topics: dict.fromkeys(topics, 2), close=lambda: None)
    monkeypatch.setattr(merger_module, "planner", lambda _: broker)
    monkeypatch.setattr(merger_module, "task_slots", lambda _: 2)
    marks = BatchMarks("5ba1", None, frozenset(), newest=9 if is_behind else None)
    monkeypatch.setattr(merger_module, "read_marks", step("marks", marks))
    monkeypatch.setattr(query, "begin_in_turn", step("start"))
    if is_behind:
        with pytest.raises(HelenusError, match="copied once more") as error:
            query._run_query(None, task)
        assert error.value.kind is Kind.BATCH_FAILED
        monkeypatch.setattr(merger_module, "_LATE_S", 0.0)
        with pytest.raises(HelenusError, match="its state is an older one") as error:
            query._run_query(None, task)
        assert error.value.kind is Kind.STATE
        assert "keep" not in steps
        return
    query._run_query(None, task)
    assert steps == ["begin", "claim", "take", "claim", "marks", "keep", "start"]
    assert query.checkpoint == held_positions.spark_checkpoint == home.directory
