"""Memory and latency over a long time of mixed writes.

    python -m bench soak [--minutes 60] [--rate 50] [--interval 0]

Three tables with clustering columns, one for each `state`, on one worker: inserts, updates, rows that expire, and
deletes of rows, partitions and ranges, over a fixed number of keys. Every few minutes it prints MB of memory of each of
the agent's and the worker's processes, the CPU that both took, and by how many seconds each table is behind.

At the end the writes cease, what expires does, and `verify` compares each topic with its table.

Starts its own Cassandra, Kafka and registry.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.backlog import cpu_of, memory_by_kind
from bench.path import add, is_ready, read_metrics, running, topics_exist, wait
from helenus_stack import programs
from helenus_stack.cql import session
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Terminal
from helenus_stack.stack import Stack

STATES = "none", "keys", "rows"
PARTITIONS, ROWS = 2_000, 10
LONGEST_TTL_S = 60
REPORT_S = 300.0
# What a write does, and how often of a hundred times.
WRITES = {
    "INSERT INTO {} (v, n, p, c) VALUES (?, ?, ?, ?)": 45,
    "UPDATE {} SET v = ?, n = ? WHERE p = ? AND c = ?": 25,
    f"INSERT INTO {{}} (v, n, p, c) VALUES (?, ?, ?, ?) USING TTL {LONGEST_TTL_S}": 10,
    "DELETE FROM {} WHERE p = ? AND c = ?": 15,
    "DELETE FROM {} WHERE p = ? AND c > ?": 3,
    "DELETE FROM {} WHERE p = ?": 2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=50, help="writes a second, over all tables")
    parser.add_argument("--interval", type=int, default=0, help="ms between two batches of a table at least")
    options = parser.parse_args()
    tables = [f"soak_{state}" for state in STATES]
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder) / "stack", brief=False, progress=Terminal()) as stack,
        session(stack.status()) as cassandra,
    ):
        status = stack.status()
        cassandra.execute(
            "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        columns = "(p int, c int, v text, n int, PRIMARY KEY (p, c)) WITH cdc = true"
        for table in tables:
            cassandra.execute(f"CREATE TABLE bench.{table} {columns}")
        agent = programs.agent(status, stack.directory / "bench")
        add(agent.files[0], ["cells.include.list=bench\\\\.soak_rows"])
        made = [programs.connector(status, stack.directory / "bench", "bench", table) for table in tables]
        for state, connector in zip(STATES, made, strict=True):
            add(connector.files[1], [f"state={state}", f"query.group={state}"])
        worker = programs.Program("connector", Path(status.directory), [made[0].files[0], *(m.files[1] for m in made)])
        add(made[0].files[0], ["spark.driver.extraJavaOptions=", f"batch.interval.ms={options.interval}"])
        with running(agent, {}), running(worker, {"JAVA_HOME": str(spark_java_home(Terminal()))}):
            topics_exist(status, *(f"data-bench.{table}" for table in tables))
            wait(lambda: is_ready(worker), "the connectors are ready", 300)
            address = programs.addresses(stack.directory / "bench")[1]
            pids = [agent.process.pid or 0, worker.process.pid or 0]
            until, report = time.monotonic() + options.minutes * 60, time.monotonic() + 60
            statements = [[cassandra.prepare(text.format(f"bench.{t}")) for text in WRITES] for t in tables]
            often = list(WRITES.values())
            started = since = time.monotonic()
            spent = [cpu_of(pid) for pid in pids]
            while (now := time.monotonic()) < until:
                if now > report:
                    report = now + REPORT_S
                    minutes, cpu_now = (now - started) / 60, [cpu_of(pid) for pid in pids]
                    of_a_core = [(b - a) / (now - since) for a, b in zip(spent, cpu_now, strict=True)]
                    spent, since = cpu_now, now
                    print(
                        f"{minutes:.0f} min: MB: agent {memory_by_kind(pids[0])}; worker {memory_by_kind(pids[1])};"
                        f" of a core: agent {of_a_core[0]:.1%}, worker {of_a_core[1]:.1%};"
                        f" behind s: {behind(address, tables)}; load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
                write(cassandra, random.choices(random.choice(statements), often)[0])
                time.sleep(max(0.0, 1 / options.rate - (time.monotonic() - now)))
            time.sleep(LONGEST_TTL_S + 30)
            for table in tables:
                print(f"{table}: {verified(address, f'bench-{table}')}", flush=True)


def write(cassandra: Any, statement: Any) -> None:
    """Do a statement with values of a random row."""
    key = [random.randrange(PARTITIONS), random.randrange(ROWS)]
    values = ["x" * random.randrange(200), random.randrange(1000), *key]
    width = len(statement.column_metadata)
    cassandra.execute(statement, values if width == 4 else key[:width])


def behind(address: str, tables: list[str]) -> str:
    """For how long the oldest event that is not done has been seen, by table, in s."""
    metrics = read_metrics(address.rpartition(":")[2])
    name = "helenus_connector_lag_seconds"
    return ", ".join(
        f"{t} {next((v for k, v in metrics.items() if k.startswith(name) and t in k), -1):.1f}" for t in tables
    )


def verified(address: str, name: str) -> str:
    """What `verify` finds."""
    url = f"{address}/connectors/{name}/verifications"
    urllib.request.urlopen(urllib.request.Request(url, b"{}", {"Content-Type": "application/json"}), timeout=30).close()

    def last() -> dict[str, Any]:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return dict(json.load(answer)["verifications"][-1])

    wait(lambda: last()["state"] not in ("WAITING", "RUNNING"), "verify", 900)
    return json.dumps(last())


if __name__ == "__main__":
    main()
