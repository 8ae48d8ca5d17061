"""What the state learns of records, in every form that it goes by; and which settings it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from connector.test_verify import FORMS, Topic, int32, settings_with, table

from helenus_connector.config.state import marker_topic
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.query import worker_process
from helenus_connector.state.keys import _record_reader
from helenus_connector.state.keys._key_index import KeyReport
from helenus_connector.state.keys._operator import range_test
from helenus_connector.state.keys._plan import FollowedTopic, state_directory
from helenus_connector.state.keys._record_reader import KeyRecords
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import Action, HelenusError
from helenus_schemas.event.change import Bound, Scope
from helenus_schemas.settings.properties import ConfigError

_WITH_OP = [form for form in FORMS if "headers" not in form]


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[Table | None]:
    """The table as Cassandra has it: None, as nobody altered it."""
    current_table: list[Table | None] = [None]
    monkeypatch.setattr(worker_process, "session_for", lambda _: None)
    monkeypatch.setattr(_record_reader, "read_definition", lambda *_: current_table[0] and (1, current_table[0]))
    return current_table


def parse_reports(topic: Topic, markers: bool = False, table: Table | None = None) -> list[KeyReport]:
    records = KeyRecords(FollowedTopic(topic.settings, table or topic.table, markers), False, topic.registry.schema)
    return [report for message in topic.messages for report in records.parse_record(message)]


@pytest.mark.parametrize("form", _WITH_OP)
def test_rows_that_live_expire_and_are_gone(form: dict[str, str]) -> None:
    topic = Topic(table(("v", "text")), {"state": "keys", "tombstones.on.delete": "false", **form})
    topic.publish((int32(1), int32(2)), [b"x"], expires=1_700_000_000)
    topic.publish((int32(1), int32(3)), [b"y"])
    topic.publish((int32(1), int32(2)), None)
    group = topic.codec.encode((int32(1), None))
    reports = parse_reports(topic)
    assert [(report.group, report.name, report.is_live, report.expires) for report in reports] == [
        (group, topic.codec.encode((int32(1), int32(2))), True, 1_700_000_000),
        (group, topic.codec.encode((int32(1), int32(3))), True, None),
        (group, topic.codec.encode((int32(1), int32(2))), False, None),
    ]
    assert [int.from_bytes(report.offset or b"", "big") for report in reports] == [0, 1, 2]


@pytest.mark.parametrize("form", _WITH_OP)
def test_delete_markers(form: dict[str, str]) -> None:
    topic = Topic(
        table(("v", "text"), ("s", "text static")), {"state": "keys", "tombstones.on.delete": "false", **form}
    )
    if topic.settings.is_envelope:
        topic.alter(table(("v", "text")))
    statics = None if topic.settings.is_envelope else Image((None, b"static"), 5)
    key = (int32(1), None)
    group = topic.codec.encode(key)
    topic.marker(key, Scope.PARTITION, statics)
    topic.marker(key, Scope.RANGE, statics, (Bound(True, (int32(2) or b"",)), Bound(False, (int32(5) or b"",))))
    topic.marker((), Scope.TABLE)
    partition, own, range_, own_after_range, truncation = parse_reports(topic)
    assert (partition.scope, partition.group, partition.bounds) == ("partition", group, None)
    assert (own.scope, own.name, own.is_live) == (None, group, statics is not None)
    assert (own_after_range.name, own_after_range.is_live) == (group, statics is not None)
    assert (truncation.scope, truncation.group) == ("table", b"")
    assert range_.scope == "range"
    assert range_.bounds is not None
    covers = range_test(topic.table)
    inside = [c for c in range(8) if covers(topic.codec.encode((int32(1), int32(c))), range_.bounds)]
    assert inside == [2, 3, 4]
    assert not covers(group, range_.bounds)
    elsewhere = parse_reports(topic, markers=True)
    assert [(report.scope, report.offset) for report in elsewhere] == [
        ("partition", None),
        ("range", None),
        ("table", None),
    ]


def test_a_key_of_another_table_is_left_out() -> None:
    topic, other = (Topic(table(("v", "text")), {"state": "keys"}) for _ in range(2))
    other.publish((int32(1), int32(2)), [b"x"])
    topic.messages = other.messages
    topic.registry = type(topic.registry)()
    topic.alter(table(("v", "text"), keys=("text", "text")))
    assert parse_reports(topic) == []


def test_a_key_column_that_is_renamed_has_the_query_begin_again(now: list[Table | None]) -> None:
    """By the names of before no key in JSON could be read, and its row would never be known."""
    topic = Topic(table(("v", "text")), {"state": "keys", "output.format": "json"})
    before = topic.table
    renamed = tuple(replace(c, name="new" if c.kind == "clustering" else c.name) for c in before.columns)
    topic.alter(replace(before, columns=renamed))
    topic.publish((int32(1), int32(2)), [b"x"])
    now[0] = topic.table
    assert [report.is_live for report in parse_reports(topic)] == [True]
    with pytest.raises(HelenusError, match="the table's key was altered") as error:
        parse_reports(topic, table=before)
    assert error.value.action is Action.RETRY


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"markers": "false"}, "without delete markers deleted rows stay on the topic"),
        ({"state": "keys", "headers": "op"}, "goes by the header expires"),
        ({"state": "keys", "headers": "expires", "output.format": "debezium"}, "goes by the header op"),
        ({"state": "keys", "resolver": "none", "output.format": "debezium"}, "resolver=none has no rows"),
        ({"state": "keys", "output.format": "cep44"}, "do not say which rows live"),
        ({"state": "keys", "schema.on.incompatible": "new-topic"}, "stays on one data topic"),
        ({"query.group": "state"}, "is where state lies"),
        ({"state": "all"}, "give one of none, keys, rows"),
        ({"state": "rows"}, "query.group: a connector with state=rows has a query of its own"),
        ({"state": "rows", "query.group": "g", "resolver": "reread"}, "leave it out"),
        ({"state": "rows", "query.group": "g", "gate": "quorum"}, "copies merge into nothing"),
        ({"state": "rows", "query.group": "g", "output.format": "cep44"}, "do not say which rows live"),
    ],
)
def test_settings_that_do_not_go_together(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        settings_with(properties)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../etc", "plain"])
def test_any_name_is_one_directory(name: str, tmp_path: Path) -> None:
    worker = WorkerSettings.from_properties({"bootstrap.servers": "k:9092", "checkpoint.dir": str(tmp_path)}, "worker")
    directory = state_directory(worker, name)
    assert directory.resolve() == directory
    assert directory.parent == tmp_path / "state"


def test_the_topic_of_markers_is_beside_that_of_the_data() -> None:
    assert marker_topic("data-ks.t") == "markers-data-ks.t"
    assert marker_topic("persistent://a/b/data") == "persistent://a/b/markers-data"
