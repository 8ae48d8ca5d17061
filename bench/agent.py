"""What the agent costs: decoding alone, draining a backlog to a real Kafka, and the delay of a single write.

    python -m bench agent [--rows 1000000] [--dir DIRECTORY] [--cells]

With `--cells` the table has three more columns, and the agents run twice: without cells in their events, and with them.

Starts its own Cassandra and Kafka. CPU seconds are those of the agent's process (all its threads), without its start.
While it drains, the agent has one core for itself and the servers have the others.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cassandra.cluster import Cluster
from cassandra.query import BatchStatement, BatchType
from confluent_kafka import Consumer, TopicPartition

from helenus_agent.commitlog import decoder as installed
from helenus_agent.commitlog.segment import Segment
from helenus_schemas.cql.table import read_tables
from helenus_stack.stack import Stack

NODE = "ad310466-96a7-4cb2-acf4-59535a960812"
PORT = 19404
PIECE = 1 << 20


def create(session: Any, more: str = "") -> None:
    """Make the table, with `more` columns."""
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(
        "CREATE TABLE IF NOT EXISTS bench.t "
        f"(id bigint, ck text, v int, w text, {more}m map<text, int>, PRIMARY KEY (id, ck)) WITH cdc = true"
    )


def load(session: Any, rows: int, more: bool = False) -> None:
    """Write rows of a partition each: every one is a mutation of its own. `more`: of five columns and the map."""
    names, marks = (", x, y, z", ", 1.5, 12345, '2026-01-01'") if more else ("", "")
    insert = session.prepare(f"INSERT INTO bench.t (id, ck, v, w, m{names}) VALUES (?, ?, ?, ?, ?{marks})")
    update = session.prepare("UPDATE bench.t SET v = ? WHERE id = ? AND ck = ?")
    chance = random.Random(1)
    futures = []
    for first in range(0, rows, 50):
        batch = BatchStatement(BatchType.UNLOGGED)
        for n in range(first, min(first + 50, rows)):
            if n % 3:
                batch.add(insert, (n, f"k{n % 100}", n, "hello world", {"a": 1} if n % 2 else None))
            else:
                batch.add(update, (n, chance.randrange(10**9), f"k{n % 100}"))
        futures.append(session.execute_async(batch, timeout=60))
        if len(futures) == 40:
            for future in futures:
                future.result()
            futures.clear()
    for future in futures:
        future.result()


def pieces(raw: Path) -> Iterator[tuple[bytes, int, Segment]]:
    """The sections of all segments: content, offset, segment."""
    for path in sorted(raw.glob("*.log")):
        segment = Segment(path)
        while segment.look():
            data, base, final = segment.read(1 << 30)
            assert final
            yield data, base, segment
            segment.skip()
        segment.close()


def decode_all(
    decoder: ModuleType, sections: list[tuple[bytes, int, Segment]], plans: dict[bytes, Any]
) -> tuple[int, int]:
    """Mutations and events in the sections, taken in pieces as the agent does."""
    mutations = events = 0
    for data, base, segment in sections:
        offset = 0
        while offset < len(data):
            piece = data[offset : offset + PIECE]
            final = offset + len(piece) == len(data)
            batch = decoder.decode(piece, base + offset, final, plans, NODE, segment.id, segment.version, 4096)
            assert not batch.problems
            if batch.unknown:
                plans[batch.unknown.table] = decoder.TablePlan(is_known=False)
            offset += batch.next
            mutations += batch.mutations
            events += len(batch.changes)
    return mutations, events


def plain_decoder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain.decoder", Path(installed.__file__).parent / "decoder.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure_decoder(decoder: ModuleType, raw: Path, tables: Any, cells: bool = False) -> tuple[int, int, float]:
    """Mutations, events, and the best CPU time of some passes."""
    sections = list(pieces(raw))
    followed = [t for t in tables.values() if t.cdc]
    plans = {
        t.id.bytes: decoder.plan_table(t, followed.index(t) if t.cdc else -1, cells=cells and t.cdc)
        for t in tables.values()
    }
    best = 1e9
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    for _ in range(3 if decoder.COMPILED else 2):
        started = time.process_time()
        mutations, events = decode_all(decoder, sections, plans)
        best = min(best, time.process_time() - started)
    return mutations, events, best


class Running:
    """An agent process for the stack's first node."""

    def __init__(
        self, status: Any, directory: Path, cores: Sequence[int] = (), cells: bool = False, **environment: str
    ) -> None:
        directory.mkdir(exist_ok=True)
        properties = directory / "agent.properties"
        properties.write_text(
            f"cassandra.contact.points={status.contact_points[0]}\ncassandra.port={status.cql_port}\n"
            f"cassandra.config={status.nodes[0].cassandra_yaml}\nstate.dir={directory}/state\n"
            f"bootstrap.servers={status.bootstrap_servers}\nlisteners=http://127.0.0.1:{PORT}\n"
            + ("cells.include.list=bench.t\n" if cells else "")
        )
        command = [sys.executable, "-c", "from helenus_agent.cli import main; main()", str(properties)]
        self.log = (directory / "agent.log").open("ab")
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=self.log,
            stderr=self.log,
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        )

    def ready(self) -> float:
        """Wait until it is ready; seconds since its start."""
        while True:
            assert self.process.poll() is None, f"the agent ended, see {self.log.name}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health/ready", timeout=5):
                    return time.monotonic() - self.begun
            except OSError:  # not listening yet, or 503
                time.sleep(0.02)

    def metric(self, name: str) -> float:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return 0.0
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) / 1024

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


def confine(process: int, cores: Sequence[int]) -> None:
    """Have all threads of a process run on these cores alone, if there are any."""
    for thread in Path(f"/proc/{process}/task").iterdir() if cores else ():
        os.sched_setaffinity(int(thread.name), cores)


def start_cost(status: Any, directory: Path, **environment: str) -> float:
    """CPU seconds until an agent with nothing to read is there."""
    agent = Running(status, directory, **environment)
    seconds = agent.ready()
    cost = agent.cpu()
    agent.stop()
    print(f"ready {seconds:.2f} s after its start, for {cost:.2f} CPU s")
    return cost


def drain(
    status: Any, directory: Path, events: int, core: int, cells: bool, **environment: str
) -> tuple[float, float, float, float]:
    """CPU seconds and seconds to drain a backlog on one core, the peak of memory in MB, and how many seconds after the
    start of the process the first event came.
    """
    consumer = at_ends(status)
    agent = Running(status, directory, [core], cells, **environment)
    while (message := consumer.poll(60)) is not None and message.error():
        pass
    first = time.monotonic() - agent.begun
    consumer.close()
    agent.ready()
    started = time.monotonic()
    before = agent.metric("helenus_agent_events_total")
    # To ask costs the agent a millisecond or two.
    while agent.metric("helenus_agent_events_total") < events:
        assert agent.process.poll() is None
        time.sleep(0.1)
    seconds = (time.monotonic() - started) / (1 - before / events)
    result = agent.cpu(), seconds, agent.peak(), first
    agent.stop()
    return result


def at_ends(status: Any) -> Consumer:
    """A consumer of the events that come from now on."""
    consumer = Consumer({"bootstrap.servers": status.bootstrap_servers, "group.id": "bench", "fetch.wait.max.ms": 5})
    partitions = consumer.list_topics("events-bench.t", timeout=10).topics["events-bench.t"].partitions
    ends = [TopicPartition("events-bench.t", n) for n in partitions]
    for end in ends:
        _, end.offset = consumer.get_watermark_offsets(end, timeout=10)
    consumer.assign(ends)
    return consumer


def delays(status: Any, session: Any, directory: Path, writes: int) -> list[float]:
    """Milliseconds from a write's acknowledgement to its event at a consumer, sorted."""
    agent = Running(status, directory)
    agent.ready()
    insert = session.prepare("INSERT INTO bench.t (id, ck, v) VALUES (?, 'late', 1)")
    session.execute(insert, (0,))  # the first makes the producer
    time.sleep(3)
    consumer = at_ends(status)
    arrived: list[float] = []
    written: list[float] = []

    def consume() -> None:
        while len(arrived) < writes:
            message = consumer.poll(5)
            if message is None:
                return
            if not message.error():
                arrived.append(time.monotonic())

    thread = threading.Thread(target=consume)
    thread.start()
    for n in range(writes):
        session.execute(insert, (-n - 1,))
        written.append(time.monotonic())
        time.sleep(0.05 * random.random() * 2)
    thread.join()
    time.sleep(6)  # the agent looks less often after 5 s
    idle = agent.cpu()
    time.sleep(20)
    print(f"idle: {(agent.cpu() - idle) / 20 * 100:.2f} % of a core")
    agent.stop()
    consumer.close()
    return sorted((b - a) * 1000 for a, b in zip(written, sorted(arrived), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--cells", action="store_true")
    options = parser.parse_args()
    directory = options.dir or Path(tempfile.mkdtemp())
    with Stack(directory / "stack", only=["cassandra", "kafka"], brief=False) as stack:
        status = stack.status()
        cluster = Cluster(status.contact_points, port=status.cql_port)
        session = cluster.connect()
        create(session, "x double, y bigint, z timestamp, " if options.cells else "")
        latencies = delays(status, session, directory / "delay", 400)
        print(
            f"write to event, ms: median {latencies[200]:.0f}, p90 {latencies[360]:.0f}, p99 {latencies[396]:.0f}, "
            f"most {latencies[-1]:.0f}"
        )
        base = start_cost(status, directory / "empty")
        load(session, options.rows, options.cells)
        time.sleep(1)
        tables = read_tables(session)
        mine, *others = sorted(os.sched_getaffinity(0))
        for server in status.servers:
            if server.pid:
                confine(server.pid, others)
        raw, copy = Path(status.nodes[0].cdc_raw), directory / "copy"
        shutil.copytree(raw, copy)

        kinds = (False, True) if options.cells else (False,)
        print(f"{'decoder':<16} {'mutations':>10} {'events':>10} {'us/event':>9}")
        for decoder in [plain_decoder()] + ([installed] if installed.COMPILED else []):
            for cells in kinds:
                mutations, events, best = measure_decoder(decoder, copy, tables, cells)
                name = ("compiled" if decoder.COMPILED else "plain") + (", cells" if cells else "")
                print(f"{name:<16} {mutations:>10} {events:>10} {best / events * 1e6:>9.2f}")

        print(f"{'agent':<16} {'events/s':>10} {'CPU s/M':>10} {'peak MB':>9} {'first event, s':>15}")
        for form, environment in (("compiled", {}), ("plain", {"HELENUS_PURE": "1"})):
            if form == "compiled" and not installed.COMPILED:
                continue
            for cells in kinds:
                name = form + (", cells" if cells else "")
                for path in raw.iterdir():
                    path.unlink()
                for path in copy.iterdir():
                    shutil.copy(path, raw / path.name)
                cpu, seconds, peak, first = drain(
                    status, directory / name.replace(", ", "-"), events, mine, cells, **environment
                )
                cost = (cpu - base) / events * 1e6
                print(f"{name:<16} {events / seconds:>10.0f} {cost:>10.2f} {peak:>9.0f} {first:>15.2f}")
        cluster.shutdown()


if __name__ == "__main__":
    main()
