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
