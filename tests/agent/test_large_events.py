"""Events that are too large for their topic: each goes without its cells, or is left out and reported; no other is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from agent.fakes import FakeLog, write_of
from agent.test_agent import TABLE, Bench, metric
from agent.writer import Cell, Row, Update, mutation, table_of
from structlog.testing import capture_logs

from helenus_agent import agent as module
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.errors import Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode
from helenus_sinks.log import Headers, TopicError

WIDE = table_of("wide", "pk int pk, ck text ck, v int, w blob")
TOPIC = "events-ks.wide"
LIMIT = 500


class Limited(FakeLog):
    """A topic takes records up to `LIMIT` bytes. Until the Log has `learned` it, only a flush says so, of all that
    waits; one that `learns` knows it after the first such flush.
    """

    def __init__(self, learned: bool, learns: bool) -> None:
        super().__init__()
        self.learned, self.learns = learned, learns

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        if self.learned and len(key or b"") + len(value or b"") > LIMIT:
            raise TopicError(Kind.RECORD_TOO_LARGE, "a record of many bytes", topic, topic)
        super().append(topic, partition, key, value, headers)

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        for key, value in records:
            self.append(topic, partition, key, value)

    def flush(self, timeout: float) -> None:
        if any(len(key or b"") + len(value or b"") > LIMIT for _, _, key, value, _ in self.waiting):
            self.waiting.clear()
            self.learned = self.learns
            raise TopicError(Kind.RECORD_TOO_LARGE, "Kafka: too large", TOPIC, TOPIC)
        super().flush(timeout)


@pytest.fixture(params=[(True, True), (False, True), (False, False)], ids=["append", "learns", "never"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    bench = Bench(tmp_path)
    bench.log = Limited(*request.param)
    bench.cassandra.set(TABLE, WIDE)
    bench.raw.segment(10)
    yield bench
    bench.state.close()
    assert bench.agent is not None
    bench.agent._queue.close()


def row(ck: bytes, **more: Cell) -> Row:
    return Row((ck,), {"v": Cell(b"1234"), **more}, time=1_700_000_000_000_000)


@pytest.mark.parametrize("headers", ["none", "datastax"])
def test_an_event_that_is_too_large_is_left_out_and_reported(bench: Bench, headers: str) -> None:
    skipped = metric("skipped_total", reason="record_too_large")
    agent = bench.start(topic_partitions="1", headers=headers)
    sizes = (1, 2, LIMIT + 10, 3, LIMIT + 20, 4)
    bench.raw.write(10, write_of(TABLE, 1), *(mutation(Update(WIDE, b"\0\0\0\1", [row(b"k" * n)])) for n in sizes))
    bench.raw.write(10, write_of(TABLE, 2))
    with capture_logs() as logs:
        for _ in range(20):
            bench.run(seconds=1)
            if any(key is None for _, _, key, _, _ in bench.log.acknowledged):
                break
    codec = KeyCodec(WIDE)
    key_sizes = [
        len(codec.decode(key)[1] or b"") for topic, _, key, _, _ in bench.log.acknowledged if topic == TOPIC and key
    ]
    assert list(dict.fromkeys(key_sizes)) == [1, 2, 3, 4]
    scopes = [decode(value or b"").scope for topic, _, _, value, _ in bench.log.acknowledged if topic == TOPIC]
    assert scopes[-1] is Scope.GAP
    numbers = {bench.number(key)[-1] for topic, _, key, _, _ in bench.log.acknowledged if topic == "events-ks.t"}
    assert numbers == {1, 2}
    lines = [line for line in logs if line["event"] == "event.too_large"]
    assert len(lines) >= 2
    assert {(line["log_level"], line["table"]) for line in lines} == {("error", "ks.wide")}
    assert metric("skipped_total", reason="record_too_large") >= skipped + 2
    assert agent.ready() is None
    assert bench.saved.segments[10].offset == bench.raw.ends[10]
    assert bench.saved.gaps == []
    assert bench.saved.refused == []


@pytest.mark.parametrize("headers", ["none", "datastax"])
def test_an_event_that_is_too_large_with_its_cells_goes_without_them(bench: Bench, headers: str) -> None:
    before = metric("events_without_cells_total", topic=TOPIC)
    agent = bench.start(topic_partitions="1", headers=headers, cells_include_list="ks.wide")
    sizes = (1, 2, LIMIT, 3, 2 * LIMIT, 4)
    rows = [row(b"%d" % n, w=Cell(b"w" * size)) for n, size in enumerate(sizes)]
    bench.raw.write(10, *(mutation(Update(WIDE, b"\0\0\0\1", [wide_row])) for wide_row in rows))
    codec = KeyCodec(WIDE)
    has_cells: dict[bytes | None, bool] = {}
    for _ in range(20):
        bench.run(seconds=1)
        records = [(key, value) for topic, _, key, value, _ in bench.log.acknowledged if topic == TOPIC]
        has_cells = {codec.decode(key or b"")[1]: decode(value or b"").cells is not None for key, value in records}
        if len(has_cells) == len(sizes):
            break
    assert has_cells == {b"%d" % n: size < LIMIT for n, size in enumerate(sizes)}, (
        "no gap, and only large ones are light"
    )
    assert metric("events_without_cells_total", topic=TOPIC) >= before + 2
    assert agent.ready() is None
    assert bench.saved.segments[10].offset == bench.raw.ends[10]
    assert bench.saved.gaps == []
