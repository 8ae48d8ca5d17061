"""The demo: its files, its lines, and the whole of it on real servers."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from helenus_agent.config import AgentSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.event.change import Change
from helenus_schemas.event.wire import encode
from helenus_schemas.settings.properties import read_properties
from helenus_stack import demo, programs
from helenus_stack.compare import Difference
from helenus_stack.demo import run
from helenus_stack.errors import StackError
from helenus_stack.process import Process
from helenus_stack.readers import Reader, reader
from helenus_stack.records import Record
from helenus_stack.settings import LogName, Settings
from helenus_stack.show import Show, how_to_go_on, key_text, milliseconds, plain, value_text, verdict
from helenus_stack.stack import Stack
from helenus_stack.trace import Arrival, Search, Trace
from helenus_stack.workload import CHAPTERS, KEYSPACE, TABLE


@dataclass
class Message:
    """As much of a Kafka message as a search looks at."""

    payload: bytes | None
    name: bytes = b"key"
    made: int = 1000

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes | None:
        return self.payload

    def timestamp(self) -> tuple[int, int]:
        return 1, self.made


@pytest.fixture(params=["kafka", "pulsar"])
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    """A reader of either Log; it asks no server."""
    with closing(reader(Stack(tmp_path, log="both").status().only(request.param))) as topics:
        yield topics


def event(write_time: int, key: bytes = b"key", made: int = 1000) -> Arrival:
    return Arrival(Message(encode(Change("0" * 32, "node", write_time=write_time)), key, made), arrived_at=1.0)


def record(topics: Reader, key: bytes = b"key", made: int = 1000) -> Arrival:
    return Arrival(Message(None, bytes(topics.frame) + key, made), arrived_at=2.0)


class TestSearch:
    def test_finds_the_event_by_its_write_time(self, topics: Reader) -> None:
        search = Search(topics, 7)
        search.add_event(event(6))
        assert search.event is None
        search.add_event(wanted := event(7))
        search.add_event(event(7))
        assert search.event is wanted, "the agent may send it twice"

    def test_finds_the_record_by_the_key_of_the_event(self, topics: Reader) -> None:
        search = Search(topics, 7)
        search.add_event(event(7))
        search.add_record(record(topics, b"other"))
        assert search.record is None
        search.add_record(wanted := record(topics))
        assert search.record is wanted

    def test_an_earlier_record_of_the_key_is_not_the_one(self, topics: Reader) -> None:
        search = Search(topics, 7)
        search.add_record(record(topics, made=999))
        search.add_event(event(7, made=1000))
        assert search.record is None

    def test_the_record_may_arrive_before_the_event(self, topics: Reader) -> None:
        search = Search(topics, 7)
        search.add_record(wanted := record(topics, made=1001))
        assert search.record is None
        search.add_event(event(7, made=1000))
        assert search.record is wanted


class Address(NamedTuple):
    street: str | None
    no: int


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"bigint": b"\x04\xe2", "scale": 2}, "12.50"),
        ({"bigint": b"\xff", "scale": -1}, "-1E+1"),
        (datetime.date(2026, 3, 1), "2026-03-01"),
        (Decimal("1.0"), "1.0"),
        ({"a": None, "b": [1, {"c": None}]}, {"b": [1, {}]}),
        (Address(None, 3), {"no": 3}),
        ({4}, [4]),
        (b"\1\2", "0x0102"),
        (True, True),
    ],
)
def test_plain(value: Any, shown: Any) -> None:
    assert plain(value) == shown


def test_a_key_and_a_whole_partition() -> None:
    assert key_text({"customer": "ada", "order_id": 1}) == "ada/1"
    assert key_text({"customer": "ada", "order_id": None}) == "ada/*"


def test_a_value_shows_what_changed() -> None:
    text = value_text({"a": 1, "b": "x", "c": None}, before={"a": 1, "b": "y", "c": 2})
    assert text.plain == '{a: 1, b: "x"}'
    assert [text.plain[span.start : span.end] for span in text.spans if span.style == "bold"] == ['b: "x"']
    assert value_text(None).plain == "null"


def test_milliseconds() -> None:
    assert [milliseconds(s) for s in (0.0621, 0.9994, 8.14)] == ["62 ms", "999 ms", "8.1 s"]


def test_lines_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(Console(soft_wrap=True))
    for number, status in ((1, "new"), (2, "paid")):
        row = Record(0, number, 0, {"customer": "ada", "order_id": 1}, {"status": status}, {}, number)
        show.trace(Trace(Change("0" * 32, "node"), row, 0.062, 0.2 * number))
    show.summary(3, 2, 46.0)
    first, second, _, *summary = capsys.readouterr().out.splitlines()
    assert first == '  → event  +62 ms → record +200 ms  ada/1 {status: "new"}'
    assert second == '  → event  +62 ms → record +400 ms  ada/1 {status: "paid"}  (value schema 1 → 2)'
    assert "3 statements, 2 events, 2 records" in " ".join(summary)
    assert "from event to record 300 ms, in all 362 ms" in " ".join(summary)


def test_verdict() -> None:
    assert verdict([]).startswith("converged")
    text = verdict([Difference(("ada", 1), {"status": "new"}, None)])
    assert text.startswith("not converged")
    assert "('ada', 1): the topic says {'status': 'new'}, the table None" in text


@pytest.mark.parametrize(
    ("log", "of_agent", "of_worker"),
    [
        ("kafka", {"bootstrap_servers": "127.0.0.1:9092"}, {"bootstrap_servers": "127.0.0.1:9092"}),
        ("pulsar", pulsar := {"pulsar_service_url": "pulsar://127.0.0.1:6650"}, pulsar),
    ],
)
def test_the_files_are_what_the_commands_want(
    tmp_path: Path, log: LogName, of_agent: dict[str, str], of_worker: dict[str, str]
) -> None:
    status = Stack(tmp_path, log=log).status()
    agent = programs.agent(status, tmp_path / "demo")
    connector = programs.connector(status, tmp_path / "demo", "shop", "orders")
    settings, worker = AgentSettings.load(agent.files[0]), WorkerSettings.load(connector.files[0])
    assert (settings.cassandra_port, settings.log, worker.log) == (9042, log, log)
    assert {name: getattr(settings, name) for name in of_agent} == of_agent
    assert {name: getattr(worker, name) for name in of_worker} == of_worker
    assert worker.model.read_settings(read_properties(connector.files[1]), "connector").events == "events-shop.orders"
    for path in (*agent.files, *connector.files):
        lines = path.read_text().splitlines()
        keys = [i for i, line in enumerate(lines) if "=" in line and not line.startswith("#")]
        assert keys
        assert all(lines[i - 1].startswith("# ") for i in keys), "every key is explained"
        assert log == "kafka" or not any("kafka" in line.lower() or "registry" in line for line in lines)


def test_running_servers_show_their_addresses(tmp_path: Path) -> None:
    status = Stack(tmp_path).status()
    agent = programs.agent(status, tmp_path / "demo")
    connector = programs.connector(status, tmp_path / "demo", "shop", "orders")
    own, worker = AgentSettings.load(agent.files[0]).listeners, WorkerSettings.load(connector.files[0]).listeners
    text = how_to_go_on(status, "shop.orders")
    assert f"helenus-connector top --url {worker}\n" in text.replace(str(Path(sys.executable).parent) + "/", "")
    assert f"curl '{worker}/connectors?expand=status'" in text, "a shell may take the ? for a pattern"
    for address in (worker, own):
        assert f"  {address}/ of the" in text, "their pages"
        assert f"  {address}/metrics of the" in text


def test_a_port_that_is_taken_is_not_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used_port = server.getsockname()[1]
        assert programs.free_port(used_port) != used_port
    assert programs.free_port(used_port) == used_port


def test_every_statement_can_be_traced() -> None:
    statements = [cql for _, chapter in CHAPTERS for cql in chapter]
    assert 25 <= len(statements) <= 45
    assert all(f"{KEYSPACE}.{TABLE}" in cql for cql in statements)
    assert sum(cql.startswith("ALTER") for cql in statements) == 1


@pytest.mark.parametrize(("free", "warns"), [("16000000 kB", False), ("1200000 kB", True), (None, False)])
def test_a_demo_says_what_it_takes(
    free: str | None, warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MEMORY_FILE", tmp_path / "meminfo")
    if free:
        (tmp_path / "meminfo").write_text(f"MemTotal:  20000000 kB\nMemAvailable:   {free}\nBuffers: 7 kB\n")
    warning = demo._needs()
    assert warning.startswith("A demo takes 3 GB of memory")
    assert ("Only 1.2 GB are free" in warning) is warns


class TestFresh:
    def test_another_ones_data_is_not_touched(self, tmp_path: Path) -> None:
        Settings().save(tmp_path / "stack.json")
        (tmp_path / "cassandra1").mkdir()
        with pytest.raises(StackError, match="data of yours"):
            run(tmp_path, keep=False)
        assert (tmp_path / "cassandra1").exists()

    def test_a_running_stack_is_left_alone(self, tmp_path: Path) -> None:
        process = Process(tmp_path / "run" / "kafka.pid")
        process.start(["sleep", "60"], tmp_path, tmp_path / "log", {})
        try:
            with pytest.raises(StackError, match="helenus-stack down"):
                run(tmp_path, keep=False)
            assert process.pid
        finally:
            process.signal(signal.SIGKILL)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "helenus_stack.cli", *map(str, arguments)]


def stack_of(directory: Path) -> list[Path]:
    """The pid files of what should have ended."""
    return list((directory / "run").glob("*.pid"))


def alive(pid: int) -> bool:
    """Whether it runs: one that has ended may wait for its parent to notice."""
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state) and not state.startswith("Z")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("log", "brokers"),
    [("kafka", {"kafka", "registry"}), pytest.param("pulsar", {"pulsar"}, marks=pytest.mark.long)],
)
def test_demo_converges_and_goes_on(tmp_path: Path, log: str, brokers: set[str]) -> None:
    process = subprocess.run(command("demo", "--keep", "--log", log, "--dir", tmp_path), capture_output=True, text=True)
    try:
        assert process.returncode == 0, process.stdout + process.stderr
        assert "\nconverged" in process.stdout
        assert process.stdout.count("→ record") == sum(not cql.startswith("ALTER") for _, c in CHAPTERS for cql in c)
        assert "(value schema" in process.stdout, "the new column has come"
        assert {p.stem for p in stack_of(tmp_path)} == {"cassandra1", *brokers, "agent", "connector"}

        second_demo = subprocess.run(command("demo", "--dir", tmp_path), capture_output=True, text=True)
        assert second_demo.returncode == 1
        assert "helenus-stack down" in second_demo.stderr

        watch = subprocess.Popen(
            command("watch", "data-shop.orders", "--dir", tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watch.stdout
        assert watch.stderr
        # From then on it shows what comes.
        assert watch.stderr.readline().startswith("Watching data-shop.orders.")
        where = "customer = 'ada' AND order_id = 1"
        update = f"UPDATE shop.orders SET status = 'lost' WHERE {where}"
        subprocess.run(command("cql", update, "--dir", tmp_path), check=True)
        assert 'ada/1 {courier: "pigeon"' in (line := watch.stdout.readline())
        assert 'status: "lost"' in line
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 0
        watch.stdout.close()
        watch.stderr.close()
        select = command("cql", f"SELECT status FROM shop.orders WHERE {where}", "--dir", tmp_path)
        assert subprocess.run(select, capture_output=True, text=True).stdout == '{status: "lost"}\n'
    finally:
        subprocess.run(command("down", "--dir", tmp_path), check=True)
    assert not stack_of(tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize("sign", ["starting kafka", pytest.param("→ record", marks=pytest.mark.long)])
def test_interrupt_stops_everything(tmp_path: Path, sign: str) -> None:
    with subprocess.Popen(
        command("demo", "--dir", tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as demo:
        assert demo.stdout
        assert any(sign in line for line in demo.stdout)
        pids = [pid for path in stack_of(tmp_path) if (pid := Process(path).pid)]
        assert pids
        demo.send_signal(signal.SIGINT)
        output = demo.stdout.read()
        assert demo.wait() == 130, output
    assert not stack_of(tmp_path)
    assert not [pid for pid in pids if alive(pid)]
