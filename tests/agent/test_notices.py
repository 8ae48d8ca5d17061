"""Events of a whole table: TRUNCATE, and gaps in the log. Once, in order, through restarts and refusals."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent.fakes import write_of
from agent.test_agent import TABLE, Bench, metric
from agent.writer import Cell, Row, Update, mutation, table_of
from structlog.testing import capture_logs

from helenus_agent import agent as module
from helenus_agent.delivery.notices import Notice
from helenus_agent.node.tables import Stamp
from helenus_agent.node.truncations import Truncation, read_truncations
from helenus_agent.positions import LogGap, Positions
from helenus_agent.segments import gaps
from helenus_agent.segments.headroom import Headroom
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import decode

OTHER = table_of("other", "pk int pk, v int")
LOCAL = table_of("local", "pk int pk, v int", cdc=False, keyspace="system")
T = 1_700_000_000_000


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    bench = Bench(tmp_path)
    bench.cassandra.set(TABLE, LOCAL)
    yield bench
    bench.state.close()
    if bench.agent is not None:
        bench.agent._queue.close()
        for segment in bench.agent._queue.finished:
            segment.close()


def truncate(bench: Bench, segment: int, position: int, time: int = T, table: object = TABLE) -> None:
    """As Cassandra notes it; the note's own entry in the log is a separate step."""
    bench.cassandra.truncations[table.id] = Truncation(table.id, (segment, position), time)  # type: ignore[attr-defined]


def emitted(bench: Bench, topic: str = "events-ks.t", partition: int = 0) -> list[str | int]:
    """What a partition of a topic holds: the names of scopes of whole tables, and the last byte of rows' keys."""
    return [
        decode(value or b"").scope.name if key is None else bench.number(key)[-1]
        for to, part, key, value, _ in bench.log.acknowledged
        if to == topic and part == partition
    ]


def notices(bench: Bench, scope: Scope) -> list[Change]:
    changes = [decode(value or b"") for _, _, key, value, _ in bench.log.acknowledged if key is None]
    return [c for c in changes if c.scope is scope]


def test_truncate_stands_in_the_order_of_the_log(bench: Bench) -> None:
    """The write to system.local that notes it says where: what follows waits until Cassandra was asked."""
    bench.raw.segment(10)
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1), write_of(TABLE, 2))
    position = bench.raw.ends[10]
    bench.raw.write(10, write_of(LOCAL, 0), write_of(TABLE, 3))
    truncate(bench, 10, position)
    bench.run_agent()
    assert emitted(bench) == [1, 2, "TABLE", 3]
    (change,) = notices(bench, Scope.TABLE)
    name = TABLE.id.bytes + T.to_bytes(8, "big")
    assert change.digest == hashlib.md5(name, usedforsecurity=False).hexdigest()
    assert (change.segment, change.position, change.write_time, change.expires_at) == (10, position, T * 1000, None)
    assert (change.part, change.parts, change.start, change.end) == (0, 1, None, None)
    bench.run_agent()
    bench.start()
    bench.run_agent()
    assert emitted(bench) == [1, 2, "TABLE", 3]


def test_every_partition_gets_the_truncation(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.start(topic_partitions="3")
    before = metric("truncations_total")
    bench.raw.write(10, write_of(LOCAL, 0))
    truncate(bench, 10, 30)
    bench.run_agent()
    assert [(partition, decode(value or b"").part) for _, partition, _, value, _ in bench.log.acknowledged] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    assert {c.parts for c in notices(bench, Scope.TABLE)} == {3}
    assert metric("truncations_total") == before + 1


def test_truncated_while_the_agent_was_down(bench: Bench) -> None:
    """Its place is before rows that are read long after the agent knows of it, in the middle of a section."""
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 2), write_of(TABLE, 3), write_of(TABLE, 4))
    position = [c.position for c in positions_of(bench, 10)]
    truncate(bench, 10, position[2])
    bench.start()
    bench.run_agent()
    assert emitted(bench) == [1, 2, 3, "TABLE", 4]


def test_truncated_on_an_idle_node_while_the_agent_was_down(bench: Bench) -> None:
    """An idle node's place is behind its last sync marker: no entry ends there, and the next one begins there."""
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start(topic_partitions="1")
    bench.run_agent()
    position = bench.raw.ends[10] + 8
    bench.raw.write(10, write_of(TABLE, 2), write_of(TABLE, 3))
    truncate(bench, 10, position)
    bench.start()
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE", 2, 3]


def positions_of(bench: Bench, segment: int) -> list[Change]:
    """The rows' change events, decoded by a second agent."""
    other = Bench.__new__(Bench)
    other.__dict__.update(bench.__dict__)
    agent = bench.agent
    assert agent is not None
    path = next(p for p in bench.raw.path.glob(f"*-{segment}.log"))
    data = path.read_bytes()
    from helenus_agent.commitlog.decoder import decode as decode_log
    from helenus_agent.commitlog.segment_header import read_header

    header = read_header(data, 7, segment)
    assert header is not None
    offset = header.size
    changes = []
    while offset + 8 < len(data) and (end := int.from_bytes(data[offset : offset + 4], "big")):
        batch = decode_log(data[offset + 8 : end], offset + 8, True, agent._followed.tables.plans, "n", segment, 7, 99)
        changes += [decode(value) for _, _, _, value in batch.changes]
        offset = end
    return changes


def test_an_unknown_table_before_the_truncation(bench: Bench) -> None:
    """The place of the truncation is where it was, though decoding stopped before it for another reason."""
    bench.raw.segment(10)
    bench.start(topic_partitions="1")
    bench.run_agent()
    stranger = table_of("stranger", "pk int pk, v int")
    bench.raw.write(10, write_of(stranger, 0), write_of(TABLE, 1), write_of(TABLE, 2))
    truncate(bench, 10, bench.raw.ends[10] - (bench.raw.ends[10] - 28) // 3)
    bench.start()
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE", 2]


def test_a_position_within_an_entry_stops_nothing(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 1), write_of(TABLE, 2))
    first, _ = positions_of(bench, 10)
    truncate(bench, 10, first.position + 5)
    bench.start()
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE", 2]


def test_a_truncation_before_the_read_position_is_emitted_at_once(bench: Bench) -> None:
    """Its segment went while no agent ran: there is nothing to wait for."""
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start(topic_partitions="1")
    bench.run_agent()
    truncate(bench, 10, 30)
    bench.cassandra.is_changed = True
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE"]


def test_old_truncations_are_noted_at_the_first_start(bench: Bench) -> None:
    bench.raw.segment(10)
    truncate(bench, 5, 1000)
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    assert emitted(bench) == [1]
    assert bench.saved.truncated == {str(TABLE.id): T}
    truncate(bench, 10, bench.raw.ends[10], T + 1)
    bench.raw.write(10, write_of(LOCAL, 0))
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE"]


def test_a_truncation_that_the_log_still_holds_is_emitted_at_the_first_start(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    truncate(bench, 10, bench.raw.ends[10])
    bench.raw.write(10, write_of(TABLE, 2))
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == [1, "TABLE", 2]


def test_old_truncations_of_a_table_that_gets_cdc_are_noted(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    truncate(bench, 10, 30, table=OTHER)
    bench.cassandra.set(TABLE, LOCAL, replace(OTHER, cdc=False))
    bench.start()
    bench.run_agent()
    bench.cassandra.set(TABLE, LOCAL, OTHER)
    bench.cassandra.is_changed = True
    bench.run_agent()
    bench.start()
    bench.run_agent()
    assert notices(bench, Scope.TABLE) == []


def test_tables_that_are_not_followed(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.cassandra.set(TABLE, LOCAL, OTHER)
    bench.start(table_exclude_list=r"ks\.other")
    bench.raw.write(10, write_of(LOCAL, 0))
    truncate(bench, 10, 30, table=OTHER)
    truncate(bench, 10, 30, table=table_of("dropped", "pk int pk"))
    bench.run_agent()
    assert notices(bench, Scope.TABLE) == []


def test_a_truncation_is_emitted_again_after_a_refused_flush(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(TABLE, 1))
    truncate(bench, 10, bench.raw.ends[10])
    bench.raw.write(10, write_of(LOCAL, 0), write_of(TABLE, 2))
    bench.log.refuse_flush = 3
    bench.run(until=3)
    assert emitted(bench) == [1, "TABLE", 2]


def test_saved_only_when_acknowledged(bench: Bench) -> None:
    bench.raw.segment(10)
    agent = bench.start(topic_partitions="1")
    bench.raw.write(10, write_of(LOCAL, 0))
    bench.run_agent()
    truncate(bench, 10, 30)
    bench.cassandra.is_changed = True
    agent.step()
    assert len(bench.log.waiting) == 1
    # As if it were killed here: nothing is acknowledged.
    bench.start()
    bench.run_agent()
    assert emitted(bench) == ["TABLE"]
    bench.start()
    bench.run_agent()
    assert emitted(bench) == ["TABLE"]


def test_the_column() -> None:
    value = bytes.fromhex("00000192a0b1c2d3 0001043e 00000192a0b1ffff")
    assert read_truncations({TABLE.id: value}) == {
        TABLE.id: Truncation(TABLE.id, (0x192A0B1C2D3, 0x1043E), 0x192A0B1FFFF)
    }
    assert read_truncations(None) == {}


def test_cdc_off_and_on(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.cassandra.set(replace(TABLE, cdc=False), LOCAL)
    bench.cassandra.is_changed = True
    bench.run_agent()
    assert bench.saved.paused == [str(TABLE.id)]
    bench.raw.segment(11)
    bench.raw.write(11, write_of(TABLE, 2))
    bench.run_agent()
    assert bench.agent is not None
    bench.agent._commit(1.0)
    # It is remembered through a restart.
    bench.start()
    bench.cassandra.set(TABLE, LOCAL)
    bench.cassandra.is_changed = True
    before = metric("gaps_total", reason="cdc_was_off")
    bench.raw.write(11, write_of(TABLE, 3))
    bench.run_agent()
    assert emitted(bench) == [1, "GAP", 3]
    assert metric("gaps_total", reason="cdc_was_off") == before + 1
    (change,) = notices(bench, Scope.GAP)
    assert change.write_time is not None
    name = TABLE.id.bytes + change.write_time.to_bytes(8, "big")
    assert change.digest == hashlib.md5(name, usedforsecurity=False).hexdigest()
    assert change.segment == 11
    bench.start()
    bench.run_agent()
    assert emitted(bench) == [1, "GAP", 3]


def test_cdc_off_and_on_between_two_looks(bench: Bench) -> None:
    """The table is what it was, but it was altered meanwhile: while the agent runs, and while it does not."""
    bench.raw.segment(10)
    bench.cassandra.stamps = {TABLE.id: Stamp(1, "x")}
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.cassandra.stamps = {TABLE.id: Stamp(2, "x")}
    bench.cassandra.is_changed = True
    bench.run_agent()
    assert emitted(bench) == ["GAP"]
    bench.cassandra.stamps = {TABLE.id: Stamp(3, "x")}
    bench.start()
    bench.run_agent()
    assert emitted(bench) == ["GAP", "GAP"]
    # Another option, another column: that is what it was altered for.
    bench.cassandra.stamps = {TABLE.id: Stamp(4, "y")}
    bench.start()
    wider = table_of("t", "pk int pk, v int, w int")
    bench.cassandra.set(wider, LOCAL)
    bench.cassandra.stamps = {TABLE.id: Stamp(5, "y")}
    bench.cassandra.is_changed = True
    bench.run_agent()
    bench.start()
    bench.run_agent()
    assert emitted(bench) == ["GAP", "GAP"]


def test_a_lost_segment_is_a_gap_in_all_tables(bench: Bench) -> None:
    bench.cassandra.set(TABLE, LOCAL, OTHER)
    for number in (10, 11):
        bench.raw.segment(number)
        bench.raw.write(number, write_of(TABLE, number))
        bench.raw.index(number)
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 1))
    for path in bench.raw.path.glob("*-10*"):
        path.unlink()
    agent = bench.start()
    bench.raw.write(11, write_of(TABLE, 2))
    bench.run_agent()
    assert emitted(bench) == [10, 11, "GAP", 2]
    assert emitted(bench, "events-ks.other") == ["GAP"]
    assert agent.ready() is None  # waiting mends nothing: the gap is emitted, and the agent goes on
    bench.start()
    bench.run_agent()
    assert emitted(bench, "events-ks.other") == ["GAP"]


def test_a_gap_is_kept_until_it_is_acknowledged(bench: Bench) -> None:
    """Killed, or refused by the broker: the fact is in the state until it is emitted."""
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.raw.index(10)
    bench.raw.segment(11)
    bench.start(topic_partitions="1")
    bench.run_agent()
    for path in bench.raw.path.glob("*-10*"):
        path.unlink()
    agent = bench.start()
    agent.step()
    assert agent._outbox.waiting.total() == 1
    bench.log.refuse_flush = 2
    with pytest.raises(HelenusError):
        agent.commit()
    bench.start()
    bench.run(until=2)
    assert emitted(bench) == [1, "GAP"]
    assert bench.saved.gaps == []


def test_a_gap_that_could_not_be_emitted_is_saved(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.raw.segment(10)
    bench.cassandra.set(replace(TABLE, cdc=False), LOCAL)
    positions = Positions("ad310466-96a7-4cb2-acf4-59535a960812", paused=[str(TABLE.id)])
    bench.state.save(positions)
    agent = bench.start()
    bench.cassandra.set(TABLE, LOCAL)
    bench.cassandra.is_changed = True

    def create(*_: object) -> int:
        raise HelenusError(Kind.BROKER_UNREACHABLE, "away", "fake")

    with monkeypatch.context() as patch:
        patch.setattr(bench.log, "create", create)
        with pytest.raises(HelenusError):
            agent.step()
        agent._commit(1.0)  # as at the end
    assert [(g.table, g.reason) for g in bench.saved.gaps] == [(str(TABLE.id), "cdc_was_off")]
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert emitted(bench) == ["GAP"]


def test_losses_of_one_moment_are_one_gap() -> None:
    positions = Positions()
    for number in range(5):
        gaps.report_lost(positions, number, 0, "x")
    first = positions.gaps[0].time
    assert len(positions.gaps) == 1
    assert len(gaps.take_due(positions, [TABLE.id, OTHER.id], (7, 8))) == 2
    gaps.report_lost(positions, 9, 0, "x")
    assert len(positions.gaps) == 2
    assert positions.gaps[1].time >= first
    gaps.forget_acknowledged(positions)
    assert [g.appended for g in positions.gaps] == [False]


@pytest.mark.parametrize(
    ("blocks", "first", "gone", "is_gap"),
    [
        ("false", 10, [10], True),  # the segment that was read last is gone, and all before it
        ("false", 10, [11], False),  # an older one is there: what deletes by age did not delete this
        ("false", 10, [], False),
        ("true", 10, [10], False),  # this node deletes nothing that is not read
    ],
)
def test_possible_loss(bench: Bench, blocks: str, first: int, gone: list[int], is_gap: bool) -> None:
    bench.cassandra.settings["cdc_block_writes"] = blocks
    bench.raw.segment(first)
    bench.raw.write(first, write_of(TABLE, 1))
    bench.start(topic_partitions="1")
    bench.run_agent()
    for number in (first + 1, first + 2):
        bench.raw.segment(number)
    for number in gone:
        (bench.raw.path / f"CommitLog-7-{number}.log").unlink()
    before = metric("possible_loss_total")
    bench.start()
    bench.run_agent()
    assert emitted(bench) == ([1, "GAP"] if is_gap else [1])
    assert metric("possible_loss_total") == before + is_gap


def test_no_loss_at_the_first_start(bench: Bench) -> None:
    bench.cassandra.settings["cdc_block_writes"] = "false"
    bench.raw.segment(10)
    bench.start()
    bench.run_agent()
    assert notices(bench, Scope.GAP) == []


def test_headroom_warns_once_a_crossing(capsys: pytest.CaptureFixture[str]) -> None:
    def warned(headroom: Headroom, *used: int) -> int:
        for size in used:
            headroom.watch(size)
        return capsys.readouterr().out.count("cdc_raw.fills")

    headroom = Headroom(1000)
    assert warned(headroom, 0, 799) == 0
    assert warned(headroom, 800, 820, 949) == 1
    assert warned(headroom, 950, 1000, 2000) == 1
    assert warned(headroom, 900, 960) == 1
    assert warned(headroom, 100, 990) == 1
    assert warned(Headroom(None), 10**12) == 0
    Headroom(1000, blocks=False).watch(999)
    assert "deletes the oldest segments" in capsys.readouterr().out


def test_dropped_while_the_agent_was_down(bench: Bench) -> None:
    """What it left in the log is decoded with the saved definition."""
    bench.raw.segment(10)
    bench.cassandra.set(TABLE, LOCAL, OTHER)
    bench.start(topic_partitions="1")
    bench.run_agent()
    bench.raw.write(10, write_of(OTHER, 1), write_of(TABLE, 2))
    bench.cassandra.set(TABLE, LOCAL)
    before = metric("skipped_total", reason="unknown_table")
    bench.start()
    bench.run_agent()
    assert emitted(bench, "events-ks.other") == [1, "TABLE"]
    assert emitted(bench) == [2]
    assert metric("skipped_total", reason="unknown_table") == before
    bench.raw.segment(11)
    bench.raw.write(11, write_of(TABLE, 3))
    bench.run_agent()
    bench.raw.write(11, write_of(TABLE, 4))
    bench.run_agent()
    saved_tables = json.loads((bench.state.directory / "tables.json").read_text())
    assert [table["name"] for table in saved_tables["tables"]] == ["t"]


def test_recreated_with_another_key_while_the_agent_was_down(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.start(topic_partitions="1")
    bench.run_agent()
    recreated = table_of("t", "pk int pk, c int ck", id=9)
    bench.raw.write(10, write_of(TABLE, 1), write_of(TABLE, 2))
    bench.cassandra.set(recreated, LOCAL)
    before = metric("skipped_total", reason="dropped_table")
    bench.start()
    bench.run_agent()
    assert emitted(bench) == ["TABLE"]
    assert metric("skipped_total", reason="dropped_table") == before + 2


def test_a_failed_start_is_repeated(bench: Bench) -> None:
    """A possible loss is counted once, and emitted although the first attempt was refused."""
    bench.cassandra.settings = {"cdc_block_writes": "false"}
    bench.state.save(Positions("ad310466-96a7-4cb2-acf4-59535a960812", done=[9], followed=[str(TABLE.id)]))
    bench.raw.segment(12)
    before = metric("possible_loss_total")
    bench.log.refuse_append = 1
    with pytest.raises(HelenusError, match="full"):
        bench.start(topic_partitions="1")
    assert bench.agent is not None
    bench.agent.start()
    bench.run_agent()
    assert emitted(bench) == ["GAP"]
    assert metric("possible_loss_total") == before + 1


def test_a_damaged_history_is_refused(bench: Bench) -> None:
    bench.start()
    for text in ("", "[]", '{"format": 2}', '{"format": 1, "tables": [{}]}'):
        (bench.state.directory / "tables.json").write_text(text)
        with pytest.raises(HelenusError, match=r"are damaged .* delete it: .* dropped while no agent ran can't be"):
            bench.start()


def test_a_table_in_its_saved_form(tmp_path: Path) -> None:
    from helenus_agent.node import saved_tables
    from helenus_schemas.cql.table import Column
    from helenus_schemas.cql.types import CqlType, parse

    udt = CqlType("udt", (CqlType("int"), parse("list<text>")), label="U", fields=("a", "b"))
    table = table_of("t", "pk int pk, c text ck desc, s int static, v vector<float, 3>, m map<text, frozen<list<int>>>")
    table = replace(
        table,
        columns=(*table.columns, Column("u", udt)),
        dropped={"old": Column("old", parse("set<int>"), "static")},
    )
    saved_tables.save(tmp_path, [table], {table.id: Stamp(5, "x")})
    assert saved_tables.load(tmp_path) == ([table], {table.id: Stamp(5, "x")})
    assert saved_tables.load(tmp_path / "none") == ([], {})


def test_gaps_in_the_state(bench: Bench) -> None:
    saved = Positions(
        "ad310466-96a7-4cb2-acf4-59535a960812", gaps=[LogGap("", 5, "lost", appended=True)], reached=(3, 4)
    )
    bench.state.save(saved)
    assert bench.saved == replace(saved, gaps=[LogGap("", 5, "lost")])


def test_a_key_that_cannot_be_encoded_is_a_gap(bench: Bench) -> None:
    """Its readers miss something, and get a gap event: a boolean of the byte 2 is a partition of its own."""
    table = table_of("odd", "pk boolean pk, v int")
    bench.cassandra.set(table, TABLE, LOCAL)
    bench.raw.segment(10)
    bench.start(topic_partitions="1")
    row = Row((), {"v": Cell(b"1234")}, time=T)
    bench.raw.write(10, *(mutation(Update(table, key, [row])) for key in (b"\1", b"\2", b"\0")))
    with capture_logs() as logs:
        bench.run_agent()
    (line,) = [line for line in logs if line["event"] == "key.malformed"]
    assert (line["log_level"], line["table"], line["changes"]) == ("error", "ks.odd", 1)
    acknowledged = [(topic, key, decode(value or b"").scope) for topic, _, key, value, _ in bench.log.acknowledged]
    expected = ((b"\1", Scope.ROW), (b"\0", Scope.ROW), (None, Scope.GAP))
    assert acknowledged == [("events-ks.odd", key, scope) for key, scope in expected]
    bench.run_agent()
    assert len(bench.log.acknowledged) == 3


def transactional_tables(logs: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The tables that a log names as transactional."""
    lines = [line for line in logs if line["event"] == "table.transactional"]
    return [tuple(line[field] for field in ("log_level", "table", "mode", "policy")) for line in lines]


@pytest.mark.parametrize("policy", ["refuse", "gap"])
def test_a_table_that_becomes_transactional_and_back(bench: Bench, policy: str) -> None:
    """What it logged before is published, what it wrote meanwhile is a gap, and it is said while it lasts."""
    bench.cassandra.set(TABLE, LOCAL, OTHER)
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    agent = bench.start(topic_partitions="1", transactional_tables=policy)
    bench.run_agent()
    bench.raw.write(10, write_of(TABLE, 2), write_of(OTHER, 3))
    bench.cassandra.transactional, bench.cassandra.is_changed = {TABLE.id: "full"}, True
    with capture_logs() as logs:
        bench.run_agent()
        bench.cassandra.is_changed = True
        bench.run_agent()
    assert transactional_tables(logs) == [("error", "ks.t", "full", policy)], "once"
    refused = "the writes of transactional tables are in no commit log (ks.t): ALTER TABLE"
    assert (agent.ready() or "").startswith(refused) == (policy == "refuse")
    assert metric("transactional_tables") == 1
    with capture_logs() as logs:
        agent = bench.start(topic_partitions="1", transactional_tables=policy)
        bench.raw.segment(11)
        bench.run_agent()
    assert transactional_tables(logs) == [("error", "ks.t", "full", policy)], "and once after a restart"
    assert (agent.ready() or "").startswith(refused) == (policy == "refuse"), "after a restart"
    bench.cassandra.transactional, bench.cassandra.is_changed = {}, True
    bench.run_agent()
    bench.raw.write(11, write_of(TABLE, 4))
    bench.run_agent()
    assert agent.ready() is None
    assert metric("transactional_tables") == 0
    events = emitted(bench)
    assert [event for event in events if event != "GAP"] == [1, 2, 4]
    assert events.count("GAP") == (1 if policy == "refuse" else 2), (
        "once for each of its ends, as far as it is followed"
    )
    assert events[-2:] == ["GAP", 4]
    assert emitted(bench, "events-ks.other") == [3]


def test_transactional_tables_that_are_not_wanted_are_not_mentioned(bench: Bench) -> None:
    bench.cassandra.set(TABLE, LOCAL, OTHER)
    bench.cassandra.transactional = {TABLE.id: "full"}
    agent = bench.start(topic_partitions="1", table_exclude_list=r"ks\.t")
    assert agent.ready() is None
    assert metric("transactional_tables") == 0


def test_a_drop_of_a_table_whose_id_is_of_before_1970_is_sent() -> None:
    """An id is what CREATE TABLE … WITH id says."""
    notice = Notice(Scope.TABLE, uuid.uuid1(), -5, -5, 1, 0)
    assert len(set(notice.values("node", 3))) == 3
