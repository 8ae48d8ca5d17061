"""Names: each public class has one that no other has, and no variable, function or module is called by a word that says
nothing of what it holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent/helenus_agent", "connector/helenus_connector", "schemas/helenus_schemas", "sinks/helenus_sinks")
OTHERS = ("compose/helenus_stack", "bench", "docs", "sinks/recipes", "tests")
VAGUE = frozenset(
    "about again asked at done due found given held kept known left most of one place rest said some taken what work "
    "works".split()
)
"""Prepositions, pronouns and participles: none says what it holds. `rows_read` and `requested_keys` do."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def vague_names(path: Path) -> Iterator[str]:
    """Yield the vague names of a module, each with its line."""
    if path.stem.strip("_") in VAGUE:
        yield f"{path.stem}: the module"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            yield f"{node.id}:{node.lineno}"
        elif isinstance(node, ast.arg) and node.arg in VAGUE:
            yield f"{node.arg}:{node.lineno}"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.strip("_") in VAGUE:
            yield f"{node.name}:{node.lineno}"


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules(*PACKAGES):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


KEPT = {
    "agent/helenus_agent/positions.py": "a field of a file",
    "agent/helenus_agent/status.py": "a field of `status --json`",
    "connector/helenus_connector/control/plan.py": "a field that another process reads",
    "connector/helenus_connector/pipeline/batch_outcome.py": "a field that another process reads",
    "connector/helenus_connector/query/placed_reader.py": "a column of a Spark data frame",
    "connector/helenus_connector/snapshot/_ring.py": "a field of a file",
    "connector/helenus_connector/snapshot/_scan.py": "fields that another process reads",
    "connector/helenus_connector/snapshot/snapshot_store.py": "a field of a file",
    "connector/helenus_connector/testing/cassandra.py": "a method of the driver's results",
    "connector/helenus_connector/unconfirmed/files.py": "a field of a file",
    "connector/helenus_connector/verify/_entry.py": "a column of a Spark data frame",
    "connector/helenus_connector/verify/report.py": "a field of a file",
}
"""Modules that keep such a name, and why."""


@pytest.mark.parametrize("module", [str(path.relative_to(ROOT)) for path in modules(*PACKAGES, *OTHERS)])
def test_names_say_what_they_hold(module: str) -> None:
    names = list(vague_names(ROOT / module))
    assert bool(names) == (module in KEPT), names
