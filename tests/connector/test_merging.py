"""The operator of `state=rows`, and the source that feeds it, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from agent.writer import table_of
from connector.celled import NODE, OTHER, events
from connector.test_resolver_merge import NOW, TABLE, Row, T, i, insert, update
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.status import Connector, Task
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import GapEvent, MergedChange, PoisonEvent, ReadRequest, RowChange
from helenus_connector.log.events import OffsetRange
from helenus_connector.pipeline.merged_stage import MergedStage
from helenus_connector.query import placed_reader
from helenus_connector.query.batch_parts import TaskRanges, TopicRanges
from helenus_connector.query.event_packs import PartitionNote, unpack_events
from helenus_connector.state.rows._change_pack import pack_changes, unpack_changes
from helenus_connector.state.rows._operator import MergeRules, PlaceResult, RowsOperator, in_turn
from helenus_connector.state.rows.query import RowsQuery
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind, error_in
from helenus_schemas.event.change import Bound, Origin, Scope
from helenus_schemas.event.wire import request

THIRD = "ad310466-96a7-4cb2-acf4-59535a960814"
LEAST = {"bootstrap.servers": "k:9092", "checkpoint.dir": "/tmp/none"}


class MapState:
    """Spark's, as far as the store uses it where it can't be pipelined."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes], tuple[bytes]] = {}

    def exists(self) -> bool:
        return bool(self.rows)

    def keys(self) -> Iterator[tuple[bytes]]:
        return iter(list(self.rows))

    def getValue(self, key: tuple[bytes]) -> tuple[bytes] | None:  # noqa: N802
        return self.rows.get(key)

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None:  # noqa: N802
        self.rows[key] = value

    def removeKey(self, key: tuple[bytes]) -> None:  # noqa: N802
        self.rows.pop(key, None)


class Handle:
    def __init__(self, state: MapState) -> None:
        self._state = state

    def getMapState(self, *_: object) -> MapState:  # noqa: N802
        return self._state


class Read:
    """A message of a broker."""

    def __init__(self, event: Event, partition: int) -> None:
        self._event, self._partition = event, partition

    def topic(self) -> str:
        return self._event.topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._event.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._event.timestamp

    def key(self) -> bytes | None:
        return self._event.key

    def value(self) -> bytes | None:
        return self._event.value


def read(
    monkeypatch: pytest.MonkeyPatch, events_by_partition: dict[int, Sequence[Event]], places: tuple[int, ...]
) -> pd.DataFrame:
    """What the source gives for a batch of these events, by partition, at the time `NOW`."""
    chunks = (
        [[Read(e, p) for e in of_partition[first : first + 3]] for first in range(0, len(of_partition), 3)]
        for p, of_partition in events_by_partition.items()
    )
    in_turns = [chunk for turn in zip_longest(*chunks) for chunk in turn if chunk]
    monkeypatch.setattr(placed_reader, "read", lambda *_: (chunk for chunk in in_turns))
    ranges = tuple(OffsetRange("events-ks.t", partition, 0, 100) for partition in events_by_partition)
    plan = QueryPlan(WorkerSettings.from_properties(LEAST, "worker"), {}, "/tmp/none", places=places)
    rules = MergeRules(patience_s=60, markers=True, trusts_absence=True).to_json()
    parts = TaskRanges([TopicRanges(ranges, "fail", 0)], 1, float(NOW), rules)  # of one byte: the limit does not count
    return pd.concat([batch.to_pandas() for batch in placed_reader.read_arrow(plan, parts)])


def merged(
    frames: Sequence[pd.DataFrame], state: MapState, is_cassandra_3: bool = False
) -> tuple[list[MergedChange], PlaceResult]:
    operator = RowsOperator(lambda: TABLE, lambda: is_cassandra_3)
    operator.init(Handle(state))  # type: ignore[arg-type]
    rows = pd.concat(list(operator.handleInputRows((0,), iter(frames), None)))  # type: ignore[arg-type]
    changes = [change for pack in rows["merged"].dropna() for change in unpack_changes(pack)]
    ended = pickle.loads(rows["ended"].dropna().iloc[0])
    assert isinstance(ended, PlaceResult)
    return changes, ended


def test_a_state_of_a_later_version_stops_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, state = [read(monkeypatch, {0: events(insert(1, 1, v=1))}, places=(40,))], MapState()
    merged(frames, state)
    state.rows = {name: (b"\x09" + value[1:],) for name, (value,) in state.rows.items()}
    with pytest.raises(HelenusError, match=r"of version 9 in the state, where \d is known: a later Helenus") as refused:
        merged(frames, state)
    error = error_in(
        f"helenus_schemas.errors.HelenusError: {refused.value}\n"
    )  # as the driver finds it in what Spark says
    assert error is not None
    assert (error.kind, "restore the copy of checkpoint.dir" in str(error)) == (Kind.STATE, True)


def test_events_of_a_place_come_in_their_order_and_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    events_by_partition = {0: events(*(insert(c, 1, v=c) for c in range(5))), 1: events(insert(9, 1, v=9))}
    rows = read(monkeypatch, events_by_partition, places=(40, 50))
    of_first = rows[rows["place"] == 40]
    assert list(of_first["turn"]) == list(range(len(of_first)))
    assert set(rows["place"]) == {40, 50}
    state = MapState()
    backwards = of_first.iloc[::-1]  # as a shuffle may give them
    changes, ended = merged([backwards.iloc[:2], backwards.iloc[2:]], state)
    assert [(m.op, m.after and m.after["v"]) for m in changes] == [("c", i(c)) for c in range(5)]
    assert (ended.partition, ended.read, ended.row_count, ended.next_due) == (0, 5, 5, None)


def test_a_task_reads_the_definition_once_and_asks_for_it_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = read(monkeypatch, {0: events(insert(1, 1, v=1)), 1: events(insert(9, 1, v=9))}, places=(40, 50))
    calls: list[str] = []

    def table() -> Table:
        calls.append("table")
        return TABLE

    operator = RowsOperator(table, lambda: False, lambda: calls.append("request"))
    operator.init(Handle(MapState()))  # type: ignore[arg-type]
    for _, of_one in rows.groupby("place"):
        list(operator.handleInputRows((0,), iter([of_one]), None))  # type: ignore[arg-type]
    assert calls == ["request", "table"]


@pytest.mark.parametrize(("is_cassandra_3", "winner"), [(True, 1), (False, -1)])
@pytest.mark.parametrize("values", [(1, -1), (-1, 1)])
def test_of_equal_write_times_the_value_wins_that_the_nodes_keep(
    monkeypatch: pytest.MonkeyPatch, values: tuple[int, int], is_cassandra_3: bool, winner: int
) -> None:
    rows = read(monkeypatch, {0: events(*(insert(1, 1, v=value) for value in values))}, places=(40,))
    changes, _ = merged([rows], MapState(), is_cassandra_3)
    assert isinstance(last := changes[-1], RowChange)
    assert (last.after or {})["v"] == i(winner)


def test_a_repeated_batch_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    state = MapState()
    merged([read(monkeypatch, {0: events(insert(1, 1, v=1))}, (0,))], state)
    stood = dict(state.rows)
    second = {0: [*events(insert(1, 2, v=2), offset=1), *events(update(Row((i(1),), deletion=(T + 3, NOW))), offset=2)]}
    first_time = merged([read(monkeypatch, second, (0,))], state)
    state.rows = stood  # Spark goes back
    assert merged([read(monkeypatch, second, (0,))], state) == first_time
    assert [m.op for m in first_time[0]] == ["u", "d"]


def test_copies_of_a_batch_are_not_shuffled_and_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first, two = insert(1, 1, v=1), insert(1, 2, v=2)
    light = events(two, node=THIRD, cells=False)
    batch = [
        *events(first, two),
        *events(first, two, node=OTHER),
        *light,
        *events(two, node=OTHER),
        *events(insert(2, 1, v=1)),
    ]
    rows = read(monkeypatch, {0: batch}, (0,))
    packs = [pack for pack in rows["events"] if pack is not None]
    assert [len(unpack_events(pack)) for pack in packs] == [2, 2, 1], (
        "what has no cells goes on, as a row may have to be read, and so does what a node logs twice"
    )
    changes, ended = merged([rows], MapState())
    assert [(m.op, m.after and m.after["v"]) for m in changes] == [("c", i(1)), ("u", i(2)), ("c", i(1))]
    assert (ended.read, ended.copies, ended.nodes_with_cells) == (7, 4, {NODE, OTHER})
    state = MapState()
    merged([read(monkeypatch, {0: batch[:2]}, (0,))], state)
    changes, ended = merged([read(monkeypatch, {0: batch[2:4]}, (0,))], state)
    assert (changes, ended.read, ended.copies) == ([], 2, 2), "in another batch the state knows them"


def test_what_was_not_read_stops_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = read(monkeypatch, {1: events(insert(1, 1, v=1))}, places=(0,))
    with pytest.raises(HelenusError, match="has a partition 1, and had 1"):
        merged([rows], MapState())
    lost = HelenusError(Kind.OFFSETS_LOST, "gone")
    note = pickle.dumps([PartitionNote("events-ks.t", 0, 0, 0, error=lost)])
    frame = pd.DataFrame({"turn": [0], "notes": [note], "events": [None]})
    with pytest.raises(HelenusError, match="gone"):
        merged([frame], MapState())


def test_a_missing_row_of_the_source_is_an_error() -> None:
    with pytest.raises(HelenusError, match="row 1"):
        list(in_turn([(0, b"a", None), (2, b"b", None)]))


def test_what_was_merged_comes_through_a_pack() -> None:
    event = Event("t", 3, 7, 1000, b"k", None)
    changes = [
        RowChange(3, b"k", Scope.ROW, "u", {"v": None, "w": b"1"}, {"v": b"2", "w": b""}, 5, 9, event),
        RowChange(3, b"k", Scope.RANGE, "d", write_time=5, bounds=(Bound(True, (b"1",)), None)),
        ReadRequest(3, b"k", Scope.STATIC, 9, 5, None, 1),
        ReadRequest(3, b"k", Scope.ROW, 9, event=event),
        PoisonEvent(event, "why"),
        GapEvent(event),
    ]
    unpacked = [change for pack in pack_changes(changes * 600) for change in unpack_changes(pack)]
    assert unpacked == changes * 600
    assert [type(change) for change in unpacked] == [type(change) for change in changes * 600]


def test_nodes_whose_changes_have_no_cells_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A single change may have been too large for them: of a node that sends others with cells it says nothing."""
    properties = {
        "name": "n",
        "keyspace": "ks",
        "table": "t",
        "output.format": "json",
        "state": "rows",
        "query.group": "g",
    }
    task = Task(0, ConnectorSettings.from_properties(properties, "test"), ready=True)
    parts: tuple[Any, Any] = SimpleNamespace(term=""), SimpleNamespace()
    merger = RowsQuery(WorkerSettings.from_properties(LEAST, "worker"), parts[0], "g", tmp_path, parts[1])
    connector = Connector({}, task.settings, tasks={"t": task})

    def reason(*batch: Event) -> str | None:
        merger._note_missing_cells(task, [merged([read(monkeypatch, {0: batch}, (0,))], MapState())[1]])
        return connector.status().tasks[0].trace

    row = insert(1, 1, v=1)
    light, celled = events(row, cells=False), events(row, node=OTHER)
    with capture_logs() as logs:
        assert reason(*celled) is None
        first_reason = reason(*light, *celled)
        assert first_reason == reason(*celled) == reason(*light)
    assert first_reason is not None
    assert NODE in first_reason
    assert OTHER not in first_reason
    assert "set cells.include.list=ks.t" in first_reason
    assert [log["event"] for log in logs] == ["state.without_cells"], "once"
    assert reason(*light, *events(row)) is None
    snapshot = events(row)[0]._replace(value=request(Scope.ROW, Origin.SNAPSHOT))
    assert reason(snapshot) is None


@pytest.mark.parametrize(
    ("of_merge", "of_stage", "of_records", "is_one"),
    [
        ("v int", "v int", "v int", True),
        ("v int", "v int, w int", "v int, w int", True),
        ("v int, w int", "v int, w int", "v int", False),
        ("v int, w int", "v int", "v int", False),
        ("v int, w int, hidden int", "v int, w int, hidden int", "v int, w int", True),
        ("v int, w int, hidden int", "v int, w int", "v int, w int", False),
    ],
)
def test_records_are_made_by_no_older_definition(of_merge: str, of_stage: str, of_records: str, is_one: bool) -> None:
    """A column that is merged, and in no record, would be missing until its row changes again."""
    merge, stage, records = (table_of("t", f"k int pk, {columns}") for columns in (of_merge, of_stage, of_records))
    properties = {"name": "n", "keyspace": "ks", "table": "t", "columns": "(?!hidden).*", "output.format": "json"}
    made = MergedStage.__new__(MergedStage)
    made.settings, made._name, made._table = ConnectorSettings.from_properties(properties, "test"), "ks.t", stage
    made._versions = SimpleNamespace(current=SimpleNamespace(table=records))  # type: ignore[assignment]
    columns = {(column.name, column.type) for column in merge.values}
    if is_one:
        made.check(columns)
        return
    with pytest.raises(HelenusError, match="altered while a batch") as error:
        made.check(columns)
    assert error.value.kind is Kind.BATCH_FAILED
