"""A process of Helenus, agent or worker: its pid file is among the stack's, whose watchdog ends it too."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from bench.processes import family, python_workers
from helenus_stack.process import STOP_SECONDS, Process, stop

_METRIC = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Service:
    """One of Helenus's commands on its properties files, with the port of its monitoring."""

    name: str
    directory: Path
    """The stack's."""
    command: str
    files: Sequence[Path]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def process(self) -> Process:
        return Process(self.directory / "run" / f"{self.name}.pid")

    @property
    def log(self) -> Path:
        return self.directory / "logs" / f"{self.name}.log"

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.process.pid is None:
            script = str(Path(sys.executable).with_name(self.command))
            self.process.start([script, *map(str, self.files)], self.directory, self.log, self.environment)

    def kill(self) -> None:
        """Kill this process alone, as kill -9 does, and wait until it is gone: `start` starts none beside it."""
        if (pid := self.process.pid) is not None:
            _signal([pid], signal.SIGKILL)
            deadline = time.monotonic() + STOP_SECONDS
            while self.process.pid is not None and time.monotonic() < deadline:
                time.sleep(0.01)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        stop([self.process], 4 * STOP_SECONDS)

    def signal_family(self, number: signal.Signals) -> None:
        """Send a signal to it and all processes below it."""
        if (pid := self.process.pid) is not None:
            _signal([int(path.name) for path in family(pid)], number)

    def python_workers(self) -> list[int]:
        """Return the pids of what does batches: Spark's Python workers, and the process for small ones."""
        return [] if (pid := self.process.pid) is None else python_workers(pid)

    def get(self, path: str) -> bytes:
        """Return what it answers over HTTP. Raises OSError."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=_TIMEOUT_S) as answer:
            try:
                return bytes(answer.read())
            except HTTPException as error:  # it was killed while it answered
                raise OSError(f"the answer ends early: {error!r}") from None

    def post(self, path: str, body: object = None) -> bytes:
        """Ask for something over HTTP, and return the answer. Raises OSError."""
        data = json.dumps({} if body is None else body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read())

    def get_json(self, path: str) -> Any:
        """Return what it answers as JSON. Raises OSError, and ValueError."""
        return json.loads(self.get(path))

    def health(self) -> str:
        """Return its own words on how it is, also when it is not well; empty if it does not answer."""
        try:
            return self.get("/health").decode(errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode(errors="replace")
        except OSError:
            return ""

    def is_ready(self) -> bool:
        """Return whether it runs and nothing is wrong."""
        with suppress(OSError):
            self.get("/health/ready")
            return True
        return False

    def total(self, name: str, connector: str) -> float:
        """Return the sum of a metric of a connector. Raises OSError."""
        series = _METRIC.findall(self.get("/metrics").decode())
        label = f'connector="{connector}"'
        return sum(float(value) for metric, labels, value in series if metric == name and label in labels)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_properties(path: Path, values: Mapping[str, object]) -> Path:
    """Write a properties file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path
