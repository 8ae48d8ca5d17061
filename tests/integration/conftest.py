"""One stack for all integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Cluster
from cassandra.policies import ConstantReconnectionPolicy
from integration.pipeline import Lasting, Pipeline
from shared_servers import SharedServers

from helenus_stack.settings import LogName
from helenus_stack.stack import Stack
from helenus_stack.status import Status


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    overrides = {"commitlog_segment_size": "4MiB", "cdc_total_space": "512MiB"}
    directory = tmp_path_factory.mktemp("stack")
    # Pulsar, Connect and PostgreSQL are started where they are needed.
    first = ["cassandra", "kafka", "registry"]
    with Stack(directory, only=first, log="both", connect=True, postgres=True, cassandra_yaml=overrides) as stack:
        yield stack


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with three Cassandra nodes, for tests marked `cluster`."""
    overrides = {
        "commitlog_segment_size": "4MiB",
        "cdc_total_space": "512MiB",
        # What a paused replica has not taken by then is dropped, and a hint.
        "write_request_timeout": "1000ms",
        "hints_flush_period": "500ms",
        # Memtables that are full are late for as long as a flush takes: of a table with its own compression, long.
        "memtable_heap_space": "32MiB",
        "memtable_flush_writers": 1,
        "flush_compression": "table",
        "concurrent_writes": 64,
    }
    with Stack(tmp_path_factory.mktemp("three"), nodes=3, brief=False, cassandra_yaml=overrides) as stack:
        yield stack


@pytest.fixture(scope="session")
def status(stack: Stack) -> Status:
    return stack.status()


@pytest.fixture(scope="module", params=["kafka", pytest.param("pulsar", marks=pytest.mark.long)])
def log(stack: Stack, request: pytest.FixtureRequest) -> LogName:
    """Each of the Logs in turn, for tests of what is the same on both."""
    if request.param == "pulsar":
        stack.start("pulsar")
    name: LogName = request.param
    return name


@pytest.fixture(scope="module")
def lasting(shared_servers: SharedServers, status: Status, tmp_path_factory: pytest.TempPathFactory) -> Lasting:
    """Gives an agent and a worker over a Log, for the group's files: each makes connectors by `Pipeline.connected`. On
    the other Log they end, since a node has one agent.
    """
    directory = tmp_path_factory.mktemp("lasting")
    other: dict[LogName, str] = {"kafka": "on pulsar", "pulsar": "on kafka"}

    def make(log: LogName) -> AbstractContextManager[Pipeline]:
        return _lasting(Pipeline(status.only(log), directory / log))

    return lambda log: shared_servers(f"on {log}", lambda: make(log), instead_of=other[log])


@contextmanager
def _lasting(pipeline: Pipeline) -> Iterator[Pipeline]:
    with Path(pipeline.agent.arguments[1]).open("a") as file:  # what these files need
        file.write(
            "table.exclude.list=av.theirs\ncells.include.list="
            "sink\\.merged,merged\\.(rows|envelopes|turned),envelope\\..*,cep\\.(whole|apart),theirs\\.t,hidden\\..*\n"
        )
    try:
        pipeline.agent.start().ready()
        pipeline.connect().start().ready()
        yield pipeline
        assert (pipeline.connector.stop(), pipeline.agent.stop()) == (0, 0)
    finally:
        pipeline.stop()


@pytest.fixture(scope="session")
def session(status: Status) -> Iterator[Any]:
    reconnect = ConstantReconnectionPolicy(1.0, max_attempts=None)
    cluster = Cluster(status.contact_points, port=status.cql_port, reconnection_policy=reconnect)
    yield cluster.connect()
    cluster.shutdown()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")
