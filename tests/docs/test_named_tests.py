"""Tests that are named somewhere are there: what a document says is shown by a test can be looked up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
NAMED = re.compile(r"`?((?:\w+/)?test_\w+\.py|…)?::(test_\w+)(\*?)")
PLACES = [*sorted((ROOT / "docs").rglob("*.md")), TESTS / "integration" / "test_datastax_scenarios.py"]


def named(text: str, here: str) -> list[tuple[str, str, bool]]:
    """File, test and whether that is a beginning: `…` and `::` alone are of the file named last."""
    found, last = [], here
    for file, test, star in NAMED.findall(text):
        last = last if file in ("", "…") else file
        found.append((last, test, bool(star)))
    return found


@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.name)
def test_they_are_there(place: Path) -> None:
    for file, test, beginning in named(place.read_text(), place.name):
        path = TESTS / file if "/" in file else place.with_name(file)
        assert path.exists(), f"{place.name} names {file}"
        pattern = rf"^def {test}{'' if beginning else '[(]'}"
        assert re.search(pattern, path.read_text(), re.MULTILINE), f"{place.name} names {file}::{test}"


def test_some_are_named() -> None:
    guarantees = (ROOT / "docs" / "guarantees.md").read_text()
    assert len(named(guarantees, "")) > 30
