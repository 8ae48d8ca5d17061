"""What an operator meets: transfers that fail, full disks, segments to be read again, and where the agent stands."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from agent.fakes import HOST, FakeCassandra, FakeLog, Raw, agent_on, write_of
from agent.standalone import TABLE, acknowledged, number
from agent.writer import Cell, Row, Update, mutation, table_of
from click.testing import CliRunner
from patience import eventually, wait_for_error

from helenus_agent import agent as module
from helenus_agent import cli
from helenus_agent.node.cassandra import Schema
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.segments import removal
from helenus_agent.segments.reprocess import reprocess
from helenus_agent.state import StateDirectory, read
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind

TESTS = Path(__file__).resolve().parents[1]
# The driver and structlog load these where they find them: a sixth of the start. A host of an agent has none of them.
STANDALONE = """
import runpy, sys
sys.modules.update(dict.fromkeys(("numpy", "rich")))
runpy.run_module("agent.standalone", run_name="__main__", alter_sys=True)
"""
GARBAGE = b"\0\0\0\x20garbage that is no entry at all, and long"


class Agents:
    """The command on a cdc_raw directory, with a made-up Cassandra and a file for a broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.raw = Raw(directory / "cdc_raw")
        self.state = directory / "state"
        self.quarantine = self.state / "quarantine"
        self.events = directory / "events"
        self.processes: list[subprocess.Popen[str]] = []
        self.properties: dict[str, str] = {}

    @property
    def keys(self) -> list[int]:
        return acknowledged(self.events)

    def file(self) -> Path:
        path = self.directory / "agent.properties"
        keys = {
            "cdc.raw.dir": self.raw.path,
            "state.dir": self.state,
            "kafka.bootstrap.servers": "nowhere:1",
            **self.properties,
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        return path

    def command(self, *arguments: str, failpoint: str = "") -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "HELENUS_TEST_LOG": str(self.events),
            "HELENUS_FAILPOINT": failpoint,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", STANDALONE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.processes.append(process)
        return process

    def start(self, failpoint: str = "") -> subprocess.Popen[str]:
        return self.command(str(self.file()), failpoint=failpoint)

    def call(self, command: str, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output and errors of another command."""
        try:
            result = CliRunner().invoke(cli.main, [command, str(self.file()), *arguments])
        finally:
            structlog.reset_defaults()
        return result.exit_code, result.stdout, result.stderr

    def run_agent(self) -> Any:
        """The agent, run here until there is nothing more to do."""
        log, state = FakeLog(), StateDirectory(self.state)
        agent = agent_on(self.directory, self.raw, FakeCassandra(TABLE), log, state)
        agent.start()
        agent._listed_at = 0.0
        while agent.step() or agent.commit():
            agent._committed_at = 0.0
        state.close()
        with open(self.events, "a") as file:
            file.write(json.dumps([number(record) for record in log.acknowledged if record.key is not None]) + "\n")
        return agent

    def wait(self, condition: Callable[[], object]) -> None:
        eventually(condition, every=0.05)

    def stop(self, process: subprocess.Popen[str]) -> str:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return errors


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(tmp_path)
    yield agents
    for process in agents.processes:
        process.kill()
        process.communicate()


def complete(raw: Raw, segment: int, *keys: int, bad: bool = False) -> None:
    raw.segment(segment)
    raw.write(segment, *(write_of(TABLE, key) for key in keys))
    if bad:
        raw.write(segment, raw=GARBAGE)
    raw.index(segment, complete=True)


@pytest.mark.parametrize("visit", [1, 2])
def test_killed_while_it_archives(agents: Agents, visit: int) -> None:
    archive = agents.directory / "archive"
    agents.properties = {"segment.transfer": "archive", "segment.archive.dir": str(archive)}
    for segment in (10, 11, 12):
        complete(agents.raw, segment, segment)
    content = {path.name: path.read_bytes() for path in agents.raw.path.iterdir()}
    killed = agents.start(failpoint=f"transfer.after-copy:{visit}")
    assert killed.wait(30) == -signal.SIGKILL
    assert agents.raw.names != []
    restarted = agents.start()
    agents.wait(lambda: agents.raw.names == [])
    agents.stop(restarted)
    assert {path.name: path.read_bytes() for path in archive.iterdir()} == content
    assert set(agents.keys) == {10, 11, 12}


def test_killed_while_it_saves(agents: Agents) -> None:
    """Half-way through a save the old positions are still there, whole."""
    agents.raw.segment(10)
    agents.raw.write(10, write_of(TABLE, 1))
    agents.raw.index(10)
    killed = agents.start(failpoint="state.after-write:2")
    agents.wait(lambda: read(agents.state) is not None)
    saved = read(agents.state)
    agents.raw.write(10, write_of(TABLE, 2))
    assert killed.wait(30) == -signal.SIGKILL
    assert read(agents.state) == saved
    assert agents.keys == [1, 2]
    restarted = agents.start()
    agents.wait(lambda: len(agents.keys) == 3)
    agents.stop(restarted)
    assert agents.keys == [1, 2, 2]


def test_started_together_with_its_servers(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for them if so configured; else it ends, and says why."""
    monkeypatch.setenv("HELENUS_TEST_LATE", "1")
    complete(agents.raw, 10, 1)
    agent = agents.start()
    _, errors = agent.communicate(timeout=30)
    assert (agent.returncode, errors.count("\n")) == (1, 1)
    assert "cassandra-unreachable" in errors
    agents.properties = {"startup.timeout.ms": "60000"}
    agent = agents.start()
    agents.wait(lambda: agents.keys == [1])
    agents.stop(agent)
    # It stops while it waits, too.
    monkeypatch.setenv("HELENUS_TEST_LATE", "1000")
    agent = agents.start()
    wait_for_error(agent, "agent.waiting")
    agents.stop(agent)


def test_started_before_the_node(agents: Agents) -> None:
    """A node makes its cdc_raw when it starts for the first time; the agent waits for it, if so configured."""
    complete(agents.raw, 10, 1)
    aside = agents.directory / "aside"
    agents.raw.path.rename(aside)
    agent = agents.start()
    _, errors = agent.communicate(timeout=30)
    assert (agent.returncode, errors.count("\n")) == (1, 1)
    assert "cdc_raw is not a directory" in errors
    agents.properties = {"startup.timeout.ms": "60000"}
    agent = agents.start()
    errors = wait_for_error(agent, "cdc_raw is not a directory")
    assert errors.count("agent.waiting") == 1
    time.sleep(2.5)
    aside.rename(agents.raw.path)
    agents.wait(lambda: agents.keys == [1])
    assert agents.stop(agent).count("agent.waiting") == 0, "it says so once"


def test_a_busy_port(agents: Agents) -> None:
    """It costs the metrics, until it is free, and nothing else."""
    complete(agents.raw, 10, 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        agents.properties = {"http.port": str(port)}
        agent = agents.start()
        agents.wait(lambda: agents.keys == [1])
    agents.wait(lambda: get(port, "/health/ready") == "ready\n")
    assert "http.busy" in agents.stop(agent)


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])
def test_a_state_that_others_may_read_is_warned_of(agents: Agents, host: str, warns: bool) -> None:
    complete(agents.raw, 10, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    agents.properties = {"http.port": str(port), "http.host": host}
    agent = agents.start()
    agents.wait(lambda: agents.keys == [1])
    assert ("http.open" in agents.stop(agent)) == warns


def test_drained_without_its_node(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that will not start again: what is left in its cdc_raw gets out by what the agent had saved."""
    other = table_of("other", "pk int pk, v int", cdc=False, keyspace="elsewhere")
    monkeypatch.setattr(FakeCassandra, "schema", _with(other))
    complete(agents.raw, 10, 1)
    assert agents.call("drain", "--offline")[0] == 1
    agents.run_agent()
    agents.raw.segment(11)
    agents.raw.write(11, write_of(TABLE, 2), write_of(other, 8), write_of(TABLE, 3))
    agents.raw.index(11, complete=True)
    agents.raw.segment(12)
    agents.raw.write(12, write_of(TABLE, 4))  # it died in this one
    offset = agents.raw.ends[12]
    agents.raw.unmarked(12, write_of(TABLE, 5))
    agents.events.unlink()
    monkeypatch.setenv("HELENUS_TEST_LATE", "1000000")
    monkeypatch.setattr(agents, "properties", {"startup.timeout.ms": "1"})
    agent = agents.command("drain", "--offline", str(agents.file()))
    _, errors = agent.communicate(timeout=60)
    assert agent.returncode == 1, "the broker is away as well"
    monkeypatch.setenv("HELENUS_TEST_LATE", "0")
    agent = agents.command("drain", "--offline", str(agents.file()))
    _, errors = agent.communicate(timeout=60)
    assert (agent.returncode, agents.keys) == (0, [2, 3, 4, 5]), errors
    assert agents.raw.names == ["CommitLog-7-12.log"]
    saved = read(agents.state)
    assert saved is not None
    assert saved.segments[12].offset > offset
    unknown = table_of("unknown", "pk int pk, v int")
    complete(agents.raw, 13, 6)
    agents.raw.segment(14)
    update = Update(unknown, b"\0\0\0\1", [Row((), {"v": Cell(b"1234")}, time=1)])
    agents.raw.write(14, mutation(update, update))
    agents.raw.index(14, complete=True)
    agent = agents.command("drain", "--offline", str(agents.file()))
    _, errors = agent.communicate(timeout=60)
    assert (agent.returncode, agents.keys) == (1, [2, 3, 4, 5, 6]), errors
    assert "not all could be sent: 1 segment could not be read wholly" in errors


def _with(other: Table) -> Callable[[FakeCassandra], Schema]:
    schema = FakeCassandra.schema

    def with_other(cassandra: FakeCassandra) -> Schema:
        known_schema = schema(cassandra)
        return replace(known_schema, tables={**known_schema.tables, other.id: other})

    return with_other


def get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return str(error)


def quarantine(agents: Agents, *segments: int) -> None:
    """Have an agent quarantine these; each holds its own number, and bytes that are no entry."""
    for segment in segments:
        complete(agents.raw, segment, segment, bad=True)
    agents.run_agent()
    assert agents.raw.names == []
    agents.events.unlink()


def mend(agents: Agents, segment: int) -> None:
    """As if a newer version could read it: the garbage is gone."""
    quarantined = agents.quarantine / f"CommitLog-7-{segment}.log"
    quarantined.unlink()
    complete(agents.raw, segment, segment, segment + 100)
    agents.raw.find(segment).rename(quarantined)
    quarantined.with_name(f"CommitLog-7-{segment}_cdc.idx").unlink()
    (agents.raw.path / f"CommitLog-7-{segment}_cdc.idx").rename(quarantined.with_name(f"CommitLog-7-{segment}_cdc.idx"))


@pytest.mark.parametrize("is_done", [False, True])
def test_reprocess_reads_it_all_again(agents: Agents, is_done: bool) -> None:
    """The state says that it is read to its end, or fully processed: an agent that believes this skips it silently."""
    quarantine(agents, 10, 11)
    saved = read(agents.state)
    assert saved is not None
    assert sorted(saved.done) == [10, 11]
    if not is_done:  # as it was saved before they were moved
        saved.done.clear()
        saved.segments = {segment: SegmentMark(agents.raw.ends[segment], True, True) for segment in (10, 11)}
        state = StateDirectory(agents.state)
        state.save(saved)
        state.close()
    for segment in (10, 11):
        mend(agents, segment)
    code, out, errors = agents.call("reprocess", "CommitLog-7-10.log")
    assert (code, errors) == (0, "")
    assert out == f"{agents.raw.path}/CommitLog-7-10.log\n"
    assert agents.raw.names == ["CommitLog-7-10.log", "CommitLog-7-10_cdc.idx"]
    assert sorted(path.name for path in agents.quarantine.iterdir()) == ["CommitLog-7-11.log", "CommitLog-7-11_cdc.idx"]
    agents.run_agent()
    assert agents.keys == [10, 110]
    code, out, _ = agents.call("reprocess")
    assert (code, out) == (0, f"{agents.raw.path}/CommitLog-7-11.log\n")
    assert agents.run_agent().ready() is None
    assert agents.keys == [10, 110, 11, 111]
    assert agents.raw.names == []
    assert list(agents.quarantine.iterdir()) == []
    assert agents.call("reprocess") == (0, "nothing is in quarantine\n", "")


def test_reprocess_a_segment_that_still_cannot_be_read(agents: Agents) -> None:
    quarantine(agents, 10)
    assert agents.call("reprocess", "10")[0] == 0
    assert "could not be read" in agents.run_agent().ready()
    assert agents.raw.names == []
    assert sorted(path.name for path in agents.quarantine.iterdir()) == ["CommitLog-7-10.log", "CommitLog-7-10_cdc.idx"]
    assert agents.keys == [10]


def test_reprocess_needs_the_agent_stopped(agents: Agents) -> None:
    state = StateDirectory(agents.state)
    code, out, errors = agents.call("reprocess")
    assert (code, out, errors.count("\n")) == (1, "", 1)
    assert "another agent uses this state.dir" in errors
    state.close()


def test_reprocess_an_unknown_segment(agents: Agents) -> None:
    quarantine(agents, 10)
    code, out, errors = agents.call("reprocess", "10", "11")
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert "not in quarantine: 11; there is 10" in errors
    assert (agents.quarantine / "CommitLog-7-10.log").exists()


@pytest.mark.parametrize("point", ["reprocess.after-save", "transfer.after-copy"])
def test_killed_while_it_reprocesses(agents: Agents, point: str) -> None:
    """An agent that starts then loses nothing and leaves it in quarantine; the command ends its work when repeated."""
    quarantine(agents, 10)
    mend(agents, 10)
    killed = agents.command("reprocess", str(agents.file()), failpoint=point)
    assert killed.wait(30) == -signal.SIGKILL
    agents.run_agent()
    assert agents.raw.names == []
    assert agents.keys == []
    assert agents.call("reprocess")[0] == 0
    agents.run_agent()
    assert agents.raw.names == []
    assert agents.keys == [10, 110]


def test_reprocess_without_positions(tmp_path: Path) -> None:
    """Someone deleted them: there is nothing to take back, and nothing is made up."""
    raw, quarantined = tmp_path / "cdc_raw", tmp_path / "state" / "quarantine"
    raw.mkdir()
    quarantined.mkdir(parents=True)
    (quarantined / "CommitLog-7-10.log").write_bytes(b"log")
    assert reprocess(tmp_path / "state", raw) == [raw / "CommitLog-7-10.log"]
    assert read(tmp_path / "state") is None


@pytest.mark.parametrize("others", [True, False])
def test_metrics_under_other_products_names_can_be_left_out(agents: Agents, others: bool) -> None:
    from integration.pipeline import free_port

    port = free_port()
    agents.properties = {"http.port": str(port), "metrics.other.products": str(others).lower()}
    agents.raw.segment(10)
    agent = agents.start()
    agents.wait(lambda: get(port, "/health/ready") == "ready\n")
    names = {line.split("{")[0] for line in get(port, "/metrics").splitlines()}
    assert any(name.startswith("helenus_agent_") for name in names)
    assert any(name.startswith(("debezium_", "org_apache_", "com_datastax_")) for name in names) == others
    agents.stop(agent)


def test_status(agents: Agents) -> None:
    from integration.pipeline import free_port

    agents.properties = {"http.port": str(free_port())}
    complete(agents.raw, 10, 1)
    agents.raw.segment(11)
    agents.raw.write(11, write_of(TABLE, 2))
    agents.raw.index(11)
    agents.raw.segment(12)
    agent = agents.start()
    agents.wait(lambda: len(agents.keys) == 2 and len(agents.raw.names) == 3)
    agents.wait(lambda: agents.call("status")[0] == 0)
    code, out, errors = agents.call("status", "--json")
    assert (code, errors) == (0, "")
    status = json.loads(out)
    assert (status["healthy"], status["running"], status["trouble"], status["host_id"]) == (True, True, [], HOST)
    assert [(s["id"], s["size"], s["position"], s["complete"], s["bad"]) for s in status["segments"]] == [
        (11, 100_000, agents.raw.ends[11], False, False),
        (12, 100_000, 0, False, False),
    ]
    assert (status["done"], status["quarantined"]) == (1, [])
    assert (status["raw_bytes"], status["raw_limit"]) == (200_000, 64 << 20)
    assert status["raw_headroom"] == (64 << 20) - 200_000
    assert 0 <= status["saved_age"] < 60
    assert status["metrics"]["events_total{ks.t}"] == 2
    code, out, _ = agents.call("status")
    for part in ("running, healthy", HOST, "0.2 MiB of 64.0 MiB", "63.8 MiB left", f"{agents.raw.ends[11]}"):
        assert part in out

    agents.stop(agent)
    code, out, _ = agents.call("status")
    assert code == 1
    for part in ("stopped", "no agent runs", "limit unknown", "quarantined    none"):
        assert part in out


def test_status_shows_problems(agents: Agents) -> None:
    quarantine(agents, 10)
    (agents.directory / "cassandra.yaml").write_text(
        f"cdc_enabled: true\ncdc_raw_directory: {agents.raw.path}\ncdc_total_space: 8MiB\n"
    )
    agents.properties = {"cassandra.config": str(agents.directory / "cassandra.yaml")}
    state = StateDirectory(agents.state)
    code, out, _ = agents.call("status", "--json")
    status = json.loads(out)
    assert (code, status["running"], status["raw_limit"]) == (1, True, 8 << 20)
    assert status["quarantined"] == [str(agents.quarantine / "CommitLog-7-10.log")]
    assert "helenus-agent reprocess" in status["trouble"][0]
    state.close()
    (agents.state / "positions.json").write_text("{")
    code, out, errors = agents.call("status")
    assert (code, errors) == (1, "")
    assert "restore it, or delete it" in out


def test_validate(agents: Agents) -> None:
    code, out, errors = agents.call("validate")
    assert (code, errors) == (0, "")
    assert "is valid" in out
    agents.properties = {"segment.transfer": "not.there:Transfer", "topicPrefix": "x-"}
    code, out, errors = agents.call("validate")
    assert (code, out) == (2, "")
    assert "use=topic.prefix" in errors
    assert "segment.transfer: not.there can't be imported" in errors


def test_errors_are_json_where_logs_are(agents: Agents) -> None:
    agents.properties = {"log.format": "json"}
    agents.state.mkdir()
    (agents.state / "positions.json").write_text("{")
    agent = agents.start()
    _, errors = agent.communicate(timeout=30)
    assert agent.returncode == 1
    last = [json.loads(line) for line in errors.splitlines()][-1]
    assert (last["event"], last["level"], last["kind"]) == ("agent.failed", "error", "state")
    assert "restore it, or delete it" in last["error"]


def test_a_full_disk_stops_it_and_loses_nothing(agents: Agents) -> None:
    agents.raw.segment(10)
    agents.raw.write(10, write_of(TABLE, 1))
    agents.raw.index(10)
    agent = agents.start()
    agents.wait(lambda: read(agents.state) is not None)
    (agents.state / "positions.new").symlink_to("/dev/full")
    agents.raw.write(10, write_of(TABLE, 2))
    agents.raw.index(10, complete=True)
    _, errors = agent.communicate(timeout=30)
    assert agent.returncode == 1
    assert "cannot save the positions: No space left on device" in errors.splitlines()[-1]
    assert agents.raw.names == ["CommitLog-7-10.log", "CommitLog-7-10_cdc.idx"]
    (agents.state / "positions.new").unlink()
    restarted = agents.start()
    agents.wait(lambda: agents.raw.names == [])
    agents.stop(restarted)
    assert agents.keys == [1, 2, 2]


@contextlib.contextmanager
def small_disk(path: Path, options: str) -> Iterator[None]:
    """A file system of its own there; skips where that is not allowed."""
    path.mkdir(exist_ok=True)
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", str(path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_disk_that_is_really_full(agents: Agents) -> None:
    agents.raw.segment(10)
    agents.raw.write(10, write_of(TABLE, 1))
    agents.raw.index(10)
    with small_disk(agents.state, "size=64k"):
        agent = agents.start()
        agents.wait(lambda: read(agents.state) is not None)
        filler = agents.state / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
        agents.raw.write(10, write_of(TABLE, 2))
        _, errors = agent.communicate(timeout=30)
        assert agent.returncode == 1
        assert "No space left on device" in errors.splitlines()[-1]
        filler.unlink()
        restarted = agents.start()
        agents.wait(lambda: len(agents.keys) == 3)
        agents.stop(restarted)
    assert agents.keys == [1, 2, 2]


def test_a_state_dir_that_is_read_only(agents: Agents) -> None:
    with small_disk(agents.state, "ro,size=64k"):
        agent = agents.start()
        _, errors = agent.communicate(timeout=30)
    assert (agent.returncode, errors.count("\n")) == (1, 1)
    assert "cannot use state.dir: Read-only file system" in errors


def test_saves_are_few_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is read: at most four a second, of a few kilobytes."""
    monkeypatch.setattr(module, "_EVENTS", 5)
    raw = Raw(tmp_path / "cdc_raw")
    raw.segment(10)
    raw.write(10, *(write_of(TABLE, key) for key in range(1000)))
    raw.index(10)
    state = StateDirectory(tmp_path / "state")
    state.save(Positions(HOST, {10: SegmentMark(0, True)}, list(range(1_795_264_176_000, 1_795_264_176_512))))
    saves: list[float] = []
    save = state.save
    monkeypatch.setattr(state, "save", lambda positions: (saves.append(time.monotonic()), save(positions)))
    log = FakeLog()
    agent = agent_on(tmp_path, raw, FakeCassandra(TABLE), log, state)
    agent.start()
    steps = 0
    while len(log.acknowledged) < 1000:
        steps += agent.step()
        agent.commit()
    assert steps >= 200
    assert all(later - earlier >= module._COMMIT for earlier, later in itertools.pairwise(saves))
    assert len(saves) < steps / 10
    assert (tmp_path / "state" / "positions.json").stat().st_size < 16_384
    state.close()


class Refusing:
    """A transfer that fails so many times for each segment."""

    def __init__(self, times: int, kind: Kind = Kind.TRANSFER_FAILED) -> None:
        self.left = {10: times}
        self.kind = kind
        self.calls: list[int] = []

    def __call__(self, path: Path) -> None:
        number = int(path.stem.rpartition("-")[2])
        self.calls.append(number)
        if self.left.get(number, 0) > 0:
            self.left[number] -= 1
            raise HelenusError(self.kind, "the bucket is away", str(path))
        path.unlink()
        path.with_name(f"{path.stem}_cdc.idx").unlink()


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An agent with such a transfer, on two complete segments and one that is written to."""
    monkeypatch.setattr(removal, "_RETRY_S", (0.01, 0.02))
    raw, log, state = Raw(tmp_path / "cdc_raw"), FakeLog(), StateDirectory(tmp_path / "state")
    complete(raw, 10, 1)
    complete(raw, 11, 2)
    raw.segment(12)
    agent = agent_on(tmp_path, raw, FakeCassandra(TABLE), log, state)
    agent.start()
    yield agent, raw, log
    state.close()


def step_and_commit(agent: Any, rounds: int = 1) -> None:
    for _ in range(rounds):
        agent._listed_at = agent._committed_at = 0.0
        while agent.step():
            pass
        agent.commit()
        time.sleep(0.03)


def test_a_failing_transfer_affects_nothing_else(refused: Any) -> None:
    agent, raw, log = refused
    agent._removal._transfer = transfer = Refusing(3)
    step_and_commit(agent)
    assert raw.names == ["CommitLog-7-10.log", "CommitLog-7-10_cdc.idx", "CommitLog-7-12.log"]
    assert "the bucket is away" in agent.ready()
    raw.write(12, write_of(TABLE, 3))
    step_and_commit(agent)
    assert len(log.acknowledged) == 3
    step_and_commit(agent, 4)
    assert raw.names == ["CommitLog-7-12.log"]
    assert agent.ready() is None
    assert transfer.calls == [11, 10, 10, 10, 10] or transfer.calls == [10, 11, 10, 10, 10]


def test_a_transfer_that_fails_waits(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _, _ = refused
    monkeypatch.setattr(removal, "_RETRY_S", (3600.0, 3600.0))
    agent._removal._transfer = transfer = Refusing(10**9)
    step_and_commit(agent, 5)
    assert transfer.calls.count(10) == 1


def test_a_transfer_that_says_stop(refused: Any) -> None:
    agent, raw, _ = refused
    agent._removal._transfer = Refusing(1, Kind.STATE)
    with pytest.raises(HelenusError, match="the bucket is away"):
        step_and_commit(agent)
    assert "CommitLog-7-10.log" in raw.names
    agent._removal._next_try_at = 0.0
    step_and_commit(agent)
    assert raw.names == ["CommitLog-7-12.log"]
