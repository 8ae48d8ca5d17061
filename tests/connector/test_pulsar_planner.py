"""The planner on Pulsar against a broker that is made up: what it lets go of, and what one topic's trouble leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from patience import eventually
from sinks.test_pulsar_client import Broker, brokers  # noqa: F401
from structlog.testing import capture_logs

from helenus_connector.log import _pulsar_planner as pulsar_planner
from helenus_connector.log._pulsar_offsets import offset
from helenus_connector.log._pulsar_planner import PulsarPlanner
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.wire import command

METADATA, NOT_ALLOWED, NOT_FOUND = 1, 4, 11
LAST = offset(7, 9, 0) + 1


class Topics:
    """What a broker has: consumers by number, as topic and subscription, and topics that it refuses, by error."""

    def __init__(self, broker: Broker) -> None:
        self.consumers: dict[int, tuple[str, str]] = {}
        self.refused: dict[str, int] = {}
        self.whole: set[str] = set()  # without partitions
        self.acknowledged: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str]] = []
        self.closed = 0
        self.slow = False
        for name in ("partitioned_metadata", "subscribe", "last_id", "ack", "close_consumer"):
            broker.answers[name] = getattr(self, name)

    def open_consumers(self) -> set[tuple[str, str]]:
        """Topics with subscriptions; "" for one that leaves no trace."""
        return {(topic, "" if name.startswith("helenus-look-") else name) for topic, name in self.consumers.values()}

    def partitioned_metadata(self, request: Any) -> list[bytes]:
        topic = request.topic.rpartition("/")[2]
        partitions = {"partitions": int(topic not in self.whole)}
        error = {"error": self.refused[topic], "message": "no"} if topic in self.refused else partitions
        return [command("partitioned_metadata_response", request_id=request.request_id, **error)]

    def subscribe(self, request: Any) -> list[bytes]:
        topic = request.topic.rpartition("/")[2].removesuffix("-partition-0")
        self.consumers[request.consumer_id] = topic, request.subscription
        return [] if self.slow else [command("success", request_id=request.request_id)]

    def last_id(self, request: Any) -> list[bytes]:
        topic, group = self.consumers[request.consumer_id]
        self.asked.append((topic, group))
        if topic in self.refused:
            return [command("error", request_id=request.request_id, error=self.refused[topic], message="no")]
        last = {"ledgerId": 7, "entryId": 9}
        return [command("last_id_response", request_id=request.request_id, last_message_id=last)]

    def ack(self, request: Any) -> list[bytes]:
        self.acknowledged.append(self.consumers[request.consumer_id])
        return [command("ack_response", request_id=request.request_id)]

    def close_consumer(self, request: Any) -> list[bytes]:
        del self.consumers[request.consumer_id]
        self.closed += 1
        return [command("success", request_id=request.request_id)]


@pytest.fixture
def topics(brokers: list[Broker]) -> Topics:  # noqa: F811
    return Topics(brokers[0])


@pytest.fixture
def planner(brokers: list[Broker], topics: Topics) -> Iterator[PulsarPlanner]:  # noqa: F811
    planner = PulsarPlanner(PulsarConfig(brokers[0].url))
    yield planner
    planner.close()


def test_unused_consumers_are_closed(planner: PulsarPlanner, topics: Topics) -> None:
    """An exclusive consumer keeps others, and who would delete the subscription, out."""
    for group, topic in (("g", "a"), ("g", "b"), ("h", "c")):
        planner.gone(group, {topic: {"0": 0}})
        planner.commit(group, {topic: {"0": LAST}})
    planner.latest({"a": 1, "b": 1, "c": 1})
    everything = {("a", "g"), ("b", "g"), ("c", "h"), ("a", ""), ("b", ""), ("c", "")}
    assert topics.open_consumers() == everything
    planner.keep({"g": ["a", "b"], "h": ["c"]})
    assert topics.open_consumers() == everything
    planner.keep({"g": ["a"], "i": ["c"]})
    assert topics.open_consumers() == {("a", "g"), ("a", ""), ("c", "")}
    planner.keep({})
    assert topics.open_consumers() == set()
    # It is as if nothing had been asked before: the subscription may have been deleted meanwhile.
    topics.acknowledged.clear()
    planner.gone("g", {"a": {"0": 0}})
    planner.commit("g", {"a": {"0": LAST}})
    assert topics.open_consumers() == {("a", "g")}
    assert topics.acknowledged == [("a", "g")]


def test_a_topic_refused_later_is_logged_once_and_left_out(planner: PulsarPlanner, topics: Topics) -> None:
    """As when a permission is revoked."""
    both = {"a": 1, "b": 1}
    ends = {"0": LAST}
    with capture_logs() as logs:
        for _ in range(2):
            assert planner.latest(both) == {"a": ends, "b": ends}
            topics.refused = {"b": NOT_ALLOWED}
            assert planner.latest(both) == {"a": ends}
            assert planner.partitions(["a", "b"]) == {"a": 1, "b": 0}
            assert planner.latest(both) == {"a": ends}
            topics.refused = {}
    line = {"event": "source.refused", "topic": "b", "error": "Pulsar: no", "log_level": "warning"}
    assert logs == [line, line]
    topics.refused = {"a": NOT_ALLOWED, "b": NOT_ALLOWED}
    for ask in (lambda: planner.latest(both), lambda: planner.partitions(["b"])):
        with pytest.raises(HelenusError) as error:
            ask()
        assert error.value.kind is Kind.BROKER_REFUSED


def test_a_topic_that_is_counted_again_is_followed_as_before(planner: PulsarPlanner, topics: Topics) -> None:
    """Once in a while all are. One that was deleted meanwhile may be another when it is there again."""
    first_asked_alone: list[bool] = []
    for refused in ({}, {}, {"a": NOT_FOUND}):
        topics.refused = refused
        assert planner.partitions(["a", "b"]) == {"a": int(not refused), "b": 1}
        topics.refused = {}
        topics.asked.clear()
        planner.gone("g", {"a": {"0": 0}})
        first_asked_alone.append(topics.asked == [("a", "g")])
    topics.refused = {"a": NOT_FOUND}
    assert planner.latest({"a": 1, "b": 1}) == {"b": {"0": LAST}}
    topics.refused = {}
    topics.asked.clear()
    planner.gone("g", {"a": {"0": 0}})
    assert [*first_asked_alone, topics.asked == [("a", "g")]] == [True, False, True, True]


def test_an_uncountable_topic_without_partitions_has_none(planner: PulsarPlanner, topics: Topics) -> None:
    topics.whole = {"a"}
    planner.partitions(["a", "b"])
    topics.refused = {"a": NOT_ALLOWED}
    planner.partitions(["a", "b"])
    assert planner._unpartitioned == {"a"}


def test_a_commit_refused_for_one_topic_succeeds_for_the_others(planner: PulsarPlanner, topics: Topics) -> None:
    for wrong in (-1, 1 << 128):
        with pytest.raises(ValueError, match="out of range"):
            planner.commit("g", {"b": {"0": wrong}, "a": {"0": LAST}})
    topics.refused = {"b": METADATA}
    with pytest.raises(HelenusError):
        planner.commit("g", {"b": {"0": LAST}, "a": {"0": LAST}})
    assert topics.acknowledged == [("a", "g")], "what is done is not done again"
    topics.refused = {}
    planner.commit("g", {"b": {"0": LAST}, "a": {"0": LAST}})
    assert topics.acknowledged == [("a", "g"), ("b", "g")]


def test_a_late_consumer_is_closed(planner: PulsarPlanner, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulsar_planner, "TIMEOUT_S", 0.5)
    topics.slow = True
    with pytest.raises(HelenusError, match="does not answer"):
        planner.commit("g", {"a": {"0": LAST}})
    eventually(lambda: topics.closed, every=0.02)
    assert topics.open_consumers() == set()
