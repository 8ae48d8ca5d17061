"""What state costs, beside the same connector without it, and what it keeps.

    python -m bench state [--events 100000] [--rounds 2] [--states none keys]

- backlog: records per second, and CPU seconds per million, in turns for each `state`. Counted until the worker is idle
  again: a connector with state goes on after its records are written.
- kept: bytes of the checkpoint's state for each key, and seconds until a restarted worker is ready.
- expiry: all rows expire in the same second, and how fast their null records come.

Starts its own Cassandra, Kafka and registry. No agent runs: events are made as the agent makes them. For latencies:
`python -m bench path --set state=keys`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.connector import Backlog, create
from bench.path import wait
from helenus_stack.cql import session
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="rows, and changes of each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--states", nargs="*", default=["none", "keys"])
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
    ):
        create(cassandra, 10)
        with ExitStack() as workers:
            found = {}
            for state in options.states:
                more = ["snapshot.mode=never", f"state={state}"]
                bench = Backlog(stack.status(), cassandra, Path(folder) / state, f"of_{state}", more)
                found[state] = workers.enter_context(bench)
                bench.fill(options.events)
                bench.warm_up()
            for turn in range(options.rounds):
                for state, bench in found.items():
                    done = bench.round(options.events, until_idle=True)
                    print(f"state={state}, round {turn + 1}: {done}", flush=True)
            for state, bench in found.items():
                if state != "none":
                    kept = sum(file.stat().st_size for file in bench.state.rglob("*") if file.is_file())
                    keys = bench.metric("live_keys")
                    print(f"state={state}: {keys:.0f} keys, {kept / max(1, keys):.0f} bytes each in the checkpoint")
            for state, bench in found.items():
                if state != "none":
                    print(f"state={state}: {expiry(bench, options.events)}", flush=True)
        for state, bench in found.items():
            began = time.monotonic()
            with bench:
                print(f"state={state}: ready {time.monotonic() - began:.1f} s after a restart", flush=True)


def expiry(bench: Backlog, rows: int) -> str:
    """All rows expire at once: how fast their null records come, and the first of them."""
    until = time.time() + 30 + rows / 2_000
    bench.fill(rows, until)
    bench.round(rows, until_idle=True)
    if time.time() > until - 3:
        return "rows expired before they were published: give fewer --events"
    done = bench.metric("records_total")
    wait(lambda: bench.metric("records_total") > done, "the first that expires", 120)
    first = time.time()
    wait(lambda: bench.metric("records_total") >= done + rows, "all that expire", 600)
    seconds = time.time() - first
    return f"{rows} rows expire at once: first record after {first - until:.1f} s, then {rows / seconds:.0f} records/s"


if __name__ == "__main__":
    main()
