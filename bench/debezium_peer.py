"""Debezium's connector for Cassandra as a process beside a node, for tests and benchmarks that compare."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from helenus_stack.errors import StackError
from helenus_stack.jars import Artifact, fetch, parse_lock
from helenus_stack.java import java_home
from helenus_stack.process import end_child
from helenus_stack.programs import free_port
from helenus_stack.progress import Silent
from helenus_stack.resolve import maven
from helenus_stack.status import Status

LOCK = Path(__file__).with_name("debezium.lock")
PARENT = "io.debezium:debezium-connector-reactor-cassandra:3.5.0.Beta1:pom"
"""It is in no public repository, and nothing in it is needed where all files are listed."""
MAIN = "io.debezium.connector.cassandra.CassandraConnectorTask"
OPENED = (
    *("lang", "lang.module", "lang.ref", "lang.reflect", "io", "nio", "util", "util.concurrent", "net", "math"),
    *("util.concurrent.atomic",),
)
INTERNAL = ("misc", "loader", "ref", "reflect", "math", "module", "util.jar")


def has_maven() -> bool:
    """Return whether its files can be downloaded."""
    return shutil.which("mvn") is not None


def jars() -> list[Path]:
    """Debezium's, downloaded on the first call. Raises StackError if there is no Maven."""
    if not has_maven():
        raise StackError("Debezium's connector for Cassandra is downloaded with Maven", "mvn", "install Maven")
    artifacts = parse_lock(LOCK.read_text(), LOCK.name)
    return fetch(artifacts, Silent(), partial(maven, parents=[Artifact.parse(PARENT)]))


@dataclass(frozen=True)
class Debezium:
    """The connector as it runs, or ran."""

    file: Path
    log: Path
    process: subprocess.Popen[bytes]

    def started(self) -> bool:
        """Whether it reads the commit log, and publishes."""
        log_text = self.log.read_text()
        return all(f"Started {name}" in log_text for name in ("Commit Log Processor", "Queue Processor"))

    def tail(self) -> str:
        return self.log.read_text()[-3000:]


def file_of(status: Status, directory: Path, prefix: str, **more: object) -> Path:
    """Its properties file: topics are `prefix.keyspace.table`, records JSON. `more` are keys with `_` for dots."""
    for name in ("relocated", "offsets"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    driver = directory / "application.conf"
    driver.write_text(
        "datastax-java-driver.basic {\n"
        f'  contact-points = ["{status.contact_points[0]}:{status.cql_port}"]\n'
        f'  load-balancing-policy.local-datacenter = "{status.local_dc}"\n}}\n'
    )
    json = "org.apache.kafka.connect.json.JsonConverter"
    properties = {
        "topic.prefix": prefix,
        "key.converter": json,
        "key.converter.schemas.enable": "false",
        "value.converter": json,
        "value.converter.schemas.enable": "false",
        "kafka.producer.bootstrap.servers": status.bootstrap_servers,
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "cassandra.driver.config.file": driver,
        "commit.log.relocation.dir": directory / "relocated",
        "offset.backing.store.dir": directory / "offsets",
        "snapshot.mode": "NEVER",
        "commit.log.real.time.processing.enabled": "true",
        "commit.log.marked.complete.poll.interval.ms": "100",
        "cdc.dir.poll.interval.ms": "100",
        "poll.interval.ms": "50",
        "http.port": free_port(8000),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    file = directory / "debezium.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return file


def _end_with_parent() -> None:
    """A run that is killed leaves no process behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@contextmanager
def debezium(file: Path) -> Iterator[Debezium]:
    """It runs from this file until the end of the block, or until it is killed."""
    directory = file.parent
    opens = [
        *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED),
        *(f"--add-opens=java.base/jdk.internal.{package}=ALL-UNNAMED" for package in INTERNAL),
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
        "--add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED",
        "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
        "--add-exports=java.rmi/sun.rmi.server=ALL-UNNAMED",
    ]
    logging = directory / "logback.xml"
    logging.write_text(
        '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>'
        "<pattern>%d %p %c - %m%n</pattern></encoder></appender>"
        '<root level="INFO"><appender-ref ref="out"/></root></configuration>'
    )
    opens.append(f"-Dlogback.configurationFile={logging}")
    classes = ":".join(map(str, jars()))
    java = java_home(17, Silent()) / "bin/java"
    log = directory / "debezium.log"
    command = [str(java), "-Xmx512m", "-XX:+UseSerialGC", *opens, "-cp", classes, MAIN, str(file)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=directory, preexec_fn=_end_with_parent)
    try:
        yield Debezium(file, log, process)
    finally:
        end_child(process)
