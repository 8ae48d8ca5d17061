"""What a writer of chunks does with a topic of them, in memory: what no test with servers shows in a short time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agent.writer import table_of
from bench.written import Ids

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.pipeline import _table_version
from helenus_connector.pipeline.merged_stage import MergedStage
from helenus_connector.testing.cassandra import Host, MemorySession
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Bound, Scope
from helenus_sinks.chunks import HEADER, ChunkReference, chunk_topic
from helenus_sinks.kafka.log import KafkaLog

NODE = "00000000-0000-0000-0000-000000000001"
TABLE = table_of("t", "k int pk, c text ck, d int ck, v text")


class _Message(NamedTuple):
    position: int
    record: Any

    def offset(self) -> int:
        return self.position

    def key(self) -> bytes | None:
        key: bytes | None = self.record.key
        return key

    def value(self) -> bytes | None:
        value: bytes | None = self.record.value
        return value

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self.record.headers)


class ChunkLog(MemoryLog, KafkaLog):
    """A Log in memory with a reader: of what is acknowledged, as the brokers have it."""

    largest = 0

    def start(self) -> None:
        pass

    def deliver(self, timeout: float) -> None:
        self.flush(timeout)

    def partition_reader(self) -> Any:
        return self

    def end(self, topic: str, partition: int) -> int:
        return len(self.messages(topic, partition))

    def messages(self, topic: str, partition: int) -> list[_Message]:
        records = [record for record in self.acknowledged if (record.topic, record.partition) == (topic, partition)]
        return [_Message(offset, record) for offset, record in enumerate(records)]

    def records(self, topic: str, partition: int = 0, offset: int = -2, end: int = 0) -> Iterator[Any]:  # type: ignore[override]
        assert self.end(topic, partition) >= end
        yield from self.messages(topic, partition)[max(0, offset) :]

    def last_values(self, topic: str, partition: int) -> dict[bytes | None, bytes]:
        """What compaction keeps."""
        values = {message.key(): message.value() for message in self.messages(topic, partition)}
        return {key: value for key, value in values.items() if value is not None}


@pytest.fixture
def log() -> ChunkLog:
    log = ChunkLog()
    log.largest = 2000
    return log


class Writer:
    """A stage of `state=rows`."""

    def __init__(self, log: ChunkLog, directory: Path, monkeypatch: pytest.MonkeyPatch, table: Table = TABLE) -> None:
        keys = {"keyspace": table.keyspace, "table": table.name, "name": "t", "state": "rows", "query.group": "rows"}
        more = {"value.converter.schema.registry.url": "http://127.0.0.1:1", "errors.large.record": "chunk"}
        self.settings = ConnectorSettings.from_properties({**keys, **more, "data.topic": "data"}, "test")
        monkeypatch.setattr(_table_version, "read_definition", lambda *_, **__: (1, table))
        log.counts.setdefault("data", 1)
        session = MemorySession([Host(NODE)], {table.keyspace: 1})
        directory.mkdir(exist_ok=True)
        self.log, self.table = log, table
        self.stage = MergedStage(self.settings, session, log, lambda *_: None, directory, Ids())
        self.codec = KeyCodec(table)

    def write(self, *rows: tuple[tuple[bytes, ...], int | None], is_confirmed: bool = True) -> None:
        """Publish rows, by key, with a value of so many bytes, None for a row that is gone."""
        self.write_columns(
            *((key, None if size is None else {"v": size}) for key, size in rows), is_confirmed=is_confirmed
        )

    def write_columns(self, *rows: tuple[tuple[bytes, ...], dict[str, int] | None], is_confirmed: bool = True) -> None:
        """The same with a value of so many bytes in each column."""
        self.stage.begin(self.table)
        for key, sizes in rows:
            after = None if sizes is None else {column: b"x" * size for column, size in sizes.items()}
            event_key = self.codec.encode(key)
            op = "u" if sizes is not None else "d"
            before = {"v": b""}
            self.stage.take_all([RowChange(0, event_key, Scope.ROW, op, before, after, 1, None, None, None)])
        self.stage.end()
        if is_confirmed:
            self.stage.confirm()

    def chunks(self) -> dict[bytes | None, bytes]:
        return self.log.last_values(chunk_topic("data"), 0)

    def notes(self) -> dict[bytes | None, bytes]:
        return self.log.last_values(chunk_topic("data"), 1)


def row(k: int, c: bytes = b"c", d: bytes = b"\0\0\0\1") -> tuple[bytes, ...]:
    return k.to_bytes(4, "big"), c, d


def references(log: ChunkLog) -> list[ChunkReference]:
    """Those that records have. Raises BadChunks for one that no reader takes."""
    headers = [dict(message.headers()) for message in log.messages("data", 0)]
    return [ChunkReference.parse(header[HEADER]) for header in headers if HEADER in header]


def test_no_nulls_lie_between_the_chunks_of_a_value(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was deleted before, and however many chunks the row had: readers take no wider reference."""
    writer = Writer(log, tmp_path, monkeypatch)
    writer.write((row(1), 1_000_000), (row(2), 1_000_000), (row(3), 1_900_000))
    writer.write((row(1), None), (row(2), 1), (row(3), 3000))
    (*_, last) = references(log)
    chunks = log.messages(chunk_topic("data"), 0)[last.offset : last.last + 1]
    assert b"".join(chunk.value() or b"" for chunk in chunks).count(b"x") == 3000
    assert (last.count, last.last - last.offset) == (3, 2)
    assert len(writer.chunks()) == 3


def test_rows_that_are_small_again_are_noted_no_more(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each of their records would delete their chunks once more, for ever."""
    writer = Writer(log, tmp_path, monkeypatch)
    writer.write((row(1), 3000))
    writer.write((row(1), 1))
    assert (len(writer.notes()), writer.chunks()) == (1, {})
    writer.write((row(2), 1))
    assert writer.notes() == {}
    appended = log.end(chunk_topic("data"), 0)
    writer.write((row(1), 2))
    assert log.end(chunk_topic("data"), 0) == appended


def test_a_row_without_a_fitting_record_keeps_the_chunks_of_the_last_one(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the columns that are left out are too long: the last record in the topic can still be read whole."""
    names = [f"{letter * 200}" for letter in "abcdefghij"]
    table = table_of("wide", f"k int pk, v text, {', '.join(f'{name} text' for name in names)}")
    writer = Writer(log, tmp_path, monkeypatch, table)
    key = ((1).to_bytes(4, "big"),)
    writer.write((key, 3000))
    chunks, notes = writer.chunks(), writer.notes()
    writer.write_columns((key, dict.fromkeys(names, 3000)))
    assert len(log.messages("data", 0)) == 1
    assert len(log.messages("dlq-ks.wide", 0)) == 1
    assert (writer.chunks(), writer.notes()) == (chunks, notes)


def test_a_batch_that_is_not_confirmed_withdraws_no_note(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(log, tmp_path, monkeypatch)
    writer.write((row(1), 3000))
    writer.write((row(1), 1), is_confirmed=False)
    writer.write((row(2), 1))
    assert len(writer.notes()) == 1


def test_a_topic_of_chunks_that_was_deleted_is_made_anew(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(log, tmp_path, monkeypatch)
    writer.write((row(1), 3000))
    del log.counts[chunk_topic("data")]
    writer.write((row(1), 3000), is_confirmed=False)  # as where the brokers say that it is gone
    writer.write((row(1), 3000))
    assert log.topics()[chunk_topic("data")] == 2


def marker(writer: Writer, scope: Scope, *values: bytes, bounds: Any = None) -> None:
    """Publish a delete marker, without the rows that it deletes."""
    writer.stage.begin(writer.table)
    key = writer.codec.encode((*values, *[None] * (len(writer.table.primary_key) - len(values)))) if values else b""
    writer.stage.take(RowChange(0, key, scope, "d", None, None, 1, None, None, bounds))
    writer.stage.end()
    writer.stage.confirm()


def test_markers_of_a_table_delete_no_chunks_of_another_one(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transform routes records of both to one topic."""
    other_table = table_of("other", "k int pk, v text")
    first = Writer(log, tmp_path / "1", monkeypatch)
    first.write((row(1), 3000))
    other = Writer(log, tmp_path / "2", monkeypatch, other_table)
    other.write(((b"\0\0\0\2",), 3000))
    count = len(other.chunks())
    marker(other, Scope.PARTITION, b"\0\0\0\1")
    marker(other, Scope.PARTITION, b"\0\0\0\2")
    assert len(other.chunks()) == count // 2
    other.write(((b"\0\0\0\2",), 3000))
    marker(other, Scope.TABLE)
    assert len(other.chunks()) == count // 2
    monkeypatch.setattr(_table_version, "read_definition", lambda *_, **__: (1, TABLE))
    marker(first, Scope.TABLE)
    assert first.chunks() == {}


def test_markers_of_a_table_that_was_created_again_with_another_key(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(log, tmp_path / "1", monkeypatch).write((row(1), 3000))
    writer = Writer(log, tmp_path / "2", monkeypatch, table_of("t", "a text pk, b text pk, c text ck, v text"))
    marker(writer, Scope.PARTITION, b"\0\0\0\1", b"x")
    assert len(log.messages("data", 0)) == 2, "no dead letter"
    assert writer.chunks() != {}
    marker(writer, Scope.TABLE)
    assert writer.chunks() == {}


def test_ranges_delete_chunks_of_rows_with_a_value_of_no_bytes(
    log: ChunkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number in a row's clustering key may be empty: its key has a null there."""
    writer = Writer(log, tmp_path, monkeypatch)
    writer.write((row(1, b"c", b""), 3000))
    assert writer.chunks() != {}
    marker(writer, Scope.RANGE, b"\0\0\0\1", bounds=(Bound(True, (b"c",)), Bound(True, (b"c",))))
    assert writer.chunks() == {}
