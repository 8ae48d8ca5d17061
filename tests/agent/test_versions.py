"""The agent with Cassandra 6.0, 4.1 and 4.0: the golden statements, and counters."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import golden
from agent.golden import T, i, row
from confluent_kafka.admin import AdminClient
from patience import eventually

from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event import change, wire
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.records import messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.long,  # `make test` reads logs of their form from files: test_golden.py
    pytest.mark.integration,
    # The driver's event loop and the consumer are ended by their own threads, which leaves warnings of no interest.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

VERSIONS = [("6.0", "6.0-alpha2"), ("4.1", "4.1.10"), ("4.0", "4.0.19")]
MAIN = "from helenus_agent.cli import main; main()"
SETUP = [
    *golden.SETUP,
    "CREATE TABLE g.counted (a int, b int, n counter, s counter static, PRIMARY KEY (a, b)) WITH cdc = true",
]
STATEMENTS = [
    *golden.STATEMENTS,
    ("UPDATE g.counted SET n = n + 1 WHERE a = 1 AND b = 2", [row("counted", i(1), i(2))]),
    ("UPDATE g.counted SET n = n - 5 WHERE a = 1 AND b = 2", [row("counted", i(1), i(2))]),
]


def before_vectors(statement: str) -> str:
    """The statement without the type that only 5.0 has."""
    for part in ("vec vector<float, 3>, vt vector<text, 2>, ", "vec, vt, ", "[1.0, 2.0, 3.0], ['a', 'bb'], "):
        statement = re.sub(re.escape(part).replace(r"\ ", r"\s+"), "", statement)
    return statement


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Stack(tmp_path_factory.mktemp("kafka"), only=["kafka"]) as stack:
        yield stack.status().bootstrap_servers


@pytest.fixture(scope="module", params=VERSIONS, ids=["6.0", "4.1", "4.0"])
def cassandra(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Status, str]]:
    version, release = request.param
    with Stack(tmp_path_factory.mktemp("cassandra"), only=["cassandra"], cassandra=version) as stack:
        yield stack.status(), release


@pytest.fixture
def session(cassandra: tuple[Status, str]) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(cassandra[0].cassandra(), "status"))
    yield session
    session.cluster.shutdown()


def test_every_statement(kafka: str, cassandra: tuple[Status, str], session: Any, tmp_path: Path) -> None:
    status, release = cassandra
    local = session.execute("SELECT release_version, host_id FROM system.local").one()
    assert local.release_version == release
    prefix = f"events-{release}-"
    keys = {
        **status.cassandra(),
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "kafka.bootstrap.servers": kafka,
        "state.dir": str(tmp_path / "state"),
        "topic.prefix": prefix,
    }
    path = tmp_path / "agent.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    out = tmp_path / "agent.out"
    with open(out, "ab") as file:
        agent = subprocess.Popen([sys.executable, "-c", MAIN, str(path)], stderr=file)
    try:
        for statement in [*SETUP, *(statement for statement, _ in STATEMENTS)]:
            if "MATERIALIZED" not in statement:
                session.execute(statement if release >= "5" else before_vectors(statement), timeout=60)
        tables = {table.name: table for table in read_tables(session, "g").values() if table.cdc}
        wanted = Counter(
            (e.table, e.scope, golden.expected_key(tables[e.table], e.key), e.time, e.expires, e.parts, e.start, e.end)
            for _, expected in STATEMENTS
            for e in expected
        )
        admin = AdminClient({"bootstrap.servers": kafka})
        changes_by_table: dict[str, list[tuple[bytes, change.Change]]] = {}

        def emitted() -> Counter[tuple[Any, ...]]:
            assert agent.poll() is None, out.read_text()
            topics = admin.list_topics(timeout=60).topics
            for name in tables:
                if (topic := f"{prefix}g.{name}") in topics:
                    changes_by_table[name] = [(m.key(), wire.decode(m.value())) for m in messages(kafka, topic)]
            return Counter(
                seen(name, key, event) for name, changes in changes_by_table.items() for key, event in changes
            )

        eventually(lambda: emitted() >= wanted, lambda: f"{wanted - emitted()} is emitted\n{out.read_text()}")
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    finally:
        agent.kill()
        agent.wait()
    assert (
        Counter(seen(name, key, event) for name, changes in changes_by_table.items() for key, event in changes)
        == wanted
    )
    changes = [event for changes in changes_by_table.values() for _, event in changes]
    assert {event.node for event in changes} == {str(local.host_id)}
    # One digest for all that one mutation did, and no other's; every part once.
    mutations: dict[tuple[int, int], list[change.Change]] = defaultdict(list)
    for event in changes:
        mutations[event.segment, event.position].append(event)
    for parts in mutations.values():
        assert len({event.digest for event in parts}) == 1
        assert sorted(event.part for event in parts) == list(range(parts[0].parts))
    digests = {parts[0].digest for parts in mutations.values()}
    assert len(digests) == len(mutations)
    assert all(re.fullmatch("[0-9a-f]{32}", digest or "") for digest in digests)
    # What a partition's batch did to one table, in its order: from above, then from left to right.
    (batch,) = (parts for parts in mutations.values() if parts[0].parts == 5)
    scopes = [event.scope.name for event in sorted(batch, key=lambda event: event.part)]
    assert scopes == ["PARTITION", "STATIC", "ROW", "RANGE", "ROW"]


def seen(table: str, key: bytes, event: change.Change) -> tuple[Any, ...]:
    """The change that a statement makes: with a time only where the statement gave one."""
    time = event.write_time if event.write_time is not None and event.write_time < T + 10**9 else None
    expires = event.expires_at is not None
    return table, event.scope.name, key, time, expires, event.parts, event.start, event.end


def test_a_table_that_is_altered_and_dropped_while_no_agent_runs(
    kafka: str, cassandra: tuple[Status, str], session: Any, tmp_path: Path
) -> None:
    """The log says which columns it got."""
    status, release = cassandra
    topic = f"events-dropped-{release}-d.gone"
    keys = {
        **status.cassandra(),
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "kafka.bootstrap.servers": kafka,
        "state.dir": str(tmp_path / "state"),
        "topic.prefix": f"events-dropped-{release}-",
        "topic.partitions": "1",
        "table.include.list": r"d\\.gone",
    }
    path, out = tmp_path / "agent.properties", tmp_path / "agent.out"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    admin = AdminClient({"bootstrap.servers": kafka})

    def event_keys() -> list[bytes | None]:
        has_topic = topic in admin.list_topics(timeout=60).topics
        return [message.key() for message in messages(kafka, topic)] if has_topic else []

    def run_until(expected: list[int | None]) -> None:
        wanted = [None if n is None else long_bytes(n) for n in expected]  # an Avro int is its long
        with open(out, "ab") as file:
            agent = subprocess.Popen([sys.executable, "-c", MAIN, str(path)], stderr=file)
        try:
            eventually(lambda: event_keys() == wanted, lambda: f"{event_keys()}\n{out.read_text()}")
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            agent.kill()
            agent.wait()

    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS d WITH replication = {replication}")
    session.execute("CREATE TABLE d.gone (a int PRIMARY KEY, v text) WITH cdc = true", timeout=60)
    session.execute("INSERT INTO d.gone (a, v) VALUES (1, 'x')")
    run_until([1])
    session.execute("ALTER TABLE d.gone ADD w map<text, int>", timeout=60)
    session.execute("INSERT INTO d.gone (a, v, w) VALUES (2, 'x', {'k': 1})")
    session.execute("DROP TABLE d.gone", timeout=60)
    run_until([1, 2, None])
    assert "segment.corrupt" not in out.read_text()
