"""A backlog of events for a connector's own command, and what each of its processes spends on it."""

from __future__ import annotations

import hashlib
import os
import struct
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args
from cassandra.metadata import Murmur3Token

from bench.path import is_ready, labels, read_metrics, running, topics_exist, wait
from bench.written import NODES
from bench.written import insert as cells_of
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import events_log
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event import placement
from helenus_schemas.event.change import Change, Effect, Scope, column_bit
from helenus_schemas.event.wire import encode
from helenus_stack import programs
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.status import Status

PARTS = 4
WARM_UP = 20_000
_KINDS = {
    "JVM": b"org.apache.spark",
    "workers": b"connector.daemon",
    "small": b"_small_batch_process",
    "planner": b"streaming.python_streaming_source",
}


def change(
    digest: str, node: str, n: int, cells: bytes | None = None, write_time: int = 1, deletes: bool = False
) -> Change:
    """What an agent says of an INSERT, the nth of its segment; or of a DELETE by a key that is a partition's."""
    scope = Scope.PARTITION if deletes else Scope.ROW
    effect = int(Effect.GONE if deletes else Effect.LIVE | Effect.ROW | column_bit("v") | column_bit("n"))
    position = {"segment": 1_700_000_000_000, "position": 100 * n}
    return Change(digest, node, scope, **position, write_time=write_time, effect=effect, cells=cells)


class Backlog:
    """A worker with a connector of its own for `table`, and the events that are to be its backlog. `more` are settings
    of the connector, `of_worker` those of the worker.
    """

    def __init__(
        self,
        status: Status,
        cassandra: Any,
        directory: Path,
        table: str,
        more: Sequence[str],
        of_worker: Sequence[str] = (),
    ) -> None:
        columns = "(k int PRIMARY KEY, v text, n int) WITH cdc = true"
        cassandra.execute(f"CREATE TABLE IF NOT EXISTS bench.{table} {columns}")
        (self.table,) = (t for t in read_tables(cassandra, "bench").values() if t.name == table)
        self.has_cells = any(setting in more for setting in ("resolver=none", "state=rows"))
        self._cassandra = cassandra
        self.checkpoint = directory / "checkpoint"
        self._topic = f"events-bench.{table}"
        self._codec = KeyCodec(self.table)
        # Its pid file in a directory of its own: there may be several workers.
        self._connector = replace(programs.connector(status, directory, "bench", table), directory=directory)
        for name in ("run", "logs"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        self.worker_file, self.connector_file = self._connector.files
        with self.worker_file.open("a") as settings:
            settings.write("\n".join(["", *of_worker, ""]))
        with self.connector_file.open("a") as settings:
            settings.write("\n".join(["\ntasks.max=2", *more, ""]))
        self._log = events_log(WorkerSettings.load(self._connector.files[0]))
        self._log.create(self._topic, PARTS, {})
        self._status = status
        self.records_per_s: list[float] = []
        """Of each round."""
        self._turn = 0
        self._write_time, self._deletes = 1, False
        hosts = sorted(str(host.host_id) for host in cassandra.cluster.metadata.all_hosts())
        self._nodes = hosts if len(hosts) > 1 else NODES

    def __enter__(self) -> Backlog:
        self._running = running(self._connector, {"JAVA_HOME": str(spark_java_home(Terminal()))})
        self._running.__enter__()
        topics_exist(self._status, self._topic.replace("events-", "data-"))
        wait(lambda: is_ready(self._connector), "the connector is ready", 600)
        self.port = self._connector.files[0].read_text().split("listeners=http://127.0.0.1:")[1].split()[0]
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)
        self._log.close()

    def fill(self, rows: int, until: float | None = None) -> None:
        """Rows that are to be read. They expire at `until`, in s since the epoch."""
        time_us = self._write_time
        text = f"INSERT INTO bench.{self.table.name} (k, v, n) VALUES (?, ?, ?) USING TIMESTAMP {time_us} AND TTL ?"
        insert = self._cassandra.prepare(text)
        made = ((n, "x" * 100, n, 0 if until is None else round(until - time.time())) for n in range(rows))
        self._execute(insert, made)

    def _execute(self, statement: Any, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows; those that time out on a busy machine once more, at the time that the statement names."""
        pending = list(rows)
        for _ in range(10):
            answers = execute_concurrent_with_args(
                self._cassandra, statement, pending, concurrency=100, raise_on_first_error=False
            )
            pending = [row for row, (was_written, _) in zip(pending, answers, strict=True) if not was_written]
            if not pending:
                return
        raise TimeoutError(f"{len(pending)} rows were not written")

    def write(self, rows: int, deletes: bool) -> None:
        """Write rows once more, or delete them: the next round's events are of that."""
        self._write_time, self._deletes = self._write_time + 1, deletes
        if not deletes:
            self.fill(rows)
            return
        text = f"DELETE FROM bench.{self.table.name} USING TIMESTAMP {self._write_time} WHERE k = ?"
        self._execute(self._cassandra.prepare(text), ((n,) for n in range(rows)))

    def warm_up(self, copies: int = 1) -> None:
        """Its first records."""
        self.produce(WARM_UP, copies)
        wait(lambda: self.metric("records_total") >= WARM_UP, "warm-up", 600)

    def metric(self, name: str) -> float:
        """The table's value of `helenus_connector_` and this."""
        return read_metrics(self.port).get(f"helenus_connector_{name}{labels(self.table.name)}", 0)

    def memory(self) -> str:
        """MB of each kind of the worker's processes."""
        return memory_by_kind(self._connector.process.pid or 0)

    def records(self) -> int:
        """How many were published, by its metrics: offsets count the ends of transactions too."""
        return int(self.metric("records_total"))

    def round(self, count: int, copies: int = 1, until_idle: bool = False, keys: int | None = None) -> str:
        """What a backlog of so many changes cost, of as many rows if `keys` says of no fewer; with `until_idle` also
        what is done after their records.
        """
        self._put("pause")
        self.produce(count, copies, keys)
        servers = [s for s in self._status.servers if s.name.startswith("cassandra") or s.name == self._status.log]
        pids = [s.pid or 0 for s in servers]
        mine = self._connector.process.pid
        assert mine
        wait(lambda: all(cost(pid) < 0.1 for pid in pids), "the servers are done with the inserts", 120)
        before, parts = [cpu_of(pid) for pid in (mine, *pids)], by_kind(mine)
        start, records_before, read = (
            time.monotonic(),
            self.records(),
            self.metric("events_read_total") + count * copies,
        )
        self._put("resume")
        if keys is None:
            wait(lambda: self.records() >= records_before + count, "the backlog", max(900, count // 1000))
        if keys is not None or copies > 1:
            wait(lambda: self.metric("events_read_total") >= read, "all events are read", 900)
        seconds = time.monotonic() - start
        if until_idle:
            wait(lambda: cost(mine) < 0.2, "the connector is done", 300)
        spent = [b - a for a, b in zip(before, [cpu_of(pid) for pid in (mine, *pids)], strict=True)]
        names = ("connector", *(s.name for s in servers))
        costs = ", ".join(f"{n} {s / count * 1e6:.0f}" for n, s in zip(names, spent, strict=True))
        now = by_kind(mine)
        kinds = ", ".join(f"{kind} {(now[kind] - parts.get(kind, 0)) / count * 1e6:.1f}" for kind in sorted(now))
        self.records_per_s.append((self.records() - records_before) / seconds)
        rate, load = f"{self.records_per_s[-1]:.0f} records/s", os.getloadavg()[0]
        if keys is not None or copies > 1:
            rate += f" of {count * copies / seconds:.0f} events/s"
        return f"{count} changes, {rate}; CPU s per million: {costs} ({kinds}); load {load:.1f}"

    def produce(self, changes: int, copies: int = 1, keys: int | None = None) -> None:
        """Append events of so many changes, of as many rows if `keys` says of no fewer."""
        written_us = time.time_ns() // 1000  # what is newer than all before is merged without a read
        for n in range(changes):
            raw = struct.pack(">i", n % (keys or changes))
            partition = placement.partition(Murmur3Token.hash_fn(raw), PARTS)
            digest = hashlib.md5(struct.pack(">iI", self._turn, n), usedforsecurity=False).hexdigest()
            cells = cells_of(self.table, (raw, b"x" * 100), written_us + n) if self.has_cells else None
            for node in self._nodes[:copies]:
                position = self._turn * changes + n
                value = encode(change(digest, node, position, cells, self._write_time, self._deletes))
                self._log.append(self._topic, partition, self._codec.encode((raw,)), value)
        self._log.flush(60)
        self._turn += 1

    def _put(self, state: str) -> None:
        url = f"http://127.0.0.1:{self.port}/connectors/bench-{self.table.name}/{state}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=30).close()


def cost(process: int) -> float:
    """CPU seconds a second of a process, now."""
    before = cpu_of(process)
    time.sleep(2)
    return (cpu_of(process) - before) / 2


def by_kind(process: int) -> dict[str, float]:
    """CPU seconds of a connector's processes: its own, Spark's JVM, the Python process that plans for a source in
    Python, the one for small batches, and the workers, which read events and do the stage in turns.
    """
    cpu_by_kind = {"driver": 0.0}
    for pid, kind in _processes(process):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            # Of the workers, those that have ended are counted with the process that they were forked from.
            spent = sum(map(int, fields[11 : 15 if kind == "workers" else 13])) / os.sysconf("SC_CLK_TCK")
            cpu_by_kind[kind] = cpu_by_kind.get(kind, 0.0) + spent
    return cpu_by_kind


def _processes(process: int) -> Iterator[tuple[int, str]]:
    """A connector's processes, and the kind of each."""
    pending = [(process, "driver")]
    own = Path(f"/proc/{process}/cmdline").read_bytes() if Path(f"/proc/{process}").exists() else b""
    while pending:
        pid, kind = pending.pop()
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if kind != "workers":
                kind = next((k for k, mark in _KINDS.items() if mark in command), kind)
            if pid != process and command == own:  # forked from the worker
                kind = "small"
            yield pid, kind
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    pending += [(int(child), kind) for child in (thread / "children").read_text().split()]


def memory_by_kind(process: int) -> str:
    """MB of memory that a connector's processes have for themselves: of the workers, all together."""
    memory: dict[str, int] = {}
    for pid, kind in _processes(process):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            memory[kind] = memory.get(kind, 0) + sum(
                int(line.split()[1]) for line in lines if line.startswith("Private")
            )
    return ", ".join(f"{kind} {size // 1024}" for kind, size in sorted(memory.items()))


def cpu_of(process: int) -> float:
    """CPU seconds of a process, its children, and theirs, those that have ended included."""
    total, pending = 0.0, [process]
    while pending:
        pid = pending.pop()
        with suppress(OSError):  # it has ended since
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    pending += map(int, (thread / "children").read_text().split())
    return total
