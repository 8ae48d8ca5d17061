"""What the copies of many agents' states cost a Cassandra.

    python -m bench agent_states [--agents 60] [--tables 100] [--seconds 20] [--interval-ms 5000]

So many agents, each with a row of its own, as threads of this process with a session each, on one node. First all take
their state over at once, as after a restart of all of them; then each writes its copy once in an interval, as agents
with events all the time do; then as fast as they can. Shown are writes per second, their latency, and what CPU the
node took, in all and for each write, beside what it takes without.
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
from pathlib import Path

from bench.backlog import cpu_of
from helenus_agent.config import AgentSettings
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
        tables = [StateTable(settings(status), uuid.uuid4()) for _ in range(options.agents)]
        try:
            pid = next(server.pid for server in status.servers if server.name.startswith("cassandra"))
            measure(pid or 0, tables, options.tables, options.seconds, options.interval_ms / 1000)
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
