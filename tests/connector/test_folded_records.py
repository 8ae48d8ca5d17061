"""Records of `resolver=none`, applied one after the other as their documents say, give the rows that were written."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from agent.writer import Cell, Complex, Marker, Row, Update, table_of
from connector import test_cep44, test_debezium_cassandra, test_envelope
from connector.celled import JSON, events

from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType, parse

MADE: Mapping[str, Any] = {
    "debezium": test_envelope.Made,
    "debezium-cassandra": test_debezium_cassandra.Made,
    "cep44": test_cep44.Cep,
}
AS_JSON = {"value.converter": JSON, "value.converter.schemas.enable": "false"}
PAIR = CqlType("udt", (parse("int"), parse("int")), label="pair", fields=("x", "y"))
PLAIN = table_of(
    "t", "k int pk, c int ck, s int static, sm map<int, int> static, v int, w int, m map<int, int>, st set<int>"
)
TABLE = replace(PLAIN, columns=(*PLAIN.columns, Column("a", PAIR)))
MANY = ("a", "m", "sm", "st")
K, GONE = struct.pack(">i", 7), 1_700_000_000


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


@dataclass
class Rows:
    """Rows by clustering value; `of_partition` are the static columns."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_partition: dict[str, Any] = field(default_factory=dict)

    def columns(self, c: int | None) -> dict[str, Any]:
        return self.of_partition if c is None else self.rows.setdefault(c, {})

    def shown(self) -> Any:
        def full(row: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in row.items() if value not in (None, {})}

        return {c: full(row) for c, row in self.rows.items() if full(row)}, full(self.of_partition)


def written(chance: random.Random, into: dict[str, Any], names: str, write_time: int) -> dict[str, Cell | Complex]:
    """Cells of some of these columns, and what becomes of them."""
    cells_by_column: dict[str, Cell | Complex] = {}
    for name in sorted(chance.sample(names.split(), chance.randint(0, 3) % (len(names.split()) + 1))):
        if name not in MANY:
            into[name] = chance.choice((None, chance.randrange(100)))
            value = into[name]
            cells_by_column[name] = (
                Cell(None, write_time, deleted_at=GONE) if value is None else Cell(int32(value), write_time)
            )
            continue
        is_replaced = chance.random() < 0.5
        elements = {} if is_replaced else dict(into.get(name) or {})
        cells = []
        for n in sorted(chance.sample(range(2 if name == "a" else 4), chance.randint(0, 2))):
            path, value = (
                struct.pack(">H", n) if name == "a" else int32(n),
                None if name == "st" else n * 100 + write_time % 97,
            )
            if chance.random() < 0.4:
                elements.pop(n, None)
                cells.append(Cell(None, write_time, deleted_at=GONE, path=path))
            else:
                elements[n] = value
                cells.append(Cell(b"" if value is None else int32(value), write_time, path=path))
        if cells or is_replaced:
            into[name] = elements
            cells_by_column[name] = Complex(cells, (write_time - 1, GONE) if is_replaced else None)
    return cells_by_column


def change(chance: random.Random, rows: Rows, write_time: int) -> Update:
    """One mutation, and its effect on the rows."""
    made, c = Update(TABLE, K, lowest=(write_time - 2, GONE, 0)), chance.randrange(4)
    kind = chance.choice(("write", "write", "write", "static", "row", "partition", "range", "begin"))
    if kind == "partition":
        rows.rows.clear()
        rows.of_partition.clear()
        made.deletion = write_time, GONE
    elif kind == "range":
        first, last = sorted(chance.sample(range(-1, 5), 2))
        starts, ends = chance.choice((1, 7)), chance.choice((6, 0))
        made.rows = [
            Marker(starts, (int32(first),), ((write_time, GONE),)),
            Marker(ends, (int32(last),), ((write_time, GONE),)),
        ]
        for n in [n for n in rows.rows if first + (starts == 7) <= n <= last - (ends == 0)]:
            del rows.rows[n]
    elif kind == "static":
        made.static = Row((), written(chance, rows.of_partition, "s sm", write_time))
    else:
        if kind != "write":
            rows.rows.pop(c, None)
        cells = {} if kind == "row" else written(chance, rows.columns(c), "a m st v w", write_time)
        row = Row((int32(c),), cells, deletion=None if kind == "write" else (write_time - 2, GONE))
        row.time = write_time if kind == "write" and (not cells or chance.random() < 0.5) else None
        made.rows = [row]
    return made


def is_gone(form: str, value: Any) -> bool:
    if form == "cep44":
        is_row = value["operationType"] == "DELETE" and value["updateFields"] == ["k", "c"]
        return is_row or value["operationType"] in ("DELETE_PARTITION", "DELETE_RANGE")
    return value["op"] in ("d", "r")


def applied(form: str, rows: Rows, c: int | None, value: Any, headers: Mapping[str, bytes]) -> None:
    """What a consumer does with a record."""
    if not is_gone(form, value):
        after, written_part = value["payload" if form == "cep44" else "after"], value["written"]
        into = rows.columns(c)
        for name in written_part["columns"]:
            shown = after[name]["value"] if form == "debezium-cassandra" else after[name]
            if name not in MANY:
                into[name] = shown
                continue
            elements = {} if name in written_part["replaced"] else dict(into.get(name) or {})
            elements |= elements_of(name, shown)
            for removed in written_part["removed"].get(name, ()):
                elements.pop("xy".index(removed) if name == "a" else int(removed), None)
            into[name] = elements
    elif c is not None:
        rows.rows.pop(c, None)
    elif headers["scope"] == b"partition":
        rows.rows.clear()
        rows.of_partition.clear()
    else:
        start, end = (json.loads(headers[bound]) for bound in ("start", "end"))
        first, last = start["values"]["c"] + (not start["inclusive"]), end["values"]["c"] - (not end["inclusive"])
        for n in [n for n in rows.rows if first <= n <= last]:
            del rows.rows[n]


def elements_of(name: str, shown: Any) -> dict[int, Any]:
    if name == "st":
        return dict.fromkeys(shown or ())
    if name == "a":
        return {"xy".index(n): value for n, value in (shown or {}).items() if value is not None}
    pairs = shown.items() if isinstance(shown, dict) else shown or ()
    return {int(n): value for n, value in pairs if value is not None}


@pytest.mark.parametrize("form", MADE)
@pytest.mark.parametrize("seed", range(20))
def test_records_one_after_the_other_give_the_rows(seed: int, form: str) -> None:
    chance, made = random.Random(seed), MADE[form](TABLE, **AS_JSON, **{"output.format": form})
    rows, folded = Rows(), Rows()
    for write_time in range(1_700_000_000_000_000, 1_700_000_000_000_400, 10):
        for event in events(change(chance, rows, write_time)):
            for shaped in made.shape.records(made.resolved(event)):
                assert shaped.cause is None
                key, value = made.read(shaped.record.key), made.read(shaped.record.value)
                if value is not None:
                    applied(form, folded, key["c"], value, dict(shaped.record.headers))
        assert folded.shown() == rows.shown()
