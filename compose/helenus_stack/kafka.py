"""A Kafka broker that is its own controller: its configuration, its command, and when it is ready."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from helenus_stack.errors import StackError
from helenus_stack.files import write_atomically
from helenus_stack.secure import (
    AGENT,
    CONNECTOR,
    KAFKA_ADMIN,
    STORE_PASSWORD,
    Security,
    key_stores,
    read_passwords,
    security,
)
from helenus_stack.server import Command, Server, classpath, own_temporary_folder
from helenus_stack.settings import Settings, choose_version

VERSIONS = {"4.3": "kafka", "3.9": "kafka-3.9"}
"""The lock of the jars of each."""
CLUSTER_ID = "helenus-stack-cluster1"
"""Kafka wants 22 characters of URL-safe base64."""
HEAP = "384m"
MOST_HEAP = "1g"  # for the partitions of hundreds of tables
MECHANISM = "SCRAM-SHA-512"
LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
ACLS = [
    (AGENT, "TOPIC", "events-", ["CREATE", "WRITE"]),
    (CONNECTOR, "TOPIC", "events-", ["READ", "WRITE"]),
    (CONNECTOR, "TOPIC", "data-", ["CREATE", "WRITE"]),
    (CONNECTOR, "TOPIC", "dlq-", ["CREATE", "WRITE"]),
    (CONNECTOR, "TOPIC", "helenus-offsets", ["CREATE", "READ", "WRITE", "DELETE"]),
    (CONNECTOR, "TOPIC", "helenus-configs", ["CREATE", "READ", "WRITE"]),
    (CONNECTOR, "TOPIC", "helenus-status", ["CREATE", "READ", "WRITE"]),
    (CONNECTOR, "GROUP", "helenus", ["READ"]),
    (CONNECTOR, "TRANSACTIONAL_ID", "helenus", ["WRITE", "DESCRIBE"]),
]
"""Who may do what with all that begins with a name, in a secure stack: what docs/security.md has operators type."""


def server(settings: Settings, directory: Path) -> Server:
    """The broker of a stack."""
    folder = directory / "kafka"
    access = security(settings, directory)
    return Server(
        name="kafka",
        folder=folder,
        address="127.0.0.1",
        port=settings.kafka_port,
        kind="kafka",
        lock=choose_version("kafka", settings.kafka, VERSIONS),
        java=17,
        newer_java=True,
        prepare=partial(prepare, settings, folder),
        ready=partial(ready, f"127.0.0.1:{settings.kafka_port}", access),
        ready_seconds=180,
        furnish=partial(grant, f"127.0.0.1:{settings.kafka_port}", access),
    )


def configuration(settings: Settings, folder: Path) -> dict[str, str]:
    """The content of server.properties."""
    broker, controller = f"127.0.0.1:{settings.kafka_port}", f"127.0.0.1:{settings.controller_port}"
    protocol = "SASL_SSL" if settings.secure else "PLAINTEXT"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{protocol}://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"{protocol}://{broker}",
        "listener.security.protocol.map": f"{protocol}:{protocol},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": protocol,
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
        **(_secured(security(settings, folder.parent), key_stores(folder.parent))),
        **settings.kafka_properties,
    }


def _secured(access: Security | None, stores: Mapping[str, str]) -> dict[str, str]:
    if access is None:
        return {}
    login = f'username="{KAFKA_ADMIN}" password="{access.password(KAFKA_ADMIN)}"'
    return {
        **{f"ssl.{store}.location": path for store, path in stores.items()},
        **{f"ssl.{store}.password": STORE_PASSWORD for store in stores},
        **{f"ssl.{store}.type": "PKCS12" for store in stores},
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{LOGIN_MODULE} required {login};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Nobody is anonymous but on the controller's listener, where the broker talks to itself.
        "super.users": f"User:{KAFKA_ADMIN};User:ANONYMOUS",
    }


def prepare(settings: Settings, folder: Path, java: Path, jars: Sequence[Path]) -> Command:
    """Writes server.properties; see `Server.prepare`. The command formats the data folder before the first start."""
    properties = folder / "server.properties"
    write_atomically(properties, "".join(f"{k}={v}\n" for k, v in configuration(settings, folder).items()), 0o600)
    run = [str(java / "bin/java"), "-Dorg.slf4j.simpleLogger.showDateTime=true", "-Djava.net.preferIPv4Stack=true"]
    run += [own_temporary_folder(folder)]
    start = [
        *run,
        f"-Xms{HEAP}",
        f"-Xmx{MOST_HEAP}",
        *settings.jvm,
        "kafka.Kafka",
        str(properties),
    ]
    if not (folder / "data" / "meta.properties").exists():
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(properties)]
        if access := security(settings, folder.parent):
            for user, password in read_passwords(Path(access.passwords)).items():
                tool += ["--add-scram", f"{MECHANISM}=[name={user},password={password}]"]
        # In a file that Java reads: arguments are for everyone to see in the process list.
        arguments = folder / "format.arguments"
        write_atomically(arguments, "".join(f"{json.dumps(argument)}\n" for argument in tool), 0o600)
        shell = f"{shlex.join([*run, '-XX:TieredStopAtLevel=1', f'@{arguments}'])} && exec {shlex.join(start)}"
        start = ["sh", "-c", shell]
    return Command(start, folder, classpath(jars))


def ready(bootstrap: str, access: Security | None = None) -> bool:
    """Whether the broker gives metadata with itself in it."""
    from confluent_kafka import KafkaException

    try:
        return bool(_admin(bootstrap, access).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def grant(bootstrap: str, access: Security | None) -> None:
    """Gives the users of a secure stack what they need, and no more. Raises StackError."""
    if access is None:
        return
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    bindings = [
        AclBinding(
            getattr(ResourceType, resource),
            name,
            ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            getattr(AclOperation, operation),
            AclPermissionType.ALLOW,
        )
        for user, resource, name, operations in ACLS
        for operation in operations
    ]
    admin = _admin(bootstrap, access)  # must outlive its requests
    try:
        for answer in admin.create_acls(bindings).values():
            answer.result(20)
    except KafkaException as error:
        raise StackError(f"Kafka took no ACLs: {error.args[0].str()}", bootstrap, "look at its log") from error


def _admin(bootstrap: str, access: Security | None) -> Any:
    from confluent_kafka.admin import AdminClient

    silent = logging.Logger("helenus_stack.kafka", level=logging.CRITICAL + 1)
    login = access.kafka(KAFKA_ADMIN) if access else {}
    return AdminClient({"bootstrap.servers": bootstrap, **login}, logger=silent)
