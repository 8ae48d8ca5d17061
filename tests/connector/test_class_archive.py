"""The archive of Java's classes: found by what it depends on, made whole or not at all, and no other user's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog

from helenus_connector.query import class_archive as module
from helenus_connector.query.class_archive import ClassArchive, list_option, use_option, warn_if_unused
from helenus_connector.query.internals import JAR
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent

JAVA = """#!/bin/sh
for option in "$@"; do
  case "$option" in
    -XX:SharedClassListFile=*) names="${option#*=}" ;;
    -XX:SharedArchiveFile=*) file="${option#*=}" ;;
  esac
done
%s
"""
"""A stand-in: what it does with `$names` and `$file` follows."""
COPIES = 'cp "$names" "$file"; chmod 444 "$file"'


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of this test's own, and a Spark of two jars."""
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(module, "INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(module, "_ROOM", 0)
    (tmp_path / "spark/jars/folder").mkdir(parents=True)
    for name in ("b.jar", "a.jar"):
        (tmp_path / "spark/jars" / name).write_text(name)
    (tmp_path / "list").write_text("java/lang/Object\njava/lang/Str")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache/helenus/class-archives"


def java(directory: Path, does: str) -> Path:
    program = directory / "java/bin/java"
    program.parent.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.read_text() != JAVA % does:
        program.write_text(JAVA % does)
        program.chmod(0o755)
    return program


def archive(directory: Path, does: str = COPIES, class_path: str = "") -> ClassArchive:
    made = ClassArchive.for_java(java(directory, does), class_path, "")
    assert made is not None
    return made


def test_what_was_made_is_found(tmp_path: Path, cache: Path) -> None:
    of_spark = archive(tmp_path)
    assert [path.name for path in of_spark.class_path] == ["a.jar", "b.jar"], "by name, whatever the directory's order"
    assert of_spark.find() is None
    file = of_spark.make(tmp_path / "list", cache)
    assert of_spark.find() == file
    assert file.read_text() == "java/lang/Object\n", "the last line may be half a name"
    assert (file.stat().st_mode & 0o777, cache.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(path.name for path in cache.iterdir()) == [file.name, "lock"]
    assert use_option(file).startswith(f"-XX:SharedArchiveFile={file} ")
    assert list_option(tmp_path).startswith(f"-XX:DumpLoadedClassList={tmp_path / 'classes.list'} ")


def test_an_archive_of_anything_else_is_not_found(tmp_path: Path, cache: Path) -> None:
    """Of another Java, another jar, or jars in another order."""
    before = archive(tmp_path)
    before.make(tmp_path / "list", cache)
    (tmp_path / "own.jar").write_text("mine")
    assert archive(tmp_path, class_path=str(tmp_path / "own.jar")).find() is None
    jar = tmp_path / "spark/jars/a.jar"
    status = jar.stat()
    os.utime(jar, (status.st_atime, status.st_mtime + 1))
    assert archive(tmp_path).find() is None
    os.utime(jar, (status.st_atime, status.st_mtime))
    assert archive(tmp_path).find() is not None
    assert archive(tmp_path, does=f"{COPIES} # another").find() is None
    jar.unlink()
    assert before.find() is None


@pytest.mark.parametrize(
    "options", ["-Xshare:off", "-Dx=y -XX:SharedArchiveFile=/mine", "-XX:ArchiveClassesAtExit=/mine"]
)
def test_an_operator_s_own_archive_takes_precedence(tmp_path: Path, options: str) -> None:
    assert ClassArchive.for_java(java(tmp_path, COPIES), "", options) is None


def test_a_class_path_that_no_archive_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = java(tmp_path, COPIES)
    assert ClassArchive.for_java(program, str(tmp_path), "") is None, "a directory, which may change"
    assert ClassArchive.for_java(program, f"{tmp_path}/*", "") is None
    assert ClassArchive.for_java(program, f"{tmp_path}/missing.jar", "") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with space"))
    assert ClassArchive.for_java(program, "", "") is None, "Java's options are separated so"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ClassArchive.for_java(program, "", "") is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_could_have_written_is_not_used(tmp_path: Path, cache: Path, mode: int) -> None:
    """It is code."""
    file = archive(tmp_path).make(tmp_path / "list", cache)
    file.chmod(mode)
    with structlog.testing.capture_logs() as logs:
        assert archive(tmp_path).find() is None
    assert [entry["event"] for entry in logs] == ["class_archive.unused"]
    assert "other users may write" in logs[0]["reason"]
    file.chmod(0o600)
    cache.chmod(0o770)
    assert archive(tmp_path).find() is None
    cache.chmod(0o700)
    moved = file.rename(tmp_path / "elsewhere")
    file.symlink_to(moved)
    assert archive(tmp_path).find() is None


def test_the_installed_one_comes_first(tmp_path: Path, cache: Path) -> None:
    archive(tmp_path).make(tmp_path / "list", cache)
    file = archive(tmp_path).make(tmp_path / "list", tmp_path / "installed", is_private=False)
    assert archive(tmp_path).find() == file
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o644, 0o755)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ('echo half > "$file"; echo "no memory"; exit 1', "no memory"),
        ("exit 3", "exit status 3"),
        ("exit 0", "exit status 0"),
    ],
)
def test_a_java_that_fails_leaves_nothing(tmp_path: Path, cache: Path, does: str, reason: str) -> None:
    with pytest.raises(subprocess.SubprocessError, match=reason):
        archive(tmp_path, does).make(tmp_path / "list", cache)
    assert [path.name for path in cache.iterdir()] == ["lock"]
    assert archive(tmp_path, does).find() is None


def test_one_that_was_killed_is_no_archive(tmp_path: Path, cache: Path) -> None:
    """Its half of a file is under another name, which the next one removes; a former one that nobody uses goes too."""
    cache.mkdir(mode=0o700, parents=True)
    of_spark = archive(tmp_path)
    (cache / f"{of_spark.file_name}.new").write_text("half")
    (cache / "classes-of-another.jsa").write_text("used")
    (cache / "classes-of-before.jsa").write_text("unused")
    long_ago = time.time() - 31 * 86400
    os.utime(cache / "classes-of-before.jsa", (long_ago, long_ago))
    assert of_spark.find() is None
    file = of_spark.make(tmp_path / "list", cache)
    assert sorted(path.name for path in cache.iterdir()) == sorted(["classes-of-another.jsa", file.name, "lock"])
    os.utime(file, (long_ago, long_ago))
    of_spark.find()
    assert time.time() - file.stat().st_mtime < 86400, "it is used"


def test_one_process_makes_it(tmp_path: Path, cache: Path) -> None:
    of_spark = archive(tmp_path)
    cache.mkdir(mode=0o700, parents=True)
    with module._locked(cache / "lock") as is_ours:
        assert is_ours
        assert not of_spark.make(tmp_path / "list", cache).exists()
    assert of_spark.make(tmp_path / "list", cache).exists()
    archive(tmp_path, COPIES).make(tmp_path / "missing", cache)  # it is there


def test_a_disk_with_little_room_is_left_alone(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROOM", 1 << 60)
    with pytest.raises(OSError, match="are free"):
        archive(tmp_path).make(tmp_path / "list", cache)


def test_it_is_made_while_a_worker_runs(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it can't be is said once, and a run that has ended wants none."""
    monkeypatch.setattr(module, "_DELAY_S", 0.0)
    begun: list[Path] = []

    def make(of_spark: ClassArchive) -> list[str]:
        with structlog.testing.capture_logs() as logs:
            module.make_later(of_spark, tmp_path)
            while any(thread.name == "class-archive" for thread in module.threading.enumerate()):
                time.sleep(0.01)
        begun.append(tmp_path)
        return [entry["event"] for entry in logs]

    assert make(archive(tmp_path)) == []
    (tmp_path / "list").rename(tmp_path / "classes.list")
    assert make(archive(tmp_path, "exit 1")) == ["class_archive.failed"]
    assert make(archive(tmp_path)) == ["class_archive.made"]
    assert archive(tmp_path).find() is not None


@pytest.mark.integration  # no server, but seconds of Java
def test_java_takes_what_it_has_made(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And starts as well with one that is damaged, which is said."""
    program = spark_java_home(Silent()) / "bin/java"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "of-one"))
    jars = tmp_path / "of-one/jars"
    jars.mkdir(parents=True)
    (jars / JAR.name).write_bytes(JAR.read_bytes())
    (tmp_path / "Sleeps.java").write_text(
        "class Sleeps { public static void main(String[] a) throws Exception { System.in.read(); } }"
    )
    of_jar = ClassArchive.for_java(program, "", "")
    assert of_jar is not None
    listed = tmp_path / "names"
    listed.write_text("java/lang/Object\nhelenus/Job\nhelenus/LocalFiles\n")
    file = of_jar.make(listed, cache)

    def warnings(option: str) -> list[str]:
        path = os.pathsep.join(map(str, of_jar.class_path))
        command = [str(program), *option.split(), "-cp", path, str(tmp_path / "Sleeps.java")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            time.sleep(1)
            with structlog.testing.capture_logs() as logs:
                warn_if_unused(file, process.pid)
            output, _ = process.communicate(b"\n", timeout=60)
        assert (process.returncode, output) == (0, b"")
        return [entry["event"] for entry in logs]

    assert warnings(use_option(file)) == []
    file.chmod(0o600)
    file.write_bytes(bytes(64) + file.read_bytes()[64:])
    assert warnings(use_option(file)) == ["class_archive.unused"]


START = """
import sys
from pathlib import Path
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.class_archive import LISTED
from helenus_connector.query.spark_session import class_archive, run_task, start_session
from helenus_schemas.service import logs

run = Path(sys.argv[1])
run.mkdir()
settings = {"bootstrap.servers": "k:9092", "checkpoint.dir": str(run), "spark.master": "local[1]"}
worker = WorkerSettings.from_properties(settings, "worker")
logs.configure("info", "json")
spark = start_session(worker, run)
run_task(spark)
file = class_archive(worker, run).find()
maps = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
print(file is not None and str(file) in maps, (run / LISTED).exists())
spark.stop()
"""


@pytest.mark.integration
@pytest.mark.long  # three starts of Spark, and an archive of all its classes
def test_spark_starts_with_it(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME")
    environment = {**os.environ, "JAVA_HOME": str(spark_java_home(Silent()))}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, *command)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)

    assert run("-c", START, str(tmp_path / "first")).stdout.split() == ["False", "True"]
    shown = run("-m", "helenus_connector.install_archive", str(cache)).stdout
    file = Path(shown.strip())
    assert file.parent == cache
    assert run("-m", "helenus_connector.install_archive", str(cache)).stdout == shown  # it is there
    used = run("-c", START, str(tmp_path / "second"))
    assert used.stdout.split() == ["True", "False"]
    assert "class_archive" not in used.stderr
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:1_000_000])
    damaged = run("-c", START, str(tmp_path / "third"))
    assert damaged.stdout.split()[-2:] == ["False", "False"], "Java has ended, and was started without it"
    assert damaged.stderr.count("class_archive.unused") == 1
