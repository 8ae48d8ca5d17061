"""The table of the longest test files names files that there are, once each."""

from __future__ import annotations

from longest import LONGEST, TESTS


def test_every_file_is_there_once() -> None:
    assert [name for name in LONGEST if not (TESTS / f"{name}.py").exists()] == []
    assert len(LONGEST) == len(set(LONGEST))
