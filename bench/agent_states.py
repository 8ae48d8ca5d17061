"""What the tables of the control plane cost a Cassandra: many agents' `configs`, `agents` and `agent_states`.

    python -m bench agent_states [--agents 60] [--tables 100] [--seconds 20] [--interval-ms 5000]

So many agents, each with a row of its own, as threads of this process with a session for each, on one node. First each
reads `configs` every five seconds, and reports to `agents` every ten, as agents do by default. Then all take their
state over at once, as after a restart of all of them; then each writes its copy once in an interval, as agents with
events all the time do; then as fast as they can. Shown are requests per second, their latency, and what CPU the node
took, in all and for each, beside what it takes without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.backlog import cpu_of
from helenus_agent.config import AgentSettings
from helenus_agent.control._config_store import AgentReport, ConfigStore
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.state_store._snapshot import Disk, StateSnapshot, deflate
from helenus_agent.state_store._state_table import StateTable
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=60)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--interval-ms", type=float, default=5000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", only=["cassandra"], brief=False, progress=Terminal()) as stack,
    ):
        status = stack.status()
        pid = next(server.pid for server in status.servers if server.name.startswith("cassandra")) or 0
        measure_configs(pid, status, options.agents, options.tables, options.seconds)
        tables = [StateTable(settings(status), uuid.uuid4()) for _ in range(options.agents)]
        try:
            measure(pid, tables, options.tables, options.seconds, options.interval_ms / 1000)
        finally:
            for table in tables:
                table.close()


def settings(status: Status) -> AgentSettings:
    properties = {
        "state.dir": "/unused",
        "cdc.raw.dir": "/unused",
        "bootstrap.servers": "unused:1",
        "cassandra.contact.points": status.contact_points[0],
        "cassandra.port": str(status.cql_port),
        "config.store.replication": "{'class': 'SimpleStrategy', 'replication_factor': 1}",
    }
    return AgentSettings.from_properties(properties, "bench")


def state_of(version: int, tables: str) -> StateSnapshot:
    """Return the state of an agent that has read its last 512 segments, and is in two."""
    first = 1_795_264_176_000 + version
    positions = Positions(
        str(uuid.uuid4()), {first + 512: SegmentMark(version, True), first + 513: SegmentMark(9, True)}, version=version
    )
    positions.done = list(range(first, first + 512))
    return StateSnapshot.of_positions(positions, Disk(1, 2), tables)


def definitions(count: int) -> str:
    """Return a tables.json of tables with ten columns."""
    columns = tuple(Column(f"column_{n}", CqlType("text"), "regular", n, False) for n in range(10))
    tables = [Table("shop", f"table_{n}", uuid.uuid4(), columns, True, {}) for n in range(count)]
    content = {"format": 1, "others": [], "tables": [asdict(table) for table in tables], "stamps": {}}
    return json.dumps(content, default=str)


def measure_configs(pid: int, status: Status, agents: int, count: int, seconds: float) -> None:
    """Have agents with so many tables poll `configs` and report to `agents`, for a time."""
    stores = [
        ConfigStore(
            settings(status),
        )
        for _ in range(agents)
    ]
    names = tuple(f"shop.table_{n}" for n in range(count))
    try:
        for store in stores:
            store.read()
        stores[0].write("kafka", {"bootstrap.servers": "kafka1:9092,kafka2:9092", "topic.partitions": "12"})
        stores[0].write("cdc", {"table.include.list": r"shop\..*"})
        poll_s = settings(status).config_store_poll_interval_ms / 1000
        report_s = settings(status).config_store_report_interval_ms / 1000
        reads, reports, stop = list[float](), list[float](), threading.Event()

        def repeat(request: Callable[[], object], pause_s: float, latencies: list[float], number: int) -> None:
            stop.wait(pause_s * number / agents)
            while not stop.is_set():
                started = time.monotonic()
                request()
                latencies.append(time.monotonic() - started)
                stop.wait(pause_s - latencies[-1])

        def report(store: ConfigStore, host_id: uuid.UUID) -> None:
            sizes = (0, 2, 64_000_000, 4_000_000_000)
            store.report(
                AgentReport(host_id, "10.0.0.1", "dc1", "1", "5.0", "publishing", "", names, *sizes, "", 10_000)
            )

        threads = []
        for number, store in enumerate(stores):
            threads += [
                threading.Thread(target=repeat, args=(store.read, poll_s, reads, number)),
                threading.Thread(target=repeat, args=(partial(report, store, uuid.uuid4()), report_s, reports, number)),
            ]
        time.sleep(seconds)  # what statements that are new cost is over
        before = cpu_of(pid)
        time.sleep(seconds)
        idle_share = (cpu_of(pid) - before) / seconds
        for thread in threads:
            thread.start()
        time.sleep(report_s)
        reads.clear()
        reports.clear()
        before = cpu_of(pid)
        time.sleep(seconds)
        cpu = cpu_of(pid) - before - idle_share * seconds
        finished = list(reads), list(reports)
        stop.set()
        for thread in threads:
            thread.join()
        print(f"idle, with {agents} sessions: {idle_share:.1%} of a core")
        show("configs read", finished[0], seconds)
        show("agents written", finished[1], seconds)
        print(f"both: {cpu / seconds:.1%} of a core, {cpu / len(finished[0] + finished[1]) * 1000:.2f} ms of CPU each")
    finally:
        for store in stores:
            store.close()


def measure(pid: int, tables: list[StateTable], count: int, seconds: float, interval_s: float) -> None:
    definition, owners = definitions(count), {table.host_id: uuid.uuid4() for table in tables}
    first = state_of(1, definition)
    print(f"a row: {len(deflate(first.positions)):,} B of positions, {len(deflate(definition)):,} B of {count} tables")
    for table in tables:
        table.ring()
    idle = cpu_of(pid)
    time.sleep(seconds)
    idle_share = (cpu_of(pid) - idle) / seconds
    print(f"idle: {idle_share:.1%} of a core")

    def claim(table: StateTable) -> float:
        started = time.monotonic()
        table.read()
        assert table.insert(owners[table.host_id], 1, first, frozenset(map(str, range(16))))
        return time.monotonic() - started

    with ThreadPoolExecutor(len(tables)) as pool:
        show("all take over at once", list(pool.map(claim, tables)), seconds=0)

    def write_for(pause_s: Callable[[float], float]) -> None:
        stop, latencies, lock = threading.Event(), list[float](), threading.Lock()

        def write(table: StateTable, number: int) -> None:
            stop.wait(pause_s(0) * number / len(tables))
            version = 1
            while not stop.is_set():
                version += 1
                state, started = state_of(version, definition), time.monotonic()
                assert table.save(owners[table.host_id], state, False)
                latency_s = time.monotonic() - started
                with lock:
                    latencies.append(latency_s)
                stop.wait(pause_s(latency_s))

        threads = [threading.Thread(target=write, args=(table, n)) for n, table in enumerate(tables)]
        for thread in threads:
            thread.start()
        time.sleep(interval_s)
        with lock:
            latencies.clear()
        before = cpu_of(pid)
        time.sleep(seconds)
        cpu, finished = cpu_of(pid) - before - idle_share * seconds, list(latencies)
        stop.set()
        for thread in threads:
            thread.join()
        title = "each interval" if pause_s(0) else "as fast as they can"
        show(title, finished, seconds, cpu)

    write_for(lambda latency_s: max(0.0, interval_s - latency_s))
    write_for(lambda _: 0.0)


def show(title: str, latencies: list[float], seconds: float, cpu: float | None = None) -> None:
    ordered = sorted(latencies)
    text = f"{title}: {len(ordered)}, median {statistics.median(ordered) * 1000:.1f} ms"
    text += f", p99 {ordered[int(len(ordered) * 0.99)] * 1000:.1f} ms"
    if seconds:
        text += f", {len(ordered) / seconds:.1f}/s"
    if cpu is not None:
        text += f", {cpu / seconds:.1%} of a core, {cpu / len(ordered) * 1000:.2f} ms of CPU each"
    print(text, flush=True)
