"""Positions that are committed for dashboards: each group's newest, now and then, whatever the broker answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from patience import eventually
from structlog.testing import capture_logs

import helenus_agent
import helenus_connector
import helenus_sinks
from helenus_connector.log import _kafka_commits
from helenus_connector.log._kafka_commits import GroupCommits
from helenus_connector.log._kafka_planner import KafkaPlanner
from helenus_schemas.errors import HelenusError, Kind

Committed = tuple[str, dict[str, int]]


class Broker:
    """What groups were given, in order; it refuses if it is to, and answers when it may."""

    def __init__(self) -> None:
        self.given: list[Committed] = []
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def commit(self, _: Mapping[str, str], group: str, positions: Sequence[TopicPartition]) -> None:
        self.given.append((group, {f"{p.topic}/{p.partition}": p.offset for p in positions}))
        self.may_answer.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker()
    monkeypatch.setattr(_kafka_commits, "commit_to_group", broker.commit)
    monkeypatch.setattr(_kafka_commits, "_EVERY_S", 0.01)
    yield broker
    broker.may_answer.set()


def settle(broker: Broker, commits: GroupCommits, expected: list[Committed]) -> None:
    eventually(lambda: broker.given == expected and not commits._wanted, lambda: str(broker.given), 0.01)
    broker.given.clear()


def test_a_group_is_given_only_the_positions_that_moved(broker: Broker) -> None:
    """A request for each of hundreds of groups, after every batch, would cost the broker more than the batch."""
    planner = KafkaPlanner({"bootstrap.servers": "127.0.0.1:1"})
    commits = planner._commits
    planner.commit("g", {"a": {"0": 1, "1": 2}, "b": {"0": 3}})
    settle(broker, commits, [("g", {"a/0": 1, "a/1": 2, "b/0": 3})])
    planner.commit("g", {"a": {"0": 1, "1": 2}, "b": {"0": 3}})
    planner.commit("g", {"a": {"0": 1, "1": 2}, "b": {"0": 4}})
    settle(broker, commits, [("g", {"b/0": 4})])
    planner.close()


def test_batches_do_not_wait_for_an_answer_and_only_the_newest_is_sent(broker: Broker) -> None:
    commits = GroupCommits({})
    broker.may_answer.clear()
    commits.put("g", {"a": {"0": 1}})
    eventually(lambda: broker.given, every=0.01)
    for offset in range(2, 100):
        commits.put("g", {"a": {"0": offset}})
    commits.put("other", {"b": {"0": 7}})
    broker.may_answer.set()
    eventually(lambda: len(broker.given) == 3, every=0.01)
    assert broker.given[0] == ("g", {"a/0": 1})
    assert sorted(broker.given[1:]) == [("g", {"a/0": 99}), ("other", {"b/0": 7})]
    commits.close()


@pytest.mark.parametrize("error", [HelenusError(Kind.BROKER_UNREACHABLE, "it is away"), OverflowError("too large")])
def test_what_was_refused_is_committed_again_and_a_reason_is_logged_once(broker: Broker, error: Any) -> None:
    commits = GroupCommits({})
    broker.error = error
    with capture_logs() as logs:
        commits.put("g", {"a": {"0": 1}, "b": {"0": 5}})
        eventually(lambda: len(broker.given) > 2, every=0.01)
        commits.put("g", {"a": {"0": 2}})
        broker.error = None
        eventually(lambda: not commits._wanted and commits._committed, every=0.01)
    assert broker.given[-1] == ("g", {"a/0": 2, "b/0": 5})
    assert [entry["event"] for entry in logs] == ["source.commit_failed"]
    commits.close()


def test_a_thousand_groups_leave_most_of_the_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit takes a client of its own. One that waits for a broker, as long as it likes, takes no CPU."""
    pauses: list[float] = []
    commits = GroupCommits({})
    steps = iter([0.0, 0.02, 0.1, 0.1, 60.0, 60.1, 60.1, 60.5, 61.0])  # begin, due, end of each
    monkeypatch.setattr(_kafka_commits.time, "monotonic", lambda: next(steps))
    monkeypatch.setattr(_kafka_commits.time, "sleep", pauses.append)
    monkeypatch.setattr(commits, "_next", lambda: ("g", {"a": {"0": 1}}) if len(pauses) < 3 else None)
    commits._run()
    assert pauses == [pytest.approx(0.9), 5.0, 5.0]


def test_nothing_is_committed_once_it_is_closed(broker: Broker) -> None:
    commits = GroupCommits({})
    commits.close()
    commits.put("g", {"a": {"0": 1}})
    assert commits._thread is None
    assert not broker.given


@pytest.mark.parametrize("package", [helenus_agent, helenus_connector, helenus_sinks])
def test_nobody_asks_for_a_group_by_the_admin_client(package: ModuleType) -> None:
    """It ends the process where the connection to the group's coordinator is cut (librdkafka's issue 4605)."""
    of_groups = re.compile(r"\.\w*consumer_group(s|_offsets)\(")
    folder = Path(str(package.__file__)).parent
    assert not [path for path in folder.rglob("*.py") if of_groups.search(path.read_text())]
