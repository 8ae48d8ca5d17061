"""Helenus beside another connector: the same commit-log segments, on one machine, in turns.

    python -m bench compare debezium [--rows 100000] [--rounds 3] [--forms debezium-cassandra-json debezium-avro]

Debezium's connector for Cassandra, from Maven, with larger queues and batches than it comes with, which makes it
faster (`TUNED`), beside an agent and a worker for each form of `bench.written` (`resolver=none`). All run from the
start, each with a `cdc_raw` of its own. In each round each gets the next segments, which it has not seen, and the
others wait; each second round in the other order. The first segments only warm them up.

CPU seconds are those of the connector's processes (agent and worker of ours), and of Kafka meanwhile; the rate is from
the moment at which the segments are there to the last record. The result is also a line of JSON in `--history`
(`python -m bench history`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench import history
from bench.agent import create, decode_all, load, pieces
from bench.backlog import cpu_of
from bench.debezium_peer import LOCK, debezium, file_of
from bench.path import add, is_ready, own_port, port_of, read_metrics, running, topics_exist, wait
from bench.tables import memory_of
from bench.written import FORMS
from helenus_agent.commitlog import decoder
from helenus_schemas.cql.table import read_tables
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack import programs
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

PEER = "peer"
TUNED = {
    "max_queue_size": 100_000,
    "max_batch_size": 20_000,
    "poll_interval_ms": 10,
    "offset_flush_interval_ms": 1_000,
    "max_offset_flush_size": 100_000,
    "kafka_producer_linger_ms": 20,
    "kafka_producer_batch_size": 262_144,
}
_POLL_S, _LONGEST_S = 0.05, 240.0


@dataclass
class Candidate:
    """What is compared: where it takes segments from, its processes, and how many records it has published."""

    name: str
    raw: Path
    pids: list[int]
    count_offsets: Callable[[], int]
    """Ends of its data topic: asked of the broker, it costs the candidate nothing. Ends of transactions count too."""
    count_records: Callable[[], int] | None = None
    """The records alone, where the ends are more: as its metrics have them, which cost it some ms each time."""
    cpu: list[float] = field(default_factory=list)
    """CPU s per million records, of each round."""
    rates: list[float] = field(default_factory=list)
    """Records a second."""
    broker_cpu: list[float] = field(default_factory=list)

    def publish(self, lot: Sequence[Path], count: int, broker: int) -> tuple[float, float, float]:
        """Give it segments, and wait for so many records. Returns CPU s of it and of the broker, and s until the
        last record.
        """
        counts = [count for count in (self.count_offsets, self.count_records) if count is not None]
        formerly = [count() for count in counts]
        before, of_broker = sum(map(cpu_of, self.pids)), cpu_of(broker)
        for segment in lot:
            shutil.copy(segment, self.raw / segment.name)
        for segment in lot:  # the index last: it says that the segment is there
            index = self.raw / f"{segment.stem}_cdc.idx"
            partial = index.with_suffix(".part")
            partial.write_text(f"{segment.stat().st_size}\nCOMPLETED\n")
            partial.rename(index)
        begun = time.monotonic()
        for count_published, former in zip(counts, formerly, strict=True):
            while (published := count_published() - former) < count:
                if time.monotonic() > begun + _LONGEST_S:
                    raise TimeoutError(f"{self.name}: {published} of {count} records")
                time.sleep(_POLL_S)
        return sum(map(cpu_of, self.pids)) - before, cpu_of(broker) - of_broker, time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["debezium"])
    parser.add_argument("--rows", type=int, default=100_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", nargs="*", default=["debezium-cassandra-json", "debezium-avro"], choices=list(FORMS))
    parser.add_argument("--history", type=Path, default=history.FILE, help="file that gets a line of JSON")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
        ExitStack() as exits,
    ):
        status = stack.status()
        create(cassandra)
        lots = write_lots(status, cassandra, Path(folder) / "segments", options.rows, options.rounds + 1)
        candidates = [start_peer(exits, status, Path(folder))]
        candidates += [start_ours(exits, status, Path(folder), form) for form in options.forms]
        broker = next(server.pid for server in status.servers if server.name == "kafka") or 0
        for turn, (lot, count) in enumerate(lots):
            for candidate in candidates if turn % 2 else reversed(candidates):
                cpu, of_broker, seconds = candidate.publish(lot, count, broker)
                show_round(candidate, turn, count, cpu, of_broker, seconds)
        figures = summary(candidates)
    kind = {"rows": options.rows, "rounds": options.rounds, "forms": options.forms}
    version = next(line for line in LOCK.read_text().splitlines() if line.startswith("# root ")).rpartition(":")[2]
    result = history.make_result(f"compare {options.peer}", kind, figures, load_before, debezium=version)
    history.append(options.history, result)
    print(json.dumps(result, indent=1))


def write_lots(status: Status, cassandra: Any, folder: Path, rows: int, lots: int) -> list[tuple[list[Path], int]]:
    """Have Cassandra write segments; returns some for each round, and the number of changes in them."""
    load(cassandra, rows * lots)
    time.sleep(1)  # the last sync marker comes each 100 ms
    shutil.copytree(status.nodes[0].cdc_raw, folder)
    tables = read_tables(cassandra)
    ordered = sorted(folder.glob("*.log"), key=lambda path: int(path.stem.rpartition("-")[2]))
    counts = {path: count_changes(path, tables, folder.parent / path.stem) for path in ordered}
    segments = [path for path in ordered if counts[path]][:-1]  # the last one is not full: a round of little
    if len(segments) < lots:
        raise SystemExit(f"{len(segments)} segments for {lots} rounds: give more --rows")
    ends = [round(len(segments) * n / lots) for n in range(lots + 1)]
    return [(lot, sum(counts[path] for path in lot)) for lot in (segments[a:b] for a, b in pairwise(ends))]


def count_changes(segment: Path, tables: Any, folder: Path) -> int:
    """Return how many changes of the table are in a segment, which is linked into a folder of its own."""
    folder.mkdir()
    (folder / segment.name).symlink_to(segment)
    plans = {
        table.id.bytes: decoder.plan_table(table, 0 if (table.keyspace, table.name) == ("bench", "t") else -1)
        for table in tables.values()
    }
    return decode_all(decoder, list(pieces(folder)), plans)[1]


def own_yaml(status: Status, folder: Path) -> tuple[Path, Path]:
    """Return a copy of the node's configuration in which `cdc_raw` is in this folder, and that."""
    raw, node = folder / "cdc_raw", status.nodes[0]
    raw.mkdir(parents=True)
    settings = json.loads(Path(node.cassandra_yaml).read_text())  # the stack writes YAML as JSON
    settings["cdc_raw_directory"] = str(raw)
    copy = folder / "cassandra.yaml"
    copy.write_text(json.dumps(settings))
    return copy, raw


def start_peer(exits: ExitStack, status: Status, folder: Path) -> Candidate:
    """Debezium's connector, from segments that are complete."""
    directory = folder / PEER
    yaml, raw = own_yaml(status, directory)
    KafkaLog({"bootstrap.servers": status.bootstrap_servers}).create(f"{PEER}.bench.t", 4, {})
    more = {**TUNED, "commit_log_real_time_processing_enabled": "false", "cassandra_config": yaml}
    theirs = exits.enter_context(debezium(file_of(status, directory, PEER, **more)))
    wait(theirs.started, "Debezium's connector is started")
    return Candidate("debezium, tuned", raw, [theirs.process.pid], ends_of(exits, status, f"{PEER}.bench.t"))


def ends_of(exits: ExitStack, status: Status, topic: str) -> Callable[[], int]:
    """Return what counts the offsets of a topic of four partitions."""
    consumer = Consumer({"bootstrap.servers": status.bootstrap_servers, "group.id": "bench-compare"})
    exits.callback(consumer.close)
    partitions = [TopicPartition(topic, n) for n in range(4)]
    return lambda: sum(consumer.get_watermark_offsets(each, 30)[1] for each in partitions)


def start_ours(exits: ExitStack, status: Status, folder: Path, form: str) -> Candidate:
    """An agent and a worker, of one form."""
    directory = folder / form
    yaml, raw = own_yaml(status, directory)
    agent = programs.Program("agent", directory, programs.agent(status, directory).files)
    changed = [f"cassandra.config={yaml}", f"topic.prefix=events-{form}-", "cells.include.list=bench\\\\.t"]
    add(agent.files[0], changed)
    made = programs.connector(status, directory, "bench", "t")
    worker = programs.Program("connector", directory, made.files)
    own_port(worker.files[0])
    own_port(agent.files[0])
    events, data = f"events-{form}-bench.t", f"data-{form}-bench.t"
    form_settings = dict(FORMS[form])
    if "value.converter.schema.registry.url" in form_settings:
        form_settings["value.converter.schema.registry.url"] = status.registry_url
    properties = {
        "resolver": "none",
        "tasks.max": 2,
        "snapshot.mode": "never",
        "events.topic": events,
        "data.topic": data,
        **form_settings,
    }
    add(worker.files[1], [f"{key}={value}" for key, value in properties.items()])
    if "value.converter" in form_settings:  # JSON: the file of the stack names a registry for Avro
        lines = worker.files[1].read_text().splitlines()
        worker.files[1].write_text("\n".join(line for line in lines if "schema.registry.url" not in line) + "\n")
    for name in ("run", "logs"):
        (directory / name).mkdir(exist_ok=True)
    exits.enter_context(running(agent, {}))
    topics_exist(status, events)
    exits.enter_context(running(worker, {"JAVA_HOME": str(spark_java_home(Terminal()))}))
    wait(lambda: is_ready(worker), f"{form} is ready", 300)
    port, series = port_of(worker), 'helenus_connector_records_total{connector="bench-t",keyspace="bench",table="t"}'
    pids = [pid for program in (agent, worker) if (pid := program.process.pid) is not None]
    count_records = partial(published_records, port, series)
    return Candidate(form, raw, pids, ends_of(exits, status, data), count_records)


def published_records(port: str, series: str) -> int:
    """Return how many records a worker has published, as its metrics say."""
    return int(read_metrics(port).get(series, 0))


def show_round(candidate: Candidate, turn: int, count: int, cpu: float, of_broker: float, seconds: float) -> None:
    if turn:  # the first warms up
        candidate.cpu.append(cpu / count * 1e6)
        candidate.rates.append(count / seconds)
        candidate.broker_cpu.append(of_broker / count * 1e6)
    print(
        f"{candidate.name:26} round {turn}: {count} records, {count / seconds:.0f} records/s, CPU s per million "
        f"{cpu / count * 1e6:.1f}, Kafka's {of_broker / count * 1e6:.1f}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def summary(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Print medians, and ratios to the peer's; returns them by name."""
    peer, figures = candidates[0], dict[str, float]()
    for each in candidates:
        cpu, rate = statistics.median(each.cpu), statistics.median(each.rates)
        figures[f"{each.name}, CPU s per million"] = cpu
        figures[f"{each.name}, Kafka's CPU s per million"] = statistics.median(each.broker_cpu)
        figures[f"{each.name}, records/s"] = rate
        figures[f"{each.name}, MB"] = sum(map(memory_of, each.pids))
        line = f"{each.name:26} {cpu:6.1f} CPU s per million, {rate:8.0f} records/s"
        if each is not peer:
            cpu_ratio = statistics.median(a / b for a, b in zip(each.cpu, peer.cpu, strict=True))
            rate_ratio = statistics.median(a / b for a, b in zip(each.rates, peer.rates, strict=True))
            figures[f"{each.name}, ratio of CPU"] = cpu_ratio
            figures[f"{each.name}, ratio of records/s"] = rate_ratio
            line += f": {cpu_ratio:.2f} of the peer's CPU, {rate_ratio:.2f} of its rate"
        print(line, flush=True)
    return figures


if __name__ == "__main__":
    main()
