"""Tables of one cluster, replicated into another one, are the same there: values, write times and TTLs."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.oracle.fold import select
from cassandra.cluster import Cluster
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.pipeline import Pipeline, script, write_properties
from integration.random_tables import RandomTable
from integration.workload import SCHEMA, Workload
from patience import PATIENCE_S, eventually

from helenus_schemas.cql.table import Table, read_tables
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
TYPES = """k int, c text, t text, a ascii, n bigint, sm smallint, ti tinyint, b boolean, f float, d double, de decimal,
    vi varint, at timestamp, da date, tm time, u uuid, tu timeuuid, i inet, bl blob, du duration, ud place,
    fu frozen<place>, l list<int>, fl frozen<list<int>>, s set<text>, m map<text, int>, fm frozen<map<int, text>>,
    lp list<frozen<place>>, tp tuple<int, text>, ve vector<float, 3>, nested map<int, frozen<list<frozen<place>>>>,
    st set<int> static, sl list<text> static, sv text static, PRIMARY KEY (k, c)"""
VALUES = """'ünï', 'ascii', 5000000000, -3, 7, true, 0.5, -1e300, -1.50, 123456789012345678901234567890,
    '1969-12-31 23:59:59.123', '0001-01-01', '12:30:15.123456789', 8f9e0b4c-5a3d-4b5e-9c1d-000000000001,
    50554d6e-29bb-11e5-b345-feff819cdc9f, '::1', 0x00ff, 1mo2d3ns, {street: 'Elm', no: 5}, {street: null, no: 1},
    [1, 2, 2], [3], {'x', 'y'}, {'one': 1}, {1: 'i'}, [{street: 'z', no: 1}], (7, null), [1.5, -2, 0.25],
    {1: [{street: 'n', no: 2}]}, {1, 2}, ['p', 'q'], 'static'"""
NAMES = """k, c, t, a, n, sm, ti, b, f, d, de, vi, at, da, tm, u, tu, i, bl, du, ud, fu, l, fl, s, m, fm, lp, tp, ve,
    nested, st, sl, sv"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Status]:
    """A cluster of its own."""
    with Stack(tmp_path_factory.mktemp("target"), only=["cassandra"], heap="512M") as stack:
        yield stack.status()


@pytest.fixture(scope="module")
def there(target: Status) -> Iterator[Any]:
    cluster = Cluster(target.contact_points, port=target.cql_port)
    yield cluster.connect()
    cluster.shutdown()


@pytest.fixture(scope="module")
def agent(status: Status, directory: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(status.only("kafka"), directory)
    more = {"cells.include.list": r"copied\.(?!light$).*", "table.include.list": r"copied\..*"}
    write_properties(directory / "agent.properties", {**pipeline.agent_properties(pipeline.agent.port), **more})
    pipeline.agent.start().ready()
    yield pipeline
    pipeline.stop()


@pytest.fixture(scope="module", autouse=True)
def keyspaces(session: Any, there: Any) -> None:
    for side in (session, there):
        side.execute("CREATE KEYSPACE copied WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        side.execute(SCHEMA[0].format(ks="copied"))


class Replication:
    """Runs the two commands for tables, in a directory."""

    def __init__(self, source: Status, target: Status, directory: Path, *tables: str, **more: object) -> None:
        self.directory, self.tables = directory, tables
        properties = {
            "bootstrap.servers": source.bootstrap_servers,
            "keyspace": "copied",
            "table": ",".join(tables),
            "group.id": f"copy-{tables[0]}",
            "consumer.session.timeout.ms": 6000,  # after a kill
            "cassandra.contact.points": ",".join(source.contact_points),
            "cassandra.port": source.cql_port,
            "target.cassandra.contact.points": ",".join(target.contact_points),
            "target.cassandra.port": target.cql_port,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        self.file = write_properties(directory / f"{tables[0]}.replicate.properties", properties)
        self.log = directory / f"{tables[0]}.replicate.log"

    def start(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [script("helenus-connector"), "replicate", str(self.file), *options]
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})

    def run(self, *options: str) -> None:
        """Replicate to the topics' end."""
        assert self.start("--once", *options).wait(PATIENCE_S) == 0, self.tail()

    def compare(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [script("helenus-connector"), "compare", str(self.file), "--patience", "3", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def tail(self) -> str:
        return "\n".join(self.log.read_text().splitlines()[-40:])


def create(session: Any, there: Any, table: str, columns: str, options: str = "") -> None:
    session.execute(f"CREATE TABLE copied.{table} ({columns}) WITH {options}cdc = true")
    there.execute(
        f"CREATE TABLE copied.{table} ({columns}){' WITH ' + options.removesuffix(' AND ') if options else ''}"
    )


def is_sent(agent: Pipeline, session: Any, table: str, key: str) -> None:
    """Wait until the agent has sent all that was written: a mark that is written last is on the topic."""
    session.execute(f"INSERT INTO copied.marks (k) VALUES ('{table}-{key}')")

    def is_there() -> bool:
        messages = agent.reader.messages("events-copied.marks")
        return any(f"{table}-{key}".encode() in (message.key() or b"") for message in messages)

    eventually(is_there, agent.agent.tail)


@pytest.fixture(scope="module", autouse=True)
def marks(session: Any, keyspaces: None) -> None:
    session.execute("CREATE TABLE copied.marks (k text PRIMARY KEY) WITH cdc = true")


def table_of(session: Any, name: str) -> Table:
    return next(t for t in read_tables(session, "copied").values() if t.name == name)


def rows_of(session: Any, name: str) -> dict[Any, Any]:
    """All rows with the write times and TTLs that a SELECT shows, but write times of elements of lists."""
    table = table_of(session, name)
    lists = {c.name for c in table.values if c.type.multicell and c.type.name == "list"}
    rows = {}
    for key, columns in select(session, table).rows.items():
        rows[key] = {
            column: sorted((value, None if column in lists else written, ttl) for value, written, ttl in cells)
            for column, cells in columns.items()
        }
    return rows


def nearly(rows: dict[Any, Any]) -> dict[Any, Any]:
    """Rows to compare others with, which were read seconds earlier or later: a TTL of a minute more or less equals."""
    return {
        key: {
            column: [(value, written, ttl and pytest.approx(ttl, abs=60)) for value, written, ttl in cells]
            for column, cells in columns.items()
        }
        for key, columns in rows.items()
    }


def are_equal(session: Any, there: Any, replication: Replication) -> None:
    """By this test's own reads, and by `compare`."""
    answer = replication.compare()
    assert answer.returncode == 0, f"seed {SEED}\n{answer.stdout}{answer.stderr}\n{replication.tail()}"
    for name in replication.tables:
        assert rows_of(session, name) == nearly(rows_of(there, name)), f"seed {SEED}, {name}"


def test_each_type_and_each_kind_of_delete(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    create(session, there, "types", TYPES)
    for k in range(6):
        for c in "abcde":
            ttl = f" USING TTL {90_000 + k}" if c == "b" else ""
            session.execute(f"INSERT INTO copied.types ({NAMES}) VALUES ({k}, '{c}', {VALUES}){ttl}")
    t = "copied.types"
    for statement in (
        f"UPDATE {t} USING TTL 80000 SET m['two'] = 2, s = s + {{'z'}}, ud.no = 9 WHERE k = 0 AND c = 'a'",
        f"UPDATE {t} SET m['one'] = null, ud.street = null, l = l + [3], t = null WHERE k = 0 AND c = 'a'",
        f"UPDATE {t} SET l = [0] + l, st = st - {{1}}, sl = sl + ['r'] WHERE k = 0 AND c = 'c'",
        f"DELETE l[0], s['x'], fl, fu FROM {t} WHERE k = 0 AND c = 'd'",
        f"UPDATE {t} USING TTL 70000 SET l[1] = 8, lp = [{{street: 'n', no: 3}}] WHERE k = 0 AND c = 'e'",
        f"DELETE sv, st FROM {t} WHERE k = 1",
        f"DELETE FROM {t} WHERE k = 2",
        f"DELETE FROM {t} WHERE k = 3 AND c > 'a' AND c <= 'c'",
        f"DELETE FROM {t} WHERE k = 4 AND c = 'a'",
        f"UPDATE {t} SET v = 1 WHERE k = 5 AND c = 'only'".replace("v = 1", "n = 1"),
        f"INSERT INTO {t} (k, c) VALUES (5, 'bare')",
        f"INSERT INTO {t} (k, c, t) VALUES (5, 'gone', 'x') USING TTL 1",
        f"INSERT INTO {t} (k, c, t) VALUES (5, 'old', 'x') USING TIMESTAMP 5",
        f"INSERT INTO {t} (k, sv) VALUES (7, 'alone')",
        f"INSERT INTO {t} (k, c, b) VALUES (8, '', true)",
    ):
        session.execute(statement)
    is_sent(agent, session, "types", "1")
    replication = Replication(status, target, tmp_path, "types")
    replication.run()
    are_equal(session, there, replication)
    assert len(rows_of(there, "types")) == len(list(session.execute(f"SELECT k FROM {t}"))) > 20

    there.execute(f"UPDATE {t} SET t = 'changed' WHERE k = 0 AND c = 'b'")
    there.execute(f"DELETE FROM {t} WHERE k = 1 AND c = 'a'")
    there.execute(f"INSERT INTO {t} (k, c) VALUES (99, 'ghost')")
    answer = replication.compare()
    assert answer.returncode == 3
    assert "3 differences" in answer.stdout
    assert 'missing {"k":1,"c":"a"}' in answer.stdout.replace(' "', '"').replace(": ", ":").replace("types:", "")
    replication.compare("--repair")
    # A write that is newer than the source's stays newer: what was changed and deleted there has later times.
    assert "99" not in replication.compare().stdout


@pytest.mark.long
def test_random_statements_while_it_is_killed(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    session.execute(SCHEMA[1].format(ks="copied", table="rows"))
    there.execute(SCHEMA[1].format(ks="copied", table="rows"))
    there.execute("ALTER TABLE copied.rows WITH cdc = false")
    chance = random.Random(SEED)
    workload = Workload(session, "copied.rows", SEED)
    workload.run(100)
    replication = Replication(status, target, tmp_path, "rows")
    kills = 0
    with workload:
        for n in range(5):
            process = replication.start(HELENUS_FAILPOINT=f"replicate.before-commit:{chance.randrange(1, 4)}")
            if n == 2:
                session.execute("ALTER TABLE copied.rows ADD later map<int, text>")
                there.execute("ALTER TABLE copied.rows ADD later map<int, text>")
                for c in range(5):
                    session.execute(
                        "UPDATE copied.rows USING TTL 90000 SET later = {1: 'x'} WHERE p = 1 AND q = 'a' AND "
                        f"c = {c} AND d = 50554d6e-29bb-11e5-b345-feff819cdc9f"
                    )
            if n == 3:
                session.execute("TRUNCATE copied.rows")
            try:
                kills += process.wait(chance.uniform(8, 14)) == -9
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    is_sent(agent, session, "rows", "1")
    replication.run()
    log = replication.log.read_text()
    assert "replicate.truncated" in log
    assert kills, "it was killed after a write"
    are_equal(session, there, replication)


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_random_tables(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path, number: int
) -> None:
    table = RandomTable("copied", f"random{number}", random.Random(SEED + number))
    session.execute(table.create())
    there.execute(table.create().replace("cdc = true", "cdc = false"))
    table.run(session, 300)
    is_sent(agent, session, table.name, "1")
    replication = Replication(status, target, tmp_path, table.name)
    replication.run()
    are_equal(session, there, replication)
    table.run(session, 100)
    is_sent(agent, session, table.name, "2")
    replication.run()
    are_equal(session, there, replication)


def test_rows_of_before_are_copied_while_changes_come(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    columns = "k int, c int, v text, m map<int, text>, l list<int>, s text static, PRIMARY KEY (k, c)"
    session.execute(f"CREATE TABLE copied.before ({columns})")
    there.execute(f"CREATE TABLE copied.before ({columns})")
    t = "copied.before"
    for k in range(60):
        session.execute(f"INSERT INTO {t} (k, c, v, m, l, s) VALUES ({k}, 1, 'v', {{1: 'a'}}, [1, {k}], 's')")
        session.execute(f"INSERT INTO {t} (k, c, v) VALUES ({k}, 2, 'w') USING TTL {100_000 + k}")
        session.execute(f"UPDATE {t} USING TIMESTAMP {1_000_000 + k} SET v = 'old' WHERE k = {k} AND c = 3")
        session.execute(f"INSERT INTO {t} (k, c) VALUES ({k}, 4)")
    session.execute(f"ALTER TABLE {t} WITH cdc = true")
    session.execute(f"UPDATE {t} SET v = 'changed' WHERE k = 0 AND c = 1")
    session.execute(f"DELETE FROM {t} WHERE k = 1")
    is_sent(agent, session, "before", "1")
    replication = Replication(status, target, tmp_path, "before")
    file = tmp_path / "snapshot"
    assert replication.start("--once", "--snapshot", str(file), HELENUS_FAILPOINT="replicate.snapshot:1").wait() != 0
    replication.run("--snapshot", str(file))
    are_equal(session, there, replication)
    assert len(rows_of(there, "before")) == 59 * 4


@pytest.mark.long
def test_events_that_are_gone_are_an_error_until_rows_are_copied_anew(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    create(session, there, "gone", "k int PRIMARY KEY, v text")
    session.execute("INSERT INTO copied.gone (k, v) VALUES (1, 'a')")
    is_sent(agent, session, "gone", "1")
    replication = Replication(status, target, tmp_path, "gone")
    file = tmp_path / "snapshot"
    replication.run("--snapshot", str(file))
    for k in range(40):  # some in each partition
        session.execute(f"INSERT INTO copied.gone (k, v) VALUES ({k}, 'b')")
    is_sent(agent, session, "gone", "2")
    admin = AdminClient({"bootstrap.servers": status.bootstrap_servers})
    numbers = admin.list_topics("events-copied.gone", timeout=30).topics["events-copied.gone"].partitions
    places = [TopicPartition("events-copied.gone", number, OFFSET_END) for number in numbers]
    for future in admin.delete_records(places).values():
        future.result()
    # A file of a snapshot that has ended copies no rows: what was removed is lost, however often it is tried.
    for options in (("--snapshot", str(file)), ("--snapshot", str(file)), ()):
        assert replication.start("--once", *options).wait(PATIENCE_S) == 1
        assert "were removed before they were read" in replication.tail().splitlines()[-1]
    replication.run("--snapshot", str(tmp_path / "new"))
    are_equal(session, there, replication)


@pytest.mark.long  # the tests above copy each type, and each delete
def test_changes_without_cells_are_read(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    create(
        session, there, "light", "k int, c int, v int, m map<int, text>, l list<int>, s int static, PRIMARY KEY (k, c)"
    )
    t = "copied.light"
    for k in range(4):
        for c in range(4):
            session.execute(f"INSERT INTO {t} (k, c, v, m, l, s) VALUES ({k}, {c}, {c}, {{1: 'a', 2: 'b'}}, [1], 5)")
    replication = Replication(status, target, tmp_path, "light")
    is_sent(agent, session, "light", "1")
    replication.run()
    are_equal(session, there, replication)
    session.execute(f"UPDATE {t} SET v = null, m = m - {{1}}, l = l + [2] WHERE k = 0 AND c = 0")
    session.execute(f"DELETE FROM {t} WHERE k = 0 AND c = 1")
    session.execute(f"DELETE FROM {t} WHERE k = 1 AND c > 1")
    session.execute(f"DELETE FROM {t} WHERE k = 2")
    session.execute(f"DELETE s FROM {t} WHERE k = 3")
    is_sent(agent, session, "light", "2")
    replication.run()
    assert "replicate.without_cells" in replication.log.read_text()
    are_equal(session, there, replication)


@pytest.mark.long  # the tests above copy each type, and each delete
def test_rows_with_old_write_times_come_back_after_a_truncation(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    columns = "k int, c int, v int, m map<int, int>, l list<int>, s int static, sl list<int> static, PRIMARY KEY (k, c)"
    create(session, there, "reloaded", columns)
    t = "copied.reloaded"
    for k in range(4):
        session.execute(f"INSERT INTO {t} (k, c, v, m, l, s, sl) VALUES ({k}, 1, 1, {{1: 1}}, [1], 1, [1])")
        session.execute(f"INSERT INTO {t} (k, c) VALUES ({k}, 2)")
    is_sent(agent, session, "reloaded", "1")
    replication = Replication(status, target, tmp_path, "reloaded")
    replication.run()
    are_equal(session, there, replication)
    session.execute(f"TRUNCATE {t}")
    for k in range(3):
        values = f"({k}, 1, 2, {{2: 2}}, [2], 2, [2]) USING TIMESTAMP 5"
        session.execute(f"INSERT INTO {t} (k, c, v, m, l, s, sl) VALUES {values}")
        session.execute(f"INSERT INTO {t} (k, c) VALUES ({k}, 2) USING TIMESTAMP 5")
    is_sent(agent, session, "reloaded", "2")
    replication.run()
    session.execute(f"DELETE FROM {t} USING TIMESTAMP 6 WHERE k = 2 AND c = 1")
    session.execute(f"UPDATE {t} USING TIMESTAMP 6 SET v = 0 WHERE k = 1 AND c = 1")
    is_sent(agent, session, "reloaded", "3")
    replication.run()
    shown = [sorted(side.execute(f"SELECT k, c, v, m, l, s, sl FROM {t}")) for side in (session, there)]
    assert shown[0] == shown[1], replication.tail()
    assert len(shown[0]) == 5


@pytest.mark.long  # the tests above copy each type, and each delete
def test_a_new_column_waits_for_the_target(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    create(session, there, "grows", "k int PRIMARY KEY, v place")
    t = "copied.grows"
    session.execute(f"INSERT INTO {t} (k, v) VALUES (1, {{no: 1}})")
    is_sent(agent, session, "grows", "1")
    replication = Replication(status, target, tmp_path, "grows")
    process = replication.start()
    session.execute(f"ALTER TABLE {t} ADD later list<int>")
    session.execute(f"UPDATE {t} SET later = [1, 2] WHERE k = 1")
    eventually(lambda: f"ALTER TABLE {t} ADD later list<int>" in replication.log.read_text(), replication.tail)
    there.execute(f"ALTER TABLE {t} ADD later list<int>")
    eventually(lambda: list(there.execute(f"SELECT later FROM {t}")) == [([1, 2],)], replication.tail)
    session.execute(f"ALTER TABLE {t} DROP later")
    session.execute(f"UPDATE {t} SET v = {{no: 2}} WHERE k = 1")
    eventually(lambda: there.execute(f"SELECT v FROM {t}").one().v.no == 2, replication.tail)
    process.terminate()
    assert process.wait(60) == 0, replication.tail()
    there.execute(f"ALTER TABLE {t} DROP later")
    are_equal(session, there, replication)


@pytest.mark.long
def test_two_processes_share_the_work(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    session.execute(SCHEMA[1].format(ks="copied", table="shared"))
    there.execute(SCHEMA[1].format(ks="copied", table="shared").replace("cdc = true", "cdc = false"))
    workload = Workload(session, "copied.shared", SEED)
    workload.run(1)
    is_sent(agent, session, "shared", "0")
    replication = Replication(status, target, tmp_path, "shared")
    with workload:
        processes = [replication.start() for _ in range(2)]
        time.sleep(15)
    is_sent(agent, session, "shared", "1")
    time.sleep(5)
    for process in processes:
        process.terminate()
        assert process.wait(60) == 0, replication.tail()
    replication.run()
    are_equal(session, there, replication)


@pytest.mark.long  # each is a process; test_replicate_secure.py has some
def test_mistakes_have_one_line(
    agent: Pipeline, status: Status, target: Status, session: Any, there: Any, tmp_path: Path
) -> None:
    def refusal(name: str, **more: object) -> str:
        replication = Replication(status, target, tmp_path, name, **more)
        replication.log.unlink(missing_ok=True)
        assert replication.start("--once").wait(PATIENCE_S) in (1, 2)
        text = replication.log.read_text()
        assert "Traceback" not in text
        return text.splitlines()[-1]

    session.execute("CREATE TABLE copied.wrong (k int PRIMARY KEY, v int, w int) WITH cdc = true")
    session.execute("INSERT INTO copied.wrong (k, v, w) VALUES (1, 1, 1)")
    is_sent(agent, session, "wrong", "1")
    assert "there is no such table (target copied.wrong): create it" in refusal("wrong")
    there.execute("CREATE TABLE copied.wrong (k int PRIMARY KEY, v text) WITH cdc = true")
    assert "CDC enabled" in refusal("wrong")
    assert "column v is int in the source and text in the target" in refusal("wrong", target_cdc="allow")
    there.execute("DROP TABLE copied.wrong")
    there.execute("CREATE TABLE copied.wrong (k int PRIMARY KEY, v int)")
    assert "no column w (target copied.wrong): ALTER TABLE copied.wrong ADD w int" in refusal("wrong")
    there.execute("ALTER TABLE copied.wrong ADD w int")
    Replication(status, target, tmp_path, "wrong").run()
    assert [tuple(row) for row in there.execute("SELECT k, v, w FROM copied.wrong")] == [(1, 1, 1)]

    assert "target" in (line := refusal("wrong", target_cassandra_port=1)), line
    assert "cassandra-unreachable" in line
    assert "broker-unreachable" in refusal("wrong", bootstrap_servers="127.0.0.1:1")
    for side in (session, there):
        side.execute("CREATE TABLE copied.counted (k int PRIMARY KEY, n counter)")
    assert "counters can't be replicated" in refusal("counted")
    assert "same keyspace of the same cluster" in refusal(
        "wrong", target_cassandra_contact_points=",".join(status.contact_points), target_cassandra_port=status.cql_port
    )
