"""What is written into another cluster: statements of cells, what the target can't take, what makes rows equal."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra.query import UNSET_VALUE, PreparedStatement

from helenus_connector.config.replication import ReplicationSettings
from helenus_connector.replicate import _table_copy
from helenus_connector.replicate._cluster_table import RowImage
from helenus_connector.replicate._differences import compare_rows, repair_cells, revived_cells
from helenus_connector.replicate._fit import check_columns, check_keys, check_kinds, without_dropped
from helenus_connector.replicate._statements import TargetStatements
from helenus_connector.replicate._table_copy import Batch, TableCopy
from helenus_connector.replicate.comparison import ComparedTable
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.settings.properties import ConfigError

PLACE = CqlType("udt", (parse("text"), parse("int")), label="place", fields=("street", "no"))
KEY = (struct.pack(">i", 1), struct.pack(">i", 2), b"d")
NOW = 1_700_000_000


def column(name: str, kind: str = "regular", text: str = "int", position: int = -1, **more: Any) -> Column:
    return Column(name, parse(text, {"place": PLACE}), kind, position, **more)


TABLE = Table(
    "shop",
    "t",
    uuid.UUID(int=1),
    (
        column("k", "partition_key", position=0),
        column("c", "clustering", position=0, reversed=True),
        column("d", "clustering", "text", 1),
        column("v", text="text"),
        column("m", text="map<text, int>"),
        column("s", text="set<int>"),
        column("u", text="place"),
        column("l", text="list<int>"),
        column("st", "static", "text"),
    ),
)


class Preparing:
    """A session of which no more is used."""

    def prepare(self, text: str) -> PreparedStatement:
        return PreparedStatement([], b"", None, text, "shop", 5, None, None)


STATEMENTS = TargetStatements(Preparing(), TABLE, 6)


def cells(*of_row: Cell, **more: Any) -> Cells:
    return Cells(TABLE.id.bytes, bytes(16), {c.name: c.type for c in TABLE.values}, cells=of_row, **more)


def written(scope: Scope, content: Cells) -> list[tuple[str, list[Any]]]:
    statements = STATEMENTS.for_row(KEY, scope, content, NOW)
    return [(s.prepared_statement.query_string, s.values) for s in statements]


def long(value: int) -> bytes:
    return struct.pack(">q", value)


def integer(value: int) -> bytes:
    return struct.pack(">i", value)


def test_cells_of_equal_times_are_one_statement() -> None:
    m, s = Cell("m", 5, integer(1), b"one"), Cell("s", 5, b"", integer(3))
    ((text, values),) = written(Scope.ROW, cells(Cell("v", 5, b"x"), m, s, Cell("u", 5, integer(9), b"\0\1")))
    assert text == (
        "UPDATE shop.t USING TIMESTAMP ? AND TTL ? SET m = m + ?, s = s + ?, u.street = ?, u.no = ?, v = ? "
        "WHERE k = ? AND c = ? AND d = ?"
    )
    pairs = integer(1) + integer(3) + b"one" + integer(4) + integer(1)
    element = integer(1) + integer(4) + integer(3)
    assert values == [long(5), integer(0), pairs, element, UNSET_VALUE, integer(9), b"x", *KEY]


def test_each_write_time_and_ttl_is_a_statement() -> None:
    row = cells(
        Cell("v", 5, b"x", ttl=60, expires=NOW + 10),
        Cell("m", 4, None, b"k", deleted_at=NOW),
        Cell("s", 7, None, integer(1), deleted_at=NOW),
        Cell("u", 6, None, b"\0\0", deleted_at=NOW),
        liveness=Liveness(3, 60, NOW + 20),
        deletion=Deletion(1, NOW),
        deletions={"m": Deletion(2, NOW), "l": Deletion(2, NOW)},
    )
    texts = [(text.split(" WHERE")[0], values) for text, values in written(Scope.ROW, row)]
    assert [text for text, _ in texts] == [
        "DELETE FROM shop.t USING TIMESTAMP ?",
        "DELETE m FROM shop.t USING TIMESTAMP ?",
        "INSERT INTO shop.t (k, c, d) VALUES (?, ?, ?) USING TIMESTAMP ? AND TTL ?",
        "DELETE m[?] FROM shop.t USING TIMESTAMP ?",
        "DELETE s[?] FROM shop.t USING TIMESTAMP ?",
        "UPDATE shop.t USING TIMESTAMP ? AND TTL ? SET m = m + ?, s = s + ?, u.street = ?, u.no = ?, v = ?",
        "UPDATE shop.t USING TIMESTAMP ? AND TTL ? SET m = m + ?, s = s + ?, u.street = ?, u.no = ?, v = ?",
    ]
    assert texts[2][1][-2:] == [long(3), integer(20)]
    assert texts[5][1][:2] == [long(5), integer(10)], "what is left of the TTL"
    assert texts[6][1][:7] == [long(6), integer(0), UNSET_VALUE, UNSET_VALUE, None, UNSET_VALUE, UNSET_VALUE]


def test_what_has_expired_is_written_as_deleted() -> None:
    row = cells(
        Cell("v", 5, b"x", ttl=60, expires=NOW),
        Cell("m", 5, integer(1), b"k", ttl=60, expires=NOW - 1),
        liveness=Liveness(5, 60, NOW - 9),
    )
    insert, delete, update = written(Scope.ROW, row)
    assert insert[1][-2:] == [long(5), integer(1)]
    assert (delete[0][:11], delete[1][:2]) == ("DELETE m[?]", [b"k", long(5)])
    assert update[1][:2] == [long(5), integer(0)]
    assert update[1][6] is None


def test_statics_have_the_partition_key_alone() -> None:
    ((text, values),) = written(Scope.STATIC, cells(Cell("st", 5, b"x")))
    assert text == "UPDATE shop.t USING TIMESTAMP ? AND TTL ? SET st = ? WHERE k = ?"
    assert values == [long(5), integer(0), b"x", KEY[0]]


def test_a_range_of_tuples_is_several_ranges_in_the_tables_order() -> None:
    start, end = Bound(False, (integer(5), b"x")), Bound(True, (integer(1),))
    statements = STATEMENTS.for_range(KEY, Deletion(9, NOW), start, end)
    assert [(s.prepared_statement.query_string.partition("WHERE ")[2], s.values) for s in statements] == [
        ("k = ? AND c = ? AND d > ?", [long(9), KEY[0], integer(5), b"x"]),
        ("k = ? AND c < ? AND c >= ?", [long(9), KEY[0], integer(5), integer(1)]),
    ]


def test_a_list_is_replaced_by_runs_of_equal_ttls() -> None:
    runs = [(0, [integer(1), integer(2)]), (60, [integer(3)])]
    first, second = STATEMENTS.for_list(KEY, Scope.ROW, "l", runs, 7)
    assert " SET l = ? WHERE" in first.prepared_statement.query_string
    assert " SET l = l + ? WHERE" in second.prepared_statement.query_string
    assert second.values[:3] == [long(7), integer(60), integer(1) + integer(4) + integer(3)]
    (empty,) = STATEMENTS.for_list(KEY, Scope.ROW, "l", [], 7)
    assert empty.prepared_statement.query_string.startswith("DELETE l FROM shop.t USING TIMESTAMP ?")


def table(*columns: Column, **more: Any) -> Table:
    return Table("shop", "t", uuid.UUID(int=1), (column("k", "partition_key", position=0), *columns), **more)


@pytest.mark.parametrize(
    ("text", "in_target", "kind"),
    [
        ("int", "int", None),
        ("int", None, Kind.SCHEMA_BEHIND),
        ("int", "text", Kind.TABLE_UNSUPPORTED),
        ("list<int>", "frozen<list<int>>", Kind.TABLE_UNSUPPORTED),
        ("vector<float, 3>", "vector<float, 2>", Kind.TABLE_UNSUPPORTED),
        ("map<int, frozen<place>>", "map<int, frozen<place>>", None),
    ],
)
def test_what_the_target_can_take(text: str, in_target: str | None, kind: Kind | None) -> None:
    target = table(*([] if in_target is None else [column("v", text=in_target)]))
    if kind is None:
        check_columns({"v": column("v", text=text).type}, ["v"], target)
        return
    with pytest.raises(HelenusError) as raised:
        check_columns({"v": column("v", text=text).type}, ["v"], target)
    assert raised.value.kind is kind


def test_a_type_may_have_more_fields_in_the_target_not_fewer() -> None:
    grown = CqlType("udt", (*PLACE.args, parse("int")), label="place", fields=(*PLACE.fields, "zip"))
    check_columns({"v": PLACE}, ["v"], table(Column("v", grown)))
    with pytest.raises(HelenusError, match="fewer fields"):
        check_columns({"v": grown}, ["v"], table(Column("v", PLACE)))


def test_keys_must_be_the_same() -> None:
    check_keys(TABLE, TABLE)
    with pytest.raises(HelenusError, match="primary keys"):
        check_keys(TABLE, table())


def test_cells_of_dropped_columns_are_left_out() -> None:
    dropped = {c.name: c for c in TABLE.values if c.name not in ("v", "m")}
    source = table(column("v", text="text"), dropped=dropped | {"m": column("m")}, dropped_at={"v": 5, "m": 99})
    row = cells(Cell("v", 5, b"old"), Cell("v", 6, b"new"), Cell("m", 9, integer(1), b"k"))
    assert without_dropped(row, source).cells == (Cell("v", 6, b"new"),)
    with pytest.raises(HelenusError, match=r"does not show columns that were written: \['m'\]"):
        without_dropped(row, table(column("v", text="text"), dropped=dropped))


def test_a_change_of_a_newer_table_is_not_one_of_a_dropped_table() -> None:
    """A node may not know yet that a table was made anew."""

    def of_id(id: uuid.UUID) -> Table:
        return replace(table(), id=id)

    old, new, newer = (uuid.UUID(fields=(second, 0, 0x1000, 0x80, 0, 1)) for second in (1, 2, 3))
    copy = TableCopy.__new__(TableCopy)
    copy._dropped = set()
    copy.source = SimpleNamespace(table=of_id(old))  # type: ignore[assignment]
    shown = [of_id(old), of_id(new), of_id(new)]
    copy.refresh = lambda: setattr(copy.source, "table", shown.pop(0))  # type: ignore[method-assign]
    change = cells()._replace(table=new.bytes)
    with pytest.raises(HelenusError, match="a newer table of this name") as raised:
        copy._is_of_dropped_table(change)
    assert raised.value.kind is Kind.SCHEMA_BEHIND
    assert not copy._is_of_dropped_table(change)
    # Those of the older one are left out, and cost one read.
    assert [copy._is_of_dropped_table(cells()._replace(table=old.bytes)) for _ in range(3)] == [True] * 3
    assert shown == []
    shown.append(of_id(new))
    with pytest.raises(HelenusError, match="a newer table"):
        copy._is_of_dropped_table(cells()._replace(table=newer.bytes))


def test_a_comparison_that_ended_early_is_not_equal() -> None:
    assert ComparedTable("t", table()).is_equal
    assert not ComparedTable("t", table(), is_complete=False).is_equal


ROW = (KEY, Scope.ROW)


def image(*of_row: Cell) -> RowImage:
    return RowImage(cells(*of_row, liveness=Liveness(1)), NOW * 1000)


@pytest.mark.parametrize(
    ("source", "target", "difference"),
    [
        (None, None, None),
        (image(), None, "missing"),
        (None, image(), "ghost"),
        (image(Cell("v", 1, b"x")), image(Cell("v", 1, b"x")), None),
        (image(Cell("v", 1, b"x")), image(Cell("v", 2, b"x")), "v (write time 1 and 2)"),
        (image(Cell("v", 1, b"x")), image(Cell("v", 1, b"y")), "v (value)"),
        (image(Cell("v", 1, b"x")), image(), "v (only in the source)"),
        (image(Cell("v", 1, b"x", None, 9, 90)), image(Cell("v", 1, b"x", None, 9, 93)), None),
        (image(Cell("v", 1, b"x", None, 9, 90)), image(Cell("v", 1, b"x")), "v (expires at 90 and None)"),
        (image(Cell("l", 1, b"x", b"1")), image(Cell("l", 2, b"x", b"1")), None),
        (image(Cell("l", 1, b"x", b"1")), image(Cell("l", 1, b"y", b"1")), "l (elements)"),
    ],
)
def test_what_differs(source: RowImage | None, target: RowImage | None, difference: str | None) -> None:
    answer = compare_rows(ROW, source, target, {"l"}, {"v", "l"})
    assert difference == (answer and ("".join(answer.columns) or answer.kind))


def test_a_repair_deletes_by_the_write_times_of_the_target() -> None:
    ghost = repair_cells(ROW, None, image(Cell("v", 3, b"x"), Cell("m", 4, b"y", b"k")), {"l"})
    assert ghost is not None
    assert (ghost.deletion, ghost.cells) == (Deletion(4, NOW), ())
    changed = repair_cells(ROW, image(Cell("v", 3, b"x")), image(Cell("m", 4, b"y", b"k")), {"l"})
    assert changed is not None
    assert changed.cells == (Cell("v", 3, b"x"), Cell("m", 4, None, b"k", deleted_at=0))
    assert repair_cells(ROW, image(Cell("v", 3, b"x")), image(Cell("v", 3, b"x")), {"l"}) is None


def test_a_row_that_is_older_than_a_truncation_is_shown_again() -> None:
    """Cassandra shows what is written after a TRUNCATE; the target has tombstones in its place."""
    source = image(Cell("v", 3, b"x"), Cell("s", 200, integer(1), b"a"), Cell("l", 3, b"x", b"1"))
    hidden = revived_cells(source, None, {"l"}, 100)
    assert hidden is not None
    assert (hidden.liveness, hidden.cells) == (Liveness(101), (Cell("v", 101, b"x"),))
    second = revived_cells(source, image(Cell("v", 101, b"y")), {"l"}, 100)
    assert second is not None
    assert (second.liveness, second.cells) == (None, (Cell("v", 102, b"x"),))
    # What the target has, or has from a client since, stays as it is; so does what no TRUNCATE came before.
    assert revived_cells(source, image(Cell("v", 101, b"x")), {"l"}, 100) is None
    assert revived_cells(source, image(Cell("v", 5000, b"y")), {"l"}, 100) is None
    assert revived_cells(source, None, {"l"}, 0) is None
    assert repair_cells(ROW, image(Cell("v", 3, b"x")), image(Cell("v", 101, b"x")), {"l"}) is None
    # Of a row without cells no read says when it was written: not after the TRUNCATE, or the new one were deleted.
    ghost = repair_cells(ROW, None, image(), {"l"}, 100)
    assert ghost is not None
    assert ghost.deletion == Deletion(100, NOW)


def test_a_static_list_of_the_target_alone_is_copied() -> None:
    """No row's deletion takes it: after a TRUNCATE it stayed."""
    copy = TableCopy.__new__(TableCopy)
    copy._lists = SimpleNamespace(columns=frozenset({"sl"}))  # type: ignore[assignment]
    copy.target = SimpleNamespace(table=table(column("sl", "static", "list<int>"), column("v")))  # type: ignore[assignment]
    static, row = (KEY, Scope.STATIC), (KEY, Scope.ROW)
    ghost = {static: image(Cell("sl", 7, b"x", b"1")), row: image(Cell("v", 7, b"x"))}
    assert dict(copy._differing_lists({}, ghost)) == {(static, "sl"): 0}
    assert dict(copy._differing_lists(ghost, ghost)) == {}


def test_a_column_that_is_static_on_one_side_alone_is_refused() -> None:
    """No statement of the row's, or of the partition's, would write its cells: they were left out in silence."""
    here, there = table(column("v"), column("w")), table(column("v", "static"), column("w"))
    for source, target in ((here, there), (there, here)):
        with pytest.raises(HelenusError, match=r"column v is .* in the source and .* in the target") as raised:
            check_kinds(source, target)
        assert raised.value.kind is Kind.TABLE_UNSUPPORTED
    check_kinds(here, here)


@pytest.mark.parametrize("bounds", [{"start": Bound(True, (b"",) * 3)}, {"end": Bound(False, (b"",) * 9)}])
def test_a_range_of_more_columns_than_there_are_is_no_event(bounds: Any) -> None:
    copy = TableCopy.__new__(TableCopy)
    copy.source = SimpleNamespace(table=TABLE)  # type: ignore[assignment]
    copy._codec = KeyCodec(TABLE)
    change = Change("0" * 32, None, Scope.RANGE, cells=b"", **bounds)
    with pytest.raises(Malformed, match="a bound of more values"):
        copy.add(Batch(), copy._codec.encode((KEY[0], None, None)), change)


def settings(tmp_path: Path, **more: str) -> ReplicationSettings:
    properties = {
        "bootstrap.servers": "k:9092",
        "keyspace": "shop",
        "table": "a,b",
        "target.cassandra.contact.points": "new",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return ReplicationSettings.from_properties({k: v for k, v in properties.items() if v}, "file")


def test_the_target_has_the_keys_of_the_source_below_a_prefix(tmp_path: Path) -> None:
    read = settings(tmp_path, target_cassandra_username="me", target_cassandra_password="secret", target_keyspace="x")
    assert read.target_cassandra.cassandra_contact_points == ("new",)
    assert read.target_cassandra.cassandra_username == "me"
    assert (read.target_keyspace_name, read.group) == ("x", "helenus-replicate-shop")
    assert read.events_topic_of("a") == "events-shop.a"
    assert "secret" not in repr(read)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"target_cassandra_contact_points": ""}, "target.cassandra.contact.points.*required"),
        ({"target_cassandra_username": "me"}, "target.cassandra.password.*set it too"),
        ({"target_cassandra_prot": "1"}, "target.cassandra.prot.*unknown"),
        ({"target_cassandra_port": "no"}, "target.cassandra.port.*number"),
        ({"bootstrap_servers": ""}, "bootstrap.servers.*required"),
    ],
)
def test_wrong_keys_of_the_target_are_named_as_they_are_written(
    tmp_path: Path, more: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **more)


def test_a_row_that_expires_while_it_waits_is_written_as_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = TableCopy.__new__(TableCopy)
    copy._statements = STATEMENTS
    now = [float(NOW)]
    monkeypatch.setattr(_table_copy.time, "time", lambda: now[0])
    (lasting,) = copy._row_statements(KEY, Scope.ROW, cells(Cell("v", 5, b"x")))
    assert not callable(lasting)
    (make,) = copy._row_statements(KEY, Scope.ROW, cells(Cell("v", 5, b"x", ttl=60, expires=NOW + 60)))
    written_at = []
    for now[0] in (NOW, NOW + 50, NOW + 60):
        _, ttl, *values = make().values
        written_at.append((ttl, b"x" in values, None in values))
    assert written_at == [
        (integer(60), True, False),
        (integer(10), True, False),
        (integer(0), False, True),
    ]
    assert copy._row_statements(KEY, Scope.ROW, cells(liveness=Liveness(3, 60, NOW + 200)))[0]().values[-1] == integer(
        140
    )
    assert copy._row_statements(KEY, Scope.ROW, cells(Cell("l", 5, b"x", b"p", ttl=60, expires=NOW + 60))) == []
