"""The resolver `none`: every change becomes a record, in order, and no row is read for it."""

from __future__ import annotations

import re
import struct
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent.writer import Cell, Complex, Marker, Row, Update, table_of
from cassandra.metadata import NetworkTopologyStrategy
from connector.celled import NONE, OTHER, events
from connector.staged import ALL, DATA, DEAD_LETTERS, EVENTS, Staged
from structlog.testing import capture_logs

from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.interfaces.admitted_change import AdmittedChange
from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.interfaces.gate import NOTHING_WAITS
from helenus_connector.interfaces.image import Image
from helenus_connector.pipeline import _table_version as version
from helenus_connector.resolve import none
from helenus_connector.resolve.none import CellResolver, divide_changes
from helenus_connector.testing.cassandra import Host
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import decode, encode

T = 1_700_000_000_000_000
TABLE = table_of("t", "k int pk, c int ck, v int", id=1)
K = struct.pack(">i", 7)
QUIET = {"tombstones.on.delete": "false"}


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def wrote(v: int, c: int = 1, time: int = T) -> Update:
    return Update(TABLE, K, [Row((int32(c),), {"v": Cell(int32(v))}, time=time)], lowest=(T, 1_700_000_000, 0))


def deleted(c: int = 1, time: int = T) -> Update:
    return Update(TABLE, K, [Row((int32(c),), deletion=(time, 1_700_000_000))], lowest=(T, 1_700_000_000, 0))


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staged:
    return Staged(TABLE, tmp_path, monkeypatch, **NONE, **QUIET)


def read_operations(staged: Staged) -> list[tuple[str, Any]]:
    """Operations and values of the data topic's records, in their order."""
    return [(value["op"], value["after"] and value["after"]["v"]) for _, value in staged.records_of(DATA)]


def test_nothing_is_coalesced_and_nothing_read(staged: Staged) -> None:
    outcome = staged.stage.run(
        events(wrote(1), wrote(2, time=T + 1), deleted(time=T + 2), wrote(3, time=T + 3)), (), True
    )
    assert read_operations(staged) == [("c", 1), ("c", 2), ("d", None), ("c", 3)]
    assert (outcome.read, outcome.published, outcome.keys_read, outcome.statements) == (4, 4, 0, 0)
    assert not outcome.waiting


def test_the_definition_is_asked_for_after_a_read_alone(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a change's cells say is of the definition that it was written by."""
    versions, definition_checks = staged.stage.versions, 0

    def is_altered() -> bool:
        nonlocal definition_checks
        definition_checks += 1
        return False

    monkeypatch.setattr(versions, "is_altered", is_altered)
    staged.stage.run(events(wrote(1)), (), True)
    assert definition_checks == 0
    staged.stage.run([*events(wrote(2)), *events(wrote(3), cells=False, offset=1)], (), True)
    assert definition_checks == 1


def test_the_order_is_that_of_the_log_and_not_of_write_times(staged: Staged) -> None:
    staged.stage.run(events(wrote(1, time=T + 9), wrote(2)), (), True)
    assert read_operations(staged) == [("c", 1), ("c", 2)]
    assert [value["source"]["ts_us"] for _, value in staged.records_of(DATA)] == [T + 9, T]


def test_copies_are_dropped_within_a_batch_and_after_it(staged: Staged) -> None:
    outcome = staged.stage.run([*events(wrote(1)), *events(wrote(1), node=OTHER, offset=1)], (), True)
    assert (outcome.read, outcome.published) == (2, 2)
    later = staged.stage.run(events(wrote(1), node=OTHER.replace("3", "4"), offset=2), (), True)
    assert (later.read, later.confirmed, later.published) == (1, 1, 0)
    assert read_operations(staged) == [("c", 1)]


def test_copies_of_a_range_deletion_are_one_change(staged: Staged) -> None:
    gone = ((T, 1_700_000_000),)
    update = Update(
        TABLE, K, [Marker(1, (int32(1),), gone), Marker(6, (int32(5),), gone)], lowest=(T, 1_700_000_000, 0)
    )
    outcome = staged.stage.run([*events(update), *events(update, node=OTHER, offset=1)], (), True)
    assert (outcome.read, outcome.published, outcome.records) == (2, 2, 1)
    later = staged.stage.run(events(update, node=OTHER.replace("3", "4"), offset=2), (), True)
    assert (later.read, later.confirmed, later.records) == (1, 1, 0)


def test_a_batch_that_failed_gives_the_same_records_again(staged: Staged) -> None:
    batch = events(wrote(1), wrote(2, time=T + 1), deleted(time=T + 2))
    staged.log.fail("flush", HelenusError(Kind.BATCH_FAILED, "away"))
    with pytest.raises(HelenusError):
        staged.stage.run(batch, (), True)
    before = read_operations(staged)
    staged.appended.clear()
    outcome = staged.stage.run(batch, (), True)
    assert read_operations(staged) == before == [("c", 1), ("c", 2), ("d", None)]
    assert outcome.published == 3


def test_changes_without_cells_are_read_after_those_with_them(staged: Staged) -> None:
    """A row that is read is no older than what the batch has written of it before."""
    staged.live[K, int32(1)] = Image((int32(3),), T + 2)
    light = events(wrote(2, time=T + 1), cells=False, offset=1)
    none._is_said.clear()
    with capture_logs() as logs:
        outcome = staged.stage.run([*events(wrote(1)), *light, *events(wrote(3, time=T + 2), offset=2)], (), True)
        staged.stage.run(events(wrote(4, time=T + 3), cells=False, offset=3), (), True)
    assert read_operations(staged)[:3] == [("c", 1), ("c", 3), ("r", 3)]
    assert outcome.keys_read == 1
    assert outcome.published == 3
    assert [entry["table"] for entry in logs if entry["event"] == "cells.missing"] == ["ks.t"]


def test_a_snapshots_rows_are_read(staged: Staged) -> None:
    staged.live[K, int32(1)] = Image((int32(5),), T)
    with capture_logs() as logs:
        staged.run(Change(None, None, Scope.ROW, origin=Origin.SNAPSHOT_FIRST), staged.codec.encode((K, int32(1))))
    ((key, value),) = staged.records_of(DATA)
    assert key == {"k": 7, "c": 1}
    assert (value["op"], value["after"], value["written"]) == ("r", {"k": 7, "c": 1, "v": 5}, None)
    assert value["source"]["snapshot"] == "first"
    assert not logs


def test_a_copy_with_cells_of_what_waits_is_no_record(staged: Staged) -> None:
    """It was published as it was read, and is read again until that is confirmed."""
    staged.live[K, int32(1)] = Image((int32(0),), T - 9)
    first = staged.stage.run(events(wrote(1), cells=False), (), True)
    assert len(first.waiting) == 1
    copy = staged.stage.run(events(wrote(1), node=OTHER, offset=1), (), True)
    assert (copy.published, len(copy.waiting)) == (0, 1)
    assert read_operations(staged) == [("r", 0)]


def test_markers_are_records_without_a_read_of_their_rows(staged: Staged) -> None:
    staged.live[K, int32(1)] = Image((int32(5),), T)
    whole = Update(TABLE, K, deletion=(T, 1_700_000_000), lowest=(T, 1_700_000_000, 0))
    bounds = [Marker(1, (int32(2),), ((T + 1, 1_700_000_000),)), Marker(6, (int32(4),), ((T + 1, 1_700_000_000),))]
    outcome = staged.stage.run(events(whole, Update(TABLE, K, bounds, lowest=(T, 1_700_000_000, 0))), (), True)
    assert read_operations(staged) == [("d", None), ("d", None)]
    assert [key for key, _ in staged.records_of(DATA)] == [{"k": 7, "c": None}] * 2
    first, second = (dict(record.headers) for record in staged.appended)
    assert first["scope"] == b"partition"
    assert second["scope"] == b"range"
    assert second["start"] == b'{"inclusive":true,"values":{"c":2},"descending":[]}'
    assert b'"c":4' in second["end"]
    assert outcome.keys_read == 0


def test_a_change_of_the_table_that_was_there_before_is_outdated(staged: Staged) -> None:
    """Its id says when a table was made; a change of a newer one than is known makes the stage look again."""
    old = replace(TABLE, id=uuid.UUID(int=2))
    outcome = staged.stage.run(events(replace(wrote(1), table=old)), (), True)
    assert (outcome.outdated, outcome.published, read_operations(staged)) == (1, 0, [])
    assert staged.stage.run(events(replace(wrote(1), table=old), node=OTHER, offset=1), (), True).confirmed == 1


def test_a_column_that_is_not_known_yet_is_no_loss(staged: Staged) -> None:
    """The definition is read again, and the batch is done again if that does not have it: no value is left out."""
    wider = table_of("t", "k int pk, c int ck, v int, w int", id=1)
    update = Update(wider, K, [Row((int32(1),), {"w": Cell(int32(1))}, time=T)], lowest=(T, 1_700_000_000, 0))
    with pytest.raises(HelenusError) as error:
        staged.stage.run(events(update), (), True)
    assert "names the column w" in str(error.value)
    assert read_operations(staged) == []


def with_address(*fields: str) -> Table:
    """A table with a column of a user-defined type of these fields."""
    t = CqlType("udt", (parse("int"),) * len(fields), frozen=True, label="addr", fields=fields)
    return replace(TABLE, columns=(*TABLE.columns, Column("a", t)))


def test_a_field_that_is_not_known_yet_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that was asked for the definition lags behind an ALTER TYPE that the change is newer than."""
    wide = with_address("x", "y")
    staged = Staged(with_address("x"), tmp_path, monkeypatch, **NONE, **QUIET)
    staged.stage.versions.follow(staged.log)
    monkeypatch.setattr(
        version,
        "read_definition",
        lambda session, settings, known_version=None, request=None: None if known_version else (2, wide),
    )
    value = b"".join(int32(4) + int32(field) for field in (1, 2))
    update = Update(wide, K, [Row((int32(1),), {"a": Cell(value)}, time=T)], lowest=(T, 1_700_000_000, 0))
    staged.stage.run(events(update), (), True)
    assert [value["after"]["a"] for _, value in staged.records_of(DATA)] == [{"x": 1, "y": 2}]


@pytest.mark.parametrize("form", [NONE, {**NONE, "output.format": "cep44"}], ids=["debezium", "cep44"])
def test_dropped_then_readded_column_hides_old_cells(
    form: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readded_table = replace(
        table_of("t", "k int pk, c int ck, m map<int, int>, v int", id=1), dropped_at={"v": T, "m": T}
    )
    staged = Staged(readded_table, tmp_path, monkeypatch, **form, **QUIET)

    def both(time: int) -> Update:
        of_map = Complex([Cell(int32(1), path=int32(1))], deletion=(time - 1, 1_700_000_000))
        row = Row((int32(1),), {"v": Cell(int32(5)), "m": of_map}, time=time)
        return Update(readded_table, K, [row], lowest=(T - 1, 1_700_000_000, 0))

    staged.stage.run(events(both(T), both(T + 2)), (), True)
    written_columns = [value["written"]["columns"] for _, value in staged.records_of(DATA)]
    assert written_columns == [[], ["v", "m"]]


def test_what_the_gate_wants_verified_is_read_and_what_it_releases_is_marked(staged: Staged) -> None:
    staged.stage.versions.follow(staged.log)
    table = staged.stage._version.table
    first, second = events(wrote(1), wrote(2, time=T + 1))

    def admitted(event: Event) -> AdmittedChange:
        key = event.key or b""
        return AdmittedChange(event, decode(event.value or b""), key, staged.codec.decode(key), b"0" * 16)

    released, to_verify = admitted(first), admitted(second)
    released.is_released = True
    to_verify.verifying = WaitingChange(b"0" * 16, second, (OTHER,), 1)
    written: list[AdmittedChange] = []
    assert list(divide_changes([released, to_verify], written, table.full_name)) == [to_verify]
    assert written == [released]
    made = CellResolver(table, re.compile(".*")).resolve(released)
    assert made is not None
    assert made.written is not None
    assert (made.is_released, made.written.cells[0].value) == (True, int32(1))


@pytest.mark.parametrize(
    ("level", "needed"), [("local_quorum", 2), ("quorum", 4), ("each_quorum", 5), ("all", 6), ("one", 1)]
)
def test_a_change_is_a_record_of_its_cells_when_it_is_at_its_level(
    level: str, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of RF 3 in two data centres, which report one after the other, each in a batch of its own."""
    staged = Staged(TABLE, tmp_path, monkeypatch, **NONE, **QUIET, gate=level, **{"cassandra.local.dc": "one"})
    nodes = [uuid.UUID(int=n + 1) for n in range(6)]
    staged.session.hosts[:] = [Host(node, "one" if n < 3 else "two") for n, node in enumerate(nodes)]
    keyspace = staged.session.cluster.metadata.keyspaces["ks"]
    keyspace.replication_strategy = NetworkTopologyStrategy({"one": "3", "two": "3"})
    waiting = WaitingChanges(tmp_path / "gate.waiting", lambda: 1000.0)
    assert waiting.load()
    waiting.use({EVENTS: WaitingLimits.from_settings(staged.stage.settings)})
    counts = []
    for n, node in enumerate(nodes):
        waits = waiting.hand_out(10).get(EVENTS, NOTHING_WAITS)
        outcome = staged.stage.run(events(wrote(5), node=str(node), offset=n), (), True, gate_waits=waits)
        waiting.apply(EVENTS, outcome.at_gate, 999.0, 1000.0)
        assert outcome.keys_read == 0
        counts.append(len(read_operations(staged)))
    assert counts == [0] * (needed - 1) + [1] * (7 - needed)
    assert read_operations(staged) == [("c", 5)]
    assert staged.records_of(DATA)[0][1]["source"]["node"] == str(nodes[needed - 1]), "the copy that completed it"
    assert waiting.counts(EVENTS)[0] == 0


def test_cells_that_nobody_can_read_are_poison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = Staged(TABLE, tmp_path, monkeypatch, **NONE, **QUIET, **ALL)
    (good,) = events(wrote(1))
    change = decode(good.value or b"")
    bad = encode(change._replace(cells=b"\4" + (change.cells or b"")[1:], digest="0" * 32))
    outcome = staged.stage.run([Event(EVENTS, 0, 7, 1000, good.key, bad), good], (), True)
    assert (outcome.dead_lettered, outcome.published) == (1, 1)
    assert read_operations(staged) == [("c", 1)]
    assert [record.topic for record in staged.appended] == [DEAD_LETTERS, DATA]
    (tmp_path / "strict").mkdir()
    strict = Staged(TABLE, tmp_path / "strict", monkeypatch, **NONE)
    with pytest.raises(HelenusError, match="cells of version 2"):
        strict.stage.run([Event(EVENTS, 0, 9, 1000, good.key, bad)], (), True)
