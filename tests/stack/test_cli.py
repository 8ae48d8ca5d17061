"""The command, as far as it goes without servers."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from helenus_stack import ports, pulsar, readers, readiness
from helenus_stack.cli import main
from helenus_stack.errors import StackError
from helenus_stack.process import Process, stop
from helenus_stack.progress import Silent
from helenus_stack.server import Command, Server
from helenus_stack.settings import Settings
from helenus_stack.stack import Stack


@pytest.fixture
def directory(cache: Path, tmp_path: Path) -> Path:
    return tmp_path / "stack"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_status_without_servers(directory: Path) -> None:
    result = run("status", "--json", "--dir", directory)
    assert result.exit_code == 1
    status = json.loads(result.stdout)
    assert status["contact_points"] == ["127.0.0.1"]
    assert status["registry_url"] == "http://127.0.0.1:8081/apis/ccompat/v7"
    assert status["nodes"][0]["cdc_raw"] == str(directory / "cassandra1" / "cdc_raw")
    assert {server["state"] for server in status["servers"]} == {"stopped"}
    assert not directory.exists(), "looking leaves no traces"


def test_status_is_a_table(directory: Path) -> None:
    lines = run("status", "--dir", directory).stdout.splitlines()
    assert lines[0].split() == ["SERVER", "STATE", "ADDRESS", "PID", "LOG"]
    assert [line.split()[0] for line in lines[1:]] == ["cassandra1", "kafka", "registry"]
    assert len({line.index(word) for line, word in zip(lines[1:], ["stopped"] * 3, strict=True)}) == 1


def test_down_without_servers_succeeds(directory: Path) -> None:
    assert run("down", "--dir", directory).exit_code == 0


def test_down_says_what_it_stops(directory: Path) -> None:
    """It takes seconds."""
    (directory / "run").mkdir(parents=True)
    for name in ("kafka", "registry"):
        (directory / "run" / f"{name}.pid").write_text("")
    result = run("down", "--dir", directory)
    assert result.exit_code == 0, result.output
    assert "stopping kafka, registry: up to " in result.output


def test_down_deletes_only_its_own(directory: Path) -> None:
    (directory / "kafka").mkdir(parents=True)
    (directory / "mine").mkdir()
    assert run("down", "--delete", "--dir", directory).exit_code == 0
    assert (directory / "kafka").exists(), "a directory without stack.json is not ours"
    Settings().save(directory / "stack.json")
    assert run("down", "--delete", "--dir", directory).exit_code == 0
    assert not (directory / "kafka").exists()
    assert (directory / "mine").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stop", "mongo"], "there is no server 'mongo'"),
        (["logs"], "there are no logs yet"),
        (["up", "--nodes", "7"], "--nodes"),
        (["up", "--cassandra", "2.2"], "--cassandra"),
        (["up", "--cassandra-yaml", "cdc_enabled"], "'cdc_enabled' is not KEY=VALUE"),
        (["up", "--heap", "lots"], "'lots' is not a whole number with its unit, such as 512m or 2g"),
    ],
)
def test_mistakes_end_in_one_message(directory: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments, "--dir", directory)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert not result.stderr.startswith("\n")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [["up"], ["down"], ["demo"], ["start", "kafka"]])
def test_a_directory_that_is_none_is_named(cache: Path, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").touch()
    result = run(*arguments, "--dir", tmp_path / "file" / "stack")
    assert result.exit_code == 1
    assert re.fullmatch(rf"Error: Not a directory \({tmp_path}/file/stack\S*\): choose a --dir .*\n", said_of(result))


def said_of(result: Result) -> str:
    """The error, without what a demo says first."""
    return result.stderr[result.stderr.index("Error: ") :]


def test_watching_a_stack_that_is_down(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_TIMEOUT", 1)
    Settings(port_offset=ports.HIGHEST).save(directory / "stack.json")
    assert "start it with helenus-stack up" in said_of(run("watch", "data-shop.orders", "--dir", directory))


def test_its_version() -> None:
    assert re.fullmatch(r"helenus-stack, version \d+\.\d+\.\d+\S*\n", run("--version").stdout)


def test_a_setting_that_no_server_starts_with_is_forgotten(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each later `up` would fail too."""

    def launch(servers: list[Server]) -> None:
        raise StackError("cassandra1 died while starting", "its log", "read its log")

    for options in ({"nodes": 1}, {"cassandra_yaml": {"cdc_enable": True}, "heap": "1k"}):
        stack = Stack(directory, **options)
        monkeypatch.setattr(stack, "_launch", launch)
        with pytest.raises(StackError, match="died"):
            stack.up()
    assert Stack(directory).settings == Settings(port_offset=stack.settings.port_offset)


def test_logs_are_shown_from_their_end(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "kafka.log").write_text("one\ntwo\nthree\n")
    run("logs", "kafka", "-n", "2", "--dir", directory)
    assert capfd.readouterr().out == "two\nthree\n"


@pytest.mark.parametrize("program", ["agent", "connector"])
def test_the_logs_of_a_demo_s_programs_are_shown(
    program: str, directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "there is no server" in run("logs", program, "--dir", directory).stderr
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / f"{program}.log").write_text("one\ntwo\n")
    run("logs", program, "-n", "1", "--dir", directory)
    assert capfd.readouterr().out == "two\n"


def server(folder: Path, seconds: float) -> Server:
    def prepare(java: Path, jars: object) -> Command:
        raise NotImplementedError

    return Server("fake", folder, "127.0.0.1", 1, "kafka", "kafka", 17, True, prepare, lambda: False, seconds)


def test_a_server_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    fake, process = server(tmp_path / "fake", 30), Process(tmp_path / "fake.pid")
    process.start(["sh", "-c", "echo the disk is full; exit 3"], tmp_path, fake.log, {})
    with pytest.raises(StackError, match="fake died while starting") as caught:
        readiness.wait([(fake, process)], Silent())
    assert "the disk is full" in caught.value.detail
    assert caught.value.where == str(fake.log)


def test_a_server_that_finds_its_port_taken_says_so(tmp_path: Path) -> None:
    fake, process = server(tmp_path / "fake", 30), Process(tmp_path / "fake.pid")
    process.start(["sh", "-c", "echo 'BindException: Address already in use'; exit 1"], tmp_path, fake.log, {})
    with pytest.raises(StackError, match="another program has taken one of its ports") as caught:
        readiness.wait([(fake, process)], Silent())
    assert "memory" not in caught.value.advice


def test_a_node_that_can_not_replay_its_log_says_so(tmp_path: Path) -> None:
    fake, process = server(tmp_path / "fake", 30), Process(tmp_path / "fake.pid")
    line = "ERROR [main] Exiting due to error while processing commit log during initialization."
    process.start(["sh", "-c", f"echo '{line}'; exit 1"], tmp_path, fake.log, {})
    with pytest.raises(StackError, match="ignorereplayerrors=true") as caught:
        readiness.wait([(fake, process)], Silent())
    assert "memory" not in caught.value.advice


def test_a_server_that_never_answers_misses_its_limit(tmp_path: Path) -> None:
    fake, process = server(tmp_path / "fake", 0.3), Process(tmp_path / "fake.pid")
    process.start(["sleep", "60"], tmp_path, fake.log, {})
    try:
        with pytest.raises(StackError, match="fake was not ready in 0 s"):
            readiness.wait([(fake, process)], Silent())
    finally:
        stop([process], 0)


@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_a_server_that_is_stuck_is_started_again(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """As a Pulsar that was killed: its log says so, after what earlier starts logged."""
    fake = dataclasses.replace(server(tmp_path / "fake", 30), stuck=pulsar.stuck)
    fake.log.parent.mkdir(exist_ok=True)
    fake.log.write_text("Lock on resource /x was invalidated. state Valid\n" * 100)
    starts = 0

    def launch(servers: list[Server]) -> None:
        nonlocal starts
        starts += 1
        twitches = 1000 if starts <= times else 1
        with fake.log.open("a") as log:
            log.write("Lock on resource /x was invalidated. state Valid\n" * twitches)

    stack = Stack(directory)
    monkeypatch.setattr(stack, "_launch", launch)
    monkeypatch.setattr(readiness, "wait", lambda *_: None)
    servers = [(fake, stack.process(fake))]
    if times < 3:
        stack._ready([fake], servers)
    else:
        with pytest.raises(StackError, match="fake was stuck 3 times"):
            stack._ready([fake], servers)
    assert starts == min(times + 1, 3)


@pytest.mark.parametrize(("name", "waits"), [("kafka", False), ("cassandra2", True)])
def test_nodes_are_waited_for_where_one_was_to_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, waits: bool
) -> None:
    """A broker that is ready stayed down because a node ended meanwhile that nobody had asked for."""
    stack = Stack(directory, nodes=3)

    def wait_united(nodes: list[tuple[Server, Process]], *_: object) -> None:
        raise readiness.failure(nodes[0][0], "died while joining the others")

    monkeypatch.setattr(readiness, "wait_united", wait_united)
    monkeypatch.setattr(stack, "_ready", lambda *_: None)
    monkeypatch.setattr(stack, "status", lambda: "all run")
    monkeypatch.setattr(stack, "process", lambda _: SimpleNamespace(pid=1, signal=lambda _: None))
    if waits:
        with pytest.raises(StackError, match="died while joining"):
            stack.up(name)
    else:
        assert stack.up(name) == "all run"


def test_probing_leaves_logging_alone() -> None:
    before = logging.root.level, len(logging.root.handlers)
    from helenus_stack import kafka

    assert not kafka.ready("127.0.0.1:1")
    assert (logging.root.level, len(logging.root.handlers)) == before
