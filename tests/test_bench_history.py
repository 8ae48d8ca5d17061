"""The history of benchmarks: a slowdown shows, and runs of other machines or options do not count."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import history


def note(file: Path, cost: float, rate: float, **options: int) -> None:
    history.append(file, history.make_result("b", options, {"x, CPU s per million": cost, "x, records/s": rate}, 0.5))


def test_slowdown_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    monkeypatch.setattr("sys.argv", ["bench.history", "--file", str(file)])
    history.main()
    assert "no run was noted yet" in capsys.readouterr().out
    for cost, rate in ((10, 1000), (11, 900), (9, 1100)):
        note(file, cost, rate)
    note(file, 1, 1_000_000, rows=5)  # another kind
    with pytest.raises(SystemExit) as ended:
        history.main()
    assert ended.value.code == 0
    note(file, 20, 500)
    with pytest.raises(SystemExit) as ended:
        history.main()
    assert ended.value.code == 1
    rows = {name: (median, factor) for name, median, _, factor in history.slowdowns(history.read(file))}
    assert rows == {"x, CPU s per million": (10, 2.0), "x, records/s": (1000, 2.0)}
    assert capsys.readouterr().out.count("SLOWER") == 2


def test_other_machine_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    note(file, 10, 1000)
    results = history.read(file)
    results[0]["machine"]["cores"] += 1
    assert history.slowdowns([*results, *history.read(file)]) == []
    assert history.slowdowns([]) == []
