"""How fast a snapshot goes against the plain backlog of the same rows, and what writes meet while one runs.

    python -m bench snapshot [--rows 200000] [--rounds 3] [--tasks 1] [--set snapshot.max.rate=5000]

On one stack, with one worker of Spark's local[2,4] and `tasks.max=1`:

- scan: keys per second that this process scans and appends as events, by itself.
- backlog and snapshot, in turns: a change event of every row, as the agent makes it, waits when the connector resumes;
  then, a minute later, a snapshot of the same table. Rows per second from the request to the last record, and CPU µs
  per row. The worker's JVM goes on getting faster for minutes, so both are repeated.
- latency: write → record of 20 writes a second to the same table, without a snapshot and while one runs.
- memory: of the worker's processes, at most, during a snapshot of a tenth of the rows and of all.

`--set` is for the connector's file, and may be given several times.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args
from cassandra.metadata import Murmur3Token

from bench.backlog import PARTS, change, cpu_of
from bench.path import Arrivals, delays, is_ready, labels, read_metrics, report, running, topics_exist, wait
from bench.verify import processes_of, resident
from bench.written import NODES
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import events_log
from helenus_connector.snapshot._ring import new_stretch
from helenus_connector.snapshot._scan import ScanSlice, scan
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.event import placement
from helenus_schemas.event.wire import encode
from helenus_schemas.service.logs import setup
from helenus_stack import programs
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

SLICE = 20_000
WRITES = 20  # a second
QUIET_S = 61.0  # after which a snapshot and changes no longer take turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=1, help="tasks.max")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for the connector's file")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
    ):
        cassandra.execute(
            "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        for name, rows in (("tenth", options.rows // 10), ("whole", options.rows)):
            cassandra.execute(f"CREATE TABLE bench.{name} (k int PRIMARY KEY, v text, n int) WITH cdc = true")
            insert = cassandra.prepare(f"INSERT INTO bench.{name} (k, v, n) VALUES (?, ?, ?) USING TIMESTAMP 1")
            execute_concurrent_with_args(cassandra, insert, ((n, "x" * 100, n) for n in range(rows)), concurrency=100)
        Bench(stack.status(), cassandra, Path(folder), options).run()


def show(label: str, who: str, spent: list[float]) -> None:
    costs = f"{who} {spent[0]:.0f}, Cassandra {spent[1]:.0f}, broker {spent[2]:.0f}"
    print(f"{label}; CPU µs each: {costs}; load {os.getloadavg()[0]:.1f}", flush=True)


class Bench:
    """The worker of the benchmark and its two connectors."""

    def __init__(self, status: Status, cassandra: Any, folder: Path, options: argparse.Namespace) -> None:
        self.status, self.cassandra, self.rows, self.rounds = status, cassandra, options.rows, options.rounds
        self.connector = programs.connector(status, folder, "bench", "whole")
        self.worker, whole = self.connector.files
        with whole.open("a") as settings:
            settings.write("\n" + "\n".join(["snapshot.mode=never", f"tasks.max={options.tasks}", *options.set]) + "\n")
        tenth = folder / "bench_tenth.properties"
        tenth.write_text(whole.read_text().replace("bench-whole", "bench-tenth").replace("table=whole", "table=tenth"))
        self.connector = programs.Program("connector", self.connector.directory, [self.worker, whole, tenth])
        self.settings = WorkerSettings.load(self.worker)
        self.address = self.worker.read_text().split("listeners=")[1].split()[0]
        self.port = self.address.rpartition(":")[2]
        self.tables = read_tables(cassandra, "bench")
        self.log = events_log(self.settings)
        for name in ("whole", "tenth", "scanned"):
            self.log.create(f"events-bench.{name}", PARTS, {})

    def run(self) -> None:
        self.scan()
        with running(self.connector, {"JAVA_HOME": str(spark_java_home(Terminal()))}):
            topics_exist(self.status, "data-bench.whole", "data-bench.tenth")
            wait(lambda: is_ready(self.connector), "the connector is ready")
            self.snapshot("tenth")
            for turn in range(self.rounds):
                self.measured(f"backlog, round {turn + 1}", lambda turn=turn: self.backlog(turn))
                time.sleep(QUIET_S)
                self.measured(f"snapshot, round {turn + 1}", lambda: self.snapshot("whole"))
            for name in ("tenth", "whole"):
                self.memory(name)
            self.latency()
        self.log.close()

    def table(self, name: str) -> Table:
        return next(table for table in self.tables.values() if table.name == name)

    def scan(self) -> None:
        """Scan and append keys, in this process alone."""
        properties = {
            "name": "scan",
            "keyspace": "bench",
            "table": "whole",
            "output.format": "json",
            "cassandra.contact.points": ",".join(self.status.contact_points),
            "cassandra.port": str(self.status.cql_port),
            "cassandra.local.dc": self.status.local_dc,
            "events.topic": "events-bench.scanned",
        }
        settings: ConnectorSettings = self.settings.model.read_settings(properties, "scan")
        for turn in range(self.rounds):
            remaining, rows = new_stretch(), 0
            before, start, mine = self.costs(), time.monotonic(), time.process_time()
            while remaining is not None:
                part = ScanSlice(
                    self.settings, settings, self.table("whole"), remaining, "", PARTS, SLICE, 60.0, False, setup()
                )
                result = scan(part)
                assert result.error is None, result.error
                remaining, rows = result.left, rows + result.rows
            assert rows == self.rows, rows
            seconds, mine = time.monotonic() - start, time.process_time() - mine
            spent = [(b - a) / rows * 1e6 for a, b in zip(before, self.costs(), strict=True)]
            spent[0] = mine / rows * 1e6
            show(f"scan, round {turn + 1}: {rows / seconds:.0f} keys/s", "this process", spent)

    def costs(self) -> list[float]:
        """CPU seconds of the connector, Cassandra and the broker so far."""
        servers = {server.name: server.pid for server in self.status.servers}
        node = next(pid for name, pid in servers.items() if name.startswith("cassandra"))
        return [cpu_of(pid) if pid else 0.0 for pid in (self.connector.process.pid, node, servers[self.status.log])]

    def measured(self, name: str, function: Callable[[], float]) -> None:
        """Do this, which returns when it began, monotonic s; and print what it took."""
        before = self.costs()
        seconds = -function() + time.monotonic()
        spent = [(b - a) / self.rows * 1e6 for a, b in zip(before, self.costs(), strict=True)]
        show(f"{name}: {self.rows / seconds:.0f} rows/s", "connector", spent)

    def written(self, name: str = "whole") -> float:
        return read_metrics(self.port).get(f"helenus_connector_records_total{labels(name)}", 0)

    def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        request = urllib.request.Request(f"{self.address}/connectors/{path}", method=method)
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, data, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def backlog(self, turn: int) -> float:
        """Events of all rows wait while the connector is paused; it resumes, and has them all written."""
        self.ask("bench-whole/pause", "PUT")
        table = self.table("whole")
        codec = KeyCodec(table)
        for n in range(self.rows):
            raw = struct.pack(">i", n)
            digest = hashlib.md5(raw + bytes([turn]), usedforsecurity=False).hexdigest()
            partition = placement.partition(Murmur3Token.hash_fn(raw), PARTS)
            value = encode(change(digest, NODES[0], turn * self.rows + n))
            self.log.append("events-bench.whole", partition, codec.encode((raw,)), value)
        self.log.flush(60)
        records_before, start = self.written(), time.monotonic()
        self.ask("bench-whole/resume", "PUT")
        wait(lambda: self.written() >= records_before + self.rows, "the backlog", 600)
        return start

    def snapshot(self, name: str) -> float:
        start = time.monotonic()
        self.ask(f"bench-{name}/snapshots", "POST", {})
        wait(lambda: self.state(name) == "COMPLETE", "the snapshot", 600)
        return start

    def state(self, name: str) -> str:
        (shown,) = self.ask(f"bench-{name}/snapshots")["snapshots"]
        assert shown["state"] != "FAILED", shown
        return str(shown["state"])

    def memory(self, name: str) -> None:
        """What the worker's processes hold at most while a table is snapshotted; the driver, its JVM, and all."""
        peaks = [0.0, 0.0]
        is_over = threading.Event()
        driver = self.connector.process.pid
        assert driver

        def watch() -> None:
            while not is_over.wait(0.5):
                with suppress(OSError):
                    peaks[0] = max(peaks[0], resident(driver))
                peaks[1] = max(peaks[1], sum(map(resident, processes_of(driver))))

        thread = threading.Thread(target=watch)
        thread.start()
        self.snapshot(name)
        is_over.set()
        thread.join()
        rows = self.rows if name == "whole" else self.rows // 10
        print(
            f"memory, {rows} rows: driver {peaks[0] / 2**20:.0f} MB at most, all processes {peaks[1] / 2**20:.0f} MB",
            flush=True,
        )

    def latency(self) -> None:
        """Writes to the table, whose events this process makes as the agent would, without a snapshot and with one."""
        for name in ("no snapshot", "a snapshot runs"):
            arrivals = Arrivals(self.status, "data-bench.whole")
            time.sleep(1)
            is_over = threading.Event()
            if name != "no snapshot":
                threading.Thread(target=self.repeat_snapshots, args=(is_over,), daemon=True).start()
                wait(lambda: self.state("whole") == "SCANNING", "a snapshot")
            writes = self.write(20.0)
            is_over.set()
            wait(lambda: self.state("whole") == "COMPLETE", "the snapshot", 300)
            time.sleep(3)
            arrivals.close()
            report(f"write → record, {name}", delays(writes, arrivals.seen["data-bench.whole"]))

    def repeat_snapshots(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            self.snapshot("whole")

    def write(self, seconds: float) -> list[tuple[bytes, int, float]]:
        """Write at a rate; returns key, write time in µs and the moment of the acknowledgement of each."""
        codec = KeyCodec(self.table("whole"))
        insert = self.cassandra.prepare("INSERT INTO bench.whole (k, v, n) VALUES (?, ?, ?) USING TIMESTAMP ?")
        writes = []
        start = time.monotonic()
        for i in range(int(WRITES * seconds)):
            time.sleep(max(0.0, start + i / WRITES - time.monotonic()))
            row, written = i * 7919 % self.rows, time.time_ns() // 1000
            self.cassandra.execute(insert, (row, "y" * 100, i, written))
            written_at = time.time()
            raw = struct.pack(">i", row)
            made = change(hashlib.md5(b"%d" % written, usedforsecurity=False).hexdigest(), NODES[0], written)
            value = encode(made._replace(write_time=written))
            partition = placement.partition(Murmur3Token.hash_fn(raw), PARTS)
            self.log.append("events-bench.whole", partition, codec.encode((raw,)), value)
            self.log.flush(10)
            writes.append((codec.encode((raw,)), written, written_at))
        return writes
