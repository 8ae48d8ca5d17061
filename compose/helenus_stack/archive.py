"""Archives of a server's classes, as a JVM has them in memory: with one a server starts with a fifth less CPU.

The first server of a version that is ready makes one, and it is kept in the user's cache: class data sharing, JEP 350.
Without one a server starts more slowly, that is all.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from helenus_stack.files import cache_directory

OLDEST = 17
"""The first Java that makes one of a process that runs."""
SECONDS = 120
# Cassandra's agent measures objects, and changes no class.
_ANYWAY = "-XX:+UnlockDiagnosticVMOptions -XX:+AllowArchivingWithJavaAgent -Xlog:cds*=off"


@dataclass(frozen=True)
class Archive:
    """The archive of the classes in these jars, for one Java; the file may not be there yet."""

    file: Path
    java: Path

    @classmethod
    def for_classpath(cls, name: str, java: Path, classpath: str) -> Archive:
        """`name` is that of the jars' lock, `java` a Java home, and `classpath` names each jar."""
        fingerprint = f"{java} {(java / 'bin' / 'java').stat().st_mtime_ns} {classpath}"
        digest = hashlib.md5(fingerprint.encode(), usedforsecurity=False).hexdigest()
        return cls(cache_directory() / "java" / f"{name}-{digest}.jsa", java)

    @property
    def _jcmd(self) -> Path:
        return self.java / "bin" / "jcmd"

    @property
    def _may_be_made(self) -> bool:
        """An archive is made on top of Java's own. A Java without one, as that of the wheel, does not start with it."""
        return self._jcmd.exists() and (self.java / "lib" / "server" / "classes.jsa").exists()

    def environment(self) -> Mapping[str, str]:
        """What has a JVM use the archive or, if there is none, note what to make it of."""
        if self.file.exists():
            option = f"-XX:SharedArchiveFile={self.file}"
        elif self._may_be_made:
            option = "-XX:+RecordDynamicDumpInfo"
        else:
            return {}
        return {"JDK_JAVA_OPTIONS": f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {_ANYWAY} {option}".strip()}

    def make(self, pid: int) -> None:
        """Make it of a server that was started with `environment`, unless it is there."""
        if self.file.exists() or not self._may_be_made:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        made = self.file.with_suffix(f".{pid}")
        with suppress(OSError, subprocess.SubprocessError):
            command = [str(self._jcmd), str(pid), "VM.cds", "dynamic_dump", str(made)]
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
            made.replace(self.file)
        made.unlink(missing_ok=True)  # of a disk that is full
