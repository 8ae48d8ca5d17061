"""Keys of DataStax's source connector, and other spellings of Kafka Connect's, and what becomes of them here."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
    """A key that may only be empty."""

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
    """Debezium's other names for a mode, in any case."""
    text = value.lower() if isinstance(value, str) else value
    return "never" if text in ("no_data", "schema_only") else text


_POSITIONS = "positions are in checkpoint.dir, and every event is read by one connector"
_PACE = "reads slow down by themselves on timeouts: query.max.rate and errors.retry.delay.max.ms bound them"
_MEMORY = "every change is remembered until cache.max.capacity or cache.expire.after.ms says otherwise"
_REPLICAS = "duplicates are identified by the replicas that reported, whichever node answers a read"
_DRIVER = "Cassandra's Python driver chooses it by itself"
_METRICS = "metrics are at /metrics of the worker's listeners"
_ERRORS = "errors.tolerance and errors.retry.timeout say what happens on errors"

DATASTAX: Mapping[str, str | Alias] = {
    "contactPoints": "cassandra.contact.points",
    "port": "cassandra.port",
    "loadBalancing.localDc": "cassandra.local.dc",
    "cloud.secureConnectBundle": _refused(
        "a bundle of Astra's is not read: name the nodes in cassandra.contact.points, and files of certificates in "
        "cassandra.ssl.*"
    ),
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
    "ssl.truststore.password": Alias(why="a file of certificates needs none"),
    "ssl.keystore.path": _refused(
        "a Java key store is not read: export its certificate and key as PEM, and name those files in "
        "cassandra.ssl.certfile and cassandra.ssl.keyfile"
    ),
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
    "datastax-java-driver.*": Alias(why="they are settings of the Java driver, which is not used"),
    "ignoreErrors": Alias(why=_ERRORS),
    "jmx": Alias(why=_METRICS),
    "jmxConnectorDomain": Alias(why=_METRICS),
    "metricsHighestLatency": Alias(why=_METRICS),
}
_CONVERTERS: Mapping[str, str | Alias] = {
    **{
        f"{side}.converter.{key}": f"value.converter.{use}"
        for side, key, use in (
            ("value", "basic.auth.user.info", "schema.registry.basic.auth.user.info"),
            ("key", "basic.auth.user.info", "schema.registry.basic.auth.user.info"),
            ("key", "schema.registry.basic.auth.user.info", "schema.registry.basic.auth.user.info"),
            ("key", "auto.register.schemas", "auto.register.schemas"),
        )
    },
    **{
        f"{side}.converter.basic.auth.credentials.source": Alias(why="credentials are always taken as USER_INFO")
        for side in ("key", "value")
    },
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
ALIASES: Mapping[str, str | Alias] = {**DATASTAX, **_CONVERTERS, **_SNAPSHOT, **_SIGNALS}
