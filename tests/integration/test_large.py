"""What is large: records beyond what their topic takes, partitions of many rows, tables of many columns."""

from __future__ import annotations

import json
import random
import re
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from cassandra.concurrent import execute_concurrent_with_args
from integration.pipeline import Pipeline, script, write_properties
from integration.staged import Staged, headers, keys
from patience import eventually
from structlog.testing import capture_logs

from helenus_connector.interfaces.event import Event
from helenus_connector.reread._unread_keys import MOST_READS
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode
from helenus_stack.records import Decoder, messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

LARGE = 1_500_000
LIMIT = 1_000_000
"""librdkafka's own; a broker's default is a little more."""

Make = Callable[..., Staged]


@pytest.fixture
def staged(status: Status, session: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes the stage of a table of the test's own in keyspace `large`, with these columns or as it is."""
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS large WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    name = re.sub(r"\W", "_", request.node.name)[5:45]
    made: list[Staged] = []

    def make(columns: str = "k int PRIMARY KEY, a int, v text, w blob", **more: Any) -> Staged:
        if columns:
            session.execute(f"CREATE TABLE IF NOT EXISTS large.{name} ({columns}) WITH cdc = true")
        made.append(Staged(status, tmp_path / str(len(made)), f"large.{name}", **more))
        return made[-1]

    yield make
    for made_stage in made:
        made_stage.close()


def fill(session: Any, stage: Staged, large: int = 1, rows: int = 3) -> None:
    """Rows of which the one with this key has a value too large for a record."""
    insert = session.prepare(
        f"INSERT INTO {stage.settings.keyspace}.{stage.settings.table} (k, a, v, w) VALUES (?, ?, ?, ?) "
        "USING TIMESTAMP 1"
    )
    for k in range(rows):
        session.execute(insert, (k, k, "v" * (LARGE if k == large else 10), b"w" * 20))


def test_the_connector_stops_and_names_the_record(staged: Make, session: Any) -> None:
    stage = staged(errors_large_record="fail")
    fill(session, stage)
    events = [stage.event(key) for key in keys(3)]
    for _ in range(2):  # nothing is skipped: the next start meets it again
        with pytest.raises(HelenusError) as error:
            stage.run(events)
        assert error.value.kind is Kind.RECORD_TOO_LARGE
        message = str(error.value)
        size = int(re.search(r"a record of (\d+) bytes", message)[1])  # type: ignore[index]
        assert LARGE < size < LARGE + 500
        assert f"{LIMIT} are allowed" in message
        assert f"large.{stage.settings.table}, event of {stage.settings.events} 0, offset 2" in message
        assert "max.message.bytes" in message
        assert "errors.large.record" in message
        stage.log.close()


def test_a_dead_letter(staged: Make, session: Any) -> None:
    stage = staged()
    fill(session, stage)
    events = [stage.event(key, digest=key.hex()) for key in keys(3)]
    outcome = stage.run(events)
    assert (outcome.published, outcome.dead_lettered, outcome.records, outcome.too_large) == (2, 1, 2, 1)
    assert {json.loads(r.key())["k"] for r in stage.records()} == {0, 2}
    (dead_letter,) = stage.dead_letters()
    assert (dead_letter.key(), dead_letter.value()) == (events[1].key, events[1].value)
    headers_of_letter = headers(dead_letter)
    assert headers_of_letter["__connect.errors.offset"] == b"2"
    assert b"a record of 15" in headers_of_letter["__connect.errors.exception.message"]
    copies = stage.run([stage.event(key, digest=key.hex(), node=NODE_2) for key in keys(3)])
    assert copies.confirmed == 3, "another replica's copy makes no second dead letter"
    assert len(stage.dead_letters()) == 1


NODE_2 = "bd310466-96a7-4cb2-acf4-59535a960812"


def test_a_reference(staged: Make, session: Any) -> None:
    stage = staged(errors_large_record="reference")
    fill(session, stage)
    outcome = stage.run([stage.event(key) for key in keys(3)])
    assert (outcome.published, outcome.records, outcome.too_large) == (3, 3, 1)
    records_by_key = {json.loads(r.key())["k"]: r for r in stage.records()}
    value = json.loads(records_by_key[1].value())
    assert (value["a"], value["v"]) == (1, None)
    assert value["w"] is not None
    assert json.loads(headers(records_by_key[1])["left_out"]) == ["v"]
    assert "left_out" not in headers(records_by_key[0])


def test_a_topic_that_takes_less_than_the_producer(staged: Make, session: Any) -> None:
    """The broker refuses a batch for its size, and with it records that are small enough."""
    stage = staged(errors_large_record="reference")
    stage.topic_takes(100_000)
    insert = session.prepare(f"INSERT INTO large.{stage.settings.table} (k, w) VALUES (?, ?) USING TIMESTAMP 1")
    chance = random.Random(1)
    for k in range(20):
        session.execute(insert, (k, chance.randbytes(100_000 if k == 7 else 30_000)))
    outcome = stage.run([stage.event(key) for key in keys(20)])
    assert (outcome.published, outcome.records, outcome.too_large) == (20, 20, 1)
    records_by_key = {json.loads(r.key())["k"]: r for r in stage.records()}
    assert sorted(records_by_key) == list(range(20))
    assert [k for k, r in records_by_key.items() if "left_out" in headers(r)] == [7]


def test_a_large_row_after_a_marker(staged: Make, session: Any) -> None:
    """Its dead letter asks for the row by itself, and is replayed when the topic takes it."""
    columns = "p int, c int, v text, PRIMARY KEY (p, c)"
    stage = staged(columns, errors_large_record="dead-letter")
    for c in range(3):
        session.execute(
            f"INSERT INTO large.{stage.settings.table} (p, c, v) VALUES (1, {c}, %s)",
            ("x" * (LARGE if c == 2 else 10),),
        )
    outcome = stage.run([stage.event(b"\0\0\0\1", None, scope=Scope.PARTITION)])
    assert (outcome.published, outcome.records, outcome.too_large) == (1, 3, 1)
    (dead_letter,) = stage.dead_letters()
    change = decode(dead_letter.value())
    assert (change.scope, change.node, change.digest) == (Scope.ROW, None, None)
    assert stage.codec.decode(dead_letter.key()) == (b"\0\0\0\1", b"\0\0\0\2")


def test_replay(staged: Make, session: Any, status: Status, tmp_path: Path) -> None:
    stage = staged(errors_large_record="dead-letter", errors_tolerance="all")
    fill(session, stage)
    events = [stage.event(key) for key in keys(3)]
    poison = stage.event(b"\0\0\0\1")
    stage.run([*events, type(poison)(poison.topic, 0, poison.offset, 0, poison.key, b"no event")])
    assert len(stage.dead_letters()) == 2

    worker = write_properties(
        tmp_path / "worker.properties",
        {"bootstrap.servers": stage.bootstrap, "checkpoint.dir": tmp_path, "log.level": "error"},
    )
    properties = {"name": stage.settings.name, "keyspace": "large", "table": stage.settings.table}
    table = write_properties(tmp_path / "t.properties", {**properties, "output.format": "key-value-json"})
    assert replayed(worker, table) == 2
    assert replayed(worker, table) == 0, "what was replayed is not replayed again"
    replayed_events = list(messages(stage.bootstrap, stage.settings.events))
    assert [m.key() for m in replayed_events] == [events[1].key, poison.key]
    assert replayed_events[1].value() == b"no event", "as it was"
    assert decode(replayed_events[0].value()).node is None, "no copy of what is confirmed"

    stage.topic_takes(10_000_000)
    other = staged(producer={"message.max.bytes": "10000000"})
    other.run(
        [
            stage.event(b"\0\0\0\0"),
            type(poison)(stage.settings.events, 0, 9, 0, replayed_events[0].key(), replayed_events[0].value()),
        ]
    )
    values = {json.loads(r.key())["k"]: json.loads(r.value()) for r in stage.records()}
    assert values[1]["v"] == "v" * LARGE

    stage.log.create("events-another", 1, {})
    dead_letter_of_another = write_properties(
        tmp_path / "u.properties",
        {**properties, "name": "u", "output.format": "key-value-json", "events.topic": "events-another"},
    )
    assert replayed(worker, dead_letter_of_another) == 0, "they are of other events"


def replayed(*files: Path) -> int:
    process = run("replay", *files)
    assert process.returncode == 0, process.stderr
    return int(re.search(r": (\d+) events? replayed from dlq-", process.stdout)[1])  # type: ignore[index]


def run(*arguments: object) -> Any:
    return subprocess.run(
        [script("helenus-connector"), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_a_partition_of_many_rows(staged: Make, session: Any) -> None:
    """Live rows after a marker are streamed; no more than a page of them is held."""
    stage = staged("p int, c int, v text, PRIMARY KEY (p, c)")
    insert = session.prepare(f"INSERT INTO large.{stage.settings.table} (p, c, v) VALUES (1, ?, ?) USING TIMESTAMP 1")
    execute_concurrent_with_args(session, insert, [(c, "v" * 100) for c in range(5_000)], concurrency=200)
    outcome = stage.run([stage.event(b"\0\0\0\1", None, scope=Scope.PARTITION)])
    assert outcome.records == 5_001
    records = stage.records()
    assert headers(records[0])["scope"] == b"partition"
    assert [json.loads(r.key())["c"] for r in records[1:]] == list(range(5_000))


def test_a_table_of_300_columns(staged: Make, session: Any, status: Status) -> None:
    kinds = {"int": 7, "text": "x", "double": 1.5, "map<text, int>": {"a": 1}, "set<int>": {1, 2}, "boolean": True}
    names = {f"c{i}": list(kinds)[i % len(kinds)] for i in range(299)}
    columns = ", ".join(f"{name} {kind}" for name, kind in names.items())
    stage = staged(
        f"k int PRIMARY KEY, {columns}",
        output_format="key-value-avro",
        value_converter_schema_registry_url=status.registry_url,
    )
    insert = session.prepare(
        f"INSERT INTO large.{stage.settings.table} (k, {', '.join(names)}) VALUES (?{', ?' * 299})"
    )
    for k in range(50):
        session.execute(insert, (k, *(kinds[kind] if i % 50 != k else None for i, kind in enumerate(names.values()))))
    outcome = stage.run([stage.event(key) for key in keys(50)])
    assert outcome.records == 50
    decoder = Decoder(status.registry_url)
    try:
        for record in map(decoder.record, stage.records()):
            assert record.value is not None
            shown = {n: set(v) if isinstance(v, list) else v for n, v in record.value.items()}
            assert shown == {
                n: kinds[kind] if i % 50 != record.key["k"] else None for i, (n, kind) in enumerate(names.items())
            }
    finally:
        decoder.close()


FIVE_MB = 5_000_000


def _is_back(session: Any) -> None:
    """The driver meets the node again a while after it is there."""

    def answers() -> bool:
        try:
            return bool(session.execute("SELECT release_version FROM system.local").one())
        except (DriverException, NoHostAvailable):
            return False

    eventually(answers, "the driver reaches Cassandra again")


@pytest.fixture
def roomy(stack: Stack, session: Any) -> Iterator[None]:
    """The node with segments that take a mutation of 6 MB: half a segment is the most that Cassandra logs."""
    stack.stop("cassandra")
    Stack(stack.directory, cassandra_yaml={"commitlog_segment_size": "12MiB"}).start("cassandra")
    _is_back(session)
    yield
    stack.stop("cassandra")
    stack.start("cassandra")
    _is_back(session)


@pytest.mark.long  # smaller ones above, and agent/test_large_events.py
def test_a_value_of_5_mb_where_the_broker_takes_1(
    roomy: None, staged: Make, session: Any, status: Status, tmp_path: Path
) -> None:
    """From the commit log to the topic, by every policy, and whole when the limits are raised. Nothing stalls."""
    value = random.Random(2).randbytes(FIVE_MB)
    eventually(lambda: _answers(session), "the driver is connected again")
    stage = staged("k int PRIMARY KEY, a int, w blob", errors_large_record="fail")
    table = f"large.{stage.settings.table}"
    insert = session.prepare(f"INSERT INTO {table} (k, a, w) VALUES (?, ?, ?)")
    pipeline = Pipeline(status, tmp_path / "agent")
    try:
        agent = {**pipeline.agent_properties(pipeline.agent.port), "table.include.list": re.escape(table)}
        write_properties(tmp_path / "agent" / "agent.properties", agent)
        pipeline.agent.start().ready()
        for k in range(3):
            session.execute(insert, (k, k, value if k == 1 else b"w"))
        sent = eventually(lambda: _complete(status, stage.settings.events, 3), "the agent's events")
        assert pipeline.agent.stop() == 0
    finally:
        pipeline.stop()
    events = [Event(m.topic(), 0, m.offset(), m.timestamp()[1], m.key(), m.value()) for m in sent]

    with pytest.raises(HelenusError, match=r"a record of \d+ bytes, where 1000000 are allowed") as error:
        stage.run(events)
    assert error.value.kind is Kind.RECORD_TOO_LARGE
    in_base64 = FIVE_MB * 4 // 3
    assert in_base64 < int(re.search(r"of (\d+) bytes", error.value.what)[1]) < in_base64 + 500  # type: ignore[index]
    stage.log.close()

    letters = staged("")
    assert letters.run(events).dead_lettered == 1
    (dead_letter,) = letters.dead_letters()
    assert (dead_letter.key(), dead_letter.value()) == (events[1].key, events[1].value)

    reference = staged("", errors_large_record="reference")
    assert reference.run(events).published == 3
    shown = {json.loads(r.key())["k"]: r for r in reference.records()}
    assert json.loads(shown[1].value()) == {"a": 1, "w": None}
    assert json.loads(headers(shown[1])["left_out"]) == ["w"]

    whole = staged("", producer={"message.max.bytes": "10000000"})
    whole.topic_takes(10_000_000)
    assert whole.run(events).published == 3
    last = {json.loads(r.key())["k"]: r for r in whole.records()}
    assert b64decode(json.loads(last[1].value())["w"]) == value
    assert json.loads(last[2].value())["a"] == 2


def _answers(session: Any) -> bool:
    try:
        session.execute("SELECT key FROM system.local")
    except Exception:  # it is not up yet
        return False
    return True


def _complete(status: Status, topic: str, count: int) -> list[Any]:
    records = list(messages(status.bootstrap_servers, topic))
    return records if len(records) == count else []


def test_a_row_of_too_many_tombstones(staged: Make, session: Any) -> None:
    """Cassandra fails to read it, and its partition: both wait alone, and are dead letters in the end."""
    stage = staged("k int, c int, m set<int>, v text, PRIMARY KEY (k, c)", errors_tolerance="all")
    name = stage.settings.table
    for k in range(3):
        session.execute(f"INSERT INTO large.{name} (k, c, v) VALUES ({k}, 0, 'v')")
    delete = session.prepare(f"UPDATE large.{name} SET m = m - ? WHERE k = 1 AND c = 0")
    for start in range(0, 110_000, 10_000):
        session.execute(delete, [set(range(start, start + 10_000))])
    whole = [stage.event(k, None, scope=Scope.PARTITION) for k in keys(2)]
    with capture_logs() as logs:
        outcome = stage.run([stage.event(k, (0).to_bytes(4, "big")) for k in keys(3)])
        assert (outcome.published, outcome.unread) == (2, 1)
        outcome = stage.run(whole, outcome.waiting)
        assert (outcome.published, outcome.unread) == (1, 2)
        for _ in range(MOST_READS):
            waiting = [p for p in outcome.waiting if p.unread]
            outcome = stage.run([], waiting)
    assert [p for p in outcome.waiting if p.unread] == []
    assert {json.loads(r.key())["k"] for r in stage.records()} == {0, 2}
    assert len(stage.dead_letters()) == 2
    assert any("k = 1 AND c = 0" in entry["error"] for entry in logs)
