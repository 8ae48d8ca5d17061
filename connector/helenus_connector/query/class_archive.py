"""An archive of Java's classes, with which Spark's Java process starts in less time and shares memory.

Java has read, checked and laid out each class in it: class data sharing, JEP 310. There is one for each Java, Spark and
version of this package:

1. A start that finds none has Java list the classes that it loads.
2. Minutes later, when queries run, another Java process makes the archive of that list (`make_later`): with the lowest
   priority, under a temporary name, which becomes the archive's own once all of it is on disk.
3. Later starts find it by its name, a digest of what it depends on, so that a stale one is never found.

Nothing needs one. Java uses none that does not fit it or its class path, and starts more slowly then. As it is code,
one that other users could have written is left alone.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from helenus_connector.config.run_directory import has_room
from helenus_schemas.service.durable import sync
from helenus_schemas.service.ownership import make_private, open_lock

_log = structlog.get_logger(__name__)
JAVA_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Variables that a JVM, or Spark's, takes options from."""
_OWN_OPTIONS = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit", "SharedClassList", "DumpLoadedClassList")
"""Options by which an operator has an archive of his own, or none."""
INSTALLED = Path(sys.prefix) / "share" / "helenus" / "class-archives"
"""Of an installation that has one already, as the image's: nobody writes there at run time."""
_DELAY_S = 180.0
"""After the start of Spark: its first queries run then, and Java has compiled most of what they need."""
_LONGEST_S = 900.0
_ROOM = 1 << 30  # bytes that are free before one is made, of 100 to 160 MB: it is to fill no disk
_UNUSED_S = 30 * 86400.0
"""After which the archive of another Java or Spark is removed. A start sets the time of the one it uses."""
_SUFFIX, _NEW = ".jsa", ".new"
_QUIET = "-Xlog:cds*=off"
LISTED = "classes.list"
"""In a run's directory, the classes that Java has loaded so far."""
# At the address it was made for, where there is room: its pages stay as they are in the file, and processes share them.
# Java's default since 17.0.6 is an address of chance, for which each pointer in it is changed first.
_AS_IT_IS = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
# Spark has Java load this module, which it does not by itself.
_MODULES = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class ClassArchive:
    """The archive of the classes in the jars of a class path, for one Java. Its file may not exist yet."""

    java: Path
    class_path: tuple[Path, ...]
    """Each jar by its name: by Spark's own `jars/*` they are in the order of the directory, which a copy of it may not
    have.
    """

    @classmethod
    def for_java(cls, java: Path, class_path: str, options: str) -> ClassArchive | None:
        """Return the archive for this Java, and for Spark's jars after those of a class path. None where an operator's
        Java `options`, or what the class path has beside jars, speak against one.
        """
        jars = spark_home() / "jars"
        entries = [*map(Path, filter(None, class_path.split(os.pathsep))), *sorted(jars.glob("*.jar"))]
        cache = cache_directory()
        # Java's own separators, in options and in paths.
        is_plain = not set("".join(map(str, [*entries, INSTALLED, cache]))) & set(" \t:,\"'\\")
        if any(option in options for option in _OWN_OPTIONS) or not is_plain:
            return None
        if not jars.is_dir() or not all(path.suffix == ".jar" and path.is_file() for path in entries):
            return None
        return cls(java, tuple(entries))

    @property
    def file_name(self) -> str:
        """Return its name, which differs if Java or a jar has changed. Raises OSError if one is gone."""
        program = self.java.resolve()
        files = [program, program.parents[1] / "lib" / "server" / "libjvm.so", *self.class_path]
        lines = [f"{path} {_size_and_time(path)}" for path in files]
        return f"classes-{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:32]}{_SUFFIX}"

    def find(self) -> Path | None:
        """Return the file, None if there is none that may be used. Warns of one that others could have written."""
        with suppress(OSError):
            for directory in filter(None, (INSTALLED, cache_directory())):
                file = directory / self.file_name
                if not os.path.lexists(file):
                    continue
                if reason := distrust(file) or distrust(directory):
                    warn_of(file, reason)
                    continue
                with suppress(OSError):  # the image's is root's
                    os.utime(file)
                return file
        return None

    def make(self, class_list: Path, directory: Path, is_private: bool = True) -> Path:
        """Make the file in a directory, of a list of classes as Java writes it; returns at once if it is there, or
        another process makes it. Raises OSError, and subprocess.SubprocessError with what Java said.
        """
        file = directory / self.file_name
        directory.mkdir(mode=0o700 if is_private else 0o755, parents=True, exist_ok=True)
        if is_private:
            make_private(directory)
        with _locked(directory / "lock") as is_ours:
            if not is_ours or file.exists():
                return file
            for leftover in directory.glob(f"*{_NEW}"):  # of one that was killed
                leftover.unlink(missing_ok=True)
            if not has_room(directory, _ROOM):
                raise OSError(errno.ENOSPC, f"less than {_ROOM >> 20} MB are free", str(directory))
            names, new = directory / f"list{_NEW}", directory / f"{file.name}{_NEW}"
            # Java may still write to its list: the last line may be half a name.
            names.write_bytes(class_list.read_bytes().rpartition(b"\n")[0] + b"\n")
            try:
                self._dump(names, new)
                new.chmod(0o600 if is_private else 0o644)
                sync(new)
                new.replace(file)
                sync(directory)
            finally:
                names.unlink(missing_ok=True)
                new.unlink(missing_ok=True)
            _remove_unused(directory)
        return file

    def _dump(self, names: Path, new: Path) -> None:
        """Have Java write the archive of the listed classes."""
        command = [
            *([nice, "-n", "19"] if (nice := shutil.which("nice")) else []),
            str(self.java),
            "-Xshare:dump",
            f"-XX:SharedClassListFile={names}",
            f"-XX:SharedArchiveFile={new}",
            # A collector and a heap that need little memory.
            "-XX:+UseSerialGC",
            "-Xmx512m",
            _QUIET,
            _MODULES,
            "-cp",
            os.pathsep.join(map(str, self.class_path)),
        ]
        variables = {name: value for name, value in os.environ.items() if name not in JAVA_OPTION_VARIABLES}
        with subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            atexit.register(process.kill)
            try:
                with suppress(OSError):  # where memory is short this process ends first
                    Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
                output, _ = process.communicate(timeout=_LONGEST_S)
            except BaseException:
                process.kill()
                raise
            finally:
                atexit.unregister(process.kill)
        if process.returncode != 0 or not new.exists():
            raise subprocess.SubprocessError((output.strip().splitlines() or [f"exit status {process.returncode}"])[-1])


def spark_home() -> Path:
    """Return where Spark is: as its own scripts look for it, but that PySpark is the one that this process imports."""
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def use_option(file: Path) -> str:
    """Return the options by which Java uses an archive."""
    return f"-XX:SharedArchiveFile={file} {_AS_IT_IS} {_QUIET}"


def list_option(directory: Path) -> str:
    """Return the options by which Java lists its classes in a run's directory, for `make_later`."""
    return f"-XX:DumpLoadedClassList={directory / LISTED} {_QUIET}"


def make_later(archive: ClassArchive, directory: Path) -> None:
    """Make an archive in the cache, of what Java has listed in a run's directory, once its queries run. Returns at
    once.
    """

    def make() -> None:
        time.sleep(_DELAY_S)
        cache = cache_directory()
        begun = time.monotonic()
        if cache is None or not (directory / LISTED).exists():  # the run has ended
            return
        try:
            file = archive.make(directory / LISTED, cache)
            if file.exists():
                seconds = round(time.monotonic() - begun, 1)
                _log.info("class_archive.made", file=str(file), mb=file.stat().st_size >> 20, seconds=seconds)
        except (OSError, subprocess.SubprocessError) as error:
            effect = "Spark starts as slowly the next time"
            _log.warning("class_archive.failed", directory=str(cache), reason=str(error), effect=effect)

    threading.Thread(target=make, name="class-archive", daemon=True).start()


def warn_if_unused(file: Path, pid: int) -> None:
    """Warn if a Java process that was given an archive does not use it."""
    try:
        is_used = str(file.resolve()) in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return  # another system, which does not tell
    if not is_used:
        warn_of(file, "Java does not take it: it is damaged, or was made for other options of Java")


def warn_of(file: Path, reason: str) -> None:
    """Log why an archive is not used: nothing but a start is slower."""
    _log.warning("class_archive.unused", file=str(file), reason=reason, advice="remove it, to have it made again")


def cache_directory() -> Path | None:
    """Return where archives are made: in systemd's CACHE_DIRECTORY or the user's cache; None if there is neither."""
    with suppress(RuntimeError):  # a user without a home
        of_service = os.environ.get("CACHE_DIRECTORY", "").split(os.pathsep)[0]
        if of_service:
            return Path(of_service) / "class-archives"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "helenus" / "class-archives"
    return None


def distrust(path: Path) -> str | None:
    """Return why the code in a file, or those in a directory, may be another user's, or None."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {path}"
    return None


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock meanwhile; yields False, without it, if another process has it."""
    descriptor = open_lock(path)
    try:
        is_ours = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        yield is_ours
    finally:
        os.close(descriptor)


def _remove_unused(directory: Path) -> None:
    for file in directory.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > _UNUSED_S:
                file.unlink()


def _size_and_time(path: Path) -> str:
    """Return what changes if a file does: Java compares it as well, in seconds."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.suffix == ".jar":
            raise
        return "-"  # a Java that has it elsewhere
    return f"{status.st_size} {int(status.st_mtime)}"
