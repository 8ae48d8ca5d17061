"""What state costs, beside the same connector without it, and what it keeps.

    python -m bench state [--events 100000] [--rounds 2] [--states none keys rows] [--copies 1] [--rest]
        [--set KEY=VALUE]
    python -m bench state --known 10000000 [--states rows]

- backlog: records per second, and CPU seconds per million, for each `state`. Counted until the worker is idle
  again: a connector with state goes on after its records are written.
- copies: with `--copies 3` each change is reported by three nodes, and the events of all are counted, too.
- kept: bytes of the checkpoint's state for each key, and MB of memory of each kind of process, which is not to grow
  with the keys: `--events 1000000 --rounds 1`. With `--rest` again after two dozen batches of one change, and after
  Spark has twice saved the state and removed what it needs no more: three minutes more.
- restart: seconds until a worker that is started again is ready, and until its state has done a batch.
- expiry, of `keys`: rows expire in the same second, and how fast their null records come.
- known, instead of all these: so many keys are on the data topic before `state=keys` is turned on, half of them with an
  expiry of tomorrow; or, with `--states rows`, the events of so many rows wait when `state=rows` begins. How fast they
  are learned, MB of each kind of process at each tenth of them, and the seconds of a restart.

Starts its own Cassandra, Kafka and registry. No agent runs: events are made as the agent makes them. For latencies:
`python -m bench path --set state=keys`.
"""

from __future__ import annotations

import argparse
import os
import struct
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from cassandra.metadata import Murmur3Token

from bench.backlog import PARTS, Backlog
from bench.connector import create
from bench.path import wait
from helenus_connector.config.files import load
from helenus_connector.interfaces.image import Image
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.event.placement import partition
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.cql import session
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack
from helenus_stack.status import Status

MOST_EXPIRING = 100_000
BATCHES = 12  # more than Spark keeps, and than it logs before it saves the state itself
MAINTENANCE_S = 70  # s; Spark saves and removes every 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="rows, and changes of each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--copies", type=int, default=1, help="by how many nodes a change is reported")
    parser.add_argument("--rest", action="store_true", help="show what is kept when only small batches come, too")
    parser.add_argument("--states", nargs="*", default=["none", "keys", "rows"])
    parser.add_argument("--known", type=int, default=0, help="keys, or rows, when the state begins")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the connectors")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
    ):
        create(cassandra, 10)
        if options.known:
            kind = "rows" if options.states == ["rows"] else "keys"
            fill_known(stack.status(), cassandra, Path(folder), options.known, kind)
            return
        for state in options.states:
            # Rows are known before their changes come: otherwise each is read.
            mode = "initial" if state == "rows" else "never"
            more = [f"snapshot.mode={mode}", f"state={state}", f"query.group=of_{state}", *options.set]
            bench = Backlog(stack.status(), cassandra, Path(folder) / state, f"of_{state}", more)
            _as_by_default(bench)
            bench.fill(options.events)
            with bench:
                if state == "rows":
                    wait(lambda bench=bench: count(bench, "rows") >= options.events, "the snapshot", 900)
                bench.warm_up()
                print(f"state={state}: MB at first: {bench.memory()}", flush=True)
                for turn in range(options.rounds):
                    measurement = bench.round(options.events, options.copies, until_idle=True)
                    print(f"state={state}, round {turn + 1}: {measurement}", flush=True)
                if state != "none":
                    print(f"state={state}: {describe_size(bench, state)}", flush=True)
                if state != "none" and options.rest:
                    settle(bench)
                    print(f"state={state}, at rest: {describe_size(bench, state)}", flush=True)
                if state == "keys":
                    print(f"state={state}: {expiry(bench, min(options.events, MOST_EXPIRING))}", flush=True)
                many = 0.0 if state == "none" else count(bench, state)  # of keys, none is left when all expired
            restart(bench, many, state)


def settle(bench: Backlog) -> None:
    """Let small batches come, and Spark save the state and remove what it needs no more, twice."""
    for _ in range(2):
        for _ in range(BATCHES):
            records_before = bench.metric("records_total")
            bench.produce(1)
            wait(lambda before=records_before: bench.metric("records_total") > before, "a record", 60)
            time.sleep(2)  # the query of keys follows the data topic
        time.sleep(MAINTENANCE_S)


def restart(bench: Backlog, many: float, state: str) -> None:
    """How long a worker takes until it is ready, and until its state is, with so `many` keys or rows in it."""
    began = time.monotonic()
    with bench:
        print(f"state={state}: ready {time.monotonic() - began:.1f} s after a restart", flush=True)
        if many:
            wait(lambda: count(bench, state) > 0, "a batch of the state", 900)
            print(f"state={state}: a batch after {time.monotonic() - began:.1f} s", flush=True)


def fill_known(status: Status, cassandra: Any, folder: Path, many: int, state: str) -> None:
    """A state that is turned on where there is so much already: keys on the data topic, or events of rows."""
    more = ["snapshot.mode=never", f"state={state}", "query.group=of_known"]
    bench = Backlog(status, cassandra, folder / "known", "known", more)
    _as_by_default(bench)
    began = time.monotonic()
    if state == "keys":
        publish(status, bench, many)
    else:
        bench.produce(many)
    print(f"{many} {state} written in {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    with bench:
        print(f"MB at first: {bench.memory()}", flush=True)
        for tenth in range(1, 11):
            part = many * tenth // 10
            wait(lambda part=part: count(bench, state) >= part, f"{part} {state}", 3600)
            seconds = time.monotonic() - began
            print(f"{part} {state}: {part / seconds:.0f}/s since the start; {describe_size(bench, state)}", flush=True)
    restart(bench, many, state)


def publish(status: Status, bench: Backlog, keys: int) -> None:
    """Records of rows 0 to `keys`, as the connector makes them; every second one expires tomorrow."""
    worker, (settings,) = load(bench.worker_file, [bench.connector_file])
    codec, tomorrow = KeyCodec(bench.table), int(time.time()) + 86_400
    with tempfile.TemporaryDirectory() as memory, closing(KafkaLog(worker.producer_config)) as log:
        shape = RowShape(bench.table, settings, Registry(settings, Path(memory) / "schemas"))
        log.create(settings.data, PARTS, {"cleanup.policy": "compact"})
        for n in range(keys):
            raw = struct.pack(">i", n)
            record = shape.row(codec.encode((raw,)), Image((raw, b"x" * 10), 1), 1, expires=tomorrow if n % 2 else None)
            log.append(settings.data, partition(Murmur3Token.hash_fn(raw), PARTS), *record)
        log.flush(600)


def _as_by_default(bench: Backlog) -> None:
    """With the options of Java that a worker has by default: others are for short runs, and the state is Java's."""
    file = bench.worker_file
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("spark.driver.extraJavaOptions")) + "\n")


def describe_size(bench: Backlog, state: str) -> str:
    """What of a state lies in the checkpoint, by kind of file: RocksDB's are `sst`, logs of changes `changelog`."""
    directory = bench.checkpoint / ("state" if state == "keys" else f"{bench.table.name}/state")
    sizes: Counter[str] = Counter()
    for file in directory.rglob("*"):
        if file.is_file():
            sizes[file.suffix.removeprefix(".")] += file.stat().st_size
    many = max(1.0, count(bench, state))
    kinds = ", ".join(f"{kind} {size / many:.0f}" for kind, size in sizes.most_common() if size > many)
    return f"{many:.0f} kept, {sizes.total() / many:.0f} bytes each in the checkpoint ({kinds}); MB: {bench.memory()}"


def count(bench: Backlog, state: str) -> float:
    """How many keys or rows are kept."""
    return bench.metric("live_keys" if state == "keys" else "rows_kept")


def expiry(bench: Backlog, rows: int) -> str:
    """All rows expire at once: how fast their null records come, and the first of them."""
    until = time.time() + 60 + rows / 1_000
    bench.fill(rows, until)
    bench.round(rows, until_idle=True)
    if time.time() > until - 3:
        return "rows expired before they were published: give fewer --events"
    records_before = bench.metric("records_total")
    wait(lambda: bench.metric("records_total") > records_before, "the first that expires", until - time.time() + 120)
    first = time.time()
    wait(lambda: bench.metric("records_total") >= records_before + rows, "all that expire", 600)
    seconds = time.time() - first
    return f"{rows} rows expire at once: first record after {first - until:.1f} s, then {rows / seconds:.0f} records/s"


if __name__ == "__main__":
    main()
