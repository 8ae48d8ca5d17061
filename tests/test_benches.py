"""The benchmarks that need no server run: each for a moment, for what it prints."""

from __future__ import annotations

import re

import pytest
from bench import merged, stage, written

from helenus_connector.pipeline import _table_version


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
