"""A node's log of a random workload, with all that is needed to read it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from agent.golden import recycle_segments, without_vectors
from agent.oracle.fold import Selected, may_be_folded, select
from agent.oracle.reader import Oracle, Record, followed, schema_of, write_schema
from agent.oracle.workload import ALTERATIONS, KEYSPACE, SETUP, Done, Runner, Workload
from cassandra import ReadFailure
from cassandra.cluster import Cluster

from helenus_schemas.cql.table import Table, read_tables
from helenus_stack.settings import Override
from helenus_stack.stack import Stack

OPERATIONS = 450
LONGEST_TTL = 300_000_000
"""s: below what a node takes that keeps to the expiries of before 5.0, which end in 2038."""

_NAMES = {"commitlog_segment_size": "32MiB", "commitlog_sync_period": "200ms", "batch_size_fail_threshold": "10MiB"}
_NAMES_4_0 = {
    "commitlog_segment_size_in_mb": 32,
    "commitlog_sync_period_in_ms": 200,
    "batch_size_fail_threshold_in_kb": 10 << 10,
}
OPTIONS: Mapping[str, Mapping[str, Override]] = {
    **dict.fromkeys(("6.0", "5.0", "4.1"), _NAMES),
    "4.0": _NAMES_4_0,
    "3.11": {**_NAMES_4_0, "commitlog_total_space_in_mb": 64},
}


@dataclass
class Recording:
    """What was done, and the segments it is in; `records` are what Cassandra's own reader finds there, and `selected`
    the rows that there were in the end, of tables by id. `version` is Cassandra's.
    """

    seed: int
    version: str
    executed: list[Done]
    tables: Mapping[UUID, Table]
    views: list[UUID]
    segments: list[Path]
    records: list[Record]
    selected: dict[UUID, Selected]


def record(directory: Path, yaml: Mapping[str, Override], seed: int, oracle: Oracle, version: str) -> Recording:
    """Run a workload on a node with these settings. Its servers are gone when this returns, its files are there."""
    is_old = version < "5"
    with Stack(directory, only=["cassandra"], cassandra=version, cassandra_yaml={**OPTIONS[version], **yaml}) as stack:
        status = stack.status()
        cluster = Cluster(status.contact_points, port=status.cql_port, schema_metadata_enabled=False)
        try:
            session = cluster.connect()
            session.default_timeout = 60
            executed = _run_workload(session, seed, [without_vectors(line) for line in SETUP] if is_old else SETUP)
            tables = read_tables(session)
            views = [row.id for row in session.execute("SELECT id FROM system_schema.views")]
            schema = write_schema(tables.values(), KEYSPACE) if version == "3.11" else schema_of(session, KEYSPACE)
            ours = [table for table in tables.values() if table.keyspace == KEYSPACE and may_be_folded(table)]
            selected = {}
            for table in ours:
                # A deletion at a very negative time that is flushed makes an SSTable that 5.0.9 itself can't read.
                with suppress(ReadFailure):
                    selected[table.id] = select(session, table, not is_old)
            assert len(selected) > len(ours) // 2
            if version == "3.11":
                recycle_segments(session, Path(status.nodes[0].cdc_raw))
        finally:
            cluster.shutdown()
        time.sleep(1)  # until what was written is synced
    segments = sorted(Path(status.nodes[0].cdc_raw).glob("*.log"))
    records = oracle.read(Path(status.nodes[0].cassandra_yaml), schema, segments, followed(tables))
    return Recording(seed, version, executed, tables, views, segments, records, selected)


def _run_workload(session: object, seed: int, setup: Sequence[str]) -> list[Done]:
    runner = Runner(session)
    runner.define(setup)
    workload = Workload(random.Random(seed), runner.tables(), LONGEST_TTL)
    for alterations in ([], *ALTERATIONS):
        runner.define(alterations)
        workload.tables = runner.tables()
        for _ in range(OPERATIONS // (len(ALTERATIONS) + 1)):
            runner.run(workload.operation())
    for operation in (*workload.subsets(), *workload.big(1 << 20), *workload.big(10 << 20)):
        runner.run(operation)
    return runner.executed
