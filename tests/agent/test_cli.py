"""The command: one clear message for bad input, without waiting for anything, and no heavy imports."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from patience import PATIENCE_S

from helenus_agent import cli
from helenus_agent.state import StateDirectory

MAIN = "from helenus_agent.cli import main; main()"


def agent(path: Path) -> tuple[int, str]:
    """Exit code and standard error of a run, which ends by itself. If it waited for a server, a line would say so."""
    process = subprocess.run(
        [sys.executable, "-c", MAIN, str(path)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert process.stdout == ""
    return process.returncode, process.stderr


def properties(tmp_path: Path, **more: str) -> Path:
    raw = tmp_path / "cdc_raw"
    raw.mkdir(exist_ok=True)
    keys = {
        "cdc.raw.dir": str(raw),
        "state.dir": str(tmp_path / "state"),
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "cassandra.port": "1",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    path = tmp_path / "agent.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return path


def test_no_file(tmp_path: Path) -> None:
    code, output = agent(tmp_path / "none.properties")
    assert code == 2
    assert "none.properties" in output
    assert "Traceback" not in output


def test_unknown_property(tmp_path: Path) -> None:
    code, output = agent(properties(tmp_path, state_dri="x"))
    assert (code, output.count("\n")) == (2, 1)
    assert "did you mean state.dir" in output


def test_cdc_is_off(tmp_path: Path) -> None:
    (tmp_path / "cassandra.yaml").write_text("cdc_enabled: false\n")
    code, output = agent(properties(tmp_path, cassandra_config=str(tmp_path / "cassandra.yaml")))
    assert (code, output.count("\n")) == (2, 1)
    assert "cdc_enabled" in output


def test_no_directory(tmp_path: Path) -> None:
    code, output = agent(properties(tmp_path, cdc_raw_dir="/does/not/exist"))
    assert (code, output.count("\n")) == (1, 1)
    assert "/does/not/exist" in output


def test_a_state_dir_in_cdc_raw(tmp_path: Path) -> None:
    code, output = agent(properties(tmp_path, state_dir=str(tmp_path / "cdc_raw" / "state")))
    assert (code, output.count("\n"), output.startswith("helenus-agent: state.dir=")) == (2, 1, True)
    assert not (tmp_path / "cdc_raw" / "state").exists()


def test_another_agent(tmp_path: Path) -> None:
    path = properties(tmp_path)
    state = StateDirectory(tmp_path / "state")
    code, output = agent(path)
    state.close()
    assert (code, output.count("\n")) == (1, 1)
    assert "another agent" in output


def test_no_cassandra(tmp_path: Path) -> None:
    code, output = agent(properties(tmp_path))
    assert (code, output.count("\n")) == (1, 1)
    assert "cassandra.contact.points" in output


def test_a_contact_point_without_an_address(tmp_path: Path) -> None:
    """As where a machine boots, or in containers: it may get one."""
    properties_given = {"cassandra_contact_points": "no-such-node.invalid", "startup_timeout_ms": "2500"}
    started = time.monotonic()
    code, output = agent(properties(tmp_path, **properties_given))
    assert code == 1
    assert "Traceback" not in output
    *waiting, last = output.splitlines()
    assert "agent.waiting" in waiting[0]
    assert last.startswith("helenus-agent: no contact point has an address")
    assert "cassandra.contact.points" in last
    assert time.monotonic() - started >= 2.5, "it waited as long as it may"


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


def test_a_cassandra_that_does_not_answer(tmp_path: Path, deaf: int) -> None:
    code, output = agent(properties(tmp_path, cassandra_port=str(deaf), cassandra_connect_timeout_ms="2000"))
    assert (code, output.count("\n")) == (1, 1), output
    assert str(deaf) in output


@pytest.mark.parametrize(("drain", "code"), [(False, 0), (True, 1)])
def test_a_stop_that_hangs(monkeypatch: pytest.MonkeyPatch, drain: bool, code: int) -> None:
    """It is ended: a drain has not sent all then, and the disk may not go."""
    exit_codes = queue.Queue[int]()
    monkeypatch.setattr(os, "_exit", exit_codes.put)
    monkeypatch.setattr(cli, "_STOP_LIMIT_S", 0.01)
    stop = threading.Event()
    cli._stop(stop, MagicMock(), drain)
    assert exit_codes.get(timeout=10) == code
    assert stop.is_set()


def test_imports() -> None:
    heavy = (
        "pyspark",
        "fastavro",
        "pandas",
        "pyarrow",
        "confluent_kafka.schema_registry",
        "httpx",
        "helenus_connector",
    )
    code = f"import sys, helenus_agent.cli; print([m for m in {heavy!r} if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


@pytest.mark.parametrize("pure", ["", "1"])
def test_the_plain_decoder_can_be_chosen(pure: str, tmp_path: Path) -> None:
    code = "from helenus_agent.commitlog import decoder; print(decoder.__file__.endswith('.py'), decoder.COMPILED)"
    import os

    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HELENUS_PURE": pure},
    )
    if pure:
        assert process.stdout.strip() == "True False"
    else:
        assert process.stdout.strip() in ("True False", "False True")
