"""The change-over of docs/debezium.md: Debezium's connector is killed amid writes, and ours goes on in its topics from
its file. A sink that reads them from their beginning has the table, and each statement is in a record.
"""

from __future__ import annotations

import datetime
import random
import signal
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import spark_start
from bench.debezium_peer import debezium, file_of, has_maven
from cassandra.cluster import Cluster, Session
from cassandra.util import Date, OrderedMapSerializedKey, SortedSet
from integration.pipeline import Command, Pipeline, free_port
from patience import eventually

from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(not has_maven(), reason="Debezium's connector is downloaded with Maven"),
]

TABLE, TOPIC = "moves.t", "fulfillment.moves.t"
DEFINITIONS = [
    "CREATE KEYSPACE moves WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TYPE moves.addr (street text, zip int)",
    f"CREATE TABLE {TABLE} (p int, c int, v text, n bigint, bo boolean, dbl double, de decimal, ts timestamp, da date, "
    "u uuid, b blob, l list<int>, st set<text>, m map<text, int>, pl frozen<addr>, PRIMARY KEY (p, c))",
]
BEFORE = [(-1, c) for c in range(20)]
"""Rows that are there before the table has `cdc`."""
RATE = 200
"""Statements per second, at most. Inserts have 2 kB: a segment of 1 MiB is full in some seconds."""

Key = tuple[int, int | None]
"""Of a row; of a partition or range the clustering column is None."""


class Writer:
    """Writes to the table from a thread, until the end of the block. `wrote` has each row, partition or range that a
    statement wrote or deleted, with the time of the write, in µs, which no two statements share.

    Partitions come into use and go out of it again, so that of some the last change is of any time of the run.
    """

    def __init__(self, session: Session) -> None:
        self.wrote: list[tuple[int, Key]] = []
        self._session = session
        self._random = random.Random(1)
        self._time = 0
        self._stop = threading.Event()
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._failed, self._failed

    def _loop(self) -> None:
        try:
            while not self._stop.wait(1 / RATE):
                self._write_statement()
        except Exception as error:
            self._failed.append(error)

    def _write_statement(self) -> None:
        r = self._random
        key = (len(self.wrote) // 200 + r.randrange(4), r.randrange(8))
        other = (key[0], (key[1] + 1) % 8)
        row, n = "p = {} AND c = {}".format(*key), r.randrange(1000)
        self._time = time_us = max(self._time + 1, time.time_ns() // 1000)
        using = f"USING TIMESTAMP {time_us}"
        part: Key = (key[0], None)
        choices: list[tuple[int, str, list[Key]]] = [
            (45, insert(key, n, using), [key]),
            (
                20,
                f"UPDATE {TABLE} {using} SET n = {n}, bo = false, pl = {{street: 's{n}', zip: {n}}} WHERE {row}",
                [key],
            ),
            (8, f"UPDATE {TABLE} {using} SET l = [{n}], st = {{'{n}'}}, m = {{'k': {n}}} WHERE {row}", [key]),
            (5, f"DELETE dbl, l FROM {TABLE} {using} WHERE {row}", [key]),
            (10, f"DELETE FROM {TABLE} {using} WHERE {row}", [key]),
            (2, f"DELETE FROM {TABLE} {using} WHERE p = {key[0]}", [part]),
            (4, f"DELETE FROM {TABLE} {using} WHERE p = {key[0]} AND c > {key[1]} AND c <= {key[1] + 2}", [part]),
            (2, f"DELETE FROM {TABLE} {using} WHERE p = {key[0]} AND c >= {key[1]}", [part]),
            (4, f"BEGIN BATCH {using} {insert(key, n)}; {insert(other, n)}; APPLY BATCH", [key, other]),
        ]
        ((_, statement, keys),) = r.choices(choices, [weight for weight, *_ in choices])
        self._session.execute(statement)
        self.wrote += [(time_us, each) for each in keys]


def insert(key: Key, n: int, using: str = "") -> str:
    return (
        f"INSERT INTO {TABLE} (p, c, v, n, bo, dbl, de, ts, da, u, b, l, st, m, pl) VALUES ({key[0]}, {key[1]}, "
        f"'{n % 10 * '=' * (n % 2) * 900}', {n}, true, {n}.5, {n}.25, {n}, '2024-02-29', {UUID(int=n)}, 0x{n:04}, "
        f"[{n}, 1], {{'a', '{n}'}}, {{'a': {n}}}, {{street: 'Main', zip: null}}) {using}"
    )


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Of servers of its own: Debezium reads all tables, and one with a vector keeps it from all."""
    yaml = {"commitlog_segment_size": "1MiB"}
    with Stack(tmp_path / "stack", only=["cassandra", "kafka", "registry"], cassandra_yaml=yaml) as stack:
        pipeline = Pipeline(stack.status(), tmp_path)
        with closing(KafkaLog({"bootstrap.servers": pipeline.status.bootstrap_servers})) as log:
            log.create(TOPIC, 1, {})  # as a broker makes it for Debezium; this one makes none by itself
        yield pipeline
        pipeline.stop()


@pytest.fixture
def session(pipeline: Pipeline) -> Iterator[Session]:
    with Cluster(pipeline.status.contact_points, port=pipeline.status.cql_port) as cluster:
        session = cluster.connect()
        for statement in [*DEFINITIONS, *(insert(key, 7) for key in BEFORE), f"ALTER TABLE {TABLE} WITH cdc = true"]:
            session.execute(statement)
        yield session


@pytest.mark.parametrize(
    ("end", "snapshot"),
    [
        pytest.param(signal.SIGKILL, "never", id="killed-no-snapshot"),
        pytest.param(signal.SIGTERM, "initial", id="stopped-snapshot"),
    ],
)
def test_from_their_file_in_their_topic(
    pipeline: Pipeline,
    session: Session,
    end: signal.Signals,
    snapshot: str,
    record_property: Callable[[str, object], None],
) -> None:
    agent, worker = free_port(), free_port()
    ours = {
        "helenus_agent_topic_partitions": 1,
        "helenus_connector_listeners": f"http://127.0.0.1:{worker}",
        "helenus_connector_snapshot_mode": snapshot,
        "helenus_connector_spark_master": "local[2,4]",
        **{f"helenus_connector_{key}": value for key, value in spark_start.settings().items()},
    }
    directory = pipeline.directory / "debezium"
    file = file_of(pipeline.status, directory, "fulfillment", snapshot_mode="INITIAL", http_port=agent, **ours)
    with debezium(file) as theirs:
        eventually(theirs.started, theirs.tail)
        eventually(lambda: len(records(pipeline)) >= len(BEFORE), theirs.tail)
        with Writer(session) as writer:
            eventually(lambda: theirs.log.read_text().count("Moved CommitLog file") >= 2, theirs.tail, every=0.1)
            so_far = len(records(pipeline))
            eventually(lambda: len(records(pipeline)) > so_far, theirs.tail, every=0.1)
            theirs.process.send_signal(end)
            theirs.process.wait(60)
            stopped = len(writer.wrote)
            eventually(lambda: full_segments(pipeline) >= 2, "segments that nobody reads")
            began = len(writer.wrote)
            pipeline.agent = Command(["helenus-agent", str(file)], pipeline.directory / "agent.log", agent)
            pipeline.connector = Command(["helenus-connector", str(file)], pipeline.directory / "connector.log", worker)
            pipeline.agent.start().ready()
            pipeline.connector.start().ready()
            eventually(lambda: changes(pipeline, True), pipeline.connector.tail)
            time.sleep(5)
    eventually(
        lambda: not wrong(pipeline, session, writer),
        lambda: f"{wrong(pipeline, session, writer)[:20]}\n{pipeline.connector.tail()}\n{pipeline.agent.tail()}",
        every=2,
    )
    wanted = set(BEFORE) if snapshot == "initial" else set()
    eventually(lambda: wanted <= {key for _, key in changes(pipeline, True, "true")}, pipeline.connector.tail)
    assert not wrong(pipeline, session, writer)
    second = changes(pipeline, True, "true")
    assert bool(second) is (snapshot == "initial")
    by_theirs, by_ours = set(changes(pipeline, False)), set(changes(pipeline, True))
    assert set(writer.wrote[stopped:]) <= by_ours - by_theirs
    assert by_theirs - by_ours, "a segment that Debezium was done with is not read again"
    assert by_theirs & by_ours, "it was killed within a segment"
    for name, number in (
        ("changes", len(writer.wrote)),
        ("of Debezium alone", len(by_theirs - by_ours)),
        ("of both", len(by_theirs & by_ours)),
        ("while none ran", began - stopped),
        ("twice by Debezium", len(changes(pipeline, False)) - len(by_theirs)),
        ("twice by ours", len(changes(pipeline, True)) - len(by_ours)),
        ("rows of the second snapshot", len(second)),
        ("records", len(records(pipeline))),
    ):
        record_property(name, number)
    assert (pipeline.connector.stop(), pipeline.agent.stop()) == (0, 0)


def full_segments(pipeline: Pipeline) -> int:
    """How many are in cdc_raw to which nothing will be added."""
    marks = Path(pipeline.status.nodes[0].cdc_raw).glob("*_cdc.idx")
    return sum("COMPLETED" in mark.read_text() for mark in marks)


def records(pipeline: Pipeline) -> list[tuple[Key, dict[str, Any]]]:
    """Keys and values of the data topic, in its order."""
    keys_and_values = [(r.key, r.value) for r in pipeline.held_topics.records(TOPIC)]
    return [((key["p"], key["c"]), value) for key, value in keys_and_values if value is not None]


def changes(pipeline: Pipeline, ours: bool, of_snapshot: str = "false") -> list[tuple[int, Key]]:
    """The write times, in µs, and keys of the records that one of the connectors wrote."""
    return [
        (value["source"]["ts_us"], key)
        for key, value in records(pipeline)
        if ("written" in value) is ours and value["source"]["snapshot"] == of_snapshot
    ]


def wrong(pipeline: Pipeline, session: Session, writer: Writer) -> list[str]:
    """What was written and is in no record, and where what a sink has is not the table."""
    lost = set(writer.wrote) - {*changes(pipeline, False), *changes(pipeline, True)}
    return [f"{change} is lost" for change in sorted(lost, key=str)] + differences(pipeline, session)


def differences(pipeline: Pipeline, session: Session) -> list[str]:
    """Where what a sink has is not the table. A row of nulls alone may be none."""
    sink = folded(records(pipeline))
    table = {(row.p, row.c): plain(row) for row in session.execute(f"SELECT * FROM {TABLE}")}
    assert table.keys() >= set(BEFORE)
    differing = [f"{key} is missing" for key in table.keys() - sink.keys()]
    for key, cells in sink.items():
        row = table.get(key, {})
        differing += [
            f"{key}: {name} is {cells.get(name)} in the sink, {row.get(name)} in the table"
            for name in cells.keys() | row.keys()
            if cells.get(name) != row.get(name)
        ]
    return differing


def folded(records_of_topic: list[tuple[Key, dict[str, Any]]]) -> dict[Key, dict[str, Any]]:
    """What a sink has that sets the cells of each record, and deletes rows, ranges and partitions."""
    rows: dict[Key, dict[str, Any]] = {}
    for (p, c), value in records_of_topic:
        after = value["after"]
        if value["op"] in ("i", "u"):
            cells = {name: cell["value"] for name, cell in after.items() if cell and name not in ("p", "c")}
            rows.setdefault((p, c), {}).update({name: cell_of(name, value) for name, value in cells.items()})
        elif c is not None:
            rows.pop((p, c), None)
        else:
            low, high = bound(after["_range_start"]), bound(after["_range_end"])
            for key in [key for key in rows if key[0] == p and is_within(key[1], low, high)]:
                del rows[key]
    return rows


def cell_of(name: str, value: Any) -> Any:
    """A cell's value; an empty collection is none, and a set has the order of its elements."""
    return (sorted(value) if name == "st" else value) if value not in ([], {}, None) else None


def bound(end: dict[str, Any] | None) -> tuple[str, int] | None:
    """The method and place of a range's end; None if it is open, or a partition's."""
    return (end["method"], int(end["values"][0]["value"])) if end and end["values"] else None


def is_within(c: int | None, low: tuple[str, int] | None, high: tuple[str, int] | None) -> bool:
    assert c is not None
    after = low is None or c > low[1] or (c == low[1] and low[0].startswith("INCL"))
    return after and (high is None or c < high[1] or (c == high[1] and high[0].startswith("INCL")))


def plain(row: Any) -> dict[str, Any]:
    """A row's cells as their JSON has them."""
    return {name: _plain(value) for name, value in row._asdict().items() if name not in ("p", "c")}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return round(value.replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, tuple):  # of a type
        return value._asdict()  # type: ignore[attr-defined]
    by_type: dict[type, Callable[[Any], Any]] = {
        Date: lambda date: date.days_from_epoch,
        UUID: str,
        Decimal: float,
        SortedSet: sorted,
        OrderedMapSerializedKey: dict,
    }
    return by_type.get(type(value), lambda same: same)(value)
