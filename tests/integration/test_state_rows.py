"""State of rows: merged from the events' cells, without a read, they are the table's rows, before and after."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from integration.pipeline import Lasting, Pipeline, script, write_properties
from integration.test_state import OF_DRIVER, agrees, goes_on_from_a_copy, of_a_naive_sink
from integration.test_verify import command as verify
from patience import eventually

from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.settings import LogName
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

TABLES = {
    "merged.rows": {"query.group": "rows"},
    "merged.envelopes": {"query.group": "envelopes", "output.format": "debezium", "markers": "false"},
    "merged.light": {"query.group": "light", "snapshot.mode": "initial"},
}
"""The events of the last one have no cells."""
COLUMNS = ("v", "n", "l")
STORES = "before-store-commit"
"""Where a batch without a job is published, and the state is that of before."""
OF_TASK = "after-merge", "before-flush", "after-flush"


@pytest.fixture(scope="module")
def pipeline(log: LogName, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    strategy = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS merged WITH replication = {strategy}")
    for table in TABLES:
        session.execute(f"DROP TABLE IF EXISTS {table}")
        session.execute(
            f"CREATE TABLE {table} (p int, c int, d text, v text, n int, m map<text, int>,"
            " l list<int>, st int static, sm map<text, int> static, PRIMARY KEY (p, c, d))"
            " WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"
        )
    session.execute("ALTER TABLE merged.light WITH cdc = false")
    for c in range(300):
        ttl = "USING TTL 100000" if c % 2 else ""
        columns = f"(p, c, d, v, m, l) VALUES (7, {c}, 'a', 'before', {{'k0': {c}}}, [1, {c}, 1])"
        session.execute(f"INSERT INTO merged.light {columns} {ttl}")
        if c % 3 == 0:
            session.execute(f"INSERT INTO merged.light (p, c, d) VALUES (8, {c}, 'key')")
    session.execute("ALTER TABLE merged.light WITH cdc = true")
    with lasting(log).connected({table: {"state": "rows", **more} for table, more in TABLES.items()}) as pipeline:
        yield pipeline


def write(session: Any, table: str, statements: int, seed: int) -> None:
    """Random statements of every kind, also late ones and such of the future, and at times that others have."""
    r = random.Random(seed)
    start = session.execute("SELECT toUnixTimestamp(now()) AS now FROM system.local").one().now * 1000
    for number in range(statements):
        p, c, d = r.randrange(4), r.randrange(6), r.choice("ab")
        timestamp = f"TIMESTAMP {start + r.randrange(-50, 50)}" if r.random() < 0.3 else ""
        ttl = f"TTL {r.randint(1, 4)}" if r.random() < 0.3 else ""
        using = " USING " + " AND ".join(filter(None, (timestamp, ttl))) if timestamp or ttl else ""
        deletes = f" USING {timestamp}" if timestamp else ""
        key = f"p = {p} AND c = {c} AND d = '{d}'"
        kinds = {"insert": 40, "update": 20, "map": 10, "list": 15, "key": 5}
        kinds |= {"cell": 8, "row": 8, "partition": 5, "range": 9, "static": 10}
        match r.choices([*kinds], [*kinds.values()])[0]:
            case "insert":
                columns = f"{table} (p, c, d, v, n) VALUES ({p}, {c}, '{d}', 'v{number}', {number})"
                session.execute(f"INSERT INTO {columns}{using}")
            case "update":
                session.execute(f"UPDATE {table}{using} SET v = 'u{number}' WHERE {key}")
            case "map":
                change = r.choice([f"m = m + {{'k{r.randrange(3)}': {number}}}", "m = {'all': 1}", "m['k1'] = null"])
                session.execute(f"UPDATE {table}{using} SET {change} WHERE {key}")
            case "list":
                change_list(r, session, f"{table}{using}", key, number)
            case "static":
                change = r.choice(
                    [f"st = {number}", "st = null", f"sm = {{'a': {number}}}", "sm['a'] = null", "sm = null"]
                )
                session.execute(f"UPDATE {table}{using} SET {change} WHERE p = {p}")
            case "key":
                session.execute(f"INSERT INTO {table} (p, c, d) VALUES ({p}, {c}, '{d}'){using}")
            case "cell":
                session.execute(f"DELETE v FROM {table}{deletes} WHERE {key}")
            case "row":
                session.execute(f"DELETE FROM {table}{deletes} WHERE {key}")
            case "partition":
                session.execute(f"DELETE FROM {table}{deletes} WHERE p = {p}")
            case "range":
                where = r.choice([f"c > {c}", f"c <= {c}", f"c = {c}", f"c = {c} AND d >= 'b'"])
                session.execute(f"DELETE FROM {table}{deletes} WHERE p = {p} AND {where}")


def change_list(r: random.Random, session: Any, table: str, key: str, number: int) -> None:
    """One change of a list, in one of all ways."""
    row = session.execute(f"SELECT l FROM {table.partition(' ')[0]} WHERE {key}").one()
    there = (row.l if row else None) or []
    changes = [f"l = l + [{number}, 1]", f"l = [{number}, 1] + l", f"l = [{number}, 2, {number}]", "l = l - [1]"]
    if there:
        index = r.randrange(len(there))
        changes += [f"l[{index}] = {number}", f"l[{index}] = null"]
    session.execute(f"UPDATE {table} SET {r.choice(changes)} WHERE {key}")


def statements_once_whole(pipeline: Pipeline, session: Any, table: str) -> float:
    """How many statements read a table's rows until one of which nothing is known is not read any more: its snapshot is
    complete, and each partition of the events topic has begun.
    """
    names, count = itertools.count(1_000), 0.0

    def total(metric: str) -> float:
        return pipeline.connector.total(f"helenus_connector_{metric}_total", connector=table.replace(".", "-"))

    def is_whole() -> bool:
        nonlocal count
        count, events = total("statements"), total("events_read")
        for p in range(10):
            session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES ({p}, {next(names)}, 'a', 'new')")
        agrees(pipeline, session, table)
        # A batch is counted after its records are there.
        eventually(lambda: total("events_read") >= events + 10, "the last batch is counted")
        return total("statements") == count

    eventually(is_whole, lambda: f"rows are still read\n{pipeline.connector.tail()}")
    return count


def test_rows_are_merged_without_a_read(pipeline: Pipeline, session: Any) -> None:
    table = "merged.rows"
    statements = statements_once_whole(pipeline, session, table)
    for seed in range(3):
        write(session, table, 80, seed)
        agrees(pipeline, session, table, COLUMNS)
        pipeline.converges(table)
    session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (9, 9, 'z', 'short') USING TTL 3")
    agrees(pipeline, session, table)
    assert pipeline.connector.total("helenus_connector_statements_total", connector="merged-rows") == statements
    assert pipeline.connector.total("helenus_connector_rows_kept", connector="merged-rows") > 0


@pytest.mark.long  # a minute of writes
def test_truncations_under_writes(pipeline: Pipeline, session: Any) -> None:
    """Cassandra keeps what is logged after one, whatever its write time; a reload may have times of long ago."""
    table, long_ago = "merged.rows", 1_000_000
    insert = session.prepare(f"INSERT INTO {table} (p, c, d, v) VALUES (?, ?, 'a', ?) USING TIMESTAMP ?")
    stop = threading.Event()

    def keep_writing() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            write_time = time.time_ns() // 1000 - (3_600_000_000 if number % 3 == 0 else 0)
            session.execute(insert, (number % 7, number % 400, f"v{number}", write_time))

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for _ in range(3):
            time.sleep(2)
            session.execute(f"TRUNCATE {table}")
    finally:
        time.sleep(2)
        stop.set()
        writer.join()
    agrees(pipeline, session, table)
    session.execute(f"TRUNCATE {table}")
    for c in range(20):
        session.execute(insert, (1, c, "reloaded", long_ago))
    session.execute(f"UPDATE {table} SET n = 5 WHERE p = 1 AND c = 1 AND d = 'a'")
    agrees(pipeline, session, table, COLUMNS)
    assert len(of_a_naive_sink(pipeline, table)) == 20
    status, out, error_output = verify(pipeline, table, "--patience", "5")
    assert status == 0, (out, error_output)


def test_a_tombstone_that_was_purged_hides_nothing(pipeline: Pipeline, session: Any, stack: Stack) -> None:
    """The same statement as before the delete, once more: its mutation has the same bytes."""
    table, key = "merged.envelopes", "p = 77 AND c = 7 AND d = 'a'"
    session.execute(f"ALTER TABLE {table} WITH gc_grace_seconds = 0")
    insert = f"INSERT INTO {table} (p, c, d, v) VALUES (77, 7, 'a', 'again') USING TIMESTAMP 1000"

    def last() -> Any:
        mine = [r for r in pipeline.records(table) if r.key and (r.key["p"], r.key["c"]) == (77, 7) and r.value]
        return mine[-1].value["after"] if mine else "none"

    session.execute(insert)
    eventually(lambda: last() not in ("none", None), lambda: f"{last()}\n{pipeline.connector.tail()}")
    session.execute(f"DELETE FROM {table} USING TIMESTAMP 2000 WHERE {key}")
    eventually(lambda: last() is None, lambda: f"{last()}\n{pipeline.connector.tail()}")
    stack.nodetool("flush", "merged", "envelopes")
    time.sleep(2)  # a tombstone is purged once its second is over
    stack.nodetool("compact", "merged", "envelopes")
    session.execute(insert)
    assert session.execute(f"SELECT v FROM {table} WHERE {key}").one().v == "again"
    eventually(lambda: last() is not None, lambda: f"{last()}\n{pipeline.connector.tail()}")
    assert last()["v"] == "again"


def _without_statics(image: Any, name: tuple[Any, ...]) -> Any:
    """A row by itself: its record has static columns as they are then, and a change of them has one of its own."""
    if image is None or None in name:
        return image
    return {column: value for column, value in image.items() if column not in ("st", "sm")}


def test_before_is_the_after_of_before(pipeline: Pipeline, session: Any) -> None:
    """And the operation says whether the row lived before and after."""
    table = "merged.envelopes"
    write(session, table, 150, 7)
    key = ("p", "c", "d")

    def follows() -> dict[tuple[Any, ...], Any]:
        last: dict[tuple[Any, ...], Any] = {}
        for record in pipeline.records(table):
            if record.value is None:
                continue  # the tombstone after a delete
            envelope, name = record.value, tuple(record.key[part] for part in key)
            before, after = (_without_statics(envelope[image], name) for image in ("before", "after"))
            assert before == last.get(name), (name, envelope)
            assert envelope["op"] == ("c" if before is None else "d" if after is None else "u")
            last[name] = after
        return {name: row["v"] for name, row in last.items() if row is not None and None not in name}

    rows: dict[tuple[Any, ...], Any] = {}

    def agree() -> bool:
        rows.clear()
        selected = session.execute(f"SELECT p, c, d, v FROM {table}")
        rows.update({(r.p, r.c, r.d): r.v for r in selected if r.c is not None})
        return follows() == rows

    eventually(agree, lambda: f"{follows()}\n{rows}\n{pipeline.connector.tail()}")


def test_rows_of_before_and_events_without_cells_are_read(pipeline: Pipeline, session: Any) -> None:
    """As cells, which come as events: with the write times that Cassandra has."""
    table = "merged.light"
    agrees(pipeline, session, table, COLUMNS)
    write(session, table, 100, 3)
    session.execute(f"DELETE v FROM {table} WHERE p = 7 AND c = 0 AND d = 'a'")
    session.execute(f"UPDATE {table} USING TIMESTAMP 1 SET v = 'older' WHERE p = 7 AND c = 1 AND d = 'a'")
    session.execute(f"DELETE FROM {table} WHERE p = 7 AND c = 2 AND d = 'a'")
    before = session.execute("SELECT toUnixTimestamp(now()) AS now FROM system.local").one().now * 1000 - 600_000_000
    for c in range(3, 30):
        change_list(random.Random(c), session, table, f"p = 7 AND c = {c} AND d = 'a'", c)
        row = f"p = 8 AND c = {3 * c} AND d = 'key'"
        # Nothing, as it is of before the row; and after it, though before the row was read.
        write_time = before if c % 2 else f"{before + 600_000_000 - 1_000}"
        session.execute(f"DELETE FROM {table} USING TIMESTAMP {write_time} WHERE {row}")
        session.execute(f"INSERT INTO {table} (p, c, d) VALUES (9, {c}, 'key') USING TTL {1 + c % 3 * 1000}")
    agrees(pipeline, session, table, COLUMNS)
    assert pipeline.connector.total("helenus_connector_keys_read_total", connector="merged-light") > 300
    status, out, error_output = verify(pipeline, table, "--patience", "5")
    assert status == 0, (out, error_output)


@pytest.mark.long  # a snapshot more
def test_state_that_is_turned_on_begins_with_the_rows_of_before(pipeline: Pipeline, session: Any) -> None:
    """Which an earlier snapshot published: a change of one column does not take the others away."""
    table, rows, initial = "merged.turned", 600, {"snapshot.mode": "initial"}
    session.execute(f"DROP TABLE IF EXISTS {table}")
    session.execute(
        f"CREATE TABLE {table} (p int, c int, d text, v text, n int, PRIMARY KEY (p, c, d)) WITH cdc = true"
    )
    for c in range(rows):
        session.execute(f"INSERT INTO {table} (p, c, d, v, n) VALUES ({c % 5}, {c}, 'a', 'before', {c})")
    with pipeline.connected({table: initial}):
        agrees(pipeline, session, table)
        labels = {"connector": "merged-turned", "state": "COMPLETE"}
        complete = lambda: pipeline.connector.total("helenus_connector_snapshot_state", **labels)  # noqa: E731
        eventually(complete, pipeline.connector.tail)
        pipeline.call_rest("PUT", "merged-turned/stop")
        pipeline.configure(table, {**initial, "state": "rows", "query.group": "turned"})
        pipeline.call_rest("PUT", "merged-turned/resume")
        for c in range(0, rows, 3):
            key = f"p = {c % 5} AND c = {c} AND d = 'a'"
            statement = f"DELETE FROM {table}" if c % 2 else f"UPDATE {table} SET v = 'after'"
            session.execute(f"{statement} WHERE {key}")
        agrees(pipeline, session, table)
        parts = [r for r in pipeline.records(table) if r.value and None in (r.value["v"], r.value["n"])]
        assert not parts, "no record lacks a column"
        kept_rows = lambda: pipeline.connector.total("helenus_connector_rows_kept", connector="merged-turned")  # noqa: E731
        eventually(
            lambda: kept_rows() >= rows * 5 / 6, lambda: f"{kept_rows()} rows are kept\n{pipeline.connector.tail()}"
        )


@pytest.mark.long  # it starts the worker again
@pytest.mark.parametrize("point", [*OF_DRIVER, STORES, *OF_TASK, *(f"{point}:4" for point in OF_TASK)])
def test_a_kill_between_the_steps_of_a_batch(pipeline: Pipeline, session: Any, point: str) -> None:
    """Of a task, which Spark does again, and of the driver, which is started again. The first batch of a run is a job:
    at a fourth visit it is the process for small batches, whose batch the next run does again.
    """
    table, once = "merged.rows", pipeline.directory / f"rows-{point}"
    pipeline.connector.stop()
    write(session, table, 60, 11)
    pipeline.connector.start(HELENUS_FAILPOINT=f"state.{point}@{once}")
    write(session, table, 60, 12)
    eventually(once.exists, lambda: f"{point} is reached\n{pipeline.connector.tail()}")
    if point in (*OF_DRIVER, STORES):
        assert pipeline.connector.dies() != 0
        pipeline.connector.start().ready()
    agrees(pipeline, session, table)


@pytest.mark.long  # it starts the worker again
def test_a_checkpoint_is_restored_from_a_copy(pipeline: Pipeline, session: Any) -> None:
    goes_on_from_a_copy(pipeline, session, "merged.rows", write)


def rows_of(records: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return the last live row of each key, but for p = 99. Without static columns: a record has those of when it came,
    and they may be others by now.
    """
    last = {json.dumps(r.key): r.value for r in records if "scope" not in r.headers and r.key["p"] != 99}
    regular = "v n m l".split()
    return {key: {name: value[name] for name in regular} for key, value in last.items() if value is not None}


@pytest.mark.long  # it starts the worker again
def test_a_topic_is_rebuilt_from_the_state(pipeline: Pipeline, session: Any) -> None:
    table, topic = "merged.rows", "rebuilt"
    write(session, table, 60, 21)
    agrees(pipeline, session, table)
    # Records are there before Spark notes their batch. Once a later batch's are, it has: of that one is this row alone,
    # and what expired meanwhile.
    time.sleep(5)
    session.execute(f"INSERT INTO {table} (p, c, d, v) VALUES (99, 99, 'z', 'of another batch')")
    agrees(pipeline, session, table)
    properties = {**pipeline.connector_properties(table), "state": "rows", **TABLES[table]}
    made = write_properties(pipeline.directory / f"{table}.properties", properties)
    files = [str(pipeline.directory / "worker.properties"), str(made)]
    command = [script("helenus-connector"), "rebuild", *files, "--to", topic]
    environment = {**os.environ, "JAVA_HOME": str(spark_java_home(Silent()))}
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1), refused
    assert "another worker has this checkpoint.dir" in refused.stderr
    pipeline.connector.stop()
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert process.returncode == 0, process
    rebuilt = list(map(pipeline.reader.record, pipeline.reader.messages(topic)))
    assert rows_of(rebuilt) == rows_of(pipeline.records(table))
    assert process.stdout == f"merged-rows: {len(rebuilt)} records appended to {topic}\n"
    pipeline.connector.start().ready()


@pytest.mark.long  # it starts the worker three times
def test_a_state_that_is_of_something_else_is_refused(pipeline: Pipeline) -> None:
    directory = pipeline.directory / "checkpoint" / "rows"
    file = directory / "state.about"
    pipeline.connector.stop()
    original = file.read_bytes()

    def refused(why: str) -> None:
        pipeline.connector.start()
        labels = {"connector": "merged-rows", "state": "FAILED"}
        eventually(
            lambda: (
                pipeline.connector.health()[0] and pipeline.connector.total("helenus_connector_task_state", **labels)
            ),
            pipeline.connector.tail,
        )
        assert why in pipeline.connector.tail()
        assert f"delete {directory}" in pipeline.connector.tail()
        pipeline.connector.stop()

    file.write_bytes(original.replace(b"merged.rows", b"merged.rose"))
    refused("this file is damaged")
    file.unlink()
    refused("is gone")
    file.write_bytes(original)
    (directory / "state").rename(directory / "elsewhere")
    refused("the state is gone")
    (directory / "elsewhere").rename(directory / "state")
    pipeline.connector.start().ready()
