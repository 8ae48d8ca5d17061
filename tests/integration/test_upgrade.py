"""An upgrade: agent and worker of an earlier commit write on real servers and are killed; today's go on with all that
they left, and older ones refuse what they don't know.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from integration.pipeline import Command, Pipeline
from integration.test_exactly_once import set_properties
from integration.test_two_workers import lines
from integration.worker_group import WorkerGroup
from patience import eventually

from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
COMMIT = "3ed42fd2"
"""The last one that writes rows of `state=rows` in version 3. With each release: its tag."""
REFUSAL = "a row of version 4 in the state, where 3 is known: go back to what wrote it"
"""What that commit says of rows that today's worker wrote. None if it reads them."""
MERGED, KEYED, READ = TABLES = ("upgrade.merged", "upgrade.keyed", "upgrade.read")
OWN: dict[str, dict[str, object]] = {
    MERGED: {"state": "rows", "markers": "false", "query.group": "merged", "output.format": "debezium"},
    KEYED: {"state": "keys", "markers": "false", "query.group": "keyed"},
    READ: {},
}
KEYSPACE = "helenus_upgrade"
AGENT = {
    "cells.include.list": r"upgrade\\.merged",
    "state.store": "cassandra",
    "state.store.interval.ms": 1000,
    "config.store.keyspace": KEYSPACE,
    "config.store.replication": "{'class': 'SimpleStrategy', 'replication_factor': 1}",
}
PACKAGES = ("agent", "connector", "schemas", "sinks")


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PYTHONPATH of that commit, whose modules are not compiled."""
    commit = os.environ.get("HELENUS_UPGRADE_FROM", COMMIT)
    archive = subprocess.run(["git", "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"there is no commit {commit} here: {archive.stderr.decode().strip()}")
    directory = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return os.pathsep.join(str(directory / package) for package in PACKAGES)


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE upgrade WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (k int, c int, v text, w text, PRIMARY KEY (k, c)) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    set_properties(Path(pipeline.agent.arguments[1]), AGENT)
    pipeline.connect(*TABLES)
    for table, own in OWN.items():
        set_properties(directory / f"{table}.properties", {**own, "settle.timeout.ms": 1000})
    yield pipeline
    pipeline.stop()


@pytest.fixture(scope="module")
def worker(pipeline: Pipeline, directory: Path) -> Iterator[Command]:
    """The only worker of a group, whose connectors, positions and unconfirmed keys are in topics."""
    shared = directory / "shared"
    shared.mkdir(mode=0o700)
    group = WorkerGroup(pipeline, "helenus-upgrade", 1, {"state.checkpoint.dir": shared})
    (pipeline.connector,) = group.workers
    try:
        yield pipeline.connector
    finally:
        group.stop()


def test_upgrade_and_back(pipeline: Pipeline, worker: Command, session: Any, former: str) -> None:
    agent = pipeline.agent
    agent.start(PYTHONPATH=former).ready()
    worker.start(PYTHONPATH=former).ready()

    def write(cql: str, tables: Sequence[str] = TABLES) -> None:
        for table in tables:
            session.execute(cql.format(table))

    def converge() -> None:
        for table in (KEYED, READ):
            pipeline.converges(table)
        eventually(lambda: envelopes(pipeline) == rows_of(session), lambda: f"{MERGED}\n{worker.tail()}", every=2)

    for k in range(4):
        for c in range(5):
            write(f"INSERT INTO {{}} (k, c, v, w) VALUES ({k}, {c}, 'v{k}{c}', 'w{k}{c}')")
    converge()
    # Without state, a record of such a row stays.
    write("INSERT INTO {} (k, c, v, w) VALUES (5, 0, 'passing', 'w') USING TTL 60", (MERGED, KEYED))
    write("UPDATE {} SET v = 'late' WHERE k = 0 AND c = 0")
    eventually(lambda: copied(session), "the agent's state is copied")
    agent.kill()
    worker.kill()
    write("UPDATE {} SET v = 'meanwhile' WHERE k = 0 AND c = 1")

    # Today's, the agent without its disk: its state is that of the table in Cassandra.
    shutil.rmtree(pipeline.directory / "state")
    agent_lines, worker_lines = len(lines(agent, "")), len(lines(worker, ""))
    agent.start().ready()
    worker.start().ready()
    write("UPDATE {} SET w = 'merged' WHERE k = 1 AND c = 1")
    write("DELETE FROM {} WHERE k = 2")
    write("DELETE FROM {} WHERE k = 3 AND c > 2")
    write("ALTER TABLE {} ADD x int")
    write("UPDATE {} SET x = 1 WHERE k = 1 AND c = 2")
    converge()
    assert "state.restored" in since(agent, agent_lines)
    assert "state.begun_anew" not in since(worker, worker_lines)
    row = last_record(pipeline, MERGED, 1, 1)
    assert row["op"] == "u"
    before = {name: row["before"][name] for name in "kcvw"}
    assert before == {"k": 1, "c": 1, "v": "v11", "w": "w11"}, "the state of before is read"
    assert (row["after"]["v"], row["after"]["w"]) == ("v11", "merged")
    for c in range(5):
        assert last_record(pipeline, KEYED, 2, c) is None, "the keys of before are known: each has a null"
    eventually(lambda: last_record(pipeline, KEYED, 5, 0) is None, "the TTL of before ends", every=2)

    if REFUSAL is None:
        return
    # Back, without the copy of before: what is in newer rows is not guessed.
    worker.stop()
    newer = len(lines(worker, ""))
    worker.start(PYTHONPATH=former)
    session.execute(f"UPDATE {MERGED} SET v = 'refused' WHERE k = 1 AND c = 1")
    eventually(lambda: REFUSAL in since(worker, newer), worker.tail)
    worker.kill()
    worker.log.write_text("")  # the refusal, which would be a fault of today's
    worker.start().ready()
    converge()
    row = last_record(pipeline, MERGED, 1, 1)
    assert (row["before"]["v"], row["after"]["v"], row["after"]["w"]) == ("v11", "refused", "merged")


def envelopes(pipeline: Pipeline) -> dict[tuple[int, int], Any]:
    """The rows that the last envelope of each key has; those of before the ALTER have no column x."""
    last = {(record.key["k"], record.key["c"]): record.value for record in pipeline.records(MERGED)}
    rows = {key: envelope and envelope["after"] for key, envelope in last.items()}
    return {key: {"x": None, **row} for key, row in rows.items() if row}


def rows_of(session: Any) -> dict[tuple[int, int], Any]:
    """The rows of that table."""
    return {(row.k, row.c): {"x": None, **row._asdict()} for row in session.execute(f"SELECT * FROM {MERGED}")}


def copied(session: Any) -> bool:
    """Return whether the agent has copied its state to Cassandra."""
    try:
        row = session.execute(f"SELECT version FROM {KEYSPACE}.agent_states").one()
    except Exception:  # there is no table yet
        return False
    return row is not None and bool(row.version)


def since(command: Command, line: int) -> str:
    """What a command has logged since a line."""
    return "\n".join(lines(command, "")[line:])


def last_record(pipeline: Pipeline, table: str, k: int, c: int) -> Any:
    """The value of the last record of a key."""
    records = [record for record in pipeline.records(table) if (record.key["k"], record.key["c"]) == (k, c)]
    return records[-1].value
