"""A Kafka broker that is its own controller: its configuration, its command, and when it is ready."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from helenus_stack.files import write_atomically
from helenus_stack.server import Command, Server, classpath, own_temporary_folder
from helenus_stack.settings import Settings

CLUSTER_ID = "helenus-stack-cluster1"
"""Kafka wants 22 characters of URL-safe base64."""
HEAP = "384m"


def server(settings: Settings, directory: Path) -> Server:
    """The broker of a stack."""
    folder = directory / "kafka"
    return Server(
        name="kafka",
        folder=folder,
        address="127.0.0.1",
        port=settings.kafka_port,
        kind="kafka",
        java=17,
        newer_java=True,
        prepare=partial(prepare, settings, folder),
        ready=partial(ready, f"127.0.0.1:{settings.kafka_port}"),
        ready_seconds=90,
    )


def configuration(settings: Settings, folder: Path) -> dict[str, str]:
    """The content of server.properties."""
    broker, controller = f"127.0.0.1:{settings.kafka_port}", f"127.0.0.1:{settings.controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        # Helenus creates its topics; one that appears by itself would hide a mistake.
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "5",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "5",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        **settings.kafka_properties,
    }


def prepare(settings: Settings, folder: Path, java: Path, jars: Sequence[Path]) -> Command:
    """Writes server.properties; see `Server.prepare`. The command formats the data folder before the first start."""
    properties = folder / "server.properties"
    write_atomically(properties, "".join(f"{k}={v}\n" for k, v in configuration(settings, folder).items()))
    run = [str(java / "bin/java"), "-Dorg.slf4j.simpleLogger.showDateTime=true", "-Djava.net.preferIPv4Stack=true"]
    run += [own_temporary_folder(folder)]
    start = [
        *run,
        f"-Xms{HEAP}",
        f"-Xmx{HEAP}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "kafka.Kafka",
        str(properties),
    ]
    if not (folder / "data" / "meta.properties").exists():
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(properties)]
        shell = f"{shlex.join([*run, '-XX:TieredStopAtLevel=1', *tool])} && exec {shlex.join(start)}"
        start = ["sh", "-c", shell]
    return Command(start, folder, classpath(jars))


def ready(bootstrap: str) -> bool:
    """Whether the broker gives metadata with itself in it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    silent = logging.Logger("helenus_stack.kafka", level=logging.CRITICAL + 1)
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap}, logger=silent)
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False
