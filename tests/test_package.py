"""What is shipped: a wheel with four packages, one with the test rig, and commands that load only what they need."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["agent/helenus_agent", "connector/helenus_connector", "schemas/helenus_schemas", "sinks/helenus_sinks"]
HEAVY = {"pyspark", "pandas", "pyarrow", "fastavro", "authlib", "starlette", "helenus_connector", "helenus_stack"}


def build_wheel(project: Path, directory: Path) -> set[str]:
    """Build a project's wheel; return the names of its files."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=project, env={**os.environ, "HELENUS_PURE": "1"}, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def files_in(package: str) -> set[str]:
    paths = [path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to((ROOT / package).parent)) for path in paths if path.suffix != ".so"}


def test_the_wheel_holds_the_product_and_no_more(tmp_path: Path) -> None:
    expected = {name for package in PACKAGES for name in files_in(package)}
    stand_ins = {name for name in expected if name.startswith("helenus_connector/testing/")}
    packed = {name for name in build_wheel(ROOT, tmp_path) if ".dist-info/" not in name}
    assert packed == expected - stand_ins


def test_the_test_rig_has_a_wheel_of_its_own(tmp_path: Path) -> None:
    packed = {name for name in build_wheel(ROOT / "compose", tmp_path) if ".dist-info/" not in name}
    assert packed == files_in("compose/helenus_stack")


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(process.stdout.split())


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("helenus_agent.cli", HEAVY | {"numpy", "rich"}),
        ("helenus_sinks.kafka.log", HEAVY | {"helenus_agent"}),
        ("helenus_schemas.event.change", HEAVY | {"helenus_agent", "helenus_sinks", "cassandra", "pydantic"}),
        ("helenus_connector.worker", {"helenus_agent", "helenus_stack"}),
    ],
)
def test_a_module_loads_no_more_than_it_needs(module: str, unwanted: set[str]) -> None:
    assert not loaded_by(module) & unwanted


def test_the_packages_carry_their_types() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in [*PACKAGES, "compose/helenus_stack"])


def test_make_goes_on_after_a_virtual_environment_without_pip(tmp_path: Path) -> None:
    """As Debian's Python leaves one where the package python3-venv is missing: it has a Python, and no pip."""
    for path in ROOT.iterdir():
        if path.name not in (".venv", ".git"):
            (tmp_path / path.name).symlink_to(path)
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "if 'venv' in sys.argv:\n"
        "    place = pathlib.Path(sys.argv[-1], 'bin')\n"
        "    place.mkdir(parents=True, exist_ok=True)\n"
        "    for name in ['python', 'pip'][:1 + pathlib.Path('has-venv').exists()]:\n"
        "        (place / name).write_text('#!/bin/sh\\n')\n"
        "        (place / name).chmod(0o755)\n"
        "    sys.exit(len(list(place.iterdir())) < 2 and 'install the package python3-venv')\n"
    )
    python.chmod(0o755)
    command = ["make", "-C", str(tmp_path), f"PYTHON={python}", ".venv/.ready"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode, first.stdout
    assert "install the package python3-venv" in first.stderr
    (tmp_path / "has-venv").touch()
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
