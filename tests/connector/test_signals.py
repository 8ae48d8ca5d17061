"""Signals of a topic: what a message asks for is done once, whatever stands in the topic."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.log.events import OffsetRange
from helenus_connector.snapshot import signals as module
from helenus_connector.snapshot._signal import EXECUTE, Signal, parse_signal
from helenus_connector.snapshot.request import SnapshotRequest, checked_request
from helenus_connector.snapshot.signals import Signals
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_connector.testing.broker import MemoryMessage, MemoryPlanner
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind

TOPIC = "signals"
TABLES = ("orders", "lines")


def signal(type_: object = EXECUTE, *collections: object, **more: object) -> bytes:
    return json.dumps({"id": "x", "type": type_, "data": {"data-collections": collections, **more}}).encode()


class House:
    """A worker with two connectors, and a topic of signals in memory. A test may start it again from its files."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.messages: dict[int, list[MemoryMessage]] = {0: [], 1: []}
        self.faults: list[HelenusError] = []
        self.reads: list[OffsetRange] = []
        monkeypatch.setattr(module, "read_signals", self.read)
        monkeypatch.setattr(module, "planner", lambda _: self.planner())
        self.start()

    def start(self) -> None:
        worker = WorkerSettings.from_properties(
            {"bootstrap.servers": "h:1", "checkpoint.dir": str(self.directory)}, "worker"
        )
        self.connectors = Connectors(worker, lambda _: {})
        for name, tables in (("shop", ",".join(TABLES)), ("other", "t")):
            properties = {"keyspace": name, "table": tables, "output.format": "json", "signal.topic": TOPIC}
            self.connectors.put(name, properties)
            self.connectors.all()[name].is_scanned = True
        self.snapshots = Snapshots(worker, self.connectors)
        self.snapshots._tables = self  # type: ignore[assignment]
        self.signals = Signals(worker, self.connectors, self.snapshots)

    def planner(self) -> MemoryPlanner:
        planner = MemoryPlanner()
        if self.messages:
            planner.ends = {
                TOPIC: {str(p): len(messages_of_partition) for p, messages_of_partition in self.messages.items()}
            }
        else:
            planner.refused = {"another": KeyError(), TOPIC: KeyError()}
            planner.partitions = lambda topics: dict.fromkeys(topics, 0)  # type: ignore[method-assign]
        return planner

    def read(
        self, worker: WorkerSettings, places: Sequence[OffsetRange], failed: Callable[[OffsetRange, HelenusError], None]
    ) -> Generator[list[MemoryMessage], None, None]:
        self.reads += places
        for offset_range in places:
            yield self.messages[offset_range.partition][offset_range.start : offset_range.end]

    def send(self, value: bytes | None, key: bytes | None = b"shop", partition: int = 0) -> None:
        messages_of_partition = self.messages[partition]
        messages_of_partition.append(MemoryMessage(TOPIC, partition, len(messages_of_partition), key=key, value=value))

    def turn(self) -> list[dict[str, Any]]:
        """One look at the topic; what was logged."""
        self.signals._forget()  # its planner knows the ends of before
        with structlog.testing.capture_logs() as logged:
            self.signals.turn()
        return [line for line in logged if line["event"].startswith("signal")]  # type: ignore[misc]

    def filters_by_table(self, name: str = "shop") -> dict[str, str]:
        return {snapshot.table: snapshot.where for snapshot in self.snapshots.last_snapshots(name)}

    # as Tables

    def read_definition(self, settings: ConnectorSettings) -> Table:
        if self.faults:
            raise self.faults.pop()
        columns = (Column("id", parse("int"), "partition_key", 0), Column("v", parse("int")))
        return Table(settings.keyspace, settings.table, uuid.UUID(int=1), columns, cdc=True)

    def check(self, settings: ConnectorSettings, table: Table, where: str) -> None:
        if "7" in where:
            raise HelenusError(Kind.CONFIG, "Cassandra refuses it")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("collections", "begun"),
    [
        (["shop.orders"], ["orders"]),
        ([r"shop\..*"], ["orders", "lines"]),
        (["shop.lines", "shop.orders", "other.t"], ["orders", "lines"]),
        ([r"(shop|other)\.(orders|t)"], ["orders"]),
        (["shop"], []),
        (["orders"], []),
        ([r"shop\.ord"], []),
    ],
)
def test_which_tables_are_meant(collections: list[str], begun: list[str], house: House) -> None:
    house.send(signal(EXECUTE, *collections, type="BLOCKING"))
    [line] = house.turn()
    assert sorted(house.filters_by_table()) == sorted(begun)
    assert line["event"] == ("signal.done" if begun else "signal.skipped")
    if not begun:
        assert line["reason"] == "no table of the connector matches: it has shop.orders, shop.lines"


def test_a_signal_is_acted_on_once(house: House) -> None:
    house.send(signal(EXECUTE, "shop.orders"))
    house.turn()
    house.snapshots.stop("shop")
    assert not house.turn()
    house.start()
    assert not house.turn()
    assert [snapshot.state for snapshot in house.snapshots.last_snapshots("shop")] == ["STOPPED"]
    house.send(signal(EXECUTE, "shop.orders"), partition=1)
    house.start()
    [line] = house.turn()
    assert (line["event"], line["tables"]) == ("signal.done", "orders")
    assert [snapshot.state for snapshot in house.snapshots.last_snapshots("shop")] == ["SCANNING"]


def test_a_signal_waits_for_a_worker_and_a_connector_that_is_away(house: House) -> None:
    house.turn()
    house.connectors.set_wanted("shop", "STOPPED")
    house.send(signal(EXECUTE, "shop.orders"))
    house.send(signal(EXECUTE, "other.t"), b"other")
    house.turn()
    assert (house.filters_by_table(), house.filters_by_table("other")) == ({}, {"t": ""})
    house.start()
    house.connectors.set_wanted("shop", "RUNNING")
    house.turn()
    assert house.filters_by_table() == {"orders": ""}


def test_a_signal_is_tried_again_until_cassandra_answers(house: House) -> None:
    house.faults = [HelenusError(Kind.CASSANDRA_READ, "away")]
    house.send(signal(EXECUTE, "shop.orders"))
    house.send(signal(EXECUTE, "other.t"), b"other")
    waits, handled = house.turn()
    assert (waits["event"], waits["connector"], handled["connector"]) == ("signals.waiting", "shop", "other")
    house.turn()
    assert house.filters_by_table() == {}, "after a pause"
    house.faults = [HelenusError(Kind.CASSANDRA_READ, "away")]
    house.signals._held["shop"] = (1, 0.0)
    assert house.turn() == [], "it is said once"
    house.signals._held["shop"] = (2, 0.0)
    assert [line["event"] for line in house.turn()] == ["signal.done"]
    assert (house.filters_by_table(), house.filters_by_table("other")) == ({"orders": ""}, {"t": ""})


def test_a_kill_before_the_position_is_kept(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.send(signal(EXECUTE, "shop.orders"))
    with monkeypatch.context() as patch:
        patch.setattr(house.signals, "_save_offsets", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            house.turn()
    house.start()
    lines = house.turn()
    assert "a snapshot of orders is under way" in lines[0]["reason"]
    assert house.filters_by_table() == {"orders": ""}


def test_partitions_of_a_table(house: House) -> None:
    conditions = [
        {"data-collection": "other.*", "filter": "id = 1"},
        {"data-collection": r"shop\.or.*", "filter": "id IN (5, 6)"},
    ]
    house.send(signal(EXECUTE, r"shop\..*", **{"additional-conditions": conditions}))
    house.turn()
    assert house.filters_by_table() == {"orders": "id IN (5, 6)", "lines": ""}


@pytest.mark.parametrize(
    ("where", "reason"), [("v = 1", "the partition key of"), ("id = 7", "refuses it"), ("1 = 1", "is id")]
)
def test_a_filter_that_is_none_skips_its_table_alone(where: str, reason: str, house: House) -> None:
    conditions = [{"data-collection": "shop.orders", "filter": where}]
    house.send(signal(EXECUTE, r"shop\..*", **{"additional-conditions": conditions}))
    skipped, handled = house.turn()
    assert (skipped["event"], skipped["table"], handled["tables"]) == ("signal.skipped", "orders", "lines")
    assert reason in skipped["reason"]
    assert house.filters_by_table() == {"lines": ""}


def test_stop_pause_and_resume(house: House) -> None:
    house.send(signal(EXECUTE, r"shop\..*"))
    house.send(signal("pause-snapshot"))
    house.turn()
    assert {snapshot.shown()["state"] for snapshot in house.snapshots.last_snapshots("shop")} == {"PAUSED"}
    house.send(signal("stop-snapshot", "shop.lines"))
    house.send(b'{"type": "resume-snapshot"}')
    house.turn()
    assert {snapshot.table: snapshot.state for snapshot in house.snapshots.last_snapshots("shop")} == {
        "orders": "SCANNING",
        "lines": "STOPPED",
    }
    house.send(b'{"type": "stop-snapshot", "data": null}')
    assert house.turn()[0]["tables"] == "orders"


@pytest.mark.parametrize(
    "value",
    [
        b"hello",
        b"\xff\xfe",
        b"5",
        b"[" * 60_000,
        b"1" * 60_000,
        b"{}",
        signal("drop-table"),
        signal(["execute-snapshot"]),
        signal(EXECUTE),
        signal(EXECUTE, 5),
        signal(EXECUTE, ""),
        signal(EXECUTE, "shop.("),
        signal(EXECUTE, "(?=x)shop.orders"),
        signal(EXECUTE, "\ud800"),
        signal(EXECUTE, "shop.orders", type="sometimes"),
        signal(EXECUTE, "shop.orders", type=5),
        signal(EXECUTE, "shop.orders", **{"additional-conditions": "id = 5"}),
        signal(EXECUTE, "shop.orders", **{"additional-conditions": [{"filter": "id = 5"}]}),
        b'{"type": "execute-snapshot", "data": "shop.orders"}',
        b'{"type": "execute-snapshot", "data": {"data-collections": "shop.orders"}}',
        signal(EXECUTE, "x" * 70_000),
    ],
)
def test_a_bad_message_is_one_line_and_skipped(value: bytes, house: House) -> None:
    house.send(value)
    house.send(signal(EXECUTE, "shop.orders"))
    skipped, handled = house.turn()
    assert (skipped["event"], skipped["offset"]) == ("signal.skipped", 0)
    assert len(skipped["reason"].splitlines()) == 1
    assert len(skipped["reason"]) < 300
    assert handled["tables"] == "orders"
    assert not house.turn()


def test_messages_for_nobody_are_passed_over(house: House) -> None:
    for key in (None, b"", b"shopping", b"\xff"):
        house.send(b"hello", key)
    house.send(None)
    house.send(b"")
    assert not house.turn()
    assert house.turn() == []
    assert len(house.reads) == 1, "what was read is not read again"


def test_a_pattern_takes_no_long_time() -> None:
    """With Python's own matching it would not end before the test's timeout."""
    names = ["shop." + "a" * 48]
    assert not Signal(EXECUTE, (r"shop\.(\w|\w)*!", r"(.*)*(.*)*(.*)*!")).tables(names)
    with pytest.raises(HelenusError, match="cannot read"):
        checked_request(SnapshotRequest(where=f"id IN ({','.join(['0x1'] * 5000)}"), House.read_definition)  # type: ignore[arg-type]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
datas = st.fixed_dictionaries(
    {},
    optional={
        "data-collections": json_values | st.lists(st.text()),
        "type": json_values | st.sampled_from(["INCREMENTAL", "blocking"]),
        "additional-conditions": json_values
        | st.lists(st.fixed_dictionaries({"data-collection": st.text(), "filter": json_values | st.text()})),
    },
)
messages = st.fixed_dictionaries(
    {"type": st.sampled_from(["execute-snapshot", "stop-snapshot", "pause-snapshot"]) | json_values},
    optional={"data": datas | json_values, "id": json_values},
)


@given(st.binary() | (messages | json_values).map(lambda value: json.dumps(value).encode()))
def test_whatever_is_in_a_message(value: bytes) -> None:
    names = ["shop.orders", "shop.lines"]
    tables: list[str] = []
    wheres: list[str] = []
    reason = ["it is read"]
    try:
        parsed_signal = parse_signal(value)
        tables = parsed_signal.tables(names)
        wheres = [parsed_signal.where(name) for name in tables]
    except ValueError as error:
        reason = str(error).splitlines()
    assert len(reason) == 1
    assert set(tables) <= set(names)
    assert all(isinstance(where, str) for where in wheres)


def test_a_topic_that_comes_later_and_one_that_is_made_again(house: House) -> None:
    there, house.messages = house.messages, {}
    assert [line["reason"].partition(",")[0] for line in house.turn()] == ["there is no topic signals"]
    assert not house.turn(), "it is said once"
    house.messages = there
    house.send(signal(EXECUTE, "shop.orders"))
    house.send(signal("pause-snapshot"))
    house.turn()
    assert house.filters_by_table() == {"orders": ""}
    house.messages = {0: [], 1: []}
    house.send(signal("stop-snapshot"))
    assert house.turn()[0]["type"] == "stop-snapshot"


def test_a_deleted_connector_is_passed_over(house: House) -> None:
    house.send(signal(EXECUTE, "shop.orders"))
    house.turn()
    house.connectors.delete("shop")
    house.send(signal(EXECUTE, "shop.lines"))
    house.send(signal(EXECUTE, "other.t"), b"other")
    assert [line["connector"] for line in house.turn()] == ["other"]
