"""Pulsar's topics as Java's client reads them: PulsarReader.java, compiled by the Eclipse compiler so a JRE will do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from java_classes import CHUNKS

from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

SOURCES = Path(__file__).with_name("java")


class JavaReader:
    """`read` gives a line for each message: `version` of its schema, `record`, `properties`; of `chunks` the `key` and
    the `sha256` of its whole value, and the same with a reader `limited` to 1,000 bytes.
    """

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self._java = str(java_home(17, Silent(), newer=True) / "bin/java")
        self._jars = [*fetch(read_lock("pulsar-client"), Silent(), resolve), CHUNKS]
        compiler = next(jar for jar in self._jars if jar.name.startswith("ecj-"))
        sources = map(str, SOURCES.rglob("*.java"))
        options = ["-17", "-nowarn", "-proc:none", "-d", str(directory), "-cp", _path(self._jars), *sources]
        self._run([compiler], "org.eclipse.jdt.internal.compiler.batch.Main", *options)

    def read(self, topic: str, how: str = "auto") -> list[dict[str, Any]]:
        """All messages, in the order of each partition. `how`: auto, typed, mutations or chunks."""
        return self._read_answers(topic, how)

    def write(self, topic: str, key_schema: str, key: str) -> str:
        """Append an event as DataStax's agent does; `key` is base64. Gives the schema of its value."""
        (answer,) = self._read_answers(topic, "write", key_schema, key)
        return str(answer["value"])

    def _read_answers(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        output = self._run([self._directory, *self._jars], "PulsarReader", self._url, topic, *arguments)
        return [json.loads(line) for line in output.split("\n") if line.startswith("{")]

    def _run(self, path: Sequence[Path], main: str, *arguments: str) -> str:
        opened = ["--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/sun.net=ALL-UNNAMED"]
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", *opened]
        command = [self._java, *options, "-cp", _path(path), main, *arguments]
        process = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
        return process.stdout


def _path(jars: Sequence[Path]) -> str:
    return ":".join(map(str, jars))
