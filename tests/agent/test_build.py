"""The build hook where there is no compiler, or none wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.conftest import PACKAGE
from twice import ROOT, load


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("HELENUS_PURE", "1", "as HELENUS_PURE says"),
        ("CC", "/bin/false", "exit status 1."),
        ("CC", "/no/compiler", ": there is no C compiler; it does the same, more slowly"),
    ],
)
def test_stays_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str) -> None:
    pytest.importorskip("Cython")
    build = load("hatch_build", ROOT / "hatch_build.py")
    monkeypatch.setenv(variable, value)
    messages: list[str] = []
    assert build.compile_module(PACKAGE / "decoder.py", tmp_path, messages.append) is None
    assert len(messages) == 1
    assert "plain Python" in messages[0]
    assert messages[0].endswith(why)
    assert list(tmp_path.iterdir()) == []
