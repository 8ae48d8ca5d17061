"""What the connector does in a second, as ratios of one run, and what it costs.

    python -m bench connector [reads] [copies] [memory] [backlog] [fencing] [exactly-once] [--events 100000] …

- reads: rows re-read per second against one query per event as DataStax's connector sends them: batches of 200, ten
  single threads, one SELECT each, and a barrier. Both cover the same events, in one process, in turns.
- copies: events per second through the stage when two of three are copies from other replicas.
- memory: of a process whose stage sees ten times as many changes as its cache holds.
- backlog: records per second of the whole connector, Spark and all, until all are on the data topic, and CPU seconds
  per million of its processes and of the servers. With `--log pulsar` on Pulsar; `--set` adds settings of the
  connector: with `--set resolver=none output.format=debezium` events have cells, and no row is read. With `--nodes 3
  --copies 3 --set ... gate=local_quorum` each of three nodes reports each change. With `--deletes` rows are written
  again and deleted in turns: a round of updates, and one of deletes of the same rows.
- fencing: the same with `fence.writers` and without, in turns.
- exactly-once: the same with `exactly.once.support` and without, in turns; with `--set state=rows` of a connector that
  keeps rows. What it does to latency:
  `python -m bench path --rates 20 --compare exactly.once.support=disabled exactly.once.support=required`.

Starts its own Cassandra, Kafka and registry. No agent runs: events are made as the agent makes them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import BoundStatement

from bench.backlog import PARTS, Backlog, change
from bench.written import NODES
from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.cassandra_rows.row_reader import RowReader
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.event import Event
from helenus_connector.pipeline.stage import Stage
from helenus_connector.query.garbage import freeze
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.event.wire import encode
from helenus_schemas.service.cassandra import connect
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.cql import session
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

ROWS = 5_000
BATCH = 50_000  # as max.batch.size
TABLES = {
    "single": ("k int PRIMARY KEY, v text, n int", 1),
    "clustering": ("p int, c int, v text, n int, PRIMARY KEY (p, c)", 10),
    "wide": ("p int, c int, v text, n int, PRIMARY KEY (p, c)", 100),
    "composite": ("p int, q int, v text, n int, PRIMARY KEY ((p, q))", 10),
    "unlike": ("p int, q int, v text, n int, PRIMARY KEY ((p, q))", 0),
}
"""Columns, and rows with the same p; 0: no two keys have a column in common."""


def key(table: str, row: int) -> Key:
    """The primary key of the n-th row, as CQL bytes."""
    if table == "single":
        return (struct.pack(">i", row),)
    alike = TABLES[table][1]
    first, second = divmod(row, alike) if alike else (row, row)
    return struct.pack(">i", first), struct.pack(">i", second)


def create(cassandra: Any, rows: int = ROWS) -> None:
    nodes = len(cassandra.cluster.metadata.all_hosts())
    replication = f"{{'class': 'SimpleStrategy', 'replication_factor': {nodes}}}"
    cassandra.execute(f"CREATE KEYSPACE IF NOT EXISTS bench WITH replication = {replication}")
    for table, (columns, _) in TABLES.items():
        cassandra.execute(f"CREATE TABLE IF NOT EXISTS bench.{table} ({columns}) WITH cdc = true")
        width = len(key(table, 0))
        names = "k" if table == "single" else "p, q" if table in ("composite", "unlike") else "p, c"
        insert = cassandra.prepare(
            f"INSERT INTO bench.{table} ({names}, v, n) VALUES ({'?, ' * width}?, ?) USING TIMESTAMP 1"
        )
        rows_of = [(*(struct.unpack(">i", k or b"")[0] for k in key(table, n)), "x" * 100, n) for n in range(rows)]
        execute_concurrent_with_args(cassandra, insert, rows_of, concurrency=100)


class Bench:
    """A table of the benchmark and what reads it in this process."""

    def __init__(self, status: Status, table: str, directory: Path, **more: object) -> None:
        properties = {
            "name": table,
            "keyspace": "bench",
            "table": table,
            "cassandra.contact.points": ",".join(status.contact_points),
            "cassandra.port": str(status.cql_port),
            "cassandra.local.dc": str(status.local_dc),
            "value.converter.schema.registry.url": status.registry_url,
            **{name.replace("_", "."): str(value) for name, value in more.items()},
        }
        self.settings = ConnectorSettings.from_properties(properties, "bench")
        self.session = connect(self.settings, None, RawProtocolHandler, row_factory, metadata=True)
        tables = read_tables(self.session, "bench").values()
        self.table: Table = next(t for t in tables if t.name == table)
        self.codec = KeyCodec(self.table)
        log = KafkaLog({"bootstrap.servers": status.bootstrap_servers})
        log.create(self.settings.data, PARTS, {})
        directory.mkdir(parents=True, exist_ok=True)
        self.stage = Stage(self.settings, self.session, log, directory)
        freeze(table)  # as Spark's workers do

    def events(self, rows: Iterable[int], copies: int = 1, first: int = 0) -> list[Event]:
        """An event for each row, and those of as many other nodes as there are copies, a little later."""
        made = []
        for n, row in enumerate(rows, first):
            encoded = self.codec.encode(key(self.table.name, row))
            digest = hashlib.md5(struct.pack(">q", n), usedforsecurity=False).hexdigest()
            values = (encode(change(digest, node, n)) for node in NODES[:copies])
            made += [Event(self.settings.events, 0, n, 0, encoded, value) for value in values]
        return made

    def close(self) -> None:
        self.stage.log.close()
        self.session.cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PIECES))
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement of reads")
    parser.add_argument("--events", type=int, default=100_000, help="of the backlog")
    parser.add_argument("--keys", type=int, help="that the backlog's events are of; each of another one if not given")
    parser.add_argument("--rounds", type=int, default=3, help="of the backlog")
    parser.add_argument("--nodes", type=int, default=1, choices=[1, 2, 3], help="of Cassandra, each with all rows")
    parser.add_argument("--copies", type=int, default=1, help="of each change of the backlog")
    parser.add_argument("--deletes", action="store_true", help="after each round of the backlog one of deletes")
    parser.add_argument("--rows", nargs="*", default=[], metavar="TABLE", help="of reads; all if none is named")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the connector")
    parser.add_argument("--log", choices=["kafka", "pulsar"], default="kafka", help="of the backlog alone")
    parser.add_argument(
        "--stack", type=Path, help="use the stack in this directory, which runs already, best with --no-brief"
    )
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        if options.stack:
            measure(Stack(options.stack), directory, options)
        else:
            with Stack(
                directory / "stack", nodes=options.nodes, log=options.log, brief=False, progress=Terminal()
            ) as stack:
                measure(stack, directory, options)


def measure(stack: Stack, directory: Path, options: argparse.Namespace) -> None:
    status = stack.status()
    with session(status) as cassandra:
        create(cassandra, ROWS if options.parts != ["backlog"] else 0)
        for part in options.parts:
            PIECES[part](status, cassandra, directory / part, options)


def skewed(rows: int, count: int) -> list[int]:
    """Zipf 0.99."""
    return random.choices(range(rows), [1 / (i + 1) ** 0.99 for i in range(rows)], k=count)


def reads(status: Status, cassandra: Any, directory: Path, options: argparse.Namespace) -> None:
    random.seed(1)
    print(f"{'events re-read per second':28} {'one by one':>10} {'grouped':>10} {'ratio':>7} {'CPU ratio':>9}")
    unique = random.sample(range(ROWS), ROWS) * 40
    more = dict(pair.split("=", 1) for pair in options.set)
    for table, kind, chosen, batch in (
        ("single", "unique", unique, ROWS),
        ("single", "uniform", random.choices(range(ROWS), k=200_000), BATCH),
        ("single", "zipf", skewed(ROWS, 200_000), BATCH),
        ("clustering", "unique", unique, ROWS),
        ("wide", "unique", unique, ROWS),
        ("composite", "unique", unique, ROWS),
        ("composite", "zipf", skewed(ROWS, 200_000), BATCH),
        ("unlike", "unique", unique, ROWS),
        ("unlike", "zipf", skewed(ROWS, 200_000), BATCH),
    ):
        if options.rows and table not in options.rows:
            continue
        bench = Bench(status, table, directory, **more)
        wanted = [key(table, row) for row in chosen]
        reader = RowReader(bench.session, bench.table, bench.settings)
        query = reader._images._select(" AND ".join(f"{c.name} = ?" for c in bench.table.primary_key), is_whole=False)
        singles: list[tuple[float, float]] = []
        grouped: list[tuple[float, float]] = []
        for _ in range(3):  # in turns, so that what else the machine does meets both
            singles.append(
                rate(lambda b, q=query, s=bench.session: one_by_one(s, q, b), wanted, 200, options.seconds / 3)
            )
            grouped.append(rate(lambda b, r=reader: in_groups(r, b), wanted, batch, options.seconds / 3))
        slow, fast = median(singles), median(grouped)
        name = f"{table}, {kind}"
        print(
            f"{name:28} {slow[0]:>10.0f} {fast[0]:>10.0f} {fast[0] / slow[0]:>7.1f} {slow[1] / fast[1]:>9.1f}",
            flush=True,
        )
        bench.close()


def median(rates: list[tuple[float, float]]) -> tuple[float, float]:
    return sorted(rates)[len(rates) // 2]


def rate(read: Callable[[Sequence[Key]], None], wanted: list[Key], size: int, seconds: float) -> tuple[float, float]:
    """Events per second, and CPU seconds of this process per event, in batches of a size."""
    read(wanted[:size])
    keys_read, start, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        offset = keys_read % (len(wanted) - size)
        read(wanted[offset : offset + size])
        keys_read += size
    return keys_read / (time.monotonic() - start), (time.process_time() - cpu) / keys_read


_threads = [ThreadPoolExecutor(1) for _ in range(10)]


def one_by_one(cassandra: Any, query: Any, batch: Sequence[Key]) -> None:
    """As DataStax's connector: each key to the one of ten threads that its hash says, then wait for all."""

    def read(wanted: Key) -> None:
        bound = BoundStatement(query, consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        bound.values = list(wanted)
        assert cassandra.execute(bound).one() is not None

    for answer in [_threads[hash(k) % 10].submit(read, k) for k in batch]:
        answer.result()


def in_groups(reader: RowReader, batch: Sequence[Key]) -> None:
    """As the stage: every key of a batch once."""
    for _ in reader.read_rows(dict.fromkeys(batch), ConsistencyLevel.LOCAL_QUORUM):
        pass


def copies(status: Status, cassandra: Any, directory: Path, options: argparse.Namespace) -> None:
    """Change events of few keys, each reported by three nodes: in the same batch, and in later ones."""
    bench = Bench(status, "single", directory, cache_max_capacity=1 << 20)
    count, batch = 60_000, 20_000
    chosen = skewed(ROWS, count)
    for name, events in (
        ("copies come together", bench.events(chosen, 3)),
        ("copies come later", sorted(bench.events(chosen, 3, count), key=lambda e: e.value[38:] if e.value else b"")),
    ):
        bench.stage.run(bench.events(chosen[:100], 1, 10 * count), (), True)
        totals: dict[str, int] = {}
        start, cpu = time.monotonic(), time.process_time()
        for offset in range(0, len(events), batch):
            outcome = bench.stage.run(events[offset : offset + batch], (), True)
            for counted in ("read", "published", "confirmed", "records"):
                totals[counted] = totals.get(counted, 0) + getattr(outcome, counted)
        seconds, cpu = time.monotonic() - start, time.process_time() - cpu
        print(f"{name}: {len(events) / seconds:.0f} events/s, {cpu / len(events) * 1e6:.1f} CPU µs each; {totals}")
    # Every event another row: what a record costs.
    events = bench.events(list(range(ROWS)) * 4, 1, 20 * count)
    start, cpu, records = time.monotonic(), time.process_time(), 0
    for offset in range(0, len(events), ROWS):
        records += bench.stage.run(events[offset : offset + ROWS], (), True).records
    seconds, cpu = time.monotonic() - start, time.process_time() - cpu
    print(f"no copies: {records / seconds:.0f} records/s, {cpu / records * 1e6:.0f} CPU µs each", flush=True)
    bench.close()


def memory(status: Status, cassandra: Any, directory: Path, options: argparse.Namespace) -> None:
    capacity = 20_000
    bench = Bench(status, "single", directory, cache_max_capacity=capacity)
    sizes = []
    for turn in range(11):
        for part in range(4):
            events = bench.events(
                random.choices(range(ROWS), k=capacity // 4), 1, turn * capacity + part * capacity // 4
            )
            bench.stage.run(events, (), True)
        sizes.append(resident())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"memory after 1 to 11 times the cache's capacity, MB: {' '.join(f'{m:.0f}' for m in sizes)}; peak {peak:.0f}"
    )
    bench.close()


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def backlog(status: Status, cassandra: Any, directory: Path, options: argparse.Namespace) -> None:
    """The connector's own command, warm, is paused; when it resumes it meets a backlog of changes of as many rows.

    In rounds: Cassandra's and Spark's JVMs go on getting faster for minutes.
    """
    with Backlog(status, cassandra, directory, "backlog", options.set) as bench:
        bench.fill(0 if bench.has_cells else options.keys or options.events)
        bench.warm_up(options.copies)
        for turn in range(options.rounds):
            for deletes in (False, True) if options.deletes else (False,):
                if deletes or (options.deletes and turn):
                    bench.write(options.events, deletes)
                name = "deletes" if deletes else "backlog"
                measurement = bench.round(options.events, options.copies, keys=options.keys)
                print(f"{name}, round {turn + 1}: {measurement}", flush=True)


def fencing(status: Status, cassandra: Any, directory: Path, options: argparse.Namespace) -> None:
    """The same backlog for two workers, in turns: one whose records are in transactions, and one without."""
    with ExitStack() as stack:
        backlogs = {}
        for name in ("true", "false"):
            setting = f"fence.writers={name}"
            backlog = Backlog(status, cassandra, directory / name, f"fenced_{name}", options.set, [setting])
            backlogs[setting] = stack.enter_context(backlog)
        in_turns(backlogs, options)
        show_price(backlogs["fence.writers=true"], backlogs["fence.writers=false"], 0.03)


def exactly_once(status: Status, cassandra: Any, directory: Path, options: argparse.Namespace) -> None:
    """The same backlog for two workers, in turns: one publishes each record once, the other at least once."""
    with ExitStack() as stack:
        backlogs = {}
        for name in ("disabled", "required"):
            setting = f"exactly.once.support={name}"
            backlog = Backlog(status, cassandra, directory / name, f"once_{name}", [*options.set, setting])
            backlogs[setting] = stack.enter_context(backlog)
        in_turns(backlogs, options)
        show_price(backlogs["exactly.once.support=required"], backlogs["exactly.once.support=disabled"], 0.15)


def show_price(backlog: Backlog, without: Backlog, limit: float) -> None:
    """Of all rounds but the first, in which both JVMs are still slow, if there are more."""
    first = min(1, len(backlog.records_per_s) - 1)
    price = 1 - statistics.median(backlog.records_per_s[first:]) / statistics.median(without.records_per_s[first:])
    print(
        f"price: {price:.1%} of the records/s (median; at most {limit:.0%}); load {os.getloadavg()[0]:.1f}", flush=True
    )


def in_turns(backlogs: dict[str, Backlog], options: argparse.Namespace) -> None:
    """Rounds of workers that differ in a setting, by which they are named; each second one the other way round."""
    for backlog in backlogs.values():
        backlog.fill(0 if backlog.has_cells else options.events)
        backlog.warm_up()
    for turn in range(options.rounds):
        for setting, backlog in sorted(backlogs.items(), reverse=turn % 2 == 1):
            print(f"{setting}, round {turn + 1}: {backlog.round(options.events)}", flush=True)


PIECES: dict[str, Callable[..., None]] = {
    "reads": reads,
    "copies": copies,
    "memory": memory,
    "backlog": backlog,
    "fencing": fencing,
    "exactly-once": exactly_once,
}


if __name__ == "__main__":
    main()
