"""Which topics of dead letters are replayed, and where to: no servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from helenus_connector import replay
from helenus_connector.cli import main
from helenus_connector.control import tables as table_reading
from helenus_connector.testing.broker import MemoryMessage
from helenus_connector.testing.cassandra import MemorySession
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import logs
from helenus_sinks import dead_letters


class Log(MemoryLog):
    """The broker of events and of dead letters."""

    @property
    def records_by_topic(self) -> dict[str, list[tuple[int, Any, Any, Any]]]:
        """Partitions, keys, values and headers by topic."""
        return {topic: [record[1:] for record in self.records(topic)] for topic in {r.topic: 0 for r in self.appended}}

    def unread(self, _: object, group: str, topic: str, partition: int) -> Iterator[list[Any]]:
        """As `choice.unread`."""
        assert group == "helenus-replay-n"
        letters = self.records(topic)
        self.appended = [record for record in self.appended if record.topic != topic]
        if letters:
            assert partition == 0
            yield [MemoryMessage(topic, r.partition, n, (1, 0), *r[2:]) for n, r in enumerate(letters)]

    def dead_letter(self, table: str, partition: int, value: bytes) -> None:
        event = SimpleNamespace(topic=f"events-ks.{table}", partition=partition, offset=7, key=b"k", value=value)
        dead_letters.append(self, f"dlq-ks.{table}", "n", event, HelenusError(Kind.POISON_EVENT, "odd"))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Tables a, b, and old without CDC, whose events have two partitions; only a and old have dead letters."""
    log = Log({"events-ks.a": 2, "events-ks.b": 2, "events-ks.old": 2, "dlq-ks.a": 1, "dlq-ks.old": 1})
    columns = (Column("k", parse("int"), "partition_key"),)
    tables = [Table("ks", name, uuid.uuid4(), columns, cdc=name != "old") for name in ("a", "b", "old")]
    monkeypatch.setattr(table_reading, "connect", lambda _: MemorySession([]))
    monkeypatch.setattr(table_reading, "read_tables", lambda *_: {table.id: table for table in tables})
    for name in ("events_log", "data_log"):
        monkeypatch.setattr(replay, name, lambda _: log)
    monkeypatch.setattr(replay, "unread", log.unread)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker").write_text("bootstrap.servers=k:9092\ncheckpoint.dir=/tmp/none\n")
    return log


def run(table: str) -> Result:
    Path("n").write_text(f"name=n\nkeyspace=ks\ntable={table}\noutput.format=json\nerrors.tolerance=all\n")
    return CliRunner().invoke(main, ["replay", "worker", "n"])


@pytest.mark.parametrize("table", ["a,b", "[ab]", ".*"])
def test_every_table_of_a_connector_is_replayed(log: Log, table: str) -> None:
    log.dead_letter("a", 1, b"no event")
    log.dead_letter("old", 0, b"no event either")
    result = run(table)
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if line.startswith("n: ")] == [
        "n: 1 event replayed from dlq-ks.a to events-ks.a",
        "n: 0 events replayed from dlq-ks.b to events-ks.b",
    ]
    assert log.records_by_topic["events-ks.a"] == [(1, b"k", b"no event", ())]
    assert log.records_by_topic.keys() == {"events-ks.a", "dlq-ks.old"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("b", "there is no topic dlq-ks.b (n)"),
        ("b,c", "there is no topic dlq-ks.b, dlq-ks.c (n)"),
        ("z.*", "no table matches z.* (n)"),
    ],
)
def test_without_dead_letters_the_message_names_their_topic(log: Log, table: str, message: str) -> None:
    result = run(table)
    assert result.exit_code == 2
    assert f"helenus-connector: {message}" in result.output


def test_an_events_topic_that_is_gone(log: Log) -> None:
    del log.counts["events-ks.a"]
    log.dead_letter("a", 1, b"no event")
    result = run("a,b")
    assert (result.exit_code, "there is no topic events-ks.a" in result.output) == (2, True)
    assert log.records_by_topic["dlq-ks.a"], "it is there yet"


def test_a_topic_of_dead_letters_that_connectors_share(log: Log) -> None:
    """Each replays its own; dead letters that lost their event are logged."""
    for table in ("a", "b", "a"):
        log.dead_letter(table, 1, table.encode())
    first, other, last = log.appended
    log.appended = [first, other._replace(topic="dlq-ks.a"), last]
    header = ("__connect.errors.left.out", b"value")
    log.appended.append(first._replace(value=None, headers=[*first.headers, header]))
    with capture_logs() as logged:
        result = run("a")
    assert "n: 2 events replayed from dlq-ks.a to events-ks.a" in result.output
    (passed_over,) = (entry for entry in logged if entry["event"] == "replay.skipped")
    assert (passed_over["of_other_topics"], passed_over["incomplete"]) == ({"events-ks.b": 1}, 1)
    assert log.records_by_topic == {"events-ks.a": [(1, b"k", b"a", ())] * 2}
