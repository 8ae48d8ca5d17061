"""Who leads a group, and who may write what its workers share, on a real Kafka."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from patience import eventually

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.status import ConnectorStatus, TaskStatus
from helenus_connector.group._leader import Leader
from helenus_connector.group.membership import GroupMembership
from helenus_connector.group.shared_topic import SharedTopic
from helenus_connector.group.status_topic import StatusTopic
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.owners import Made, RecordsOwner, claim, run_name
from helenus_stack.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def group(only_kafka: Stack) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(str(only_kafka.status().bootstrap_servers), f"workers-{uuid.uuid4().hex}", stack)


class Group:
    """Makes what workers of one group have of it; all of it is closed in the end."""

    def __init__(self, address: str, name: str, stack: ExitStack) -> None:
        self.address, self.name, self._stack = address, name, stack
        self.count = 0

    def worker(self) -> WorkerSettings:
        self.count += 1
        properties = {
            "bootstrap.servers": self.address,
            "checkpoint.dir": f"/c/{self.count}",
            "listeners": f"http://127.0.0.1:{9000 + self.count}",
            "group.id": self.name,
        }
        return WorkerSettings.from_properties(properties, "worker")

    def topic(self) -> SharedTopic:
        topic = SharedTopic(self.worker())
        topic.create()
        self._stack.callback(topic.close)
        return topic

    def on_close(self, close: Callable[[], object]) -> None:
        self._stack.callback(close)

    def member(self) -> GroupMembership:
        worker = self.worker()
        SharedTopic(worker).create()
        membership = GroupMembership(worker, threading.Event().set)
        self._stack.callback(membership.leave)
        membership.join()
        return membership


def write(topic: SharedTopic, **changes: object) -> None:
    topic.update(lambda _: changes)


def lead(topic: SharedTopic, term: str) -> Leader:
    return topic.lead(term, lambda: {"a": f"first of {term}"})


def test_a_former_leader_writes_nothing(group: Group) -> None:
    first, second = group.topic(), group.topic()
    number = lead(first, "one").number
    write(first, b=1, c=1)
    assert lead(second, "two").number == number + 1
    assert second.former is not None
    assert second.former.term == "one"
    assert second.values()["a"] == "first of one", "only the first leader brings what it had before"
    # It fences the new leader's producer by this, which makes its own anew in turn.
    with pytest.raises(HelenusError, match=r"the worker 127.0.0.1:9002 leads the group .* by now") as failure:
        write(first, b=2)
    assert failure.value.kind is Kind.NOT_OWNER
    write(second, b=3, c=None)
    for _ in range(2):
        with pytest.raises(HelenusError, match="leads the group"):
            write(first, b=4)
    third = group.topic()
    lead(third, "three")
    values = {key: value for key, value in third.values().items() if key in ("a", "b", "c")}
    assert values == {"a": "first of one", "b": 3}


def test_a_topic_that_forgets_is_refused(group: Group) -> None:
    """It was made by somebody who took it for one like others."""
    worker = group.worker()
    with closing(KafkaLog(worker.producer_config)) as log:
        log.create(worker.group_topic, 1, {"cleanup.policy": "compact,delete"})
    with pytest.raises(HelenusError, match=r"loses what it gets: cleanup.policy=compact,delete .*set cleanup.policy=c"):
        group.topic()


def test_writes_from_many_threads(group: Group) -> None:
    topic = group.topic()
    lead(topic, "one")
    threads = [threading.Thread(target=write, args=(topic,), kwargs={f"key {n}": n}) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    later = group.topic()
    lead(later, "two")
    assert {f"key {n}": n for n in range(20)}.items() <= later.values().items()


def test_a_record_of_another_program(group: Group) -> None:
    topic = group.topic()
    producer = Producer({"bootstrap.servers": group.address})
    producer.produce(f"helenus-configs-{group.name}", b"no JSON", b"connector-a")
    producer.flush(30)
    with pytest.raises(HelenusError, match=r"no JSON: another program writes it.*offset 0.*config\.storage\.topic"):
        lead(topic, "one")


def begun(membership: GroupMembership, topic: SharedTopic) -> Leader:
    """Have a member lead that is to."""
    eventually(lambda: membership.may_begin, "it is to lead")
    leader = lead(topic, uuid.uuid4().hex)
    membership.note_begun(leader)
    return leader


def test_a_member_that_joins_takes_nothing(group: Group) -> None:
    first = group.member()
    leader = begun(first, group.topic())
    assert first.leads
    others = [group.member() for _ in range(2)]
    for other in others:
        eventually(lambda other=other: other.leader() == leader, "it knows who leads")  # type: ignore[misc]
    eventually(lambda: len(members(group)) == 3, "all are members")
    assert first.leads
    assert not any(other.may_begin for other in others)
    first.leave()
    eventually(lambda: any(other.may_begin for other in others), "another one is to lead")
    assert sum(other.may_begin for other in others) == 1


def members(group: Group) -> list[str]:
    """The clients of the group, as Kafka's own tools show them."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": group.address})
    return [member.client_id for member in admin.describe_consumer_groups([group.name])[group.name].result().members]


def test_a_leader_ceases_when_another_one_has_begun(group: Group) -> None:
    """As after it hung, whatever the group's coordinator has told it by then."""
    first = group.member()
    begun(first, group.topic())
    assert first.leads
    lead(group.topic(), "of another worker")
    eventually(lambda: not first.leads, "it has read who leads")
    assert not first.may_begin, "it is over for this process"


def test_a_later_leader_keeps_its_records(group: Group) -> None:
    """An earlier one may claim them late: after it hung since before its first claim. Nobody else is held off."""
    worker, topic = group.worker(), f"events-{group.name}"
    log = KafkaLog(worker.producer_config)
    log.create(topic, 1, {})
    log.close()
    made = Made("c", topic)

    def owner(term: str, token: str = "0123456789ab") -> RecordsOwner:
        return RecordsOwner(f"{run_name('default', token, term)}-1", 1, term or "alone")

    def claimed(run: RecordsOwner, expected: str = "") -> bool:
        return made not in claim(worker.producer_config, [made], run, {made: expected} if expected else {}).lost

    assert claimed(owner(f"{group.name}#2"))
    assert not claimed(owner(f"{group.name}#1", "ffffffffffff")), "it is of an earlier leader"
    assert claimed(owner(f"{group.name}#10", "aaaaaaaaaaaa"), expected="helenus-of-its-own-runs"), "numbers, not texts"
    assert not claimed(owner(f"{group.name}#2"), expected="helenus-")
    assert claimed(owner(f"{group.name}-other#1")), "a start takes over, in another group too"
    assert claimed(owner(""))
    assert claimed(owner(f"{group.name}#1"))


def test_the_status_is_of_the_leader_alone(group: Group) -> None:
    """A second worker takes over, and removes what is of connectors that are no more; the first one writes no more."""
    shown: dict[str, dict[str, ConnectorStatus]] = {
        "first": {"a": status("RUNNING", 2), "b": status("RUNNING", 1)},
        "second": {"a": status("PAUSED", 1)},
    }
    leading = {"first"}

    def topic(name: str, generation: int) -> StatusTopic:
        made = StatusTopic(group.worker(), generation, lambda: dict(shown[name]), lambda: name in leading)
        group.on_close(made.close)
        made.start()
        return made

    def states() -> dict[str, tuple[str, int]]:
        return {key: (value["state"], value["generation"]) for key, value in read_statuses(group).items()}

    first = topic("first", 1)
    former = {
        "status-connector-a": ("RUNNING", 1),
        "status-task-a-0": ("RUNNING", 1),
        "status-task-a-1": ("RUNNING", 1),
        "status-connector-b": ("RUNNING", 1),
        "status-task-b-0": ("RUNNING", 1),
    }
    eventually(lambda: states() == former, lambda: str(states()))
    del shown["first"]["b"]
    eventually(lambda: not any("-b" in key for key in states()), lambda: str(states()))

    leading.add("second")
    topic("second", 2)
    present = {"status-connector-a": ("PAUSED", 2), "status-task-a-0": ("PAUSED", 2)}
    eventually(lambda: states() == present, lambda: str(states()))
    leading.remove("first")  # it goes on late, with what it had
    shown["first"]["a"] = status("FAILED", 2)
    first.close()
    assert states() == present
    assert read_statuses(group)["status-task-a-0"] == {
        "state": "PAUSED",
        "trace": None,
        "worker_id": "127.0.0.1:9002",
        "generation": 2,
    }


def status(state: str, tasks: int) -> ConnectorStatus:
    return ConnectorStatus(state, None, [TaskStatus(number, state) for number in range(tasks)])


def read_statuses(group: Group) -> dict[str, Any]:
    """What a reader of the status topic knows by now."""
    topic = f"helenus-status-{group.name}"
    consumer = Consumer({"bootstrap.servers": group.address, "group.id": "reader", "enable.partition.eof": True})
    values: dict[str, Any] = {}
    with closing(consumer):
        if topic not in consumer.list_topics(timeout=30).topics:
            return {}
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            value, key = message.value(), (message.key() or b"").decode()
            values[key] = None if value is None else json.loads(value)
    return {key: value for key, value in values.items() if value is not None}


def test_a_worker_without_rights_or_brokers(tmp_path: Path) -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "checkpoint.dir": str(tmp_path), "group.id": "g"}
    topic = SharedTopic(WorkerSettings.from_properties(properties, "worker"))
    with pytest.raises(HelenusError) as failure:
        topic.create()
    assert failure.value.kind is Kind.BROKER_UNREACHABLE
