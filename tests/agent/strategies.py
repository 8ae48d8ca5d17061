"""Tables and mutations at random, for hypothesis."""

from __future__ import annotations

import struct
import uuid

from agent.writer import LIVE, Cell, Complex, Marker, Row, Update, fixed_width
from hypothesis import strategies as st

from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse

KEY_WIDTHS = {
    "text": None,
    "blob": None,
    "varint": None,
    "tinyint": 1,
    "smallint": 2,
    "int": 4,
    "bigint": 8,
    "timestamp": 8,
    "time": 8,
    "date": 4,
    "boolean": 1,
    "float": 4,
    "double": 8,
    "uuid": 16,
    "timeuuid": 16,
    "inet": 4,
}
VALUES = (
    "text blob int bigint tinyint smallint date time timestamp uuid boolean double float inet varint duration counter "
    "frozen<list<int>> frozen<map<int,text>> vector<float,3> vector<text,2> tuple<int,text> list<int> set<text> "
    "map<int,text>"
).split()
MULTICELL = ("list<int>", "set<text>", "map<int,text>")

times = st.one_of(st.integers(1_600_000_000_000_000, 1_800_000_000_000_000), st.integers(-(1 << 63) + 1, (1 << 63) - 1))
seconds = st.one_of(st.integers(1_600_000_000, 2_000_000_000), st.integers(0, (1 << 32) - 1))
deletions = st.tuples(times, seconds)
expiries = st.tuples(st.integers(0, 630_720_000), seconds)


def key_value(name: str) -> st.SearchStrategy[bytes]:
    width = KEY_WIDTHS[name]
    if name == "text":
        return st.text(min_size=1, max_size=20).map(lambda s: s.encode("utf-8", "surrogatepass"))
    if name == "boolean":
        return st.sampled_from([b"\0", b"\1"])
    if width is None:
        return st.binary(min_size=1, max_size=200)
    return st.binary(min_size=width, max_size=width)


@st.composite
def tables(draw: st.DrawFn, name: str) -> Table:
    def columns(kind: str, prefix: str, count: int, names: tuple[str, ...]) -> list[Column]:
        keys = kind in ("partition_key", "clustering")
        return [
            Column(f"{prefix}{i}", parse(draw(st.sampled_from(names))), kind, i if keys else -1, draw(st.booleans()))
            for i in range(count)
        ]

    keys = tuple(KEY_WIDTHS)
    clustering = columns("clustering", "ck", draw(st.integers(0, 4)), keys)
    return Table(
        "ks",
        name,
        uuid.uuid5(uuid.NAMESPACE_DNS, name),
        (
            *columns("partition_key", "pk", draw(st.integers(1, 3)), keys),
            *clustering,
            *columns("static", "s", draw(st.integers(0, 3)) if clustering else 0, tuple(VALUES)),
            *columns("regular", "v", draw(st.sampled_from([0, 1, 2, 5, 9, 64, 70])), tuple(VALUES)),
        ),
        draw(st.booleans()),
    )


@st.composite
def cells(draw: st.DrawFn, t: CqlType, path: bool) -> Cell:
    width = 0 if path else fixed_width(t)
    value = draw(st.binary(min_size=width or 1, max_size=width or 150))
    cell = Cell(value, path=draw(st.binary(max_size=20)) if path else None)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        cell.value = b""
    if kind != 1:
        cell.time = draw(times)
    if kind == 2:
        cell.value, cell.deleted_at = None, draw(seconds)
    if kind == 3:
        cell.expires = draw(expiries)
    if kind == 4:
        cell.row_ttl = True
    return cell


@st.composite
def rows(draw: st.DrawFn, columns: tuple[Column, ...], clustering: tuple[bytes | None, ...]) -> Row:
    chosen: dict[str, Cell | Complex] = {}
    names = draw(st.lists(st.sampled_from([c.name for c in columns]), unique=True)) if columns else []
    for column in columns:
        if column.name not in names:
            continue
        if column.type.multicell:
            cell_list = draw(st.lists(cells(column.type, True), max_size=3))
            deletion = draw(st.one_of(st.none(), deletions, st.just(LIVE)))
            chosen[column.name] = Complex(cell_list, deletion)
        else:
            chosen[column.name] = draw(cells(column.type, False))
    row = Row(clustering, chosen, shadowable=draw(st.integers(0, 9)) == 0)
    if draw(st.booleans()):
        row.time = draw(times)
        row.expires = draw(st.one_of(st.none(), expiries))
    row.deletion = draw(st.one_of(st.none(), deletions))
    return row


@st.composite
def updates(draw: st.DrawFn, table: Table) -> Update:
    parts = [draw(key_value(c.type.name)) for c in table.partition_key]
    key = parts[0] if len(parts) == 1 else b"".join(struct.pack(">H", len(p)) + p + b"\0" for p in parts)
    items: list[Row | Marker] = []
    is_open = False
    count = draw(st.integers(0, 4))
    while is_open or count > 0:
        count -= 1
        values = tuple(draw(key_value(c.type.name)) for c in table.clustering)
        if table.clustering and (count < 0 or draw(st.integers(0, 3)) == 0):
            kind = draw(st.sampled_from(([0, 6] if count < 0 else [0, 2, 5, 6]) if is_open else [1, 7]))
            size = draw(st.integers(0, len(values)))
            gone = tuple(draw(deletions) for _ in range(2 if kind in (2, 5) else 1))
            items.append(Marker(kind, values[:size], gone))
            is_open = kind not in (0, 6)
        else:
            items.append(draw(rows(table.regulars, values)))
    static = draw(rows(table.statics, ())) if table.statics and draw(st.booleans()) else None
    return Update(
        table,
        key,
        items,
        static,
        draw(st.one_of(st.none(), deletions, st.just(LIVE))),
        draw(st.one_of(st.none(), st.integers(0, 1000))),
        (draw(times), draw(seconds), draw(st.integers(0, 1000))),
    )


@st.composite
def mutations(draw: st.DrawFn) -> list[list[Update]]:
    """Some mutations, each a list of updates, over a few tables."""
    drawn_tables = [draw(tables(f"t{i}")) for i in range(draw(st.integers(1, 3)))]
    return draw(
        st.lists(
            st.lists(st.sampled_from(drawn_tables).flatmap(updates), min_size=1, max_size=3), min_size=1, max_size=4
        )
    )
