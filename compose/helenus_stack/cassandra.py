"""Cassandra nodes with CDC: their configuration, their command, and when they are ready."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from helenus_stack.errors import StackError
from helenus_stack.files import write_atomically
from helenus_stack.secure import (
    AGENT,
    CASSANDRA_ADMIN,
    CONNECTOR,
    STORE_PASSWORD,
    STRANGER,
    Security,
    key_stores,
    security,
)
from helenus_stack.server import Command, Server, classpath, own_temporary_folder
from helenus_stack.settings import Settings, choose_version

YAML = "cassandra.yaml"
USER = PASSWORD = CASSANDRA_ADMIN
"""The superuser that a node with a PasswordAuthenticator creates; without one, any name will do."""
GRANTS = [
    # The schema and the node's own name are for everyone who may log in.
    f"GRANT SELECT ON system_views.settings TO {AGENT}",
    f"GRANT SELECT ON ALL KEYSPACES TO {CONNECTOR}",
]
"""What docs/security.md has operators type, but for the connector's single tables."""

# What Cassandra's own start script opens of Java 17 (conf/jvm17-server.options).
EXPORTS = """
java.base/jdk.internal.misc java.base/java.lang.ref java.management.rmi/com.sun.jmx.remote.internal.rmi
java.rmi/sun.rmi.registry java.rmi/sun.rmi.server java.sql/java.sql jdk.unsupported/sun.misc
""".split()
OPENS = """
java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.lang.reflect java.base/java.math
java.base/java.net java.base/java.nio java.base/java.util java.base/java.util.concurrent
java.base/java.util.concurrent.atomic java.base/java.util.concurrent.locks java.base/jdk.internal.loader
java.base/jdk.internal.math java.base/jdk.internal.module java.base/jdk.internal.ref java.base/jdk.internal.reflect
java.base/jdk.internal.util java.base/jdk.internal.util.jar java.base/sun.nio.ch jdk.compiler/com.sun.tools.javac.code
jdk.management/com.sun.management.internal
""".split()
MODULES = [f"--add-exports={name}=ALL-UNNAMED" for name in EXPORTS]
MODULES += [f"--add-opens={name}=ALL-UNNAMED" for name in OPENS]
_NODETOOL = Path(__file__).with_name("nodetool.jar")
_PATCH = Path(__file__).with_name("old-cassandra.jar")


@dataclass(frozen=True)
class Version:
    """What differs between Cassandras: the lock of the jars, the Java, names in cassandra.yaml, the newest version of
    the native protocol, and whether it needs OldCassandra.java.
    """

    lock: str
    java: int
    yaml: Mapping[str, object]
    protocol: int = 5
    patched: bool = False


_YAML = {"commitlog_sync_period": "10000ms", "commitlog_segment_size": "8MiB"}
_OLD_YAML = {"commitlog_sync_period_in_ms": 10_000, "commitlog_segment_size_in_mb": 8}
VERSIONS = {
    "6.0": Version("cassandra-6.0", 17, _YAML),
    "5.0": Version("cassandra", 17, _YAML),
    "4.1": Version("cassandra-4.1", 11, _YAML),
    "4.0": Version("cassandra-4.0", 11, _OLD_YAML),
    # A segment reaches cdc_raw when all in it is flushed: small ones are soon. Slabs of direct memory can't be freed.
    "3.11": Version(
        "cassandra-3.11",
        11,
        {
            **_OLD_YAML,
            "commitlog_segment_size_in_mb": 1,
            "commitlog_total_space_in_mb": 2,
            "memtable_allocation_type": "heap_buffers",
            "start_native_transport": True,
            "start_rpc": False,
        },
        protocol=4,
        patched=True,
    ),
}
"""3.11 is for tests alone: it is made for Java 8, and starts on 11 because two of its classes are patched."""


def version(settings: Settings) -> Version:
    """The version that a stack has; raises StackError if there is no such."""
    return choose_version("cassandra", settings.cassandra, VERSIONS)


def servers(settings: Settings, directory: Path) -> list[Server]:
    """The nodes of a stack, as `cassandra1`, `cassandra2`, ..."""
    access = security(settings, directory)
    return [
        Server(
            name=f"cassandra{index + 1}",
            folder=directory / f"cassandra{index + 1}",
            address=address,
            port=settings.cql_port,
            kind="cassandra",
            lock=version(settings).lock,
            java=version(settings).java,
            newer_java=False,
            prepare=partial(prepare, settings, index, directory / f"cassandra{index + 1}"),
            ready=partial(ready, address, settings.cql_port, access, version(settings).protocol),
            ready_seconds=60 + 60 * settings.nodes,
            furnish=partial(grant, address, settings.cql_port, access),
        )
        for index, address in enumerate(settings.addresses)
    ]


def configuration(settings: Settings, index: int, folder: Path) -> dict[str, object]:
    """The content of a node's cassandra.yaml."""
    address = settings.addresses[index]
    is_placed = settings.data_centers > 1 or settings.racks > 1
    # Before 4.0 all nodes have one port, and a seed is an address alone.
    port = "" if version(settings).patched else f":{settings.storage_port}"
    return {
        "cluster_name": "helenus",
        # One token each. Every node is a seed: all may start at once.
        "num_tokens": 1,
        "initial_token": str(settings.token(index)),
        "auto_bootstrap": False,
        "seed_provider": [
            {
                "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                "parameters": [{"seeds": ",".join(f"{a}{port}" for a in settings.addresses)}],
            }
        ],
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "GossipingPropertyFileSnitch" if is_placed else "SimpleSnitch",
        "listen_address": address,
        "storage_port": settings.storage_port,
        "rpc_address": address,
        "native_transport_port": settings.cql_port,
        "data_file_directories": [str(folder / "data")],
        "commitlog_directory": str(folder / "commitlog"),
        "hints_directory": str(folder / "hints"),
        "saved_caches_directory": str(folder / "saved_caches"),
        "cdc_enabled": True,
        "cdc_raw_directory": str(folder / "cdc_raw"),
        "commitlog_sync": "periodic",
        "auto_snapshot": False,
        **version(settings).yaml,
        **(_secured(key_stores(folder.parent)) if settings.secure else {}),
        **settings.cassandra_yaml,
    }


def _secured(stores: Mapping[str, str]) -> dict[str, object]:
    return {
        "authenticator": "PasswordAuthenticator",
        "authorizer": "CassandraAuthorizer",
        "client_encryption_options": {
            "enabled": True,
            "optional": False,
            "require_client_auth": False,
            "store_type": "PKCS12",
            **stores,
            **{f"{store}_password": STORE_PASSWORD for store in stores},
        },
    }


def prepare(settings: Settings, index: int, folder: Path, java: Path, jars: Sequence[Path]) -> Command:
    """Writes the node's files; see `Server.prepare`."""
    # JSON is YAML, and needs no library to write.
    write_atomically(folder / YAML, json.dumps(configuration(settings, index, folder), indent=2) + "\n")
    write_atomically(folder / "logback.xml", (resources.files("helenus_stack") / "logback.xml").read_text())
    rackdc_file = folder / "cassandra-rackdc.properties"
    write_atomically(rackdc_file, f"dc={settings.data_center(index)}\nrack={settings.rack(index)}\n")
    jamm = next(jar for jar in jars if jar.name.startswith("jamm-"))
    options = [
        f"-Xms{settings.heap}",
        f"-Xmx{settings.heap}",
        *settings.jvm,
        f"-javaagent:{jamm}",
        *([f"-javaagent:{_PATCH}"] if version(settings).patched else []),
        "-Djdk.attach.allowAttachSelf=true",
        "-Djava.net.preferIPv4Stack=true",
        "-Dcassandra-foreground=yes",  # or it closes its output, and with it our log, when it is up
        "-Dio.netty.tryReflectionSetAccessible=true",
        own_temporary_folder(folder),
        f"-Dlogback.configurationFile={folder / 'logback.xml'}",
        f"-Dcassandra.config={(folder / 'cassandra.yaml').as_uri()}",
        f"-Dcassandra-rackdc.properties={rackdc_file.as_uri()}",
        f"-Dcassandra.storagedir={folder}",
        f"-Dcassandra.jmx.local.port={settings.jmx_port(index)}",
        # Nothing to wait for: the tokens are given and nobody joins or leaves.
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.ring_delay_ms=100",
        "-Dcassandra.superuser_setup_delay_ms=0",
        "-Dcassandra.shutdown_announce_in_ms=100",
        # A keyspace that was rebuilt on a node can be rebuilt there again.
        "-Dcassandra.reset_bootstrap_progress=true",
    ]
    main = "org.apache.cassandra.service.CassandraDaemon"
    return Command([str(java / "bin/java"), *MODULES, *options, main], folder, classpath(jars))


def ready(address: str, port: int, access: Security | None, protocol: int = 5) -> bool:
    """Whether the node answers a query."""
    return _answers_query(address, port, access, "SELECT key FROM system.local", "ONE", protocol)


def united(settings: Settings, directory: Path) -> bool:
    """Whether every node sees every other one up: each reads at level ALL from tables with a replica on all of them."""
    # Tables that Cassandra creates with two and three replicas.
    table = "system_traces.sessions" if settings.nodes == 2 else "system_distributed.view_build_status"
    query, access = f"SELECT * FROM {table} LIMIT 1", security(settings, directory)
    return all(_answers_query(address, settings.cql_port, access, query, "ALL") for address in settings.addresses)


def grant(address: str, port: int, access: Security | None) -> None:
    """Gives the users of a secure stack what they need, and no more. Raises StackError."""
    if access is None:
        return
    from cassandra import DriverException
    from cassandra.cluster import NoHostAvailable
    from cassandra.protocol import ErrorMessage

    statements = [
        f"CREATE ROLE IF NOT EXISTS {user} WITH PASSWORD = '{access.password(user)}' AND LOGIN = true"
        for user in (AGENT, CONNECTOR, STRANGER)
    ]
    try:
        with _session(address, port, access, "ONE") as session:
            for statement in [*statements, *GRANTS]:
                session.execute(statement)
    except (DriverException, ErrorMessage, NoHostAvailable) as error:
        raise StackError(f"Cassandra took no roles: {error}", f"{address}:{port}", "look at its log") from error


def _answers_query(
    address: str, port: int, access: Security | None, query: str, consistency: str, protocol: int = 5
) -> bool:
    # Imported late: the driver takes long to load, and most commands don't need it.
    from cassandra import DriverException
    from cassandra.cluster import NoHostAvailable

    try:
        with _session(address, port, access, consistency, protocol) as session:
            session.execute(query)
    except (DriverException, NoHostAvailable):
        return False
    return True


@contextmanager
def _session(address: str, port: int, access: Security | None, consistency: str, protocol: int = 5) -> Iterator[Any]:
    """A superuser's session with one node."""
    from cassandra import ConsistencyLevel
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import WhiteListRoundRobinPolicy

    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([address]),
        consistency_level=ConsistencyLevel.name_to_value[consistency],
        request_timeout=5,
    )
    cluster: Any = Cluster(
        [address],
        port=port,
        protocol_version=protocol,
        auth_provider=PlainTextAuthProvider(USER, PASSWORD),
        ssl_context=access.tls() if access else None,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=3,
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def nodetool(settings: Settings, index: int, java: Path, jars: Sequence[Path], *arguments: str) -> str:
    """Runs Cassandra's nodetool on a node and gives its output; raises StackError if it fails."""
    command = [str(java / "bin/java"), *MODULES, "-Xmx64m", "-XX:TieredStopAtLevel=1", "-Dhelenus.log=OFF"]
    command += [f"-Dlogback.configurationFile={resources.files('helenus_stack') / 'logback.xml'}"]
    command += [
        "helenus.Nodetool",
        "-h",
        "127.0.0.1",
        "-p",
        str(settings.jmx_port(index)),
        *arguments,
    ]
    completed = subprocess.run(command, env=classpath([_NODETOOL, *jars]), capture_output=True, text=True)
    if completed.returncode:
        raise StackError(
            f"nodetool {' '.join(arguments)} failed",
            f"cassandra{index + 1}",
            "check that the node is up, and its log",
            detail=(completed.stdout + completed.stderr).strip(),
        )
    return completed.stdout
