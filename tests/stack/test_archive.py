"""Archives of a server's classes: which one a server uses, and that a failing one leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helenus_stack.archive import Archive


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    return home(tmp_path / "java", jcmd='echo archive > "$4"')


def home(path: Path, jcmd: str = "") -> Path:
    """A Java home; `jcmd` is what its jcmd does, which is given PID VM.cds dynamic_dump FILE."""
    (path / "bin").mkdir(parents=True)
    for name, does in (("java", "exit 1"), ("jcmd", jcmd)):
        if does:
            (path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
            (path / "bin" / name).chmod(0o755)
    (path / "lib" / "server").mkdir(parents=True)
    (path / "lib" / "server" / "classes.jsa").touch()
    return path


def test_each_java_and_each_set_of_jars_has_one_of_its_own(java: Path, tmp_path: Path) -> None:
    other = home(tmp_path / "other")
    made = [
        Archive.for_classpath("kafka", *java_and_jars)
        for java_and_jars in ((java, "a.jar"), (java, "a.jar:b.jar"), (other, "a.jar"))
    ]
    assert len({archive.file for archive in made}) == 3
    assert Archive.for_classpath("kafka", java, "a.jar").file == made[0].file
    os.utime(java / "bin" / "java", (1, 1))  # an upgrade in place
    assert Archive.for_classpath("kafka", java, "a.jar").file != made[0].file


def test_the_first_start_notes_its_classes_and_the_next_uses_them(java: Path) -> None:
    archive = Archive.for_classpath("kafka", java, "a.jar")
    assert "-XX:+RecordDynamicDumpInfo" in archive.environment()["JDK_JAVA_OPTIONS"]
    archive.make(7)
    assert archive.file.read_text() == "archive\n"
    assert f"-XX:SharedArchiveFile={archive.file}" in archive.environment()["JDK_JAVA_OPTIONS"]


def test_one_that_is_there_is_kept(java: Path) -> None:
    archive = Archive.for_classpath("kafka", java, "a.jar")
    archive.make(7)
    archive.file.write_text("the first")
    archive.make(8)
    assert archive.file.read_text() == "the first"


def test_options_of_the_user_stay(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss2m")
    assert Archive.for_classpath("kafka", java, "a.jar").environment()["JDK_JAVA_OPTIONS"].startswith("-Xss2m ")


def test_a_runtime_without_jcmd_goes_without(java: Path, tmp_path: Path) -> None:
    archive = Archive.for_classpath("kafka", home(tmp_path / "jre"), "a.jar")
    archive.make(7)
    assert (archive.environment(), archive.file.exists()) == ({}, False)


@pytest.mark.parametrize("jcmd", ["exit 0", 'echo half > "$4"; exit 1'])
def test_one_that_can_not_be_made_leaves_nothing(java: Path, tmp_path: Path, jcmd: str) -> None:
    archive = Archive.for_classpath("kafka", home(tmp_path / "fails", jcmd), "a.jar")
    archive.make(7)
    assert list(archive.file.parent.iterdir()) == []


def test_a_runtime_without_an_archive_of_its_own_goes_without(java: Path) -> None:
    """As the Java of a wheel: with the option its JVM ends with `base CDS archive is not loaded`."""
    (java / "lib" / "server" / "classes.jsa").unlink()
    archive = Archive.for_classpath("kafka", java, "a.jar")
    assert archive.environment() == {}
    archive.make(7)
    assert not archive.file.exists()
