"""Random tables, and random statements over them: key shapes, statics, collections and user-defined types.

A statement's text has `{ts}` where its write time goes, in µs, and `{ts1}` for one that is a µs later. Most writes of a
row set its column `seq` to a number that only grows: whoever sees it go back sees an older row.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

TYPES = {
    "int": ("-1", "0", "7"),
    "bigint": ("-9", "9223372036854775807"),
    "text": ("''", "'a'", "'b€'"),
    "decimal": ("1.5", "-2.25"),
    "boolean": ("true", "false"),
    "double": ("0.5", "-1e10"),
    "timestamp": ("'2024-02-29T01:02:03.004Z'", "0"),
    "time": ("'01:02:03.000000001'",),
    "inet": ("'10.0.0.1'", "'::1'"),
    "set<int>": ("{1, 2}", "{3}"),
    "list<text>": ("['x', 'y']", "['z']"),
    "map<text, int>": ("{'a': 1}", "{'b': 2, 'c': 3}"),
    "place": ("{street: 's', no: 1}", "{no: 2}"),
    "frozen<place>": ("{street: 't', no: null}",),
    "tuple<int, text>": ("(1, 'a')", "(2, null)"),
}
"""CQL literals by type; few, so that statements meet."""
KEYS = {
    "int": ("-1", "0", "1", "2", "3"),
    "text": ("'a'", "'b'", "'c'", "'d'"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "00000000-0000-4000-8000-000000000001"),
}
GROWTH = {
    "set<int>": ("{c} = {c} + {9}", "{c} = {c} - {1}"),
    "list<text>": ("{c} = {c} + ['more']", "{c} = ['first'] + {c}", "{c} = {c} - ['x']"),
    "map<text, int>": ("{c} = {c} + {'d': 4}", "{c}['a'] = 5", "{c}['b'] = null"),
    "place": ("{c}.no = 5", "{c}.street = null"),
}
"""How a column `{c}` of a type changes in part."""
UNMERGED = "list<text>"
"""Elements of a list go by time UUIDs, which records of changes do not have."""
KINDS = {
    "insert": 26.0,
    "update": 26.0,
    "columns": 6.0,
    "row": 8.0,
    "partition": 2.0,
    "range": 4.0,
    "static": 6.0,
    "static_columns": 1.0,
    "collection": 8.0,
    "batch": 4.0,
    "logged": 3.0,
    "lwt": 4.0,
    "truncate": 0.15,
    "recreate": 0.05,
    "add": 0.2,
    "drop": 0.15,
}
"""Kinds of statements, and how often each is drawn."""
DEFINITIONS = frozenset({"truncate", "recreate", "add", "drop"})
"""Kinds that concern the whole table."""
ALTERATIONS = DEFINITIONS - {"truncate"}
"""Of these, those that change its definition."""
_PAST_US, _FUTURE_US = 3_600_000_000, 20_000_000


class Statement(NamedTuple):
    """A statement, and whom it concerns: its partition's literals, empty for the whole table."""

    kind: str
    cql: str
    partition: tuple[str, ...] = ()
    ttl_s: int = 0
    offset_us: int = 0
    """Its write time is so far from now."""
    follow_up: str = ""
    """What is sent when it is done."""
    is_tracked: bool = False
    """It is one change at `{ts}` of columns that stay: a record of changes must show it."""


@dataclass
class RandomTable:
    """A table with random columns, and statements over it. `is_merged` leaves out what changes can't be merged of,
    `is_provable` TTLs and write times of the past and the future: what these leave, no read can prove.
    """

    keyspace: str
    name: str
    random: random.Random
    is_merged: bool = False
    is_provable: bool = False

    def __post_init__(self) -> None:
        r = self.random
        types = [t for t in TYPES if not (self.is_merged and t == UNMERGED)]
        self.partition = [(f"p{i}", r.choice(list(KEYS))) for i in range(r.randint(1, 2))]
        self.clustering = [(f"c{i}", r.choice(list(KEYS)), r.random() < 0.5) for i in range(r.randint(0, 2))]
        self.statics = [(f"s{i}", r.choice(types)) for i in range(r.randint(0, 2)) if self.clustering]
        self.regulars = [(f"v{i}", r.choice(types)) for i in range(r.randint(1, 6))]
        self._types, self._seq, self._added = types, 0, 0
        self._droppable: list[tuple[str, str]] = []

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    def create(self) -> str:
        columns = [f"{n} {t}" for n, t in [*self.partition, *((n, t) for n, t, _ in self.clustering), *self.regulars]]
        columns += [f"{n} {t} static" for n, t in self.statics] + ["seq bigint"]
        key = ", ".join([f"({', '.join(n for n, _ in self.partition)})", *(n for n, _, _ in self.clustering)])
        order = ", ".join(f"{n} {'DESC' if descending else 'ASC'}" for n, _, descending in self.clustering)
        ordered = f"CLUSTERING ORDER BY ({order}) AND " if order else ""
        return f"CREATE TABLE {self.full_name} ({', '.join(columns)}, PRIMARY KEY ({key})) WITH {ordered}cdc = true"

    def statement(self, kinds: frozenset[str] | None = None) -> Statement:
        """Draw a statement of one of these kinds; of any, if None."""
        r = self.random
        partition = [(n, r.choice(KEYS[t])) for n, t in self.partition]
        row = partition + [(n, r.choice(KEYS[t])) for n, t, _ in self.clustering]
        possible = [kind for kind in KINDS if (kinds is None or kind in kinds) and self._is_possible(kind)]
        kind = r.choices(possible, [KINDS[kind] for kind in possible])[0]
        key = tuple(value for _, value in partition)
        make = getattr(self, f"_{kind}")
        made: Statement = make(row, partition)
        return made._replace(kind=kind, partition=() if kind in DEFINITIONS else key)

    def _is_possible(self, kind: str) -> bool:
        if kind in ("static", "static_columns"):
            return bool(self.statics)
        if kind == "range":
            return bool(self.clustering)
        if kind == "collection":
            return any(t in GROWTH for _, t in self.regulars)
        return kind != "drop" or bool(self._droppable)

    def _time(self) -> tuple[int, int, bool]:
        """Draw a TTL in s, an offset of the write time in µs, and whether `seq` may be set at that time."""
        r = self.random
        if self.is_provable:
            return 0, 0, True
        draw = r.random()
        offset = -r.randrange(_PAST_US) if draw < 0.05 else r.randrange(_FUTURE_US) if draw < 0.08 else 0
        return (r.randint(2, 20) if r.random() < 0.1 else 0), offset, offset == 0

    def _next_seq(self) -> str:
        self._seq += 1
        return str(self._seq)

    def _insert(self, row: list[tuple[str, str]], _: object) -> Statement:
        ttl, offset, is_now = self._time()
        # A collection of a row with a TTL ends element by element: its record need not say when.
        scalars = [c for c in self.regulars + self.statics if not (ttl and c[1] in GROWTH)]
        chosen = self.random.sample(scalars, len(scalars) // 2)
        values = [*row, *((n, self.random.choice(TYPES[t])) for n, t in chosen)]
        values += [("seq", self._next_seq())] if is_now else []
        using = "USING TIMESTAMP {ts}" + (f" AND TTL {ttl}" if ttl else "")
        names, texts = zip(*values, strict=True)
        cql = f"INSERT INTO {self.full_name} ({', '.join(names)}) VALUES ({', '.join(texts)}) {using}"
        return Statement("", cql, ttl_s=ttl, offset_us=offset, is_tracked=True)

    def _update(self, row: list[tuple[str, str]], _: object) -> Statement:
        ttl, offset, is_now = self._time()
        columns = [c for c in self.regulars if not (ttl and c[1] in GROWTH)]
        values = [f"{n} = {self.random.choice(TYPES[t])}" for n, t in self.random.sample(columns, min(1, len(columns)))]
        values += [f"seq = {self._next_seq()}"] if is_now or not values else []
        using = "USING TIMESTAMP {ts}" + (f" AND TTL {ttl}" if ttl else "")
        cql = f"UPDATE {self.full_name} {using} SET {', '.join(values)} WHERE {_equal(row)}"
        return Statement("", cql, ttl_s=ttl, offset_us=offset, is_tracked=is_now)

    def _collection(self, row: list[tuple[str, str]], _: object) -> Statement:
        name, t = self.random.choice([c for c in self.regulars if c[1] in GROWTH])
        change = self.random.choice(GROWTH[t]).replace("{c}", name)
        seq = self._next_seq()
        cql = f"UPDATE {self.full_name} USING TIMESTAMP {{ts}} SET {change}, seq = {seq} WHERE {_equal(row)}"
        return Statement("", cql, is_tracked=True)

    def _columns(self, row: list[tuple[str, str]], _: object) -> Statement:
        name = self.random.choice(self.regulars)[0]
        return Statement("", f"DELETE {name} FROM {self.full_name} USING TIMESTAMP {{ts}} WHERE {_equal(row)}")

    def _row(self, row: list[tuple[str, str]], _: object) -> Statement:
        _, offset, _ = self._time()
        cql = f"DELETE FROM {self.full_name} USING TIMESTAMP {{ts}} WHERE {_equal(row)}"
        return Statement("", cql, offset_us=offset, is_tracked=True)

    def _partition(self, _: object, partition: list[tuple[str, str]]) -> Statement:
        cql = f"DELETE FROM {self.full_name} USING TIMESTAMP {{ts}} WHERE {_equal(partition)}"
        return Statement("", cql, is_tracked=True)

    def _range(self, _: object, partition: list[tuple[str, str]]) -> Statement:
        name, t, _descending = self.clustering[0]
        low, high = self.random.choice(("", ">", ">=")), self.random.choice(("<", "<="))
        limits = [f"{name} {high} {self.random.choice(KEYS[t])}"]
        limits += [f"{name} {low} {self.random.choice(KEYS[t])}"] if low else []
        where = " AND ".join([_equal(partition), *limits])
        return Statement("", f"DELETE FROM {self.full_name} USING TIMESTAMP {{ts}} WHERE {where}")

    def _static(self, _: object, partition: list[tuple[str, str]]) -> Statement:
        name, t = self.random.choice(self.statics)
        change = f"{name} = {self.random.choice(TYPES[t])}"
        if t in GROWTH and self.random.random() < 0.5:
            change = self.random.choice(GROWTH[t]).replace("{c}", name)
        cql = f"UPDATE {self.full_name} USING TIMESTAMP {{ts}} SET {change} WHERE {_equal(partition)}"
        return Statement("", cql, is_tracked=True)

    def _static_columns(self, _: object, partition: list[tuple[str, str]]) -> Statement:
        name = self.random.choice(self.statics)[0]
        cql = f"DELETE {name} FROM {self.full_name} USING TIMESTAMP {{ts}} WHERE {_equal(partition)}"
        return Statement("", cql, is_tracked=True)

    def _batch(self, row: list[tuple[str, str]], partition: list[tuple[str, str]]) -> Statement:
        """In one mutation a row, or its partition, goes and the row comes."""
        scope = row if self.random.random() < 0.7 or self.is_merged else partition
        insert = f"({', '.join(n for n, _ in row)}, seq) VALUES ({', '.join(v for _, v in row)}, {self._next_seq()})"
        cql = (
            f"BEGIN UNLOGGED BATCH DELETE FROM {self.full_name} USING TIMESTAMP {{ts}} WHERE {_equal(scope)};"
            f" INSERT INTO {self.full_name} {insert} USING TIMESTAMP {{ts1}}; APPLY BATCH"
        )
        return Statement("", cql)

    def _logged(self, row: list[tuple[str, str]], _: object) -> Statement:
        """One value for several rows, of the partition and of others."""
        texts = []
        for _ in range(self.random.randint(2, 4)):
            texts.append(f"UPDATE {self.full_name} USING TIMESTAMP {{ts}} SET seq = {self._next_seq()}")
            texts[-1] += f" WHERE {_equal(row)};"
            row = [(n, self.random.choice(KEYS[t])) for n, t in self.partition] + row[len(self.partition) :]
        # Two of them may be of one row: the greater value wins, as their write times are equal.
        return Statement("", f"BEGIN BATCH {' '.join(texts)} APPLY BATCH")

    def _lwt(self, row: list[tuple[str, str]], _: object) -> Statement:
        name, t = self.random.choice(self.regulars)
        if self.random.random() < 0.5:
            names, texts = zip(*row, strict=True)
            return Statement(
                "", f"INSERT INTO {self.full_name} ({', '.join(names)}) VALUES ({', '.join(texts)}) IF NOT EXISTS"
            )
        value = self.random.choice(TYPES[t])
        return Statement("", f"UPDATE {self.full_name} SET {name} = {value} WHERE {_equal(row)} IF EXISTS")

    def _truncate(self, *_: object) -> Statement:
        return Statement("", f"TRUNCATE {self.full_name}")

    def _recreate(self, *_: object) -> Statement:
        create = self.create().replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
        return Statement("", f"DROP TABLE IF EXISTS {self.full_name}", follow_up=create)

    def _add(self, *_: object) -> Statement:
        """A name that no column had: what a dropped one held must not come back."""
        column = (f"a{self._added}", self.random.choice(self._types))
        self._added += 1
        self.regulars.append(column)
        self._droppable.append(column)
        return Statement("", f"ALTER TABLE {self.full_name} ADD IF NOT EXISTS {' '.join(column)}")

    def _drop(self, *_: object) -> Statement:
        """Of a time after all of the column's cells, whatever the clocks say: without that, nodes were seen to fail
        each read of some rows.
        """
        column = self._droppable.pop(0)
        self.regulars.remove(column)
        return Statement(
            "", f"ALTER TABLE {self.full_name} DROP IF EXISTS {column[0]} USING TIMESTAMP {{ts_after_all}}"
        )


def _equal(columns: list[tuple[str, str]]) -> str:
    return " AND ".join(f"{name} = {value}" for name, value in columns)
