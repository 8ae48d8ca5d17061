"""What the workers of a group share, and what one of them has from an earlier time."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector._group_member import GroupMember
from helenus_connector.config.files import check_kafka
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._leader import KEY, Leader
from helenus_connector.group.documents import ConnectorRecords, SnapshotRecords, connector_values, snapshot_values
from helenus_connector.group.membership import GroupMembership
from helenus_connector.group.shared_topic import SharedTopic
from helenus_connector.group.term import begin_term
from helenus_connector.log.choice import fenced_topics
from helenus_connector.log.events import FencedRecord
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError

WORKER = {"bootstrap.servers": "h:1", "checkpoint.dir": "/c", "group.id": "helenus-workers"}
CONNECTOR = {
    "name": "shop-orders",
    "keyspace": "shop",
    "table": "orders",
    "cassandra.contact.points": "h",
    "cassandra.local.dc": "dc1",
    "value.converter.schema.registry.url": "http://h:1",
}


def leader(number: int) -> Leader:
    return Leader("h:8083", "http://h:8083", number, f"term {number}")


class Topic:
    """Stands for a SharedTopic."""

    def __init__(self, values: Mapping[str, Any] = {}) -> None:
        self.content = dict(values)
        self.written: list[dict[str, Any]] = []

    def values(self) -> dict[str, Any]:
        return dict(self.content)

    def update(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        changes = change(self.content)
        self.written.append(dict(changes))
        content = {key: value for key, value in {**self.content, **changes}.items() if value is not None}
        self.content = json.loads(json.dumps(content))  # as it comes back from the topic


names = st.text(min_size=1, max_size=8)
properties = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
connectors = st.dictionaries(
    names,
    st.fixed_dictionaries(
        {
            "config": properties,
            "state": st.sampled_from(["RUNNING", "PAUSED", "STOPPED"]),
            "file": st.none() | properties,
        }
    ),
    max_size=4,
)


@given(st.lists(connectors, min_size=1, max_size=4))
def test_connectors_come_back_as_they_were_saved_last(contents: list[dict[str, Any]]) -> None:
    topic = Topic({"helenus-leader": {}, "commit-a": {"tasks": 1}})
    for content in contents:
        ConnectorRecords(topic).save(content)  # type: ignore[arg-type]
    assert ConnectorRecords(topic).read() == contents[-1]  # type: ignore[arg-type]
    assert topic.content["commit-a"] == {"tasks": 1}, "what others keep there stays"


def test_a_deleted_connector_of_a_file_stays_deleted() -> None:
    topic = Topic()
    deleted = {"config": {"table": "t"}, "state": "DELETED", "file": {"table": "t"}}
    ConnectorRecords(topic).save({"a": deleted})  # type: ignore[arg-type]
    assert topic.content == {"helenus-file-a": {"properties": {"table": "t"}, "deleted": True}}
    assert ConnectorRecords(topic).read() == {"a": {**deleted, "config": {}}}  # type: ignore[arg-type]


def test_only_what_changed_is_written() -> None:
    topic = Topic()
    records = ConnectorRecords(topic)  # type: ignore[arg-type]
    connector = {"config": {"table": "t"}, "state": "RUNNING", "file": None}
    records.save({"a": connector, "b": connector})
    records.save({"a": connector, "b": {**connector, "state": "STOPPED"}})
    records.save({"a": connector})
    assert [sorted(changes) for changes in topic.written] == [
        ["connector-a", "connector-b", "target-state-a", "target-state-b"],
        ["target-state-b"],
        ["connector-b", "target-state-b"],
    ]
    # A worker of Kafka Connect's before 3.5 pauses it.
    assert topic.written[1]["target-state-b"] == {"state": "PAUSED", "state.v2": "STOPPED"}


def test_snapshots_come_back() -> None:
    topic = Topic()
    records = SnapshotRecords(topic)  # type: ignore[arg-type]
    assert records.read() is None
    content = {
        "tables": [
            {"connector": "a", "table": "t", "complete": "id", "needed": "", "snapshot": None, "whole": None},
            {"connector": "a", "table": "t/u", "complete": "", "needed": "gap", "snapshot": {"rows": 1}, "whole": None},
        ],
        "signals": [{"connector": "a", "topic": "s", "offsets": {"0": 3}}],
    }
    records.save(content)
    assert records.read() == content
    records.save({"tables": content["tables"][:1], "signals": []})
    assert records.read() == {"tables": content["tables"][:1], "signals": []}


@pytest.mark.parametrize(
    "record", [None, b"", b"{", b"[]", b"1", b'{"worker_id": 1}', b"[" * 100_000, b'{"number": true, "term": 1}']
)
def test_a_note_that_is_none(record: bytes | None) -> None:
    assert Leader.from_record(record) is None


def test_a_note_comes_back() -> None:
    leader = Leader("h:8083", "http://h:8083", 3, "abc")
    assert Leader.from_record(json.dumps(leader.to_value()).encode()) == leader
    assert KEY not in {*connector_values({}), *snapshot_values({"tables": [], "signals": []})}


def made_query(directory: Path, name: str, **parts: str) -> Path:
    query = directory / name
    (query / "offsets").mkdir(parents=True)
    for part, text in {"writers": "3", "held": "h", **parts}.items():
        (query / part).write_text(text)
    (query / "offsets" / "7").write_text("v1")
    return query


def lead(directory: Path, former: Leader | None, number: int) -> None:
    begin_term(directory, former, leader(number).term)


def test_positions_of_an_earlier_time_are_forgotten(tmp_path: Path) -> None:
    """Another worker led in between: the brokers have later ones."""
    query = made_query(tmp_path, "default")
    (tmp_path / "connectors.json").write_text("{}")
    (tmp_path / "schemas").mkdir()
    lead(tmp_path, None, 1)
    lead(tmp_path, leader(1), 2)
    assert (query / "offsets" / "7").exists(), "it led itself"
    # A connector was moved here that never ran here.
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "epochs").write_text("{}")
    lead(tmp_path, leader(3), 4)
    assert [path.name for path in query.iterdir()] == ["writers"], "tasks of before may have the lock"
    assert list((tmp_path / "moved").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"connectors.json", "schemas", "default", "moved", "term"}
    made_query(tmp_path, "other")
    lead(tmp_path, leader(4), 5)
    assert (tmp_path / "other" / "held").exists()


@pytest.mark.parametrize("former", [None, leader(1)])
def test_a_worker_that_ends_between_its_note_and_its_term(tmp_path: Path, former: Leader | None) -> None:
    """Its own note is then that of the former leader: nobody led in between, and what is there is not older."""
    if former is not None:
        lead(tmp_path, None, 1)
    query = made_query(tmp_path, "default")
    lead(tmp_path, former, 2)  # and the brokers have its note
    lead(tmp_path, leader(2), 3)
    assert (query / "held").exists()


class Killed(BaseException):
    pass


class Writer:
    """Stands for a TopicWriter, of a topic with these values. It ends with the first commit if it `kills`."""

    is_started = True

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.kills = False

    def start(self, deadline: float) -> None:
        pass

    def commit(self, changes: Mapping[str, Any], deadline: float, positions: object = None) -> None:
        self.values.update(changes)
        if self.kills:
            raise Killed

    def close(self) -> None:
        pass


def shared_topic(values: dict[str, Any]) -> SharedTopic:
    topic = SharedTopic(WorkerSettings.from_properties(WORKER, "worker.properties"))
    topic._writer = Writer(values)  # type: ignore[assignment]
    return topic


def begin(topic: SharedTopic, directory: Path, term: str) -> Leader:
    return topic.lead(term, dict, lambda former: begin_term(directory, former, term))


def test_a_worker_that_led_long_ago_and_ends_once_it_is_noted(tmp_path: Path) -> None:
    """Its note is that of the former leader at its next start: by then nothing must be left of its earlier term."""
    values: dict[str, Any] = {}
    other = tmp_path / "other"
    other.mkdir()
    begin(shared_topic(values), tmp_path, "first")
    query = made_query(tmp_path, "default")
    begin(shared_topic(values), other, "of another worker")
    topic = shared_topic(values)
    topic._writer.kills = True  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        begin(topic, tmp_path, "second")
    begin(shared_topic(values), tmp_path, "third")
    assert [path.name for path in query.iterdir()] == ["writers"]


def test_a_worker_that_ends_before_it_is_noted(tmp_path: Path) -> None:
    """The other worker leads on: its term does not become this one's by that it was read here."""
    lead(tmp_path, None, 1)
    lead(tmp_path, leader(7), 8)  # of which the brokers never learn
    query = made_query(tmp_path, "default")
    lead(tmp_path, leader(7), 9)
    assert [path.name for path in query.iterdir()] == ["writers"]


def test_numbers_go_on_where_the_topic_was_deleted(tmp_path: Path) -> None:
    """Records and states have the numbers of leaders: those of the next ones are not lower."""
    first = begin(shared_topic(values := {}), tmp_path, "first")
    second = begin(shared_topic(values), tmp_path, "second")
    assert second.number == first.number + 1
    anew = begin(shared_topic({}), tmp_path, "of a new topic")
    assert anew.number >= first.number > 1_700_000_000


class LateNote(Leader):
    """A note, of which the number is asked for just when a later one is read."""

    membership: GroupMembership

    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            note = json.dumps(leader(9).to_value()).encode()
            self.membership._note_record(Record(note))  # type: ignore[arg-type]
        return super().__getattribute__(name)


class Record:
    def __init__(self, value: bytes) -> None:
        self._value = value

    def key(self) -> bytes:
        return KEY.encode()

    def value(self) -> bytes:
        return self._value


def test_a_later_leader_is_read_just_when_a_worker_begins_to_lead() -> None:
    membership = GroupMembership(WorkerSettings.from_properties(WORKER, "worker.properties"), lambda: None)
    LateNote.membership = membership
    membership._noted = LateNote("h:1", "http://h:1", 1, "before")
    membership._is_assigned = True
    membership.note_begun(leader(2))
    assert not membership.leads


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"log": "pulsar", "data.log": "kafka", "pulsar.service.url": "pulsar://h:1"}, "with one message broker"),
        ({"data.log": "pulsar", "pulsar.service.url": "pulsar://h:1"}, "with one message broker"),
        ({"fence.writers": "false"}, "fence.writers"),
        ({"spark.master": "yarn"}, "local"),
        ({"standby.timeout.ms": "-1"}, "leave it out"),
        ({"group.id": "helenus-owners"}, "another name"),
    ],
)
def test_workers_that_are_of_no_group(more: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WorkerSettings.from_properties({**WORKER, **more}, "worker.properties")


def test_connectors_of_a_group_publish_exactly_once() -> None:
    worker = WorkerSettings.from_properties(WORKER, "worker.properties")
    assert worker.group_topic == "helenus-configs-helenus-workers"
    rows = {"state": "rows", "query.group": "orders"}
    supports = ({"exactly.once.support": support} for support in ("requested", "required"))
    for own in ({}, *supports, {"state": "keys"}, rows):
        assert worker.model.read_settings({**CONNECTOR, **own}, "c").exactly_once_support == "required"
    alone = WorkerSettings.from_properties({**WORKER, "group.id": ""}, "worker.properties")
    assert alone.model.read_settings(CONNECTOR, "c").exactly_once_support == "disabled"


def test_connectors_of_a_group_on_pulsar() -> None:
    on_pulsar = {"log": "pulsar", "pulsar.service.url": "pulsar://h:1"}
    worker = WorkerSettings.from_properties({**WORKER, **on_pulsar}, "worker.properties")
    connector = {key: text for key, text in CONNECTOR.items() if not key.startswith("value.converter")}
    for own in ({}, {"state": "keys"}, {"state": "rows", "query.group": "orders"}):
        assert worker.model.read_settings({**connector, **own}, "c").exactly_once_support == "disabled"


@pytest.mark.parametrize(
    "own",
    [{"exactly.once.support": "disabled"}, {"name": "workers"}],
)
def test_connectors_that_are_of_no_group(own: dict[str, str]) -> None:
    worker = WorkerSettings.from_properties(WORKER, "worker.properties")
    with pytest.raises(ConfigError, match=r"group\.id"):
        worker.model.read_settings({**CONNECTOR, **own}, "c")


class FullLog:
    """A Log on Pulsar whose queue is full after some records."""

    def __init__(self, room: int) -> None:
        self.waiting: list[str] = []
        self.room = room

    def append(self, topic: str, *_: object) -> None:
        if len(self.waiting) == self.room:
            raise HelenusError(Kind.APPEND_FAILED, "Pulsar takes no records: the queue is full", topic)
        self.waiting.append(topic)

    def close(self) -> None:
        self.waiting.clear()

    def keep(self, topic: str, epoch: int) -> None:
        pass


def test_a_transaction_on_pulsar_that_cannot_be_appended_is_not_sent_later() -> None:
    """Whoever owns the topics again reads what they have, and goes by that."""
    on_pulsar = {**WORKER, "log": "pulsar", "pulsar.service.url": "pulsar://h:1"}
    topics = fenced_topics(WorkerSettings.from_properties(on_pulsar, "worker.properties"))
    topics._log = log = FullLog(room=3)  # type: ignore[assignment]
    topics.note_owned(["a", "b"], 7)
    with pytest.raises(HelenusError, match="the queue is full"):
        topics.commit({name: [FencedRecord(b"k", b"v")] * 2 for name in ("a", "b")}, 10)
    assert log.waiting == []
    assert not topics.owns("a")


@pytest.mark.parametrize("prefix", ["kafka.", "consumer."])
def test_nobody_reads_what_was_aborted(prefix: str) -> None:
    def check(level: str) -> None:
        properties = {**WORKER, f"{prefix}isolation.level": level}
        check_kafka(WorkerSettings.from_properties(properties, "worker.properties"), Path("worker.properties"))

    check("read_committed")
    with pytest.raises(ConfigError, match=r"isolation\.level=read_uncommitted.*transactions that were aborted"):
        check("read_uncommitted")


def test_nobody_moves_or_resumes_a_connector_whose_positions_are_committed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read would be committed over its later positions. One that is resumed before has its own batches."""
    in_batch: set[str] = set()
    renewed: list[dict[str, int]] = []
    lock = threading.RLock()

    def earliest(topics: list[str]) -> dict[str, dict[str, int]]:
        in_batch.add("data of resumed")
        return {topic: {"0": 5} for topic in topics}

    def renew(_: object, counts: dict[str, int]) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(lock.acquire, False).result()
        renewed.append(counts)

    topics = ("resumed", "stopped")
    tasks = {name: SimpleNamespace(events=name, data=f"data of {name}", error=None) for name in topics}
    connector = SimpleNamespace(settings=None, wanted="STOPPED", tasks=tasks)
    connectors: Any = SimpleNamespace(
        lock=lock, all=lambda: {"c": connector}, topics_in_batch=lambda _: set(in_batch), earliest=earliest
    )
    member = GroupMember(WorkerSettings.from_properties(WORKER, "worker.properties"), threading.Event())
    monkeypatch.setattr(member, "positions", lambda: SimpleNamespace(renew=renew))
    monkeypatch.setattr(member, "_renewed_at", -math.inf)
    member.renew_positions(connectors)
    assert renewed == [{"stopped": 1}]
