"""Tests that are named somewhere are there: what a document says is shown by a test can be looked up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
FILE = re.compile(r"(?<![\w/])(?:tests/)?((?:\w+/)?test_\w+\.py)")
NAMED = re.compile(r"`?((?:\w+/)?test_\w+\.py|…)?::(test_\w+)(\*?)")
PLACES = [*sorted((ROOT / "docs").rglob("*.md")), TESTS / "integration" / "test_datastax_scenarios.py"]


def named(text: str, here: str) -> list[tuple[str, str, bool]]:
    """File, test and whether that is a beginning: `…` and `::` alone are of the file named last."""
    tests, last = [], here
    for file, test, star in NAMED.findall(text):
        last = last if file in ("", "…") else file
        tests.append((last, test, bool(star)))
    return tests


@pytest.mark.parametrize("page", PLACES, ids=lambda p: p.name)
def test_they_are_there(page: Path) -> None:
    for file, test, beginning in named(page.read_text(), page.name):
        path = TESTS / file if "/" in file or (TESTS / file).exists() else page.with_name(file)
        assert path.exists(), f"{page.name} names {file}"
        pattern = rf"^def {test}{'' if beginning else '[(]'}"
        assert re.search(pattern, path.read_text(), re.MULTILINE), f"{page.name} names {file}::{test}"


@pytest.mark.parametrize("page", PLACES, ids=lambda p: p.name)
def test_files_that_are_named_without_a_test_are_there(page: Path) -> None:
    for file in FILE.findall(page.read_text()):
        paths = [TESTS / file] if "/" in file else list(TESTS.rglob(file))
        assert any(path.exists() for path in paths), f"{page.name} names {file}"


def test_the_matrix_names_most() -> None:
    matrix = (ROOT / "docs" / "tests.md").read_text()
    assert len(named(matrix, "")) > 90
    promises = re.split(r"^## ", matrix, flags=re.MULTILINE)
    for section in (section for section in promises if section.startswith("Promise ")):
        assert FILE.search(section), section.partition("\n")[0]


def test_the_promises_of_the_matrix_are_those_of_the_guarantees() -> None:
    promises = re.findall(r"^## (\d+)\.", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)
    assert promises == re.findall(r"^## Promise (\d+):", (ROOT / "docs" / "tests.md").read_text(), re.MULTILINE)
