"""Records of a former owner, on a real Kafka: none lands once another run has claimed their topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from patience import eventually

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.kafka.owners import NotOwner, RecordsOwner, Unavailable, claim, owners, transactional_id
from helenus_stack.secure import AGENT, CONNECTOR
from helenus_stack.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
EVENTS, OTHER_EVENTS = "events-owned", "events-other"


@pytest.fixture(scope="module")
def address(only_kafka: Any) -> str:
    return str(only_kafka.status().bootstrap_servers)


@pytest.fixture(scope="module")
def config(address: str) -> dict[str, str]:
    return {"bootstrap.servers": address}


@pytest.fixture
def topic(config: dict[str, str], request: pytest.FixtureRequest) -> str:
    log = KafkaLog(config)
    for events in (EVENTS, OTHER_EVENTS):
        log.create(events, 1, {})
    name = f"data-{request.node.name.partition('[')[0]}"
    log.create(name, 1, {})
    log.close()
    return name


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}-owner"


def owner(run: str, group: str, producers: int = 2) -> RecordsOwner:
    return RecordsOwner(f"{group}-{run}", producers, f"the worker {run}")


def own(config: dict[str, str], group: str, run: str, *topics: str) -> RecordsOwner:
    new = owner(run, group)
    claim(config, group, topics or (EVENTS,), new, {})
    return new


def log_of(
    config: dict[str, str], group: str, run: RecordsOwner, number: int = 0, events: str = EVENTS
) -> OwnedKafkaLog:
    log = OwnedKafkaLog(config, run, number)
    log.own(group, events)
    return log


def values(address: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """What a reader gets now."""
    return list(_values(address, topic, isolation))


def _values(address: str, topic: str, isolation: str) -> Iterator[bytes | None]:
    settings = {"bootstrap.servers": address, "group.id": "reader", "isolation.level": isolation}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while (message := consumer.poll(20)) is not None:
            if message.error() is not None:
                return  # the end
            yield message.value()
        raise AssertionError("no end came")
    finally:
        consumer.close()


def test_a_flush_is_a_transaction(address: str, config: dict[str, str], topic: str, group: str) -> None:
    log = log_of(config, group, own(config, group, "a"))
    for value in (b"1", b"2"):
        log.append(topic, 0, b"k", value)
    assert values(address, topic) == []
    log.flush(30)
    log.flush(30)  # of nothing
    log.append(topic, 0, b"k", b"3")
    log.close()
    log.append(topic, 0, b"k", b"4")
    log.flush(30)
    log.close()
    assert values(address, topic) == [b"1", b"2", b"4"]


def test_nothing_of_a_former_owner_lands(address: str, config: dict[str, str], topic: str, group: str) -> None:
    """Not even for a reader of what is not committed."""
    former = log_of(config, group, own(config, group, "former"))
    former.append(topic, 0, b"k", b"committed")
    former.flush(30)
    former.append(topic, 0, b"k", b"aborted")
    eventually(lambda: b"aborted" in values(address, topic, "read_uncommitted"))
    log = log_of(config, group, own(config, group, "new"))
    log.append(topic, 0, b"k", b"new")
    log.flush(30)
    former.append(topic, 0, b"k", b"late")
    with pytest.raises(NotOwner, match="another worker writes the records of this topic: the worker new"):
        former.flush(30)
    for _ in range(2):  # it stays so
        former.own(group, EVENTS)
        with pytest.raises(NotOwner):
            former.append(topic, 0, b"k", b"later")
    log.append(topic, 0, b"k", b"newer")
    log.flush(30)
    assert values(address, topic) == [b"committed", b"new", b"newer"]
    assert values(address, topic, "read_uncommitted") == [b"committed", b"aborted", b"new", b"newer"]


def test_a_producer_of_a_former_owner_that_begins_late(
    address: str, config: dict[str, str], topic: str, group: str
) -> None:
    """A process that was stopped before its first record: its id was fenced before it began."""
    former = own(config, group, "former")
    log = log_of(config, group, own(config, group, "new"))
    late = log_of(config, group, former, 1)
    with pytest.raises(NotOwner):
        late.append(topic, 0, b"k", b"late")
    log.append(topic, 0, b"k", b"new")
    log.flush(30)
    assert values(address, topic, "read_uncommitted") == [b"new"]


def test_readers_do_not_wait_for_a_killed_owner(address: str, config: dict[str, str], topic: str, group: str) -> None:
    """Its transaction would stay open for minutes."""
    killed = Producer({**config, "transactional.id": transactional_id(own(config, group, "killed").run, 1)})
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(topic, b"open", b"k", 0)
    killed.flush(30)
    log = log_of(config, group, own(config, group, "new"))
    log.append(topic, 0, b"k", b"new")
    log.flush(30)
    assert values(address, topic) == [b"new"]


def test_one_of_many_claims_wins(address: str, config: dict[str, str], topic: str, group: str) -> None:
    runs = [owner(str(number), group, producers=1) for number in range(6)]
    formers: list[dict[str, RecordsOwner]] = []

    def start(run: RecordsOwner) -> None:
        formers.append(claim(config, group, [EVENTS], run, {})[0])

    threads = [threading.Thread(target=start, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = owners(config, group, [EVENTS])[EVENTS]
    assert last in runs, "nothing is left to fence"
    assert len(formers) == len(runs)
    for run in runs:
        log = log_of(config, group, run)
        if run == last:
            log.append(topic, 0, b"k", b"last")
            log.flush(30)
        else:
            with pytest.raises(NotOwner):
                log.append(topic, 0, b"k", run.run.encode())
    assert values(address, topic, "read_uncommitted") == [b"last"]


def test_a_claim_that_expects_another_owner(config: dict[str, str], topic: str, group: str) -> None:
    """As of a later run of a worker from which another one took the records."""
    other = own(config, group, "other")
    later = owner("later", group)
    both = (EVENTS, OTHER_EVENTS)
    former, lost = claim(config, group, both, later, {EVENTS: "helenus-before", OTHER_EVENTS: "helenus-before"})
    assert (former, lost) == ({}, {EVENTS: other})
    assert owners(config, group, both) == {EVENTS: other, OTHER_EVENTS: later}
    former, lost = claim(config, group, both, later, {EVENTS: other.run})
    assert (former, lost) == ({EVENTS: other}, {})


def test_one_topic_of_several_is_taken(address: str, config: dict[str, str], topic: str, group: str) -> None:
    """The new owner fences the producer of both: it goes on with the other topic."""
    log = log_of(config, group, own(config, group, "a", EVENTS, OTHER_EVENTS))
    log.own(group, OTHER_EVENTS)
    log.append(topic, 0, b"k", b"1")
    log.flush(30)
    own(config, group, "b", EVENTS)
    log.own(group, OTHER_EVENTS)
    log.append(topic, 0, b"k", b"2")
    with pytest.raises(HelenusError) as failed:
        log.flush(30)
    assert failed.value.kind is Kind.APPEND_FAILED  # to be done again
    log.append(topic, 0, b"k", b"3")
    log.flush(30)
    with pytest.raises(NotOwner):
        log.own(group, EVENTS)
    assert values(address, topic) == [b"1", b"3"]


def test_a_long_transaction_is_ended(
    address: str, config: dict[str, str], topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the brokers would abort it, and each attempt at a batch that takes long."""
    monkeypatch.setattr("helenus_sinks.kafka.owned_log._LONGEST_TRANSACTION_S", 0.0)
    log = log_of(config, group, own(config, group, "a"))
    for value in (b"1", b"2", b"3"):
        log.append(topic, 0, b"k", value)
    assert values(address, topic) == [b"1", b"2"]
    log.close()


def test_a_transaction_that_timed_out(address: str, config: dict[str, str], topic: str, group: str) -> None:
    log = log_of({**config, "transaction.timeout.ms": "1000"}, group, own(config, group, "a"))
    log.append(topic, 0, b"k", b"1")
    # Kafka looks every ten seconds for those that timed out.
    eventually(lambda: values(address, topic, "read_uncommitted") == [b"1"])
    reader = Consumer({**config, "group.id": "ends", "isolation.level": "read_committed"})
    eventually(lambda: reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1] > 1)
    reader.close()
    log.append(topic, 0, b"k", b"2")
    with pytest.raises(HelenusError) as failed:
        log.flush(30)
    assert failed.value.kind is Kind.APPEND_FAILED
    log.append(topic, 0, b"k", b"3")
    log.flush(30)
    assert values(address, topic) == [b"3"]


@pytest.mark.parametrize("key", ["message.timeout.ms", "delivery.timeout.ms"])
def test_messages_that_may_take_long(config: dict[str, str], topic: str, group: str, key: str) -> None:
    log = log_of({**config, key: "600000"}, group, own(config, group, "a"))
    log.append(topic, 0, b"k", b"1")
    log.flush(30)
    log.close()


def test_a_note_of_another_version(config: dict[str, str], topic: str, group: str) -> None:
    own(config, group, "a")
    producer = Producer({**config, "transactional.id": group})
    producer.init_transactions(30)
    consumer = Consumer({**config, "group.id": group})
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(EVENTS, 0, 0, '{"leader": 1}')], consumer.consumer_group_metadata(), 30
    )
    producer.commit_transaction(30)
    consumer.close()
    with pytest.raises(HelenusError, match="in a way that this version does not know") as failed:
        own(config, group, "b")
    assert failed.value.kind is Kind.STATE


def test_a_claim_that_was_killed_before_it_fenced(
    address: str, config: dict[str, str], topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one fences those that it did not."""
    first = log_of(config, group, own(config, group, "first"))
    first.append(topic, 0, b"k", b"first")
    first.flush(30)
    with monkeypatch.context() as patch:
        patch.setattr("helenus_sinks.kafka.owners._fence", _die)
        for run in ("killed", "killed-again"):
            with pytest.raises(KeyboardInterrupt):
                own(config, group, run)
    own(config, group, "last")
    first.append(topic, 0, b"k", b"late")
    with pytest.raises(NotOwner, match="the worker last"):
        first.flush(30)
    noted = owners(config, group, [EVENTS])[EVENTS]
    assert noted == owner("last", group), "nothing is left to fence"
    assert values(address, topic, "read_uncommitted") == [b"first"]


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_brokers_without_a_topic_for_transactions(tmp_path: Path) -> None:
    """As a single one with the default settings: the worker has to go on all the same, and soon."""
    alone = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    with Stack(tmp_path, only=["kafka"], kafka_properties=alone) as stack:
        config = {"bootstrap.servers": str(stack.status().bootstrap_servers)}
        log = KafkaLog(config)
        log.create(EVENTS, 1, {})
        log.close()
        with pytest.raises(Unavailable, match=r"transaction\.state\.log\.replication\.factor"):
            own(config, "alone", "a")


@pytest.mark.parametrize("user", [AGENT, CONNECTOR])
def test_a_login_needs_rights_on_transactional_ids(secure: Any, user: str) -> None:
    status = secure.status()
    login = status.security.kafka(user)
    config = {"bootstrap.servers": str(status.bootstrap_servers), **login}
    agents_log = KafkaLog({"bootstrap.servers": str(status.bootstrap_servers), **status.security.kafka(AGENT)})
    agents_log.create(EVENTS, 1, {})
    agents_log.close()
    if user == CONNECTOR:
        assert claim(config, "helenus-rights-owner", [EVENTS], owner("a", "helenus-rights"), {}) == ({}, {})
        return
    with pytest.raises(Unavailable, match=r"authorization failed.*grant this login Write and Describe"):
        claim(config, "helenus-rights-owner", [EVENTS], owner("a", "helenus-rights"), {})
