"""A node's log of a random workload, with all that is needed to read it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from agent.oracle.fold import Selected, may_be_folded, select
from agent.oracle.reader import Oracle, Record, followed, schema_of
from agent.oracle.workload import ALTERATIONS, KEYSPACE, SETUP, Done, Runner, Workload
from cassandra.cluster import Cluster

from helenus_schemas.cql.table import Table, read_tables
from helenus_stack.settings import Override
from helenus_stack.stack import Stack

OPERATIONS = 450
LONGEST_TTL = 300_000_000
"""s: below what a node takes that keeps to the expiries of before 5.0, which end in 2038."""


@dataclass
class Recording:
    """What was done, and the segments it is in; `records` are what Cassandra's own reader finds there, and `selected`
    the rows that there were in the end, of tables by id.
    """

    seed: int
    done: list[Done]
    tables: Mapping[UUID, Table]
    views: list[UUID]
    segments: list[Path]
    records: list[Record]
    selected: dict[UUID, Selected]


def record(directory: Path, yaml: Mapping[str, Override], seed: int, oracle: Oracle) -> Recording:
    """Run a workload on a node with these settings. Its servers are gone when this returns, its files are there."""
    options = {
        "commitlog_segment_size": "32MiB",
        "commitlog_sync_period": "200ms",
        "batch_size_fail_threshold": "10MiB",
        **yaml,
    }
    with Stack(directory, only=["cassandra"], cassandra_yaml=options) as stack:
        status = stack.status()
        cluster = Cluster(status.contact_points, port=status.cql_port, schema_metadata_enabled=False)
        try:
            session = cluster.connect()
            session.default_timeout = 60
            done = _work(session, seed)
            tables = read_tables(session)
            views = [row.id for row in session.execute("SELECT id FROM system_schema.views")]
            schema = schema_of(session, KEYSPACE)
            ours = [table for table in tables.values() if table.keyspace == KEYSPACE and may_be_folded(table)]
            selected = {table.id: select(session, table) for table in ours}
        finally:
            cluster.shutdown()
        time.sleep(1)  # until what was written is synced
    segments = sorted(Path(status.nodes[0].cdc_raw).glob("*.log"))
    records = oracle.read(Path(status.nodes[0].cassandra_yaml), schema, segments, followed(tables))
    return Recording(seed, done, tables, views, segments, records, selected)


def _work(session: object, seed: int) -> list[Done]:
    runner = Runner(session)
    runner.define(SETUP)
    workload = Workload(random.Random(seed), runner.tables(), LONGEST_TTL)
    for alterations in ([], *ALTERATIONS):
        runner.define(alterations)
        workload.tables = runner.tables()
        for _ in range(OPERATIONS // (len(ALTERATIONS) + 1)):
            runner.run(workload.operation())
    for operation in (*workload.subsets(), *workload.big(1 << 20), *workload.big(10 << 20)):
        runner.run(operation)
    return runner.done
