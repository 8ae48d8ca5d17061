"""Random tables, and random statements over them: key shapes, statics, collections and user-defined types."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

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
    "int": ("-1", "0", "1", "2"),
    "text": ("'a'", "'b'", "'c'"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "00000000-0000-4000-8000-000000000001"),
}
GROWS = {"set<int>": "+ {9}", "list<text>": "+ ['more']", "map<text, int>": "+ {'d': 4}"}


@dataclass
class RandomTable:
    """A table in `keyspace`, which has a type `place`, and statements over it."""

    keyspace: str
    name: str
    random: random.Random

    def __post_init__(self) -> None:
        r = self.random
        self.partition = [(f"p{i}", r.choice(list(KEYS))) for i in range(r.randint(1, 2))]
        self.clustering = [(f"c{i}", r.choice(list(KEYS)), r.random() < 0.5) for i in range(r.randint(0, 2))]
        self.statics = [(f"s{i}", r.choice(list(TYPES))) for i in range(r.randint(0, 2)) if self.clustering]
        self.regulars = [(f"v{i}", r.choice(list(TYPES))) for i in range(r.randint(0, 6))]

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    def create(self) -> str:
        columns = [f"{n} {t}" for n, t in [*self.partition, *((n, t) for n, t, _ in self.clustering), *self.regulars]]
        columns += [f"{n} {t} static" for n, t in self.statics]
        key = ", ".join([f"({', '.join(n for n, _ in self.partition)})", *(n for n, _, _ in self.clustering)])
        order = ", ".join(f"{n} {'DESC' if descending else 'ASC'}" for n, _, descending in self.clustering)
        ordered = f"CLUSTERING ORDER BY ({order}) AND " if order else ""
        return f"CREATE TABLE {self.full_name} ({', '.join(columns)}, PRIMARY KEY ({key})) WITH {ordered}cdc = true"

    def run(self, session: Any, statements: int) -> None:
        for _ in range(statements):
            session.execute(self._statement())

    def _statement(self) -> str:
        r = self.random
        partition = [(n, r.choice(KEYS[t])) for n, t in self.partition]
        row = partition + [(n, r.choice(KEYS[t])) for n, t, _ in self.clustering]
        kinds = {"insert": 8, "truncate": 0.1, "partition": 1, "row": 3}
        if self.regulars:
            kinds |= {"update": 8, "columns": 3, "batch": 1}
        if self.statics:
            kinds |= {"static": 3, "static gone": 1}
        if self.clustering:
            kinds |= {"range": 2}
        kind = r.choices(list(kinds), list(kinds.values()))[0]
        where, whole = _equal(row), _equal(partition)
        if kind == "insert":
            return self._insert(row)
        if kind == "update":
            return f"UPDATE {self.full_name} SET {self._set(self.regulars)} WHERE {where}"
        if kind == "columns":
            return f"DELETE {r.choice(self.regulars)[0]} FROM {self.full_name} WHERE {where}"
        if kind == "static":
            return f"UPDATE {self.full_name} SET {self._set(self.statics)} WHERE {whole}"
        if kind == "static gone":
            return f"DELETE {r.choice(self.statics)[0]} FROM {self.full_name} WHERE {whole}"
        if kind == "range":
            name, t, _ = self.clustering[0]
            low, high = r.choice(("", ">", ">=")), r.choice(("<", "<="))
            limits = [f"{name} {high} {r.choice(KEYS[t])}"] + ([f"{name} {low} {r.choice(KEYS[t])}"] if low else [])
            return f"DELETE FROM {self.full_name} WHERE {' AND '.join([whole, *limits])}"
        if kind == "batch":
            return f"BEGIN UNLOGGED BATCH DELETE FROM {self.full_name} WHERE {where}; {self._insert(row)}; APPLY BATCH"
        if kind == "truncate":
            return f"TRUNCATE {self.full_name}"
        return f"DELETE FROM {self.full_name} WHERE {where if kind == 'row' else whole}"

    def _insert(self, row: list[tuple[str, str]]) -> str:
        columns = self.regulars + self.statics
        chosen = [(n, self.random.choice(TYPES[t])) for n, t in self.random.sample(columns, len(columns) // 2)]
        names, values = zip(*row, *chosen, strict=True)
        return f"INSERT INTO {self.full_name} ({', '.join(names)}) VALUES ({', '.join(values)})"

    def _set(self, columns: list[tuple[str, str]]) -> str:
        name, t = self.random.choice(columns)
        if t in GROWS and self.random.random() < 0.5:
            return f"{name} = {name} {GROWS[t]}"
        return f"{name} = {self.random.choice(TYPES[t])}"


def _equal(columns: list[tuple[str, str]]) -> str:
    return " AND ".join(f"{name} = {value}" for name, value in columns)
