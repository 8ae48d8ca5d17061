"""In a keyspace of one replica each of the gate's levels is like one, and nothing waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from integration.pipeline import Lasting, Pipeline
from patience import eventually

from helenus_stack.status import Status

pytestmark = pytest.mark.integration

LEVELS = ("local_quorum", "quorum", "each_quorum", "all")


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    replication = f"{{'class': 'NetworkTopologyStrategy', '{status.local_dc}': 1}}"
    session.execute(f"CREATE KEYSPACE single WITH replication = {replication}")
    for level in LEVELS:
        session.execute(f"CREATE TABLE single.{level} (k int PRIMARY KEY, v int) WITH cdc = true")
    gates = {f"single.{level}": {"gate": level} for level in LEVELS}
    with lasting("kafka").connected(gates) as pipeline:
        yield pipeline


def test_every_level_of_one_replica_goes_on_at_once(pipeline: Pipeline, session: Any) -> None:
    for level in LEVELS:
        for k in range(30):
            session.execute(f"INSERT INTO single.{level} (k, v) VALUES ({k}, {k})")
        session.execute(f"DELETE FROM single.{level} WHERE k = 0")
    for level in LEVELS:
        rows_now = lambda level=level: {r.key["k"]: r.value for r in pipeline.records(f"single.{level}")}  # noqa: E731
        wanted = {k: {"v": k} if k else None for k in range(30)}
        eventually(lambda rows_now=rows_now, wanted=wanted: rows_now() == wanted, f"{level} is published")  # type: ignore[misc]
        pipeline.adds_up(f"single-{level}")
    assert pipeline.connector.total("helenus_connector_gate_waiting_changes") == 0
    assert pipeline.connector.total("helenus_connector_gate_changes_total") == 0
