"""What is shipped: one wheel with all five packages, and commands that load only what they need."""

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


def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "HELENUS_PURE": "1"}, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    for package in [*PACKAGES, "compose/helenus_stack"]:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                assert str(path.relative_to((ROOT / package).parent)) in packed


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("helenus_agent.cli", HEAVY),
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
