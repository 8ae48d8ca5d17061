"""Avro records decoded by Java's Avro, and what it says in the form of Python's."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from helenus_stack.jars import Artifact, fetch, parse_lock, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

SOURCE = Path(__file__).with_name("Reader.java")


class Program:
    """A class, compiled into `directory` by the Eclipse compiler, so that a JRE will do.

    `locks` name its jars: locks of the stack, or files.
    """

    def __init__(self, directory: Path, source: Path, *locks: str | Path) -> None:
        self._directory, self._main = directory, source.stem
        self._java = str(java_home(17, Silent(), newer=True) / "bin/java")
        self._jars = [jar for lock in locks for jar in fetch(_artifacts(lock), Silent(), resolve)]
        compiler = next(jar for jar in fetch(read_lock("avro"), Silent(), resolve) if jar.name.startswith("ecj-"))
        options = ["-17", "-nowarn", "-proc:none", "-d", str(directory), "-cp", _path(self._jars), str(source)]
        self._run([compiler], "org.eclipse.jdt.internal.compiler.batch.Main", *options)

    def ask(self, standard_input: str) -> str:
        """What it prints."""
        return self._run([self._directory, *self._jars], self._main, standard_input=standard_input)

    def run(self, *arguments: str, lines: str = "") -> str:
        """What it prints, with these arguments, of these lines."""
        return self._run([self._directory, *self._jars], self._main, *arguments, standard_input=lines)

    def command(self, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """The command that runs it, with options of Java's."""
        return self._command([self._directory, *self._jars], self._main, *arguments, options=options)

    def _command(self, path: Sequence[Path], main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        usual = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Duser.timezone=UTC"]
        return [self._java, *usual, *options, "-cp", _path(path), main, *arguments]

    def _run(self, path: Sequence[Path], main: str, *arguments: str, standard_input: str = "") -> str:
        command = self._command(path, main, *arguments)
        process = subprocess.run(command, input=standard_input, capture_output=True, encoding="utf-8")
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
        return process.stdout


class Reader(Program):
    """Reader.java."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SOURCE, "avro")

    def read(self, records: Iterable[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """For each schema's text and record's bytes: `schema` as Java prints it, and `value`; or `error`."""
        lines = "".join(json.dumps({"schema": schema, "data": data.hex()}) + "\n" for schema, data in records)
        return [
            json.loads(line) for line in self.ask(lines).split("\n") if line
        ]  # in strings there may be other ends of lines


def plain(value: Any) -> Any:
    """A value that fastavro read without logical types, as Reader.java shows it."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, float):
        return struct.pack(">d", value).hex() if value == value else "7ff8000000000000"
    return value


def _artifacts(lock: str | Path) -> list[Artifact]:
    return read_lock(lock) if isinstance(lock, str) else parse_lock(lock.read_text(), lock.name)


def _path(jars: Sequence[Path]) -> str:
    return ":".join(map(str, jars))
