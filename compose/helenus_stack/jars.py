"""The servers' jars: pinned by lock files, kept in the user's cache, verified before they get there.

A lock (`jars/*.lock`) has one line per file: its SHA-256, its size in bytes and its Maven coordinates
`group:name:version[:type[:classifier]]`. `python -m helenus_stack.lock` rewrites locks.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from helenus_stack.errors import StackError
from helenus_stack.files import cache_directory, exclusive
from helenus_stack.progress import Progress


@dataclass(frozen=True)
class Artifact:
    """One file of a lock."""

    group: str
    name: str
    version: str
    type: str = "jar"
    classifier: str = ""
    sha256: str = ""
    size: int = 0

    @classmethod
    def parse(cls, coordinates: str, sha256: str = "", size: int = 0) -> Artifact:
        """Reads `group:name:version[:type[:classifier]]`; raises ValueError."""
        parts = coordinates.split(":")
        if not 3 <= len(parts) <= 5 or not all(parts):
            raise ValueError(f"{coordinates!r} is not group:name:version[:type[:classifier]]")
        group, name, version, kind, classifier = parts + ["jar", ""][len(parts) - 3 :]
        return cls(group, name, version, kind, classifier, sha256, size)

    @property
    def file(self) -> str:
        """The file's name in the cache."""
        tail = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{tail}.{self.type}"

    @property
    def coordinates(self) -> str:
        """`group:name:version`, with type and classifier where they are not those of a plain jar."""
        tail = f":{self.type}:{self.classifier}" if self.classifier else "" if self.type == "jar" else f":{self.type}"
        return f"{self.group}:{self.name}:{self.version}{tail}"


Resolve = Callable[[Sequence[Artifact], Path, Progress], None]


def read_lock(name: str) -> list[Artifact]:
    """The artifacts of the lock that ships as `jars/<name>.lock`."""
    return parse_lock((resources.files("helenus_stack") / "jars" / f"{name}.lock").read_text(), f"{name}.lock")


def parse_lock(text: str, where: str) -> list[Artifact]:
    """The artifacts in a lock's text; lines that start with # are skipped."""
    artifacts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            sha256, size, coordinates = line.split()
            if len(bytes.fromhex(sha256)) != 32:
                raise ValueError("the checksum is not a SHA-256")
            artifacts.append(Artifact.parse(coordinates, sha256, int(size)))
        except ValueError as error:
            raise StackError(
                f"a lock line can't be read: {error}", f"{where} line {number}", "restore the file"
            ) from error
    return artifacts


def fetch(artifacts: Sequence[Artifact], progress: Progress, resolve: Resolve, store: Path | None = None) -> list[Path]:
    """Paths of the artifacts in `store` (default: the user's cache), downloading those that are missing.

    Safe while other processes fetch. A file enters the store by a rename, after its checksum was found right; so what
    is in the store is whole. Raises StackError.
    """
    store = store or cache_directory() / "jars"
    paths = [store / artifact.file for artifact in artifacts]
    if all(path.exists() for path in paths):
        return paths
    with exclusive(store / ".lock", progress, "waiting for another helenus-stack to fetch jars"):
        for stale in store.glob(".fetch-*"):  # of a process that was killed: we hold the lock
            shutil.rmtree(stale)
        missing = [artifact for artifact in artifacts if not (store / artifact.file).exists()]
        with tempfile.TemporaryDirectory(dir=store, prefix=".fetch-") as staging:
            if missing:
                resolve(missing, Path(staging), progress)
            for artifact in missing:
                verify(artifact, Path(staging) / artifact.file)
                (Path(staging) / artifact.file).replace(store / artifact.file)
    return paths


def verify(artifact: Artifact, path: Path) -> None:
    """Raises StackError unless the file is there and has the locked checksum."""
    if not path.exists():
        raise StackError(f"{artifact.coordinates} was not delivered", path.name, "run the command again")
    actual = digest(path)
    if actual != artifact.sha256:
        raise StackError(
            f"{artifact.coordinates} has the checksum {actual}, its lock says {artifact.sha256}",
            path.name,
            "do not use it; empty ~/.m2 if you have Maven, check your mirror or proxy, run again",
        )


def digest(path: Path) -> str:
    """The file's SHA-256 in hex."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()


def unpack(archive: Path, progress: Progress) -> Path:
    """The folder in which a fetched .tar.gz, or the .txz in a .jar, lies unpacked, next to it.

    The first call unpacks it.
    """
    folder = archive.with_name(archive.name.removesuffix(".tar.gz").removesuffix(".jar"))
    with exclusive(archive.with_name(f".{folder.name}.lock"), progress, f"waiting for {archive.name} to be unpacked"):
        if not folder.exists():
            staging = archive.with_name(f".{folder.name}")
            shutil.rmtree(staging, ignore_errors=True)
            with _tar(archive) as tar:
                # Python has filters from 3.10.12 and 3.11.4 on. Without, the lock vouches for the archive.
                safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                tar.extractall(staging, **safe)
            staging.rename(folder)
    return folder


@contextmanager
def _tar(archive: Path) -> Iterator[tarfile.TarFile]:
    if archive.suffix != ".jar":
        with tarfile.open(archive) as tar:
            yield tar
        return
    with zipfile.ZipFile(archive) as jar:
        (name,) = (name for name in jar.namelist() if name.endswith(".txz"))
        with jar.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as tar:
            yield tar
