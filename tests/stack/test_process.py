"""Servers' processes: found by pid files, never mistaken, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S, eventually

from helenus_stack.launch import start_time
from helenus_stack.process import Process, python_environment, stop

SLEEP = ["sleep", "60"]
IGNORES_TERM = ["sh", "-c", "trap '' TERM; echo armed; while true; do sleep 0.1; done"]


# It starts nothing once it is armed: a shell waits for a child that is stopped before it runs its program (vfork), and
# is not stopped itself.
SAYS_TERM = ["sh", "-c", "trap 'echo asked; exit' TERM; sleep 600 & echo armed; wait"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "run" / "server.pid")
    yield process
    stop([process], 0)


def start(process: Process, tmp_path: Path, command: list[str]) -> Path:
    log = tmp_path / "logs" / "server.log"
    process.start(command, tmp_path, log, {"GREETING": "hello"})
    return log


def test_a_started_process_is_found_and_stopped(process: Process, tmp_path: Path) -> None:
    assert process.life == "stopped"
    start(process, tmp_path, SLEEP)
    pid = process.pid
    assert pid
    assert process.life == "running"
    assert os.getsid(pid) == pid, "it has a session of its own"
    stop([process], 5)
    assert process.life == "stopped"
    assert _gone(pid)


def test_output_environment_and_folder(process: Process, tmp_path: Path) -> None:
    log = start(process, tmp_path, ["sh", "-c", "echo $GREETING; pwd; echo wrong >&2"])
    eventually(lambda: log.read_text() == f"hello\n{tmp_path}\nwrong\n")
    start(process, tmp_path, ["echo", "again"])
    eventually(lambda: log.read_text().endswith("wrong\nagain\n"))  # a restart keeps the log


def test_no_descriptors_are_inherited(process: Process, tmp_path: Path) -> None:
    with open(tmp_path / "ours", "w") as file:
        os.set_inheritable(file.fileno(), True)
        start(process, tmp_path, SLEEP)
        open_files = [str(fd.readlink()) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
    assert not [name for name in open_files if name.endswith("ours")]


def test_a_process_that_ignores_the_signal_is_killed(process: Process, tmp_path: Path) -> None:
    log = start(process, tmp_path, IGNORES_TERM)
    eventually(lambda: "armed" in log.read_text())
    started = time.monotonic()
    stop([process], 0.5)
    assert process.pid is None
    assert time.monotonic() - started >= 0.5


def test_a_paused_process_is_seen_and_can_be_stopped(process: Process, tmp_path: Path) -> None:
    log = start(process, tmp_path, SAYS_TERM)
    eventually(lambda: "armed" in log.read_text())
    process.signal(signal.SIGSTOP)
    eventually(lambda: process.life == "paused")
    stop([process], PATIENCE_S)
    assert log.read_text().endswith("asked\n"), "it saw the first signal"


def test_children_end_with_the_server(process: Process, tmp_path: Path) -> None:
    log = start(process, tmp_path, ["sh", "-c", "sleep 60 & echo $!; wait"])
    eventually(lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    stop([process], 5)
    eventually(lambda: _gone(child))


def test_a_process_started_during_an_interrupt_is_found(process: Process, tmp_path: Path) -> None:
    """Else it would run on after a Ctrl-C, unknown to all. On a busy machine it takes a while."""
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(1)")
    slow = {"PYTHONPATH": os.pathsep.join((str(tmp_path), python_environment()["PYTHONPATH"]))}
    interrupted = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])

    def start() -> None:
        interrupted.start()
        process.start(SLEEP, tmp_path, tmp_path / "log", slow)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
        interrupted.join()
    assert process.life == "running"


def test_a_process_that_comes_while_it_is_stopped_ends_too(process: Process, tmp_path: Path) -> None:
    late = threading.Timer(0.3, start, [process, tmp_path, SLEEP])
    with subprocess.Popen(IGNORES_TERM, start_new_session=True, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"armed\n"
        pid_file = tmp_path / "run" / "other.pid"
        pid_file.parent.mkdir()
        pid_file.write_text(f"{other.pid} {start_time(other.pid)}\n")
        late.start()
        stop([Process(pid_file), process], 2)
        late.join()
        assert other.wait() == -signal.SIGKILL
    assert (process.pid, Process(pid_file).pid) == (None, None)


def test_a_killed_process_has_died(process: Process, tmp_path: Path) -> None:
    start(process, tmp_path, SLEEP)
    process.signal(signal.SIGKILL)
    eventually(lambda: process.life == "died")


def test_a_reused_pid_is_never_touched(process: Process) -> None:
    with subprocess.Popen(SLEEP) as stranger:
        process.pid_file.parent.mkdir()
        process.pid_file.write_text(f"{stranger.pid} {start_time(os.getpid())}0\n")
        assert process.life == "died"
        assert not process.signal(signal.SIGKILL)
        stop([process], 0.1)
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("content", ["", "x y", "12"])
def test_a_broken_pid_file_means_no_process(process: Process, content: str) -> None:
    process.pid_file.parent.mkdir()
    process.pid_file.write_text(content)
    assert process.life == "died"


def test_a_program_that_is_missing_shows_in_the_log(process: Process, tmp_path: Path) -> None:
    log = start(process, tmp_path, ["/nowhere/java"])
    eventually(lambda: "/nowhere/java" in log.read_text())
    eventually(lambda: process.life == "died")


OWNER = """
import sys, time
from pathlib import Path
from helenus_stack import watchdog
from helenus_stack.process import Process

folder = Path(sys.argv[1])
watchdog.start(folder / "run", folder / "lock")
Process(folder / "run" / "server.pid").start(["sleep", "60"], folder, folder / "log", {})
time.sleep(60)
"""


def test_servers_end_when_their_owner_is_killed(process: Process, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, env=python_environment()) as owner:
        eventually(lambda: process.pid is not None)
        owner.kill()
    eventually(lambda: process.life == "stopped")


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
