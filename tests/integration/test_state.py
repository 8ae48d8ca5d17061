"""State: a sink that knows nothing of markers, and of TTLs, has the table's rows all the same."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from bench.processes import contents, family
from cassandra.concurrent import execute_concurrent_with_args
from integration.pipeline import Lasting, Pipeline
from patience import eventually

from helenus_stack.settings import LogName

pytestmark = pytest.mark.integration

TABLES = {"state.rows": {}, "state.unmarked": {"markers": "false"}}
KEY = ("p", "c", "d")
OF_DRIVER = ("before-job", "before-commit")
"""Points at which a kill ends the worker. At others it ends a task, which Spark does again."""
COLUMNS = ("v", "n")
Rows = dict[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(scope="module")
def pipeline(log: LogName, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    strategy = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS state WITH replication = {strategy}")
    for table in TABLES:
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (p int, c int, d text, v text, n int, m map<text, int>,"
            " PRIMARY KEY (p, c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"
        )
        session.execute(f"TRUNCATE {table}")
    with lasting(log).connected({table: {"state": "keys", **more} for table, more in TABLES.items()}) as pipeline:
        yield pipeline


def of_a_naive_sink(pipeline: Pipeline, table: str, columns: Sequence[str] = COLUMNS) -> Rows:
    """Upserts values and deletes by nulls; what has no whole key is nothing to it."""
    rows: Rows = {}
    for record in pipeline.records(table):
        if not isinstance(record.key, dict) or any(record.key.get(name) is None for name in KEY):
            continue
        key = tuple(record.key[name] for name in KEY)
        if record.value is None:
            rows.pop(key, None)
        else:
            rows[key] = {name: record.value[name] for name in columns}
    return rows


def of_cassandra(session: Any, table: str, columns: Sequence[str] = COLUMNS) -> Rows:
    # All columns: asked for some, Cassandra passes over cells older than the row itself, also if that has expired.
    rows = session.execute(f"SELECT * FROM {table}")
    # Static columns alone are a row without clustering columns.
    return {(row.p, row.c, row.d): {name: getattr(row, name) for name in columns} for row in rows if row.c is not None}


def agrees(pipeline: Pipeline, session: Any, table: str, columns: Sequence[str] = COLUMNS) -> None:
    """Wait until the sink has what the table has."""
    sink, wanted = Rows(), Rows()

    def equal() -> bool:
        nonlocal sink, wanted
        sink, wanted = of_a_naive_sink(pipeline, table, columns), of_cassandra(session, table, columns)
        return sink == wanted

    def differ() -> str:
        keys = sorted(key for key in {*sink, *wanted} if sink.get(key) != wanted.get(key))
        examples = [(key, sink.get(key), wanted.get(key)) for key in keys[:5]]
        first = [r for r in pipeline.records(table) if r.key and keys and tuple(map(r.key.get, KEY)) == keys[0]]
        last = "\n".join(map(str, first[-8:]))
        return f"{table}: {len(keys)} keys differ, as key, sink, table: {examples}\n{last}\n{pipeline.connector.tail()}"

    eventually(equal, differ)


def write(session: Any, table: str, statements: int, seed: int) -> None:
    """Random statements of every kind."""
    r = random.Random(seed)
    for _ in range(statements):
        p, c, d = r.randrange(4), r.randrange(6), r.choice("ab")
        ttl = f" USING TTL {r.randint(1, 4)}" if r.random() < 0.3 else ""
        key = f"p = {p} AND c = {c} AND d = '{d}'"
        match r.choices(["insert", "update", "cell", "row", "partition", "range"], [50, 20, 8, 8, 5, 9])[0]:
            case "insert":
                session.execute(f"INSERT INTO {table} (p, c, d, v, n) VALUES ({p}, {c}, '{d}', 'v{_}', {_}){ttl}")
            case "update":
                session.execute(f"UPDATE {table}{ttl} SET v = 'u{_}' WHERE {key}")
            case "cell":
                session.execute(f"DELETE v FROM {table} WHERE {key}")
            case "row":
                session.execute(f"DELETE FROM {table} WHERE {key}")
            case "partition":
                session.execute(f"DELETE FROM {table} WHERE p = {p}")
            case "range":
                where = r.choice([f"c > {c}", f"c <= {c}", f"c = {c}", f"c = {c} AND d >= 'b'"])
                session.execute(f"DELETE FROM {table} WHERE p = {p} AND {where}")


# A sink of the other kind is in test_jdbc_sink.
@pytest.mark.parametrize("table", ["state.rows", pytest.param("state.unmarked", marks=pytest.mark.long)])
def test_deletes_of_more_than_a_row_and_ttls_reach_a_naive_sink(pipeline: Pipeline, session: Any, table: str) -> None:
    for seed in range(2):
        write(session, table, 120, seed)
        agrees(pipeline, session, table)
    assert of_cassandra(session, table)
    session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (9, 9, 'z', 'short') USING TTL 3")
    agrees(pipeline, session, table)
    session.execute(f"INSERT INTO {table} (p, c, d) VALUES (9, 8, 'z') USING TTL 20")
    eventually(lambda: (9, 8, "z") in of_a_naive_sink(pipeline, table), pipeline.connector.tail)
    session.execute(f"UPDATE {table} USING TTL 2 SET v = 'shorter' WHERE p = 9 AND c = 8 AND d = 'z'")
    eventually(lambda: (9, 8, "z") not in of_cassandra(session, table), "it ends")
    agrees(pipeline, session, table)
    session.execute(f"TRUNCATE {table}")
    session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (1, 1, 'a', 'after')")
    agrees(pipeline, session, table)
    assert list(of_a_naive_sink(pipeline, table)) == [(1, 1, "a")]
    scopes = {record.headers.get("scope") for record in pipeline.records(table)}
    assert scopes == ({None} if TABLES[table] else {None, b"table", b"partition", b"range"})
    origins = {record.headers.get("origin") for record in pipeline.records(table)}
    assert b"state" in origins


@pytest.mark.long  # it starts the worker again, which takes a minute on a busy machine
def test_what_expires_while_nothing_runs_is_found_at_the_start(pipeline: Pipeline, session: Any) -> None:
    table = "state.rows"
    for c in range(5):
        session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (2, {c}, 'a', 'x') USING TTL {2 + c}")
    session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (3, 1, 'a', 'stays')")
    begun = time.monotonic()
    agrees(pipeline, session, table)
    # They are to be published before they expire, on a busy machine too.
    ttl_s = 8 + 2 * int(time.monotonic() - begun)
    for c in range(200):
        session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (3, {c}, 'b', 'x') USING TTL {ttl_s}")
    eventually(lambda: len(of_a_naive_sink(pipeline, table)) > 200, "the rows are there")
    pipeline.connector.kill()
    session.execute(f"DELETE FROM {table} WHERE p = 3 AND c < 50")
    eventually(lambda: not list(session.execute(f"SELECT c FROM {table} WHERE p = 3 AND c = 100")), "they expired")
    pipeline.connector.start().ready()
    agrees(pipeline, session, table)


@pytest.mark.long  # likewise
@pytest.mark.parametrize("point", [*OF_DRIVER, "after-merge", "before-flush", "after-asked"])
def test_a_kill_between_the_steps_of_a_batch(pipeline: Pipeline, session: Any, point: str) -> None:
    """Of a task, which Spark does again, and of the driver, which is started again."""
    table, once = "state.rows", pipeline.directory / f"keys-{point}"
    pipeline.connector.stop()
    write(session, table, 60, 11)
    pipeline.connector.start(HELENUS_FAILPOINT=f"state.{point}@{once}")
    write(session, table, 60, 12)
    eventually(once.exists, lambda: f"{point} is reached\n{pipeline.connector.tail()}")
    if point in OF_DRIVER:
        assert pipeline.connector.dies() != 0
        pipeline.connector.start().ready()
    agrees(pipeline, session, table)


def goes_on_from_a_copy(
    pipeline: Pipeline, session: Any, table: str, written: Callable[[Any, str, int, int], None]
) -> None:
    """A checkpoint is put back as it was some batches ago: nothing is lost, and no row that lives is deleted."""
    checkpoint, copy = pipeline.directory / "checkpoint", pipeline.directory / "copy"
    former_records = {(r.partition, r.offset) for r in pipeline.records(table)}  # another test may have deleted rows
    for c in range(20):
        session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (5, {c}, 'a', 'stays')")
    written(session, table, 60, 31)
    agrees(pipeline, session, table)
    pipeline.connector.stop()
    shutil.copytree(checkpoint, copy)
    written(session, table, 60, 32)
    pipeline.connector.start().ready()
    session.execute(f"DELETE FROM {table} WHERE p = 1")
    agrees(pipeline, session, table)
    pipeline.connector.stop()
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    written(session, table, 60, 33)
    pipeline.connector.start().ready()
    agrees(pipeline, session, table)
    records = [r for r in pipeline.records(table) if (r.partition, r.offset) not in former_records]
    assert not [r for r in records if r.key and r.key.get("p") == 5 and r.value is None]


@pytest.mark.long  # it starts the worker again
def test_a_checkpoint_is_restored_from_a_copy(pipeline: Pipeline, session: Any) -> None:
    goes_on_from_a_copy(pipeline, session, "state.rows", write)


@pytest.mark.long  # many rows
@pytest.mark.timeout(900)
def test_a_hundred_thousand_rows_of_one_delete(
    pipeline: Pipeline, session: Any, record_property: Callable[[str, object], None]
) -> None:
    """The worker's memory is as it was, and the rows of others do not wait for them."""
    table, rows = "state.rows", 100_000

    def live() -> float:
        return pipeline.connector.total("helenus_connector_live_keys", connector="state-rows")

    insert = session.prepare(f"INSERT INTO {table} (p, c, d, v) VALUES (?, ?, 'a', 'x')")
    execute_concurrent_with_args(session, insert, [(10, c) for c in range(rows)], concurrency=50)
    eventually(lambda: live() >= rows, lambda: f"{live()} keys live\n{pipeline.connector.tail()}")
    before = peak = memory(pipeline)
    session.execute(f"DELETE FROM {table} WHERE p = 10")
    others: dict[int, float] = {}

    def is_done() -> bool:
        nonlocal peak
        others[len(others)] = time.time()
        session.execute(insert, (11, len(others) - 1))
        peak = max(peak, memory(pipeline))
        return live() < rows / 10

    eventually(is_done, lambda: f"{live()} keys live\n{pipeline.connector.tail()}")
    agrees(pipeline, session, table)
    records = pipeline.records(table)
    gone = [
        r.timestamp for r in records if r.key and r.key.get("p") == 10 and r.value is None and "scope" not in r.headers
    ]
    late = [r.timestamp / 1000 - others[r.key["c"]] for r in records if r.key and r.key.get("p") == 11]
    record_property("nulls and seconds", (len(gone), (max(gone) - min(gone)) / 1000))
    record_property("others and latest, s", (len(late), max(late)))
    record_property("MB before and at most", (before, peak))
    assert len(gone) >= rows
    assert max(late) < 20
    assert peak - before < 400


def memory(pipeline: Pipeline) -> int:
    """MB that the worker's processes have for themselves."""
    assert pipeline.connector.process is not None
    rolls = [contents(process, "smaps_rollup") for process in family(pipeline.connector.process.pid)]
    lines = [line for roll in rolls for line in roll.splitlines() if line.startswith(b"Private")]
    return sum(int(line.split()[1]) for line in lines) // 1024


@pytest.mark.long  # it starts the worker four times
def test_a_state_that_is_of_something_else_is_refused(pipeline: Pipeline) -> None:
    """What it is of is kept beside it; a part that is gone is no fresh start."""
    directory = pipeline.directory / "checkpoint" / "state" / "state-rows"
    file = directory / "about"
    pipeline.connector.stop()
    original = file.read_bytes()

    def refused(why: str) -> None:
        pipeline.connector.start()
        trace = f"delete {directory}"
        labels = {"connector": "state-rows", "state": "FAILED"}
        eventually(
            lambda: (
                pipeline.connector.health()[0] and pipeline.connector.total("helenus_connector_task_state", **labels)
            ),
            pipeline.connector.tail,
        )
        assert why in pipeline.connector.tail()
        assert trace in pipeline.connector.tail()
        pipeline.connector.stop()

    file.write_bytes(original.replace(b"state.rows", b"state.rose"))
    refused("this file is damaged")
    file.unlink()
    refused("is gone")
    file.write_bytes(original)
    (directory / "query" / "state").rename(directory / "elsewhere")
    refused("the state is gone")
    (directory / "elsewhere").rename(directory / "query" / "state")
    pipeline.connector.start().ready()
