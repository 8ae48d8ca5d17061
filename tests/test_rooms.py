"""The house: rooms without a circle, modules that are their room's alone, and the table in the docs that lists them."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOMES = {name: ROOT / name.removeprefix("helenus_") / name for name in ("helenus_agent", "helenus_schemas")}
HOMES |= {"helenus_connector": ROOT / "connector/helenus_connector", "helenus_sinks": ROOT / "sinks/helenus_sinks"}
LONGEST = 450
LONGER = {"helenus_agent.commitlog.decoder"}  # its docstring says why


def dotted(path: Path, home: Path) -> str:
    parts = path.relative_to(home.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path, home): path for home in HOMES.values() for path in home.rglob("*.py")}
ROOMS = {dotted(path, home) for home in HOMES.values() for path in home.rglob("__init__.py")}


@cache
def imports(path: Path) -> set[str]:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in HOMES:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names if alias.name.split(".")[0] in HOMES}
    return imported


def room_of(module: str) -> str:
    """The room that a module is in; at the top of a package it stands for itself."""
    room = module if module in ROOMS else module.rpartition(".")[0]
    return module if room in HOMES else room


def test_no_room_imports_what_imports_it() -> None:
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        graph.setdefault(room_of(module), set()).update({room_of(name) for name in imports(path)} - {room_of(module)})
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_a_module_of_its_room_is_used_there_alone() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name in imports(path)
        if name.rpartition(".")[2].startswith("_")
        and name.rpartition(".")[0] not in (module, module.rpartition(".")[0])
    ]
    stand_ins = "helenus_connector.testing."  # they stand in for what is private too
    assert not [line for line in wrong if not line.startswith(stand_ins)]


@cache
def used() -> dict[str, set[str]]:
    """By each room what others use of it."""
    names_by_room: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for name in imports(path):
            if name in MODULES and room_of(name) != room_of(module):
                names_by_room.setdefault(room_of(name), set()).add(name.rpartition(".")[2])
    return names_by_room


# Each of their modules is one that commands, tests and Spark's Python start from.
OTHERS = {*HOMES, "helenus_connector.testing"}
OTHERS |= {"helenus_connector.query.python_path", "helenus_connector.spark_submit"}


@pytest.mark.parametrize("room", sorted(ROOMS - OTHERS))
def test_a_room_names_what_others_use_and_hides_the_rest(room: str) -> None:
    own = {name.rpartition(".")[2] for name in MODULES.keys() - ROOMS if name.rpartition(".")[0] == room}
    shown = {name for name in own if not name.startswith("_")}
    named = re.findall(r"`(\w+)`", ast.get_docstring(ast.parse(MODULES[room].read_text())) or "")
    assert shown - used().get(room, set()) == set()
    assert own & set(named) == shown


@pytest.mark.parametrize("module", sorted(MODULES.keys() - LONGER))
def test_no_module_is_long(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= LONGEST


def test_the_stage_is_short() -> None:
    """It is where a newcomer begins."""
    assert len(MODULES["helenus_connector.pipeline.stage"].read_text().splitlines()) <= 200


def test_the_docs_list_every_room_and_module() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    table = dict(re.findall(r"^\| `(helenus_[\w.]+)` \| [^|]+ \| (.+) \|$", text, re.MULTILINE))
    listed = {f"{room}.{name}" for room, names in table.items() for name in re.findall(r"`(\w+)`", names)}
    assert set(table) == ROOMS
    assert listed == MODULES.keys() - ROOMS
