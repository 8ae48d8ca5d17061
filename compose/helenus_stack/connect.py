"""Kafka Connect with what a JDBC sink needs, Debezium's connector and a converter for Avro: a worker of its own.

It is here to show that sinks which are not ours read our topics, and, with the connectors for files that Kafka ships,
what a worker's REST API answers. Connectors are given to that API, and stay.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from helenus_stack.errors import StackError
from helenus_stack.files import write_atomically
from helenus_stack.server import Command, Server, classpath, own_temporary_folder
from helenus_stack.settings import Settings

HEAP = "384m"
TOPICS = {"config": {}, "offset": {"partitions": "1"}, "status": {"partitions": "1"}}
"""What the worker keeps in Kafka, with the settings of those topics."""


def server(settings: Settings, directory: Path) -> Server:
    """The worker of a stack; raises StackError if the stack is secure, or has no Kafka."""
    if settings.secure:
        problem = "Kafka Connect is not set up for a secure stack"
        raise StackError(problem, "connect", "leave out one of --connect and --secure")
    if not settings.has_kafka:
        raise StackError("Kafka Connect needs a Kafka", "connect", "leave out --connect, or choose --log both")
    folder = directory / "connect"
    return Server(
        name="connect",
        folder=folder,
        address="127.0.0.1",
        port=settings.connect_port,
        kind="connect",
        lock="connect",
        java=17,
        newer_java=True,
        prepare=partial(prepare, settings, folder),
        ready=partial(ready, url(settings)),
        ready_seconds=120,
    )


def url(settings: Settings) -> str:
    """The base of its REST API."""
    return f"http://127.0.0.1:{settings.connect_port}"


def configuration(settings: Settings) -> dict[str, str]:
    """The content of worker.properties."""
    storage = {f"{kind}.storage.topic": f"_connect-{kind}" for kind in TOPICS}
    storage |= {f"{kind}.storage.replication.factor": "1" for kind in TOPICS}
    storage |= {f"{kind}.storage.{key}": value for kind, more in TOPICS.items() for key, value in more.items()}
    converter = {
        "converter": "io.apicurio.registry.utils.converter.AvroConverter",
        # The registry's own API, and records in Confluent's wire format: a zero byte and the schema's id there.
        "converter.apicurio.registry.url": f"http://127.0.0.1:{settings.registry_port}/apis/registry/v2",
        "converter.apicurio.registry.as-confluent": "true",
        "converter.apicurio.registry.use-id": "contentId",
    }
    return {
        "bootstrap.servers": f"127.0.0.1:{settings.kafka_port}",
        "group.id": "connect",
        "listeners": url(settings),
        **{f"{side}.{key}": value for side in ("key", "value") for key, value in converter.items()},
        **storage,
        "offset.flush.interval.ms": "1000",
        # A worker that comes back has its tasks at once: nobody else could have taken them.
        "scheduled.rebalance.max.delay.ms": "0",
    }


def prepare(settings: Settings, folder: Path, java: Path, jars: Sequence[Path]) -> Command:
    """Writes worker.properties; see `Server.prepare`."""
    properties = folder / "worker.properties"
    write_atomically(properties, "".join(f"{k}={v}\n" for k, v in configuration(settings).items()))
    options = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError"]
    # Without a file of its own log4j would log errors only.
    options += ["-Dlog4j2.level=INFO", "-Djava.net.preferIPv4Stack=true"]
    options += [own_temporary_folder(folder)]
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    # All jars were resolved together, so one class path does for the worker and its plugins.
    return Command([str(java / "bin/java"), *options, main, str(properties)], folder, classpath(jars))


def ready(base: str) -> bool:
    """Whether the worker says that it is."""
    # As with the registry, no proxy is between us.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base}/health", timeout=3) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
