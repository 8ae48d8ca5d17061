"""Which records a connector puts into a batch on Pulsar, and how long they wait for others."""

from __future__ import annotations

import pytest
from patience import eventually
from sinks.test_pulsar_client import Broker, brokers  # noqa: F401

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log import choice
from helenus_sinks.log import Log
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
