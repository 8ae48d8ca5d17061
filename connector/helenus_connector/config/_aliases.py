"""Keys of DataStax's source connector, and other spellings of Kafka Connect's, and what becomes of them here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from helenus_connector.config._converter_aliases import CONVERTERS
from helenus_schemas.settings.fields import hosts_and_ports
from helenus_schemas.settings.model import Alias


def _milliseconds(seconds: str) -> str:
    if not re.fullmatch("[0-9]{1,9}", seconds.strip()) or int(seconds) < 1:
        raise ValueError("give whole seconds, from 1")
    return str(int(seconds) * 1000)


def _tls(provider: str) -> str:
    return "false" if provider.lower() == "none" else "true"


def _pem(value: str) -> str:
    if value.lower().endswith((".jks", ".p12", ".pfx")):
        raise ValueError(
            "a Java trust store is not read: export its certificates as PEM, and name that file in cassandra.ssl.cafile"
        )
    return value


def _refused(reason: str) -> Alias:
    """Return an alias for a key that may only be empty."""

    def refuse(value: str) -> str:
        if value.strip():
            raise ValueError(reason)
        return value

    return Alias(why=reason, convert=refuse)


_KERBEROS = _refused(
    "Kerberos is no way to log in here: give a role of Cassandra's own in cassandra.username and cassandra.password"
)


def _login(provider: str) -> str | None:
    return provider if provider.strip().upper() in ("", "NONE", "PLAIN") else _KERBEROS.convert(provider)


def snapshot_mode(value: object) -> object:
    """Translate Debezium's other names for a mode, in any case."""
    text = value.lower() if isinstance(value, str) else value
    return "never" if text in ("no_data", "schema_only") else text


_DEFAULT_PORT = 9042
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_UNITS_MS |= {
    "": 1,
    "milliseconds": 1,
    "millis": 1,
    "second": 1000,
    "seconds": 1000,
    "minute": 60_000,
    "minutes": 60_000,
}


def _contact_points(value: str) -> str:
    """Return the hosts of the Java driver's contact points."""
    points = hosts_and_ports(value.strip().strip("[]").replace('"', ""))
    ports = {port for _, port in points if port is not None}
    hosts = ",".join(host for host, _ in points)
    if ports - {_DEFAULT_PORT}:
        raise ValueError(f"set cassandra.contact.points={hosts}, and cassandra.port, which is one for all nodes")
    return hosts


def _duration(value: str) -> str:
    """Convert a duration of the Java driver's to ms."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError("set cassandra.request.timeout.ms, in milliseconds")
    return str(int(match[1]) * _UNITS_MS[match[2]])


_NO_KEY_STORE = _refused(
    "a Java key store is not read: export its certificate and key as PEM, and name those files in "
    "cassandra.ssl.certfile and cassandra.ssl.keyfile"
)
_NO_BUNDLE = _refused(
    "a bundle of Astra's is not read: name the nodes in cassandra.contact.points, and files of certificates in "
    "cassandra.ssl.*"
)
_NO_PASSWORD = "a file of certificates needs none"
# What else may be the only place that says where Cassandra is, who logs in, and that there is TLS.
_JAVA_DRIVER: Mapping[str, str | Alias] = {
    "basic.contact-points": Alias("cassandra.contact.points", "hosts of one port", _contact_points),
    "basic.load-balancing-policy.local-datacenter": "cassandra.local.dc",
    "basic.cloud.secure-connect-bundle": _NO_BUNDLE,
    "basic.request.timeout": Alias("cassandra.request.timeout.ms", convert=_duration),
    "advanced.auth-provider.username": "cassandra.username",
    "advanced.auth-provider.password": "cassandra.password",
    "advanced.ssl-engine-factory.class": Alias(
        "cassandra.ssl.enabled", convert=lambda value: "true" if value else None
    ),
    "advanced.ssl-engine-factory.hostname-validation": "cassandra.ssl.check.hostname",
    "advanced.ssl-engine-factory.truststore-path": Alias("cassandra.ssl.cafile", convert=_pem),
    "advanced.ssl-engine-factory.truststore-password": Alias(why=_NO_PASSWORD),
    "advanced.ssl-engine-factory.keystore-path": _NO_KEY_STORE,
    "advanced.ssl-engine-factory.keystore-password": Alias(why="a key in PEM needs none"),
}
_POSITIONS = "positions are in checkpoint.dir, and every event is read by one connector"
_PACE = "reads slow down by themselves on timeouts: query.max.rate and errors.retry.delay.max.ms bound them"
_MEMORY = "every change is remembered until cache.max.capacity or cache.expire.after.ms says otherwise"
_REPLICAS = "duplicates are identified by the replicas that reported, whichever node answers a read"
_DRIVER = "Cassandra's Python driver chooses it by itself"
_METRICS = "metrics are at /metrics of the worker's listeners"
_ERRORS = "errors.tolerance and errors.retry.timeout say what happens on errors"


def _one_topic(value: str) -> str:
    if "," in value:
        raise ValueError("name one topic: a connector of theirs has one table")
    return value


_OWN_CLIENT = "events are read by the worker's own client: its bootstrap.servers, kafka.* and consumer.*"
# Of their connectors for Kafka Connect: the sink of their branch, and the source that took its place.
_DATASTAX_ON_CONNECT: Mapping[str, str | Alias] = {
    "topics": Alias("events.topic", convert=_one_topic),
    "output.topic": "data.topic",
    "data.topic.prefix": Alias("data.topic", convert=lambda prefix: f"{prefix}${{keyspace}}.${{table}}"),
    "kafka.bootstrap.servers": Alias(why="the worker's bootstrap.servers have all topics"),
    "kafka.schema.registry.url": "value.converter.schema.registry.url",
    "schema.registry.url": "value.converter.schema.registry.url",
    "schema.registry.autoRegisterSchemas": "value.converter.auto.register.schemas",
    "internal.consumer.*": Alias(why=_OWN_CLIENT),
    "heartbeat.topic": Alias(why="positions move on with every batch, also where all its events are duplicates"),
    "batch.maxWaitMs": Alias(why="a batch begins as soon as events come; the worker has batch.interval.ms"),
    "query.maxTasksInQueue": Alias(why="query.concurrency says how many statements run at once"),
}

DATASTAX: Mapping[str, str | Alias] = {
    "contactPoints": "cassandra.contact.points",
    "port": "cassandra.port",
    "loadBalancing.localDc": "cassandra.local.dc",
    "cloud.secureConnectBundle": _NO_BUNDLE,
    "auth.provider": Alias(
        why="cassandra.username and cassandra.password are the login, if they are set", convert=_login
    ),
    "auth.gssapi.service": Alias(why="there is no Kerberos"),
    "auth.gssapi.*": _KERBEROS,
    "auth.username": "cassandra.username",
    "auth.password": "cassandra.password",
    "ssl.provider": Alias("cassandra.ssl.enabled", convert=_tls),
    "ssl.hostnameValidation": "cassandra.ssl.check.hostname",
    "ssl.truststore.path": Alias("cassandra.ssl.cafile", convert=_pem),
    "ssl.truststore.password": Alias(why=_NO_PASSWORD),
    "ssl.keystore.path": _NO_KEY_STORE,
    "ssl.keystore.password": Alias(why="a key in PEM needs none"),
    "ssl.openssl.keyCertChain": "cassandra.ssl.certfile",
    "ssl.openssl.privateKey": "cassandra.ssl.keyfile",
    "ssl.cipherSuites": Alias(why="OpenSSL takes the best that both sides know"),
    "outputFormat": "output.format",
    "batch.size": "max.batch.size",
    "events.subscription.name": Alias(why=_POSITIONS),
    "events.subscription.type": Alias(why=_POSITIONS),
    "query.executors": "query.concurrency",
    "query.maxMobileAvgLatency": Alias(why=_PACE),
    "query.minMobileAvgLatency": Alias(why=_PACE),
    "query.backoffInMs": Alias(why=_PACE),
    "query.maxBackoffInSec": Alias(why=_PACE),
    "queryExecutionTimeout": Alias("cassandra.request.timeout.ms", convert=_milliseconds),
    "maxConcurrentRequests": Alias(why="query.concurrency says how many statements run at once"),
    "cache.max.digest": Alias(why=_MEMORY),
    "cache.only_if_coordinator_match": Alias(why=_REPLICAS),
    "connectionPoolLocalSize": Alias(why=_DRIVER),
    "compression": Alias(why=_DRIVER),
    **{f"datastax-java-driver.{path}": alias for path, alias in _JAVA_DRIVER.items()},
    "datastax-java-driver.*": Alias(why="they are settings of the Java driver, which is not used"),
    "ignoreErrors": Alias(why=_ERRORS),
    "jmx": Alias(why=_METRICS),
    "jmxConnectorDomain": Alias(why=_METRICS),
    "metricsHighestLatency": Alias(why=_METRICS),
    **_DATASTAX_ON_CONNECT,
}
_SLICES = "a snapshot reads a few thousand keys at a time, and smaller pages after timeouts"
_SNAPSHOT: Mapping[str, str | Alias] = {
    "snapshot.fetch.size": Alias(why=_SLICES),
    "incremental.snapshot.chunk.size": Alias(why=_SLICES),
    "snapshot.max.threads": Alias(why="snapshot.tables.parallel says how many tables are scanned at once"),
    "snapshot.scan.interval.ms": "table.refresh.interval.ms",
}
_CHANNELS = "snapshots are asked for over REST, by helenus-connector snapshot, and in the topic of signal.topic"
_CLIENT = "signals are read by the worker's own client: its bootstrap.servers, kafka.* and consumer.*"
_SIGNALS: Mapping[str, str | Alias] = {
    "signal.kafka.topic": "signal.topic",
    "signal.enabled.channels": Alias(why=_CHANNELS),
    "signal.data.collection": Alias(why=_CHANNELS),
    "signal.file": Alias(why=_CHANNELS),
    "signal.kafka.bootstrap.servers": Alias(why=_CLIENT),
    "signal.consumer.*": Alias(why=_CLIENT),
    "signal.kafka.groupId": Alias(why="positions are in checkpoint.dir"),
    "signal.poll.interval.ms": Alias(why="signals are looked for once a second"),
    "signal.kafka.poll.timeout.ms": Alias(why="signals are looked for once a second"),
}
ALIASES: Mapping[str, str | Alias] = {**DATASTAX, **CONVERTERS, **_SNAPSHOT, **_SIGNALS}
