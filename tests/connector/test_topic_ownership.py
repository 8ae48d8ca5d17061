"""Which run owns the records of its tables: who takes over from whom, and what the brokers have to grant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control import topic_ownership
from helenus_connector.control.topic_ownership import TopicOwnership
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.open_transactions import HeldBack
from helenus_sinks.kafka.owners import Claim, Made, RecordsOwner, Unavailable


class Brokers:
    """The notes, as `claim` keeps them."""

    def __init__(self) -> None:
        self.owners: dict[Made, RecordsOwner] = {}
        self.claims: list[tuple[list[Made], RecordsOwner]] = []
        self.error: HelenusError | None = None
        self.missing: set[str] = set()
        self.held_back: list[HeldBack] = []
        self.asked_topics: list[set[str]] = []

    def claim(
        self, _: object, claimed: Collection[Made], owner: RecordsOwner, expected: Mapping[Made, str], __: object
    ) -> Claim:
        if self.error is not None:
            raise self.error
        self.claims.append((list(claimed), owner))
        present = [made for made in claimed if made.topic not in self.missing]
        others = {made: self.owners[made] for made in present if self.owners.get(made, owner).run != owner.run}
        lost = {made: other for made, other in others.items() if not other.run.startswith(expected.get(made, ""))}
        self.owners.update((made, owner) for made in present if made not in lost)
        former = {made: other for made, other in others.items() if made not in lost}
        return Claim(former, lost, frozenset(self.missing & {made.topic for made in claimed}))

    def find_held_back(self, _: object, topics: set[str], __: float) -> list[HeldBack]:
        if self.error is not None:
            raise self.error
        self.asked_topics.append(topics)
        return self.held_back


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers()
    monkeypatch.setattr(topic_ownership, "claim", brokers.claim)
    monkeypatch.setattr(topic_ownership, "find_held_back", brokers.find_held_back)
    return brokers


def worker(tmp_path: Path, **more: str) -> WorkerSettings:
    properties = {"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path), **more}
    return WorkerSettings.from_properties(properties, "worker")


def task(table: str, connector: str = "c") -> Any:
    return SimpleNamespace(connector=connector, events=f"events-{table}", data_topics=[f"data-{table}"])


def started(tmp_path: Path, *tasks: Any) -> TopicOwnership:
    ownership = TopicOwnership(worker(tmp_path), "default")
    ownership.begin_run(2)
    assert ownership.claim(tasks, 2) == {}
    return ownership


def test_a_run_claims_once(tmp_path: Path, brokers: Brokers) -> None:
    tasks = [task("a"), task("b"), task("a2", "d")]
    ownership = started(tmp_path, *tasks)
    assert [claimed for claimed, _ in brokers.claims] == [
        [("c", "events-a"), ("c", "events-b"), ("d", "events-a2")],
    ]
    ownership.claim(tasks, 2)
    assert len(brokers.claims) == 1
    assert ownership.owns(["events-a", "events-a2"])
    assert not ownership.owns(["events-a", "events-new"])
    ownership.claim([*tasks, task("new")], 2)
    assert [claimed for claimed, _ in brokers.claims[1:]] == [[("c", "events-new")]]
    assert ownership.owns(["events-a", "events-new"])


def test_ids_are_of_one_run(tmp_path: Path, brokers: Brokers) -> None:
    ownership = started(tmp_path, task("a"))
    first = ownership.owner
    ownership.begin_run(8)
    assert not ownership.owns(["events-a"])
    second = ownership.owner
    assert first is not None
    assert second is not None
    assert first.run.startswith("helenus-default-")
    assert (first.run[-2:], second.run) == ("-1", first.run[:-1] + "2")
    assert (first.producers, second.producers) == (4, 16)
    assert ownership.claim([task("a")], 8) == {}


def test_a_claim_that_failed_after_its_note_is_no_other_worker(tmp_path: Path, brokers: Brokers) -> None:
    """As when the answer to a commit is lost: the note is of a run that never was."""
    ownership = started(tmp_path, task("a"))
    ownership.begin_run(2)
    assert ownership.owner is not None
    brokers.owners[Made("c", "events-a")] = ownership.owner
    brokers.error = HelenusError(Kind.BROKER_UNREACHABLE, "Kafka: timed out", "h:1")
    with pytest.raises(HelenusError, match="timed out"):
        ownership.claim([task("a")], 2)
    brokers.error = None
    ownership.begin_run(2)
    assert ownership.claim([task("a")], 2) == {}
    assert ownership.owns(["events-a"])


def test_a_later_run_of_a_worker_takes_nothing_back(tmp_path: Path, brokers: Brokers) -> None:
    tasks = [task("a"), task("b")]
    first = started(tmp_path / "first", *tasks)
    started(tmp_path / "second", tasks[0])
    first.begin_run(2)
    errors = first.claim(tasks, 2)
    assert {topic: error.kind for topic, error in errors.items()} == {"events-a": Kind.NOT_OWNER}
    assert f"checkpoint.dir {tmp_path / 'second'}" in str(errors["events-a"])
    assert not first.owns(["events-a"])
    assert first.owns(["events-b"])
    first.forget("events-a")  # somebody restarted the task
    assert first.claim(tasks, 2) == {}
    assert first.owns(["events-a"])


def test_a_topic_that_left_its_query_comes_back(tmp_path: Path, brokers: Brokers) -> None:
    """Its connector was moved to another query.group of the same worker, and back."""
    tasks = [task("a"), task("b")]
    first = started(tmp_path, *tasks)
    first.forget_others(["events-b"])
    started(tmp_path, tasks[0])
    first.forget_others(["events-a", "events-b"])
    assert not first.owns(["events-a"])
    assert first.owns(["events-b"])
    assert first.claim(tasks, 2) == {}
    assert first.owns(["events-a"])
    assert [len(claimed) for claimed, _ in brokers.claims] == [2, 1, 1]


def test_who_was_there_before_is_logged_once(tmp_path: Path, brokers: Brokers) -> None:
    started(tmp_path / "first", task("a"), task("b"))
    with capture_logs() as logs:
        second = started(tmp_path / "second", task("a"), task("b"))
        second.begin_run(2)
        second.claim([task("a"), task("b")], 2)
    fenced = [entry for entry in logs if entry["event"] == "writers.fenced"]
    assert len(fenced) == 1
    assert f"checkpoint.dir {tmp_path / 'first'}" in fenced[0]["former_worker"]


def test_what_a_former_owner_keeps_from_readers_is_reported(tmp_path: Path, brokers: Brokers) -> None:
    brokers.held_back = [HeldBack("data-a", 1, 2021, 2990)]
    with capture_logs() as logs:
        started(tmp_path, task("a"))
    assert (brokers.asked_topics, logs) == ([], []), "nobody had it"
    with capture_logs() as logs:
        ownership = started(tmp_path, task("a"), task("b"))
    assert brokers.asked_topics == [{"data-a"}], "nobody had the other one"
    (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (entry["event"], entry["topic"], entry["partition"], entry["offset"]) == (
        "topic.held_back",
        "data-a",
        1,
        2021,
    )
    assert "kafka-transactions.sh abort" in entry["advice"]
    ownership.claim([task("a")], 20)
    assert len(brokers.asked_topics) == 1, "its own transactions may be open"


def test_more_executors_have_more_ids_before_they_write(tmp_path: Path, brokers: Brokers) -> None:
    ownership = started(tmp_path, task("a"))
    assert ownership.claim([task("a")], 20) == {}
    assert [owner.producers for _, owner in brokers.claims] == [4, 40]
    assert len({owner.run for _, owner in brokers.claims}) == 1
    ownership.claim([task("a")], 1)
    assert len(brokers.claims) == 2, "fewer need no claim"


def test_owners_claim_again_before_kafka_forgets_them(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e6]
    monkeypatch.setattr(
        topic_ownership, "time", SimpleNamespace(monotonic=lambda: now[0], strftime=lambda *_: "", gmtime=lambda: None)
    )
    monkeypatch.setattr(topic_ownership.random, "uniform", lambda shortest, _: shortest)
    ownership = started(tmp_path, task("a"))
    for minutes, claims in ((29, 1), (31, 2), (29, 2), (60 * 24 * 30, 3)):
        now[0] += 60 * minutes
        ownership.claim([task("a")], 2)
        assert len(brokers.claims) == claims
    ownership.claim_again("events-a")  # its batch failed: the topic may be another one now
    assert not ownership.owns(["events-a"])
    ownership.claim([task("a")], 2)
    assert len(brokers.claims) == 4


def test_a_login_without_rights_goes_on_unfenced(tmp_path: Path, brokers: Brokers) -> None:
    brokers.error = Unavailable(Kind.BROKER_REFUSED, "Kafka: Transactional Id authorization failed", "h:1")
    ownership = TopicOwnership(worker(tmp_path), "default")
    with capture_logs() as logs:
        for _ in range(2):
            ownership.begin_run(2)
            assert ownership.claim([task("a")], 2) == {}
            assert ownership.owner is None
            assert ownership.owns(["events-a"])
    assert [entry["event"] for entry in logs] == ["writers.not_fenced"]
    assert "Transactional Id authorization failed" in logs[0]["reason"]
    brokers.error = None
    ownership.begin_run(2)  # it was granted meanwhile
    ownership.claim([task("a")], 2)
    assert ownership.owner is not None


def test_brokers_that_are_away_are_an_error(tmp_path: Path, brokers: Brokers) -> None:
    brokers.error = HelenusError(Kind.BROKER_UNREACHABLE, "Kafka: timed out", "h:1")
    ownership = TopicOwnership(worker(tmp_path), "default")
    ownership.begin_run(2)
    with pytest.raises(HelenusError, match="timed out"):
        ownership.claim([task("a")], 2)
    assert not ownership.owns(["events-a"])


def test_a_topic_that_is_gone_is_its_own_tables_trouble(tmp_path: Path, brokers: Brokers) -> None:
    brokers.missing = {"events-b"}
    ownership = TopicOwnership(worker(tmp_path), "default")
    ownership.begin_run(2)
    errors = ownership.claim([task("a"), task("b"), task("c")], 2)
    assert {topic: error.kind for topic, error in errors.items()} == {"events-b": Kind.TOPIC_MISSING}
    assert ownership.owns(["events-a", "events-c"])
    assert not ownership.owns(["events-b"])


PULSAR = {"pulsar.service.url": "pulsar://h:1", "pulsar.admin.url": "http://h:1"}


@pytest.mark.parametrize(
    "more",
    [
        {"fence.writers": "false"},
        {"log": "pulsar", "fence.writers": "false", **PULSAR},
        {"log": "pulsar", "data.log": "kafka", **PULSAR},
    ],
)
def test_where_nothing_is_fenced(tmp_path: Path, brokers: Brokers, more: dict[str, str]) -> None:
    ownership = TopicOwnership(worker(tmp_path, **more), "default")
    ownership.begin_run(2)
    assert ownership.owner is None
    assert ownership.claim([task("a")], 2) == {}
    assert brokers.claims == []
