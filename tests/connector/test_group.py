"""What the workers of a group share, and what one of them has from an earlier time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._leader import KEY, Leader
from helenus_connector.group.documents import ConnectorRecords, SnapshotRecords, connector_values, snapshot_values
from helenus_connector.group.term import begin_term
from helenus_schemas.settings.properties import ConfigError

WORKER = {"bootstrap.servers": "h:1", "checkpoint.dir": "/c", "group.id": "helenus"}
CONNECTOR = {
    "name": "shop-orders",
    "keyspace": "shop",
    "table": "orders",
    "cassandra.contact.points": "h",
    "cassandra.local.dc": "dc1",
    "value.converter.schema.registry.url": "http://h:1",
}


class Topic:
    """Stands for a SharedTopic."""

    def __init__(self, values: Mapping[str, Any] = {}) -> None:
        self.values = dict(values)
        self.written: list[dict[str, Any]] = []

    def write(self, changes: Mapping[str, Any]) -> None:
        self.written.append(dict(changes))
        changed = {key: value for key, value in changes.items() if value is not None}
        # As it comes back from the topic.
        self.values = json.loads(json.dumps({**self.values, **changed}))
        for key in changes.keys() - changed.keys():
            self.values.pop(key, None)


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
    assert topic.values["commit-a"] == {"tasks": 1}, "what others keep there stays"


def test_a_deleted_connector_of_a_file_stays_deleted() -> None:
    topic = Topic()
    deleted = {"config": {"table": "t"}, "state": "DELETED", "file": {"table": "t"}}
    ConnectorRecords(topic).save({"a": deleted})  # type: ignore[arg-type]
    assert topic.values == {"helenus-file-a": {"properties": {"table": "t"}, "deleted": True}}
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


def leader(number: int) -> Leader:
    return Leader("h:8083", "http://h:8083", number, f"term {number}")


def made_query(directory: Path, name: str, **parts: str) -> Path:
    query = directory / name
    (query / "offsets").mkdir(parents=True)
    for part, text in {"writers": "3", "held": "h", **parts}.items():
        (query / part).write_text(text)
    (query / "offsets" / "7").write_text("v1")
    return query


def test_positions_of_an_earlier_time_are_forgotten(tmp_path: Path) -> None:
    """Another worker led in between: the brokers have later ones."""
    query, rows = made_query(tmp_path, "default"), made_query(tmp_path, "rows")
    (rows / "state").mkdir()
    (tmp_path / "connectors.json").write_text("{}")
    (tmp_path / "schemas").mkdir()
    begin_term(tmp_path, None, leader(1))
    begin_term(tmp_path, leader(1), leader(2))
    assert (query / "offsets" / "7").exists(), "it led itself"
    begin_term(tmp_path, leader(3), leader(4))
    assert [path.name for path in query.iterdir()] == ["writers"], "tasks of before may have the lock"
    assert {path.name for path in rows.iterdir()} == {"writers", "held", "offsets", "state"}
    assert (tmp_path / "connectors.json").exists()
    made_query(tmp_path, "other")
    begin_term(tmp_path, leader(4), leader(5))
    assert (tmp_path / "other" / "held").exists()


def test_a_worker_that_ends_between_its_note_and_its_term(tmp_path: Path) -> None:
    """Its own note is not its term yet: what may be older is forgotten, which costs nothing."""
    begin_term(tmp_path, None, leader(1))
    query = made_query(tmp_path, "default")
    begin_term(tmp_path, leader(2), leader(3))
    assert not (query / "held").exists()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"log": "pulsar", "pulsar.service.url": "pulsar://h:1"}, "takes Kafka"),
        ({"data.log": "pulsar", "pulsar.service.url": "pulsar://h:1"}, "takes Kafka"),
        ({"fence.writers": "false"}, "fence.writers"),
        ({"spark.master": "yarn"}, "local"),
        ({"standby.timeout.ms": "-1"}, "leave it out"),
    ],
)
def test_workers_that_are_of_no_group(more: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WorkerSettings.from_properties({**WORKER, **more}, "worker.properties")


def test_connectors_of_a_group_publish_exactly_once() -> None:
    worker = WorkerSettings.from_properties(WORKER, "worker.properties")
    assert worker.group_topic == "helenus-configs-helenus"
    for own in ({}, {"exactly.once.support": "requested"}, {"exactly.once.support": "required"}):
        assert worker.model.read_settings({**CONNECTOR, **own}, "c").exactly_once_support == "required"
    alone = WorkerSettings.from_properties({**WORKER, "group.id": ""}, "worker.properties")
    assert alone.model.read_settings(CONNECTOR, "c").exactly_once_support == "disabled"


@pytest.mark.parametrize(
    "own", [{"exactly.once.support": "disabled"}, {"state": "keys"}, {"state": "rows"}, {"state": " rows "}]
)
def test_connectors_that_are_of_no_group(own: dict[str, str]) -> None:
    worker = WorkerSettings.from_properties(WORKER, "worker.properties")
    with pytest.raises(ConfigError, match=r"group\.id"):
        worker.model.read_settings({**CONNECTOR, **own}, "c")
