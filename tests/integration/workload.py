"""Random statements over a table with most of what CQL can change in a row."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from cassandra.query import BatchStatement, BatchType

SCHEMA = [
    "CREATE TYPE {ks}.place (street text, no int)",
    """CREATE TABLE {ks}.{table} (
        p int, q text, c int, d timeuuid,
        s text static, t set<int> static,
        v text, n int, big varint, dec decimal, l list<text>, st set<int>, m map<text, int>,
        pl place, fpl frozen<place>, lfp list<frozen<place>>,
        PRIMARY KEY ((p, q), c, d)
    ) WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true""",
]
IDS = ["50554d6e-29bb-11e5-b345-feff819cdc9f", "50554d6e-29bb-11e5-b345-feff819cdc9e"]


def create(session: Any, keyspace: str, table: str) -> None:
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} "
        "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    for statement in SCHEMA:
        session.execute(statement.format(ks=keyspace, table=table))


class Workload:
    """Writes random statements to a table, from a thread as `with workload:` or by `run`."""

    def __init__(self, session: Any, table: str, seed: int, rate: float = 100) -> None:
        self.session = session
        self.table = table
        self.random = random.Random(seed)
        self.rate = rate
        self.statements = 0
        self.failed = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Workload:
        self._stop.clear()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def run(self, statements: int) -> None:
        for _ in range(statements):
            self.write_statement()

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self.write_statement()
            except Exception:
                # Cassandra may be down on purpose; whether such a write took effect is for the table to say.
                self.failed += 1
                time.sleep(0.5)
            self._stop.wait(1 / self.rate)

    def write_statement(self) -> None:
        r = self.random
        p, q, c, d = r.randrange(4), r.choice("ab"), r.randrange(5), r.choice(IDS)
        where = f"p = {p} AND q = '{q}' AND c = {c} AND d = {d}"
        partition = f"p = {p} AND q = '{q}'"
        n = r.randrange(1000)
        t = self.table
        insert = (
            f"INSERT INTO {t} (p, q, c, d, v, n, big, dec, l, st, m, pl, fpl) VALUES ({p}, '{q}', {c}, {d}, 'v{n}',"
            f" {n}, {n**9}, {n}.{n:03}, ['a', 'b{n}'], {{{n}, 1}}, {{'k': {n}}}, {{street: 's{n}', no: {n}}},"
            f" {{street: 'f', no: null}})"
        )
        choices = [
            (30, insert),
            (5, f"INSERT INTO {t} (p, q, c, d) VALUES ({p}, '{q}', {c}, {d})"),
            (15, f"UPDATE {t} SET v = 'u{n}', n = {n} WHERE {where}"),
            (5, f"UPDATE {t} SET v = null WHERE {where}"),
            (5, f"UPDATE {t} SET st = st + {{{n}}} WHERE {where}"),
            (5, f"UPDATE {t} SET st = st - {{1}}, m = m + {{'k{n % 5}': {n}}} WHERE {where}"),
            (5, f"UPDATE {t} SET l = l + ['x{n}'] WHERE {where}"),
            (5, f"UPDATE {t} SET pl.no = {n}, lfp = [{{street: 'z', no: {n}}}] WHERE {where}"),
            (3, f"DELETE m['k'] FROM {t} WHERE {where}"),
            (3, f"DELETE st, v FROM {t} WHERE {where}"),
            (8, f"DELETE FROM {t} WHERE {where}"),
            (2, f"DELETE FROM {t} WHERE {partition}"),
            (5, f"UPDATE {t} SET s = 's{n}', t = t + {{{n % 7}}} WHERE {partition}"),
            (2, f"DELETE s FROM {t} WHERE {partition}"),
            (3, f"UPDATE {t} SET v = 'lwt' WHERE {where} IF n > 500"),
            (3, f"INSERT INTO {t} (p, q, c, d, s, v) VALUES ({p}, '{q}', {c}, {d}, 'both', 'v{n}')"),
            (3, "batch"),
            (3, f"DELETE FROM {t} WHERE {partition} AND c = {c}"),
            (2, f"DELETE FROM {t} WHERE {partition} AND c > {c}"),
            (2, f"DELETE FROM {t} WHERE {partition} AND c >= {c} AND c < {c + 2}"),
            (1, f"DELETE FROM {t} WHERE {partition} AND c = {c} AND d > {d}"),
            (1, "ranges"),
        ]
        chosen = r.choices([statement for _, statement in choices], [weight for weight, _ in choices])[0]
        if chosen == "batch":
            batch = BatchStatement(BatchType.UNLOGGED)
            # In one mutation: the partition goes and rows come, some only to stay for their newer time.
            now = time.time_ns() // 1000
            batch.add(f"DELETE FROM {t} USING TIMESTAMP {now} WHERE {partition}")
            batch.add(f"INSERT INTO {t} (p, q, c, d, v) VALUES ({p}, '{q}', {c}, {d}, 'b') USING TIMESTAMP {now + 1}")
            self.session.execute(batch)
        elif chosen == "ranges":
            # Two ranges and a row between them, in one mutation.
            batch = BatchStatement(BatchType.UNLOGGED)
            batch.add(f"DELETE FROM {t} WHERE {partition} AND c < 2")
            batch.add(f"INSERT INTO {t} (p, q, c, d, v) VALUES ({p}, '{q}', 2, {d}, 'between')")
            batch.add(f"DELETE FROM {t} WHERE {partition} AND c > 2 AND c <= 4")
            self.session.execute(batch)
        else:
            self.session.execute(chosen)
        self.statements += 1
