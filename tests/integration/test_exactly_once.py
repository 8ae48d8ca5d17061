"""`exactly.once.support`: whatever is killed, stopped or cut off, `read_committed` readers get each record once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bench.kafka_tools import describe_group, list_transactions
from bench.relay import Relay
from confluent_kafka import Message
from integration.group_offsets import commit_offsets, end_offsets, group_offsets
from integration.pipeline import Command, Pipeline, free_port, script, write_properties
from integration.test_many_connectors import Rest
from integration.worker_faults import WorkerFaults
from integration.write_log import (
    Counts,
    WriteLog,
    each_change_once,
    each_once,
    last_differing,
    nulls_again,
    read_counts,
)
from patience import eventually
from three_brokers import relayed_listeners

from helenus_schemas.settings.properties import read_properties
from helenus_sinks.chunk_reader import ChunkReader
from helenus_sinks.chunks import CHUNK_HEADER, HEADER, ChunkReference, chunk_topic
from helenus_stack import kafka
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.records import messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

TABLES = ("once.written", "once.read", "once.passing", "once.merged", "once.keyed")
WRITTEN, READ, PASSING, MERGED, KEYED = TABLES
"""Tables of which a record is a change; the row as it is read; a row that now and then expires or is deleted; a change
with the row before it, which Spark keeps; and a row that has a null when it expires, as Spark keeps the keys.
"""
OTHER = "once.other"
LARGE = "once.large"
LARGE_CHARACTERS = 350_000
CHUNKS = {"errors.large.record": "chunk", "topic.creation.default.max.message.bytes": "100000"}
"""Of rows of this table a record has four chunks."""
KEYS = 200
RATE = 60.0
"""Writes a second: a busy machine keeps up, and each batch has some of each table."""
SUPPORT = {"exactly.once.support": "required"}
CONNECT_JSON = "org.apache.kafka.connect.json.JsonConverter"
ENVELOPES = {
    "resolver": "none",
    "output.format": "debezium",
    **{f"{side}.converter": CONNECT_JSON for side in ("key", "value")},
    **{f"{side}.converter.schemas.enable": "false" for side in ("key", "value")},
}
ROWS = {"output.format": "json", "headers": "digest"}
STATE = {
    **{name: value for name, value in ENVELOPES.items() if name != "resolver"},
    "state": "rows",
    "query.group": "m",
    # The tables begin empty. Until a snapshot were complete, changes of a row that is new to the state, and is read,
    # could share a record: that would depend on how fast the machine is.
    "snapshot.mode": "never",
}
OWN = {WRITTEN: ENVELOPES, MERGED: STATE, KEYED: {**ROWS, "state": "keys", "headers": "digest,expires,origin"}}
LONG_FAULTS, LONG_WRITES = 50, 100_000
SEED = int(os.environ.get("HELENUS_SEED", time.time_ns() % 10**6))
NOT_SUPPORTED = "exactly_once.not_supported"
ENDED = {"CompleteCommit", "CompleteAbort", "Empty"}
"""The states of transactions that are not open."""


@pytest.fixture(scope="module")
def relay(stack: Stack) -> Iterator[Relay]:
    """What is before a listener of the broker that advertises it: all connections by it go through the relay."""
    folder = next(server.folder for server in stack.servers if server.name == "kafka")
    port, configured = free_port(), kafka.configuration(stack.settings, folder)
    with Relay(port) as relay:
        before = dict(stack.settings.kafka_properties)
        restart_broker(stack, {**before, **relayed_listeners(configured, port, relay.port)})
        yield relay
        restart_broker(stack, before)


def restart_broker(stack: Stack, properties: Mapping[str, str]) -> None:
    stack.stop("kafka")
    Stack(stack.directory, kafka_properties=properties).start("kafka")


@pytest.fixture(scope="module")
def pipeline(stack: Stack, status: Status, session: Any, relay: Relay, directory: Path) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE once WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    for table in (*TABLES, OTHER):
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n bigint) WITH cdc = true")
    pipeline = Pipeline(status, directory)
    try:
        with Path(pipeline.agent.arguments[1]).open("a") as file:
            file.write("cells.include.list=once\\.(written|merged)\n")
        pipeline.agent.start().ready()
        pipeline.connect(*TABLES)
        set_properties(directory / "worker.properties", {"bootstrap.servers": f"127.0.0.1:{relay.port}"})
        for table in TABLES:
            # Small batches: a fault meets several, and what waits between two.
            more = {**OWN.get(table, ROWS), **SUPPORT, "max.batch.size": 200, "settle.timeout.ms": 1000}
            set_properties(directory / f"{table}.properties", more)
        pipeline.connector.start().ready()
        yield pipeline
    finally:
        pipeline.stop()


def set_properties(file: Path, properties: Mapping[str, object]) -> None:
    write_properties(file, {**read_properties(file), **properties})


@pytest.fixture(scope="module")
def chance() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(scope="module")
def faults(stack: Stack, relay: Relay, pipeline: Pipeline, chance: random.Random) -> WorkerFaults:
    return WorkerFaults([stack], [relay], [pipeline.connector], chance)


@pytest.fixture(scope="module")
def first_keys() -> Iterator[int]:
    return count(0, KEYS)


@pytest.fixture
def writes(session: Any, pipeline: Pipeline, first_keys: Iterator[int]) -> WriteLog:
    """To keys that no other test has: what one of them finds is nothing that another one left."""
    first_key = next(first_keys)
    return WriteLog(session, TABLES, range(first_key, first_key + KEYS), RATE, passing=[PASSING, KEYED])


@contextmanager
def exactly_once(pipeline: Pipeline, faults: WorkerFaults, writes: WriteLog, session: Any) -> Iterator[None]:
    """What happens within leaves each table with each record once, when it is over."""
    before = len(faults.happened)
    try:
        with writes:
            yield
        faults.wait_ready()
        wait_quiet(pipeline, TABLES)
        # A state that is lost is learned from all events, and their records come again.
        check_records(pipeline, writes, session, has_state="lose_disks" not in faults.happened[before:])
    except AssertionError as error:
        raise AssertionError(f"HELENUS_SEED={SEED}: {error}\n{faults}") from error


def wait_quiet(pipeline: Pipeline, tables: Sequence[str]) -> None:
    """Wait until the group of each connector is at the end of its events, and nothing waits."""
    wait_worker_quiet(pipeline, tables, lambda: pipeline.connector, pipeline.connector.tail)


def wait_worker_quiet(
    pipeline: Pipeline, tables: Sequence[str], worker: Callable[[], Command | None], tail: Callable[[], str]
) -> None:
    """The same for the `worker` that runs the connectors now, if one does; `tail` says what the log ends with."""
    brokers = str(pipeline.status.bootstrap_servers)
    seen: dict[str, dict[int, int]] = {}
    hindrance = ""

    def is_quiet() -> bool:
        nonlocal seen, hindrance
        running = worker()
        ends = {table: end_offsets(brokers, f"events-{table}") for table in tables}
        before, seen = seen, ends
        if ends != before:
            hindrance = f"events come: {before}, then {ends}"
        elif running is None or running.health()[0] != 200:
            hindrance = f"not ready: {running and running.health()}"
        else:
            metrics = ("helenus_connector_keys_unconfirmed", "helenus_connector_gate_waiting_events")
            waiting = {metric: running.total(metric) for metric in metrics}
            positions = {table: group_offsets(brokers, group(table), f"events-{table}") for table in tables}
            hindrance = "" if positions == ends and not any(waiting.values()) else f"{waiting}; {positions} of {ends}"
        return not hindrance

    eventually(is_quiet, lambda: f"all is published ({hindrance}); the worker's log ends:\n{tail()}", every=2)


def group(table: str) -> str:
    return f"helenus-{table.replace('.', '-')}"


def read_topic(pipeline: Pipeline, table: str, keys: range) -> Counts:
    return read_counts(str(pipeline.status.bootstrap_servers), f"data-{table}", keys)


def wait_expired(pipeline: Pipeline, writes: WriteLog, session: Any) -> None:
    """Wait until each row that has expired has its null."""

    def differing() -> list[str]:
        return last_differing(read_topic(pipeline, KEYED, writes.keys), rows_of(session, KEYED, writes.keys), ())

    eventually(lambda: not differing(), lambda: f"{KEYED}: {differing()[:8]}\n{pipeline.connector.tail()}", every=2)


def rows_of(session: Any, table: str, keys: range) -> dict[int, int]:
    return {row.k: row.n for row in session.execute(f"SELECT k, n FROM {table}") if row.k in keys}


def check_records(pipeline: Pipeline, writes: WriteLog, session: Any, has_state: bool = True) -> None:
    errors = {}
    wait_expired(pipeline, writes, session)
    for table in TABLES:
        counts = read_topic(pipeline, table, writes.keys)
        rows = rows_of(session, table, writes.keys)
        errors[table] = last_differing(counts, rows, writes.gone[table])
        if table == KEYED:
            errors[table] = [*last_differing(counts, rows, ()), *nulls_again(counts)]
        if table in (READ, PASSING, KEYED):
            errors[table] += each_change_once(counts, table != READ)
        if table == WRITTEN or (table == MERGED and has_state):
            errors[table] += each_once(counts, writes.written[table])
    assert not any(errors.values()), "".join(
        f"\n{table}: {len(of_table)} errors\n" + "\n".join(of_table[:8]) for table, of_table in errors.items()
    )


@pytest.mark.long  # five kills, each with a start after it; the next test kills once
@pytest.mark.timeout(1800)
def test_killed_at_each_step(pipeline: Pipeline, faults: WorkerFaults, writes: WriteLog, session: Any) -> None:
    """Of a task: before and after its transaction, and while what it published is marked. Of the driver: before Spark
    notes that the batch is done.
    """
    with exactly_once(pipeline, faults, writes, session):
        faults.happen(faults.kill_at_each_point)
        assert not [line for line in faults.happened if line.startswith("not reached")], str(faults)
        time.sleep(2)


def test_stopped_cut_off_and_killed(pipeline: Pipeline, faults: WorkerFaults, writes: WriteLog, session: Any) -> None:
    """The worker, its Python workers alone, its connections, and the broker: after each of them it has to go on."""
    with exactly_once(pipeline, faults, writes, session):
        for fault in (faults.stop_for_a_while, faults.kill_python_workers, faults.cut_connections, faults.lose_answers):
            time.sleep(2)
            faults.happen(fault)
        faults.wait_ready()
        faults.happen(faults.kill_broker)
        time.sleep(2)
        faults.happen(faults.kill)
        time.sleep(2)


@pytest.mark.long  # test_worker_group.py has a worker without its disks lead
def test_the_host_is_lost_with_its_disks(
    pipeline: Pipeline, faults: WorkerFaults, writes: WriteLog, session: Any
) -> None:
    """Where it was, and what waited, is with the brokers."""
    with exactly_once(pipeline, faults, writes, session):
        time.sleep(3)
        faults.happen(faults.lose_disks)
        faults.wait_ready()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_faults(
    pipeline: Pipeline, faults: WorkerFaults, writes: WriteLog, session: Any, chance: random.Random
) -> None:
    """Each kind several times, in an order that the seed says. Some happen while the worker still starts."""
    kinds = [faults.kinds[index % len(faults.kinds)] for index in range(LONG_FAULTS)]
    with exactly_once(pipeline, faults, writes, session):
        for fault in chance.sample(kinds, len(kinds)):
            time.sleep(chance.uniform(0, 10))
            faults.happen(fault)
        writes.wait_written(LONG_WRITES)


@pytest.mark.long  # two starts of a worker
def test_positions_are_those_of_the_group(pipeline: Pipeline, faults: WorkerFaults, writes: WriteLog) -> None:
    """Who moves the group while the worker is stopped, moves the connector: its events are read again from there."""
    faults.wait_ready()  # whatever a test before this one has left
    brokers, topic = str(pipeline.status.bootstrap_servers), f"events-{WRITTEN}"
    with writes:
        time.sleep(2)
    wait_quiet(pipeline, TABLES)
    ends = end_offsets(brokers, topic)
    assert group_offsets(brokers, group(WRITTEN), topic) == ends
    assert pipeline.connector.stop() == 0
    earlier = {partition: max(0, end - 5) for partition, end in ends.items()}
    commit_offsets(brokers, group(WRITTEN), topic, earlier)
    assert group_offsets(brokers, group(WRITTEN), topic) == earlier
    pipeline.connector.start().ready()
    moved_events = sum(ends.values()) - sum(earlier.values())
    name = WRITTEN.replace(".", "-")
    eventually(
        lambda: pipeline.connector.total("helenus_connector_events_read_total", connector=name) >= moved_events,
        lambda: f"{moved_events} events are read again\n{pipeline.connector.tail()}",
    )
    wait_quiet(pipeline, TABLES)
    counts = read_topic(pipeline, WRITTEN, writes.keys)
    assert {key: {record.n for record in records} for key, records in counts.items()} == {
        key: set(numbers) for key, numbers in writes.written[WRITTEN].items()
    }


def test_kafkas_own_tools_read_groups_and_transactions(
    pipeline: Pipeline, faults: WorkerFaults, writes: WriteLog
) -> None:
    """Each connector's group is at the end of its events, and no transaction is open."""
    faults.wait_ready()
    with writes:
        time.sleep(2)
    wait_quiet(pipeline, TABLES)
    check_by_tools(str(pipeline.status.bootstrap_servers), TABLES)


def check_by_tools(brokers: str, tables: Sequence[str]) -> None:
    for table in tables:
        partitions = describe_group(brokers, group(table))
        lags = {(row["TOPIC"], row["LAG"]) for row in partitions}
        # A state of keys is learned from the records: its connector reads them, too.
        assert {(f"events-{table}", "0")} <= lags <= {(f"{topic}-{table}", "0") for topic in ("events", "data")}, (
            partitions
        )
    states: dict[str, str] = {}

    def has_ended_all() -> bool:
        nonlocal states
        transactions = list_transactions(brokers)
        states = {row["TransactionalId"]: row["TransactionState"] for row in transactions if is_ours(row)}
        return "CompleteCommit" in states.values() and set(states.values()) <= ENDED

    eventually(has_ended_all, lambda: f"all transactions have ended: {states}", every=5)


def is_ours(row: Mapping[str, str]) -> bool:
    return row["TransactionalId"].startswith("helenus-")


@pytest.mark.long  # three kills of processes, and one of the worker
def test_large_records_in_chunks(pipeline: Pipeline, faults: WorkerFaults, session: Any) -> None:
    """Killed between chunks, before their record, and before the commit of both: a `read_committed` reader has each
    record whole and once, and passes over the chunks that were not committed.
    """
    session.execute(f"CREATE TABLE {LARGE} (k int PRIMARY KEY, n bigint, v text) WITH cdc = true", timeout=60)
    insert = session.prepare(f"INSERT INTO {LARGE} (k, n, v) VALUES (?, ?, ?)")
    written = {k: random.Random(k).randbytes(LARGE_CHARACTERS // 2).hex() for k in range(12)}

    def write(keys: range) -> None:
        for k in keys:
            session.execute(insert, (k, k, written[k]), timeout=60)

    faults.wait_ready()
    with pipeline.connected({LARGE: {**ROWS, **SUPPORT, **CHUNKS}}):
        write(range(4))
        wait_quiet(pipeline, (LARGE,))
        pipeline.connector.kill()
        write(range(4, 8))
        faults.happen(faults.kill_around_chunks)
        write(range(8, 12))
        faults.wait_ready()
        wait_quiet(pipeline, (LARGE,))
    assert not [line for line in faults.happened if line.startswith("not reached")], str(faults)

    brokers = str(pipeline.status.bootstrap_servers)
    records = list(messages(brokers, f"data-{LARGE}"))  # as `read_committed` has them, librdkafka's default
    assert sorted(json.loads(record.key())["k"] for record in records) == sorted(written), str(faults)
    with closing(ChunkReader({"bootstrap.servers": brokers})) as reader:
        for record in records:
            whole = reader.read(record)
            row = json.loads(whole.value or b"")
            assert (whole.is_whole, row["v"]) == (True, written[row["n"]]), row["n"]
    named = {ChunkReference.parse(dict(record.headers())[HEADER]).id for record in records}
    assert chunk_ids(messages(brokers, chunk_topic(f"data-{LARGE}"))) == named
    with_aborted = messages(brokers, chunk_topic(f"data-{LARGE}"), {"isolation.level": "read_uncommitted"})
    assert chunk_ids(with_aborted) - named, "transactions with chunks were aborted"


def chunk_ids(records: Iterable[Message]) -> set[str]:
    """The ids of the values that chunks are of."""
    of_chunks = (dict(record.headers() or ()).get(CHUNK_HEADER) for record in records)
    return {header.decode().partition(":")[0] for header in of_chunks if header is not None}


NOT_POSSIBLE = {
    "spark.master": ({"spark.master": "local-cluster[1,1,1024]"}, {}),
    "fence.writers": ({"fence.writers": "false"}, {}),
}
"""By what is in the way: properties of a worker and of its connector."""


@contextmanager
def other_worker(
    pipeline: Pipeline, name: str, of_worker: Mapping[str, object], of_connector: Mapping[str, object]
) -> Iterator[Command]:
    """A worker of one connector, of OTHER; it is not started."""
    other = Pipeline(pipeline.status, pipeline.directory / name)
    other.connect(OTHER, output_format="json")
    set_properties(other.directory / "worker.properties", of_worker)
    set_properties(other.directory / f"{OTHER}.properties", of_connector)
    try:
        yield other.connector
    finally:
        other.stop()


@pytest.mark.parametrize("reason", NOT_POSSIBLE)
def test_required_where_it_cannot_be(pipeline: Pipeline, reason: str) -> None:
    """`validate` says why, or the connector's task does."""
    of_worker, of_connector = NOT_POSSIBLE[reason]
    with other_worker(pipeline, f"required-{reason}", of_worker, {**of_connector, **SUPPORT}) as worker:
        refusal = validation_error(worker) or task_error(worker)
    assert "exactly.once.support" in refusal
    assert reason in refusal


def validation_error(worker: Command) -> str:
    """What `validate` says against a worker's files; empty if they are valid."""
    command = [script("helenus-connector"), "validate", *worker.arguments[1:]]
    java = {"JAVA_HOME": str(spark_java_home(Silent()))}
    answer = subprocess.run(command, env={**os.environ, **java}, capture_output=True, text=True, timeout=120)
    assert (answer.returncode == 0) == (not answer.stderr), answer.stderr
    return answer.stderr


def task_error(worker: Command) -> str:
    """Why the task of a worker's connector fails, or the worker itself ends."""
    worker.start()

    def error() -> str:
        assert worker.process is not None
        if worker.process.poll() is not None:
            return worker.tail()
        try:
            task = Rest(worker.port).task(OTHER.replace(".", "-"))
        except OSError:  # it starts
            return ""
        return str(task["trace"]) if task["state"] == "FAILED" else ""

    text: str = eventually(error, worker.tail)
    return text


@pytest.mark.long  # the test above refuses it
def test_requested_where_it_cannot_be(pipeline: Pipeline, session: Any) -> None:
    """It runs, as without, and says so once."""
    of_worker, of_connector = NOT_POSSIBLE["fence.writers"]
    requested = {**of_connector, "exactly.once.support": "requested"}
    with other_worker(pipeline, "requested", of_worker, requested) as worker:
        worker.start().ready()
        for k in range(20):
            session.execute(f"INSERT INTO {OTHER} (k, n) VALUES ({k}, {k})")
        eventually(lambda: len(read_topic(pipeline, OTHER, range(20))) == 20, worker.tail)
        lines = [line for line in worker.log.read_text().splitlines() if NOT_SUPPORTED in line]
    assert len(lines) == 1, lines
    assert "warning" in lines[0].lower(), lines
