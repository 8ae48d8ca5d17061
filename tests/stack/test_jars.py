"""Locks, the cache they fill, and what happens to a file that isn't the locked one."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helenus_stack import jars, resolve
from helenus_stack.errors import StackError
from helenus_stack.jars import Artifact
from helenus_stack.progress import Progress, Silent

CONTENT = b"classes"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SERVERS = ("cassandra", "cassandra-4.1", "cassandra-4.0", "kafka", "registry", "connect", "postgres")


def artifact(name: str) -> Artifact:
    return Artifact.parse(f"org.example:{name}:1.0", SHA256, len(CONTENT))


class Registry:
    """Delivers `content` for every file asked for, and remembers what was asked."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.asked: list[str] = []

    def __call__(self, artifacts: Sequence[Artifact], folder: Path, progress: Progress) -> None:
        for wanted in artifacts:
            self.asked.append(wanted.file)
            (folder / wanted.file).write_bytes(self.content)


@pytest.mark.parametrize(
    ("coordinates", "file"),
    [
        ("g:name:1.0", "name-1.0.jar"),
        ("g:name:1.0:tar.gz", "name-1.0.tar.gz"),
        ("g:name:1.0:jar:linux-x86_64", "name-1.0-linux-x86_64.jar"),
    ],
)
def test_coordinates_name_a_file_and_read_back(coordinates: str, file: str) -> None:
    parsed = Artifact.parse(coordinates)
    assert (parsed.file, parsed.coordinates) == (file, coordinates)


@pytest.mark.parametrize(
    "line",
    [
        "g:name:1.0",
        f"{SHA256} g:name:1.0",
        f"{SHA256} seven g:name:1.0",
        f"{SHA256} 7 g:name",
        "abcd 7 g:name:1.0",
        f"{SHA256} 7 g:name:1:jar:c:x",
    ],
)
def test_a_bad_lock_line_is_named(line: str) -> None:
    with pytest.raises(StackError, match=r"x\.lock line 2"):
        jars.parse_lock(f"# root g:name:1.0\n{line}\n", "x.lock")


def test_shipped_locks_pin_every_file_once() -> None:
    locked = [file for server in SERVERS for file in jars.read_lock(server)]
    assert len(locked) > 100
    checksums = {file.file: file.sha256 for file in locked}
    assert all(checksums[file.file] == file.sha256 for file in locked), "two servers' files share a name"
    assert all(file.size for file in locked)


def test_fetches_only_what_is_missing(tmp_path: Path) -> None:
    registry = Registry()
    first = jars.fetch([artifact("a")], Silent(), registry, tmp_path)
    both = jars.fetch([artifact("a"), artifact("b")], Silent(), registry, tmp_path)
    jars.fetch([artifact("a"), artifact("b")], Silent(), registry, tmp_path)
    assert registry.asked == ["a-1.0.jar", "b-1.0.jar"]
    assert first == both[:1]
    assert all(path.read_bytes() == CONTENT for path in both)


def test_a_file_with_another_checksum_never_enters_the_cache(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"org\.example:a:1\.0 has the checksum .* its lock says") as caught:
        jars.fetch([artifact("a")], Silent(), Registry(b"something else"), tmp_path)
    assert "mirror" in caught.value.advice
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_file_that_is_not_delivered_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"org\.example:a:1\.0 was not delivered"):
        jars.fetch([artifact("a")], Silent(), lambda wanted, folder, progress: None, tmp_path)


def test_fetching_at_once_downloads_once(tmp_path: Path) -> None:
    registry = Registry()
    together = threading.Barrier(4)

    def fetch() -> None:
        together.wait()
        jars.fetch([artifact("a"), artifact("b")], Silent(), registry, tmp_path)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(registry.asked) == ["a-1.0.jar", "b-1.0.jar"]


def test_remains_of_a_killed_download_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".fetch-killed").mkdir()
    (tmp_path / ".fetch-killed" / "a-1.0.jar").write_bytes(b"half")
    jars.fetch([artifact("a")], Silent(), Registry(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a-1.0.jar"]


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    archive = tmp_path / "server-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("lib/run.jar")
        member.size = len(CONTENT)
        tar.addfile(member, io.BytesIO(CONTENT))
    folder = jars.unpack(archive, Silent())
    (folder / "seen").touch()
    assert jars.unpack(archive, Silent()) == folder
    assert (folder / "lib" / "run.jar").read_bytes() == CONTENT
    assert (folder / "seen").exists()


def test_a_python_that_knows_no_filters_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 3.10.6 and 3.11.2 are, Debian 12's and Ubuntu 22.04's first."""
    extract = tarfile.TarFile.extractall
    filter_option: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

    def without_filter(tar: tarfile.TarFile, path: Path, members: None = None, *, numeric_owner: bool = False) -> None:
        extract(tar, path, members, numeric_owner=numeric_owner, **filter_option)

    monkeypatch.setattr(tarfile.TarFile, "extractall", without_filter)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    archive = tmp_path / "server-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    assert (jars.unpack(archive, Silent()) / "file").exists()


def test_an_archive_in_a_jar_is_unpacked(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        member = tarfile.TarInfo("bin/run")
        member.size, member.mode = len(CONTENT), 0o755
        tar.addfile(member, io.BytesIO(CONTENT))
    with zipfile.ZipFile(tmp_path / "server-1.0.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "")
        jar.writestr("server.txz", packed.getvalue())
    program = jars.unpack(tmp_path / "server-1.0.jar", Silent()) / "bin" / "run"
    assert program == tmp_path / "server-1.0" / "bin" / "run"
    assert program.read_bytes() == CONTENT
    assert program.stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("programs", "home", "chosen"),
    [("mvn java", None, "maven"), ("mvn", "/opt/java", "maven"), ("mvn", None, "ivy"), ("java", None, "ivy")],
)
def test_maven_downloads_where_it_has_java(
    programs: str, home: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise Ivy does, on the Java that comes as a wheel."""
    called: list[str] = []
    monkeypatch.setattr(resolve.shutil, "which", lambda name: name if name in programs.split() else None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home:
        monkeypatch.setenv("JAVA_HOME", home)
    for name in ("maven", "ivy"):
        monkeypatch.setattr(resolve, name, lambda *_, name=name: called.append(name))
    resolve.resolve([], tmp_path, Silent())
    assert called == [chosen]


class Says(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_what_is_to_be_fetched_is_said_before(tmp_path: Path) -> None:
    progress = Says()
    wanted = [Artifact.parse(f"g:{name}:1.0", SHA256, 3_400_000) for name in "ab"]
    resolve._download(["true"], tmp_path, wanted, progress)
    assert progress.said[0] == "fetching 2 files, 7 MB, with Ivy"


@pytest.mark.parametrize("fails", [True, False])
def test_ivy_keeps_its_cache_only_to_go_on(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store and not in ~/.ivy2, where every jar was kept a second time."""
    caches: list[Path] = []

    def download(command: list[str], *_: object) -> None:
        caches.append(Path(command[command.index("-cache") + 1]))
        caches[0].mkdir()
        if fails:
            raise StackError("the jars could not be downloaded", "java", "check the network")

    monkeypatch.setattr(resolve, "_download", download)
    monkeypatch.setattr(resolve, "java_home", lambda *_: tmp_path)
    with pytest.raises(StackError, match="could not be downloaded" if fails else "was not delivered"):
        jars.fetch([artifact("a")], Silent(), resolve.ivy, tmp_path / "store")
    assert caches[0].parent == tmp_path / "store"
    assert caches[0].exists() is fails
