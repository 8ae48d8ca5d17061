"""The gate's level in two real data centres, one of two nodes and one of one: which reports each level asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import write_properties
from integration.test_gate_levels import insert, keys_of, outcomes, published, waiting
from integration.test_three_nodes import Three, no_hints, session, unheard  # noqa: F401
from patience import eventually

from helenus_stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.timeout(900)]

LOCAL, QUORUM, EACH, VERIFIED = "centers.local", "centers.quorum", "centers.each", "centers.verified"
LEVELS = {LOCAL: "local_quorum", QUORUM: "quorum", EACH: "each_quorum", VERIFIED: "each_quorum"}
HERE, THERE = 3, 2
"""One of the two nodes that are read, beside the first; and the only one of the other data centre."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yaml = {"commitlog_segment_size": "4MiB", "cdc_total_space": "512MiB", "hints_flush_period": "500ms"}
    folder = tmp_path_factory.mktemp("centers")
    with Stack(folder, nodes=3, data_centers=2, brief=False, cassandra_yaml=yaml) as stack:
        yield stack


@pytest.fixture(scope="module")
def pipeline(three: Stack, session: Any, directory: Path) -> Iterator[Three]:  # noqa: F811
    pipeline = Three(three.status(), directory)
    replicas = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 2, 'datacenter2': 1}"
    session.execute(f"CREATE KEYSPACE centers WITH replication = {replicas}")
    for table in LEVELS:
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH cdc = true")
    try:
        for agent in pipeline.agents:
            agent.start()
        for agent in pipeline.agents:
            agent.ready()
        pipeline.connect(*LEVELS)
        for table, level in LEVELS.items():
            more = {"gate": level, "gate.expired": "drop"}  # in ten minutes
            if table == VERIFIED:
                more |= {"gate.expired": "verify", "gate.timeout.ms": "5000"}
            write_properties(directory / f"{table}.properties", {**pipeline.connector_properties(table), **more})
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def goes_on(pipeline: Three, table: str, first: int) -> None:
    eventually(lambda: len(published(pipeline, table, first, 30)) == 30, f"{table} is published")


def waits(pipeline: Three, table: str, first: int) -> None:
    eventually(lambda: waiting(pipeline, table) == 30, f"changes of {table} wait")
    assert published(pipeline, table, first, 30) == []


def completed(pipeline: Three, table: str, first: int) -> None:
    eventually(lambda: keys_of(published(pipeline, table, first, 30)) == set(range(first, first + 30)), "hints do it")
    assert waiting(pipeline, table) == 0


def test_without_the_other_data_center(pipeline: Three, three: Stack, session: Any) -> None:  # noqa: F811
    """A quorum of the one, and of all three, is there; one of each is not, until hints bring it."""
    with unheard(three, THERE):
        for table in (LOCAL, QUORUM, EACH):
            insert(session, table, 0, 30)
        goes_on(pipeline, LOCAL, 0)
        goes_on(pipeline, QUORUM, 0)
        waits(pipeline, EACH, 0)
    completed(pipeline, EACH, 0)
    assert outcomes(pipeline, EACH) == {"completed": 30, "verified": 0, "released": 0, "dropped": 0}


def test_without_a_node_of_ours(pipeline: Three, three: Stack, session: Any) -> None:  # noqa: F811
    """A report of the other data centre is one of a quorum of all, and none of a quorum of ours."""
    with unheard(three, HERE):
        for table in (LOCAL, QUORUM, EACH):
            insert(session, table, 100, 30)
        goes_on(pipeline, QUORUM, 100)
        waits(pipeline, EACH, 100)
        waits(pipeline, LOCAL, 100)
    completed(pipeline, EACH, 100)
    completed(pipeline, LOCAL, 100)


def test_what_the_other_data_center_missed_is_verified(
    pipeline: Three,
    three: Stack,
    session: Any,  # noqa: F811
    no_hints: None,  # noqa: F811
) -> None:
    """A read at EACH_QUORUM shows it, and brings it to the other data centre; while that is away, changes wait."""
    with unheard(three, THERE):
        insert(session, VERIFIED, 200, 30)
        waits(pipeline, VERIFIED, 200)
        eventually(lambda: pipeline.count(VERIFIED, "gate_oldest_seconds") > 15, "their time is over, and a read's too")
        waits(pipeline, VERIFIED, 200)
    eventually(lambda: len(keys_of(published(pipeline, VERIFIED, 200, 30))) == 30, "they are verified")
    counts = outcomes(pipeline, VERIFIED)
    assert (counts["verified"], counts["released"], counts["dropped"]) == (30, 0, 0)
    assert len(session.at_all.execute(f"SELECT k FROM {VERIFIED}").all()) == 30
    pipeline.wait_confirmed(VERIFIED, session)
