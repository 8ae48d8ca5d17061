"""What a cluster of many nodes costs the connector, beside one of three, without servers: each figure with its ratio.

    python -m bench nodes [--changes 20000] [--rounds 3] [--only ring reports gate tables] [--large]

- ring: reading it, its memory, the replicas of a key, and what each table takes of it in each batch. The driver's own
  map of replicas, which it makes once for each keyspace in each process.
- reports: CPU of a table's stage for each event, with three reports of each change, which its reads prove; how many
  keys a statement has, and how many are sent to a node together.
- gate: the same with gate=local_quorum, where each report is of another batch: memory and CPU of the driver for each
  change that waits, and the bytes with which it is handed to each batch.
- tables: a thousand tables beside twenty: CPU of the planner for each batch, and of an agent for each commit.

With `--large` also clusters of 256 tokens a node, as before Cassandra 4.0.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import pickle
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import structlog

from bench.large_cluster import DIRECT, TOPIC, LargeCluster, Size, in_batches
from bench.table_costs import measure_tables
from helenus_connector.cassandra_rows._pipelined import PipelineAttempts
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate._ring import Ring
from helenus_connector.gate._ring_reader import RingReader
from helenus_connector.gate._topic_waits import WaitingLimits
from helenus_connector.gate.replicas import Replicas
from helenus_connector.gate.waiting import WaitingChanges
from helenus_connector.interfaces.event import Event
from helenus_connector.pipeline.stage import Stage
from helenus_connector.query.garbage import freeze
from helenus_connector.reread.resolver import RereadResolver
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event.wire import decode

SIZES = [Size(3, 16), Size(256, 16), Size(256, 16, 2)]
LARGE = [Size(256, 256), Size(256, 256, 2)]
PARTITIONER = "org.apache.cassandra.dht.Murmur3Partitioner"
BATCH, SMALL_BATCH = 5_000, 500  # changes
Figures = dict[str, float]
KINDS = "ring", "reports", "gate", "tables"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=KINDS, metavar="KIND")
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; best of {options.rounds}")
    sizes = [*SIZES, *(LARGE if options.large else [])]
    for kind, measure in (("ring", measure_ring), ("reports", measure_reports), ("gate", measure_gate)):
        if kind in options.only:
            compare(kind, {str(size): best(measure, size, options) for size in sizes})
    if "tables" in options.only:
        compare("tables", {f"{count} tables": measure_tables(count) for count in (20, 1_000)})


def best(measure: Callable[[LargeCluster, int], Figures], size: Size, options: argparse.Namespace) -> Figures:
    """The lowest of each figure of some rounds."""
    cluster = LargeCluster(size)
    rounds = [measure(cluster, options.changes) for _ in range(options.rounds)]
    return {name: min(figures[name] for figures in rounds) for name in rounds[0]}


def compare(kind: str, cases: dict[str, Figures]) -> None:
    """Print the figures of each case, with their ratios to the first one's."""
    first = next(iter(cases.values()))
    for case, figures in cases.items():
        print(f"{kind}, {case}:")
        for name, value in figures.items():
            ratio = f"   {value / first[name]:8.2f} ×" if first[name] else ""
            print(f"    {name:60} {value:12.3f}{ratio}", flush=True)


def cpu_us(function: Callable[[], object], times: int = 1) -> float:
    """CPU µs of one call."""
    start = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - start) / times * 1e6


def megabytes(make: Callable[[], object]) -> float:
    """MB that an object takes."""
    gc.collect()
    tracemalloc.start()
    made = make()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del made
    return size / 1e6


def measure_ring(cluster: LargeCluster, changes: int) -> Figures:
    tokens, strategy, numbers = cluster.tokens, cluster.strategy, random.Random(3)
    keys = [numbers.randbytes(8) for _ in range(changes)]
    ring = Ring(PARTITIONER, tokens)
    cold = cpu_us(lambda: [ring.replicas(strategy, key) for key in keys]) / changes
    warm = cpu_us(lambda: [ring.replicas(strategy, key) for key in keys]) / changes

    def remembered() -> Ring:
        made = Ring(PARTITIONER, tokens)
        for key in keys:
            made.replicas(strategy, key)
        return made

    session = cluster.session()
    settings = ConnectorSettings.from_properties(
        {"name": "n", "keyspace": "bench", "table": "single", "output.format": "json", "cassandra.local.dc": "dc0"},
        "bench",
    )
    replicas, owners = Replicas(session, settings), cluster.owners
    in_order = sorted(owners)

    def each_batch() -> None:
        """What a table asks in each batch."""
        replicas.check()
        replicas.factors(), replicas.by_dc(), replicas.is_partial(), replicas.are_all_read()

    return {
        "a reading, ms": cpu_us(RingReader(session).follow) / 1e3,
        "memory of the ring, MB": megabytes(lambda: Ring(PARTITIONER, tokens)),
        "the same with the replicas of the keys, MB": megabytes(remembered),
        "replicas of a key, the first time, µs": cold,
        "replicas of a key, then, µs": warm,
        "each table in each batch, µs": cpu_us(each_batch, 200),
        "the driver's map of a keyspace, ms": cpu_us(lambda: strategy.make_token_replica_map(owners, in_order)) / 1e3,
        "memory of the driver's map, MB": megabytes(lambda: strategy.make_token_replica_map(owners, in_order)),
    }


def measure_reports(cluster: LargeCluster, changes: int) -> Figures:
    """Of a stage that reads rows: all reports of a change are in one batch."""
    batches = list(in_batches(list(cluster.events(changes)), BATCH))
    with tempfile.TemporaryDirectory() as directory:
        stage, session = cluster.stage(Path(directory), {})
        stage.run([], (), True)
        freeze(("reports", cluster.size))
        statements = keys = events = unproven = 0
        start, answering = time.process_time(), session.spent
        for batch in batches:
            outcome = stage.run(batch, (), True)
            events, unproven = events + len(batch), unproven + len(outcome.waiting)
            statements, keys = statements + outcome.statements, keys + outcome.keys_read
            gc.collect()
        spent = time.process_time() - start - (session.spent - answering)
        assert keys == changes, keys
        small = cpu_us(lambda: stage.run(batches[0][:1], (), True), 50)
        together = _keys_sent_together(stage, batches[0])
        stage.close()
    return {
        "stage, µs for each event": spent / events * 1e6,
        "stage, µs for each change": spent / changes * 1e6,
        "keys of a statement": keys / statements,
        "keys that are sent to a node together": together,
        "of 1,000 changes so many wait for another read": unproven / changes * 1e3,
        "stage, µs for a batch of one event": small,
    }


def _keys_sent_together(stage: Stage, batch: list[Event]) -> float:
    """How many keys of a batch go to a node with one write to its socket: a session in memory has no sockets."""
    resolver = stage._resolver
    assert isinstance(resolver, RereadResolver)
    reader = resolver.reader
    reader._attempts, codec = PipelineAttempts(), KeyCodec(reader.table)
    keys = {codec.decode(event.key or b"") for event in batch}
    return len(keys) / sum(1 for _ in reader._grouped(keys, len(reader.table.primary_key)))


def measure_gate(cluster: LargeCluster, changes: int) -> Figures:
    """Of a gate above one: the second report of a change, which completes it, and the third, are in later batches."""
    first, second, third = _reports_in_turns(cluster, changes)
    with tempfile.TemporaryDirectory() as directory:
        stage, _ = cluster.stage(Path(directory), {**DIRECT, "gate": "local_quorum"})
        stage.run([], (), True)
        freeze(("gate", cluster.size))
        waiting = WaitingChanges(Path(directory) / "gate.waiting")
        waiting.use({TOPIC: WaitingLimits.from_settings(stage.settings)})
        start = time.process_time()
        outcomes = [stage.run(batch, (), True) for batch in first]
        stage_s = time.process_time() - start
        states = [pickle.dumps(outcome.at_gate) for outcome in outcomes]
        assert sum(len(outcome.at_gate.waits) for outcome in outcomes) == changes
        del outcomes

        def take_over() -> None:
            for state in states:
                waiting.apply(TOPIC, pickle.loads(state), None, time.time())

        memory = megabytes(take_over) * 1e6 / changes
        driver_s = cpu_us(take_over) / 1e6  # the second time; it takes as long
        counted = waiting.counts(TOPIC)[2] / changes
        handed = pickle.dumps(waiting.hand_out(changes)[TOPIC])
        waits = pickle.loads(handed)
        start, records = time.process_time(), 0
        for batch in second:
            records += stage.run(batch, (), True, gate_waits=waits).records
        assert records == changes, records
        for batch in third:
            stage.run(batch, (), True)
        stage_s += time.process_time() - start
        stage.close()
    events = sum(map(len, [*first, *second, *third]))
    return {
        "stage, µs for each event": stage_s / events * 1e6,
        "driver, µs for each waiting change": driver_s / changes * 1e6,
        "driver, bytes of memory for each waiting change": memory,
        "which count as, bytes": counted,
        "bytes handed to a batch for each waiting change": len(handed) / changes,
    }


def _reports_in_turns(cluster: LargeCluster, changes: int) -> list[list[list[Event]]]:
    """The first, second and third reports of the local data centre, each in batches; others with the first."""
    turns: list[list[Event]] = [[], [], []]
    local = {str(host.host_id) for host in cluster.hosts if host.datacenter == "dc0"}
    for reports in cluster.events(changes):
        is_local = [decode(event.value or b"").node in local for event in reports]
        for number, event in enumerate(event for event, here in zip(reports, is_local, strict=True) if here):
            turns[number].append(event)
        turns[0] += [event for event, here in zip(reports, is_local, strict=True) if not here]
    return [list(in_batches([[event] for event in events], SMALL_BATCH)) for events in turns]


if __name__ == "__main__":
    main()
