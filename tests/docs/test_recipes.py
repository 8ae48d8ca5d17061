"""The recipes in sinks/recipes, as far as they go without servers: tests/integration/test_recipes.py runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helenus_stack.jars import parse_lock, read_lock

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "sinks" / "recipes"


@pytest.mark.parametrize("recipe", ["to_duckdb", "to_delta", "to_parquet", "to_spark"])
def test_without_its_arguments_a_recipe_says_what_they_are(recipe: str) -> None:
    done = subprocess.run([sys.executable, RECIPES / f"{recipe}.py", "localhost:9092"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{recipe}.py BROKERS REGISTRY TOPIC" in done.stderr
    assert "Traceback" not in done.stderr


def test_java_s_libraries_are_those_that_were_run() -> None:
    of_pom = re.findall(r"<artifactId>([\w-]+)</artifactId>\s*<version>(\d[\d.]+)<", (RECIPES / "pom.xml").read_text())
    run = {(jar.name, jar.version) for lock in ("kafka", "avro") for jar in read_lock(lock)}
    assert len(of_pom) == 2
    assert set(of_pom) <= run


@pytest.mark.parametrize("place", ["docs/sinks.md", "sinks/recipes/to_spark.py"])
def test_spark_s_packages_are_those_that_were_run(place: str) -> None:
    lock = ROOT / "tests" / "integration" / "spark_avro.lock"
    run = {jar.coordinates for jar in parse_lock(lock.read_text(), lock.name)}
    named = re.findall(r"org\.apache\.spark:[\w.:-]+", (ROOT / place).read_text())
    assert len(named) == 2
    assert set(named) <= run
