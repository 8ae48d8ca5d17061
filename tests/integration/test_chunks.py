"""Records in chunks on Kafka: written by a stage, read whole by Python and Java, compacted, and interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from integration.staged import NODE, Staged, headers, keys
from java_classes import CHUNKS
from patience import eventually
from schemas.java import Program

from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.wire import encode
from helenus_sinks.chunk_reader import ChunkReader
from helenus_sinks.chunks import CHUNK_HEADER, HEADER, BadChunks, ChunkReference, chunk_header, chunk_topic
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.kafka.owners import RecordsOwner
from helenus_stack.records import messages
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

Make = Callable[..., Staged]

TESTS = Path(__file__).parents[1]
COLUMNS = ("v", "w", "x")
PIECE = 1_500_000


@pytest.fixture
def staged(status: Status, session: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes stages of a table of the test's own in keyspace `chunks`, with `errors.large.record=chunk`."""
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS chunks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    made: list[Staged] = []

    def make(columns: str = "k int PRIMARY KEY, a int, v text, w text, x text", **more: Any) -> Staged:
        name = "chunks." + re.sub(r"\W", "_", request.node.name)[5:45]
        session.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) WITH cdc = true")
        made.append(Staged(status, tmp_path / str(len(made)), name, **{"errors_large_record": "chunk", **more}))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


@pytest.fixture
def reader(status: Status) -> Iterator[ChunkReader]:
    chunk_reader = ChunkReader({"bootstrap.servers": status.bootstrap_servers})
    yield chunk_reader
    chunk_reader.close()


def text(size: int, seed: int = 1) -> str:
    return random.Random(seed).randbytes(size // 2 + 1).hex()[:size]


def insert(session: Any, stage: Staged, k: int, a: int, v: str, write_time: int = 1) -> None:
    """Write a row whose columns `v`, `w` and `x` have a text: Cassandra takes no statement of more than 2 MB."""
    name = f"{stage.settings.keyspace}.{stage.settings.table}"
    timed = f"USING TIMESTAMP {write_time}"
    session.execute(f"INSERT INTO {name} (k, a) VALUES (%s, %s) {timed}", (k, a))
    for number, column in enumerate(COLUMNS):
        piece = v[number * PIECE : (number + 1) * PIECE] or None
        session.execute(f"UPDATE {name} {timed} SET {column} = %s WHERE k = %s", (piece, k))


def joined(value: bytes | None) -> str:
    """The text that `insert` wrote."""
    row = json.loads(value or b"")
    return "".join(row[column] or "" for column in COLUMNS)


def records_of_topic(stage: Staged, has_chunks: bool) -> dict[bytes, bytes]:
    """What compaction would keep of the topic's first partition, which has chunks, or of the second."""
    records = messages(stage.bootstrap, chunk_topic(stage.settings.data))
    by_key = {m.key(): m.value() for m in records if (m.partition() == 0) is has_chunks}
    return {key: value for key, value in by_key.items() if value is not None}


def chunks_of(stage: Staged) -> dict[bytes, bytes]:
    """The chunks, by key."""
    return records_of_topic(stage, True)


def noted(stage: Staged) -> dict[bytes, bytes]:
    """The rows that are noted to have chunks, by record key."""
    return records_of_topic(stage, False)


def test_a_large_row_is_read_whole(staged: Make, session: Any, reader: ChunkReader) -> None:
    stage = staged()
    large = text(2_700_000)
    for k in range(3):
        insert(session, stage, k, k, large if k == 1 else "small")
    outcome = stage.run([stage.event(key) for key in keys(3)])
    assert (outcome.published, outcome.records, outcome.too_large, outcome.dead_lettered) == (3, 3, 1, 0)
    by_key = {json.loads(m.key())["k"]: m for m in stage.records()}
    # Who knows nothing of chunks has the record without its largest column.
    assert json.loads(by_key[1].value()) == {"a": 1, "v": None, "w": None, "x": None}
    assert json.loads(headers(by_key[1])["left_out"]) == ["v", "w"]
    assert len(chunks_of(stage)) == 3
    whole = {k: reader.read(message) for k, message in by_key.items()}
    assert all(record.is_whole for record in whole.values())
    assert joined(whole[1].value) == large
    assert {"left_out", HEADER}.isdisjoint(dict(whole[1].headers))
    assert joined(whole[0].value) == "small"


def test_avro(staged: Make, session: Any, status: Status, reader: ChunkReader) -> None:
    """Ordinary records of a group are made and appended together: there too a row's chunks are known."""
    registry = {"output_format": "key-value-avro", "value_converter_schema_registry_url": status.registry_url}
    stage = staged("k int PRIMARY KEY, v text", **registry)
    large, name = text(1_500_000), f"chunks.{stage.settings.table}"
    for k, key in enumerate(keys(2)):
        session.execute(f"INSERT INTO {name} (k, v) VALUES (%s, %s) USING TIMESTAMP 1", (k, large if k else "s"))
        stage.run([stage.event(key)])
    (message,) = [m for m in stage.records() if HEADER in headers(m)]
    value = reader.read(message).value or b""
    assert value[:1] == b"\0"
    assert large.encode() in value
    assert len(chunks_of(stage)) == 2
    session.execute(f"UPDATE {name} USING TIMESTAMP 2 SET v = 's' WHERE k = 1")
    stage.run([stage.event(key, write_time=2) for key in keys(2)])
    assert chunks_of(stage) == {}


def test_chunks_go_with_their_row(staged: Make, session: Any, reader: ChunkReader) -> None:
    """Fewer, none, a deleted row: what compaction keeps is what the last record has; an older record is not whole."""
    stage = staged()
    (key,) = keys(1)
    sizes = [3_500_000, 1_200_000, 20, 1_300_000, None]
    chunk_counts = []
    for write_time, size in enumerate(sizes, 1):
        if size is None:
            session.execute(f"DELETE FROM chunks.{stage.settings.table} USING TIMESTAMP {write_time} WHERE k = 0")
        else:
            insert(session, stage, 0, write_time, text(size, write_time), write_time)
        assert stage.run([stage.event(key, write_time=write_time)]).published == 1
        chunk_counts.append(len(chunks_of(stage)))
    assert chunk_counts == [4, 2, 0, 2, 0]
    insert(session, stage, 0, 9, "small", 9)
    stage.run([stage.event(key, write_time=9)])  # the next batch notes that the row has none
    assert noted(stage) == {}


def test_another_writer_of_the_partition(staged: Make, session: Any) -> None:
    """Each knows of the chunks that the other wrote."""
    first, second = staged(), staged()
    (key,) = keys(1)
    insert(session, first, 0, 1, text(1_500_000), 1)
    first.run([first.event(key, write_time=1)])
    insert(session, first, 0, 2, "small", 2)
    second.run([second.event(key, write_time=2, digest="2")])
    assert chunks_of(first) == {}
    insert(session, first, 0, 3, text(1_500_000, 3), 3)
    first.run([first.event(key, write_time=3, digest="3")])
    second.run([second.event(key, write_time=3, digest="3")])  # would note that the row has none, if it did not look
    assert len(chunks_of(first)) == 2
    session.execute(f"DELETE FROM chunks.{first.settings.table} USING TIMESTAMP 4 WHERE k = 0")
    first.run([first.event(key, write_time=4, digest="4")])
    assert chunks_of(first) == {}


def test_delete_markers(staged: Make, session: Any) -> None:
    """A partition, a range, a table: the chunks of the rows in their scope go, of others they stay."""
    stage = staged("p int, c int, v text, PRIMARY KEY (p, c)")
    name = stage.settings.table
    big = [c.to_bytes(4, "big") for c in range(4)]
    for p, c in ((1, 0), (1, 1), (1, 2), (2, 0)):
        session.execute(
            f"INSERT INTO chunks.{name} (p, c, v) VALUES (%s, %s, %s) USING TIMESTAMP 1", (p, c, text(1_100_000))
        )
    stage.run([stage.event(big[1], big[c]) for c in range(3)] + [stage.event(big[2], big[0])])
    assert len(chunks_of(stage)) == 8

    session.execute(f"DELETE FROM chunks.{name} USING TIMESTAMP 2 WHERE p = 1 AND c > 1")
    stage.run([_range(stage, big[1], Bound(False, (big[1],)), None)])
    assert len(chunks_of(stage)) == 6
    session.execute(f"DELETE FROM chunks.{name} USING TIMESTAMP 3 WHERE p = 1")
    stage.run([stage.event(big[1], None, scope=Scope.PARTITION, write_time=3)])
    assert len(chunks_of(stage)) == 2
    session.execute(f"TRUNCATE chunks.{name}")
    truncation = Change("e" * 32, NODE, Scope.TABLE, write_time=4, segment=1, position=60)
    stage.run([stage.event(big[1], None)._replace(key=None, value=encode(truncation))])
    assert chunks_of(stage) == {}


def _range(stage: Staged, partition_key: bytes, start: Bound | None, end: Bound | None) -> Any:
    event = stage.event(partition_key, None, scope=Scope.RANGE)
    change = Change("d" * 32, NODE, Scope.RANGE, write_time=2, start=start, end=end)
    return event._replace(value=encode(change))


def test_what_can_not_be_in_chunks_is_a_dead_letter(staged: Make, session: Any) -> None:
    stage = staged(errors_large_record_max_bytes=1_500_000)
    insert(session, stage, 0, 0, text(1_400_000))
    insert(session, stage, 1, 1, text(1_600_000))
    outcome = stage.run([stage.event(key) for key in keys(2)])
    assert (outcome.published, outcome.dead_lettered, outcome.too_large) == (1, 1, 2)


def test_a_reader_that_begins_in_the_middle(staged: Make, session: Any, reader: ChunkReader) -> None:
    """Any record can be read alone, in any order; what its chunks were is not what they are now."""
    stage = staged()
    first, last = text(1_500_000, 1), text(1_600_000, 2)
    (key,) = keys(1)
    for write_time, value in enumerate((first, last), 1):
        insert(session, stage, 0, write_time, value, write_time)
        stage.run([stage.event(key, write_time=write_time)])
    consumer = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": "middle"})
    consumer.assign([TopicPartition(stage.settings.data, 0, 1)])
    message = consumer.poll(10)
    consumer.close()
    assert joined(reader.read(message).value) == last
    assert joined(reader.read(stage.records()[0]).value) == first, "not compacted yet"


TO_KILL = """
import sys, json
from pathlib import Path
from types import SimpleNamespace
from java_classes import CHUNKS
from patience import eventually
from schemas.java import Program
from integration.staged import Staged, keys
status, directory, table = SimpleNamespace(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
stage = Staged(status, directory, table, errors_large_record="chunk")
stage.run([stage.event(next(keys(1)), digest="killed")])
"""


@pytest.mark.parametrize("point", ["chunks-noted", "between-chunks", "after-chunks"])
def test_a_killed_writer(
    staged: Make, session: Any, status: Status, reader: ChunkReader, tmp_path: Path, point: str
) -> None:
    """What it left is found by the next one: read whole if the row is as large still, deleted if it is small."""
    stage = staged()
    insert(session, stage, 0, 1, text(2_500_000), 1)
    names = ("contact_points", "cql_port", "local_dc", "bootstrap_servers")
    server_addresses = json.dumps({name: getattr(status, name) for name in names})
    environment = os.environ | {"HELENUS_FAILPOINT": f"connector.{point}", "PYTHONPATH": os.pathsep.join(sys.path)}
    table = f"chunks.{stage.settings.table}"
    command = [sys.executable, "-c", TO_KILL, server_addresses, str(tmp_path / "killed"), table]
    assert subprocess.run(command, env=environment, capture_output=True, timeout=120).returncode == -signal.SIGKILL
    assert stage.records() == []
    (key,) = keys(1)
    if point == "between-chunks":
        insert(session, stage, 0, 2, "small", 2)
        stage.run([stage.event(key, write_time=2)])
        assert chunks_of(stage) == {}
    else:
        stage.run([stage.event(key)])
        (message,) = stage.records()
        assert joined(reader.read(message).value) == text(2_500_000)


class _Transaction:
    """A batch's transaction of an `OwnedKafkaLog`, which may be aborted where it would be committed."""

    def __init__(self, log: OwnedKafkaLog, is_aborted: bool) -> None:
        self._log, self._is_aborted = log, is_aborted

    def flush(self, timeout: float) -> None:
        self._log.deliver(timeout)

    def abort(self) -> None:
        self._log.close()

    def commit(self, outcome: BatchOutcome, timeout: float) -> None:
        if self._is_aborted:
            self._log.close()
            raise HelenusError(Kind.APPEND_FAILED, "aborted")
        self._log.commit({}, timeout)


def test_a_transaction_that_is_aborted(staged: Make, session: Any, reader: ChunkReader) -> None:
    """Record, chunks and note are in one transaction: none is there for readers of what is committed, or all are."""
    stage = staged()
    insert(session, stage, 0, 1, text(1_600_000), 1)
    log = OwnedKafkaLog({"bootstrap.servers": stage.bootstrap}, RecordsOwner("run-chunks", 1, "test"), 0)
    stage.stage.log = log
    events = [stage.event(key) for key in keys(1)]
    try:
        with pytest.raises(HelenusError, match="aborted"):
            stage.stage.run(events, (), True, transaction=_Transaction(log, True))
        assert (stage.records(), chunks_of(stage), noted(stage)) == ([], {}, {})
        stage.stage.run(events, (), True, transaction=_Transaction(log, False))
    finally:
        log.close()
    (message,) = stage.records()
    assert joined(reader.read(message).value) == text(1_600_000)
    assert len(noted(stage)) == 1


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Program:
    directory = tmp_path_factory.mktemp("java")
    with zipfile.ZipFile(CHUNKS) as jar:
        jar.extractall(directory)
    return Program(directory, TESTS / "sinks" / "ChunkConsumer.java", "connect")


def test_java(staged: Make, session: Any, consumer: Program) -> None:
    """A consumer and a converter of Connect have the whole values; what no connector wrote is refused by both."""
    stage = staged()
    large = text(3_200_000)
    insert(session, stage, 0, 0, "small")
    insert(session, stage, 1, 1, large)
    stage.run([stage.event(key) for key in keys(2)])
    message = next(m for m in stage.records() if HEADER in headers(m))
    reference = json.loads(headers(message)[HEADER])
    hostile = [reference | {"size": 2**40}, reference | {"sha256": "0" * 64}, reference | {"last": 10**9}, {}]
    hostile.append(reference | {"partition": 9})
    for number, wrong in enumerate(hostile):
        encoded = json.dumps(wrong, separators=(",", ":")).encode()
        stage.log.append(stage.settings.data, 0, b"%d" % number, b"{}", [(HEADER, encoded)])
    stage.log.append(stage.settings.data, 0, b"gone", b"{}", [(HEADER, _moved(reference, 10**6))])
    stage.log.flush(30)
    whole, _, converted = consumer.run(stage.bootstrap, stage.settings.data, "leave").partition("converter\n")
    lines = [line.split("\t") for line in whole.splitlines()]
    values = {line[0]: line[1:] for line in lines}
    row = {"a": 1, "v": large[:PIECE], "w": large[PIECE : 2 * PIECE], "x": large[2 * PIECE :]}
    written = json.dumps(row, separators=(",", ":")).encode()
    assert values['{"k":1}'] == [hashlib.sha256(written).hexdigest(), "schema_id,writetime"]
    assert values["gone"] == [hashlib.sha256(b"{}").hexdigest(), HEADER]
    refused = [line for line in lines if line[0].startswith("offset")]
    assert [line[1] for line in refused] == ["SerializationException"] * 5
    assert ["bytes, where" in refused[0][2], "not those" in refused[1][2], "can't be" in refused[2][2]] == [True] * 3
    by_key = {line.split("\t")[0]: line.split("\t")[1] for line in converted.splitlines()}
    assert by_key['{"k":1}'] == hashlib.sha256(large.encode()).hexdigest()
    assert by_key['{"k":0}'] == hashlib.sha256(b"small").hexdigest()
    assert sum("SerializationException" in text for text in by_key.values()) == 5


def test_hostile_chunks(staged: Make, session: Any, reader: ChunkReader) -> None:
    stage = staged()
    insert(session, stage, 0, 1, text(1_500_000))
    stage.run([stage.event(key) for key in keys(1)])
    (message,) = stage.records()
    reference = ChunkReference.parse(headers(message)[HEADER])
    data = stage.settings.data
    assert reader.value(data, reference) is not None
    assert reader.value(data, ChunkReference.parse(_moved(asdict(reference), 10**6))) is None, "no such offset"
    with pytest.raises(BadChunks, match="SHA-256"):
        reader.value(data, replace(reference, sha256="0" * 64))
    with pytest.raises(BadChunks, match="more than"):
        reader.value(data, replace(reference, size=1000))
    with pytest.raises(BadChunks, match="no partition 7"):
        reader.value(data, replace(reference, partition=7))
    with pytest.raises(HelenusError) as error:
        reader.value("another", reference)
    assert error.value.kind is Kind.TOPIC_MISSING
    small = ChunkReader({"bootstrap.servers": stage.bootstrap}, max_bytes=1000)
    with pytest.raises(BadChunks, match="1000 are allowed"):
        small.read(message)
    small.close()


class LateChunks:
    """A value in two chunks, which a broker shows one after the other: it learns late what is acknowledged, for a
    moment after it has become the leader.
    """

    value = b'{"v":"0123456789"}'
    reference = ChunkReference("a" * 32, 2, len(value), hashlib.sha256(value).hexdigest(), 0, 0, 1)

    def __init__(self, log: KafkaLog, topic: str) -> None:
        self._log, self._topic = log, chunk_topic(topic)
        log.create(self._topic, 1, {})
        self.show(0)

    def show(self, number: int) -> None:
        header = (CHUNK_HEADER, chunk_header(self.reference.id, number))
        self._log.append(self._topic, 0, b"%d" % number, self.value[number * 9 : number * 9 + 9], [header])
        self._log.flush(30)


def test_a_broker_that_learns_late_what_is_acknowledged(status: Status, reader: ChunkReader) -> None:
    brokers = {"bootstrap.servers": status.bootstrap_servers}
    hasty_reader = ChunkReader(brokers, timeout_s=2)
    with closing(KafkaLog(brokers)) as log, ThreadPoolExecutor(1) as pool, closing(hasty_reader):
        late = LateChunks(log, "late")
        assert hasty_reader.value("late", late.reference) is None, "the topic is mirrored, or another one"
        value = pool.submit(reader.value, "late", late.reference)
        time.sleep(1)
        late.show(1)
        assert value.result() == late.value


@pytest.mark.long  # a JVM has to be reading when the chunk comes
def test_java_and_a_broker_that_learns_late(status: Status, consumer: Program) -> None:
    topic = "late_java"
    with closing(KafkaLog({"bootstrap.servers": status.bootstrap_servers})) as log, ThreadPoolExecutor(1) as pool:
        late = LateChunks(log, topic)
        log.create(topic, 1, {})
        log.append(topic, 0, b"k", b"{}", [(HEADER, late.reference.encode())])
        log.flush(30)
        shown = pool.submit(consumer.run, status.bootstrap_servers, topic, "leave")
        time.sleep(12)
        late.show(1)
        assert shown.result().split("\t")[:2] == ["k", hashlib.sha256(late.value).hexdigest()]


def _moved(reference: dict[str, Any], offsets: int) -> bytes:
    moved = {"offset": reference["offset"] + offsets, "last": reference["last"] + offsets}
    return json.dumps(reference | moved, separators=(",", ":")).encode()


@pytest.mark.long  # waits for the broker's cleaner
def test_compaction(staged: Make, session: Any, reader: ChunkReader) -> None:
    """Of a row that is small, or gone, no chunk is left on the broker's disk; the last large one can be read."""
    settings = {"segment.ms": 1000, "min.cleanable.dirty.ratio": 0.001, "delete.retention.ms": 1}
    stage = staged(**{f"topic_creation_default_{key.replace('.', '_')}": value for key, value in settings.items()})
    for write_time in range(1, 4):
        for k, key in enumerate(keys(2)):
            insert(
                session, stage, k, write_time, text(1_500_000, write_time) if k or write_time < 3 else "s", write_time
            )
            stage.run([stage.event(key, write_time=write_time)])
    chunks = chunk_topic(stage.settings.data)
    old, *_, last = [m for m in stage.records() if json.loads(m.key()) == {"k": 1}]

    def is_compacted() -> bool:
        stage.log.append(chunks, 0, b"other", b"", [])  # rolls the segment
        stage.log.flush(30)
        large = [m for m in messages(stage.bootstrap, chunks) if m.partition() == 0 and len(m.value() or b"") > 1000]
        return len(large) == 2

    eventually(is_compacted, "the cleaner leaves the chunks of the last value")
    assert joined(reader.read(last).value) == text(1_500_000, 3)
    superseded = reader.read(old)
    assert not superseded.is_whole
    assert superseded.value == old.value()
