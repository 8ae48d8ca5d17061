"""Statements about data sinks and data sources on a real Cassandra with roles: who may do what, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from patience import eventually

from helenus_agent.cli import main
from helenus_agent.control._source_store import SourceStore, StoredSource
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.secure import AGENT, CASSANDRA_ADMIN, STRANGER
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Sql = Callable[..., tuple[int, str]]
SINK = "CREATE DATA_SINK lake WITH 'kafka://k1:9092,k2:9092?linger.ms=5&output.format=json'"
SOURCE = "CREATE DATA_SOURCE cdc ON TABLE stated.t WITH lake"


@pytest.fixture(scope="module")
def status(secure: Stack) -> Status:
    return secure.status()


@pytest.fixture(scope="module")
def session(status: Status) -> Iterator[Any]:
    session = connect(CassandraSettings.from_properties(status.cassandra(), "status"))
    replication = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE stated {replication}")
    session.execute("CREATE TABLE stated.t (a int PRIMARY KEY, v text)")
    session.execute('CREATE TABLE stated."Other" (a int PRIMARY KEY, v text) WITH cdc = true')
    yield session
    for keyspace in ("stated", "statements"):
        session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
    session.cluster.shutdown()


@pytest.fixture
def sql(status: Status, tmp_path: Path) -> Sql:
    """Execute statements as a role; returns exit status and output."""
    security = status.security
    assert security
    keys = {
        "config.store": "cassandra",
        "config.store.keyspace": "statements",
        "config.store.replication": "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}",
        "cassandra.contact.points": status.nodes[0].address,
        "cassandra.port": str(status.cql_port),
        "cassandra.ssl.enabled": "true",
        "cassandra.ssl.cafile": security.cafile,
        "cassandra.username": AGENT,
        "cassandra.password": f"${{file:{security.passwords}:{AGENT}}}",
        "state.dir": str(tmp_path / "state"),
    }
    path = tmp_path / "agent.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))

    def execute(*statements: str, role: str = CASSANDRA_ADMIN, piped: str | None = None) -> tuple[int, str]:
        login = ["-u", role, "--password", f"${{file:{security.passwords}:{role}}}"]
        options = [argument for statement in statements for argument in ("-e", statement)]
        result = CliRunner().invoke(main, ["sql", str(path), *login, *options], input=piped)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert max(map(len, result.output.splitlines()), default=0) <= 80 or "[cassandra-auth]" in result.output
        return result.exit_code, result.output

    return execute


def cdc(session: Any, table: str) -> bool:
    query = "SELECT cdc FROM system_schema.tables WHERE keyspace_name = 'stated' AND table_name = %s"
    return bool(session.execute(query, (table,)).one().cdc)


def configs(session: Any) -> dict[str, dict[str, str]]:
    return {row.service: dict(row.config) for row in session.execute("SELECT * FROM statements.configs")}


def test_who_may_do_what_and_what_is_left(sql: Sql, session: Any) -> None:
    # A role without rights makes nothing, and is told what another one has to execute.
    code, output = sql(SINK, role=STRANGER)
    assert (code, "CREATE KEYSPACE IF NOT EXISTS statements" in output) == (1, True), output
    # The administrator.
    assert sql(SINK) == (0, " what           | now\n----------------+---------\n data_sink lake | created\n")
    code, output = sql(SINK)
    assert (code, output.splitlines()[-1].strip()) == (1, "^" * 4), output
    assert "there is a data sink lake already" in output
    assert "there already" in sql(SINK.replace("SINK", "SINK IF NOT EXISTS"))[1]
    assert "another address: unchanged" in sql("CREATE DATA_SINK IF NOT EXISTS lake WITH 'kafka://k3'")[1]
    # A role that may not alter the table, though it may write to the control plane's keyspace.
    for statement in (
        "GRANT SELECT ON KEYSPACE statements TO stranger",
        "GRANT MODIFY ON KEYSPACE statements TO stranger",
    ):
        session.execute(statement)

    def refused() -> bool:
        code, output = sql(SOURCE, role=STRANGER)
        assert code == 1
        return "GRANT ALTER ON TABLE" in " ".join(output.split())

    eventually(refused)  # Cassandra keeps for a while what a role may do
    assert configs(session) == {}
    assert not cdc(session, "t")
    assert sql("DESCRIBE DATA_SOURCES") == (0, "(no data_sources)\n")
    session.execute("GRANT ALTER ON TABLE stated.t TO stranger")
    eventually(lambda: sql(SOURCE.replace("SOURCE", "SOURCE IF NOT EXISTS"), role=STRANGER)[0] == 0)
    assert cdc(session, "t")
    assert configs(session) == {
        "kafka": {"bootstrap.servers": "k1:9092,k2:9092", "linger.ms": "5"},
        "cdc": {"cdc_enabled": "true"},
    }
    # Repetition changes nothing.
    code, output = sql(SOURCE)
    assert (code, "has this data source already, with the sink lake" in " ".join(output.split())) == (1, True)
    assert sql(SOURCE.replace("SOURCE", "SOURCE IF NOT EXISTS"))[0] == 0
    code, output = sql("DESCRIBE DATA_SINKS; DESC DATA_SOURCES")
    assert "kafka://k1:9092,k2:9092?linger.ms=5&output.format=json" in output
    assert " cdc         | stated.t | lake      | cdc = true" in output
    # A second sink, of other brokers: an agent has one.
    assert sql("CREATE DATA_SINK other WITH 'kafka://k3:9092'")[0] == 0
    code, output = sql('CREATE DATA_SOURCE cdc ON TABLE stated."Other" WITH other')
    assert (code, "an agent has one message broker" in output) == (1, True), output
    assert sql('CREATE DATA_SOURCE cdc ON TABLE stated."Other" WITH lake')[0] == 0
    # What is interrupted between two steps goes on when it is repeated.
    key = "keyspace_name = 'stated' AND table_name = 't' AND service = 'cdc'"
    session.execute(f"UPDATE statements.data_sources SET sink = null WHERE {key}")
    assert sql(SOURCE)[0] == 0
    # DROP: the table that had cdc = true before keeps it.
    code, output = sql("DROP DATA_SINK lake")
    assert (code, "2 data sources have this sink" in output) == (1, True)
    assert "cdc = true stays" in sql('DROP DATA_SOURCE cdc ON TABLE stated."Other"')[1]
    assert "cdc = false" in sql("DROP DATA_SOURCE cdc ON TABLE stated.t", role=STRANGER)[1]
    assert (cdc(session, "t"), cdc(session, "Other")) == (False, True)
    code, output = sql("DROP DATA_SOURCE cdc ON TABLE stated.t")
    assert (code, "has no data source" in output) == (1, True)
    assert sql("DROP DATA_SOURCE IF EXISTS cdc ON TABLE stated.t; DROP DATA_SINK IF EXISTS none")[0] == 0
    assert sql("DROP DATA_SINK lake; DROP DATA_SINK other")[0] == 0
    # And the dropped source can be created again.
    assert sql(SINK, SOURCE)[0] == 0
    assert cdc(session, "t")
    assert sql("DROP DATA_SOURCE cdc ON TABLE stated.t; DROP DATA_SINK lake")[0] == 0


def test_a_sink_is_not_dropped_under_a_source_that_is_created(
    sql: Sql, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement has looked already when the other one writes: no order of the two leaves a source alone."""
    create, drop, deletes = SourceStore.create_source, SourceStore.drop_sink, list[bool]()
    assert sql(SINK)[0] == 0

    def create_late(self: SourceStore, source: StoredSource) -> bool:
        deletes.append(drop(self, "lake"))
        return create(self, source)

    monkeypatch.setattr(SourceStore, "create_source", create_late)
    code, output = sql(SOURCE)
    assert (code, "dropped this data sink just now" in " ".join(output.split()), deletes) == (1, True, [True]), output
    assert (cdc(session, "t"), sql("DESCRIBE DATA_SOURCES")[1]) == (False, "(no data_sources)\n")
    assert sql(SINK)[0] == 0

    def drop_late(self: SourceStore, name: str) -> bool:
        create(self, StoredSource("stated", "t", "cdc", name, False))
        return drop(self, name)

    monkeypatch.undo()
    monkeypatch.setattr(SourceStore, "drop_sink", drop_late)
    code, output = sql("DROP DATA_SINK lake")
    assert (code, "1 data sources have this sink" in output) == (1, True), output
    monkeypatch.undo()
    assert "output.format=json" in sql("DESCRIBE DATA_SINKS")[1]
    assert sql("DROP DATA_SOURCE cdc ON TABLE stated.t; DROP DATA_SINK lake")[0] == 0


WRONG = [
    ("CREATE DATA_SINK s WITH 'kafka://k?sasl.password=hunter22&linger.ms=x'", "a secret is not stored in clear"),
    ("CREATE DATA_SINK s WITH 'kafka://k?linger.mss=5'", "did you mean linger.ms?"),
    ("CREATE DATA_SINK s WITH 'kafka://k?ssl.ca.location=/etc/shadow'", "not among librdkafka's settings"),
    ("CREATE DATA_SINK s WITH 'kafka://k?linger.ms=soon'", "linger.ms"),
    ("CREATE DATA_SINK s WITH 'kafka://k?topic.prefix=x'", "it has its place in service cdc"),
    ("CREATE DATA_SINK s WITH 'kafka://k?bootstrap.servers=x:1'", "it has its place before the ?"),
    ("CREATE DATA_SINK s WITH 'kafka://k?state.dir=/'", "it concerns a single node"),
    ("CREATE DATA_SINK s WITH 'kafka://k?security.protocol=SASL_SSL&sasl.password=${env:HOME}'", "may not refer"),
    ("CREATE DATA_SOURCE cdc ON TABLE stated.none WITH lake", "there is no table stated.none"),
    ("CREATE DATA_SOURCE cdc ON TABLE stated.Other WITH lake", "there is no table stated.other"),
    ("CREATE DATA_SOURCE cdc ON TABLE system.local WITH lake", "are not published"),
    ("CREATE DATA_SOURCE cdc ON TABLE statements.configs WITH lake", "are not published"),
    ("CREATE DATA_SOURCE cdc ON TABLE stated.t WITH none", "there is no data sink none"),
    ("DROP DATA_SINK none", "there is no data sink none"),
    ("DROP DATA_SOURCE cdc ON TABLE stated.t", "has no data source"),
]


def test_every_mistake_points_at_its_word_and_changes_nothing(sql: Sql, session: Any) -> None:
    assert sql("HELP")[0] == 0
    before = None
    for statement, reason in WRONG:
        code, output = sql(piped=f"DESCRIBE DATA_SINKS;\n{statement};\nDROP DATA_SINK IF EXISTS never;")
        assert code == 1
        assert reason in " ".join(output.split()), output
        assert "standard input:2: " in output
        assert "^" in output.splitlines()[-1]
        assert "never" not in output
        assert "hunter22" not in output
        before = before or configs(session)
        assert configs(session) == before
    # A slip in the last statement: none before it is executed.
    code, output = sql("CREATE DATA_SINK early WITH 'kafka://k'", "DROP TABLE stated.t")
    assert (code, "nothing was executed" in " ".join(output.split())) == (1, True)
    assert "early" not in sql("DESCRIBE DATA_SINKS")[1]
