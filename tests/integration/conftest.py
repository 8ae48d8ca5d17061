"""One stack for all integration tests, and a keyspace of its own for each test that wants one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Cluster

from helenus_stack.stack import Stack
from helenus_stack.status import Status

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    overrides = {"commitlog_segment_size": "4MiB", "cdc_total_space": "512MiB"}
    with Stack(tmp_path_factory.mktemp("stack"), cassandra_yaml=overrides) as stack:
        yield stack


@pytest.fixture(scope="session")
def status(stack: Stack) -> Status:
    return stack.status()


@pytest.fixture(scope="session")
def session(status: Status) -> Iterator[Any]:
    cluster = Cluster(status.contact_points, port=status.cql_port)
    yield cluster.connect()
    cluster.shutdown()


@pytest.fixture
def keyspace(session: Any) -> str:
    return new_keyspace(session)


def new_keyspace(session: Any) -> str:
    name = f"ks{next(_numbers)}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
    return name


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")
