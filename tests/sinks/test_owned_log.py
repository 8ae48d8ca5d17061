"""Records of a former owner, on a real Kafka: none lands once another run has claimed their topic."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from patience import eventually

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka import owned_log
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.kafka.owners import (
    GROUP,
    Claim,
    Made,
    NotOwner,
    RecordsOwner,
    Unavailable,
    claim,
    owners,
    transactional_id,
)
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
def connector(topic: str) -> str:
    return topic


def owner(run: str, connector: str, producers: int = 2) -> RecordsOwner:
    return RecordsOwner(f"helenus-{connector}-{run}", producers, f"the worker {run}")


def own(config: dict[str, str], connector: str, run: str, *topics: str) -> RecordsOwner:
    new = owner(run, connector)
    claim(config, [Made(connector, topic) for topic in topics or (EVENTS,)], new, {})
    return new


def log_of(config: dict[str, str], connector: str, run: RecordsOwner, number: int = 0) -> OwnedKafkaLog:
    log = OwnedKafkaLog(config, run, number)
    log.own(Made(connector, EVENTS))
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


def test_a_flush_is_a_transaction(address: str, config: dict[str, str], topic: str, connector: str) -> None:
    log = log_of(config, connector, own(config, connector, "a"))
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


def test_nothing_of_a_former_owner_lands(address: str, config: dict[str, str], topic: str, connector: str) -> None:
    """Not even for a reader of what is not committed."""
    former = log_of(config, connector, own(config, connector, "former"))
    former.append(topic, 0, b"k", b"committed")
    former.flush(30)
    former.append(topic, 0, b"k", b"aborted")
    eventually(lambda: b"aborted" in values(address, topic, "read_uncommitted"))
    log = log_of(config, connector, own(config, connector, "new"))
    log.append(topic, 0, b"k", b"new")
    log.flush(30)
    former.append(topic, 0, b"k", b"late")
    with pytest.raises(NotOwner, match="another worker writes these records: the worker new"):
        former.flush(30)
    for _ in range(2):  # it stays so
        former.own(Made(connector, EVENTS))
        with pytest.raises(NotOwner):
            former.append(topic, 0, b"k", b"later")
    log.append(topic, 0, b"k", b"newer")
    log.flush(30)
    assert values(address, topic) == [b"committed", b"new", b"newer"]
    assert values(address, topic, "read_uncommitted") == [b"committed", b"aborted", b"new", b"newer"]


def test_a_producer_of_a_former_owner_that_begins_late(
    address: str, config: dict[str, str], topic: str, connector: str
) -> None:
    """A process that was stopped before its first record: its id was fenced before it began."""
    former = own(config, connector, "former")
    log = log_of(config, connector, own(config, connector, "new"))
    late = log_of(config, connector, former, 1)
    with pytest.raises(NotOwner):
        late.append(topic, 0, b"k", b"late")
    log.append(topic, 0, b"k", b"new")
    log.flush(30)
    assert values(address, topic, "read_uncommitted") == [b"new"]


def test_readers_do_not_wait_for_a_killed_owner(
    address: str, config: dict[str, str], topic: str, connector: str
) -> None:
    """Its transaction would stay open for minutes."""
    killed = Producer({**config, "transactional.id": transactional_id(own(config, connector, "killed").run, 1)})
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(topic, b"open", b"k", 0)
    killed.flush(30)
    log = log_of(config, connector, own(config, connector, "new"))
    log.append(topic, 0, b"k", b"new")
    log.flush(30)
    assert values(address, topic) == [b"new"]


def test_one_of_many_claims_wins(address: str, config: dict[str, str], topic: str, connector: str) -> None:
    runs = [owner(str(number), connector, producers=1) for number in range(6)]
    answers: list[Claim] = []

    def start(run: RecordsOwner) -> None:
        answers.append(claim(config, [Made(connector, EVENTS)], run, {}))

    threads = [threading.Thread(target=start, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = owners(config, [Made(connector, EVENTS)])[Made(connector, EVENTS)]
    assert last in runs, "nothing is left to fence"
    assert len(answers) == len(runs)
    for run in runs:
        log = log_of(config, connector, run)
        if run == last:
            log.append(topic, 0, b"k", b"last")
            log.flush(30)
        else:
            with pytest.raises(NotOwner):
                log.append(topic, 0, b"k", run.run.encode())
    assert values(address, topic, "read_uncommitted") == [b"last"]


def test_a_claim_that_expects_another_owner(config: dict[str, str], topic: str, connector: str) -> None:
    """As of a later run of a worker from which another one took the records."""
    other = own(config, connector, "other")
    later = owner("later", connector)
    first, second = Made(connector, EVENTS), Made(connector, OTHER_EVENTS)
    before = {first: "helenus-before", second: "helenus-before"}
    assert claim(config, [first, second], later, before) == Claim(lost={first: other})
    assert owners(config, [first, second]) == {first: other, second: later}
    assert claim(config, [first, second], later, {first: other.run[:-1]}) == Claim(former={first: other})


@pytest.mark.long
def test_a_topic_that_is_missing(config: dict[str, str], topic: str, connector: str) -> None:
    """The others are owned all the same."""
    here, gone = Made(connector, EVENTS), Made(connector, "events-gone")
    run = owner("a", connector)
    assert claim(config, [here, gone], run, {}) == Claim(missing=frozenset(["events-gone"]))
    assert owners(config, [here]) == {here: run}
    assert claim(config, [gone], run, {}) == Claim(missing=frozenset(["events-gone"]))


def test_connectors_of_one_topic_have_owners_of_their_own(config: dict[str, str], topic: str, connector: str) -> None:
    made = [Made(f"{connector}-{number}", EVENTS) for number in range(3)]
    runs = [owner(str(number), connector) for number in range(3)]
    for records, run in zip(made, runs, strict=True):
        assert claim(config, [records], run, {}) == Claim()
    assert owners(config, made) == dict(zip(made, runs, strict=True))
    many = [Made(f"{connector}-{number}", EVENTS) for number in range(100)]
    with pytest.raises(Unavailable, match=r"raise offset\.metadata\.max\.bytes"):
        claim(config, many, runs[0], {})
    assert owners(config, made) == dict(zip(made, runs, strict=True))


def test_one_topic_of_several_is_taken(address: str, config: dict[str, str], topic: str, connector: str) -> None:
    """The new owner fences the producer of both: it goes on with the other topic."""
    log = log_of(config, connector, own(config, connector, "a", EVENTS, OTHER_EVENTS))
    log.own(Made(connector, OTHER_EVENTS))
    log.append(topic, 0, b"k", b"1")
    log.flush(30)
    own(config, connector, "b", EVENTS)
    log.own(Made(connector, OTHER_EVENTS))
    log.append(topic, 0, b"k", b"2")
    with pytest.raises(HelenusError) as failed:
        log.flush(30)
    assert failed.value.kind is Kind.APPEND_FAILED  # to be done again
    assert log.is_replaced
    log.append(topic, 0, b"k", b"3")
    log.flush(30)
    with pytest.raises(NotOwner):
        log.own(Made(connector, EVENTS))
    assert values(address, topic) == [b"1", b"3"]


@pytest.mark.parametrize("has_started", [True, False])
def test_owners_of_many_records_are_asked_for_at_once(
    has_started: bool, address: str, config: dict[str, str], topic: str, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that another run has are refused when they come."""
    run = own(config, connector, "a", EVENTS, OTHER_EVENTS)
    own(config, connector, "b", EVENTS)
    log = OwnedKafkaLog(config, run, 0)
    if has_started:
        log.own(Made(connector, OTHER_EVENTS))
        log.start()
    requests: list[Any] = []
    monkeypatch.setattr(owned_log, "owners", lambda *args: requests.append(args) or owners(*args))
    log.check_together([Made(connector, EVENTS), Made(connector, OTHER_EVENTS)])
    log.own(Made(connector, OTHER_EVENTS))
    value = b"%d" % has_started  # both cases write to one topic
    log.append(topic, 0, b"k", value)
    log.flush(30)
    assert len(requests) == 1
    with pytest.raises(NotOwner):
        log.own(Made(connector, EVENTS))
    assert values(address, topic).count(value) == 1


def test_a_long_transaction_is_ended(
    address: str, config: dict[str, str], topic: str, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the brokers would abort it, and each attempt at a batch that takes long."""
    log = log_of(config, connector, own(config, connector, "a"))
    log.append(topic, 0, b"k", b"1")
    log.keep_short(30)
    assert values(address, topic) == []
    monkeypatch.setattr("helenus_sinks.kafka.owned_log._LONGEST_TRANSACTION_S", 0.0)
    log.flush(30)
    log.append(topic, 0, b"k", b"2")
    log.keep_short(30)
    log.append(topic, 0, b"k", b"3")
    assert values(address, topic) == [b"1", b"2"]
    log.close()


def test_a_record_that_is_too_large_for_its_topic(
    address: str, config: dict[str, str], topic: str, connector: str
) -> None:
    """A transaction fails with it: whoever appends later must not take that for an error of its own record."""
    small = f"{topic}-small"
    log = log_of(config, connector, own(config, connector, "a"))
    log.create(small, 1, {"max.message.bytes": "5000"})
    log.append(small, 0, b"k", b"before")
    log.append(small, 0, b"k", os.urandom(20_000))
    failures = []
    for _ in range(100):
        time.sleep(0.1)
        try:
            log.append(topic, 0, b"k", b"after")
        except HelenusError as error:
            failures.append(error)
            break
    assert [error.kind for error in failures] == [Kind.APPEND_FAILED]
    assert "a record is larger than its topic takes" in str(failures[0])
    # The batch once more: now the record is known.
    log.append(small, 0, b"k", b"before")
    with pytest.raises(HelenusError) as refused:
        log.append(small, 0, b"k", os.urandom(20_000))
    assert refused.value.kind is Kind.RECORD_TOO_LARGE
    log.append(topic, 0, b"k", b"after")
    log.flush(30)
    log.close()
    assert (values(address, small), values(address, topic)) == ([b"before"], [b"after"])


def test_a_former_owner_that_goes_on_appending(
    address: str, config: dict[str, str], topic: str, connector: str
) -> None:
    """It learns it from the append, too."""
    former = log_of(config, connector, own(config, connector, "former"))
    former.append(topic, 0, b"k", b"1")
    former.flush(30)
    own(config, connector, "new")

    def append_on() -> None:
        for _ in range(200):
            former.append(topic, 0, b"k", b"late")
            time.sleep(0.05)

    with pytest.raises(NotOwner):
        append_on()
    assert values(address, topic, "read_uncommitted") == [b"1"]


def test_a_topic_that_was_made_anew_has_no_owner(config: dict[str, str], topic: str, connector: str) -> None:
    """That is no other worker's: the records are to be claimed again."""
    log = OwnedKafkaLog(config, owner("a", connector), 0)
    log.own(Made(connector, EVENTS))
    with pytest.raises(HelenusError, match="claimed again") as failed:
        log.append(topic, 0, b"k", b"1")
    assert failed.value.kind is Kind.APPEND_FAILED


def test_a_transaction_that_timed_out(address: str, config: dict[str, str], topic: str, connector: str) -> None:
    log = log_of({**config, "transaction.timeout.ms": "1000"}, connector, own(config, connector, "a"))
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
def test_messages_that_may_take_long(config: dict[str, str], topic: str, connector: str, key: str) -> None:
    log = log_of({**config, key: "600000"}, connector, own(config, connector, "a"))
    log.append(topic, 0, b"k", b"1")
    log.flush(30)
    log.close()


@pytest.mark.parametrize(
    "note",
    [
        '{"c": {"leader": 1}}',
        '{"c": ["helenus-r", 1000000000000, "", []]}',
        '{"c": ["helenus-r", 1, "", [["helenus-s", 1000000000000]]]}',
        '{"c": ["theirs", 1, "", []]}',
        '{"c": ["helenus-r", 1, "", [["theirs", 1]]]}',
        "[" * 2000,
    ],
    ids=["newer", "many", "many-before", "theirs", "theirs-before", "deep"],
)
def test_a_note_that_no_run_wrote(config: dict[str, str], topic: str, connector: str, note: str) -> None:
    """By a newer version, or by whoever may commit in the group: nothing is fenced by it, and no memory taken."""
    log = KafkaLog(config)
    log.create("events-newer", 1, {})
    log.close()
    producer = Producer({**config, "transactional.id": GROUP})
    producer.init_transactions(30)
    consumer = Consumer({**config, "group.id": GROUP})
    producer.begin_transaction()
    noted = TopicPartition("events-newer", 0, 0, note)
    producer.send_offsets_to_transaction([noted], consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    consumer.close()
    with pytest.raises(HelenusError, match="in a way that this version does not know") as failed:
        own(config, connector, "b", "events-newer")
    assert failed.value.kind is Kind.STATE


def test_notes_of_many_topics(config: dict[str, str], topic: str, connector: str) -> None:
    """Together more than a batch of the brokers may have."""
    log = KafkaLog(config)
    topics = [f"events-many{number}" for number in range(300)]
    for name in topics:
        log.create(name, 1, {})
    log.close()
    made = [Made(connector, name) for name in topics]
    run = replace(owner("a", connector), who="x" * 3900)
    assert claim(config, made, run, {}) == Claim()
    assert set(owners(config, made).values()) == {run}


def test_a_claim_that_was_killed_before_it_fenced(
    address: str, config: dict[str, str], topic: str, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one fences those that it did not."""
    first = log_of(config, connector, own(config, connector, "first"))
    first.append(topic, 0, b"k", b"first")
    first.flush(30)
    with monkeypatch.context() as patch:
        patch.setattr("helenus_sinks.kafka.owners._fence", _die)
        for run in ("killed", "killed-again"):
            with pytest.raises(KeyboardInterrupt):
                own(config, connector, run)
    own(config, connector, "last")
    first.append(topic, 0, b"k", b"late")
    with pytest.raises(NotOwner, match="the worker last"):
        first.flush(30)
    noted = owners(config, [Made(connector, EVENTS)])[Made(connector, EVENTS)]
    assert noted == owner("last", connector), "nothing is left to fence"
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
        assert claim(config, [Made("rights", EVENTS)], owner("a", "helenus-rights"), {}) == Claim()
        return
    with pytest.raises(Unavailable, match=r"authorization failed.*grant this login Write and Describe"):
        claim(config, [Made("rights", EVENTS)], owner("a", "helenus-rights"), {})


@pytest.mark.long
def test_positions_that_the_brokers_do_not_answer(
    only_kafka: Any, config: dict[str, str], topic: str, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka has a time limit for them, and keeps none. What was delivered is dropped; the log goes on later."""
    monkeypatch.setattr(owned_log, "_ANSWER_TIMEOUT_S", 1.0)
    log = log_of(config, connector, own(config, connector, "a"))
    position = {f"{connector}-group": [TopicPartition(topic, 0, 7)]}
    log.append(topic, 0, b"k", b"1")
    log.deliver(20)
    log.commit(position, 20)
    log.append(topic, 0, b"k", b"lost")
    log.deliver(20)
    only_kafka.kill("kafka")
    try:
        with pytest.raises(HelenusError) as error:
            log.commit(position, 20)
        assert error.value.kind is Kind.BROKER_UNREACHABLE
    finally:
        monkeypatch.undo()  # a broker that starts answers slowly
        only_kafka.start("kafka")
    log.append(topic, 0, b"k", b"2")
    log.deliver(20)
    log.commit(position, 20)
    log.close()
    assert values(config["bootstrap.servers"], topic) == [b"1", b"2"]
