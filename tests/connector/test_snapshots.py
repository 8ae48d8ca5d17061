"""Snapshots: every key once at least, whatever dies on the way; when they begin, and how fast they go."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import sys
import threading
import time
import uuid
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest, ReadTimeout
from cassandra.protocol import ProtocolException
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually
from rich.console import Console
from starlette.exceptions import HTTPException

from helenus_connector import snapshot_command
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors, UnknownConnector
from helenus_connector.log.events import Offsets
from helenus_connector.query import worker_process
from helenus_connector.rest._snapshots import _read_request
from helenus_connector.snapshot import _keys, _pace, _publishing, _run, _scan
from helenus_connector.snapshot import snapshots as module
from helenus_connector.snapshot._keys import KeyReader
from helenus_connector.snapshot._pace import ScanRate, ScanTurns, free_keys, is_quiet
from helenus_connector.snapshot._ring import TokenStretch, new_stretch, remaining_share
from helenus_connector.snapshot._scan import ScanResult, ScanSlice, scan
from helenus_connector.snapshot._tables import SnapshotTables
from helenus_connector.snapshot.request import SnapshotRequest, checked_request, request_for_key, request_for_tokens
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_connector.testing.broker import MemoryPlanner
from helenus_connector.testing.cassandra import Answer, Host, MemorySession
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.placement import LEAST_TOKEN as FIRST
from helenus_schemas.event.placement import MOST_TOKEN as LAST
from helenus_schemas.event.placement import partition
from helenus_schemas.event.wire import decode
from helenus_schemas.service.logs import setup

TOPIC = "events-ks.t"
INT = parse("int")
TABLE = Table(
    "ks",
    "t",
    uuid.UUID(int=1),
    (
        Column("id", INT, "partition_key", 0),
        Column("c", INT, "clustering", 0),
        Column("s", INT, "static"),
        Column("v", INT),
    ),
    cdc=True,
)
PARTITIONS = 3


def number(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "big", signed=True)


class Rows:
    """A table in memory: partitions at random tokens, with rows, and a static value or none, in pages as they are asked
    for. `failures` are raised one after the other.
    """

    def __init__(self, seed: int, partitions: int = 60, most_rows: int = 9) -> None:
        chance = random.Random(seed)
        tokens = sorted({chance.randint(FIRST + 1, LAST) for _ in range(partitions)})
        self.partitions = [
            (token, number(index), chance.randint(0, most_rows), chance.choice([None, number(7)]))
            for index, token in enumerate(tokens)
        ]
        self.failures: list[Exception] = []

    @property
    def keys(self) -> set[tuple[bytes, bytes]]:
        return {(key, number(c)) for _, key, rows, _ in self.partitions for c in range(rows)}

    @property
    def with_statics(self) -> set[bytes]:
        return {key for _, key, _, static in self.partitions if static}

    def answer(self, cql: str, values: list[Any], paging: bytes | None, size: int | None) -> Answer:
        if self.failures:
            raise self.failures.pop(0)
        after, until = (int.from_bytes(v, "big", signed=True) for v in values) if values else (FIRST, LAST)
        rows: list[tuple[bytes | None, ...]] = []
        for token, key, count, static in self.partitions:
            if not after < token <= until:
                continue
            if "DISTINCT" in cql:
                rows.append((key, number(token, 8), static))
            else:
                rows += [(key, number(c), number(token, 8)) for c in range(count)]
                if not count and static:
                    rows.append((key, None, number(token, 8)))
        start = 0
        if paging is not None:
            last = pickle.loads(paging)
            start = next((index + 1 for index, row in enumerate(rows) if row == last), len(rows))
        page = rows[start : start + (size or len(rows))]
        return page, pickle.dumps(page[-1]) if start + len(page) < len(rows) else None

    def session(self) -> MemorySession:
        return MemorySession([Host("a")], {"ks": 1}, self.answer)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_keys, "_PAGE", 7)
    monkeypatch.setattr(_keys, "_STATICS_PAGE", 3)


def scanned(rows: Rows, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have slices read these rows, and append to this Log."""
    reader = KeyReader(rows.session(), TABLE, 1)
    monkeypatch.setattr(_scan, "_reader", lambda _: reader)
    monkeypatch.setattr(_scan, "_log", lambda _: log)


def settings(**more: str) -> ConnectorSettings:
    keys = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json"}
    return ConnectorSettings.from_properties({**keys, **{k.replace("_", "."): v for k, v in more.items()}}, "test")


def worker(directory: Path) -> WorkerSettings:
    return WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(directory)}, "worker")


def appended(log: MemoryLog) -> tuple[set[tuple[bytes, bytes]], set[bytes]]:
    """The keys of rows, and of partitions whose static columns are to be read, that were flushed."""
    codec = KeyCodec(TABLE)
    keys: set[Any] = set()
    statics: set[Any] = set()
    for record in log.acknowledged:
        change = decode(record.value or b"")
        key = codec.decode(record.key or b"")
        assert (change.digest, change.node) == (None, None)
        (statics if change.scope is Scope.STATIC else keys).add(key[0] if change.scope is Scope.STATIC else key)
    return keys, statics


ends = st.integers(FIRST, LAST)


@given(ends, ends, st.floats(0, 1))
def test_halves_are_what_is_left(bound: int, other: int, how_far: float) -> None:
    after, until = sorted((bound, other))
    position = after + int((until - after) * how_far)
    whole = TokenStretch(after, until, min(max(position, after), until), "00")
    halves = whole.halves()
    if halves is None:
        assert whole.until - whole.at < 2
        return
    first, second = halves
    assert (first.after, first.at, first.paging) == (whole.after, whole.at, "00"), "it goes on where it was"
    assert first.until == second.after == second.at < second.until == whole.until
    assert first.at < first.until
    assert second.paging is None
    assert remaining_share(halves) == pytest.approx(whole.remaining_share)


def test_a_slice_goes_on_where_the_one_before_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows, log = Rows(1), MemoryLog({TOPIC: PARTITIONS})
    scanned(rows, log, monkeypatch)
    remaining: TokenStretch | None = new_stretch()
    counted = turns = 0
    while remaining is not None:
        slice_ = ScanSlice(
            worker(tmp_path), settings(), TABLE, remaining, "", PARTITIONS, 10, 5.0, not counted, setup()
        )
        result = scan(slice_)
        assert result.error is None
        assert result.left is None or result.left.at >= remaining.at
        remaining, counted, turns = result.left, counted + result.rows, turns + 1
    assert turns > 10
    assert counted == len(rows.keys) == len(log.acknowledged), "each once"
    assert appended(log)[0] == rows.keys
    origins = [decode(record.value or b"").origin for record in log.acknowledged]
    assert origins == [Origin.SNAPSHOT_FIRST, *[Origin.SNAPSHOT] * (counted - 1)]
    tokens = {key: token for token, key, _, _ in rows.partitions}
    for record in log.acknowledged:
        [key, _] = KeyCodec(TABLE).decode(record.key or b"")
        assert record.partition == partition(tokens[key or b""], PARTITIONS)


def test_what_times_out_is_asked_for_in_smaller_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_keys, "_PAGE", 1000)
    rows, log = Rows(2), MemoryLog({TOPIC: PARTITIONS})
    scanned(rows, log, monkeypatch)
    rows.failures = [ReadTimeout("slow"), ReadTimeout("slow")]
    slice_ = ScanSlice(worker(tmp_path), settings(), TABLE, new_stretch(), "", PARTITIONS, 10_000, 60.0, True, setup())
    assert scan(slice_).error is None
    assert appended(log)[0] == rows.keys


@pytest.mark.parametrize(
    "error", [InvalidRequest("Undefined column"), ProtocolException(0x0A, "Invalid paging state", None)]
)
def test_a_refused_statement_is_said_to_be(error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows, log = Rows(2), MemoryLog({TOPIC: PARTITIONS})
    scanned(rows, log, monkeypatch)
    rows.failures = [error]
    slice_ = ScanSlice(worker(tmp_path), settings(), TABLE, new_stretch(), "", PARTITIONS, 10, 60.0, True, setup())
    result = scan(slice_)
    assert result.is_refused
    assert result.error is not None
    assert result.rows == 0


class Died(Exception):
    """The worker was killed."""


class House:
    """A worker's snapshots over a table in memory: slices run when a turn begins, in any order, and may fail. A test
    may kill it: another one goes on from the files.
    """

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 1, names: str = "t", **more: str
    ) -> None:
        self.names = names
        self.monkeypatch = monkeypatch
        self.chance = random.Random(seed)
        self.rows = Rows(seed)
        self.log = MemoryLog({TOPIC: PARTITIONS})
        self.directory = directory
        self.settings = settings(**more)
        self.format = {"output.format": "json"}
        self.table = TABLE
        self.faults: list[Exception | HelenusError] = []
        self.die_at = 0
        self.more = 0  # partitions that the events topic got since
        self.processed = True
        scanned(self.rows, self.log, monkeypatch)
        monkeypatch.setattr(_run, "events_log", lambda _: self.log)
        for asking in (module, _publishing):
            monkeypatch.setattr(asking, "ASK_S", 0.0)
        monkeypatch.setattr(_pace, "_MAX_REST_S", 0.0)
        monkeypatch.setattr(module, "_LOOK_S", 0.0)
        self.start()

    def start(self) -> None:
        self.connectors = Connectors(worker(self.directory), lambda _: {})
        self.connectors.put("n", {k: str(v) for k, v in self._properties().items()})
        self.connectors.all()["n"].is_scanned = True
        for task in self.connectors.all()["n"].tasks.values():
            task.ready, task.changed_at = True, time.monotonic()
        self.snapshots = Snapshots(worker(self.directory), self.connectors)
        self.snapshots._tables = self  # type: ignore[assignment]
        self.snapshots._publishing._planner = Planner(self)
        self.connectors.held_positions("default").read_offsets = self.where  # type: ignore[method-assign]
        self.max_slices = 2
        self.flying: list[tuple[ScanSlice, Future[ScanResult]]] = []

    def _properties(self) -> dict[str, Any]:
        named = {"keyspace": "ks", "table": self.names, "snapshot.max.lag": "100", **self.format}
        return {**named, "snapshot.mode": self.settings.snapshot_mode}

    # as Tables

    def table_id(self, settings: ConnectorSettings) -> str | None:
        return str(self.table.id)

    def read_definition(self, settings: ConnectorSettings) -> Table:
        return self.table

    def check(self, settings: ConnectorSettings, table: Table, where: str) -> None:
        """It is taken."""

    def close(self) -> None:
        """Nothing is open."""

    # as Jobs

    def submit(self, slice_: ScanSlice) -> Future[ScanResult]:
        future: Future[ScanResult] = Future()
        self.flying.append((replace(slice_, most=min(slice_.most, 15)), future))
        return future

    def ends(self) -> dict[str, int]:
        counts = {str(p): 0 for p in range(PARTITIONS + self.more)}
        for record in self.log.acknowledged:
            counts[str(record.partition)] += 1
        return counts

    def where(self) -> Offsets:
        return {TOPIC: self.ends() if self.processed else {}, "events-ks.u": self.ends()}

    def turn(self) -> None:
        self.chance.shuffle(self.flying)
        for slice_, future in self.flying:
            self._step()
            result = ScanResult(error=self.faults.pop()) if self.faults else scan(slice_)  # type: ignore[arg-type]
            self._step()
            future.set_result(result)
        self.flying.clear()
        for run in self.snapshots._runs.values():
            run.retry_at = 0.0
        self.snapshots._turn(self)  # type: ignore[arg-type]

    def _step(self) -> None:
        self.die_at -= 1
        if self.die_at == 0:
            raise Died

    def run(self, turns: int = 500, table: str = "t") -> dict[str, Any]:
        """ScanTurns until a table's snapshot is over; it, as it is shown."""
        for _ in range(turns):
            self.turn()
            snapshot = next((each for each in self.snapshots.last_snapshots("n") if each.table == table), None)
            if snapshot is not None and snapshot.is_over:
                return snapshot.shown()
        raise AssertionError(f"not over: {snapshot and snapshot.shown()}")


class Planner(MemoryPlanner):
    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house

    @property  # type: ignore[override]
    def ends(self) -> Offsets:
        return {TOPIC: self.house.ends(), "events-ks.u": self.house.ends()}

    @ends.setter
    def ends(self, _: Offsets) -> None: ...


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path, monkeypatch)


def test_all_keys_are_on_the_topic_and_it_is_complete(house: House) -> None:
    shown = house.run()
    assert (shown["state"], shown["done"], shown["cause"]) == ("COMPLETE", 1.0, "initial")
    assert appended(house.log) == (house.rows.keys, house.rows.with_statics)
    last = decode(house.log.acknowledged[-1].value or b"")
    assert last.origin is Origin.SNAPSHOT_LAST
    house.start()
    for _ in range(5):
        house.turn()
    assert not house.snapshots._runs, "complete is complete"
    assert decode(house.log.acknowledged[-1].value or b"").origin is Origin.SNAPSHOT_LAST


@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_in_debezium_s_records_has_each_row_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path, monkeypatch, seed)
    house.format = {
        "output.format": "debezium-cassandra",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    house.start()
    assert house.run()["state"] == "COMPLETE"
    assert appended(house.log) == (house.rows.keys, house.rows.with_statics)
    assert len(house.log.acknowledged) == len(house.rows.keys) + len(house.rows.with_statics)
    origins = {decode(record.value or b"").origin for record in house.log.acknowledged}
    assert origins == {Origin.SNAPSHOT_FIRST, Origin.SNAPSHOT}


@pytest.mark.parametrize("seed", range(25))
def test_killed_again_and_again(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch, seed)
    for _ in range(10):
        house.die_at = house.chance.randint(1, 12)
        if house.chance.random() < 0.5:
            house.faults = [HelenusError(Kind.CASSANDRA_READ, "away")] * house.chance.randint(0, 3)
        try:
            house.run()
            break
        except Died:
            house.start()
    house.die_at = 0
    assert house.run()["state"] == "COMPLETE"
    assert appended(house.log) == (house.rows.keys, house.rows.with_statics)


def test_it_waits_for_a_connector_that_lags(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.processed = False
    for _ in range(100):
        house.turn()
    assert 0 < len(house.log.acknowledged) <= 150, "snapshot.max.lag, and what was on its way"
    [snapshot] = house.snapshots.last_snapshots("n")
    assert (snapshot.state, snapshot.waiting) == ("SCANNING", None), "that it waits for a moment is how it goes on"
    monkeypatch.setattr(_run, "_LAGS_S", -1.0)
    house.turn()
    unprocessed = sum(house.ends().values())
    assert snapshot.waiting == f"{unprocessed} events of the table are not processed yet (snapshot.max.lag)"
    house.processed = True
    house.turn()
    house.turn()
    assert snapshot.waiting is None
    assert house.run()["state"] == "COMPLETE"


def test_paused_stopped_and_begun_again(house: House) -> None:
    house.turn()
    house.snapshots.pause("n", True)
    for _ in range(5):
        house.turn()
    before = len(house.log.acknowledged)
    for _ in range(5):
        house.turn()
    assert len(house.log.acknowledged) == before
    [snapshot] = house.snapshots.last_snapshots("n")
    assert snapshot.shown()["state"] == "PAUSED"
    house.start()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert snapshot.shown()["state"] == "PAUSED", "also after a restart"
    house.snapshots.stop("n")
    assert house.run()["state"] == "STOPPED"
    house.start()
    house.turn()
    assert not house.snapshots._runs, "what an operator stopped does not begin by itself"
    house.snapshots.begin("n")
    assert house.run()["state"] == "COMPLETE"


def test_the_snapshots_of_some_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is named wrongly is refused, and none is ended."""
    house = House(tmp_path, monkeypatch, names="t,u")
    house.turn()
    assert [snapshot.table for snapshot in house.snapshots.last_snapshots("n", ["u"])] == ["u"]
    for request in (house.snapshots.last_snapshots, house.snapshots.stop):
        with pytest.raises(HelenusError, match="there is no table w, but t, u"):
            request("n", ["t", "w"])
    assert [snapshot.table for snapshot in house.snapshots.stop("n", ["t"])] == ["t"]
    assert {snapshot.table: snapshot.state for snapshot in house.snapshots.last_snapshots("n")} == {
        "t": "STOPPED",
        "u": "SCANNING",
    }
    assert house.snapshots.stop("n", ["t"]) == [], "it is over"


def test_a_connector_that_is_paused_pauses_its_snapshot(house: House) -> None:
    house.turn()
    house.connectors.set_wanted("n", "PAUSED")
    for _ in range(5):
        house.turn()
    before = len(house.log.acknowledged)
    for _ in range(5):
        house.turn()
    assert len(house.log.acknowledged) == before
    [snapshot] = house.snapshots.last_snapshots("n")
    assert snapshot.waiting == "the connector is paused"
    house.connectors.set_wanted("n", "RUNNING")
    assert house.run()["state"] == "COMPLETE"


@pytest.mark.parametrize("gone", [False, True])
def test_a_table_that_can_not_go_on_holds_up_no_other(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With snapshot.tables.parallel=1 too: its task failed, or it left the connector."""
    house = House(tmp_path, monkeypatch, names="t, u")
    house.turn()
    task = house.connectors.all()["n"].tasks["t"]
    if gone:
        house.connectors.put("n", {**house._properties(), "table": "u"})
        house.connectors.all()["n"].tasks["u"].ready = True
    else:
        task.error = HelenusError(Kind.RECORD_TOO_LARGE, "a record is too large")
    assert house.run(table="u")["state"] == "COMPLETE"
    [snapshot] = [each for each in house.snapshots.last_snapshots("n") if each.table == "t"]
    why = "its table is not the connector's now" if gone else "a record is too large: "
    assert snapshot.state == "SCANNING"
    assert str(snapshot.waiting).startswith(why)
    if gone:
        house.connectors.put("n", house._properties())
        for table_task in house.connectors.all()["n"].tasks.values():
            table_task.ready = True
    else:
        task.error = None
    assert house.run()["state"] == "COMPLETE", "it goes on where it was"
    assert appended(house.log)[0] == house.rows.keys


def test_a_topic_that_has_more_partitions_is_asked_for_them_again(house: House) -> None:
    house.turn()
    house.turn()
    before = len(house.log.appended)
    house.connectors.all()["n"].tasks["t"].error = HelenusError(Kind.PARTITIONS_CHANGED, "it has more")
    house.turn()
    house.turn()
    house.more = 4
    house.log.counts[TOPIC] += house.more
    house.connectors.all()["n"].tasks["t"].error = None
    assert house.run()["state"] == "COMPLETE"
    tokens = {key: token for token, key, _, _ in house.rows.partitions}
    later = house.log.acknowledged[before + 20 :]  # what was on its way had the old number
    assert len(later) > 50
    for record in later[:-1]:
        [key, _] = KeyCodec(TABLE).decode(record.key or b"")
        assert record.partition == partition(tokens[key or b""], PARTITIONS + house.more)


def test_an_events_topic_that_lost_its_end_fails_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch, snapshot_mode="when_needed")
    snapshot = None
    while snapshot is None or snapshot.state != "PUBLISHING":
        house.turn()
        [snapshot] = house.snapshots.last_snapshots("n")
    house.processed = False
    whole = house.ends()
    with monkeypatch.context() as removed:
        removed.setattr(_run, "_SHORT_S", -1.0)
        removed.setattr(house, "ends", lambda: {**whole, "0": -1})
        house.turn()
        assert snapshot.state == "PUBLISHING", "as Pulsar says of a partition whose messages it has all removed"
    monkeypatch.setattr(house, "ends", lambda: {**whole, "0": 0})
    house.turn()
    house.turn()
    assert snapshot.state == "PUBLISHING", "a broker that just came back may have less for a moment"
    monkeypatch.setattr(_run, "_SHORT_S", -1.0)
    house.turn()
    assert (snapshot.state, snapshot.error) == ("FAILED", _publishing._LOST)
    house.turn()
    house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert (snapshot.state, snapshot.cause) == ("SCANNING", _publishing._LOST), "what was lost is made up for"


def test_a_connector_is_not_stopped_before_its_patterns_were_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path, monkeypatch, snapshot_mode="initial_only")
    house.connectors.all()["n"].is_scanned = False
    assert house.run()["state"] == "COMPLETE"
    house.turn()
    assert house.connectors.status("n").state == "RUNNING"
    house.connectors.all()["n"].is_scanned = True
    house.turn()
    assert house.connectors.status("n").state == "STOPPED"


def test_keys_that_are_always_refused_fail_their_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch, snapshot_mode="never")
    house.snapshots.begin("n", ["t"], SnapshotRequest(where="id = 5"))
    house.rows.failures = [InvalidRequest("Key may not be empty")] * 50
    shown = house.run()
    assert shown["state"] == "FAILED"
    assert shown["error"].startswith("Cassandra refuses to read keys: Key may not be empty (ks.t): ask for other part")
    house.snapshots.begin("n")
    house.rows.failures = [InvalidRequest("a guardrail")] * 50
    assert house.run()["state"] == "COMPLETE", "of the whole table an operator may change what refuses it"


def test_a_slice_counts_all_that_it_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of 60 partitions a third have static columns, and Cassandra is asked for no page that is thrown away."""
    rows, log = Rows(1), MemoryLog({TOPIC: PARTITIONS})
    page_sizes: list[int] = []
    real = rows.answer

    def answer(cql: str, values: list[Any], paging: bytes | None, size: int | None) -> Answer:
        page, state = real(cql, values, paging, size)
        page_sizes.append(len(page))
        return page, state

    monkeypatch.setattr(rows, "answer", answer)
    scanned(rows, log, monkeypatch)
    for stretch, max_rows in ((new_stretch(statics=True), 9), (new_stretch(), 21)):
        page_sizes.clear()
        result = scan(
            ScanSlice(worker(tmp_path), settings(), TABLE, stretch, "", PARTITIONS, max_rows, 60.0, False, setup())
        )
        assert result.read == max_rows == sum(page_sizes)
        assert result.rows < max_rows or not stretch.statics


@pytest.mark.parametrize("error", [ReadTimeout("slow"), InvalidRequest("Key may not be empty")])
def test_a_where_is_tried_before_it_is_taken(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: object) -> Answer:
        raise error

    tables = SnapshotTables()
    session = MemorySession([Host("a")], {"ks": 1}, answer)
    monkeypatch.setattr(tables, "_session", lambda _: session)
    monkeypatch.setattr(tables, "_forget", lambda _: pytest.fail("the session is good"))
    if isinstance(error, ReadTimeout):
        tables.check(settings(), TABLE, "id = 5")  # the scan tries that again
        return
    with pytest.raises(HelenusError, match=r"Cassandra refuses id = '': .*Key may not be empty"):
        tables.check(settings(), TABLE, "id = ''")


def test_another_consistency_is_another_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Rows(1).session()
    monkeypatch.setattr(worker_process, "session_for", lambda _: session)
    monkeypatch.setattr(worker_process, "_reused", {})

    def level(name: str) -> int:
        connector_settings = settings(snapshot_consistency=name)
        return _scan._reader(
            ScanSlice(worker(tmp_path), connector_settings, TABLE, new_stretch(), "", 1, 1, 1.0, True, setup())
        )._consistency

    assert [level("LOCAL_QUORUM"), level("ALL"), level("LOCAL_QUORUM")] == [6, 5, 6]


def test_a_server_that_is_away_holds_up_its_own_tables_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {**house._properties(), "table": "u"}
    house.connectors.put("other", properties)
    house.connectors.all()["other"].tasks["u"].ready = True
    away = HelenusError(Kind.CASSANDRA_UNREACHABLE, "no node answers")

    def id_of(settings: ConnectorSettings) -> str:
        if settings.table == "u":
            raise away
        return str(TABLE.id)

    monkeypatch.setattr(house, "table_id", id_of)
    assert house.run()["state"] == "COMPLETE"


@pytest.mark.parametrize(
    ("mode", "begun"), [("never", 0), ("initial", 1), ("when_needed", 1), ("always", 3), ("initial_only", 1)]
)
def test_when_a_snapshot_begins(mode: str, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch, snapshot_mode=mode)
    for _ in range(3):
        for _ in range(60):
            house.turn()
        if mode == "initial_only":
            assert house.connectors.status("n").state == "STOPPED"
        house.start()
    origins = [decode(record.value or b"").origin for record in house.log.acknowledged]
    assert origins.count(Origin.SNAPSHOT_FIRST) == begun


def test_a_recreated_table_is_a_new_one(house: House) -> None:
    house.run()
    house.table = replace(TABLE, id=uuid.UUID(int=2))
    house.turn()
    house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert (snapshot.state, snapshot.cause, snapshot.table_id) == ("SCANNING", "initial", str(uuid.UUID(int=2)))
    house.turn()
    house.table = replace(TABLE, id=uuid.UUID(int=3))
    house.faults = [HelenusError(Kind.CASSANDRA_READ, "no such table")]
    for _ in range(200):
        house.turn()
        [snapshot] = house.snapshots.last_snapshots("n")
        if snapshot.state == "COMPLETE":
            break
    assert (snapshot.state, snapshot.table_id) == ("COMPLETE", str(uuid.UUID(int=3))), (
        "recreated while it was under way"
    )


def test_lost_changes_need_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch, snapshot_mode="when_needed")
    house.run()
    task = house.connectors.all()["n"].tasks["t"]
    house.snapshots.need(task, "a gap")
    house.start()
    house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert (snapshot.state, snapshot.cause) == ("SCANNING", "a gap")
    house.snapshots.need(task, "another gap")
    house.run()
    house.turn()
    house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert (snapshot.state, snapshot.cause) == ("SCANNING", "another gap"), "of rows that were scanned before it"


def test_a_needed_snapshot_that_failed_begins_again_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier one is complete, but it is of before the gap."""
    house = House(tmp_path, monkeypatch, snapshot_mode="when_needed")
    house.run()
    house.snapshots.need(house.connectors.all()["n"].tasks["t"], "a gap")
    house.turn()
    house.turn()
    house.faults = [HelenusError(Kind.BROKER_REFUSED, "may not write")]
    assert house.run()["state"] == "FAILED"
    for _ in range(5):
        house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert snapshot.state == "FAILED", "not over and over"
    house.start()
    shown = house.run()
    assert (shown["state"], shown["cause"]) == ("COMPLETE", "a gap")


def test_a_state_that_begins_has_its_table_snapshot_once_more(house: House) -> None:
    """What is complete fed no state, or one that is gone: rows of which it knows one column would lack the others."""
    house.run()
    task = house.connectors.all()["n"].tasks["t"]
    house.log.acknowledged.clear()
    assert house.snapshots.has_all(task)
    house.snapshots.renew(task)
    assert not house.snapshots.has_all(task)
    house.turn()
    house.snapshots.renew(task)  # one that is under way feeds it
    shown = house.run()
    assert (shown["state"], shown["cause"]) == ("COMPLETE", "initial")
    assert appended(house.log) == (house.rows.keys, house.rows.with_statics)
    assert house.snapshots.has_all(task)
    house.turn()
    assert not house.snapshots._runs


def test_new_state_gets_a_snapshot_despite_an_earlier_stopped_one(house: House) -> None:
    """What an operator stopped was for a data topic that goes on without it; this one would never know its rows."""
    house.turn()
    house.turn()
    house.snapshots.stop("n")
    house.turn()
    task = house.connectors.all()["n"].tasks["t"]
    house.snapshots.renew(task)
    shown = house.run()
    assert (shown["state"], shown["cause"]) == ("COMPLETE", "initial")
    assert house.snapshots.has_all(task)


def test_a_gap_needs_nothing_of_a_connector_that_does_not_ask_for_it(house: House) -> None:
    house.run()
    house.snapshots.need(house.connectors.all()["n"].tasks["t"], "a gap")
    house.turn()
    assert not house.snapshots._runs


def test_a_part_does_not_hide_that_the_whole_was_stopped(house: House) -> None:
    house.turn()
    house.snapshots.stop("n")
    house.run()
    house.start()
    house.snapshots.begin("n", ["t"], SnapshotRequest(where="id = 5"))
    assert house.run()["state"] == "COMPLETE"
    for _ in range(5):
        house.turn()
    assert not house.snapshots._runs, "what an operator stopped does not begin by itself"
    house.start()
    house.turn()
    house.turn()
    assert not house.snapshots._runs, "nor after a restart"


def test_a_part_does_not_hide_that_the_whole_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector that is only to publish what was there goes on until it has."""
    house = House(tmp_path, monkeypatch, snapshot_mode="initial_only")
    house.turn()
    house.faults = [HelenusError(Kind.BROKER_REFUSED, "may not write")]
    assert house.run()["state"] == "FAILED"
    house.snapshots.begin("n", ["t"], SnapshotRequest(where="id = 5"))
    assert house.run()["state"] == "COMPLETE"
    for _ in range(5):
        house.turn()
    assert house.connectors.all()["n"].wanted == "RUNNING", "not all of the table is published"
    assert not house.snapshots._runs, "it begins again with the worker"
    house.snapshots.begin("n", ["t"], SnapshotRequest(where="id = 6"))
    house.start()
    for _ in range(200):
        house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert (snapshot.cause, snapshot.state) == ("initial", "COMPLETE"), (
        "also after a part with which the worker went on"
    )
    assert house.connectors.all()["n"].wanted == "STOPPED"


def test_the_first_row_is_marked_also_if_the_first_slice_failed(house: House) -> None:
    house.turn()
    house.faults = [HelenusError(Kind.CASSANDRA_READ, "away")] * 2
    assert house.run()["state"] == "COMPLETE"
    origins = [decode(record.value or b"").origin for record in house.log.acknowledged]
    assert origins.count(Origin.SNAPSHOT_FIRST) == 1
    assert origins[0] is Origin.SNAPSHOT_FIRST


@pytest.mark.parametrize("stops_at", ["ends", "append_last_event"])
def test_what_is_stopped_stays_so(stops_at: str, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a message broker is asked for the ends, and nobody waits for that."""
    house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    holder: Any = _publishing if stops_at == "append_last_event" else house.snapshots._publishing
    real = getattr(holder, stops_at)

    def stop_first(*arguments: Any) -> Any:
        if (snapshot.state == "SCANNING" and not snapshot.left) or stops_at == "append_last_event":
            stopping = threading.Thread(target=house.snapshots.stop, args=("n",))
            stopping.start()
            stopping.join(5)
            assert not stopping.is_alive(), "it waits for the broker"
        return real(*arguments)

    monkeypatch.setattr(holder, stops_at, stop_first)
    assert house.run()["state"] == "STOPPED"
    house.turn()
    assert snapshot.state == "STOPPED"
    assert not house.snapshots.store.for_table("n", "t").complete


def test_a_topic_that_can_not_be_asked_for_its_ends_is_not_published(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.turn()
    house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(Planner, "latest", lambda *_: {})
    monkeypatch.setattr(_publishing, "planner", lambda _: Planner(house))
    house.processed = False
    for _ in range(100):
        house.turn()
    assert snapshot.state == "SCANNING"
    assert "has no leader" in str(snapshot.waiting)
    monkeypatch.setattr(Planner, "latest", MemoryPlanner.latest)
    house.processed = True
    assert house.run()["state"] == "COMPLETE"


def test_what_is_complete_shows_the_same_after_a_restart(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    before = next(shown for _ in range(200) if (shown := passed(house, now))["state"] == "COMPLETE")
    assert before["rate"] > 0
    house.start()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert snapshot.shown() == before


def passed(house: House, now: list[float]) -> dict[str, Any]:
    """What is shown after a second more."""
    now[0] += 1.0
    house.turn()
    [snapshot] = house.snapshots.last_snapshots("n")
    return snapshot.shown()


def test_time_that_is_waited_is_not_scanned_in(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate, and how long it still takes, go by the time in which it went on."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pass_by(seconds: int) -> None:
        for _ in range(seconds):
            now[0] += 1.0
            house.turn()

    pass_by(4)
    [snapshot] = house.snapshots.last_snapshots("n")
    before = snapshot.shown()
    assert before["rate"] > 0
    house.snapshots.pause("n", True)
    house.turn()
    rows = snapshot.rows
    pass_by(1000)
    assert snapshot.rows == rows
    after = snapshot.shown()
    assert after["rate"] == pytest.approx(rows / 4, rel=0.5)
    assert after["eta_s"] == pytest.approx(before["eta_s"], rel=1.0)
    house.start()
    [snapshot] = house.snapshots.last_snapshots("n")
    assert snapshot.shown()["rate"] == after["rate"], "nor that in which the worker was down"


@pytest.mark.parametrize(
    ("tables", "snapshot_request", "message"),
    [
        (["u"], SnapshotRequest(), "there is no table u, but t"),
        ([], SnapshotRequest(where="c = 1"), "the partition key of ks.t is id, and c was given"),
        ([], SnapshotRequest(where="id = 1 AND c = 1"), "the partition key of ks.t is id, and id, c was given"),
        ([], SnapshotRequest(where="id = 1; DROP TABLE t"), "cannot read '; DROP TABLE t'"),
        ([], SnapshotRequest(where="id = 1 AND id = 2"), "id is given twice"),
        ([], SnapshotRequest(where="token(id) > 5"), "cannot read 'token(id) > 5'"),
        ([], SnapshotRequest(where="id = '\ud800'"), r"is no UTF-8"),
    ],
)
def test_what_can_not_be_asked_for(
    tables: list[str], snapshot_request: SnapshotRequest, message: str, house: House
) -> None:
    with pytest.raises(HelenusError, match=message.replace("(", r"\(").replace(")", r"\)")) as error:
        house.snapshots.begin("n", tables, snapshot_request)
    assert error.value.kind is Kind.CONFIG
    assert not house.snapshots.last_snapshots("n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"where": ""}, "where: a text is expected"),
        ({"where": 5}, "where: a text is expected"),
        ({"token_range": " "}, "token_range: a text is expected"),
        ({"key": {}}, "key: a JSON object is expected"),
        ({"key": [1]}, "key: a JSON object is expected"),
        ({"key": {"id": 5}, "where": "id = 5"}, "give one of key and where, not both"),
    ],
)
def test_an_empty_part_is_not_the_whole_table(body: dict[str, Any], message: str) -> None:
    with pytest.raises(HTTPException) as error:
        _read_request(body)
    assert error.value.status_code == 400
    assert message in error.value.detail


def test_what_is_asked_of_a_part() -> None:
    assert _read_request({"tables": ["t"], "where": None}) == SnapshotRequest()
    assert _read_request({"where": "id = 5"}) == SnapshotRequest(where="id = 5")
    assert _read_request({"key": {"id": 5}}) == SnapshotRequest(where="id = 5")
    assert _read_request({"token_range": "5:9"}) == SnapshotRequest(((5, 9),))
    assert _read_request({"token_range": "20:,5:9"}) == SnapshotRequest(((5, 9), (20, LAST)))


def test_one_at_a_time(house: House) -> None:
    house.snapshots.begin("n")
    with pytest.raises(HelenusError, match="a snapshot of t is under way"):
        house.snapshots.begin("n")
    with pytest.raises(UnknownConnector):
        house.snapshots.begin("other")


def test_what_a_snapshot_waits_for_is_shown_while_it_does(house: House) -> None:
    house.turn()
    for hold, release, why in (
        (lambda: house.snapshots.pause("n", True), lambda: house.snapshots.pause("n", False), "it is paused"),
        (
            lambda: house.connectors.set_wanted("n", "PAUSED"),
            lambda: house.connectors.set_wanted("n", "RUNNING"),
            "the connector is paused",
        ),
    ):
        hold()
        house.turn()
        assert house.snapshots.last_snapshots("n")[0].waiting == why
        release()
        house.turn()
        assert house.snapshots.last_snapshots("n")[0].waiting is None
    assert house.run()["state"] == "COMPLETE"


def test_a_deleted_connector_takes_its_snapshots_with_it(house: House) -> None:
    house.turn()
    with house.snapshots.store.changing():
        house.snapshots.store.signals["n", "signals"] = {"0": 5}
    house.connectors.delete("n")
    house.turn()
    assert not house.snapshots._runs
    content = json.loads((house.directory / "snapshots").read_text().partition("\n")[2])
    assert content["tables"] == []
    assert content["signals"][0]["offsets"] == {"0": 5}, "a signal is acted on once"
    house.start()
    assert house.run()["cause"] == "initial", "another one of the same name begins with one"


def test_a_deleted_connector_that_is_made_again_at_once(house: House) -> None:
    house.turn()
    [before] = house.snapshots.last_snapshots("n")
    house.connectors.delete("n")
    house.connectors.put("n", {k: str(v) for k, v in house._properties().items()})
    house.connectors.all()["n"].tasks["t"].ready = True
    assert house.run()["state"] == "COMPLETE"
    [snapshot] = house.snapshots.last_snapshots("n")
    assert snapshot is not before
    assert before.state == "SCANNING"


def test_the_thread_sleeps_while_nothing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch)
    house.turn()
    house.snapshots.pause("n", True)
    turns: list[float] = []

    def turn(_: object) -> None:
        turns.append(time.monotonic())
        type(house.snapshots)._turn(house.snapshots, house)  # type: ignore[arg-type]

    monkeypatch.setattr(house.snapshots, "_turn", turn)
    thread = threading.Thread(target=house.snapshots._run, args=(house,), daemon=True)
    thread.start()
    eventually(lambda: len(turns) > 2, "it looks")
    assert turns[-1] - turns[-2] > 0.8, "once a second"
    house.snapshots.pause("n", False)  # which wakes it
    eventually(lambda: bool(house.flying), "it goes on")
    begun, (_, future) = len(turns), house.flying[0]
    future.set_result(ScanResult(rows=1, left=None))
    eventually(lambda: len(turns) > begun, "a slice that is done wakes it")
    house.snapshots.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_part_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, monkeypatch, snapshot_mode="never")
    house.snapshots.begin("n", ["t"], request_for_tokens(f"0:{LAST}"))
    assert house.run()["done"] == 1.0
    tokens = {key: token for token, key, _, _ in house.rows.partitions}
    expected = {key for key in house.rows.keys if tokens[key[0]] > 0}
    assert appended(house.log)[0] == expected
    assert not house.snapshots.store.for_table("n", "t").complete, "of a part"


def test_a_where_is_read_and_written_again() -> None:
    assert (
        checked_request(request_for_key({"id": 5}), TABLE).where == '"id" = 5'
        or checked_request(request_for_key({"id": 5}), TABLE).where == "id = 5"
    )
    assert checked_request(SnapshotRequest(where="ID in ( 1 , 2)"), TABLE).where.endswith("IN (1 , 2)")
    assert request_for_key({"name": "it's"}).where.endswith("= 'it''s'")
    with pytest.raises(HelenusError, match="give a token range as AFTER:UNTIL"):
        request_for_tokens("all")
    with pytest.raises(HelenusError, match="the first token must be below the second"):
        request_for_tokens("5:5")


UUID = "5bc8a0c4-8f2e-11ee-b9d1-0242ac120002"


@pytest.mark.parametrize(
    ("cql_type", "key_value", "literal"),
    [
        ("text", UUID, f"'{UUID}'"),
        ("text", "0xff", "'0xff'"),
        ("ascii", "0x", "'0x'"),
        ("uuid", UUID, UUID),
        ("timeuuid", UUID, UUID),
        ("blob", "0xff", "0xff"),
        ("bigint", "9223372036854775807", "9223372036854775807"),
        ("inet", "::1", "'::1'"),
        ("timestamp", "2024-01-01", "'2024-01-01'"),
        ("boolean", True, "true"),
        ("uuid", "x' OR '1", "'x'' OR ''1'"),
    ],
)
def test_a_key_is_written_by_the_type_of_its_column(cql_type: str, key_value: object, literal: str) -> None:
    table = replace(TABLE, columns=(Column("id", parse(cql_type), "partition_key", 0),))
    assert checked_request(request_for_key({"id": key_value}), table).where == f"id = {literal}"
    if isinstance(key_value, str):
        both = checked_request(SnapshotRequest(where=f"id IN ({literal}, {literal})"), table).where
        assert both == f"id IN ({literal}, {literal})", "what an operator writes as CQL stays"


def test_a_rate_is_kept() -> None:
    now = [0.0]
    rate = ScanRate(lambda: now[0])
    rows_taken = 0
    for _ in range(2000):
        now[0] += 0.01
        while allowed := rate.allowed_rows(1000, 2):
            rate.count_rows(allowed, 1000)
            rows_taken += allowed
    assert rows_taken == pytest.approx(20_000, rel=0.05)
    assert rate.allowed_rows(0, 2) > 1000


def test_room_for_slices() -> None:
    """Of a table without changes: 15 times as many events may be unprocessed."""
    assert free_keys(20_000, 0, 0) == 20_000, "a slice ends within a second or so"
    assert free_keys(2_000, 0, 0) == 15_000
    assert free_keys(2_000, 7_500, 7_500) == 15_000
    assert free_keys(2_000, 7_501, 7_500) == 0
    assert free_keys(100, 0, 0) == 750


def test_a_snapshot_and_changes_take_turns() -> None:
    turns, past = ScanTurns(), [False]

    def room_at(now: float, behind: int = 0, is_flying: bool = False, tasks: int = 2) -> int:
        return turns.free_keys(
            5_000, tasks, behind, is_flying, now, lambda: {"0": 9}, lambda ends: past[0] and ends["0"] == 9
        )

    assert room_at(10.0, behind=5_000) == 0, "the connector is further behind than that"
    assert room_at(10.0, behind=4_000) == 2_500
    turns.count_rows(2_500)
    assert room_at(10.1, is_flying=True) == 2_500, "tasks scan at once"
    turns.count_rows(2_500)
    assert room_at(10.2, is_flying=True) == 0
    assert room_at(10.3, behind=9_000) == 0, "their events are not processed"
    past[0] = True
    assert room_at(10.5, behind=3_000) == 0, "by which time more changes have come"
    assert room_at(10.7, behind=3_000) == 0
    assert room_at(10.8, behind=3_000) == 2_500, "it took half a second, and rested half as long"
    turns.count_rows(5_000)
    assert room_at(3_000.0) == 0
    assert room_at(3_004.9) == 0
    assert room_at(3_005.1) == 2_500, "however long that took, it rests some seconds"
    assert room_at(3_005.1, tasks=1) == 5_000
    turns.count_rows(5_000)
    past[0] = False
    assert room_at(3_006.0) == room_at(3_007.0) == 0
    assert room_at(3_008.1) == 0
    assert room_at(3_011.1) == 2_500, "a topic that was made again never has those ends: that nothing waits will do"


def test_a_damaged_file_is_named(house: House) -> None:
    house.run()
    file = house.directory / "snapshots"
    assert json.loads(file.read_text().partition("\n")[2])["tables"][0]["complete"] == str(TABLE.id)
    file.write_text(file.read_text().replace("COMPLETE", "SCANNING"))
    with pytest.raises(HelenusError, match="the progress of snapshots is damaged"):
        Snapshots(worker(house.directory), house.connectors)


def test_while_nothing_changes_a_snapshot_may_be_further_ahead() -> None:
    assert is_quiet(-math.inf, 0.0)
    assert not is_quiet(100.0, 159.0)
    assert is_quiet(100.0, 161.0)


@pytest.mark.parametrize(
    ("shown", "remaining"),
    [
        ({"state": "SCANNING", "eta_s": 300.0}, "5 min left"),
        ({"state": "SCANNING", "eta_s": None}, ""),
        ({"state": "SCANNING", "eta_s": 300.0, "waiting": "Cassandra is away"}, "waiting"),
        ({"state": "PUBLISHING", "eta_s": None}, "publishing"),
        ({"state": "PAUSED", "eta_s": 300.0}, "paused"),
    ],
)
def test_the_bar_says_what_is_left(
    shown: dict[str, Any], remaining: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class SnapshotRequest:
        """A worker whose snapshot is over at the second look."""

        looks = 0

        def ask(self, method: str, path: str, body: Any = None, *, has: str) -> Any:
            self.looks += 1
            progress = {"table": "t", "rows": 7, "done": 0.5, "rate": 1.0, **shown}
            return [{**progress, "state": "COMPLETE"} if self.looks > 2 else progress]

    monkeypatch.setenv("TERM", "xterm")  # a dumb one shows the end alone
    monkeypatch.setattr(snapshot_command, "_TURN_S", 0.3)  # longer than the terminal is drawn again
    monkeypatch.setattr(
        snapshot_command, "Console", lambda: Console(force_terminal=True, width=80, file=sys.stdout, no_color=True)
    )
    assert snapshot_command.snapshot(SnapshotRequest(), "n", wait=True) == 0  # type: ignore[arg-type]
    drawn = [line.rstrip() for line in re.split(r"\r|\n|\x1b\[[\d;?]*\w", capsys.readouterr().out)]
    assert any(line.endswith(remaining or "7 rows") for line in drawn), drawn
    assert any(line.startswith("n t: COMPLETE, 7 rows") for line in drawn)


@pytest.mark.parametrize(("rows", "shown"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows")])
def test_rows_of_a_snapshot_are_counted(rows: int, shown: str) -> None:
    assert snapshot_command.line("n", {"table": "t", "state": "COMPLETE", "rows": rows}) == f"n t: COMPLETE, {shown}"
