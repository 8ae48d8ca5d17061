"""What compose/slim.py takes out of an image."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "compose" / "slim.py"
spec = importlib.util.spec_from_file_location("slim", SCRIPT)
assert spec is not None
assert spec.loader is not None
slim = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slim)


@pytest.mark.parametrize(
    ("name", "stays_on"),
    [
        ("librocksdbjni-linux64.so", {"x86_64"}),
        ("librocksdbjni-linux64-musl.so", set()),
        ("librocksdbjni-linux-aarch64.so", {"aarch64"}),
        ("librocksdbjni-osx-x86_64.jnilib", set()),
        ("librocksdbjni-win64.dll", set()),
        ("linux/amd64/libzstd-jni-1.5.7-7.so", {"x86_64"}),
        ("linux/arm/libzstd-jni-1.5.7-7.so", set()),
        ("freebsd/amd64/libzstd-jni-1.5.7-7.so", set()),
        ("org/xerial/snappy/native/SunOS/x86_64/libsnappyjava.so", set()),
        ("org/apache/spark/Some.class", {"x86_64", "aarch64", "riscv64"}),
        ("librocksdbjni-linux-riscv64.so", {"riscv64"}),
    ],
)
def test_native_libraries(name: str, stays_on: set[str]) -> None:
    machines = stays_on | {"x86_64", "aarch64"}
    assert {machine for machine in machines if not slim.is_foreign(name, machine)} == stays_on


def test_an_installation(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    gone = [
        "pip/x.py",
        "pandas/tests/x.py",
        "pyarrow/include/a.h",
        "helenus_stack/x.py",
        "pyspark/jars/breeze_2.13-2.jar",
    ]
    stays = ["pandas/x.py", "pyspark/jars/hive-storage-api-2.8.1.jar", "pyspark/jars/spark-sql_2.13-4.3.0.jar"]
    for name in gone + stays:
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".jar":
            with zipfile.ZipFile(path, "w") as jar:
                jar.writestr("a.class", b"1")
                jar.writestr("win64/a.dll", b"2")
        else:
            path.touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip3").touch()
    slim.main(tmp_path, "connector")
    assert sorted(str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()) == sorted(stays)
    assert not list((tmp_path / "bin").iterdir())
    with zipfile.ZipFile(site / stays[1]) as jar:
        assert jar.namelist() == ["a.class"]


def test_it_needs_what_a_build_stage_has() -> None:
    """It runs before anything is on the path."""
    imported = {
        line.split()[1].split(".")[0]
        for line in SCRIPT.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imported <= set(sys.stdlib_module_names)
