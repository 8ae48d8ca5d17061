"""Which records a connector puts into a batch on Pulsar, and how long they wait for others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from patience import eventually
from sinks.test_pulsar_client import Broker, brokers  # noqa: F401
from sinks.test_pulsar_owners import SCHEMA, Epochs

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.topic_ownership import TopicOwnership
from helenus_connector.log import choice
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Log
from helenus_sinks.pulsar import owners
from helenus_sinks.pulsar._writer import FULL


def worker(broker: Broker, **more: str) -> WorkerSettings:
    keys = {name.replace("_", "."): value for name, value in more.items()}
    return WorkerSettings.from_properties(
        {"log": "pulsar", "pulsar.service.url": broker.url, "checkpoint.dir": "/c", **keys}, "here"
    )


def batches(log: Log, broker: Broker) -> list[int]:
    """How many records are in each batch of six, with three keys in turns that come twice."""
    for n in range(6):
        log.append("t", 0, b"%d" % (n // 2), b"v")
    log.flush(10)
    log.close()
    return [request.num_messages for request in broker.requests("send")]


def test_a_batch_has_records_of_many_keys(brokers: list[Broker]) -> None:  # noqa: F811
    assert batches(choice.data_log(worker(brokers[0])), brokers[0]) == [6]


def test_for_key_shared_a_batch_has_one_key(brokers: list[Broker]) -> None:  # noqa: F811
    settings = worker(brokers[0], pulsar_key_based_batcher="true")
    assert batches(choice.data_log(settings), brokers[0]) == [2, 2, 2]
    brokers[0].heard.clear()
    assert batches(choice.events_log(settings), brokers[0]) == [6], "who reads events shares no subscription"


def test_records_wait_for_others_unless_there_are_many(
    brokers: list[Broker],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "_LINGER_S", 60.0)
    log = choice.data_log(worker(brokers[0]))
    for n in range(FULL - 1):
        log.append("t", 0, b"%d" % n, b"v")
    log.append("t", 1, b"k", b"v")
    log.append("t", 0, b"k", b"v")
    eventually(lambda: brokers[0].stored, every=0.02)
    assert [request.num_messages for request in brokers[0].requests("send")] == [FULL]
    log.flush(10)
    assert [request.num_messages for request in brokers[0].requests("send")] == [FULL, 1]
    log.close()


def test_the_records_of_a_worker_are_refused_once_another_one_has_started(
    brokers: list[Broker],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners, "_SETTLE_S", 0.05)
    epochs = Epochs(brokers[0], {"data-a": 2})
    settings = worker(brokers[0])
    task: Any = SimpleNamespace(connector="c", events="events-a", data="data-a", data_topics=["data-a"])
    ownerships = [TopicOwnership(settings, "default") for _ in range(2)]
    logs = [choice.data_log(settings) for _ in range(2)]
    for ownership, log in zip(ownerships, logs, strict=True):
        ownership.begin_run(2)
        assert ownership.claim([task], 2) == {}
        log.declare("data-a", SCHEMA)
        choice.own_by_epoch(log, ownership.owner.epochs["events-a"])  # type: ignore[union-attr]
        for partition in range(2):
            log.append("data-a", partition, b"k", b"v")
        log.flush(10)
    older, newer = logs
    older.append("data-a", 1, b"k", b"v")
    with pytest.raises(HelenusError, match="another worker writes these records: since 20") as error:
        older.flush(10)
    assert error.value.kind is Kind.NOT_OWNER
    ownerships[0].begin_run(2)
    assert ownerships[0].claim([task], 2)["events-a"].kind is Kind.NOT_OWNER
    newer.append("data-a", 1, b"k", b"v")
    newer.flush(10)
    assert set(epochs.current) == {"data-a-partition-0", "data-a-partition-1"}
    ownerships[0].forget("events-a")
    assert ownerships[0].claim([task], 2) == {}
    newer.append("data-a", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="another worker writes these records"):
        newer.flush(10)
    for log in logs:
        log.close()
