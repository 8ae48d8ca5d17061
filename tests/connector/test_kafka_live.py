"""What a real Kafka shows of records that are not those that were read."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from patience import eventually
from pyspark.sql.streaming.datasource import ReadMaxRows

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.log import _kafka_planner
from helenus_connector.log._kafka_planner import KafkaPlanner
from helenus_connector.log._kafka_reader import read
from helenus_connector.log._kafka_watch import WAITS_S
from helenus_connector.log.events import OffsetRange
from helenus_connector.node_loss._last_report import NodeReport, find_last_report
from helenus_connector.query._batch_planner import BatchPlanner
from helenus_connector.query._task_reader import events_of
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode
from helenus_sinks.kafka.groups import LOOSE, read_group
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def stack(only_kafka: Stack) -> Stack:
    return only_kafka


def make(admin: AdminClient, topic: str, partitions: int) -> None:
    """A new topic. The tests of another file left a broker that may have no controller for a while."""

    def is_made() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=10)[topic].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError._TIMED_OUT:
                return False
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # the attempt before made it
                raise
        return True

    eventually(is_made, f"{topic} is made")


class Topic:
    """A topic of one partition, and a planner that looks at it all the time."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.name = name
        self.servers = {"bootstrap.servers": stack.status().bootstrap_servers, "log_level": "0"}
        self.planner = KafkaPlanner(self.servers, watches=True)
        self.admin = AdminClient(self.servers)
        make(self.admin, name, 1)

    def recreate(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result()
        deadline = time.monotonic() + 30
        while True:
            try:
                self.admin.create_topics([NewTopic(self.name, 1, 1)])[self.name].result()
                return
            except KafkaException:  # it is being deleted
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def append(self, count: int) -> None:
        producer = Producer(self.servers)
        for n in range(count):
            producer.produce(self.name, str(n))
        assert producer.flush(30) == 0

    def end(self, wanted: int) -> int:
        """Where it ends, and the leader epoch of then: when that is so, as a broker takes its time."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(HelenusError):
                if self.planner.latest(self.planner.partitions([self.name])).get(self.name) == {"0": wanted}:
                    return self.planner.leaders()[self.name]["0"]
            time.sleep(0.1)
        raise AssertionError(f"{self.name} does not end at {wanted}")


def test_events_of_several_partitions_come_in_chunks_of_one_partition_each(stack: Stack) -> None:
    servers = {"bootstrap.servers": stack.status().bootstrap_servers, "log_level": "0"}
    admin = AdminClient(servers)
    make(admin, "several", 3)
    # Idempotent, or retries of a topic that was just made may change the order.
    producer = Producer({**servers, "compression.type": "lz4", "enable.idempotence": "true"})
    wanted: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    for n in range(4_000):
        key, value = (b"k%d" % n, b"v%d" % n) if n % 9 else (None, None)
        producer.produce("several", value, key, n % 3)
        wanted.setdefault(n % 3, []).append((n // 3, key, value))
    assert producer.flush(30) == 0
    places = [OffsetRange("several", p, 10, len(of_partition) - 10) for p, of_partition in wanted.items()]
    events_by_partition: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    failures: list[object] = []
    for chunk in read(servers, places, "fail", lambda *lost: failures.append(lost), lambda *e: failures.append(e)):
        assert {m.partition() for m in chunk} == {chunk[0].partition()}
        events, _ = events_of(chunk)
        assert {(e.topic, e.partition) for e in events} == {("several", chunk[0].partition())}
        events_by_partition.setdefault(events[0].partition, []).extend((e.offset, e.key, e.value) for e in events)
    assert events_by_partition == {p: of_partition[10:-10] for p, of_partition in wanted.items()}
    assert not failures


def test_a_topic_that_is_recreated_is_not_read_on_from_the_old_offset(stack: Stack, tmp_path: Path) -> None:
    topic = Topic(stack, "events-ks.t")
    properties = {"bootstrap.servers": topic.servers["bootstrap.servers"], "checkpoint.dir": str(tmp_path)}
    worker = WorkerSettings.from_properties(properties, "worker")
    table = {"name": "t", "keyspace": "ks", "table": "t", "output.format": "json"}
    connector = ConnectorSettings.from_properties(table, "t")
    plan = QueryPlan(worker, {topic.name: connector}, str(tmp_path))
    plan.save()
    topic.append(10)
    topic.end(10)
    before = topic.planner.ids([topic.name])
    assert before[topic.name]
    assert topic.planner.ids([topic.name, "none"]) == before
    reader = BatchPlanner(str(plan.file))
    position = {"tick": 0, "topics": {}}
    deadline = time.monotonic() + 60
    while position["topics"] != {topic.name: {"0": 10}}:
        assert time.monotonic() < deadline
        position = reader.latest_offset(position, ReadMaxRows(1))
    topic.recreate()
    topic.append(20)
    while not reader._errors:
        assert time.monotonic() < deadline
        end = reader.latest_offset(position, ReadMaxRows(1))
        assert end["topics"].get(topic.name, {}) in ({"0": 10}, {"0": 20})
    assert reader._errors[topic.name].kind is Kind.OFFSETS_LOST
    assert "was deleted and recreated" in reader._errors[topic.name].what
    replace(plan, connectors={topic.name: connector.model_copy(update={"errors_data_loss": "continue"})}).save()
    while (end := reader.latest_offset(position, ReadMaxRows(1)))["topics"] != {topic.name: {"0": 20}}:
        assert time.monotonic() < deadline
    (part,) = (part for task in reader.partitions(position, end) for part in task.parts)  # type: ignore[attr-defined]
    assert (part.ranges, part.lost, part.error) == ((OffsetRange(topic.name, 0, 0, 20),), 1, None)


def test_records_lost_with_a_leader_are_found_though_overwritten(stack: Stack) -> None:
    """A broker comes back with less than it had acknowledged, as after an unclean election or a power cut."""
    topic = Topic(stack, "truncated")
    topic.append(100)
    topic.end(100)
    stack.stop("kafka")
    (log_directory,) = stack.directory.glob("kafka/data/truncated-0")
    shutil.copytree(log_directory, stack.directory / "kept")
    stack.start("kafka")
    first = topic.end(100)
    topic.append(50)
    assert topic.end(150) == first
    stack.stop("kafka")
    shutil.rmtree(log_directory)
    shutil.move(stack.directory / "kept", log_directory)
    stack.start("kafka")
    topic.append(200)
    second = topic.end(300)
    assert second > first
    leaders = {"0": first}
    assert topic.planner.cut(topic.name, leaders, {"0": 150}) == {"0": 100}
    assert topic.planner.cut(topic.name, leaders, {"0": 100}) == {}, "all before it is what it was"
    assert topic.planner.cut(topic.name, {"0": second}, {"0": 150}) == {}
    # Another leader with the same records.
    stack.stop("kafka")
    stack.start("kafka")
    assert topic.end(300) > second
    assert topic.planner.cut(topic.name, {"0": second}, {"0": 300}) == {}


def test_quiet_partitions_are_not_polled_and_their_new_records_are_found(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More partitions than are asked for each time. None is missed: new ones, in bursts, of a topic made again."""
    monkeypatch.setattr(_kafka_planner, "_BUSY_S", 0.5)
    monkeypatch.setattr(_kafka_planner, "pace_s", lambda *_: 3600.0)  # or that would find it
    servers = {"bootstrap.servers": stack.status().bootstrap_servers, "log_level": "0"}
    planner, admin, producer = KafkaPlanner(servers, watches=True), AdminClient(servers), Producer(servers)
    topics = {f"quiet-{n}": 5 for n in range(4)}
    for topic, n in topics.items():
        make(admin, topic, n)
    appended = {topic: dict.fromkeys(map(str, range(n)), 0) for topic, n in topics.items()}

    def append(topic: str, partition: int, count: int) -> None:
        for n in range(count):
            producer.produce(topic, str(n) * 1000, partition=partition)
        assert producer.flush(30) == 0
        appended[topic][str(partition)] += count

    def is_all_read() -> bool:
        with suppress(HelenusError):  # a new topic may have no leader yet
            planner.partitions(list(topics))  # as before each batch: or the client goes on to take it for missing
            return planner.latest(topics) == appended
        return False

    def all_are_quiet() -> bool:
        return is_all_read() and not planner._polled_until

    eventually(all_are_quiet, "no partition is asked for")
    assert len(planner._watch.topic_partitions) == 20
    for topic, partition, count in [("quiet-0", 0, 1), ("quiet-3", 4, 2000), ("quiet-0", 0, 1), ("quiet-1", 2, 1)]:
        append(topic, partition, count)
        eventually(is_all_read, f"{count} records of {topic} are found")
    assert 1 <= len(planner._polled_until) <= 3
    eventually(all_are_quiet, "no partition is asked for again")
    for topic in topics:
        for partition in range(5):
            append(topic, partition, 50)
    eventually(is_all_read, "records of all are found")
    topics.pop("quiet-2"), appended.pop("quiet-2")
    assert is_all_read()
    assert not {topic for topic, _ in planner._watch.topic_partitions} - topics.keys()
    topics["quiet-2"], appended["quiet-2"] = 5, dict.fromkeys("01234", 50)
    assert is_all_read()
    eventually(all_are_quiet, "no partition is asked for at the end")
    planner.close()


def test_unread_records_of_a_partition_do_not_delay_another_partitions(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what comes there is found only when a request has waited in vain for the others. Half of it at once is enough:
    a machine may be slow.
    """
    monkeypatch.setattr(_kafka_planner, "_BUSY_S", 0.0)
    monkeypatch.setattr(_kafka_planner, "pace_s", lambda *_: 3600.0)
    servers = {"bootstrap.servers": stack.status().bootstrap_servers, "log_level": "0"}
    planner, producer = KafkaPlanner(servers, watches=True), Producer(servers)
    make(AdminClient(servers), "pairs", 40)

    def are_quiet() -> bool:
        with suppress(HelenusError):
            planner.partitions(["pairs"])
            return bool(planner.latest({"pairs": 40})) and not planner._polled_until
        return False

    def append(partition: int) -> None:
        producer.produce("pairs", b"x", partition=partition)
        assert producer.flush(30) == 0

    def is_read(partition: int) -> bool:
        return planner.latest({"pairs": 40})["pairs"][str(partition)] == 1

    eventually(are_quiet, "no partition is asked for")
    waits = []
    for first in range(0, 20, 2):
        append(first)
        time.sleep(0.2)
        eventually(lambda first=first: is_read(first), "the record is found", 0.02)
        append(first + 1)
        start = time.monotonic()
        eventually(lambda second=first + 1: is_read(second), "the other's record is found", 0.02)
        waits.append(time.monotonic() - start)
    assert sorted(waits)[4] < WAITS_S / 4
    planner.close()


def test_a_topic_that_was_not_read_yet_is_read_at_once(stack: Stack) -> None:
    """By itself the client asks for a new topic's leader once a second, so half a second passes before most are read.
    Half of them at once is enough: a machine may be slow.
    """
    servers = {"bootstrap.servers": stack.status().bootstrap_servers, "log_level": "0"}
    admin, producer = AdminClient(servers), Producer(servers)
    topics = [f"unread-{n}" for n in range(9)]
    for topic in topics:
        make(admin, topic, 1)
        producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    waits = []
    for topic in topics:
        start = time.monotonic()
        assert sum(map(len, read(servers, [OffsetRange(topic, 0, 0, 1)], "fail", none_are, none_are))) == 1
        waits.append(time.monotonic() - start)
        time.sleep(0.1)
    assert sorted(waits)[4] < 0.25


def none_are(*arguments: object) -> None:
    raise AssertionError(arguments)


def test_the_last_event_of_a_lost_node(stack: Stack, tmp_path: Path) -> None:
    """By the brokers' own timestamps: its events end, and those of others go on."""
    servers = {"bootstrap.servers": stack.status().bootstrap_servers, "log_level": "0"}
    brokers = {"bootstrap.servers": servers["bootstrap.servers"]}
    worker = WorkerSettings.from_properties({**brokers, "checkpoint.dir": str(tmp_path)}, "worker")
    admin = AdminClient(servers)
    make(admin, "lost-a", 2)
    make(admin, "lost-b", 1)
    lost, other = (str(UUID(int=n)) for n in (1, 2))
    now_ms = time.time_ns() // 1_000_000
    producer = Producer(servers)
    for n in range(2000):
        sent_at = now_ms - 3_600_000 + n * 1500  # up to ten minutes ago
        for node in (lost, other) if n < 1000 else (other,):
            change = Change(f"{n:032x}", node, Scope.ROW, segment=5, position=n, write_time=sent_at * 1000)
            topic, partition = [("lost-a", 0), ("lost-a", 1), ("lost-b", 0)][n % 3]
            producer.produce(topic, encode(change), b"k", partition, timestamp=sent_at)
    assert producer.flush(30) == 0
    topics = {"lost-a": 2, "lost-b": 1}
    last_at = now_ms - 3_600_000 + 999 * 1500
    report = find_last_report(worker, topics, lost, now_ms)
    assert report is not None
    assert report._replace(write_time=None) == NodeReport(last_at, 5, 999, None)
    assert report.write_time is not None
    assert (last_at - 30_000) * 1000 <= report.write_time <= last_at * 1000
    report = find_last_report(worker, topics, other, now_ms)
    assert report is not None
    assert report.position == 1999
    assert find_last_report(worker, topics, str(UUID(int=3)), now_ms) is None


def test_a_group_has_the_positions_that_were_committed_for_dashboards(stack: Stack) -> None:
    topic = Topic(stack, "committed")
    topic.planner.commit("helenus-committed", {"committed": {"0": 3}})
    topic_partition = TopicPartition("committed", 0)

    def position() -> tuple[int, str | None]:
        (committed,) = read_group(topic.servers, "helenus-committed", [topic_partition])
        return committed.offset, committed.metadata

    eventually(lambda: position() == (3, LOOSE), lambda: str(position()))
    topic.planner.commit("helenus-committed", {"committed": {"0": 4}})
    eventually(lambda: position() == (4, LOOSE), lambda: str(position()))
    topic.planner.close()
