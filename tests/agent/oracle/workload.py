"""Random statements for random tables, and the records each must give: by the statement, not by a decoder."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agent.oracle.values import scalar, sort_key, value
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement

from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler
from helenus_schemas.codec._from_avro import decoder
from helenus_schemas.codec.to_avro import encoder
from helenus_schemas.cql.table import Column, Table, read_tables
from helenus_schemas.cql.types import quote
from helenus_schemas.event.change import Bound, Scope

KEYSPACE = "o"
_SCALARS = (
    "ascii bigint blob boolean date decimal double duration float inet int smallint text time timestamp timeuuid "
    "tinyint uuid varint"
).split()
_NESTED = [
    "list<int>",
    "set<text>",
    "map<text, int>",
    "map<int, frozen<list<text>>>",
    "set<frozen<address>>",
    "list<duration>",
    "map<timeuuid, tinyint>",
    "address",
    "frozen<address>",
    "frozen<list<smallint>>",
    "frozen<set<uuid>>",
    "frozen<map<date, time>>",
    "frozen<map<text, frozen<list<frozen<address>>>>>",
    "tuple<int, text, tuple<date, varint>>",
    "vector<float, 3>",
    "vector<text, 2>",
    "vector<frozen<list<int>>, 2>",
]


def _columns(prefix: str, types: Sequence[str], suffix: str = "") -> str:
    return ", ".join(f"{prefix}{i:03} {t}{suffix}" for i, t in enumerate(types))


def _names(prefix: str, first: int, last: int) -> str:
    return ", ".join(f"{prefix}{i:03}" for i in range(first, last))


_KEYS = [t for t in _SCALARS if t != "duration"]
_ORDER = ", ".join(f"k{i:03} {'DESC' if i % 2 else 'ASC'}" for i in range(2, len(_KEYS)))
_SLICED = "pk int, c1 int, c2 text, c3 bigint, v int, s int static, PRIMARY KEY (pk, c1, c2, c3)"
SETUP = [
    f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
    f"CREATE TYPE {KEYSPACE}.address (street text, zip int, tags frozen<set<text>>)",
    *(
        f"CREATE TABLE {KEYSPACE}.{name} ({columns}) WITH {options}cdc = {'false' if name == 'plain' else 'true'}"
        for name, columns, options in [
            ("marks", "n int PRIMARY KEY", ""),
            ("types", f"pk int, ck text, {_columns('v', _SCALARS + _NESTED)}, PRIMARY KEY (pk, ck)", ""),
            (
                "statics",
                f"pk int, c1 int, c2 text, {_columns('s', _SCALARS + _NESTED, ' static')}, v int, l list<int>, "
                "PRIMARY KEY (pk, c1, c2)",
                "",
            ),
            ("only_statics", "pk text, ck int, s int static, m map<int, text> static, PRIMARY KEY (pk, ck)", ""),
            (
                "keys",
                f"{_columns('k', _KEYS)}, v int, w list<int>, PRIMARY KEY ((k000, k001), {_names('k', 2, len(_KEYS))})",
                f"CLUSTERING ORDER BY ({_ORDER}) AND ",
            ),
            ("up", _SLICED, ""),
            ("down", _SLICED, "CLUSTERING ORDER BY (c1 DESC, c2 DESC, c3 DESC) AND "),
            ("mixed", _SLICED, "CLUSTERING ORDER BY (c1 DESC, c2 ASC, c3 DESC) AND "),
            ("single", "pk uuid PRIMARY KEY, v int, w text, l list<int>", ""),
            ("only_key", "pk int, ck text, PRIMARY KEY (pk, ck)", ""),
            ("wide", f"pk int, ck int, {_columns('v', ['int', 'text'] * 65)}, PRIMARY KEY (pk, ck)", ""),
            ("deep", f"pk int, {_columns('k', ['text'] * 40)}, v int, PRIMARY KEY (pk, {_names('k', 0, 40)})", ""),
            (
                '"Quoted"',
                '"Pk" int, "select" text, "a b" int, "Ünï" text, "q""q" list<int>, PRIMARY KEY ("Pk", "select")',
                "",
            ),
            ("counters", "pk int, ck text, c counter, d counter, PRIMARY KEY (pk, ck)", ""),
            ("shared", "pk int, ck int, c counter static, d counter, PRIMARY KEY (pk, ck)", ""),
            (
                "expiring",
                "pk int, ck int, v int, s int static, PRIMARY KEY (pk, ck)",
                "default_time_to_live = 999 AND ",
            ),
            ("plain", "pk int, ck text, v int, l list<int>, PRIMARY KEY (pk, ck)", ""),
            ("big", "pk int PRIMARY KEY, v blob, m map<int, blob>", ""),
            (
                "altered",
                "pk int, ck int, v int, gone int, gone_list list<int>, gone_static text static, PRIMARY KEY (pk, ck)",
                "",
            ),
        ]
    ),
]
ALTERATIONS = [
    [
        "ALTER TABLE o.altered DROP gone",
        "ALTER TABLE o.altered DROP gone_list",
        "ALTER TABLE o.altered DROP gone_static",
    ],
    ["ALTER TABLE o.altered ADD fresh map<int, text>", "ALTER TABLE o.altered ADD gone int"],
    ["ALTER TYPE o.address ADD country text"],
]
_SHARING = ("types", "statics", "only_key", "plain", "up", "wide")
"""Tables with one partition key type: a batch makes one mutation of them."""


@dataclass(frozen=True)
class Expected:
    """A Change: keys as CQL bytes, `time` None where a clock chose it, `ttl` of what expires first."""

    table: str
    scope: Scope
    partition: tuple[bytes, ...]
    clustering: tuple[bytes, ...] | None = None
    start: Bound | None = None
    end: Bound | None = None
    time: int | None = None
    ttl: int | None = None


@dataclass
class Operation:
    """Statements with the values bound to them, and the records they give; None: not known here.

    `conditional`: only if the answer says that it was applied. `batch`: they make one.
    """

    statements: list[tuple[str, list[Any]]]
    expected: list[Expected] | None = None
    conditional: bool = False
    batch: BatchType | None = None


class Workload:
    """Makes operations. `tables` by name; `longest`: the highest TTL the node takes, in s."""

    def __init__(self, rng: Random, tables: Mapping[str, Table], longest: int) -> None:
        self.rng = rng
        self.tables = tables
        self._longest = longest
        self._pools: dict[str, list[bytes]] = {}

    def operation(self) -> Operation:
        """The next one."""
        makers = [(self._write, 10), (self._delete, 4), (self._delete_range, 5), (self._elements, 3), (self._count, 2)]
        makers += [(self._batch_rows, 1), (self._batch_tables, 2), (self._batch_wipe, 1), (self._batch_wild, 3)]
        makers += [(self._batch_ranges, 1), (self._conditional, 1), (self._json, 1)]
        make: Callable[[], Operation] = self.rng.choices([m for m, _ in makers], [w for _, w in makers])[0]
        return make()

    def big(self, size: int) -> list[Operation]:
        """Writes of so many bytes."""
        rng = self.rng
        made = []
        for column, data in (("v", rng.randbytes(size)), ("m", _big_map(rng, size))):
            key = scalar(rng, "int")
            expected = Expected("big", Scope.ROW, (key,), (), time=size)
            made.append(
                Operation(
                    [(f"INSERT INTO o.big (pk, {column}) VALUES (?, ?) USING TIMESTAMP {size}", [key, data])],
                    [expected],
                )
            )
        return made

    def subsets(self) -> list[Operation]:
        """Rows of one mutation that have all of its columns, none, half of them: encoded in several ways in the log."""
        rng = self.rng
        table = self.tables["wide"]
        made = []
        for subset_size in (1, 2, 63, 64, 65, 130):
            partition, _ = self._key(table)
            columns = rng.sample(table.regulars, subset_size)
            rows = []
            for number, count in enumerate(
                sorted(
                    {0, 1, subset_size // 2 - 1, subset_size // 2, subset_size // 2 + 1, subset_size - 1, subset_size}
                )
            ):
                if 0 <= count <= subset_size:
                    names = [*table.primary_key, *rng.sample(columns, count)]
                    text = f"INSERT INTO o.wide ({', '.join(c.name for c in names)}) VALUES ({_marks(len(names))})"
                    key = (*partition, number.to_bytes(4, "big"))
                    values = [*key, *(scalar(rng, c.type.name, 9) for c in names[2:])]
                    row = Expected("wide", Scope.ROW, partition, key[1:], time=subset_size)
                    rows.append(Operation([(f"{text} USING TIMESTAMP {subset_size}", values)], [row]))
            made.append(self._batch(rows, True))
        return made

    def _plain_table(self) -> Table:
        """One without counters."""
        return self.tables[self.rng.choice([n for n in self.tables if n not in ("counters", "shared", "marks", "big")])]

    def _key_value(self, column: Column) -> bytes:
        """New, or one that was used before for a column of this type."""
        rng = self.rng
        pool = self._pools.setdefault(str(column.type), [])
        if len(pool) < 4 or (rng.random() < 0.2 and len(pool) < 100):
            empty = column.kind == "clustering" and column.type.name in ("text", "ascii", "blob") and rng.random() < 0.3
            pool.append(b"" if empty else scalar(rng, column.type.name, 300))
        chosen = rng.choice(pool)
        if column.kind == "clustering":
            return _exact(column, chosen)
        return chosen or scalar(rng, column.type.name, 300)

    def _key(self, table: Table) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        partition = tuple(self._key_value(c) for c in table.partition_key)
        return partition, tuple(self._key_value(c) for c in table.clustering)

    def _time(self) -> int | None:
        rng = self.rng
        if rng.random() < 0.3:
            return None
        extremes = (0, 1, -1, -(1 << 63) + 2, (1 << 63) - 1, 1 << 62, 1_442_880_000_000_000)
        return (
            rng.choice(extremes) if rng.random() < 0.2 else rng.randrange(1_400_000_000_000_000, 1_900_000_000_000_000)
        )

    def _ttl(self, table: Table) -> tuple[str, int | None]:
        """What to say, and what it comes to."""
        if self.rng.random() < 0.7:
            return "", 999 if table.name == "expiring" else None
        ttl = self.rng.choice((1, 60, 864_000, self._longest))
        return f"TTL {ttl}", ttl

    def _values(self, columns: Sequence[Column], max_columns: int = 1 << 30) -> dict[str, Any]:
        """Some of the columns, with values to bind."""
        rng = self.rng
        if not columns:
            return {}
        count = rng.choice((1, 2, len(columns), rng.randrange(len(columns) + 1)))
        chosen = rng.sample(columns, min(count, len(columns), max_columns))
        return {
            c.name: None if (roll := rng.random()) < 0.08 else UNSET_VALUE if roll < 0.12 else value(rng, c.type)
            for c in chosen
        }

    def _write(
        self, table: Table | None = None, clustering: tuple[bytes, ...] | None = None, **fixed: Any
    ) -> Operation:
        """An INSERT or an UPDATE. `fixed`: the `partition`, the `moment`, whether `statics` are left out."""
        rng = self.rng
        table = table or self._plain_table()
        partition, clustering_key = self._key(table)
        partition = fixed.get("partition", partition)
        clustering = clustering or clustering_key
        moment = fixed["moment"] if "moment" in fixed else self._time()
        ttl_option, ttl = self._ttl(table)
        statics = {} if fixed.get("no_statics") or rng.random() < 0.5 else self._values(table.statics)
        regulars = self._values(table.regulars)
        using = _using(moment, ttl_option)
        name = _name(table)
        key = dict(zip([c.name for c in table.primary_key], partition + clustering, strict=True))
        row_given = True
        if rng.random() < 0.6 or not (regulars or statics):
            if statics and not regulars and rng.random() < 0.5:
                row_given = False
                key = {c.name: key[c.name] for c in table.partition_key}
            written = {**key, **statics, **regulars}
            text = f"INSERT INTO {name} ({', '.join(map(quote, written))}) VALUES ({_marks(len(written))}){using}"
            statement = (text, list(written.values()))
            is_insert = row_given
        else:
            if not regulars:
                row_given = False
                key = {c.name: key[c.name] for c in table.partition_key}
            written = {**statics, **regulars}
            sets = ", ".join(f"{quote(c)} = ?" for c in written)
            statement = (f"UPDATE {name}{using} SET {sets} WHERE {_where(key)}", [*written.values(), *key.values()])
            is_insert = False
        expected = []
        if (effect := self._effect(table, statics, moment, ttl)) is not None:
            moment_of, ttl_of = effect
            expected.append(Expected(table.name, Scope.STATIC, partition, time=moment_of, ttl=ttl_of))
        effect = (moment, ttl) if is_insert else self._effect(table, regulars, moment, ttl)
        if effect is not None and row_given:
            moment_of, ttl_of = effect
            expected.append(Expected(table.name, Scope.ROW, partition, clustering, time=moment_of, ttl=ttl_of))
        # Whether a row of which nothing is set gets into the log is Cassandra's business.
        unset = not is_insert and any(
            values_of_columns and not _without_unset(values_of_columns) for values_of_columns in (statics, regulars)
        )
        return Operation(
            [statement], None if unset or table.dropped.keys() & written else expected if table.cdc else []
        )

    def _effect(
        self, table: Table, values: Mapping[str, Any], moment: int | None, ttl: int | None
    ) -> tuple[int | None, int | None] | None:
        """Write time and TTL of a row whose columns are set so, None if nothing is set."""
        set_values = _without_unset(values)
        if not set_values:
            return None
        live = False
        newest = None if moment is None else moment - 1  # a collection's old content is deleted 1 µs before
        for name, data in set_values.items():
            column = table.column(name)
            assert column is not None
            if not column.type.multicell:
                newest = moment
                live |= data is not None
            elif data is not None and _has_cells(column, data):
                newest = moment
                live = True
        return newest, ttl if live else None

    def _delete(self) -> Operation:
        """Of a row, of columns, of a partition, of rows in a list."""
        rng = self.rng
        table = self.tables[rng.choice([n for n in self.tables if n not in ("marks", "big")])]
        partition, clustering = self._key(table)
        moment = None if table.name in ("counters", "shared") else self._time()
        using = _using(moment)
        name = _name(table)
        partition_where = _where(c.name for c in table.partition_key)
        where = _where(c.name for c in table.primary_key)
        kind = rng.choice(("row", "row", "columns", "static", "partition", "in", "partitions"))
        expected: list[Expected]
        columns: Sequence[Column] = ()
        if kind == "columns" and table.regulars:
            columns = rng.sample(table.regulars, rng.randrange(1, min(4, len(table.regulars)) + 1))
            text = f"DELETE {', '.join(quote(c.name) for c in columns)} FROM {name}{using} WHERE {where}"
            values = [*partition, *clustering]
            expected = [Expected(table.name, Scope.ROW, partition, clustering, time=moment)]
        elif kind == "static" and table.statics:
            column = rng.choice(table.statics)
            text = f"DELETE {quote(column.name)} FROM {name}{using} WHERE {partition_where}"
            values = [*partition]
            expected = [Expected(table.name, Scope.STATIC, partition, time=moment)]
        elif kind == "in" and table.clustering:
            last = table.clustering[-1]
            last_values = list({clustering[-1], self._key_value(last), self._key_value(last)})
            if table.name == "keys":  # values that differ as bytes may be equal for Cassandra
                last_values = last_values[:1]
            where = _where_in([c.name for c in table.primary_key], last_values)
            text = f"DELETE FROM {name}{using} WHERE {where}"
            values = [*partition, *clustering[:-1], *last_values]
            expected = [
                Expected(table.name, Scope.ROW, partition, (*clustering[:-1], last_value), time=moment)
                for last_value in last_values
            ]
        elif kind == "partitions":
            last = table.partition_key[-1]
            last_values = list({partition[-1], self._key_value(last)})
            where = _where_in([c.name for c in table.partition_key], last_values)
            text = f"DELETE FROM {name}{using} WHERE {where}"
            values = [*partition[:-1], *last_values]
            expected = [
                Expected(table.name, Scope.PARTITION, (*partition[:-1], last_value), time=moment)
                for last_value in last_values
            ]
        elif kind == "row" and table.clustering:
            text = f"DELETE FROM {name}{using} WHERE {where}"
            values = [*partition, *clustering]
            expected = [Expected(table.name, Scope.ROW, partition, clustering, time=moment)]
        else:
            text = f"DELETE FROM {name}{using} WHERE {partition_where}"
            values = [*partition]
            expected = [Expected(table.name, Scope.PARTITION, partition, time=moment)]
        # To a column that was dropped and is back, Cassandra does nothing that is older than the drop.
        old = any(c.name in table.dropped for c in columns)
        return Operation([(text, values)], None if old else expected if table.cdc else [])

    def _delete_range(self, table: Table | None = None, **fixed: Any) -> Operation:
        """Of a slice: equal up to some column; then one column, or a tuple of some, has one or two bounds."""
        rng = self.rng
        names = ("up", "up", "down", "mixed", "keys", "deep", "types", "statics", "counters")
        table = table or self.tables[rng.choice(names)]
        partition, clustering = self._key(table)
        partition = fixed.get("partition", partition)
        moment = fixed["moment"] if "moment" in fixed else None if table.name == "counters" else self._time()
        columns = table.clustering
        equal = rng.randrange(min(len(columns), 4))
        where = [f"{quote(c.name)} = ?" for c in (*table.partition_key, *columns[:equal])]
        values: list[Any] = [*partition, *clustering[:equal]]
        prefix = clustering[:equal]
        whole = Bound(True, prefix) if prefix else None
        low = high = whole
        is_known = True
        if equal == 0 or rng.random() < 0.8:
            slice_size = rng.randrange(1, min(3, len(columns) - equal) + 1)
            sliced = columns[equal : equal + slice_size]
            names_of = ", ".join(quote(c.name) for c in sliced)
            left_side, right = (names_of, "?") if slice_size == 1 else (f"({names_of})", f"({_marks(slice_size)})")
            sides = rng.choice(((">",), ("<",), (">", "<")))
            ends = [tuple(self._key_value(c) for c in sliced) for _ in sides]
            if len(ends) == 2:
                keys = [tuple(sort_key(c.type, v) for c, v in zip(sliced, end, strict=True)) for end in ends]
                if any(None in key for key in keys) or keys[0] == keys[1]:
                    is_known = False
                elif keys[0] > keys[1]:
                    ends.reverse()
            for side, end in zip(sides, ends, strict=True):
                inclusive = rng.random() < 0.5
                where.append(f"{left_side} {side}{'=' if inclusive else ''} {right}")
                values += end
                if side == ">":
                    low = Bound(inclusive, prefix + end)
                else:
                    high = Bound(inclusive, prefix + end)
            if sliced[0].reversed:
                low, high = high, low
            is_known = is_known and len({c.reversed for c in sliced}) == 1
        text = f"DELETE FROM {_name(table)}{_using(moment)} WHERE {' AND '.join(where)}"
        expected = [Expected(table.name, Scope.RANGE, partition, start=low, end=high, time=moment)]
        return Operation([(text, values)], expected if is_known else None)

    def _elements(self) -> Operation:
        """Of collections: added, put, taken away."""
        rng = self.rng
        table = self.tables["types"]
        partition, clustering = self._key(table)
        moment = self._time()
        ttl_option, ttl = self._ttl(table)
        column = rng.choice([c for c in table.regulars if c.type.multicell])
        name, t = quote(column.name), column.type
        where = [*partition, *clustering]
        live = True
        if t.name == "udt":
            field_index = rng.randrange(len(t.fields))
            data = rng.choice((None, value(rng, t.args[field_index])))
            live = data is not None
            sets, values = f"{name}.{quote(t.fields[field_index])} = ?", [data]
        elif t.name == "map" and rng.random() < 0.6:
            data = rng.choice((None, value(rng, t.args[1])))
            live = data is not None
            sets, values = f"{name}[?] = ?", [value(rng, t.args[0], True), data]
        else:
            many = value(rng, t)
            if not _has_cells(column, many):
                return self._write()
            forms = [f"{name} = {name} + ?"]
            if t.name == "list":
                forms.append(f"{name} = ? + {name}")
            sets, values = rng.choice(forms), [many]
            if t.name == "set" and rng.random() < 0.5:
                sets, live = f"{name} = {name} - ?", False
        text = f"UPDATE {_name(table)}{_using(moment, ttl_option)} SET {sets} WHERE pk = ? AND ck = ?"
        expected = Expected("types", Scope.ROW, partition, clustering, time=moment, ttl=ttl if live else None)
        return Operation([(text, [*values, *where])], [expected])

    def _count(self) -> Operation:
        table = self.tables[self.rng.choice(("counters", "shared"))]
        partition, clustering = self._key(table)
        column = self.rng.choice((*table.regulars, *table.statics))
        key = {c.name: v for c, v in zip(table.primary_key, partition + clustering, strict=True)}
        scope = Scope.ROW
        if column.kind == "static":
            scope = Scope.STATIC
            key = {c.name: key[c.name] for c in table.partition_key}
        text = f"UPDATE {_name(table)} SET {column.name} = {column.name} + ? WHERE {_where(key)}"
        expected = Expected(table.name, scope, partition, clustering if scope == Scope.ROW else None)
        return Operation([(text, [scalar(self.rng, "counter"), *key.values()])], [expected])

    def _batch_rows(self) -> Operation:
        """Several rows of one partition."""
        table = self.tables[self.rng.choice(("up", "down", "wide", "only_key", "types"))]
        partition, _ = self._key(table)
        rows = {self._key(table)[1] for _ in range(self.rng.randrange(2, 9))}
        return self._batch([self._write(table, row, partition=partition, no_statics=True) for row in rows], True)

    def _batch_tables(self) -> Operation:
        """One row in each of several tables, which make one mutation."""
        partition, _ = self._key(self.tables["types"])
        names = self.rng.sample(_SHARING, self.rng.randrange(2, len(_SHARING) + 1))
        return self._batch([self._write(self.tables[name], partition=partition) for name in names], True)

    def _batch_wipe(self) -> Operation:
        """A partition deleted and rows written after that."""
        table = self.tables[self.rng.choice(("up", "types", "plain", "statics"))]
        partition, _ = self._key(table)
        wipe = (f"DELETE FROM {_name(table)} USING TIMESTAMP 1000 WHERE pk = ?", [*partition])
        wiped = Operation([wipe], [Expected(table.name, Scope.PARTITION, partition, time=1000)] if table.cdc else [])
        rows = {self._key(table)[1] for _ in range(self.rng.randrange(1, 4))}
        return self._batch(
            [wiped, *(self._write(table, row, partition=partition, moment=5000, no_statics=True) for row in rows)], True
        )

    def _batch_ranges(self) -> Operation:
        """Two ranges that meet in a value, which belongs to one of them."""
        rng = self.rng
        table = self.tables[rng.choice(("up", "down"))]
        partition, _ = self._key(table)
        low, middle, high = (n.to_bytes(4, "big", signed=True) for n in sorted(rng.sample(range(-99, 99), 3)))
        closed = rng.random() < 0.5
        made = []
        for moment, start, end in (
            (5, Bound(True, (low,)), Bound(closed, (middle,))),
            (6, Bound(not closed, (middle,)), Bound(True, (high,))),
        ):
            more, less = ">=" if start.inclusive else ">", "<=" if end.inclusive else "<"
            text = f"DELETE FROM {_name(table)} USING TIMESTAMP {moment} WHERE pk = ? AND c1 {more} ? AND c1 {less} ?"
            if table.clustering[0].reversed:
                first, last = end, start
            else:
                first, last = start, end
            expected = Expected(table.name, Scope.RANGE, partition, start=first, end=last, time=moment)
            made.append(Operation([(text, [*partition, *start.values, *end.values])], [expected]))
        return self._batch(made, True)

    def _batch_wild(self) -> Operation:
        """Whatever there is, to the same rows too: what is left of it is for Cassandra to say."""
        rng = self.rng
        operations = []
        partition, clustering = self._key(self.tables["up"])
        for _ in range(rng.randrange(2, 8)):
            table = self.tables[rng.choice(("up", "up", "types", "plain", "statics"))]
            row = clustering if table.name == "up" else None
            moment = rng.choice((1, 2, 1_700_000_000_000_000))
            kind = rng.random()
            if kind < 0.5:
                operations.append(self._write(table, row, partition=partition, moment=moment))
            elif kind < 0.9:
                operations.append(self._delete_range(self.tables["up"], partition=partition, moment=moment))
            else:
                text = f"DELETE FROM {_name(table)} USING TIMESTAMP {moment} WHERE pk = ?"
                operations.append(Operation([(text, [*partition])]))
        return self._batch(operations, False)

    def _batch(self, operations: Sequence[Operation], is_known: bool) -> Operation:
        expected = None
        if is_known and all(operation.expected is not None for operation in operations):
            expected = [e for operation in operations for e in operation.expected or ()]
        statements = [s for operation in operations for s in operation.statements]
        return Operation(statements, expected, batch=self.rng.choice((BatchType.LOGGED, BatchType.UNLOGGED)))

    def _conditional(self) -> Operation:
        table = self.tables[self.rng.choice(("single", "only_key", "up", "types"))]
        made = self._write(table, moment=None, no_statics=True)
        (text, values) = made.statements[0]
        if text.startswith("INSERT"):
            text = text.replace(" USING", " IF NOT EXISTS USING") if " USING" in text else f"{text} IF NOT EXISTS"
        else:
            text += " IF EXISTS"
        return Operation([(text, values)], made.expected, conditional=True)

    def _json(self) -> Operation:
        rng = self.rng
        number, text, moment = rng.randrange(1 << 31), rng.choice(("", "x", "é\n")), self._time()
        json_values: dict[str, Any] = {"pk": number, "c1": -1, "c2": text, "c3": 1 << 40}
        unset = rng.random() < 0.5
        statement = f"INSERT INTO o.up JSON ?{' DEFAULT UNSET' if unset else ''}{_using(moment)}"
        pk = number.to_bytes(4, "big")
        clustering = (b"\xff" * 4, text.encode(), (1 << 40).to_bytes(8, "big"))
        expected = [Expected("up", Scope.ROW, (pk,), clustering, time=moment)]
        if not unset:
            expected.append(Expected("up", Scope.STATIC, (pk,), time=moment))
        return Operation([(statement, [json.dumps(json_values).encode()])], expected)


@dataclass
class Done:
    """An operation that was run: `expected` is empty if it was not applied. Between these times, µs since the epoch."""

    operation: Operation
    expected: list[Expected] | None
    first: int
    last: int


@dataclass
class Runner:
    """Runs operations one after the other; each is followed by a row of `marks` with its number."""

    session: Any
    executed: list[Done] = field(default_factory=list)
    _prepared: dict[str, Any] = field(default_factory=dict)

    def define(self, statements: Iterable[str]) -> None:
        """Change the schema."""
        for statement in statements:
            self.session.execute(statement, timeout=60)

    def tables(self) -> dict[str, Table]:
        """Those of the keyspace as they are now, by name."""
        return {table.name: table for table in read_tables(self.session, KEYSPACE).values()}

    def run(self, operation: Operation) -> None:
        bound = [self._bound(*statement) for statement in operation.statements]
        first = time.time_ns() // 1000
        if operation.batch is None:
            (statement,) = bound
        else:
            statement = BatchStatement(operation.batch)
            statement.add_all(bound, [()] * len(bound))
        decoded = self.session.client_protocol_handler
        if operation.conditional:  # the row that is there already may hold what Python cannot
            self.session.client_protocol_handler = RawProtocolHandler
        try:
            answer = self.session.execute(statement, timeout=60)
        except Exception as error:
            raise AssertionError(f"{error}: {operation}") from error
        finally:
            self.session.client_protocol_handler = decoded
        applied = not operation.conditional or answer.one()[0] == b"\1"
        self.executed.append(Done(operation, operation.expected if applied else [], first, time.time_ns() // 1000))
        self.session.execute(self._bound("INSERT INTO o.marks (n) VALUES (?)", [len(self.executed).to_bytes(4, "big")]))

    def _bound(self, text: str, values: list[Any]) -> Any:
        """Bound to CQL bytes as they are: the driver's own types can't express all of them."""
        if text not in self._prepared:
            self._prepared[text] = self.session.prepare(text)
        bound = BoundStatement(self._prepared[text])
        bound.values = values
        return bound


def _without_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data for name, data in values.items() if data is not UNSET_VALUE}


def _using(moment: int | None, ttl: str = "") -> str:
    parts = [*([f"TIMESTAMP {moment}"] if moment is not None else []), *([ttl] if ttl else [])]
    return f" USING {' AND '.join(parts)}" if parts else ""


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _equal(names: Iterable[str]) -> list[str]:
    return [f"{quote(name)} = ?" for name in names]


def _where(names: Iterable[str]) -> str:
    return " AND ".join(_equal(names))


def _where_in(names: Sequence[str], values: Collection[bytes]) -> str:
    """The last column is one of the values."""
    return " AND ".join([*_equal(names[:-1]), f"{quote(names[-1])} IN ({_marks(len(values))})"])


def _has_cells(column: Column, data: bytes) -> bool:
    """Whether this value of an unfrozen collection or UDT has elements."""
    if column.type.name == "udt":
        return data != b"\xff" * len(data)  # the length of a null
    return data[:4] != bytes(4)


def _big_map(rng: Random, size: int) -> bytes:
    parts = [rng.randbytes(size // 16) for _ in range(16)]
    pairs = [struct.pack(">iii", 4, i, len(part)) + part for i, part in enumerate(parts)]
    return struct.pack(">i", len(pairs)) + b"".join(pairs)


def _name(table: Table) -> str:
    return f"{KEYSPACE}.{quote(table.name)}"


def _exact(column: Column, value: bytes) -> bytes:
    """A clustering value in the form that its key has: of equal ones, such as several NaNs, there is one."""
    return decoder(column.type)(encoder(column.type, clustering=True)(value), 0)[0] if value else value
