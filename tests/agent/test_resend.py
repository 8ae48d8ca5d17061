"""Archived segments that are sent again: from a directory, an archive of fsspec's, a class of a user's own."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from agent.fakes import HOST, FakeCassandra, FakeLog, Raw, write_of
from agent.test_agent import TABLE, Bench
from agent.writer import Cell, Row, Update, mutation, table_of
from click.testing import CliRunner

from helenus_agent import cli, resend_command
from helenus_agent.commitlog.segment_source import DirectorySource, SegmentSource, parse_index
from helenus_agent.config import AgentSettings
from helenus_agent.resend import resender as module
from helenus_agent.resend.resender import Resender, ResentSegment, choose_segments
from helenus_agent.resend.source_choice import open_source
from helenus_agent.state import StateDirectory
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import wire

OTHER = replace(table_of("other", "pk int pk, v int"), id=uuid.UUID(int=77))
NODE = uuid.UUID(HOST)


@pytest.fixture
def archive(tmp_path: Path) -> Raw:
    """Three segments of 50 changes each, as `segment.transfer=archive` leaves them."""
    raw = Raw(tmp_path / "archive")
    for number in (10, 11, 12):
        raw.segment(number)
        raw.write(number, *(write_of(TABLE, 100 * number + key) for key in range(50)))
        raw.index(number, complete=True)
    return raw


def settings_of(tmp_path: Path, **properties: str) -> AgentSettings:
    own = {key.replace("_", "."): value for key, value in properties.items()}
    base = {"state.dir": str(tmp_path / "state"), "cdc.raw.dir": str(tmp_path), "kafka.bootstrap.servers": "nowhere:1"}
    return AgentSettings.from_properties({**base, **own}, "test")


def resend_from(
    source: SegmentSource, cassandra: FakeCassandra, log: FakeLog, settings: AgentSettings, saved: tuple[Any, ...] = ()
) -> list[ResentSegment]:
    resender = Resender(settings, cassandra.schema(), saved, NODE, log)
    return list(resender.resend(source, choose_segments(source.list_segments())))


def sent_keys(log: FakeLog) -> list[int]:
    return sorted(int.from_bytes(Bench.number(key), "big") for _, _, key, _, _ in log.acknowledged if key is not None)


ALL_KEYS = [100 * number + key for number in (10, 11, 12) for key in range(50)]


@pytest.mark.parametrize("source_kind", ["directory", "archive.dir", "file", "memory", "class"])
def test_every_source_gives_the_same(
    tmp_path: Path, archive: Raw, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, source_kind: str
) -> None:
    before = {path.name: path.read_bytes() for path in archive.path.iterdir()}
    properties = {
        "directory": {"segment_source": str(archive.path)},
        "archive.dir": {"segment_archive_dir": str(archive.path)},
        "file": {"segment_source": f"file://{archive.path}"},
        "memory": {"segment_source": "memory://node1"},
        "class": {
            "segment_source": f"{__name__}:NamedDirectory",
            "segment_source_config_path": str(archive.path),
        },
    }[source_kind]
    if source_kind == "memory":
        store = fsspec.filesystem("memory")
        request.addfinalizer(lambda: store.rm("/node1", recursive=True))
        for name, content in before.items():
            store.pipe_file(f"/node1/{name}", content)
        store.pipe_file("/node1/older/CommitLog-7-9.log", b"of a folder below")
    log = FakeLog()
    source = open_source(settings_of(tmp_path, **properties))
    resent = resend_from(source, FakeCassandra(TABLE), log, settings_of(tmp_path))
    source.close()
    assert sent_keys(log) == ALL_KEYS
    assert [(segment.path.name, segment.events, segment.problems) for segment in resent] == [
        (f"CommitLog-7-{number}.log", 50, []) for number in (10, 11, 12)
    ]
    event = wire.decode(log.acknowledged[0].value or b"")
    assert (event.node, event.segment) == (HOST, 10)
    assert {path.name: path.read_bytes() for path in archive.path.iterdir()} == before


class NamedDirectory(DirectorySource):
    """A source as a user may write it."""

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(Path(config["path"]))


def test_events_are_light_and_the_same_each_time(tmp_path: Path, archive: Raw) -> None:
    """Old cells must not be shown, nor merged: whoever needs them reads the row."""
    log, settings = FakeLog(), settings_of(tmp_path, cells_include_list=r"ks\..*")
    for _ in range(2):
        resend_from(DirectorySource(archive.path), FakeCassandra(TABLE), log, settings)
    assert len(log.acknowledged) == 300
    assert log.acknowledged[:150] == log.acknowledged[150:]
    assert all(wire.without_cells(value or b"") is None for _, _, _, value, _ in log.acknowledged)


def test_only_tables_with_cdc_are_sent(tmp_path: Path, archive: Raw) -> None:
    """One that was dropped is stepped over, also where it shares a mutation; no topic is made for it."""
    for number, table in ((13, OTHER), (14, replace(OTHER, id=uuid.UUID(int=78)))):
        archive.segment(number)
        shared = mutation(
            Update(table, (1).to_bytes(4, "big"), [Row((), {"v": Cell(b"1234")}, time=1)]),
            Update(TABLE, (1).to_bytes(4, "big"), [Row((), {"v": Cell(b"1234")}, time=1)]),
        )
        archive.write(number, write_of(table, 3), shared, write_of(TABLE, 2))
    log = FakeLog()
    resent = resend_from(DirectorySource(archive.path), FakeCassandra(TABLE), log, settings_of(tmp_path), (OTHER,))
    assert list(log.counts) == ["events-ks.t"]
    assert [(segment.events, bool(segment.problems or segment.skipped)) for segment in resent[3:]] == [
        (2, True),
        (1, True),
    ]
    assert resent[3].problems == []
    assert sent_keys(log) == sorted([*ALL_KEYS, 1, 2, 2])


def test_what_cannot_be_read_is_said_and_the_rest_is_sent(tmp_path: Path, archive: Raw) -> None:
    path = archive.find(11)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(bytes(content))
    archive.find(12).write_bytes(b"no header")
    log = FakeLog()
    resent = resend_from(DirectorySource(archive.path), FakeCassandra(TABLE), log, settings_of(tmp_path))
    assert [len(segment.problems) for segment in resent] == [0, 1, 1]
    assert resent[0].events == 50
    assert 0 < resent[1].events < 50
    assert "no header" in resent[2].problems[0]


def test_a_segment_cut_short_is_found_by_its_index(tmp_path: Path, archive: Raw, monkeypatch: Any) -> None:
    monkeypatch.setattr("helenus_agent.commitlog.segment._TORN_READ_S", -1.0)
    content = archive.find(12).read_bytes()
    archive.find(12).write_bytes(content[: len(archive.find(12).read_bytes()) // 2].rstrip(b"\0")[:30])
    resent = resend_from(DirectorySource(archive.path), FakeCassandra(TABLE), FakeLog(), settings_of(tmp_path))
    assert resent[2].problems


def test_small_pieces_and_few_unacknowledged(tmp_path: Path, archive: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 16)  # less than an entry
    monkeypatch.setattr(module, "_EVENTS", 3)
    monkeypatch.setattr(module, "_UNACKNOWLEDGED", 7)
    log = FakeLog()
    resend_from(DirectorySource(archive.path), FakeCassandra(TABLE), log, settings_of(tmp_path))
    assert sent_keys(log) == ALL_KEYS
    assert log.flushes >= 15


def test_names_choose_segments(tmp_path: Path) -> None:
    paths = [Path("b/CommitLog-7-12.log"), Path("b/CommitLog-7-9.log"), Path("b/CommitLog-7-100.log")]
    assert choose_segments(paths) == [paths[1], paths[0], paths[2]]
    assert choose_segments(paths, ("100", "CommitLog-7-9.log")) == [paths[1], paths[2]]
    with pytest.raises(HelenusError, match=r"not in segment\.source: 8, x; there are 3 segments"):
        choose_segments(paths, ("8", "x"))
    with pytest.raises(HelenusError, match="two segments have the id 9"):
        choose_segments([*paths, Path("c/CommitLog-7-9.log")])


class Failing(NamedDirectory):
    """A source of a user's own whose library fails in its own way."""

    def open_segment(self, path: Path) -> Any:
        raise RuntimeError("the bucket is away")


class Lacking:
    def __init__(self, config: Mapping[str, str]) -> None: ...


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "nothing says where archived segments are"),
        ({"segment_source": "no_such.module:Source"}, "no_such.module can't be imported"),
        (
            {"segment_source": f"{__name__}:Lacking"},
            "agent.test_resend has no class Lacking with list_segments, ",
        ),
        ({"segment_source": f"{__name__}:NamedDirectory"}, "segment.source: 'path'"),
        ({"segment_source": "/no/such/directory"}, "not a directory, an URL"),
        ({"segment_source": "/tmp", "segment_source_config_key": "x"}, "a directory has no options"),
        ({"segment_source": "ftp://user:hunter2@host/x"}, "a login has no place in the URL"),
        ({"segment_source": "nothing://bucket"}, "Protocol not known: nothing"),
        ({"segment_source": "s3://bucket/node1"}, "s3fs"),
    ],
)
def test_sources_that_are_none(tmp_path: Path, properties: dict[str, str], message: str) -> None:
    if "s3" in str(properties) and "s3fs" in sys.modules:
        pytest.skip("it is installed")
    with pytest.raises(HelenusError) as error:
        open_source(settings_of(tmp_path, **properties))
    assert error.value.kind is Kind.CONFIG
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)


def test_whatever_a_source_raises_is_ours(tmp_path: Path, archive: Raw) -> None:
    name, path = f"{__name__}:Failing", str(archive.path)
    source = open_source(settings_of(tmp_path, segment_source=name, segment_source_config_path=path))
    with pytest.raises(HelenusError, match="can't be opened: RuntimeError: the bucket is away") as error:
        resend_from(source, FakeCassandra(TABLE), FakeLog(), settings_of(tmp_path))
    assert error.value.kind is Kind.SEGMENT_SOURCE
    shutil.rmtree(archive.path)
    with pytest.raises(HelenusError, match="can't be listed: No such file or directory"):
        source.list_segments()


def test_a_broker_that_is_away_ends_it(tmp_path: Path, archive: Raw) -> None:
    log = FakeLog()
    log.refuse_flush = 1
    with pytest.raises(HelenusError, match="not acknowledged"):
        resend_from(DirectorySource(archive.path), FakeCassandra(TABLE), log, settings_of(tmp_path))


@pytest.mark.parametrize(
    ("text", "index"),
    [("12\nCOMPLETED", (12, True)), ("12", (12, False)), ("", None), ("x", None), ("12345678901", None)],
)
def test_the_text_of_an_index(text: str, index: tuple[int, bool] | None) -> None:
    assert parse_index(text) == index


@pytest.fixture
def command(tmp_path: Path, archive: Raw, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `helenus-agent resend`; the output and exit code. `log` has what was sent."""
    log = FakeLog()
    monkeypatch.setattr(resend_command, "open_log", lambda _: log)
    monkeypatch.setattr(resend_command, "Cassandra", lambda _: FakeCassandra(TABLE))
    properties = tmp_path / "agent.properties"
    state, raw = tmp_path / "state", tmp_path / "raw"
    text = f"state.dir={state}\ncdc.raw.dir={raw}\nkafka.bootstrap.servers=k:1\nsegment.source={archive.path}\n"
    properties.write_text(text)

    def run(*arguments: str) -> tuple[str, int]:
        log.acknowledged.clear()
        result = CliRunner().invoke(cli.main, ["resend", str(properties), *arguments])
        lines = [line for line in result.output.splitlines() if "topic.ready" not in line]
        return "\n".join(lines), result.exit_code

    run.log = log  # type: ignore[attr-defined]
    return run


def test_the_command(command: Any, archive: Raw) -> None:
    output, code = command()
    assert output.splitlines() == [
        f"node {HOST}; tables: ks.t",
        *(f"CommitLog-7-{number}.log: 50 events" for number in (10, 11, 12)),
    ]
    assert (code, len(command.log.acknowledged)) == (0, 150)
    output, code = command("11", "--host-id", str(uuid.UUID(int=5)))
    assert (code, len(command.log.acknowledged)) == (0, 50)
    assert wire.decode(command.log.acknowledged[0].value).node == str(uuid.UUID(int=5))
    archive.find(12).write_bytes(b"no header")
    output, code = command()
    assert (code, len(command.log.acknowledged)) == (1, 100)
    assert "CommitLog-7-12.log: 0 events\n  not read, at 0: no header" in output
    output, code = command("99")
    assert (code, len(output.splitlines())) == (2, 1)
    assert "not in segment.source: 99" in output


def test_the_command_without_cassandra(tmp_path: Path, command: Any) -> None:
    output, code = command("--offline")
    assert code == 1
    assert "no agent has saved here" in output
    bench = Bench(tmp_path)
    bench.raw.segment(20)
    bench.raw.write(20, write_of(TABLE, 1))
    bench.start()
    bench.run(until=1)
    bench.state.close()
    assert bench.agent is not None
    bench.agent.close()
    output, code = command("--offline")
    assert (code, len(command.log.acknowledged)) == (0, 150)
    # The events have the host id that the agent has saved.
    assert wire.decode(command.log.acknowledged[0].value).node == HOST
    StateDirectory(tmp_path / "state").close()
