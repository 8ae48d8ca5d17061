"""The benchmarks that need no server run: each for a moment, for what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench import merged, stage, written
from patience import eventually

from helenus_connector.pipeline import _table_version

ROOT = Path(__file__).parents[1]
KILLED = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from bench.path import running
from helenus_stack.process import Process

home = Path(sys.argv[1])
process = Process(home / "run" / "agent.pid")
start = lambda environment: process.start(["sleep", "600"], home, home / "logs" / "agent.log", environment)
with running(SimpleNamespace(process=process, start=start), {}):
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a benchmark reads in place of a table's definition is gone after it."""
    monkeypatch.setattr(_table_version, "read_definition", _table_version.read_definition)


@pytest.mark.parametrize("kind", stage.KINDS)
def test_stage(kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench.stage", "--events", "400", "--rounds", "1", "--only", kind])
    stage.main()
    assert re.search(rf"^{kind}: \d+ events per CPU s", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("form", written.FORMS)
def test_written(form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--changes", "60", "--rounds", "1", "--forms", form, "--tables", next(iter(written.TABLES))]
    monkeypatch.setattr("sys.argv", ["bench.written", *arguments])
    written.main()
    assert form in capsys.readouterr().out


def test_merged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench.merged", "--rows", "60", "--batch", "20", "--rounds", "1"])
    merged.main()
    shown = capsys.readouterr().out
    assert "narrow, by bytes: " in shown
    assert "narrow, decoded: " in shown


def test_a_bench_that_is_killed_leaves_no_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == -9, ended.stderr
    program = Path("/proc", ended.stdout.strip())
    eventually(lambda: not program.exists(), "its agent has ended")
