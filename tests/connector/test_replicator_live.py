"""The replicator and a real Kafka: partitions that come and go, with tables that need no Cassandra."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from connector.test_kafka_live import make
from patience import PATIENCE_S, eventually

from helenus_connector.config.replication import ReplicationSettings
from helenus_connector.replicate import replicator as module
from helenus_connector.replicate.replicator import Replicator
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration


class Copy:
    """A table's copy that notes the keys of its changes."""

    outdated = 0

    def __init__(self, *_: Any) -> None:
        self.keys: list[bytes] = []
        self.may_apply = threading.Event()
        self.may_apply.set()

    def add(self, batch: Any, key: bytes, change: Any) -> None:
        self.keys.append(key)

    def apply(self, batch: Any) -> None:
        if not self.may_apply.is_set():
            raise HelenusError(Kind.CASSANDRA_WRITE, "the target is away", "t")

    def refresh(self) -> None:
        pass


class Run:
    """A replicator in a thread."""

    def __init__(self, servers: str, table: str, once: bool, is_held: bool = False) -> None:
        properties = {"bootstrap.servers": servers, "keyspace": "k", "table": table, "group.id": f"replicate-{table}"}
        settings = ReplicationSettings.from_properties({**properties, "target.cassandra.contact.points": "h"}, "file")
        self.replicator = Replicator(settings, (None, None), once, None)
        self.copy: Any = self.replicator._copies[table]
        if is_held:
            self.copy.may_apply.clear()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.replicator.run()
        except Exception as error:
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self.replicator.is_stopping = True
        self._thread.join(PATIENCE_S)
        assert not self.is_running


@pytest.fixture
def servers(only_kafka: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "TableCopy", Copy)
    return only_kafka.status().bootstrap_servers


def append(servers: str, table: str, keys: int) -> None:
    make(AdminClient({"bootstrap.servers": servers}), f"events-k.{table}", 1)
    producer = Producer({"bootstrap.servers": servers})
    for n in range(keys):
        producer.produce(f"events-k.{table}", encode(Change("0" * 32, None, Scope.ROW)), key=str(n))
    assert producer.flush(30) == 0


@pytest.mark.parametrize("once", [False, True])
def test_a_broker_that_is_away_while_partitions_come_ends_nothing(
    servers: str, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    table = f"blips{once}".lower()
    append(servers, table, 3)
    failures = [KafkaException(KafkaError(KafkaError._TRANSPORT)), KafkaException(KafkaError(KafkaError._TIMED_OUT))]
    original = module.committed

    def fail_first(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*arguments)

    monkeypatch.setattr(module, "committed", fail_first)
    run = Run(servers, table, once)
    eventually(lambda: len(run.copy.keys) >= 3 or not run.is_running, lambda: str(run.error))
    run.end()
    assert run.error is None
    assert run.copy.keys == [b"0", b"1", b"2"]


def test_once_waits_for_what_other_processes_of_the_group_read(servers: str) -> None:
    """It said that everything was written, as nothing was left for it to read."""
    append(servers, "others", 3)
    first = Run(servers, "others", once=False, is_held=True)
    eventually(lambda: len(first.copy.keys) >= 3 or not first.is_running, lambda: str(first.error))
    second = Run(servers, "others", once=True)
    eventually(lambda: second.replicator._has_assignment or not second.is_running, lambda: str(second.error))
    second._thread.join(3)
    assert second.is_running, "the other process has written nothing yet"
    first.copy.may_apply.set()
    second._thread.join(PATIENCE_S)
    first.end()
    assert (first.error, second.error, second.is_running) == (None, None, False)
    assert second.copy.keys == []
