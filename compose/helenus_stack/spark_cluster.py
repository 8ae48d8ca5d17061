"""A small Spark cluster on this machine, for tests and measurements. Its ports ask for a secret."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyspark

from helenus_stack.java import spark_java_home
from helenus_stack.programs import free_port
from helenus_stack.progress import Silent

_START_S = 240.0


class SparkCluster:
    """A standalone master and two workers of so many `cores` each, started from pip's Spark.

    `settings` are Spark's, of the master and the workers, over those of a cluster that asks for a secret.
    """

    def __init__(
        self,
        directory: Path,
        java_options: str = "",
        cores: int = 1,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._java_options = java_options
        self._cores = str(cores)
        self._home = Path(pyspark.__file__).parent
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_port(0)
        self._web = free_port(0)
        self.secret = secrets.token_hex(16)
        self._settings = {"spark.authenticate": "true", "spark.authenticate.secret": self.secret, **settings}

    @property
    def url(self) -> str:
        """What `spark.master` is to be."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def settings(self) -> dict[str, str]:
        """What a worker on this cluster is to have."""
        return {"spark.master": self.url, **self._settings}

    @property
    def _properties(self) -> Path:
        return self._directory / "spark.properties"

    def _start(self, *arguments: str) -> None:
        environment = {
            **os.environ,
            "JAVA_HOME": str(spark_java_home(Silent())),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self._java_options,
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._directory / "spark.log").open("ab") as log:
            command = [str(self._home / "bin" / "spark-class"), *arguments, "--properties-file", str(self._properties)]
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

    def __enter__(self) -> SparkCluster:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._properties.touch(mode=0o600)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        here = ("--host", "127.0.0.1")
        master = ("--port", str(self._port), "--webui-port", str(self._web))
        self._start("org.apache.spark.deploy.master.Master", *here, *master)
        for number in range(2):
            options = ("-d", str(self._directory / f"work{number}"), "--webui-port", str(free_port(0)))
            size = ("--cores", self._cores, "--memory", "1g")
            self._start("org.apache.spark.deploy.worker.Worker", *here, *size, *options, self.url)
        until = time.monotonic() + _START_S
        while self._alive() < 2:
            if time.monotonic() > until:
                self.__exit__()
                raise TimeoutError(f"two Spark workers are not there after {_START_S} s: {self._directory}/spark.log")
            time.sleep(0.5)
        return self

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=5) as answer:
                return str(answer.read()).count("ALIVE") - 1  # the master itself is
        except OSError:
            return 0

    def executors(self) -> list[int]:
        """The process ids of the executors, which are children of the workers."""
        workers = {process.pid for process in self._processes}
        registered = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in workers and b"CoarseGrainedExecutorBackend" in command:
                registered.append(int(path.name))
        return registered

    def serve(self, worker: Path) -> None:
        """Let a worker's file name this cluster."""
        cluster = {
            "spark.master": self.url,
            "spark.authenticate.secret": f"${{file:{self._properties}:spark.authenticate.secret}}",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": self._java_options,
            "spark.executor.cores": self._cores,
            # An executor of a test may die more often than one of a cluster in years.
            "spark.deploy.maxExecutorRetries": "-1",
        }
        lines = [line for line in worker.read_text().splitlines() if not line.startswith("spark.master=")]
        worker.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in cluster.items())]) + "\n")

    def __exit__(self, *_: object) -> None:
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
