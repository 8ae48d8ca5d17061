"""Who may append to a topic on Pulsar, with brokers that keep epochs as Pulsar does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from patience import eventually
from sinks.test_pulsar_client import Broker, brokers  # noqa: F401

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar import _session, owners
from helenus_sinks.pulsar import log as log_module
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.epochs import EpochOwner, TakenOver, TermEpochs, first_epoch, run_epoch, since, term_epoch
from helenus_sinks.pulsar.log import PulsarLog
from helenus_sinks.pulsar.wire import EXCLUSIVE_WITH_FENCING, SHARED, command

SCHEMA = DeclaredSchemas(None, '{"type":"record","name":"t","fields":[]}')
PERSISTENCE, AUTHORIZATION, NOT_READY, TOPIC_NOT_FOUND = 2, 4, 6, 11
PRODUCER_BUSY, INCOMPATIBLE_SCHEMA, FENCED = 16, 18, 25
NOW_MS = 1_800_000_000_000


class Epochs:
    """The epochs of partitions. `refusals` are errors of topics, by name: how many times each, and its code."""

    def __init__(self, broker: Broker, topics: dict[str, int]) -> None:
        self.config = PulsarConfig(broker.url)
        self.current: dict[str, int] = {}
        self.opened: list[tuple[str, int | None]] = []
        self.refusals: dict[str, list[int]] = {}
        self.on_open: Callable[[str, int | None], None] = lambda name, epoch: None
        self._broker = broker
        self._topics = topics
        broker.answers |= {
            "producer": self.open,
            "partitioned_metadata": self._count,
            "schema": lambda request: [command("schema_response", request_id=request.request_id, schema_version=b"1")],
        }

    def _count(self, request: Any) -> list[bytes]:
        count = self._topics.get(request.topic.rpartition("/")[2])
        if count is None:
            answer = {"error": TOPIC_NOT_FOUND, "message": "no such topic", "response": 1}
        else:
            answer = {"partitions": count, "response": 0}
        return [command("partitioned_metadata_response", request_id=request.request_id, **answer)]

    def open(self, request: Any) -> list[bytes] | None:
        name = request.topic.rpartition("/")[2]
        if codes := self.refusals.get(name):
            code = codes.pop(0)
            return [command("error", request_id=request.request_id, error=code, message="not now")]
        if request.producer_access_mode == SHARED:
            return None
        assert request.producer_access_mode == EXCLUSIVE_WITH_FENCING
        epoch = request.topic_epoch if request.HasField("topic_epoch") else None
        self.opened.append((name, epoch))
        current = self.current.get(name, -1)
        if epoch is not None and epoch < current:
            message = f"Topic epoch has already moved. Current epoch: {current}, Producer epoch: {epoch}"
            return [command("error", request_id=request.request_id, error=FENCED, message=message)]
        self.current[name] = current + 1 if epoch is None else epoch
        self.on_open(name, epoch)
        answer = {"producer_name": "p", "topic_epoch": self.current[name]}
        return [command("producer_success", request_id=request.request_id, **answer)]


@pytest.fixture
def epochs(brokers: list[Broker]) -> Epochs:  # noqa: F811
    return Epochs(brokers[0], {"a": 2, "b": 1, "plain": 0})


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_SETTLE_S", 0.05)
    monkeypatch.setattr(owners, "_PAUSE_S", 0.01)


def never() -> bool:
    return False


def test_later_starts_have_higher_epochs() -> None:
    first = [first_epoch(NOW_MS, number) for number in range(2000)]
    assert len(set(first)) == 1024
    assert max(first) < first_epoch(NOW_MS + 1, 0)
    assert all(run_epoch(epoch, 500) < first_epoch(NOW_MS + 1, 0) for epoch in first)
    runs = [run_epoch(first[0], run) for run in range(1, 5000)]
    assert all(later - earlier == 2 for earlier, later in pairwise(runs))
    assert runs[0] > first[0] + 1, "the one below is no former start's"
    assert max(runs) < 2**63


def test_a_start_whose_clock_is_behind_has_a_higher_epoch() -> None:
    ahead = run_epoch(first_epoch(NOW_MS + 3_600_000, 5), 300)
    assert first_epoch(NOW_MS, 0, ahead + 1) > ahead + 1000
    assert first_epoch(NOW_MS, 7, 1) == first_epoch(NOW_MS, 7), "another program counts from 0"


def test_an_epoch_says_since_when() -> None:
    assert since(run_epoch(first_epoch(NOW_MS, 9), 3)) == "since 2027-01-15T08:00:00Z"
    assert [since(epoch) for epoch in (-1, 0, 17, 2**63)] == ["", "", "", ""]


def test_an_owner_has_the_epochs_that_a_task_needs() -> None:
    owner = EpochOwner("me", {"events-a": 1, "events-b": 2})
    assert owner.for_topics(["events-b", "events-new"]) == EpochOwner("me", {"events-b": 2})


def test_a_claim_opens_every_partition_and_tries_a_lower_epoch(epochs: Epochs) -> None:
    assert owners.claim(epochs.config, {"a": 10, "b": 20, "plain": 30}, set(), never) == {}
    partitions = {"a-partition-0": 10, "a-partition-1": 10, "b-partition-0": 20, "plain": 30}
    assert sorted(epochs.opened[:4]) == sorted(partitions.items())
    assert sorted(epochs.opened[4:]) == sorted((name, epoch - 1) for name, epoch in partitions.items())
    assert epochs.current == partitions


def test_what_is_proven_is_opened_alone(epochs: Epochs) -> None:
    begun = time.monotonic()
    assert owners.claim(epochs.config, {"a": 10}, {"a"}, never) == {}
    assert time.monotonic() - begun < owners._SETTLE_S + 1
    assert sorted(epochs.opened) == [("a-partition-0", 10), ("a-partition-1", 10)]


def test_an_epoch_that_a_former_owner_sets_back_is_claimed_again(
    epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer was compared before the claim, and the broker sets its epoch some time after it."""
    monkeypatch.setattr(owners, "_SETTLE_S", 0.4)

    def set_back(name: str, epoch: int | None) -> None:
        if name == "a-partition-1" and epoch == 10 and epochs.opened.count((name, 10)) < 3:
            threading.Timer(0.1, epochs.current.update, [{name: 7}]).start()

    epochs.on_open = set_back
    assert owners.claim(epochs.config, {"a": 10}, set(), never) == {}
    assert epochs.opened.count(("a-partition-0", 10)) == 1
    assert [epoch for name, epoch in epochs.opened if name == "a-partition-1"] == [10, 9, 10, 9, 10, 9]
    assert epochs.current == {"a-partition-0": 10, "a-partition-1": 10}
    epochs.on_open = lambda name, epoch: epochs.current.update({name: 7})
    errors = owners.claim(epochs.config, {"a": 10}, set(), never)
    assert errors["a"].kind is Kind.BROKER_UNREACHABLE


def test_a_higher_epoch_is_another_workers(epochs: Epochs) -> None:
    epochs.current["a-partition-1"] = run_epoch(first_epoch(NOW_MS, 1), 4)
    errors = owners.claim(epochs.config, {"a": 10, "b": 10}, set(), never)
    assert {topic: error.kind for topic, error in errors.items()} == {"a": Kind.NOT_OWNER}
    assert "another worker writes these records: since 2027-01-15T08:00:00Z" in str(errors["a"])
    assert "a-partition-1" in str(errors["a"])
    assert ("b-partition-0", 9) in epochs.opened
    assert ("a-partition-0", 9) not in epochs.opened


def test_a_topics_trouble_is_its_own(epochs: Epochs) -> None:
    epochs.refusals = {"a-partition-0": [AUTHORIZATION], "b-partition-0": [NOT_READY, PRODUCER_BUSY]}
    errors = owners.claim(epochs.config, {"a": 10, "b": 10, "nope": 10}, set(), never)
    assert {topic: error.kind for topic, error in errors.items()} == {
        "a": Kind.BROKER_REFUSED,
        "nope": Kind.TOPIC_MISSING,
    }
    assert epochs.current["b-partition-0"] == 10


def test_brokers_that_keep_no_epochs(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    brokers[0].answers["producer"] = lambda request: None
    errors = owners.claim(epochs.config, {"b": 10}, set(), never)
    assert errors["b"].kind is Kind.BROKER_REFUSED
    assert "fence.writers=false" in str(errors["b"])


def test_a_topic_whose_producers_have_to_bring_its_schema(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    def open_with_schema(request: Any) -> list[bytes] | None:
        if request.HasField("schema") and request.schema.schema_data == b"{}":
            return epochs.open(request)
        message = "Producers cannot connect or send message without a schema to topics with a schema"
        return [command("error", request_id=request.request_id, error=INCOMPATIBLE_SCHEMA, message=message)]

    brokers[0].answers["producer"] = open_with_schema
    brokers[0].answers["get_schema"] = lambda request: [
        command("get_schema_response", request_id=request.request_id, schema={"type": 4, "schema_data": b"{}"})
    ]
    assert owners.next_epochs(epochs.config, ["b"], never) == {"b": 0}
    assert owners.claim(epochs.config, {"b": 10}, set(), never) == {}
    assert epochs.opened == [("b-partition-0", None), ("b-partition-0", 10), ("b-partition-0", 9)]


def test_a_claim_ends_with_its_query(epochs: Epochs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_SETTLE_S", 60.0)
    stopping = threading.Event()
    threading.Timer(0.3, stopping.set).start()
    with pytest.raises(HelenusError, match="the query is stopped"):
        owners.claim(epochs.config, {"a": 10}, set(), stopping.is_set)


def test_the_next_epoch_is_one_more_than_the_topics(epochs: Epochs) -> None:
    """Of partitions that differ, as after a claim that ended halfway, the highest one counts."""
    epochs.current = {"a-partition-0": 41, "a-partition-1": 77}
    epochs.refusals = {"plain": [AUTHORIZATION]}
    assert owners.next_epochs(epochs.config, ["a", "b", "nope", "plain"], never) == {"a": 78, "b": 0}


def owned(epochs: Epochs, epoch: int) -> PulsarLog:
    log = PulsarLog(epochs.config)
    log.declare("a", SCHEMA)
    log.own(epoch)
    return log


def test_an_owners_producer_is_left_after_its_turn(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    """Not closed: while another one fences it, the broker would wait for itself, for ever."""
    broker = brokers[0]
    log = owned(epochs, 10)
    for turn in range(1, 4):
        log.append("a", 0, b"k", b"v")
        log.append("a", 1, b"k", b"v")
        log.flush(10)
        log.own(10 + turn)
    assert sorted(epochs.opened) == [(f"a-partition-{part}", 10 + turn) for part in range(2) for turn in range(3)]
    assert len({request.producer_id for request in broker.requests("producer")}) == 6
    assert "close_producer" not in broker.names()
    lookups = [request.topic.rpartition("/")[2] for request in broker.requests("lookup")]
    assert lookups.count("a-partition-1") == 1, "it is known by then which broker has it"
    assert len(broker.open) == 1
    log.close()


def test_a_kept_producer_stays_until_its_epoch_changes(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    """No other process takes turns with it; it needs no schema."""
    log = PulsarLog(epochs.config)
    for epoch in (10, 12):
        log.keep("b", epoch)
        for _ in range(3):
            log.append("b", 0, b"k", b"v")
            log.flush(10)
    assert epochs.opened == [("b-partition-0", 10), ("b-partition-0", 12)]
    assert "close_producer" not in brokers[0].names()
    assert len(brokers[0].open) == 1
    log.keep("b", 11)
    log.append("b", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="another worker writes these records") as failure:
        log.flush(10)
    assert isinstance(failure.value, TakenOver)
    assert failure.value.epoch == 12
    log.close()


def test_a_terms_epochs() -> None:
    term = TermEpochs(first_epoch(NOW_MS, 5))
    epochs = [term.take() for _ in range(1000)]
    assert all(later - earlier == 2 for earlier, later in pairwise(epochs))
    for hours in (-12, 0, 12):
        assert term_epoch(NOW_MS + hours * 3_600_000, 0, epochs[-1]) > epochs[-1] + 1_000_000
    assert term_epoch(NOW_MS, 7, 0) == first_epoch(NOW_MS, 7)


def test_producers_that_were_left_end_with_their_connections(
    epochs: Epochs,
    brokers: list[Broker],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_session, "_LEFT_S", 0.3)
    log = owned(epochs, 10)
    for turn in range(1, 3):
        log.append("a", 0, b"k", b"v")
        log.flush(10)
        eventually(lambda: all(transport.is_closing() for transport in brokers[0].open), every=0.02)
        assert epochs.opened == [("a-partition-0", 10)] * turn
        assert len(brokers[0].open) == turn
    assert "close_producer" not in brokers[0].names()
    log.close()


def test_a_connection_whose_answer_is_waited_for_stays(
    epochs: Epochs,
    brokers: list[Broker],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_session, "_LEFT_S", 0.3)
    monkeypatch.setattr(log_module, "_ANSWER_TIMEOUT_S", 1.5)
    log = owned(epochs, 10)
    log.append("a", 0, b"k", b"v")
    log.flush(10)
    brokers[0].answers["schema"] = lambda request: []
    with pytest.raises(HelenusError, match="does not answer in time"):
        log.declare("b", SCHEMA)
    log.close()


def test_a_refused_batch_of_an_owner(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    """Its producer ends with the connection, and the next one sends the same again."""
    broker, refused = brokers[0], [1, 2]

    def send(request: Any) -> list[bytes]:
        number = {"producer_id": request.producer_id, "sequence_id": request.sequence_id}
        if refused:
            refused.pop()
            return [command("send_error", error=PERSISTENCE, message="not now", **number)]
        return [command("send_receipt", **number)]

    broker.answers["send"] = send
    log = owned(epochs, 10)
    log.append("a", 0, b"k", b"v")
    log.flush(10)
    assert epochs.opened == [("a-partition-0", 10)] * 3
    assert [request.sequence_id for request in broker.requests("send")] == [0, 0, 0]
    assert "close_producer" not in broker.names()
    log.close()


def test_dead_letters_are_not_owned(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    log = owned(epochs, 10)
    for _ in range(2):
        log.append("dlq", 0, b"k", b"v")
        log.flush(10)
    (request,) = brokers[0].requests("producer")
    assert request.producer_access_mode == SHARED
    assert "close_producer" not in brokers[0].names()
    assert epochs.opened == []
    log.close()


def test_a_log_whose_epoch_is_too_low_says_who_writes(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    log = owned(epochs, 10)
    log.append("a", 0, b"k", b"v")
    log.flush(10)
    epochs.current["a-partition-0"] = run_epoch(first_epoch(NOW_MS, 1), 1)
    stored = len(brokers[0].stored)
    log.append("a", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="another worker writes these records: since 2027-01-15") as error:
        log.flush(60)
    assert error.value.kind is Kind.NOT_OWNER
    assert len(brokers[0].stored) == stored
    assert epochs.opened.count(("a-partition-0", 10)) == 2, "it does not ask again and again"
    log.close()


def test_a_producer_that_is_fenced_in_mid_batch(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    """The broker closes the connection of the first record that comes then; nothing is sent again."""
    broker = brokers[0]

    def fence(_: Any) -> list[bytes]:
        epochs.current["a-partition-0"] = 99
        broker.open[-1].abort()
        return []

    broker.answers["send"] = fence
    log = owned(epochs, 10)
    log.append("a", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="another worker writes these records") as error:
        log.flush(60)
    assert error.value.kind is Kind.NOT_OWNER
    assert len(broker.requests("send")) == 1
    log.close()


def test_a_partition_that_moved_between_two_turns(epochs: Epochs, brokers: list[Broker]) -> None:  # noqa: F811
    first, second, _ = brokers
    log = owned(epochs, 10)
    log.append("a", 0, b"k", b"v")
    log.flush(10)
    first.answers["producer"] = lambda request: [
        command("error", request_id=request.request_id, error=NOT_READY, message="not mine any more")
    ]
    first.answers["lookup"] = first.lookup(second.url)
    log.append("a", 0, b"k", b"v")
    log.flush(10)
    assert second.stored == [1]
    assert [request.topic_epoch for request in second.requests("producer")] == [10]
    log.close()
