"""The whole path with the oldest driver for Cassandra that pyproject.toml allows; all other tests have the newest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.processes import contents, family
from integration.pipeline import Pipeline
from integration.test_broker_versions import MODES, create_tables
from integration.test_cassandra_versions import insert_every_type
from integration.test_path import TYPES
from integration.test_state import write as write_rows
from integration.test_verify import command as verify
from integration.workload import Workload

from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
KEYSPACE = "oldest_driver"
READ_TOGETHER = """
import json, struct, sys
import cassandra
from cassandra import ConsistencyLevel
from helenus_connector.cassandra_rows import _pipelined
from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.cassandra_rows.row_reader import RowReader
from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.cql.table import read_tables
from helenus_schemas.service.cassandra import connect

_pipelined._WAIT_S = 30  # a node may be slow here
settings = ConnectorSettings.from_properties(json.loads(sys.argv[1]), "test")
session = connect(settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True)
tables = read_tables(session, settings.keyspace).values()
reader = RowReader(session, next(table for table in tables if table.name == settings.table), settings)
keys = [(struct.pack(">i", k),) for k in range(20)]
dict(reader.read_rows(keys, ConsistencyLevel.ONE))
session.execute_async = None  # of which the driver's own requests are made
assert all(dict(reader.read_rows(keys, ConsistencyLevel.ONE)).values())
session.cluster.shutdown()
print(cassandra.__version__)
"""
"""Read keys in the connector's own way, with no request of the driver, and print its version."""


@pytest.fixture(scope="module")
def version() -> str:
    (oldest,) = re.findall(r'^  "cassandra-driver>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(oldest)


@pytest.fixture(scope="module")
def driver(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this driver alone."""
    folder = tmp_path_factory.mktemp("driver")
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *install, f"cassandra-driver=={version}"], check=True)
    return folder


@pytest.fixture(scope="module")
def path(driver: Path) -> str:
    """The PYTHONPATH that puts the driver before the one that is installed."""
    return os.pathsep.join(filter(None, (str(driver), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    pipeline = Pipeline(status.only("kafka"), tmp_path_factory.mktemp("pipeline"))
    try:
        create_tables(session, KEYSPACE)
        with (pipeline.directory / "agent.properties").open("a") as file:
            file.write(f"cells.include.list={KEYSPACE}\\.merged\ntable.include.list={KEYSPACE}\\..*\n")
        pipeline.agent.start(PYTHONPATH=path).ready()
        pipeline.connect().start(PYTHONPATH=path).ready()
        with pipeline.connected({f"{KEYSPACE}.{table}": more for table, more in MODES.items()}):
            yield pipeline
        assert (pipeline.connector.stop(), pipeline.agent.stop()) == (0, 0)
    finally:
        pipeline.stop()


def loaded_drivers(pid: int) -> set[str]:
    """The folders from which this process and those below it have compiled modules of the driver."""
    maps = b"".join(contents(process, "maps") for process in family(pid))
    return {folder.decode() for folder in re.findall(rb" (/\S+)/cassandra/[a-z]\w*\.[\w.-]+\.so$", maps, re.MULTILINE)}


def test_every_mode(pipeline: Pipeline, session: Any, driver: Path) -> None:
    """Snapshot, every type, random statements, an ALTER, and both states; Spark's workers have that driver too."""
    kinds, types, live, merged = (f"{KEYSPACE}.{table}" for table in MODES)
    Workload(session, kinds, seed=1).run(200)
    for seed, table in enumerate((live, merged), 2):
        write_rows(session, table, 100, seed)
    insert_every_type(session, types, TYPES, 100)
    session.execute(f"ALTER TABLE {types} ADD later text")
    session.execute(f"UPDATE {types} SET later = 'x' WHERE k = 3")
    for table in (kinds, types):
        pipeline.converges(table)
    for table in (live, merged):
        exit_status, report, errors = verify(pipeline, table, "--patience", "60")
        assert exit_status == 0, f"{report}\n{errors}\n{pipeline.connector.tail()}"
    for command in (pipeline.agent, pipeline.connector):
        assert command.process is not None
        assert loaded_drivers(command.process.pid) == {str(driver)}


def test_keys_are_read_together(pipeline: Pipeline, path: str, version: str) -> None:
    properties = {key: str(value) for key, value in pipeline.connector_properties(f"{KEYSPACE}.types").items()}
    script = [sys.executable, "-c", READ_TOGETHER, json.dumps(properties)]
    read = subprocess.run(script, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert read.stdout == f"{version}\n", read.stderr


def test_what_uses_the_drivers_own_parts(path: str) -> None:
    test = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/connector/test_together.py"]
    tested = subprocess.run(test, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout[-3000:]
