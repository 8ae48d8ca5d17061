"""What a writer of chunks does with Pulsar's topics, in memory: what no test with servers shows in a short time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from agent.writer import table_of
from bench.written import Ids

from helenus_connector.config.connector import PulsarConnectorSettings
from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.pipeline import _table_version
from helenus_connector.pipeline.merged_stage import MergedStage
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_sinks.chunks import CHUNK_HEADER, HEADER, ChunkJoiner, MessageChunkReference, chunk_topic
from helenus_sinks.log import Headers
from helenus_sinks.pulsar.log import PulsarLog

NODE = "00000000-0000-0000-0000-000000000001"
TABLE = table_of("t", "k int pk, v text, d decimal")
CHUNKS = chunk_topic("data")
KEY = b"\0\0\0\1"


class ChunkLog(MemoryLog, PulsarLog):
    """A Log in memory: the message id of a value is its place in the topic, in the ledger 5."""

    largest = 0

    def largest_record(self) -> int:
        return self.largest

    def store(
        self, topic: str, partition: int, values: Iterable[tuple[bytes, Headers]], timeout: float
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        first = len(self.records(topic))
        for value, headers in values:
            self.append(topic, partition, None, value, headers)
        self.flush(timeout)
        return (5, first), (5, len(self.records(topic)) - 1)


@pytest.fixture
def log() -> ChunkLog:
    log = ChunkLog({"data": 3}, keeps_schemas=True)
    log.largest = 2000
    return log


def write(log: ChunkLog, directory: Path, monkeypatch: pytest.MonkeyPatch, **columns: Any) -> None:
    """Publish a row whose columns have these bytes."""
    keys = {"keyspace": TABLE.keyspace, "table": TABLE.name, "name": "t", "state": "rows", "query.group": "rows"}
    more = {"errors.large.record": "chunk", "data.topic": "data", "output.format": "key-value-json"}
    settings = PulsarConnectorSettings.from_properties({**keys, **more}, "test")
    monkeypatch.setattr(_table_version, "read_definition", lambda *_, **__: (1, TABLE))
    session = MemorySession([Host(NODE)], {TABLE.keyspace: 1})
    stage = MergedStage(settings, session, log, lambda *_: None, directory, Ids())
    stage.begin(TABLE)
    key = KeyCodec(TABLE).encode((KEY,))
    stage.take_all([RowChange(0, key, Scope.ROW, "u", {}, columns, 1, None, None, None)])
    stage.end()
    stage.confirm()


def test_a_value_is_where_its_record_says(log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(log, tmp_path, monkeypatch, v=b"x" * 5000)
    (record,) = log.records("data")
    reference = MessageChunkReference.parse(dict(record.headers)[HEADER])
    assert (reference.count, reference.message_ids) == (4, ((5, 0), (5, 3)))
    joiner = ChunkJoiner(reference)
    for chunk in log.records(CHUNKS):
        assert (chunk.key, chunk.partition) == (None, reference.partition)
        joiner.add(dict(chunk.headers)[CHUNK_HEADER], chunk.value)
    assert joiner.value().count(b"x") == 5000
    # Retention alone deletes them, that of the data topic.
    assert (log.counts[CHUNKS], log.configs[CHUNKS]) == (3, {"retention.ms": "-1"})


def test_a_topic_of_chunks_with_other_partitions(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.counts[CHUNKS] = 2
    with pytest.raises(HelenusError, match="it has 2 partitions, where data has 3") as error:
        write(log, tmp_path, monkeypatch, v=b"x" * 5000)
    assert error.value.kind is Kind.PARTITIONS_CHANGED
