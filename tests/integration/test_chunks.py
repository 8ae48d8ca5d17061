"""Records in chunks on Kafka: written by a stage, read whole by Python and Java, compacted, and interrupted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from integration.staged import NODE, Staged, headers, keys

from helenus_schemas.event.change import Bound, Change, Scope
from helenus_schemas.event.wire import encode
from helenus_sinks.chunks import HEADER, chunk_topic
from helenus_sinks.kafka.chunk_reader import ChunkReader
from helenus_stack.records import messages
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

Make = Callable[..., Staged]


@pytest.fixture
def staged(status: Status, session: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes stages of a table of the test's own in keyspace `chunks`, with `errors.large.record=chunk`."""
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS chunks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    made: list[Staged] = []

    def make(columns: str = "k int PRIMARY KEY, a int, v text", **more: Any) -> Staged:
        name = f"chunks.{request.node.name[5:40]}"
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


def insert(session: Any, stage: Staged, k: int, a: int, v: str | None, write_time: int = 1) -> None:
    name = f"{stage.settings.keyspace}.{stage.settings.table}"
    session.execute(f"INSERT INTO {name} (k, a, v) VALUES (%s, %s, %s) USING TIMESTAMP {write_time}", (k, a, v))


def kept(stage: Staged, has_chunks: bool) -> dict[bytes, bytes]:
    """What compaction would keep of the topic's first partition, which has chunks, or of the second."""
    records = messages(stage.bootstrap, chunk_topic(stage.settings.data))
    by_key = {m.key(): m.value() for m in records if (m.partition() == 0) is has_chunks}
    return {key: value for key, value in by_key.items() if value is not None}


def chunks_of(stage: Staged) -> dict[bytes, bytes]:
    """The chunks, by key."""
    return kept(stage, True)


def noted(stage: Staged) -> dict[bytes, bytes]:
    """The rows that are noted to have chunks, by record key."""
    return kept(stage, False)


def test_a_large_row_is_read_whole(staged: Make, session: Any, reader: ChunkReader) -> None:
    stage = staged()
    large = text(2_500_000)
    for k in range(3):
        insert(session, stage, k, k, large if k == 1 else "small")
    outcome = stage.run([stage.event(key) for key in keys(3)])
    assert (outcome.published, outcome.records, outcome.too_large, outcome.dead_lettered) == (3, 3, 1, 0)
    by_key = {json.loads(m.key())["k"]: m for m in stage.records()}
    # Who knows nothing of chunks has the record without its largest column.
    assert json.loads(by_key[1].value()) == {"a": 1, "v": None}
    assert json.loads(headers(by_key[1])["left_out"]) == ["v"]
    assert len(chunks_of(stage)) == 3
    whole = {k: reader.read(message) for k, message in by_key.items()}
    assert all(record.is_whole for record in whole.values())
    assert json.loads(whole[1].value or b"") == {"a": 1, "v": large}
    assert {"left_out", HEADER}.isdisjoint(dict(whole[1].headers))
    assert json.loads(whole[0].value or b"") == {"a": 0, "v": "small"}


def test_chunks_go_with_their_row(staged: Make, session: Any, reader: ChunkReader) -> None:
    """Fewer, none, a deleted row: what compaction keeps is what the last record has; an older record is not whole."""
    stage = staged()
    (key,) = keys(1)
    sizes = [3_500_000, 1_200_000, 20, 1_300_000, None]
    left = []
    for write_time, size in enumerate(sizes, 1):
        if size is None:
            session.execute(f"DELETE FROM chunks.{stage.settings.table} USING TIMESTAMP {write_time} WHERE k = 0")
        else:
            insert(session, stage, 0, write_time, text(size, write_time), write_time)
        assert stage.run([stage.event(key, write_time=write_time)]).published == 1
        left.append(len(chunks_of(stage)))
    assert left == [4, 2, 0, 2, 0]
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
    stage.run([stage.event(scope=Scope.TABLE, write_time=4)])
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
    assert json.loads(reader.read(message).value or b"")["v"] == last
    assert json.loads(reader.read(stage.records()[0]).value or b"")["v"] == first, "not compacted yet"
