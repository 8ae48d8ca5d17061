"""Exactly once at RF 3: each change has three copies, and those that an agent sends late are not published again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Command
from integration.test_exactly_once import ENVELOPES, ROWS, SUPPORT, set_properties, wait_quiet
from integration.test_three_nodes import Three, session  # noqa: F401
from integration.write_log import WriteLog, each_change_once, each_once, last_differing, read_counts

from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

GATED, READ = TABLES = ("once.gated", "once.read")
"""A record is a change that two replicas have reported; or the row as it is read, with the default settings."""
CONNECTORS: dict[str, dict[str, object]] = {
    GATED: {**ENVELOPES, "gate": "local_quorum"},
    READ: {**ROWS},
}
KEYS = range(100)
RATE = 40.0
"""Writes a second: three nodes on a busy machine take them in time, and few come by hints."""
TURNS = 3
SILENT_S = 20.0
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))


@pytest.fixture(scope="module")
def pipeline(three: Stack, session: Any, directory: Path) -> Iterator[Three]:  # noqa: F811
    pipeline = Three(three.status(), directory)
    session.execute("CREATE KEYSPACE once WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    try:
        pipeline.start_agents(f"cells.include.list={GATED}\n")
        pipeline.connect(*TABLES)
        for table, properties in CONNECTORS.items():
            set_properties(directory / f"{table}.properties", {**properties, **SUPPORT})
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@contextmanager
def silent(agent: Command) -> Iterator[None]:
    """An agent sends nothing, and all that it has later."""
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.process.send_signal(signal.SIGCONT)


def test_late_copies_are_not_published_again(pipeline: Three, session: Any) -> None:  # noqa: F811
    """Of an agent that is silent while the worker is killed: in which of two runs a copy came first makes no
    difference.
    """
    chance, writes = random.Random(SEED), WriteLog(session, TABLES, KEYS, RATE)
    with writes:
        time.sleep(5)
        for agent in chance.sample(pipeline.agents, TURNS):
            with silent(agent):
                ends_at = time.monotonic() + SILENT_S
                time.sleep(chance.uniform(2, SILENT_S / 2))
                pipeline.connector.kill()
                pipeline.connector.start()
                time.sleep(max(0.0, ends_at - time.monotonic()))
            time.sleep(chance.uniform(2, 5))
        pipeline.connector.ready()
    wait_quiet(pipeline, TABLES)
    brokers = str(pipeline.status.bootstrap_servers)
    gated, read = (read_counts(brokers, f"data-{table}", KEYS) for table in TABLES)
    # A change that a replica has by a hint alone may be the second report later than that of the key's next change.
    in_any_order = {key: sorted(records, key=lambda record: record.n or 0) for key, records in gated.items()}
    rows = dict(session.at_all.execute(f"SELECT k, n FROM {READ}"))
    errors = [f"{GATED}: {error}" for error in each_once(in_any_order, writes.written[GATED])]
    errors += [f"{READ}: {error}" for error in (*each_change_once(read), *last_differing(read, rows, gone=()))]
    assert not errors, f"HELENUS_SEED={SEED}: {len(errors)} errors:\n" + "\n".join(errors[:20])
