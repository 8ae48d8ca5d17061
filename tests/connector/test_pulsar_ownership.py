"""Which run owns the data topics on Pulsar: who takes over from whom, by the epochs of topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.config.state import marker_topic
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control import topic_ownership
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.topic_ownership import TopicOwnership
from helenus_connector.query import worker_process
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.epochs import EpochOwner, TermEpochs, first_epoch, taken_over


class Brokers:
    """The epochs of data topics, and the claims of them."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.claims: list[tuple[dict[str, int], set[str]]] = []
        self.error: HelenusError | None = None

    def next_epochs(self, _: object, topics: Collection[str], __: object) -> dict[str, int]:
        for topic in topics:
            self.epochs[topic] = self.epochs.get(topic, -1) + 1
        return {topic: self.epochs[topic] for topic in topics}

    def claim(
        self, _: object, epochs: Mapping[str, int], proven: Collection[str], __: object
    ) -> dict[str, HelenusError]:
        self.claims.append((dict(epochs), set(proven)))
        errors: dict[str, HelenusError] = {}
        for topic, epoch in epochs.items():
            if epoch < (current := self.epochs.get(topic, -1)):
                errors[topic] = taken_over(f"Current epoch: {current}, Producer epoch: {epoch}", topic)
            else:
                self.epochs[topic] = epoch
        if self.error is not None:
            raise self.error
        return errors


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers()
    monkeypatch.setattr(topic_ownership, "next_epochs", brokers.next_epochs)
    monkeypatch.setattr(topic_ownership, "claim_epochs", brokers.claim)
    return brokers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is, s."""
    now = [1.8e9]
    real = topic_ownership.time
    monkeypatch.setattr(
        topic_ownership,
        "time",
        SimpleNamespace(
            monotonic=lambda: now[0], strftime=real.strftime, gmtime=real.gmtime, time_ns=lambda: int(now[0] * 1e9)
        ),
    )
    return now


def worker(tmp_path: Path, **more: str) -> WorkerSettings:
    pulsar = {"log": "pulsar", "pulsar.service.url": "pulsar://h:1", "pulsar.admin.url": "http://h:1"}
    return WorkerSettings.from_properties({"checkpoint.dir": str(tmp_path), **pulsar, **more}, "worker")


def task(table: str, markers: bool = True) -> Any:
    data_topics = [f"data-{table}"] if markers else [f"data-{table}", marker_topic(f"data-{table}")]
    return SimpleNamespace(connector="c", events=f"events-{table}", data=data_topics[0], data_topics=data_topics)


def started(tmp_path: Path, *tasks: Any) -> TopicOwnership:
    ownership = TopicOwnership(worker(tmp_path), "default")
    ownership.begin_run(2)
    assert ownership.claim(tasks, 2) == {}
    return ownership


def epoch_of(ownership: TopicOwnership, table: str) -> int:
    assert isinstance(ownership.owner, EpochOwner)
    return ownership.owner.epochs[f"events-{table}"]


def test_a_run_claims_once_and_its_tasks_get_the_epochs(tmp_path: Path, brokers: Brokers) -> None:
    ownership = started(tmp_path, task("a"), task("b"))
    assert not ownership.owns(["events-a", "events-new"])
    assert ownership.claim([task("a"), task("b")], 20) == {}
    assert len(brokers.claims) == 1
    assert brokers.epochs == {f"data-{table}": epoch_of(ownership, table) for table in ("a", "b")}
    assert ownership.owns(["events-a", "events-b"])
    ownership.claim([task("a"), task("new")], 2)
    assert brokers.epochs["data-new"] == epoch_of(ownership, "new")
    assert f"checkpoint.dir {tmp_path}" in str(ownership.owner)


def test_a_later_run_has_a_higher_epoch(tmp_path: Path, brokers: Brokers) -> None:
    """A task of the run before may go on, on an executor that is cut off."""
    ownership = started(tmp_path, task("a"))
    first = epoch_of(ownership, "a")
    ownership.begin_run(2)
    assert not ownership.owns(["events-a"])
    assert ownership.claim([task("a")], 2) == {}
    assert first + 1 < epoch_of(ownership, "a") == brokers.epochs["data-a"]
    assert [proven for _, proven in brokers.claims] == [set(), set()], "those of the run before are none of this one"


def test_a_later_run_of_a_worker_takes_nothing_back(tmp_path: Path, brokers: Brokers, clock: list[float]) -> None:
    tasks = [task("a"), task("b")]
    first = started(tmp_path / "first", *tasks)
    clock[0] += 100
    second = started(tmp_path / "second", tasks[0])
    clock[0] += 100
    for _ in range(1000):
        first.begin_run(2)
        errors = first.claim(tasks, 2)
        assert {topic: error.kind for topic, error in errors.items()} == {"events-a": Kind.NOT_OWNER}
    assert "another worker writes these records: since 2027-01-15T08:01:40Z" in str(errors["events-a"])
    assert not first.owns(["events-a"])
    assert first.owns(["events-b"])
    first.forget("events-a")  # somebody restarted the task
    assert first.claim(tasks, 2) == {}
    assert first.owns(["events-a", "events-b"])
    second.begin_run(2)
    assert second.claim([tasks[0]], 2)["events-a"].kind is Kind.NOT_OWNER


def test_a_former_leader_of_a_group_takes_nothing(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor with its first claim of a topic, or when somebody restarts a task of it: only the group says who leads."""
    monkeypatch.setattr(topic_ownership, "next_epochs", None)
    terms = [TermEpochs(first_epoch(1_800_000_000_000 + number, 0)) for number in range(2)]
    first, second, other_query = (TopicOwnership(worker(tmp_path), "q", "g#1", terms[n]) for n in (0, 1, 1))
    for ownership in (first, second, other_query):
        ownership.begin_run(2)
    assert first.claim([task("a")], 2) == {}
    assert second.claim([task("a"), task("b")], 2) == {}
    for _ in range(3):
        errors = first.claim([task("b")], 2)
        assert errors["events-b"].kind is Kind.NOT_OWNER
        first.forget("events-b")
        first.begin_run(2)
    assert first.claim([task("a")], 2)["events-a"].kind is Kind.NOT_OWNER
    other_query.begin_run(2)
    assert other_query.claim([task("b")], 2) == {}, "a connector that moved to another query of the leader"


def test_a_restarted_task_is_proven_anew(tmp_path: Path, brokers: Brokers, clock: list[float]) -> None:
    """Within a run, too: the worker that had it meanwhile may write until it is fenced."""
    ownership = started(tmp_path, task("a"), task("b"))
    clock[0] += 1
    started(tmp_path, task("a"))
    ownership.forget("events-a")
    clock[0] += 1
    assert ownership.claim([task("a"), task("b")], 2) == {}
    assert brokers.claims[-1] == ({"data-a": epoch_of(ownership, "a")}, {"data-b"})


def test_a_worker_whose_clock_is_behind_takes_over(tmp_path: Path, brokers: Brokers, clock: list[float]) -> None:
    first = started(tmp_path / "first", task("a"))
    clock[0] -= 3600
    second = started(tmp_path / "second", task("a"))
    assert brokers.epochs["data-a"] == epoch_of(second, "a")
    for _ in range(1000):
        first.begin_run(2)
        assert first.claim([task("a")], 2).keys() == {"events-a"}
    second.begin_run(2)
    assert second.claim([task("a")], 2) == {}


def test_a_topic_that_is_made_anew_stays_ours(tmp_path: Path, brokers: Brokers, clock: list[float]) -> None:
    """It has forgotten its epoch, and a former worker still knows its own."""
    first = started(tmp_path / "first", task("a"))
    clock[0] += 1
    second = started(tmp_path / "second", task("a"))
    clock[0] += 1
    brokers.epochs.clear()
    second.begin_run(2)
    assert second.claim([task("a")], 2) == {}
    first.begin_run(2)
    assert first.claim([task("a")], 2)["events-a"].kind is Kind.NOT_OWNER
    brokers.epochs.clear()
    clock[0] += 1
    started(tmp_path / "third", task("a"))
    second.begin_run(2)
    assert second.claim([task("a")], 2)["events-a"].kind is Kind.NOT_OWNER


def test_who_was_there_before_is_logged_once(tmp_path: Path, brokers: Brokers, clock: list[float]) -> None:
    with capture_logs() as logs:
        started(tmp_path / "first", task("a"), task("b"))
    assert logs == []
    clock[0] += 5
    with capture_logs() as logs:
        second = started(tmp_path / "second", task("a"), task("b"))
        second.begin_run(2)
        second.claim([task("a"), task("b")], 2)
    fenced = [entry for entry in logs if entry["event"] == "writers.fenced"]
    assert [entry["former_worker"] for entry in fenced] == ["since 2027-01-15T08:00:00Z"]


def test_a_task_that_writes_nothing_learns_that_another_worker_has_its_records(
    tmp_path: Path, brokers: Brokers, clock: list[float]
) -> None:
    first = started(tmp_path / "first", task("a"))
    clock[0] += 10
    started(tmp_path / "second", task("a"))
    assert first.claim([task("a")], 2) == {}
    clock[0] += 3600
    assert first.claim([task("a")], 2)["events-a"].kind is Kind.NOT_OWNER
    assert brokers.claims[-1][1] == {"data-a"}, "and its batch need not wait"


def test_brokers_that_are_away_are_an_error(tmp_path: Path, brokers: Brokers) -> None:
    brokers.error = HelenusError(Kind.BROKER_UNREACHABLE, "Pulsar: the connection was closed", "h:1")
    ownership = TopicOwnership(worker(tmp_path), "default")
    ownership.begin_run(2)
    with pytest.raises(HelenusError, match="connection was closed"):
        ownership.claim([task("a")], 2)
    assert not ownership.owns(["events-a"])
    brokers.error = None
    with capture_logs() as logs:
        assert ownership.claim([task("a")], 2) == {}
    assert ownership.owns(["events-a"])
    assert logs == [], "the claim that failed was its own"


def test_delete_markers_of_their_own_topic_are_owned(tmp_path: Path, brokers: Brokers) -> None:
    ownership = started(tmp_path, task("a", markers=False))
    assert brokers.epochs == {
        "data-a": epoch_of(ownership, "a"),
        "markers-data-a": epoch_of(ownership, "a"),
    }


def test_events_may_come_from_kafka(tmp_path: Path, brokers: Brokers) -> None:
    more = {"log": "kafka", "data.log": "pulsar", "bootstrap.servers": "h:1"}
    ownership = TopicOwnership(worker(tmp_path, **more), "default")
    ownership.begin_run(2)
    assert ownership.claim([task("a")], 2) == {}
    assert brokers.epochs["data-a"] == epoch_of(ownership, "a")


class NotingLog:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def own(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def close(self) -> None:
        pass


def test_a_process_has_one_log_for_all_runs_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_reused", {})
    monkeypatch.setattr(worker_process, "data_log", lambda _: NotingLog())
    settings: list[Any] = [SimpleNamespace(events=f"events-{table}") for table in ("a", "b")]
    logs: list[Any] = []
    for run in range(2):
        plan: Any = SimpleNamespace(
            directory=str(tmp_path),
            group="default",
            worker=None,
            owner=EpochOwner("me", {"events-a": 10 + run, "events-b": 20 + run}),
        )
        logs += [worker_process.data_log_for(plan, table) for table in settings]
    worker_process.separate_data_log(plan, "events-b")
    logs.append(worker_process.data_log_for(plan, settings[1]))
    assert len({id(log) for log in logs}) == 1
    assert logs[0].epochs == [10, 20, 11, 21, 21]
    assert ("data log", str(tmp_path), "default", "events-b") in worker_process._reused


def test_a_part_of_a_plan_has_its_topics_epochs(tmp_path: Path) -> None:
    owner = EpochOwner("me", {"events-a": 1, "events-b": 2})
    plan = QueryPlan(worker(tmp_path), {}, str(tmp_path), owner=owner)
    assert plan.for_topics(["events-a"]).owner == EpochOwner("me", {"events-a": 1})
