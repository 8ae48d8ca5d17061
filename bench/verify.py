"""How fast a verification compares a topic with its table, and what its processes hold meanwhile.

    python -m bench verify [--rows 200000]

In one run on one stack, with Spark's local[2]: a table of a tenth of the rows, then one of all of them; ten columns,
partitions of ten rows. The topic has a record for each row, as the connector makes it. Each is verified twice: the
first time Spark is cold. No worker runs next to it.
"""

from __future__ import annotations

import argparse
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.query.spark_session import start_session as start_spark
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import RowShape
from helenus_connector.verify._engine import verify
from helenus_connector.verify._job import token_of
from helenus_connector.verify.options import VerifyOptions
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event.placement import partition
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

PARTITIONS = 4
IN_PARTITION = 10
COLUMNS = "k int, c int, t text, u text, n bigint, d double, b boolean, s timestamp, i inet, m map<text, int>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
    ):
        os.environ["JAVA_HOME"] = str(spark_java_home(Terminal()))
        cassandra.execute(
            "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        properties = {
            "bootstrap.servers": stack.status().bootstrap_servers,
            "checkpoint.dir": folder,
            "spark.master": "local[2,4]",
        }
        worker = WorkerSettings.from_properties(properties, "worker")
        servers = processes_of(os.getpid()) - {os.getpid()}
        spark = start_spark(worker, Path(folder))
        try:
            for count in (rows // 10, rows):
                measure(stack.status(), cassandra, spark, worker, f"t{count}", count, servers)
        finally:
            spark.stop()


def measure(
    status: Status, cassandra: Any, spark: Any, worker: WorkerSettings, name: str, count: int, servers: set[int]
) -> None:
    """Verify a table of so many rows."""
    cassandra.execute(f"CREATE TABLE bench.{name} ({COLUMNS}, PRIMARY KEY (k, c)) WITH cdc = true")
    properties = {
        "name": name,
        "keyspace": "bench",
        "table": name,
        "cassandra.contact.points": ",".join(status.contact_points),
        "cassandra.port": str(status.cql_port),
        "cassandra.local.dc": status.local_dc,
        "value.converter.schema.registry.url": status.registry_url,
    }
    settings = worker.model.read_settings(properties, name)
    fill(cassandra, worker, settings, name, count)
    for turn in ("first", "again"):
        peaks = [0.0]
        is_over = threading.Event()
        thread = threading.Thread(target=watch, args=(peaks, servers, is_over))
        thread.start()
        start, before = time.monotonic(), spent(servers)
        report = verify(spark, worker, settings, VerifyOptions())
        seconds, cost = time.monotonic() - start, spent(servers) - before
        is_over.set()
        thread.join()
        assert (report.rows, report.records, report.differences) == (count, count, 0), report
        both = report.rows + report.records
        print(
            f"{turn}: {report.rows} rows and {report.records} records in {seconds:.1f} s: {both / seconds:.0f}/s; "
            f"{1e6 * cost / both:.0f} µs of CPU each, without servers; load {os.getloadavg()[0]:.1f}; "
            f"all processes {peaks[0] / 2**20:.0f} MB at most",
            flush=True,
        )


def watch(peaks: list[float], servers: set[int], is_over: threading.Event) -> None:
    """The memory of this process and of all that it started, but for the servers, at most."""
    while not is_over.wait(0.5):
        peaks[0] = max(peaks[0], sum(resident(pid) for pid in processes_of(os.getpid()) - servers))


def processes_of(root: int) -> set[int]:
    """A process and all below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    processes, before = {root}, 0
    while len(processes) > before:
        before = len(processes)
        processes |= {pid for pid, parent in parents.items() if parent in processes}
    return processes


def spent(servers: set[int]) -> float:
    """CPU seconds of this process and of those that it started, but for the servers."""
    total = 0
    for pid in processes_of(os.getpid()) - servers:
        with suppress(OSError):
            total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of a process that are its own: what is shared with its parent counts once."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def fill(cassandra: Any, worker: WorkerSettings, settings: Any, name: str, count: int) -> None:
    """Write the rows to the table, and their records to the topic."""
    statement = "INSERT INTO bench.{} (k, c, t, u, n, d, b, s, i, m) VALUES (?, ?, ?, ?, ?, ?, ?, ?, '10.0.0.1', ?);"
    batch = cassandra.prepare(f"BEGIN UNLOGGED BATCH {statement.format(name) * IN_PARTITION} APPLY BATCH")
    values = [
        [
            value
            for c in range(IN_PARTITION)
            for value in (k, c, f"text {k}", f"more text {c}", k, k / 7, True, k, {"a": c})
        ]
        for k in range(count // IN_PARTITION)
    ]
    execute_concurrent_with_args(cassandra, batch, values, concurrency=64)
    table = next(t for t in read_tables(cassandra, "bench").values() if t.name == name)
    codec = KeyCodec(table)
    with tempfile.TemporaryDirectory() as memory, closing(KafkaLog(worker.producer_config)) as log:
        shape = RowShape(table, settings, Registry(settings, Path(memory) / "schemas"))
        log.create(settings.data, PARTITIONS, {"cleanup.policy": "compact"})
        for key, row in images(count):
            record = shape.row(codec.encode(key), row, 1)
            log.append(settings.data, partition(token_of(key[:1]), PARTITIONS), *record)
        log.flush(60)


def images(count: int) -> Iterator[tuple[tuple[bytes, bytes], Image]]:
    """The rows as they are read: columns in the order of their names."""
    int32, int64, double = (struct.Struct(code).pack for code in (">i", ">q", ">d"))
    for k in range(count // IN_PARTITION):
        for c in range(IN_PARTITION):
            entry = int32(1) + b"\0\0\0\1a" + b"\0\0\0\4" + int32(c)
            values = (
                *(b"\1", double(k / 7), bytes((10, 0, 0, 1)), entry, int64(k), int64(k)),
                *(f"text {k}".encode(), f"more text {c}".encode()),
            )
            yield (int32(k), int32(c)), Image(values, None)


if __name__ == "__main__":
    main()
